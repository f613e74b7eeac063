/* device/cpu/compile: from a program to steps between barriers, and the memory they work in.
 *
 * Row-wise operations that follow each other become one step, in which a row goes through all of
 * them while it is hot: norm, quantisation for the next product, rope and the write to the cache,
 * activation, residual sums. A linear or an attention is a step of its own. Everything a run needs
 * is allocated here.
 */
#include <string.h>

#include "device/cpu/cpu_internal.h"

typedef struct {
    dev_compiled *c;
    const dev_program *p;
    dev_value quantized; /* the value that c->x[x] holds when the next operation runs */
    uint8_t x;
    bool open; /* the last step is row-wise and may grow */
    ridge_error *err;
} compiler;

static void *take(arena *a, size_t count, size_t size) {
    size_t bytes;
    if (!mem_mul(count, size, &bytes) || !mem_add(bytes, 64, &bytes)) return NULL;
    char *p = arena_alloc(a, bytes);
    return p == NULL ? NULL : p + (64 - (uintptr_t)p % 64) % 64;
}

static cpu_op *push_op(compiler *k, int kind, cpu_step_kind step) {
    dev_compiled *c = k->c;
    bool rows = step == CPU_STEP_ROWS;
    if (!rows || !k->open)
        c->steps[c->n_steps++] = (cpu_step){.kind = step, .first_op = (uint32_t)c->n_ops};
    k->open = rows;
    c->steps[c->n_steps - 1].n_ops++;
    cpu_op *op = &c->ops[c->n_ops++];
    op->kind = kind;
    return op;
}

static ridge_status check_value(compiler *k, const dev_op *op, dev_value v, uint32_t width) {
    if (v >= k->p->n_values)
        return RIDGE_FAIL(k->err, RIDGE_EINVAL, "operation %d: no value %u", (int)op->kind, v);
    if (width != 0 && k->p->widths[v] != width)
        return RIDGE_FAIL(k->err, RIDGE_EINVAL, "operation %d: value %u is %u wide, expected %u",
                          (int)op->kind, v, k->p->widths[v], width);
    return RIDGE_OK;
}

static ridge_status check_vector(compiler *k, const dev_op *op, const dev_weight *w, uint32_t n) {
    if (w == NULL || w->vector == NULL || w->cols != n)
        return RIDGE_FAIL(k->err, RIDGE_EINVAL, "operation %d: expected a vector of %u",
                          (int)op->kind, n);
    return RIDGE_OK;
}

static ridge_status check_linear(compiler *k, const dev_op *op) {
    RIDGE_TRY(check_value(k, op, op->in[0], 0));
    if (op->n_weights < 1 || op->n_weights > DEV_MAX_FANOUT)
        return RIDGE_FAIL(k->err, RIDGE_EINVAL, "linear: %d weights", op->n_weights);
    for (int i = 0; i < op->n_weights; i++) {
        if (op->w[i] == NULL || op->w[i]->packed == NULL)
            return RIDGE_FAIL(k->err, RIDGE_EINVAL, "linear: weight %d is no uploaded matrix", i);
        if (op->w[i]->cols != k->p->widths[op->in[0]])
            return RIDGE_FAIL(k->err, RIDGE_EINVAL, "linear: weight %d does not fit the input", i);
        RIDGE_TRY(check_value(k, op, op->out[i], op->w[i]->rows));
        if (op->bias[i] != NULL) RIDGE_TRY(check_vector(k, op, op->bias[i], op->w[i]->rows));
    }
    return RIDGE_OK;
}

static ridge_status check_heads(compiler *k, const dev_op *op) {
    if (op->head_dim == 0 || op->n_kv_heads == 0 || op->n_heads % op->n_kv_heads != 0 ||
        op->n_heads / op->n_kv_heads > CPU_QUERIES)
        return RIDGE_FAIL(k->err, RIDGE_EUNSUPPORTED, "attention: %u heads over %u of %u",
                          op->n_heads, op->n_kv_heads, op->head_dim);
    RIDGE_TRY(check_value(k, op, op->in[0], op->n_heads * op->head_dim));
    return check_value(k, op, op->out[0], op->n_heads * op->head_dim);
}

