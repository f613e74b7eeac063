/* plan/replica: one scheduler with its cache, and its steps: what engine/step.c does, without text.
 */
#include "base/mem.h"
#include "plan/sim_internal.h"
#include "sample/philox.h"

ridge_status replica_open(replica *r, const sched_params *p, ridge_error *err) {
    return sched_create(&r->sched, p, err);
}

void replica_close(replica *r) {
    sched_destroy(r->sched);
}

void replica_add(replica *r, sim_request *q) {
    q->at = r;
    r->n_live++;
    sched_add(r->sched, &q->seq);
}

/* A static batch is over: its padding goes too. */
static void end_batch(sim *s, replica *r) {
    if (sched_n_running(r->sched) > 0) return;
    while (r->padding != NULL) {
        sim_request *q = r->padding;
        r->padding = q->next;
        sched_remove(r->sched, &q->seq);
        sim_request_free(s, q);
    }
}

static bool catches_up(const sequence *q) {
    return q->n_computed + q->n_scheduled >= q->n_tokens;
}

static dev_batch batch_of(sim *s, replica *r) {
    r->n_wanted = 0;
    for (uint32_t i = 0; i < r->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)r->plan.sequences[i];
        uint32_t n = q->seq.n_scheduled;
        s->seqs[i].n_rows = n;
        s->seqs[i].n_context = q->seq.n_computed + n;
        if (catches_up(&q->seq)) r->n_wanted += 1 + q->seq.n_draft;
        if (q->scheduled) continue;
        q->scheduled = true;
        tally_start(&s->tally, q, s->now_s);
    }
    return (dev_batch){
        .n_tokens = r->plan.n_tokens, .n_seqs = r->plan.n_sequences, .seqs = s->seqs};
}

ridge_status replica_start(sim *s, replica *r, ridge_error *err) {
    if (r->busy || r->n_live == 0) return RIDGE_OK;
    r->plan = sched_next(r->sched);
    ridge_assert(r->plan.n_sequences > 0); /* a live request can always go on */
    dev_batch batch = batch_of(s, r);
    RIDGE_TRY(s->params->step(s->params->step_context, &batch, r->n_wanted, &r->step, err));
    r->busy = true;
    r->end_s = s->now_s + r->step.seconds;
    return RIDGE_OK;
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

static void end(sim *s, replica *r, sim_request *q) {
    bool complete = q->seq.n_tokens == q->seq.n_prompt + q->n_output || q->n_output == 1;
    r->n_live--;
    if (!complete) {
        sched_remove(r->sched, &q->seq);
        sim_hand_over(s, r, q);
        return;
    }
    tally_end(&s->tally, s->params, q);
    if (sched_end(r->sched, &q->seq)) {
        sim_request_free(s, q);
        return;
    }
    q->next = r->padding;
    r->padding = q;
}

/* Those that decode: no more than what their answers lack, less the token that comes anyway. */
static void guess(const sim *s, const replica *r) {
    for (uint32_t i = 0; i < r->plan.n_sequences && s->params->n_drafts > 0; i++) {
        sequence *q = r->plan.sequences[i];
        uint32_t room = q->max_tokens - q->n_tokens;
        if (q->n_tokens == q->n_prompt || q->n_computed + 1 < q->n_tokens || room < 2) continue;
        q->n_draft = s->params->n_drafts < room ? s->params->n_drafts : room - 1;
    }
}

void replica_finish(sim *s, replica *r) {
    uint32_t n_ended = 0;
    for (uint32_t i = 0; i < r->plan.n_sequences; i++) {
        sim_request *q = (sim_request *)r->plan.sequences[i];
        if (q->seq.padding || !catches_up(&q->seq)) continue;
        tally_token(&s->tally, q, s->now_s);
        if (answer(s, q)) s->ended[n_ended++] = q;
    }
    tally_step(&s->tally, r, &s->params->sched);
    sched_commit(r->sched, true);
    guess(s, r);
    for (uint32_t i = 0; i < n_ended; i++) end(s, r, s->ended[i]);
    end_batch(s, r);
    r->busy = false;
}
