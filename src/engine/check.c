/* engine/check: the invariants of one engine, asserted after each step where engine_params.checks
 * asks for it. Those of blocks and queues are the scheduler's to check (sched_check). */
#include <string.h>

#include "engine/engine_internal.h"

void engine_check(const engine *e) {
    size_t n_live = 0;
    sched_check(e->sched);
    for (const request *q = e->live; q != NULL; q = q->next) {
        ridge_assert(q->finish == ENGINE_RUNNING);
        ridge_assert(q->cancelled == (q->seq.state == SEQUENCE_DONE));
        ridge_assert(q->seq.n_tokens == q->seq.n_prompt + q->n_output);
        n_live += !q->cancelled;
    }
    ridge_assert(n_live == engine_n_waiting(e) + engine_n_running(e));
}

static request *find_in(request *first, uint64_t id) {
    while (first != NULL && first->seq.id != id) first = first->next;
    return first;
}

/* The output decoded at once; without the token that ended it. */
static void decode_output(const engine *e, const request *q, buf *out) {
    const sequence *s = &q->seq;
    uint32_t end = s->n_tokens;
    engine_request given = q->given;
    given.prompt = s->tokens;
    detokenizer d = engine_request_detokenizer(&given, e->tokenizer);
    if (q->finish == ENGINE_STOP && request_is_end(e, q, s->tokens[end - 1])) end--;
    for (uint32_t i = s->n_prompt; i < end; i++)
        detokenizer_push(&d, e->tokenizer, s->tokens[i], q->given.special, out);
    detokenizer_finish(&d, out);
}

/* What was streamed is the decoded output; before a stop string where one ended it. */
static void check_text(const engine *e, const request *q, int stop) {
    buf whole = {0}, said = {0};
    decode_output(e, q, &whole);
    buf_append(&said, q->said.data, q->said.len);
    if (stop >= 0) buf_append(&said, q->stop.strings[stop].bytes, q->stop.strings[stop].len);
    if (!whole.failed && !said.failed && !q->said.failed) {
        ridge_assert(stop >= 0 ? said.len <= whole.len : said.len == whole.len);
        ridge_assert(said.len == 0 || memcmp(said.data, whole.data, said.len) == 0);
    }
    buf_free(&whole);
    buf_free(&said);
}

void engine_check_events(engine *e) {
    for (size_t i = 0; i < e->n_events; i++) {
        const engine_event *event = &e->events[i];
        request *q = find_in(e->live, event->id);
        if (q == NULL) q = find_in(e->done, event->id);
        if (q == NULL) q = find_in(e->padding, event->id);
        ridge_assert(q != NULL && !q->said_last);
        if (event->has_token) ridge_assert(event->position == q->seq.n_prompt + q->n_said++);
        buf_append(&q->said, event->text, event->n_text);
        q->said_last = event->finish != ENGINE_RUNNING;
        if (!q->said_last) continue;
        ridge_assert(event->finish == q->finish && q->n_said == q->n_output);
        if (q->finish == ENGINE_STOP || q->finish == ENGINE_LENGTH)
            check_text(e, q, event->stop_string);
    }
}