/* What programs may ask for that this device has no kernels of. */
static ridge_status check_kind(compiler *k, const dev_op *op) {
    const char *lacks = op->kind == DEV_EXPERTS                         ? "mixtures of experts"
                        : op->kind == DEV_LATENT_ATTENTION              ? "latent attention"
                        : op->kind >= DEV_ALL_REDUCE                    ? "several ranks"
                        : op->kind == DEV_ATTENTION && op->w[0] != NULL ? "attention sinks"
                                                                        : NULL;
    if (lacks == NULL) return RIDGE_OK;
    return RIDGE_FAIL(k->err, RIDGE_EUNSUPPORTED, "the CPU has no kernels for %s yet", lacks);
}

static ridge_status check_op(compiler *k, const dev_op *op) {
    const uint32_t *widths = k->p->widths;
    RIDGE_TRY(check_kind(k, op));
    if (op->kind == DEV_EMBED) {
        if (op->w[0] == NULL) return RIDGE_FAIL(k->err, RIDGE_EINVAL, "embed: no weight");
        return check_value(k, op, op->out[0], op->w[0]->cols);
    }
    if (op->kind == DEV_LINEAR) return check_linear(k, op);
    if (op->kind == DEV_ATTENTION) return check_heads(k, op);
    RIDGE_TRY(check_value(k, op, op->in[0], 0));
    uint32_t width = widths[op->in[0]];
    switch (op->kind) {
    case DEV_KV_WRITE:
        RIDGE_TRY(check_value(k, op, op->in[0], op->n_kv_heads * op->head_dim));
        return check_value(k, op, op->in[1], width);
    case DEV_ROPE:
        if (op->head_dim == 0 || width % op->head_dim != 0 || op->n_rot > op->head_dim ||
            op->n_rot % 2 != 0 || op->rope_inv_freq == NULL)
            return RIDGE_FAIL(k->err, RIDGE_EINVAL, "rope: %u of %u in a row of %u", op->n_rot,
                              op->head_dim, width);
        return RIDGE_OK;
    case DEV_RMS_NORM: {
        uint32_t n = op->head_dim ? op->head_dim : width;
        if (width % n != 0) return RIDGE_FAIL(k->err, RIDGE_EINVAL, "norm: %u in %u", n, width);
        RIDGE_TRY(check_vector(k, op, op->w[0], n));
        return check_value(k, op, op->out[0], width);
    }
    case DEV_GLU:
    case DEV_ADD: RIDGE_TRY(check_value(k, op, op->in[1], width)); break;
    default: break;
    }
    return check_value(k, op, op->out[0], width);
}

/* Both rope tables with the same frequencies are one. */
static ridge_status rope_table(compiler *k, const dev_op *op, uint32_t *index) {
    dev_compiled *c = k->c;
    uint32_t n = op->n_rot / 2;
    for (uint32_t i = 0; i < c->n_ropes; i++)
        if (c->ropes[i].inv_freq == op->rope_inv_freq && c->ropes[i].n_pairs == n &&
            c->ropes[i].mscale == op->rope_mscale) {
            *index = i;
            return RIDGE_OK;
        }
    if (c->n_ropes == CPU_MAX_ROPES)
        return RIDGE_FAIL(k->err, RIDGE_EUNSUPPORTED, "more than %d kinds of rope", CPU_MAX_ROPES);
    cpu_rope *r = &c->ropes[c->n_ropes];
    *r = (cpu_rope){.inv_freq = op->rope_inv_freq, .n_pairs = n, .mscale = op->rope_mscale};
    r->cosine = take(&c->memory, (size_t)c->max_tokens * n, sizeof(float));
    r->sine = take(&c->memory, (size_t)c->max_tokens * n, sizeof(float));
    if (r->cosine == NULL || r->sine == NULL) return RIDGE_FAIL(k->err, RIDGE_ENOMEM, "rope");
    *index = c->n_ropes++;
    return RIDGE_OK;
}

