/* plan/sim: see sim.h. The clock: arrivals, ends of steps, and keys and values on their way.
 *
 * At each moment first what comes then is taken in, then the steps that end are finished, in the
 * order of the teams, then every idle team starts. So what arrives when a step ends is in the next
 * one.
 */
#include "plan/sim.h"

#include <math.h>

#include "base/mem.h"
#include "model/config.h"
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

/* Of the next request: its prompt, and both together as far as there is room. */

static uint64_t prompt_of(const sim *s) {
    return (uint64_t)s->params->prefix_tokens + s->due.n_input;
}

static uint64_t tokens_of(const sim *s) {
    uint64_t all = prompt_of(s) + s->due.n_output, most = s->params->pool.sched.max_model_len;
    return all < most ? all : most;
}

static ridge_status check_size(const sim *s, ridge_error *err) {
    uint64_t all = tokens_of(s);
    uint64_t holds = UINT64_MAX;
    for (uint32_t i = 0; i < s->n_teams; i++) {
        const team *t = &s->teams[i];
        uint64_t n = kv_cache_capacity(sched_cache(t->lanes[0].sched));
        n *= t->pool->sched.block_size;
        if (n < holds) holds = n;
    }
    if (all <= holds) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                      "request %llu: %llu tokens of prompt and %llu of answer, but the KV cache "
                      "holds %llu",
                      (unsigned long long)s->n_arrived, (unsigned long long)prompt_of(s),
                      (unsigned long long)(all - prompt_of(s)), (unsigned long long)holds);
}

