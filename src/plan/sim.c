/* plan/sim: see sim.h. The clock: arrivals, ends of steps, and keys and values on their way.
 *
 * At each moment first what comes then is taken in, then the steps that end are finished, in the
 * order of the replicas, then every idle replica starts. So what arrives when a step ends is in the
 * next one.
 */
#include "plan/sim.h"

#include <math.h>

#include "base/mem.h"
#include "plan/sim_internal.h"

/* Tokens: what is shared is not negative; what is a request's alone, its index from below. */
#define SHARED_BEGINNING (1 << 30)
#define NAME_MASK (SHARED_BEGINNING - 1)

static int32_t own_token(uint64_t index) {
    return -1 - (int32_t)(index & INT32_MAX);
}

static uint32_t fill(int32_t *tokens, uint32_t n, uint32_t most, int32_t token) {
    if (n > most) n = most;
    for (uint32_t i = 0; i < n; i++) tokens[i] = token;
    return n;
}

/* Its beginning, the blocks that the trace names, then what no name is given for, and the answer.
 */
static void write_tokens(const sim *s, sim_request *q) {
    const traffic_request *r = &s->due;
    int32_t *tokens = q->seq.tokens;
    uint32_t end = q->seq.n_prompt, n = 0;
    n += fill(tokens, s->params->prefix_tokens, end,
              SHARED_BEGINNING | (int32_t)(r->prefix & NAME_MASK));
    for (uint32_t b = 0; b < r->n_blocks; b++)
        n += fill(tokens + n, TRACE_BLOCK_TOKENS, end - n, (int32_t)(r->blocks[b] & NAME_MASK));
    fill(tokens + n, q->seq.max_tokens - n, UINT32_MAX, own_token(q->index));
}

static ridge_status check_size(const sim *s, const sim_request *q, ridge_error *err) {
    const traffic_request *r = &s->due;
    uint64_t prompt = (uint64_t)s->params->prefix_tokens + r->n_input, all = prompt + r->n_output;
    uint64_t holds = (uint64_t)kv_cache_capacity(sched_cache(s->replicas[0].sched)) *
                     s->params->sched.block_size;
    const sched_params *p = &s->params->sched;
    if (all <= holds && (!p->static_batches || all <= p->max_model_len)) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                      "request %llu: %llu tokens of prompt and %u of answer, but %s %llu",
                      (unsigned long long)q->index, (unsigned long long)prompt, r->n_output,
                      all > holds ? "the KV cache holds" : "a sequence of a static batch has",
                      (unsigned long long)(all > holds ? holds : p->max_model_len));
}

