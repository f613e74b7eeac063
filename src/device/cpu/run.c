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

static float *value_row(const cpu_run *r, dev_value v, uint32_t row) {
    const cpu_value *value = &r->c->values[v];
    return (value->data != NULL ? value->data : r->logits) + (size_t)row * value->ld;
}

static uint32_t value_width(const cpu_run *r, dev_value v) {
    return r->c->values[v].width;
}

/* Row-wise operations -------------------------------------------------------------------------- */

static void run_embed(const cpu_run *r, const dev_op *op, uint32_t row) {
    const dev_weight *w = op->w[0];
    float *out = value_row(r, op->out[0], row);
    size_t token = (size_t)r->c->batch.tokens[row];
    quant_dequantize(w->type, w->file + token * w->row_bytes, out, w->cols);
    if (op->scale != 1.0f && op->scale != 0.0f) r->k->scale(out, op->scale, out, w->cols);
}

static void run_norm(const cpu_run *r, const dev_op *op, uint32_t row) {
    uint32_t width = value_width(r, op->in[0]), n = op->head_dim ? op->head_dim : width;
    const float *in = value_row(r, op->in[0], row);
    float *out = value_row(r, op->out[0], row);
    for (uint32_t i = 0; i < width; i += n)
        r->k->rms_norm(in + i, op->w[0]->vector, out + i, n, op->eps);
}

/* Token of tile `row / 12`, as cpu_xblock says. */
static void run_quantize(const cpu_run *r, const dev_op *op, uint32_t row) {
    uint32_t cols = value_width(r, op->in[0]), first = row / CPU_TILE * CPU_TILE;
    uint32_t width = r->n_rows - first < CPU_TILE ? r->n_rows - first : CPU_TILE;
    cpu_xblock *tile = r->c->x + (size_t)first * (cols / CPU_BLOCK);
    r->k->quantize(value_row(r, op->in[0], row), cols, tile + (row - first), width);
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
    float *x = value_row(r, op->op.in[0], row);
    uint32_t width = value_width(r, op->op.in[0]);
    for (uint32_t i = 0; i < width; i += op->op.head_dim)
        (op->op.rope_neox ? r->k->rope_neox : r->k->rope_pairs)(x + i, cosine, sine, rope->n_pairs);
}

static void run_kv_write(const cpu_run *r, const dev_op *op, uint32_t row, uint16_t *scratch) {
    const dev_seq *seq = &r->c->batch.seqs[r->c->rows[row]];
    cpu_kv_write(r->k, r->c->kv, op->group, op->layer, seq->blocks[op->group],
                 (uint32_t)r->c->batch.positions[row], value_row(r, op->in[0], row),
                 value_row(r, op->in[1], row), scratch);
}

static void run_gather(const cpu_run *r, const dev_op *op, uint32_t row) {
    memcpy(value_row(r, op->out[0], row), value_row(r, op->in[0], r->gather[row]),
           value_width(r, op->out[0]) * sizeof(float));
}

