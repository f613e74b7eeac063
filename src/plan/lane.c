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

static bool catches_up(const sequence *q) {
    return q->n_computed + q->n_scheduled >= q->n_tokens;
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
        if (catches_up(&q->seq)) l->n_wanted += 1 + q->seq.n_draft;
        if (q->scheduled) continue;
        q->scheduled = true;
        tally_start(&s->tally, q, s->now_s);
    }
    return (dev_batch){
        .n_tokens = l->plan.n_tokens, .n_seqs = l->plan.n_sequences, .seqs = s->seqs};
}

ridge_status lane_execute(sim *s, lane *l, const sim_pool *p, uint32_t n_group_tokens,
                          sim_step *out, ridge_error *err) {
    static const dev_seq nothing = {.n_rows = 1, .n_context = 1};
    dev_batch batch = {.n_tokens = 1, .n_seqs = 1, .seqs = &nothing};
    l->n_wanted = 0;
    if (l->plan.n_sequences > 0) batch = batch_of(s, l);
    batch.n_group_tokens = n_group_tokens;
    return p->step(p->step_context, &batch, l->n_wanted, out, err);
}

static bool comes_true(const sim *s, const sim_request *q, uint32_t position) {
    uint64_t place = q->index << 24 | position;
    return philox_uniform(s->params->seed, 0, place) < s->params->acceptance;
}

/* A token, and one for each guess that comes true; true: the answer is complete. */
static bool answer(sim *s, sim_request *q) {
    sequence *seq = &q->seq;
    s->tally.sums.n_drafted += seq->n_draft;
    for (;;) {
        uint32_t at = seq->n_tokens;
        if (at == seq->max_tokens) return true; /* it goes on elsewhere */
        sequence_append(seq, seq->tokens[at]);  /* as it was made when it came */
        if (seq->n_tokens == seq->n_prompt + q->n_output) return true;
        if (seq->n_draft == 0 || !comes_true(s, q, at)) return false;
        seq->n_draft--;
        s->tally.sums.n_accepted++;
    }
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
static void guess(const sim *s, const lane *l) {
    for (uint32_t i = 0; i < l->plan.n_sequences && s->params->n_drafts > 0; i++) {
        sequence *q = l->plan.sequences[i];
        uint32_t room = q->max_tokens - q->n_tokens;
        if (q->n_tokens == q->n_prompt || q->n_computed + 1 < q->n_tokens || room < 2) continue;
        q->n_draft = s->params->n_drafts < room ? s->params->n_drafts : room - 1;
    }
}

void lane_finish(sim *s, lane *l, double seconds) {
    uint32_t n_ended = 0;
    for (uint32_t i = 0; i < l->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)l->plan.sequences[i];
        if (q->seq.padding || !catches_up(&q->seq)) continue;
        tally_token(&s->tally, q, s->now_s);
        if (answer(s, q)) s->ended[n_ended++] = q;
    }
    if (s->params->pace) sched_learn(l->sched, l->n_wanted, seconds);
    sched_commit(l->sched, true);
    guess(s, l);
    for (uint32_t i = 0; i < n_ended; i++) end(s, l, s->ended[i]);
    end_batch(s, l);
}
