/* plan/lane: one scheduler with its cache, and its steps: what engine/step.c does, without text.
 */
#include "base/mem.h"
#include "plan/sim_internal.h"
#include "sample/philox.h"

void lane_add(lane *l, sim_request *q) {
    q->at = l;
    l->n_live++;
    sched_add(l->sched, &q->seq);
}

/* A static batch is over: its padding goes too. */
static void end_batch(sim *s, lane *l) {
    if (sched_n_running(l->sched) > 0) return;
    while (l->padding != NULL) {
        sim_request *q = l->padding;
        l->padding = q->next;
        sched_remove(l->sched, &q->seq);
        sim_request_free(s, q);
    }
}

void lane_plan(lane *l) {
    l->plan = l->n_live > 0 ? sched_next(l->sched) : (sched_plan){0};
    ridge_assert(l->n_live == 0 || l->plan.n_sequences > 0); /* a live request can always go on */
}

static dev_batch batch_of(sim *s, lane *l) {
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)l->plan.sequences[i];
        uint32_t n = q->seq.n_scheduled;
        s->seqs[i].n_rows = n;
        s->seqs[i].n_context = q->seq.n_computed + n;
        if (sequence_catches_up(&q->seq)) l->n_wanted += 1 + q->seq.n_draft;
        if (q->scheduled) continue;
        q->scheduled = true;
        tally_start(&s->tally, q, s->now_s);
    }
    return (dev_batch){
        .n_tokens = l->plan.n_tokens, .n_seqs = l->plan.n_sequences, .seqs = s->seqs};
}

static void add_step(sim_step *to, const sim_step *step) {
    to->seconds += step->seconds;
    to->parts_s[0] += step->seconds;
    for (int i = 0; i < ROOF_N_BOUNDS; i++) to->bounds_s[i] += step->bounds_s[i];
    dev_account_add(&to->account, &step->account);
}

ridge_status lane_execute(sim *s, lane *l, const sim_pool *p, const dev_batch *group, sim_step *out,
                          ridge_error *err) {
    static const dev_seq nothing = {.n_rows = 1, .n_context = 1};
    dev_batch batch = {.n_tokens = 1, .n_seqs = 1, .seqs = &nothing};
    l->n_wanted = 0;
    if (l->plan.n_sequences > 0) batch = batch_of(s, l);
    batch.n_group_tokens = group->n_group_tokens;
    batch.group_halves = group->group_halves;
    RIDGE_TRY(p->step(p->step_context, &batch, l->n_wanted, out, err));
    if (l->guessing.seconds > 0) {
        add_step(out, &l->guessing);
        l->guessing = (sim_step){0};
    }
    return RIDGE_OK;
}

static bool comes_true(const sim *s, const sim_request *q, uint32_t position) {
    uint64_t place = q->index << 24 | position;
    return philox_uniform(s->params->seed, 0, place) < s->params->acceptance;
}

/* A token, and one for each guess that comes true; true: the answer is complete. */
static bool append(sim *s, sim_request *q) {
    sequence *seq = &q->seq;
    s->tally.sums.n_drafted += seq->n_draft;
    for (;;) {
        uint32_t at = seq->n_tokens;
        if (at == seq->max_tokens) return true; /* it goes on elsewhere */
        sequence_accept(seq);                   /* as it was made when it came */
        if (seq->n_tokens == seq->n_prompt + q->n_output) return true;
        if (seq->n_draft == 0 || !comes_true(s, q, at)) return false;
        seq->n_draft--;
        s->tally.sums.n_accepted++;
    }
}

static bool answer(sim *s, sim_request *q) {
    bool complete = append(s, q);
    uint32_t known = q->seq.n_tokens - 1; /* the last token is the model's own */
    if (q->n_draft_known > known) q->n_draft_known = known;
    return complete;
}

static void end(sim *s, lane *l, sim_request *q) {
    bool complete = q->seq.n_tokens == q->seq.n_prompt + q->n_output || q->n_output == 1;
    l->n_live--;
    if (!complete) {
        sched_remove(l->sched, &q->seq);
        sim_hand_over(s, l, q);
        return;
    }
    tally_end(&s->tally, s->params, q);
    if (sched_end(l->sched, &q->seq)) {
        sim_request_free(s, q);
        return;
    }
    q->next = l->padding;
    l->padding = q;
}

/* Those that decode: no more than what their answers lack, less the token that comes anyway. */
static void propose(const sim *s, const lane *l) {
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sequence *q = l->plan.sequences[i];
        uint32_t room = q->max_tokens - q->n_tokens;
        if (q->n_tokens == q->n_prompt || q->n_computed + 1 < q->n_tokens || room < 2) continue;
        q->n_draft = s->params->n_drafts < room ? s->params->n_drafts : room - 1;
    }
}

/* What the draft model has not seen yet. Who has yet to catch up gets no guesses. */
static dev_batch catch_up(sim *s, const lane *l, uint32_t room, uint32_t *n_wanted) {
    dev_batch batch = {.seqs = s->seqs};
    *n_wanted = 0;
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)l->plan.sequences[i];
        uint32_t lacks = q->seq.n_tokens - q->n_draft_known, left = room - batch.n_tokens;
        uint32_t n = lacks < left ? lacks : left;
        if (q->seq.n_draft == 0) continue;
        if (n < lacks) q->seq.n_draft = 0;
        if (n == 0) continue;
        q->n_draft_known += n;
        s->seqs[batch.n_seqs++] = (dev_seq){.n_rows = n, .n_context = q->n_draft_known};
        batch.n_tokens += n;
        *n_wanted += n == lacks;
    }
    return batch;
}

/* The last guess of each is computed by the model alone. */
static dev_batch next_round(sim *s, const lane *l, uint32_t round) {
    dev_batch batch = {.seqs = s->seqs};
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)l->plan.sequences[i];
        if (q->seq.n_draft <= round) continue;
        q->n_draft_known++;
        s->seqs[batch.n_seqs++] = (dev_seq){.n_rows = 1, .n_context = q->n_draft_known};
        batch.n_tokens++;
    }
    return batch;
}

static ridge_status guess(sim *s, lane *l, const sim_pool *p, ridge_error *err) {
    if (s->params->n_drafts == 0 || p->sched.static_batches) return RIDGE_OK;
    propose(s, l);
    if (p->draft == NULL) return RIDGE_OK;
    uint32_t n_wanted;
    dev_batch batch = catch_up(s, l, p->sched.max_num_batched_tokens, &n_wanted);
    for (uint32_t round = 1; batch.n_tokens > 0; round++) {
        sim_step step;
        RIDGE_TRY(p->draft(p->step_context, &batch, n_wanted, &step, err));
        add_step(&l->guessing, &step);
        batch = next_round(s, l, round);
        n_wanted = batch.n_tokens;
    }
    return RIDGE_OK;
}

ridge_status lane_finish(sim *s, lane *l, const sim_pool *p, double seconds, ridge_error *err) {
    uint32_t n_ended = 0;
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)l->plan.sequences[i];
        if (q->seq.padding || !sequence_catches_up(&q->seq)) continue;
        tally_token(&s->tally, q, s->now_s);
        if (answer(s, q)) s->ended[n_ended++] = q;
    }
    if (s->params->pace) sched_learn(l->sched, l->n_wanted, seconds);
    sched_commit(l->sched, true);
    ridge_status status = guess(s, l, p, err);
    for (uint32_t i = 0; i < n_ended; i++) end(s, l, s->ended[i]);
    end_batch(s, l);
    return status;
}
