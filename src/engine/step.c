/* engine/step: one turn of the crank: schedule, forward, sample, detokenize, emit.
 *
 * A row's logits are wanted when its token is the last that its sequence has (the next one is then
 * sampled), or when a request asked for those of its prompt. Everything that is decided here about
 * a sequence depends on its own rows only, which is why no other request can change its text.
 */
#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"
#include "engine/slo.h"
#include "engine/usage.h"

/* Events. */

static engine_event *add_event(engine *e, request *q) {
    ridge_assert(e->n_events < e->max_events);
    e->event_text[e->n_events] = e->text.len;
    engine_event *event = &e->events[e->n_events++];
    *event = (engine_event){.id = q->seq.id,
                            .user = q->given.user,
                            .stop_string = -1,
                            .usage.cached_tokens = q->seq.n_cached};
    return event;
}

static double part_of(double x, double peak) {
    return peak > 0 ? x / peak : 0;
}

static engine_usage usage_of(const engine *e, const request *q) {
    engine_usage u = {.prompt_tokens = q->seq.n_prompt,
                      .completion_tokens = q->n_output,
                      .cached_tokens = q->seq.n_cached};
    if (q->seq.near != NULL) u.miss = (engine_miss){q->seq.n_left_at, q->seq.near, q->seq.n_near};
    if (q->scheduled_s > 0) u.queue_s = q->scheduled_s - q->arrived_s;
    if (q->first_token_s > 0) {
        u.ttft_s = q->first_token_s - q->arrived_s;
        u.decode_s = q->last_token_s - q->first_token_s;
        u.prefill_s = q->first_token_s - q->scheduled_s;
    } else if (q->scheduled_s > 0) {
        u.prefill_s = clock_now_s() - q->scheduled_s;
    }
    u.n_ahead = q->n_ahead;
    u.n_preempted = q->seq.n_preempted;
    u.draft_tokens = q->drafts.n_drafted;
    u.accepted_tokens = q->drafts.n_accepted;
    u.prefill = q->prefill;
    u.decode = q->decode;
    const engine_account *a = &q->steps;
    if (a->seconds > 0) {
        u.bytes_per_s = (a->weight_bytes + a->kv_bytes) / a->seconds;
        u.flops_per_s = a->flops / a->seconds;
    }
    double peak_bytes, peak_flops;
    engine_peaks(e, &peak_bytes, &peak_flops);
    u.mbu = part_of(u.bytes_per_s, peak_bytes);
    u.mfu = part_of(u.flops_per_s, peak_flops);
    return u;
}

/* The last event of q, which leaves the live (move_to_done) once the step is accounted for. */
static void end_request(engine *e, request *q, engine_event *event, engine_finish finish) {
    ridge_assert(q->finish == ENGINE_RUNNING && finish != ENGINE_RUNNING);
    q->finish = finish;
    q->rows_void = true;
    event->finish = finish;
    q->last_event = event;
    if (finish == ENGINE_STOP && q->stop.stopped) event->stop_string = (int)q->stop.found;
    if (finish == ENGINE_ERROR) event->error = &q->error;
    e->stats.finished[finish]++;
    slo_note_end(e, q);
}

/* With its usage said, from the live into another list. */
static void leave_live(engine *e, request *q, request **to) {
    q->last_event->usage = usage_of(e, q);
    speculation_release(e, q);
    *(q->previous != NULL ? &q->previous->next : &e->live) = q->next;
    if (q->next != NULL) q->next->previous = q->previous;
    q->previous = NULL;
    q->next = *to;
    *to = q;
}

/* Freed at the next step. */
static void move_to_done(engine *e, request *q) {
    leave_live(e, q, &e->done);
}

/* A static batch is over: its padding goes too. */
static void end_batch(engine *e) {
    if (sched_n_running(e->sched) > 0) return;
    while (e->padding != NULL) {
        request *q = e->padding;
        e->padding = q->next;
        sched_remove(e->sched, &q->seq);
        request_destroy(q);
    }
}

static void free_done(engine *e) {
    while (e->done != NULL) {
        request *next = e->done->next;
        request_destroy(e->done);
        e->done = next;
    }
}

/* Their blocks are free already; a step says so to as many as it has room for. */
static void report_cancelled(engine *e) {
    for (request *q = e->live, *next; q != NULL && e->n_events < e->max_events / 2; q = next) {
        next = q->next;
        if (!q->cancelled) continue;
        end_request(e, q, add_event(e, q), ENGINE_CANCELLED);
        move_to_done(e, q);
    }
}