static ridge_status make_request(sim_request **out, const sim *s, ridge_error *err) {
    static const int32_t any = 0;
    const traffic_request *r = &s->due;
    const sched_params *p = &s->params->pool.sched;
    /* Each step looks at each of its requests several times. */
    sim_request *q = mem_aligned(MEM_LINE, sizeof *q);
    if (q == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a request");
    *q = (sim_request){0};
    uint32_t n_prompt = (uint32_t)prompt_of(s), n_tokens = (uint32_t)tokens_of(s);
    q->index = s->n_arrived;
    q->n_output = n_tokens - n_prompt;
    q->arrived_s = (double)r->due_us / 1e6;
    ridge_status status = check_size(s, err);
    if (status == RIDGE_OK)
        status = sequence_init(&q->seq, &any, 1, n_tokens, p->block_size, p->n_groups, err);
    if (status != RIDGE_OK) {
        mem_free(q);
        return status;
    }
    q->seq.id = q->index;
    q->seq.n_prompt = q->seq.n_tokens = n_prompt;
    write_tokens(s, q);
    if (s->params->decode.n_replicas > 0) q->seq.max_tokens = n_prompt;
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

static ridge_status take_one(sim *s, ridge_error *err) {
    sim_request *q = NULL;
    RIDGE_TRY(make_request(&q, s, err));
    uint32_t to =
        router_choose(s->params->router, s->lanes, s->n_prompt_lanes, s->n_arrived++, &q->seq);
    lane_add(&s->lanes[to], q);
    note_live(s, q);
    s->tally.sums.n_cut += q->n_output < s->due.n_output;
    return RIDGE_OK;
}

static void refuse_one(sim *s) {
    if (s->tally.sums.n_refused++ == 0) s->first_refused = prompt_of(s);
    s->n_arrived++;
}

static ridge_status take_arrivals(sim *s, ridge_error *err) {
    while (s->more && (double)s->due.due_us / 1e6 <= s->now_s) {
        if (prompt_of(s) >= s->params->pool.sched.max_model_len)
            refuse_one(s);
        else
            RIDGE_TRY(take_one(s, err));
        RIDGE_TRY(read_next(s, err));
    }
    return RIDGE_OK;
}

static ridge_status check_refused(const sim *s, ridge_error *err) {
    const sim_result *r = &s->tally.sums;
    if (r->n_requests > 0 || r->n_refused == 0) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                      "request 0: %llu tokens of prompt, but a context has %u (--max-model-len), "
                      "and no other is short enough",
                      (unsigned long long)s->first_refused, s->params->pool.sched.max_model_len);
}

/* Keys and values on their way ----------------------------------------------------------------- */

/* Of the n first tokens, those that any to come sees: of groups with a window its last ones. */
static double kv_bytes(const sim_params *p, double n) {
    double bytes = 0;
    for (uint32_t g = 0; g < p->pool.sched.n_groups; g++) {
        uint32_t window = p->kv[g].window;
        bytes += p->kv[g].token_bytes * (window > 0 && n > window - 1 ? window - 1 : n);
    }
    return bytes;
}

void sim_hand_over(sim *s, lane *from, sim_request *q) {
    const sim_params *p = s->params;
    double seconds = kv_bytes(p, q->seq.n_prompt) / p->link_bytes_per_s;
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
    lane *pool = s->lanes + s->n_prompt_lanes;
    uint32_t n = s->n_lanes - s->n_prompt_lanes;
    while (s->link_first != NULL && s->link_first->ready_s <= s->now_s) {
        sim_request *q = s->link_first;
        s->link_first = q->next;
        if (s->link_first == NULL) s->link_last = NULL;
        lane_add(&pool[router_choose(SIM_LEAST_LOADED, pool, n, 0, &q->seq)], q);
    }
}

/* The clock ------------------------------------------------------------------------------------ */

/* When something happens next; INFINITY: nothing does any more. */
static double next_moment(const sim *s) {
    double t = s->more ? (double)s->due.due_us / 1e6 : INFINITY;
    if (s->link_first != NULL) t = fmin(t, s->link_first->ready_s);
    for (uint32_t i = 0; i < s->n_teams; i++) t = fmin(t, team_moment(&s->teams[i]));
    return t;
}

static ridge_status turn(sim *s, ridge_error *err) {
    RIDGE_TRY(take_arrivals(s, err));
    take_transfers(s);
    for (uint32_t i = 0; i < s->n_teams; i++)
        if (s->teams[i].busy && s->teams[i].end_s <= s->now_s)
            RIDGE_TRY(team_finish(s, &s->teams[i], err));
    for (uint32_t i = 0; i < s->n_teams; i++) RIDGE_TRY(team_start(s, &s->teams[i], err));
    return RIDGE_OK;
}

/* What there is ---------------------------------------------------------------------------------
 */

static uint64_t count_teams(const sim_pool *p) {
    return (uint64_t)p->n_replicas * model_split_ways(p->n_stages);
}

static uint64_t count_lanes(const sim_pool *p) {
    return count_teams(p) * model_split_ways(p->n_expert);
}

static uint64_t count_blocks(const sim_pool *p) {
    uint64_t n = 0;
    for (uint32_t g = 0; g < p->sched.n_groups; g++) n += p->sched.n_blocks[g];
    return n * count_lanes(p);
}

static ridge_status open_team(sim *s, const sim_pool *p, ridge_error *err) {
    team *t = &s->teams[s->n_teams++];
    *t = (team){.pool = p, .lanes = s->lanes + s->n_lanes, .stages = s->stages + s->n_replicas};
    while (t->n_lanes < model_split_ways(p->n_expert)) {
        scheduler **sched = &t->lanes[t->n_lanes].sched;
        RIDGE_TRY(sched_create(sched, &p->sched, err));
        if (s->params->pace) sched_set_cost(*sched, &p->cost, s->params->slo_tpot_s);
        t->n_lanes++;
        s->n_lanes++;
    }
    return RIDGE_OK;
}

static ridge_status open_pool(sim *s, const sim_pool *p, ridge_error *err) {
    for (uint32_t r = 0; r < p->n_replicas; r++) {
        for (uint32_t i = 0; i < model_split_ways(p->n_stages); i++)
            RIDGE_TRY(open_team(s, p, err));
        s->n_replicas++;
    }
    return RIDGE_OK;
}

static ridge_status open_all(sim *s, ridge_error *err) {
    const sim_pool *first = &s->params->pool, *decode = &s->params->decode;
    uint64_t n = count_lanes(first) + count_lanes(decode);
    uint64_t n_blocks = count_blocks(first) + count_blocks(decode);
    if (n > SIM_MAX_LANES || n_blocks > SIM_MAX_BLOCKS)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "%llu schedulers (of each replica one for each stage and rank of "
                          "experts), whose caches have %llu blocks in all; at most %d and %u",
                          (unsigned long long)n, (unsigned long long)n_blocks, SIM_MAX_LANES,
                          SIM_MAX_BLOCKS);
    uint32_t n_seqs = first->sched.max_num_seqs;
    if (decode->n_replicas > 0 && decode->sched.max_num_seqs > n_seqs)
        n_seqs = decode->sched.max_num_seqs;
    s->lanes = mem_zalloc(n, sizeof *s->lanes);
    s->teams = mem_zalloc(count_teams(first) + count_teams(decode), sizeof *s->teams);
    s->stages = mem_zalloc(first->n_replicas + decode->n_replicas, sizeof *s->stages);
    s->seqs = mem_zalloc(n_seqs, sizeof *s->seqs);
    s->ended = mem_zalloc(n_seqs, sizeof *s->ended);
    if (s->lanes == NULL || s->teams == NULL || s->stages == NULL || s->seqs == NULL ||
        s->ended == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "%llu schedulers", (unsigned long long)n);
    RIDGE_TRY(open_pool(s, first, err));
    s->n_prompt_lanes = s->n_lanes;
    RIDGE_TRY(open_pool(s, decode, err));
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
    return check_refused(s, err);
}

static void close_all(sim *s) {
    for (sim_request *q = s->live, *next; q != NULL; q = next) { /* an error came between */
        next = q->live_next;
        if (q->seq.state != SEQUENCE_NEW) sched_remove(q->at->sched, &q->seq);
        sim_request_free(s, q);
    }
    for (uint32_t i = 0; i < s->n_lanes; i++) sched_destroy(s->lanes[i].sched);
    mem_free(s->lanes);
    mem_free(s->teams);
    mem_free(s->stages);
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
        for (uint32_t i = 0; i < s->n_lanes; i++)
            out->cached_tokens += sched_get_prefix_stats(s->lanes[i].sched).hits;
    }
    close_all(s);
    return status;
}