static void run_row_op(const cpu_run *r, const cpu_op *op, uint32_t row, cpu_scratch *scratch) {
    const dev_op *o = &op->op;
    switch (op->kind) {
    case DEV_EMBED: run_embed(r, o, row); return;
    case DEV_RMS_NORM: run_norm(r, o, row); return;
    case DEV_ROPE: run_rope(r, op, row); return;
    case DEV_KV_WRITE: run_kv_write(r, o, row, scratch->half); return;
    case DEV_GATHER: run_gather(r, o, row); return;
    case CPU_OP_QUANTIZE: run_quantize(r, o, row); return;
    case CPU_OP_ROPE_TABLE: run_rope_table(r, op->rope_table, row); return;
    case CPU_OP_MERGE: cpu_attention_merge(r, o, row, value_row(r, o->out[0], row)); return;
    default: break;
    }
    const float *x = value_row(r, o->in[0], row);
    float *out = value_row(r, o->out[0], row);
    uint32_t n = value_width(r, o->out[0]);
    switch (op->kind) {
    case DEV_GLU: r->k->glu(x, value_row(r, o->in[1], row), out, n, o->activation); return;
    case DEV_ADD: r->k->add(x, value_row(r, o->in[1], row), out, n); return;
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

/* Linear --------------------------------------------------------------------------------------- */

/* The chunks of one weight of a linear: token blocks x groups of panels. */
typedef struct {
    uint32_t n_panels, group, n_groups, block, n_blocks, n_chunks;
} linear_shape;

static bool is_integer(const cpu_run *r, const dev_weight *w) {
    return w->format != NULL && !r->c->device->precise;
}

static linear_shape shape_of(const cpu_run *r, const dev_weight *w) {
    linear_shape s = {.n_panels = (w->rows + CPU_PANEL - 1) / CPU_PANEL};
    s.block = is_integer(r, w) && r->n_rows > CPU_TOKENS ? CPU_TOKENS : r->n_rows;
    s.n_blocks = (r->n_rows + s.block - 1) / s.block;
    uint32_t group = s.n_panels * s.n_blocks / (uint32_t)(8 * r->n_members);
    s.group = group < 2 ? 2 : group > 16 ? 16 : group & ~1u;
    s.n_groups = (s.n_panels + s.group - 1) / s.group;
    s.n_chunks = s.n_groups * s.n_blocks;
    return s;
}

typedef struct {
    const dev_weight *w, *bias;
    dev_value in, out;
    uint32_t panel, n_panels; /* one, or two that are next to each other */
    uint32_t end_panel;       /* of this member's chunk of work */
    uint32_t first, end;      /* tokens [first, end) */
} panel_job;

/* Rows of the weight in the panels of a job. */
static uint32_t job_rows(const panel_job *j) {
    uint32_t left = j->w->rows - j->panel * CPU_PANEL;
    return left < j->n_panels * CPU_PANEL ? left : j->n_panels * CPU_PANEL;
}

static void linear_packed(const cpu_run *r, const panel_job *j) {
    uint32_t n_rows = job_rows(j);
    for (uint32_t p = 0; p < j->n_panels; p++)
        r->k->gemm_packed(&(cpu_packed_args){
            .format = j->w->format,
            .panel = j->w->packed + (j->panel + p) * j->w->panel_bytes,
            .x = r->c->x,
            .n_blocks = j->w->cols / CPU_BLOCK,
            .width = r->n_rows,
            .out = value_row(r, j->out, 0) + (size_t)(j->panel + p) * CPU_PANEL,
            .ld = r->c->values[j->out].ld,
            .n_rows = n_rows - p * CPU_PANEL < CPU_PANEL ? n_rows - p * CPU_PANEL : CPU_PANEL});
}

/* Where block b of a panel lies, b a multiple of its superblock. */
static const uint8_t *panel_at(const dev_weight *w, uint32_t panel, uint32_t b) {
    return w->packed + panel * w->panel_bytes +
           b / w->format->n_blocks * cpu_super_bytes(w->format);
}

/* Blocks [b, b + n) of the panels of a job times its tokens, added to acc. */
static void linear_chunk(const cpu_run *r, const panel_job *j, uint32_t b, uint32_t n,
                         cpu_scratch *s) {
    uint32_t n_blocks = j->w->cols / CPU_BLOCK;
    for (uint32_t p = 0; p < j->n_panels; p++) {
        uint32_t panel = j->panel + p, ahead = panel + 2;
        const uint8_t *at = panel_at(j->w, panel, b), *next = at;
        if (b + n < n_blocks)
            next = panel_at(j->w, panel, b + n);
        else if (ahead < j->end_panel)
            next = panel_at(j->w, ahead, 0);
        r->k->unpack(j->w->format, at, n, next, s->blocks + (size_t)p * CPU_K_BLOCKS);
    }
    for (uint32_t t = j->first; t < j->end; t += CPU_TILE) {
        uint32_t width = r->n_rows - t < CPU_TILE ? r->n_rows - t : CPU_TILE;
        r->k->gemm(&(cpu_gemm_args){.format = j->w->format,
                                    .w = s->blocks,
                                    .x = r->c->x + (size_t)t * n_blocks + (size_t)b * width,
                                    .n_panels = j->n_panels,
                                    .n_blocks = n,
                                    .width = width,
                                    .acc = s->acc + (size_t)(t - j->first) * CPU_PAIR});
    }
}

/* Blocks of K at a time: as even as whole superblocks allow. */
static uint32_t chunk_of(const cpu_format *f, uint32_t n_blocks) {
    uint32_t n_chunks = (n_blocks + CPU_K_BLOCKS - 1) / CPU_K_BLOCKS;
    uint32_t even = (n_blocks + n_chunks - 1) / n_chunks;
    return (even + f->n_blocks - 1) / f->n_blocks * f->n_blocks;
}

static void linear_integer(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    if (r->n_rows <= CPU_FEW && r->k->gemm_packed != NULL) {
        linear_packed(r, j);
        return;
    }
    uint32_t n_blocks = j->w->cols / CPU_BLOCK, n_rows = job_rows(j);
    uint32_t chunk = chunk_of(j->w->format, n_blocks);
    memset(s->acc, 0, (size_t)(j->end - j->first) * CPU_PAIR * sizeof(float));
    for (uint32_t b = 0; b < n_blocks; b += chunk)
        linear_chunk(r, j, b, n_blocks - b < chunk ? n_blocks - b : chunk, s);
    for (uint32_t t = j->first; t < j->end; t++)
        memcpy(value_row(r, j->out, t) + j->panel * CPU_PANEL,
               s->acc + (size_t)(t - j->first) * CPU_PAIR, n_rows * sizeof(float));
}

/* A panel in f32, [cols][16]: where it lies, or in scratch. */
static const float *panel_f32(const cpu_run *r, const dev_weight *w, uint32_t panel,
                              cpu_scratch *s) {
    const void *packed = w->packed + panel * w->panel_bytes;
    size_t n = (size_t)w->cols * CPU_PANEL;
    uint32_t n_blocks = w->cols / CPU_BLOCK;
    if (w->format != NULL) {
        for (uint32_t b = 0; b < n_blocks; b += CPU_K_BLOCKS) {
            uint32_t count = n_blocks - b < CPU_K_BLOCKS ? n_blocks - b : CPU_K_BLOCKS;
            const uint8_t *at = panel_at(w, panel, b);
            r->k->unpack(w->format, at, count, at, s->blocks);
            r->k->expand(w->format, s->blocks, count, s->panel + (size_t)b * CPU_BLOCK * CPU_PANEL);
        }
    } else if (w->type == QUANT_F16) {
        r->k->widen_f16(packed, s->panel, n);
    } else if (w->type == QUANT_BF16) {
        r->k->widen_bf16(packed, s->panel, n);
    } else {
        return packed;
    }
    return s->panel;
}

static void linear_float(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    uint32_t n_rows = job_rows(j);
    for (uint32_t p = 0; p < j->n_panels; p++)
        r->k->fgemm(&(cpu_fgemm_args){
            .w = panel_f32(r, j->w, j->panel + p, s),
            .x = value_row(r, j->in, j->first),
            .ldx = r->c->values[j->in].ld,
            .cols = j->w->cols,
            .n = j->end - j->first,
            .out = value_row(r, j->out, j->first) + (size_t)(j->panel + p) * CPU_PANEL,
            .ld = r->c->values[j->out].ld,
            .n_rows = n_rows - p * CPU_PANEL < CPU_PANEL ? n_rows - p * CPU_PANEL : CPU_PANEL});
}

static void run_panels(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    if (is_integer(r, j->w))
        linear_integer(r, j, s);
    else
        linear_float(r, j, s);
    if (j->bias == NULL) return;
    uint32_t row = j->panel * CPU_PANEL;
    for (uint32_t t = j->first; t < j->end; t++) {
        float *out = value_row(r, j->out, t) + row;
        r->k->add(out, j->bias->vector + row, out, job_rows(j));
    }
}

static void run_linear(cpu_run *r, const cpu_step *step, int member) {
    const dev_op *op = &r->c->ops[step->first_op].op;
    linear_shape shapes[DEV_MAX_FANOUT];
    uint32_t total = 0;
    for (int i = 0; i < op->n_weights; i++) {
        shapes[i] = shape_of(r, op->w[i]);
        total += shapes[i].n_chunks;
    }
    team_cursor work = cpu_step_work(r, step, member, total);
    for (uint32_t chunk; team_next(&work, &chunk);) {
        int i = 0;
        while (chunk >= shapes[i].n_chunks) chunk -= shapes[i++].n_chunks;
        const linear_shape *s = &shapes[i];
        uint32_t first = chunk / s->n_groups * s->block, panel = chunk % s->n_groups * s->group;
        panel_job job = {.w = op->w[i], .bias = op->bias[i], .in = op->in[0], .out = op->out[i]};
        job.first = first;
        job.end = first + s->block < r->n_rows ? first + s->block : r->n_rows;
        uint32_t last = panel + s->group < s->n_panels ? panel + s->group : s->n_panels;
        job.end_panel = last;
        for (; panel < last; panel += job.n_panels) {
            job.panel = panel;
            job.n_panels = panel + 1 < last ? 2 : 1;
            run_panels(r, &job, &r->c->scratch[member]);
        }
    }
}

/* The walk ------------------------------------------------------------------------------------- */

static void run_member(void *context, int member, int n_members) {
    cpu_run *r = context;
    (void)n_members;
    for (size_t i = 0; i < r->n_steps; i++) {
        const cpu_step *step = &r->steps[i];
        const dev_op *op = &r->c->ops[step->first_op].op;
        switch (step->kind) {
        case CPU_STEP_ROWS: run_rows(r, step, member); break;
        case CPU_STEP_LINEAR: run_linear(r, step, member); break;
        case CPU_STEP_ATTENTION:
            cpu_attention_run(r, step, member, value_row(r, op->in[0], 0),
                              value_row(r, op->out[0], 0));
            break;
        }
    }
}

static void account_linear(const dev_op *op, uint32_t n_rows, dev_account *a) {
    for (int i = 0; i < op->n_weights; i++) {
        a->flops += 2.0 * op->w[i]->rows * op->w[i]->cols * n_rows;
        a->weight_bytes += (double)op->w[i]->rows * (double)op->w[i]->row_bytes;
    }
}

/* 2 multiply-adds per visible token and column; each token of a sequence's window is read once. */
static void account_attention(const dev_compiled *c, const dev_op *op, dev_account *a) {
    double elem = (double)c->kv->elem_bytes;
    for (uint32_t s = 0; s < c->batch.n_seqs; s++) {
        const dev_seq *seq = &c->batch.seqs[s];
        double visible = 0;
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            uint32_t all = (uint32_t)c->batch.positions[seq->first_row + i] + 1;
            visible += op->window != 0 && all > op->window ? op->window : all;
        }
        double read = seq->n_context, reach = (double)op->window + seq->n_rows - 1;
        if (op->window != 0 && read > reach) read = reach;
        a->flops += 4.0 * op->n_heads * op->head_dim * visible;
        a->kv_bytes += 2.0 * op->n_kv_heads * op->head_dim * elem * (read + seq->n_rows);
    }
}

static void account_steps(const cpu_run *r, dev_account *a) {
    for (size_t i = 0; i < r->n_steps; i++) {
        cpu_step *step = &r->steps[i];
        const dev_op *op = &r->c->ops[step->first_op].op;
        dev_account one = {0};
        if (step->kind == CPU_STEP_LINEAR) account_linear(op, r->n_rows, &one);
        if (step->kind == CPU_STEP_ATTENTION) account_attention(r->c, op, &one);
        step->n_runs++;
        step->flops += one.flops;
        step->bytes += one.weight_bytes + one.kv_bytes;
        a->flops += one.flops;
        a->weight_bytes += one.weight_bytes;
        a->kv_bytes += one.kv_bytes;
    }
}

static void run_steps(dev_compiled *c, cpu_run *r) {
    cpu_device *d = c->device;
    r->c = c;
    r->k = d->kernels;
    r->team = d->team;
    r->n_members = team_size(d->team);
    double start = clock_now_s();
    team_run_pieces(d->team, run_member, r);
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
    ((cpu_device *)d)->account = (dev_account){0};
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
