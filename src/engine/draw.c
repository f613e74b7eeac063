/* engine/draw: what the logits of rows lead to: the token that comes next, or what the prompt's
 * next token is worth.
 *
 * Each is a function of its own row and of what its request was before the step, so the device's
 * threads find them for all rows at once, in any order. Nothing is changed here: step.c takes the
 * results in the order of the rows.
 */
#include "base/clock.h"
#include "engine/engine_internal.h"

typedef struct {
    const engine *e;
    const wanted_row *rows; /* [n] */
    const float *logits;    /* [n, n_vocab] */
    sampler_result *out;    /* [n] */
} draw_job;

bool wants_token(const wanted_row *w) {
    const request *q = w->request;
    return q->finish == ENGINE_RUNNING && w->position + 1 == q->seq.n_tokens &&
           !q->given.prompt_only && !q->rows_void;
}

bool wants_description(const wanted_row *w) {
    const request *q = w->request;
    return q->finish == ENGINE_RUNNING && w->position >= q->n_described &&
           w->position + 1 < q->seq.n_prompt && q->given.prompt_logprobs >= 0;
}

static void draw_with(sampler *s, const wanted_row *w, const float *logits, sampler_result *out) {
    const request *q = w->request;
    out->id = -1;
    if (wants_token(w)) {
        sampler_params p = q->sampling;
        if (q->n_output >= q->given.min_tokens) p.n_banned = 0;
        sampler_draw(s, &p, q->counts, logits, w->position + 1, out);
    } else if (wants_description(w)) {
        sampler_describe(s, logits, q->seq.tokens[w->position + 1], q->given.prompt_logprobs, out);
    }
}

static void draw_shared(void *context, int member, uint32_t i) {
    const draw_job *j = context;
    draw_with(j->e->samplers[member], &j->rows[i], j->logits + i * (size_t)engine_n_vocab(j->e),
              &j->out[i]);
}

void draw_rows(engine *e, const wanted_row *rows, uint32_t n, const float *logits,
               sampler_result *out) {
    draw_job j = {e, rows, logits, out};
    uint32_t n_wanted = 0;
    for (uint32_t i = 0; i < n; i++) {
        out[i].id = -1;
        n_wanted += wants_token(&rows[i]) || wants_description(&rows[i]);
    }
    if (n_wanted == 0) return; /* their logits alone were asked for */
    double start = clock_now_s();
    e->dev->vtable->share(e->dev, n, draw_shared, &j);
    e->account.sample_s += clock_now_s() - start;
}

void draw_row(engine *e, const wanted_row *row, const float *logits, sampler_result *out) {
    double start = clock_now_s();
    draw_with(e->samplers[0], row, logits, out);
    e->account.sample_s += clock_now_s() - start;
}

ridge_status draw_open(engine *e, ridge_error *err) {
    int n = engine_n_threads(e);
    if (n > DEV_HEAD_ROWS) n = DEV_HEAD_ROWS; /* no more rows, no more threads */
    for (int i = 0; i < n; i++) {
        RIDGE_TRY(sampler_create(&e->samplers[i], engine_n_vocab(e), err));
        sampler_use_isa(e->samplers[i], engine_isa(e));
    }
    return RIDGE_OK;
}

void draw_close(engine *e) {
    for (int i = 0; i < DEV_HEAD_ROWS; i++) sampler_destroy(e->samplers[i]);
}