/* The batch. */

static bool wants_row(const request *q, uint32_t position) {
    bool last = position + 1 >= q->seq.n_tokens; /* or a guess */
    if (last && !q->given.prompt_only) return true;
    if (position < q->n_described || position >= q->seq.n_prompt) return false;
    return q->given.prompt_logits ||
           (q->given.prompt_logprobs >= 0 && position + 1 < q->seq.n_prompt);
}

static uint32_t build_batch(engine *e, const sched_plan *plan, dev_batch *batch) {
    uint32_t row = 0, n_wanted = 0;
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        const sequence *s = &q->seq;
        q->rows_void = false;
        dev_seq *d = &e->dev_seqs[i];
        *d = (dev_seq){.first_row = row,
                       .n_rows = s->n_scheduled,
                       .n_context = s->n_computed + s->n_scheduled};
        for (uint32_t g = 0; g < s->n_groups; g++) d->blocks[g] = s->kv.tables[g].blocks;
        for (uint32_t p = s->n_computed; p < d->n_context; p++, row++) {
            e->tokens[row] = s->tokens[p];
            e->positions[row] = (int32_t)p;
            if (wants_row(q, p)) e->wanted[n_wanted++] = (wanted_row){q, row, p};
        }
    }
    *batch = (dev_batch){.n_tokens = row,
                         .n_seqs = plan->n_sequences,
                         .tokens = e->tokens,
                         .positions = e->positions,
                         .seqs = e->dev_seqs};
    return n_wanted;
}

/* What a row's logits lead to. */

/* Lets the piece go, as far as it may leave. True: a stop string is complete. */
static bool push_piece(engine *e, request *q) {
    if (e->piece.failed) e->text.failed = true;
    if (q->n_output >= q->given.min_tokens)
        return stop_filter_push(&q->stop, e->piece.data, e->piece.len, &e->text);
    buf_append(&e->text, e->piece.data, e->piece.len);
    return false;
}

static bool push_token(engine *e, request *q, int32_t id) {
    buf_clear(&e->piece);
    detokenizer_push(&q->detok, e->tokenizer, id, q->given.special, &e->piece);
    return push_piece(e, q);
}

/* The text ends: what was held back is part of it, unless the detokenizer's last bytes (U+FFFD for
 * an incomplete character) complete a stop string even now: true then. */
static bool push_end(engine *e, request *q) {
    buf_clear(&e->piece);
    detokenizer_finish(&q->detok, &e->piece);
    bool stopped = push_piece(e, q);
    stop_filter_flush(&q->stop, &e->text);
    return stopped;
}

static engine_finish accept_token(engine *e, request *q, int32_t id) {
    sequence_append(&q->seq, id);
    q->n_output++;
    if (q->counts != NULL) sampler_counts_add(q->counts, id, true);
    bool ended = request_is_end(e, q, id), full = q->seq.n_tokens == q->seq.max_tokens;
    if (!ended && push_token(e, q, id)) return ENGINE_STOP;
    if (!ended && !full) return ENGINE_RUNNING;
    return push_end(e, q) || ended ? ENGINE_STOP : ENGINE_LENGTH;
}

static void take_token(engine *e, request *q, const sampler_result *drawn) {
    engine_event *event = add_event(e, q);
    event->has_token = true;
    event->position = q->seq.n_tokens;
    event->token = *drawn;
    q->last_token_s = clock_now_s();
    if (q->n_output == 0) {
        q->first_token_s = q->last_token_s;
        slo_note_first_token(e, q);
    }
    e->stats.generation_tokens++;
    q->rows_void = !speculation_came_true(q, event->token.id);
    engine_finish finish = accept_token(e, q, event->token.id);
    size_t text_start = e->event_text[event - e->events];
    if (e->text.failed) { /* only this event's text is lost */
        e->text.len = text_start;
        e->text.failed = false;
        error_set(&q->error, RIDGE_ENOMEM, "the text of a token");
        finish = ENGINE_ERROR;
    }
    event->n_text = e->text.len - text_start;
    if (finish != ENGINE_RUNNING) end_request(e, q, event, finish);
}

/* Ends a request whose logits are not numbers. Of a token that was drawn it is its own that tells:
 * one that is no number is drawn only where there is no other. */
static bool row_fails(engine *e, request *q, int32_t id, uint32_t position, const float *logits) {
    if (isfinite(logits[id])) return false;
    error_set(&q->error, RIDGE_EFORMAT,
              "the model's logits after token %u are not numbers: its weights are damaged, or too "
              "large to compute with",
              position);
    end_request(e, q, add_event(e, q), ENGINE_ERROR);
    return true;
}