static bool all_integer(const compiler *k, const dev_op *op) {
    for (int i = 0; i < op->n_weights; i++)
        if (i == DEV_MAX_FANOUT || op->w[i] == NULL || !cpu_is_integer(k->c->device, op->w[i]))
            return false;
    return true;
}

static int n_outputs(const dev_op *op) {
    if (op->kind == DEV_KV_WRITE || op->kind == DEV_ROPE) return 0;
    return op->kind == DEV_LINEAR ? op->n_weights : 1;
}

/* Operations from `from` on that read a value, up to the one that writes it anew. */
static size_t n_readers(const dev_program *p, size_t from, dev_value v) {
    size_t n = 0;
    for (size_t i = from; i < p->n_ops; i++) {
        const dev_op *op = &p->ops[i];
        bool two = op->kind == DEV_KV_WRITE || op->kind == DEV_GLU || op->kind == DEV_ADD;
        n += (op->kind != DEV_EMBED && op->in[0] == v) || (two && op->in[1] == v);
        for (int j = 0; j < n_outputs(op) && j < DEV_MAX_FANOUT; j++)
            if (op->out[j] == v) return n;
    }
    return n;
}

/* Whether operations i, i + 1, i + 2 are gate and up, their product, and the only linear that reads
 * it: then the first can leave the quantised input of the last. */
static bool is_glu(const compiler *k, size_t i) {
    const dev_program *p = k->p;
    size_t end = i < p->head_start ? p->head_start : p->n_ops;
    if (i + 2 >= end) return false;
    const dev_op *op = &p->ops[i], *glu = &p->ops[i + 1], *next = &p->ops[i + 2];
    return op->kind == DEV_LINEAR && glu->kind == DEV_GLU && next->kind == DEV_LINEAR &&
           op->n_weights == 2 && glu->in[0] == op->out[0] && glu->in[1] == op->out[1] &&
           next->in[0] == glu->out[0] && all_integer(k, op) && all_integer(k, next) &&
           op->w[0]->rows % CPU_BLOCK == 0 && n_readers(p, i + 1, op->out[0]) == 1 &&
           n_readers(p, i + 1, op->out[1]) == 1 && n_readers(p, i + 2, glu->out[0]) == 1;
}

static void push_linear(compiler *k, const dev_op *op, const dev_op *glu) {
    bool integer = false;
    for (int i = 0; i < op->n_weights; i++) {
        integer |= cpu_is_integer(k->c->device, op->w[i]);
        if (op->w[i]->cols > k->c->max_cols) k->c->max_cols = op->w[i]->cols;
    }
    if (integer && k->quantized != op->in[0]) {
        cpu_op *quantize = push_op(k, CPU_OP_QUANTIZE, CPU_STEP_ROWS);
        quantize->op.in[0] = op->in[0];
        quantize->x_in = k->x;
        k->quantized = op->in[0];
    }
    cpu_op *linear = push_op(k, op->kind, CPU_STEP_LINEAR);
    linear->op = *op;
    linear->x_in = k->x;
    linear->glu = glu != NULL;
    if (glu == NULL) return;
    linear->op.activation = glu->activation;
    k->quantized = glu->out[0];
    k->x = 1 - k->x;
}

static ridge_status push_rope_tables(compiler *k) {
    for (size_t i = 0; i < k->p->head_start; i++) {
        uint32_t before = k->c->n_ropes, index;
        if (k->p->ops[i].kind != DEV_ROPE) continue;
        RIDGE_TRY(rope_table(k, &k->p->ops[i], &index));
        if (index == before) push_op(k, CPU_OP_ROPE_TABLE, CPU_STEP_ROWS)->rope_table = index;
    }
    return RIDGE_OK;
}

static void note_sizes(dev_compiled *c, const dev_op *op) {
    bool attention = op->kind == DEV_ATTENTION, write = op->kind == DEV_KV_WRITE;
    if ((attention || write) && op->head_dim > c->max_head_dim) c->max_head_dim = op->head_dim;
    if (attention && op->n_heads > c->max_heads) c->max_heads = op->n_heads;
    if (op->kind == DEV_EMBED) c->n_embed_rows = op->w[0]->rows;
}

