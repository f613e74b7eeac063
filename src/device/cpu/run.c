/* device/cpu/run: every member of the team walks the steps of a program; each step is a piece of
 * work.
 *
 * Work is cut into fixed chunks: rows of a row-wise step, panels x tokens of a linear, heads x rows
 * or heads x spans of an attention. No result depends on how: each output element is made by one
 * member in the order that the kernels fix. Nothing is allocated here.
 */
#include "device/cpu/run.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "roof/work.h"

float *cpu_value_row(const cpu_run *r, dev_value v, uint32_t row) {
    const cpu_value *value = &r->c->values[v];
    return (value->data != NULL ? value->data : r->logits) + (size_t)row * value->ld;
}

static uint32_t value_width(const cpu_run *r, dev_value v) {
    return r->c->values[v].width;
}

/* Row-wise operations -------------------------------------------------------------------------- */

static void run_embed(const cpu_run *r, const dev_op *op, uint32_t row) {
    const dev_weight *w = op->w[0];
    float *out = cpu_value_row(r, op->out[0], row);
    size_t token = (size_t)r->c->batch.tokens[row];
    quant_dequantize(w->type, w->file + token * w->row_bytes, out, w->cols);
    if (op->scale != 1.0f && op->scale != 0.0f) r->k->scale(out, op->scale, out, w->cols);
}

static void run_norm(const cpu_run *r, const dev_op *op, uint32_t row) {
    uint32_t width = value_width(r, op->in[0]), n = op->head_dim ? op->head_dim : width;
    const float *in = cpu_value_row(r, op->in[0], row);
    float *out = cpu_value_row(r, op->out[0], row);
    for (uint32_t i = 0; i < width; i += n)
        r->k->rms_norm(in + i, op->w[0]->vector, out + i, n, op->eps);
}

cpu_xblock *cpu_input_at(const cpu_run *r, int input, uint32_t n_blocks, uint32_t row, uint32_t b,
                         uint32_t *stride) {
    uint32_t first = row / CPU_TILE * CPU_TILE, left = r->n_rows - first;
    *stride = left < CPU_TILE ? left : CPU_TILE;
    return r->c->x[input] + (size_t)first * n_blocks + (size_t)b * *stride + (row - first);
}

static void run_quantize(const cpu_run *r, const cpu_op *op, uint32_t row) {
    uint32_t cols = value_width(r, op->op.in[0]), stride;
    cpu_xblock *x = cpu_input_at(r, op->x_in, cols / CPU_BLOCK, row, 0, &stride);
    r->k->quantize(cpu_value_row(r, op->op.in[0], row), cols, x, stride);
}

/* Angles in double: at position 100,000 a float is off by 0.01. */
static void run_rope_table(const cpu_run *r, uint32_t index, uint32_t row) {
    const cpu_rope *rope = &r->c->ropes[index];
    double position = r->c->batch.positions[row];
    float *cosine = rope->cosine + (size_t)row * rope->n_pairs;
    float *sine = rope->sine + (size_t)row * rope->n_pairs;
    for (uint32_t i = 0; i < rope->n_pairs; i++) {
        double angle = position * (double)rope->inv_freq[i];
        cosine[i] = (float)(cos(angle) * (double)rope->mscale);
        sine[i] = (float)(sin(angle) * (double)rope->mscale);
    }
}

static void run_rope(const cpu_run *r, const cpu_op *op, uint32_t row) {
    const cpu_rope *rope = &r->c->ropes[op->rope_table];
    const float *cosine = rope->cosine + (size_t)row * rope->n_pairs;
    const float *sine = rope->sine + (size_t)row * rope->n_pairs;
    float *x = cpu_value_row(r, op->op.in[0], row);
    uint32_t width = value_width(r, op->op.in[0]);
    for (uint32_t i = 0; i < width; i += op->op.head_dim)
        (op->op.rope_neox ? r->k->rope_neox : r->k->rope_pairs)(x + i, cosine, sine, rope->n_pairs);
}

static void run_kv_write(const cpu_run *r, const dev_op *op, uint32_t row, float *scratch) {
    const dev_seq *seq = &r->c->batch.seqs[r->c->rows[row]];
    cpu_kv_write(r->k, r->c->kv, op->group, op->layer, seq->blocks[op->group],
                 (uint32_t)r->c->batch.positions[row], cpu_value_row(r, op->in[0], row),
                 cpu_value_row(r, op->in[1], row), scratch);
}