static void use_row(engine *e, const wanted_row *w, const float *logits, sampler_result *drawn) {
    request *q = w->request;
    if (q->finish != ENGINE_RUNNING) return; /* padding */
    bool in_prompt = w->position < q->seq.n_prompt && w->position >= q->n_described;
    if (in_prompt && q->given.prompt_logits && e->on_logits != NULL)
        e->on_logits(e->on_logits_context, q->seq.id, w->position, logits);
    if (wants_description(w)) {
        int32_t next = q->seq.tokens[w->position + 1];
        if (logits[next] != -INFINITY && row_fails(e, q, next, w->position, logits)) return;
        engine_event *event = add_event(e, q);
        event->is_prompt = true;
        event->position = w->position + 1;
        event->token = *drawn;
    }
    if (in_prompt) q->n_described = w->position + 1;
    if (!wants_token(w)) return;
    if (drawn->id < 0) draw_row(e, w, logits, drawn);
    if (!row_fails(e, q, drawn->id, w->position, logits)) take_token(e, q, drawn);
}

/* Forward and sampling; the only part of a step that can fail. */
static ridge_status run_batch(engine *e, const dev_batch *batch, uint32_t n_wanted,
                              ridge_error *err) {
    const device_vtable *dev = e->dev->vtable;
    size_t n_vocab = (size_t)engine_n_vocab(e);
    RIDGE_TRY(dev->submit(e->dev, e->program, e->kv, batch, err));
    RIDGE_TRY(dev->wait(e->dev, err));
    for (uint32_t first = 0; first < n_wanted; first += DEV_HEAD_ROWS) {
        uint32_t rows[DEV_HEAD_ROWS], n = n_wanted - first;
        if (n > DEV_HEAD_ROWS) n = DEV_HEAD_ROWS;
        for (uint32_t i = 0; i < n; i++) rows[i] = e->wanted[first + i].row;
        RIDGE_TRY(dev->head(e->dev, e->program, rows, n, e->logits, err));
        sampler_result drawn[DEV_HEAD_ROWS];
        draw_rows(e, e->wanted + first, n, e->logits, drawn);
        for (uint32_t i = 0; i < n; i++)
            use_row(e, &e->wanted[first + i], e->logits + i * n_vocab, &drawn[i]);
    }
    return RIDGE_OK;
}

/* After the batch: what prompt-only requests, failed steps and finished sequences need. */
static void settle(engine *e, const sched_plan *plan, ridge_status status, const ridge_error *err) {
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        if (q->finish == ENGINE_RUNNING && status != RIDGE_OK) {
            q->error = *err;
            end_request(e, q, add_event(e, q), ENGINE_ERROR);
        }
        if (q->finish == ENGINE_RUNNING && q->given.prompt_only &&
            q->seq.n_computed + q->seq.n_scheduled == q->seq.n_tokens)
            end_request(e, q, add_event(e, q), ENGINE_LENGTH);
    }
}

static void add_step(engine_account *to, const dev_account *a, double seconds) {
    to->flops += a->flops;
    to->weight_bytes += a->weight_bytes;
    to->kv_bytes += a->kv_bytes;
    to->seconds += seconds;
    to->n_steps++;
}

/* Tokens of its prompt in this step. */
static uint32_t n_prompt_rows(const sequence *s) {
    uint32_t end = s->n_computed + s->n_scheduled;
    if (end > s->n_prompt) end = s->n_prompt;
    return end > s->n_computed ? end - s->n_computed : 0;
}

static step_cost cost_of(const engine *e, const sched_plan *plan, const dev_account *a,
                         double seconds) {
    step_cost c = {.seconds = seconds,
                   .flops = a->flops,
                   .weight_bytes = a->weight_bytes,
                   .kv_bytes = a->kv_bytes,
                   .n_seqs = plan->n_sequences};
    engine_peaks(e, &c.peak_bytes_per_s, &c.peak_flops_per_s);
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        c.n_tokens += plan->sequences[i]->n_scheduled;
        c.n_prompt_tokens += n_prompt_rows(plan->sequences[i]);
    }
    return c;
}

/* Is this step's work of q what a preemption had thrown away? */
static bool computes_again(const request *q) {
    return q->seq.n_computed + q->seq.n_scheduled <= q->n_again;
}

