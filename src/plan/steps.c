/* plan/steps: see steps.h. */
#include "plan/steps.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define BLOCK_TOKENS 16

struct steps {
    device *d;
    model *m;
    dev_kv *kv;
    dev_compiled *program;
    uint32_t max_seqs, max_blocks, max_tokens; /* blocks: of one sequence */
    int32_t *tokens, *positions;               /* [max_tokens] */
    int32_t *blocks;                           /* [max_seqs, max_blocks] */
    dev_seq *seqs;                             /* [max_seqs] */
    float *logits;                             /* [DEV_HEAD_ROWS, n_vocab] */
};

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t seqs_of(const step_shape *shape) {
    return shape->n_seqs + shape->n_beside;
}

static uint32_t rows_of(const step_shape *shape) {
    return shape->n_seqs * shape->n_rows + shape->n_beside;
}

static void measure_shapes(steps *s, const step_shape *shapes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->max_seqs = larger(s->max_seqs, seqs_of(&shapes[i]));
        s->max_tokens = larger(s->max_tokens, rows_of(&shapes[i]));
        s->max_blocks =
            larger(s->max_blocks, (shapes[i].n_context + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    }
}

/* Written once: pages that nobody has written are all the same page, and that stays near. */
static ridge_status fill_cache(steps *s, const dev_kv_layout *l, ridge_error *err) {
    for (uint32_t g = 0; g < l->n_groups; g++) {
        void *zeros = mem_zalloc(1, dev_kv_bytes_per_block(l, g));
        if (zeros == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a block of the cache");
        for (uint32_t b = 0; b < l->groups[g].n_blocks; b++)
            s->d->vtable->kv_write_block(s->d, s->kv, g, (int32_t)b, zeros);
        mem_free(zeros);
    }
    return RIDGE_OK;
}

static ridge_status open_cache(steps *s, ridge_error *err) {
    dev_kv_layout l = {.n_groups = s->m->n_groups, .block_size = BLOCK_TOKENS, .type = DEV_KV_F16};
    memcpy(l.groups, s->m->groups, sizeof l.groups);
    for (uint32_t g = 0; g < l.n_groups; g++) l.groups[g].n_blocks = s->max_seqs * s->max_blocks;
    RIDGE_TRY(s->d->vtable->kv_create(s->d, &s->kv, &l, err));
    return fill_cache(s, &l, err);
}

static ridge_status open_buffers(steps *s, ridge_error *err) {
    s->tokens = mem_zalloc(s->max_tokens, sizeof *s->tokens);
    s->positions = mem_zalloc(s->max_tokens, sizeof *s->positions);
    s->blocks = mem_zalloc((size_t)s->max_seqs * s->max_blocks, sizeof *s->blocks);
    s->seqs = mem_zalloc(s->max_seqs, sizeof *s->seqs);
    s->logits = mem_zalloc((size_t)DEV_HEAD_ROWS * s->m->program.n_vocab, sizeof *s->logits);
    if (s->tokens == NULL || s->positions == NULL || s->blocks == NULL || s->seqs == NULL ||
        s->logits == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "steps");
    for (uint32_t i = 0; i < s->max_seqs * s->max_blocks; i++) s->blocks[i] = (int32_t)i;
    return RIDGE_OK;
}

ridge_status steps_open(steps **out, const gguf *g, device *d, const step_shape *shapes, size_t n,
                        const log_sink *log, ridge_error *err) {
    steps *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "steps");
    s->d = d;
    measure_shapes(s, shapes, n);
    ridge_assert(s->max_seqs > 0 && s->max_seqs <= DEV_HEAD_ROWS);
    ridge_status status = model_open(&s->m, g, d, log, err);
    if (status == RIDGE_OK) status = open_cache(s, err);
    if (status == RIDGE_OK) status = open_buffers(s, err);
    if (status == RIDGE_OK)
        status = d->vtable->compile(d, &s->program, &s->m->program, s->max_tokens, err);
    if (status != RIDGE_OK) {
        steps_close(s);
        return status;
    }
    *out = s;
    return RIDGE_OK;
}

void steps_close(steps *s) {
    if (s == NULL) return;
    if (s->program != NULL) s->d->vtable->compiled_free(s->d, s->program);
    if (s->kv != NULL) s->d->vtable->kv_free(s->d, s->kv);
    model_close(s->m);
    mem_free(s->tokens);
    mem_free(s->positions);
    mem_free(s->blocks);
    mem_free(s->seqs);
    mem_free(s->logits);
    mem_free(s);
}

/* The sequences follow one another in the batch; each has blocks of its own. */
static dev_batch batch_of(steps *s, const step_shape *shape) {
    uint32_t row = 0;
    for (uint32_t i = 0; i < seqs_of(shape); i++) {
        dev_seq *seq = &s->seqs[i];
        uint32_t n = i < shape->n_seqs ? shape->n_rows : 1;
        *seq = (dev_seq){.first_row = row, .n_rows = n, .n_context = shape->n_context};
        for (uint32_t g = 0; g < s->m->n_groups; g++)
            seq->blocks[g] = s->blocks + (size_t)i * s->max_blocks;
        for (uint32_t r = 0; r < n; r++, row++)
            s->positions[row] = (int32_t)(shape->n_context - n + r);
    }
    return (dev_batch){.n_tokens = row,
                       .n_seqs = seqs_of(shape),
                       .tokens = s->tokens,
                       .positions = s->positions,
                       .seqs = s->seqs};
}

static ridge_status run_head(steps *s, const step_shape *shape, ridge_error *err) {
    uint32_t rows[DEV_HEAD_ROWS];
    uint32_t n = seqs_of(shape);
    for (uint32_t i = 0; i < n; i++) rows[i] = s->seqs[i].first_row + s->seqs[i].n_rows - 1;
    return s->d->vtable->head(s->d, s->program, rows, n, s->logits, err);
}

ridge_status steps_run(steps *s, const step_shape *shape, bool counted, double *seconds,
                       ridge_error *err) {
    dev_batch batch = batch_of(s, shape);
    dev_account account;
    double start = clock_now_s();
    RIDGE_TRY(s->d->vtable->submit(s->d, s->program, s->kv, &batch, err));
    RIDGE_TRY(s->d->vtable->wait(s->d, err));
    RIDGE_TRY(run_head(s, shape, err));
    *seconds = clock_now_s() - start;
    s->d->vtable->account(s->d, &account);
    if (counted) *seconds = account.seconds;
    return RIDGE_OK;
}