static void run_gather(const cpu_run *r, const dev_op *op, uint32_t row) {
    memcpy(cpu_value_row(r, op->out[0], row), cpu_value_row(r, op->in[0], r->gather[row]),
           value_width(r, op->out[0]) * sizeof(float));
}

static void run_row_op(const cpu_run *r, const cpu_op *op, uint32_t row, cpu_scratch *scratch) {
    const dev_op *o = &op->op;
    switch (op->kind) {
    case DEV_EMBED: run_embed(r, o, row); return;
    case DEV_RMS_NORM: run_norm(r, o, row); return;
    case DEV_ROPE: run_rope(r, op, row); return;
    case DEV_KV_WRITE: run_kv_write(r, o, row, scratch->entry); return;
    case DEV_GATHER: run_gather(r, o, row); return;
    case CPU_OP_QUANTIZE: run_quantize(r, op, row); return;
    case CPU_OP_ROPE_TABLE: run_rope_table(r, op->rope_table, row); return;
    case CPU_OP_MERGE: cpu_attention_merge(r, o, row, cpu_value_row(r, o->out[0], row)); return;
    default: break;
    }
    const float *x = cpu_value_row(r, o->in[0], row);
    float *out = cpu_value_row(r, o->out[0], row);
    uint32_t n = value_width(r, o->out[0]);
    switch (op->kind) {
    case DEV_GLU: r->k->glu(x, cpu_value_row(r, o->in[1], row), out, n, o->activation); return;
    case DEV_ADD: r->k->add(x, cpu_value_row(r, o->in[1], row), out, n); return;
    case DEV_SCALE: r->k->scale(x, o->scale, out, n); return;
    case DEV_SOFTCAP: r->k->softcap(x, o->softcap, out, n); return;
    default: ridge_assert(op->kind == DEV_GLU); /* all row-wise operations are above */
    }
}

/* Member 0 enters a step when the one before is done by all: the time between is that one's. */
team_cursor cpu_step_work(cpu_run *r, const cpu_step *step, int member, uint32_t n_chunks) {
    team_cursor work = team_work(r->team, member, n_chunks);
    if (member != 0) return work;
    double now = clock_now_s();
    if (step > r->steps) r->steps[step - r->steps - 1].seconds += now - r->began;
    r->began = now;
    return work;
}

static void run_rows(cpu_run *r, const cpu_step *step, int member) {
    uint32_t size = r->n_rows / (uint32_t)(8 * r->n_members);
    size = size < 1 ? 1 : size > 16 ? 16 : size;
    team_cursor work = cpu_step_work(r, step, member, (r->n_rows + size - 1) / size);
    for (uint32_t chunk; team_next(&work, &chunk);) {
        uint32_t end = (chunk + 1) * size < r->n_rows ? (chunk + 1) * size : r->n_rows;
        for (uint32_t row = chunk * size; row < end; row++)
            for (uint32_t i = 0; i < step->n_ops; i++)
                run_row_op(r, &r->c->ops[step->first_op + i], row, &r->c->scratch[member]);
    }
}

/* The walk ------------------------------------------------------------------------------------- */

static void run_member(void *context, int member, int n_members) {
    cpu_run *r = context;
    (void)n_members;
    for (size_t i = 0; i < r->n_steps; i++) {
        const cpu_step *step = &r->steps[i];
        switch (step->kind) {
        case CPU_STEP_ROWS: run_rows(r, step, member); break;
        case CPU_STEP_LINEAR: cpu_linear_run(r, step, member); break;
        case CPU_STEP_ATTENTION: cpu_attention_run(r, step, member); break;
        }
    }
}

static void account_weight(const dev_weight *w, dev_account *a) {
    if (w != NULL) a->weight_bytes += (double)w->rows * (double)w->row_bytes;
}

static void account_attention(const dev_compiled *c, const dev_op *op, dev_account *a) {
    double token = (double)dev_kv_token_bytes(&c->kv->layout, op->group, op->layer), seen = 0;
    for (uint32_t s = 0; s < c->batch.n_seqs; s++) {
        double n = c->batch.seqs[s].n_rows, first = c->batch.seqs[s].n_context - n;
        seen += work_seen_tokens(op->window, first, n);
        a->kv_bytes += token * work_read_tokens(op->window, first, n);
    }
    a->flops += work_attention_flops(op->n_heads, op->head_dim, seen);
}

