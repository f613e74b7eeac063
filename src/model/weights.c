/* model/weights: from the names in a file to weights on a device.
 *
 * Each tensor is looked up by name, its shape compared with the one that the hyper-parameters ask
 * for, and uploaded; then its file pages are given back. Without a file the shape is all there is.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/model_internal.h"

typedef struct {
    model *m;
    const gguf *g; /* NULL: shapes alone */
    const log_sink *log;
    ridge_error *err;
    size_t n_done;
} loader;

typedef enum { REQUIRED, OPTIONAL } need;

static ridge_status keep(loader *l, dev_weight *w) {
    model *m = l->m;
    if (!mem_grow((void **)&m->weights, &m->weights_capacity, m->n_weights + 1,
                  sizeof *m->weights)) {
        m->dev->vtable->weight_free(m->dev, w);
        return RIDGE_FAIL(l->err, RIDGE_ENOMEM, "the list of weights");
    }
    m->weights[m->n_weights++] = w;
    return RIDGE_OK;
}

static ridge_status check_shape(loader *l, const gguf_tensor *t, uint32_t rows, uint32_t cols) {
    bool vector = rows == 1;
    uint64_t found_rows = t->n_dims >= 2 ? t->dims[1] : 1;
    bool flat = t->n_dims <= 2 || (t->dims[2] == 1 && (t->n_dims < 4 || t->dims[3] == 1));
    if (flat && t->dims[0] == cols && found_rows == rows) return RIDGE_OK;
    error_where(l->err, t->name);
    if (vector)
        return RIDGE_FAIL(l->err, RIDGE_EFORMAT, "tensor '%s': [%llu, %llu], expected [%u]",
                          t->name, (unsigned long long)t->dims[0], (unsigned long long)found_rows,
                          cols);
    return RIDGE_FAIL(l->err, RIDGE_EFORMAT, "tensor '%s': [%llu, %llu], expected [%u, %u]",
                      t->name, (unsigned long long)t->dims[0], (unsigned long long)found_rows, cols,
                      rows);
}

static ridge_status upload(loader *l, const dev_weight **out, const gguf_tensor *t, uint32_t rows,
                           uint32_t cols, bool embed_only) {
    dev_weight *w;
    device *d = l->m->dev;
    RIDGE_TRY(d->vtable->weight_upload(d, &w, t->type, t->data, rows, cols, embed_only, l->err));
    RIDGE_TRY(keep(l, w));
    *out = w;
    l->m->n_parameters += (uint64_t)rows * cols;
    if (!embed_only) l->m->step_bytes += t->size_bytes;
    return RIDGE_OK;
}

/* rows 1: a vector. */
static ridge_status load(loader *l, const dev_weight **out, const char *name, uint32_t rows,
                         uint32_t cols, need needed, bool embed_only) {
    if (l->g == NULL && needed == OPTIONAL) return RIDGE_OK;
    if (l->g == NULL) {
        const gguf_tensor shape = {.type = QUANT_BF16, .size_bytes = (size_t)rows * cols * 2};
        return upload(l, out, &shape, rows, cols, embed_only);
    }
    const gguf_tensor *t = gguf_tensor_find(l->g, name);
    if (t == NULL) {
        if (needed == OPTIONAL) return RIDGE_OK;
        error_where(l->err, name);
        return RIDGE_FAIL(l->err, RIDGE_EFORMAT, "tensor '%s' is missing", name);
    }
    RIDGE_TRY(check_shape(l, t, rows, cols));
    RIDGE_TRY(upload(l, out, t, rows, cols, embed_only));
    gguf_drop(l->g, t->data, t->size_bytes);
    log_progress(l->log, "loading", (double)++l->n_done / (double)(gguf_n_tensors(l->g) + 1));
    return RIDGE_OK;
}

static ridge_status load_layer(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    model_layer *layer = &l->m->layers[i];
    uint32_t q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;
    need bias = c->qkv_bias ? REQUIRED : OPTIONAL;
    const struct {
        const dev_weight **to;
        const char *name;
        uint32_t rows, cols;
        need needed;
    } tensors[] = {
        {&layer->attn_norm, "attn_norm.weight", 1, c->n_embd, REQUIRED},
        {&layer->q, "attn_q.weight", q_width, c->n_embd, REQUIRED},
        {&layer->k, "attn_k.weight", kv_width, c->n_embd, REQUIRED},
        {&layer->v, "attn_v.weight", kv_width, c->n_embd, REQUIRED},
        {&layer->q_bias, "attn_q.bias", 1, q_width, bias},
        {&layer->k_bias, "attn_k.bias", 1, kv_width, bias},
        {&layer->v_bias, "attn_v.bias", 1, kv_width, bias},
        {&layer->attn_out, "attn_output.weight", c->n_embd, q_width, REQUIRED},
        {&layer->attn_out_bias, "attn_output.bias", 1, c->n_embd, OPTIONAL},
        {&layer->ffn_norm, "ffn_norm.weight", 1, c->n_embd, REQUIRED},
        {&layer->gate, "ffn_gate.weight", c->n_ff, c->n_embd, REQUIRED},
        {&layer->up, "ffn_up.weight", c->n_ff, c->n_embd, REQUIRED},
        {&layer->down, "ffn_down.weight", c->n_embd, c->n_ff, REQUIRED},
        {c->qk_norm ? &layer->q_norm : NULL, "attn_q_norm.weight", 1, c->head_dim, REQUIRED},
        {c->qk_norm ? &layer->k_norm : NULL, "attn_k_norm.weight", 1, c->head_dim, REQUIRED},
        {c->post_norms ? &layer->attn_post_norm : NULL, "post_attention_norm.weight", 1, c->n_embd,
         REQUIRED},
        {c->post_norms ? &layer->ffn_post_norm : NULL, "post_ffw_norm.weight", 1, c->n_embd,
         REQUIRED},
    };
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        char name[128];
        if (tensors[t].to == NULL) continue;
        snprintf(name, sizeof name, "blk.%u.%s", i, tensors[t].name);
        RIDGE_TRY(load(l, tensors[t].to, name, tensors[t].rows, tensors[t].cols, tensors[t].needed,
                       false));
    }
    return RIDGE_OK;
}