static void account_step(engine *e, const sched_plan *plan, double start) {
    dev_account a = {0};
    e->dev->vtable->account(e->dev, &a);
    double seconds = clock_now_s() - start;
    speculation_note(e, plan, &a, &seconds);
    step_cost cost = cost_of(e, plan, &a, seconds);
    add_step(&e->account, &a, seconds);
    stats_add_step(&e->stats, &cost);
    e->stats.device_s += a.seconds;
    sched_cache_use use = sched_get_cache_use(e->sched);
    e->stats.kv_token_steps_reserved += (double)use.reserved;
    e->stats.kv_token_steps_used += (double)use.used;
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        bool before_first = q->first_token_s == 0 || q->first_token_s >= start;
        add_step(&q->steps, &a, seconds);
        phase_add_step(before_first ? &q->prefill : &q->decode, &cost, n_prompt_rows(&q->seq),
                       computes_again(q));
        uint32_t reached = q->seq.n_computed + q->seq.n_scheduled;
        if (reached > q->seq.n_prompt) reached = q->seq.n_prompt;
        if (reached <= q->n_counted) continue; /* computed again after a preemption */
        uint32_t n_cached = q->n_counted == 0 ? q->seq.n_cached : 0;
        e->stats.prompt_tokens += reached - q->n_counted;
        e->stats.prompt_tokens_cached += n_cached;
        e->stats.prompt_tokens_computed += reached - q->n_counted - n_cached;
        q->n_counted = reached;
    }
}

/* Finished sequences leave the scheduler after the commit, in which the plan still names them. */
static void commit(engine *e, const sched_plan *plan, bool computed) {
    uint32_t n_finished = 0;
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        if (q->finish != ENGINE_RUNNING && !q->seq.padding) e->finished[n_finished++] = q;
    }
    sched_commit(e->sched, computed);
    for (uint32_t i = 0; i < n_finished; i++) {
        bool left = sched_end(e->sched, &e->finished[i]->seq);
        leave_live(e, e->finished[i], left ? &e->done : &e->padding);
    }
}

static void begin_step(request *q, double now) {
    if (q->scheduled_s == 0) q->scheduled_s = now;
    if (q->n_preempted_seen == q->seq.n_preempted) return;
    q->n_preempted_seen = q->seq.n_preempted;
    q->n_again = q->first_token_s > 0 ? q->seq.n_tokens : q->n_counted;
}

static void compute(engine *e, const sched_plan *plan) {
    double start = clock_now_s();
    ridge_error err = {0};
    dev_batch batch;
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        begin_step(q, start);
    }
    for (uint32_t i = 0; i < plan->n_copies; i++) {
        const kv_copy *c = &plan->copies[i];
        e->dev->vtable->kv_copy(e->dev, e->kv, c->group, c->from, c->to, c->n_tokens);
    }
    uint32_t n_wanted = build_batch(e, plan, &batch);
    ridge_status status = run_batch(e, &batch, n_wanted, &err);
    settle(e, plan, status, &err);
    account_step(e, plan, start);
    if (status == RIDGE_OK) sched_learn(e->sched, n_wanted, clock_now_s() - start);
    commit(e, plan, status == RIDGE_OK);
}

bool engine_step(engine *e, const engine_event **events, size_t *n_events) {
    free_done(e);
    end_batch(e);
    e->n_events = 0;
    buf_clear(&e->text);
    report_cancelled(e);
    speculation_guess(e);
    sched_plan plan = sched_next(e->sched);
    e->stats.preemptions += plan.n_preempted;
    if (e->on_plan != NULL) e->on_plan(e->on_plan_context);
    if (plan.n_sequences > 0) compute(e, &plan);
    double now = clock_now_s();
    for (size_t i = 0; i < e->n_events; i++) {
        e->events[i].text = e->events[i].n_text > 0 ? e->text.data + e->event_text[i] : "";
        e->events[i].time_s = now;
    }
    if (e->params.checks) {
        engine_check(e);
        engine_check_events(e);
    }
    *events = e->events;
    *n_events = e->n_events;
    return plan.n_sequences > 0 || e->n_events > 0;
}

void engine_enqueue(engine *e, request *q) {
    q->n_ahead = sched_n_waiting(e->sched) + sched_n_running(e->sched);
    q->next = e->live;
    if (e->live != NULL) e->live->previous = q;
    e->live = q;
    sched_add(e->sched, &q->seq);
}

void engine_cancel(engine *e, uint64_t id) {
    for (request *q = e->live; q != NULL; q = q->next)
        if (q->seq.id == id && !q->cancelled) {
            q->cancelled = true;
            sched_remove(e->sched, &q->seq);
            return;
        }
}