static ridge_status make_request(sim_request **out, const sim *s, ridge_error *err) {
    static const int32_t any = 0;
    const traffic_request *r = &s->due;
    const sched_params *p = &s->params->sched;
    sim_request *q = mem_zalloc(1, sizeof *q);
    if (q == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a request");
    q->index = s->n_arrived;
    q->n_output = r->n_output;
    q->arrived_s = (double)r->due_us / 1e6;
    uint32_t n_prompt = s->params->prefix_tokens + r->n_input;
    ridge_status status = check_size(s, q, err);
    if (status == RIDGE_OK)
        status = sequence_init(&q->seq, &any, 1, n_prompt + r->n_output, p->block_size, p->n_groups,
                               err);
    if (status != RIDGE_OK) {
        mem_free(q);
        return status;
    }
    q->seq.id = q->index;
    q->seq.n_prompt = q->seq.n_tokens = n_prompt;
    write_tokens(s, q);
    if (s->params->n_decode > 0) q->seq.max_tokens = n_prompt;
    *out = q;
    return RIDGE_OK;
}

static void note_live(sim *s, sim_request *q) {
    q->live_next = s->live;
    if (s->live != NULL) s->live->live_previous = q;
    s->live = q;
    if (++s->n_live > s->tally.sums.max_live) s->tally.sums.max_live = s->n_live;
}

void sim_request_free(sim *s, sim_request *q) {
    s->n_live--;
    *(q->live_previous != NULL ? &q->live_previous->live_next : &s->live) = q->live_next;
    if (q->live_next != NULL) q->live_next->live_previous = q->live_previous;
    sequence_deinit(&q->seq);
    mem_free(q);
}

static ridge_status read_next(sim *s, ridge_error *err) {
    return traffic_next(s->from, &s->due, &s->more, err);
}

static ridge_status take_arrivals(sim *s, ridge_error *err) {
    const sim_params *p = s->params;
    while (s->more && (double)s->due.due_us / 1e6 <= s->now_s) {
        sim_request *q = NULL;
        RIDGE_TRY(make_request(&q, s, err));
        replica *to = &s->replicas[router_choose(p->router, s->replicas, p->n_replicas,
                                                 s->n_arrived++, &q->seq)];
        replica_add(to, q);
        note_live(s, q);
        RIDGE_TRY(read_next(s, err));
    }
    return RIDGE_OK;
}

/* Keys and values on their way ----------------------------------------------------------------- */

void sim_hand_over(sim *s, replica *from, sim_request *q) {
    const sim_params *p = s->params;
    double seconds = q->seq.n_prompt * p->kv_token_bytes / p->link_bytes_per_s;
    from->link_free_s = fmax(from->link_free_s, s->now_s) + seconds;
    q->ready_s = from->link_free_s + p->link_latency_s;
    s->tally.sums.transfer_s += seconds;
    s->tally.sums.n_transfers++;
    /* The sequence as it will be there: with its first token, which has yet to be computed. */
    q->seq.state = SEQUENCE_NEW;
    q->seq.max_tokens = q->seq.n_prompt + q->n_output;
    q->seq.n_tokens = q->seq.n_prompt + 1;
    q->seq.n_received = q->seq.n_prompt;
    q->seq.no_match = true;
    sim_request **at = &s->link_first;
    if (s->link_last != NULL && s->link_last->ready_s <= q->ready_s) at = &s->link_last->next;
    while (*at != NULL && (*at)->ready_s <= q->ready_s) at = &(*at)->next;
    q->next = *at;
    *at = q;
    if (q->next == NULL) s->link_last = q;
}

static void take_transfers(sim *s) {
    const sim_params *p = s->params;
    replica *pool = s->replicas + p->n_replicas;
    while (s->link_first != NULL && s->link_first->ready_s <= s->now_s) {
        sim_request *q = s->link_first;
        s->link_first = q->next;
        if (s->link_first == NULL) s->link_last = NULL;
        replica *to = &pool[router_choose(SIM_LEAST_LOADED, pool, p->n_decode, 0, &q->seq)];
        replica_add(to, q);
    }
}

/* The clock ------------------------------------------------------------------------------------ */

/* When something happens next; INFINITY: nothing does any more. */
static double next_moment(const sim *s) {
    double t = s->more ? (double)s->due.due_us / 1e6 : INFINITY;
    if (s->link_first != NULL) t = fmin(t, s->link_first->ready_s);
    for (uint32_t i = 0; i < s->n_replicas; i++)
        if (s->replicas[i].busy) t = fmin(t, s->replicas[i].end_s);
    return t;
}

static ridge_status turn(sim *s, ridge_error *err) {
    RIDGE_TRY(take_arrivals(s, err));
    take_transfers(s);
    for (uint32_t i = 0; i < s->n_replicas; i++)
        if (s->replicas[i].busy && s->replicas[i].end_s <= s->now_s)
            replica_finish(s, &s->replicas[i]);
    for (uint32_t i = 0; i < s->n_replicas; i++) RIDGE_TRY(replica_start(s, &s->replicas[i], err));
    return RIDGE_OK;
}

static ridge_status open_all(sim *s, ridge_error *err) {
    const sim_params *p = s->params;
    s->replicas = mem_zalloc(p->n_replicas + p->n_decode, sizeof *s->replicas);
    s->seqs = mem_zalloc(p->sched.max_num_seqs, sizeof *s->seqs);
    s->ended = mem_zalloc(p->sched.max_num_seqs, sizeof *s->ended);
    if (s->replicas == NULL || s->seqs == NULL || s->ended == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "%u replicas", p->n_replicas + p->n_decode);
    while (s->n_replicas < p->n_replicas + p->n_decode) {
        RIDGE_TRY(replica_open(&s->replicas[s->n_replicas], &p->sched, err));
        s->n_replicas++;
    }
    return read_next(s, err);
}

static ridge_status run(sim *s, ridge_error *err) {
    RIDGE_TRY(open_all(s, err));
    for (;;) {
        double t = next_moment(s);
        if (t == INFINITY) break;
        s->now_s = t;
        RIDGE_TRY(turn(s, err));
    }
    ridge_assert(s->n_live == 0);
    return RIDGE_OK;
}

static void close_all(sim *s) {
    for (sim_request *q = s->live, *next; q != NULL; q = next) { /* an error came between */
        next = q->live_next;
        if (q->seq.state != SEQUENCE_NEW) sched_remove(q->at->sched, &q->seq);
        sim_request_free(s, q);
    }
    for (uint32_t i = 0; i < s->n_replicas; i++) replica_close(&s->replicas[i]);
    mem_free(s->replicas);
    mem_free(s->seqs);
    mem_free(s->ended);
    mem_free(s);
}

ridge_status sim_run(sim_result *out, const sim_params *p, traffic *from, ridge_error *err) {
    sim *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the simulation");
    s->params = p;
    s->from = from;
    ridge_status status = run(s, err);
    if (status == RIDGE_OK) {
        *out = tally_result(&s->tally);
        for (uint32_t i = 0; i < s->n_replicas; i++)
            out->cached_tokens += sched_get_prefix_stats(s->replicas[i].sched).hits;
    }
    close_all(s);
    return status;
}