/* Layers of equal window and KV shape share a group; the group counts its layers. */
static void place_in_group(model *m, model_layer *layer) {
    uint32_t g = 0;
    while (g < m->n_groups && m->groups[g].window != layer->window) g++;
    ridge_assert(g < DEV_MAX_GROUPS);
    if (g == m->n_groups)
        m->groups[m->n_groups++] = (dev_kv_group){.n_kv_heads = m->config.n_kv_heads,
                                                  .head_dim = m->config.head_dim,
                                                  .window = layer->window};
    layer->group = g;
    layer->layer_in_group = m->groups[g].n_layers++;
}

static ridge_status load_rope(loader *l) {
    model *m = l->m;
    const model_rope *r = &m->config.rope;
    uint32_t n = r->n_rot / 2;
    float *factors = NULL, unused;
    const gguf_tensor *t = l->g != NULL ? gguf_tensor_find(l->g, "rope_freqs.weight") : NULL;
    m->rope_full = mem_zalloc(n, sizeof(float));
    m->rope_window = mem_zalloc(n, sizeof(float));
    if (t != NULL) factors = mem_zalloc(n, sizeof(float));
    if (m->rope_full == NULL || m->rope_window == NULL || (t != NULL && factors == NULL))
        goto out_of_memory;
    if (t != NULL) {
        ridge_status status = check_shape(l, t, 1, n);
        if (status == RIDGE_OK && t->type != QUANT_F32)
            status = RIDGE_FAIL(l->err, RIDGE_EFORMAT, "tensor '%s' must be F32", t->name);
        if (status == RIDGE_OK) quant_dequantize(t->type, t->data, factors, n);
        for (uint32_t i = 0; i < n && status == RIDGE_OK; i++)
            if (!(factors[i] > 0) || !isfinite(factors[i]))
                status = RIDGE_FAIL(l->err, RIDGE_EFORMAT, "tensor '%s': factor %u is %g", t->name,
                                    i, (double)factors[i]);
        if (status != RIDGE_OK) {
            mem_free(factors);
            return status;
        }
    }
    model_rope_frequencies(r, false, factors, m->rope_full, &m->rope_mscale);
    model_rope_frequencies(r, true, factors, m->rope_window, &unused);
    mem_free(factors);
    return RIDGE_OK;
out_of_memory:
    mem_free(factors);
    return RIDGE_FAIL(l->err, RIDGE_ENOMEM, "rope frequencies");
}

static ridge_status load_all(loader *l) {
    model *m = l->m;
    const model_config *c = &m->config;
    m->layers = mem_zalloc(c->n_layers, sizeof *m->layers);
    if (m->layers == NULL) return RIDGE_FAIL(l->err, RIDGE_ENOMEM, "%u layers", c->n_layers);
    RIDGE_TRY(load_rope(l));
    RIDGE_TRY(
        load(l, &m->embedding, "token_embd.weight", c->n_vocab, c->n_embd, REQUIRED, !c->tied));
    m->head = m->embedding;
    if (!c->tied)
        RIDGE_TRY(load(l, &m->head, "output.weight", c->n_vocab, c->n_embd, REQUIRED, false));
    RIDGE_TRY(load(l, &m->out_norm, "output_norm.weight", 1, c->n_embd, REQUIRED, false));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        m->layers[i].window = model_layer_window(c, i);
        place_in_group(m, &m->layers[i]);
        RIDGE_TRY(load_layer(l, i));
    }
    log_progress(l->log, "loading", 1.0);
    return RIDGE_OK;
}

static void give_back(void *context, const void *data, size_t size) {
    gguf_drop(context, data, size);
}

ridge_status model_load_weights(model *m, const gguf *g, const log_sink *log, ridge_error *err) {
    loader l = {.m = m, .g = g, .log = log, .err = err};
    m->dev->on_packed = give_back;
    m->dev->on_packed_context = (void *)g;
    ridge_status status = load_all(&l);
    m->dev->on_packed = NULL;
    return status;
}