static ridge_status push_program_op(compiler *k, size_t at) {
    const dev_op *op = &k->p->ops[at];
    RIDGE_TRY(check_op(k, op));
    note_sizes(k->c, op);
    if (at > 0 && is_glu(k, at - 1)) return RIDGE_OK; /* the linear before it has done it */
    if (op->kind == DEV_LINEAR) {
        bool glu = is_glu(k, at);
        push_linear(k, op, glu ? op + 1 : NULL);
        if (glu) return RIDGE_OK; /* what it gives is the quantised input alone */
    } else if (op->kind == DEV_ATTENTION) {
        push_op(k, op->kind, CPU_STEP_ATTENTION)->op = *op;
        push_op(k, CPU_OP_MERGE, CPU_STEP_ROWS)->op = *op;
    } else {
        cpu_op *row = push_op(k, op->kind, CPU_STEP_ROWS);
        row->op = *op;
        if (op->kind == DEV_ROPE) RIDGE_TRY(rope_table(k, op, &row->rope_table));
    }
    for (int i = 0; i < n_outputs(op); i++)
        if (op->out[i] == k->quantized) k->quantized = DEV_NONE;
    if (op->kind == DEV_ROPE && op->in[0] == k->quantized) k->quantized = DEV_NONE;
    return RIDGE_OK;
}

static ridge_status build_steps(compiler *k) {
    dev_compiled *c = k->c;
    size_t limit = k->p->n_ops * 3 + CPU_MAX_ROPES;
    c->ops = take(&c->memory, limit, sizeof *c->ops);
    c->steps = take(&c->memory, limit, sizeof *c->steps);
    if (c->ops == NULL || c->steps == NULL) return RIDGE_FAIL(k->err, RIDGE_ENOMEM, "program");
    RIDGE_TRY(push_rope_tables(k));
    for (size_t i = 0; i < k->p->n_ops; i++) {
        if (i == k->p->head_start) {
            c->head_step = c->n_steps;
            k->open = false;
            k->quantized = DEV_NONE;
        }
        RIDGE_TRY(push_program_op(k, i));
    }
    if (k->p->head_start >= k->p->n_ops) c->head_step = c->n_steps;
    return RIDGE_OK;
}

/* What the last operation gives is the caller's logits themselves; what comes before it works in
 * place there where it names the same value. Other values of the head have 32 rows. */
static ridge_status make_values(compiler *k) {
    dev_compiled *c = k->c;
    const dev_program *p = k->p;
    const dev_op *last = p->n_ops > p->head_start ? &p->ops[p->n_ops - 1] : NULL;
    if (last != NULL) RIDGE_TRY(check_value(k, last, last->out[0], p->n_vocab));
    c->n_values = p->n_values;
    c->values = take(&c->memory, p->n_values, sizeof *c->values);
    bool *in_body = take(&c->memory, p->n_values, sizeof *in_body);
    if (c->values == NULL || in_body == NULL) return RIDGE_FAIL(k->err, RIDGE_ENOMEM, "values");
    for (size_t i = 0; i < p->head_start; i++)
        for (int j = 0; j < n_outputs(&p->ops[i]); j++) in_body[p->ops[i].out[j]] = true;
    if (last != NULL && in_body[last->out[0]])
        return RIDGE_FAIL(k->err, RIDGE_EINVAL, "logits in value %u of the body", last->out[0]);
    for (size_t v = 0; v < p->n_values; v++) {
        uint32_t ld = (p->widths[v] + 15) & ~15u;
        c->values[v] = (cpu_value){.width = p->widths[v], .ld = ld};
        if (last != NULL && v == last->out[0]) {
            c->values[v].ld = p->n_vocab;
            continue;
        }
        size_t rows = in_body[v] && c->max_tokens > DEV_HEAD_ROWS ? c->max_tokens : DEV_HEAD_ROWS;
        size_t count;
        if (mem_mul(rows, ld, &count)) c->values[v].data = take(&c->memory, count, sizeof(float));
        if (c->values[v].data == NULL)
            return RIDGE_FAIL(k->err, RIDGE_ENOMEM, "value %zu: %zu rows of %u", v, rows, ld);
    }
    return RIDGE_OK;
}