static void account_op(const cpu_run *r, const cpu_op *op, dev_account *a) {
    const dev_op *o = &op->op;
    switch (op->kind) {
    case DEV_EMBED: a->weight_bytes += (double)o->w[0]->row_bytes * r->n_rows; break;
    case DEV_RMS_NORM: account_weight(o->w[0], a); break;
    case DEV_LINEAR:
        for (int i = 0; i < o->n_weights; i++) {
            account_weight(o->w[i], a);
            account_weight(o->bias[i], a);
            a->flops += work_linear_flops(o->w[i]->rows, o->w[i]->cols, r->n_rows);
        }
        break;
    case DEV_KV_WRITE:
        a->kv_bytes +=
            (double)dev_kv_token_bytes(&r->c->kv->layout, o->group, o->layer) * r->n_rows;
        break;
    case DEV_ATTENTION: account_attention(r->c, o, a); break;
    default: break;
    }
}

static void account_steps(const cpu_run *r, dev_account *a) {
    for (size_t i = 0; i < r->n_steps; i++) {
        cpu_step *step = &r->steps[i];
        dev_account one = {0};
        for (uint32_t j = 0; j < step->n_ops; j++)
            account_op(r, &r->c->ops[step->first_op + j], &one);
        step->n_runs++;
        step->flops += one.flops;
        step->bytes += one.weight_bytes + one.kv_bytes;
        dev_account_add(a, &one);
    }
}

static void run_steps(dev_compiled *c, cpu_run *r) {
    cpu_device *d = c->device;
    r->c = c;
    r->k = d->kernels;
    r->team = d->team;
    r->n_members = cpu_n_members(d, c->batch.n_tokens);
    double start = clock_now_s();
    team_run_first(d->team, r->n_members, run_member, r);
    double end = clock_now_s();
    if (r->n_steps > 0) r->steps[r->n_steps - 1].seconds += end - r->began;
    d->account.seconds += end - start;
    account_steps(r, &d->account);
}

/* What the batch says of one sequence, before anything follows its pointers. */
static ridge_status check_seq(const dev_compiled *c, const dev_kv *kv, const dev_batch *b,
                              const dev_seq *s, ridge_error *err) {
    if (s->first_row > b->n_tokens || s->n_rows > b->n_tokens - s->first_row || s->n_rows == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "batch: rows %u+%u of %u", s->first_row, s->n_rows,
                          b->n_tokens);
    for (uint32_t i = s->first_row; i < s->first_row + s->n_rows; i++) {
        if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= c->n_embed_rows)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "token id %d: the model has %u", b->tokens[i],
                              c->n_embed_rows);
        if (b->positions[i] < 0 || (uint32_t)b->positions[i] >= s->n_context)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "position %d of a context of %u", b->positions[i],
                              s->n_context);
    }
    for (uint32_t g = 0; kv != NULL && g < kv->layout.n_groups; g++)
        if (s->blocks[g] == NULL)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "batch: no block table for group %u", g);
    return RIDGE_OK;
}

ridge_status cpu_submit(device *d, dev_compiled *c, dev_kv *kv, const dev_batch *batch,
                        ridge_error *err) {
    ((cpu_device *)d)->account = (dev_account){0};
    if (batch->n_tokens == 0 || batch->n_tokens > c->max_tokens || batch->n_seqs > batch->n_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "batch of %u tokens in %u sequences, at most %u",
                          batch->n_tokens, batch->n_seqs, c->max_tokens);
    uint32_t n_rows = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const dev_seq *seq = &batch->seqs[s];
        RIDGE_TRY(check_seq(c, kv, batch, seq, err));
        for (uint32_t i = 0; i < seq->n_rows; i++) c->rows[seq->first_row + i] = s;
        n_rows += seq->n_rows;
    }
    if (n_rows != batch->n_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "batch: %u rows in sequences, %u tokens", n_rows,
                          batch->n_tokens);
    c->batch = *batch;
    c->kv = kv;
    cpu_attention_plan(c);
    cpu_run r = {.steps = c->steps, .n_steps = c->head_step, .n_rows = batch->n_tokens};
    run_steps(c, &r);
    return RIDGE_OK;
}

ridge_status cpu_head(device *d, dev_compiled *c, const uint32_t *rows, uint32_t n_rows,
                      float *logits, ridge_error *err) {
    (void)d;
    if (n_rows == 0 || n_rows > DEV_HEAD_ROWS)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "logits of %u rows, at most %d", n_rows,
                          DEV_HEAD_ROWS);
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i] >= c->batch.n_tokens)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "logits of row %u of %u", rows[i],
                              c->batch.n_tokens);
    cpu_run r = {.steps = c->steps + c->head_step,
                 .n_steps = c->n_steps - c->head_step,
                 .n_rows = n_rows,
                 .logits = logits,
                 .gather = rows};
    run_steps(c, &r);
    return RIDGE_OK;
}