static bool make_scratch(dev_compiled *c, cpu_scratch *s) {
    arena *a = &c->memory;
    s->panel = take(a, (size_t)c->max_cols * CPU_PANEL, sizeof(float));
    s->blocks = take(a, (size_t)2 * CPU_K_BLOCKS, sizeof(cpu_ublock));
    for (int i = 0; i < 2; i++) s->acc[i] = take(a, (size_t)CPU_TOKENS * CPU_PAIR, sizeof(float));
    s->k = take(a, (size_t)c->max_head_dim * CPU_SPAN, sizeof(float));
    s->v = take(a, (size_t)c->max_head_dim * CPU_SPAN, sizeof(float));
    s->queries = take(a, (size_t)CPU_QUERIES * c->max_head_dim, sizeof(float));
    s->scores = take(a, (size_t)CPU_QUERIES * CPU_SPAN, sizeof(float));
    s->partial = take(a, (size_t)CPU_QUERIES * c->max_head_dim, sizeof(float));
    s->state = take(a, (size_t)CPU_QUERIES * c->max_head_dim, sizeof(float));
    s->entry = take(a, (size_t)2 * c->max_head_dim, sizeof(float));
    size_t n_blocks = (c->max_head_dim + CPU_BLOCK - 1) / CPU_BLOCK;
    s->scales = take(a, CPU_SPAN * n_blocks, sizeof(float));
    s->x = take(a, CPU_QUERIES * n_blocks, sizeof *s->x);
    return s->panel && s->blocks && s->acc[0] && s->acc[1] && s->k && s->v && s->queries &&
           s->scores && s->partial && s->state && s->entry && s->scales && s->x;
}

static ridge_status make_buffers(compiler *k) {
    dev_compiled *c = k->c;
    arena *a = &c->memory;
    size_t rows = c->max_tokens > DEV_HEAD_ROWS ? c->max_tokens : DEV_HEAD_ROWS;
    int n = team_size(c->device->team);
    for (int i = 0; i < 2; i++)
        c->x[i] = take(a, rows * (c->max_cols / CPU_BLOCK), sizeof *c->x[i]);
    c->split_ml = take(a, 2 * CPU_MAX_SPLITS, sizeof(float));
    c->split_o = take(a, (size_t)CPU_MAX_SPLITS * c->max_head_dim, sizeof(float));
    c->rows = take(a, c->max_tokens, sizeof *c->rows);
    c->seqs = take(a, c->max_tokens, sizeof *c->seqs);
    c->scratch = take(a, (size_t)n, sizeof *c->scratch);
    bool ok = c->x[0] && c->x[1] && c->split_ml && c->split_o && c->rows && c->seqs && c->scratch;
    for (int i = 0; ok && i < n; i++) ok = make_scratch(c, &c->scratch[i]);
    return ok ? RIDGE_OK : RIDGE_FAIL(k->err, RIDGE_ENOMEM, "work space of the program");
}

ridge_status cpu_compile(device *d, dev_compiled **out, const dev_program *p, uint32_t max_tokens,
                         ridge_error *err) {
    if (max_tokens == 0) return RIDGE_FAIL(err, RIDGE_EINVAL, "a program for no tokens");
    dev_compiled *c = mem_zalloc(1, sizeof *c);
    if (c == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "program");
    c->device = (cpu_device *)d;
    c->max_tokens = max_tokens;
    c->n_vocab = p->n_vocab;
    compiler k = {.c = c, .p = p, .quantized = DEV_NONE, .err = err};
    ridge_status status = build_steps(&k);
    if (status == RIDGE_OK) status = make_values(&k);
    if (status == RIDGE_OK) status = make_buffers(&k);
    if (status != RIDGE_OK) {
        cpu_compiled_free(d, c);
        return status;
    }
    *out = c;
    return RIDGE_OK;
}

void cpu_compiled_free(device *d, dev_compiled *c) {
    (void)d;
    if (c == NULL) return;
    arena_free(&c->memory);
    mem_free(c);
}
