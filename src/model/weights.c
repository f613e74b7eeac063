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
    l->m->weight_bytes += t->size_bytes;
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

/* A layer's tensor; `to` NULL: the architecture has none. */
typedef struct {
    const dev_weight **to;
    const char *name;
    uint32_t rows, cols;
    need needed;
} layer_tensor;

static ridge_status load_tensors(loader *l, uint32_t layer, const layer_tensor *tensors, size_t n) {
    for (size_t t = 0; t < n; t++) {
        char name[128];
        if (tensors[t].to == NULL) continue;
        snprintf(name, sizeof name, "blk.%u.%s", layer, tensors[t].name);
        RIDGE_TRY(load(l, tensors[t].to, name, tensors[t].rows, tensors[t].cols, tensors[t].needed,
                       false));
    }
    return RIDGE_OK;
}

#define LOAD_TENSORS(l, layer, tensors)                                                            \
    load_tensors(l, layer, tensors, sizeof(tensors) / sizeof *(tensors))

static ridge_status load_attention(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    model_layer *layer = &l->m->layers[i];
    uint32_t q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;
    need bias = c->qkv_bias ? REQUIRED : OPTIONAL, out_bias = c->out_bias ? REQUIRED : OPTIONAL;
    const layer_tensor tensors[] = {
        {&layer->q, "attn_q.weight", q_width, c->n_embd, REQUIRED},
        {&layer->k, "attn_k.weight", kv_width, c->n_embd, REQUIRED},
        {&layer->v, "attn_v.weight", kv_width, c->n_embd, REQUIRED},
        {&layer->q_bias, "attn_q.bias", 1, q_width, bias},
        {&layer->k_bias, "attn_k.bias", 1, kv_width, bias},
        {&layer->v_bias, "attn_v.bias", 1, kv_width, bias},
        {&layer->attn_out, "attn_output.weight", c->n_embd, q_width, REQUIRED},
        {&layer->attn_out_bias, "attn_output.bias", 1, c->n_embd, out_bias},
        {c->qk_norm ? &layer->q_norm : NULL, "attn_q_norm.weight", 1, c->head_dim, REQUIRED},
        {c->qk_norm ? &layer->k_norm : NULL, "attn_k_norm.weight", 1, c->head_dim, REQUIRED},
        {c->sinks ? &layer->sinks : NULL, "attn_sinks.weight", 1, c->n_heads, REQUIRED},
    };
    return LOAD_TENSORS(l, i, tensors);
}

static ridge_status load_latent_attention(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    const model_latent *a = &c->latent;
    model_layer *layer = &l->m->layers[i];
    uint32_t q_from = a->q_rank > 0 ? a->q_rank : c->n_embd;
    const layer_tensor tensors[] = {
        {a->q_rank > 0 ? &layer->latent.q_down : NULL, "attn_q_a.weight", a->q_rank, c->n_embd,
         REQUIRED},
        {a->q_rank > 0 ? &layer->latent.q_norm : NULL, "attn_q_a_norm.weight", 1, a->q_rank,
         REQUIRED},
        {&layer->latent.q_up, "attn_q_nope.weight", c->n_heads * a->n_nope, q_from, REQUIRED},
        {&layer->latent.q_rope, "attn_q_rope.weight", c->n_heads * a->n_rope, q_from, REQUIRED},
        {&layer->latent.kv_down, "attn_kv_a.weight", a->rank, c->n_embd, REQUIRED},
        {&layer->latent.kv_norm, "attn_kv_a_norm.weight", 1, a->rank, REQUIRED},
        {&layer->latent.k_rope, "attn_k_rope.weight", a->n_rope, c->n_embd, REQUIRED},
        {&layer->latent.k_up, "attn_k_b.weight", c->n_heads * a->n_nope, a->rank, REQUIRED},
        {&layer->latent.v_up, "attn_v_b.weight", c->n_heads * a->n_value, a->rank, REQUIRED},
        {&layer->attn_out, "attn_output.weight", c->n_embd, c->n_heads * a->n_value, REQUIRED},
    };
    return LOAD_TENSORS(l, i, tensors);
}

static ridge_status load_feed_forward(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    model_layer *layer = &l->m->layers[i];
    const layer_tensor tensors[] = {
        {&layer->gate, "ffn_gate.weight", c->n_ff, c->n_embd, REQUIRED},
        {&layer->up, "ffn_up.weight", c->n_ff, c->n_embd, REQUIRED},
        {&layer->down, "ffn_down.weight", c->n_embd, c->n_ff, REQUIRED},
    };
    return LOAD_TENSORS(l, i, tensors);
}

/* Of the experts' parameters a token needs top_k experts'. */
static ridge_status load_experts(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    const model_moe *e = &c->moe;
    model_layer *layer = &l->m->layers[i];
    uint32_t n = model_experts_here(c);
    uint32_t ff = n * e->n_ff, out = n * c->n_embd; /* of this rank's experts */
    const layer_tensor tensors[] = {
        {&layer->gate, "ffn_gate_exps.weight", ff, c->n_embd, REQUIRED},
        {&layer->up, "ffn_up_exps.weight", ff, c->n_embd, REQUIRED},
        {&layer->down, "ffn_down_exps.weight", out, e->n_ff, REQUIRED},
        {e->bias ? &layer->moe.gate_bias : NULL, "ffn_gate_exps.bias", 1, ff, REQUIRED},
        {e->bias ? &layer->moe.up_bias : NULL, "ffn_up_exps.bias", 1, ff, REQUIRED},
        {e->bias ? &layer->moe.down_bias : NULL, "ffn_down_exps.bias", 1, out, REQUIRED},
    };
    uint64_t before = l->m->n_parameters;
    RIDGE_TRY(LOAD_TENSORS(l, i, tensors));
    uint64_t one = (l->m->n_parameters - before) / n;
    l->m->n_idle_parameters += (e->n_experts - e->top_k) * one;
    bool shared = e->n_ff_shared > 0;
    const layer_tensor others[] = {
        {&layer->moe.router, "ffn_gate_inp.weight", e->n_experts, c->n_embd, REQUIRED},
        {e->router_bias ? &layer->moe.router_bias : NULL, "exp_probs_b.bias", 1, e->n_experts,
         REQUIRED},
        {shared ? &layer->moe.shared_gate : NULL, "ffn_gate_shexp.weight", e->n_ff_shared,
         c->n_embd, REQUIRED},
        {shared ? &layer->moe.shared_up : NULL, "ffn_up_shexp.weight", e->n_ff_shared, c->n_embd,
         REQUIRED},
        {shared ? &layer->moe.shared_down : NULL, "ffn_down_shexp.weight", c->n_embd,
         e->n_ff_shared, REQUIRED},
        {e->shared_gate ? &layer->moe.share : NULL, "ffn_gate_inp_shexp.weight", 1, c->n_embd,
         REQUIRED},
    };
    return LOAD_TENSORS(l, i, others);
}

static ridge_status load_layer(loader *l, uint32_t i) {
    const model_config *c = &l->m->config;
    model_layer *layer = &l->m->layers[i];
    const layer_tensor norms[] = {
        {&layer->attn_norm, "attn_norm.weight", 1, c->n_embd, REQUIRED},
        {&layer->ffn_norm, "ffn_norm.weight", 1, c->n_embd, REQUIRED},
        {c->post_norms ? &layer->attn_post_norm : NULL, "post_attention_norm.weight", 1, c->n_embd,
         REQUIRED},
        {c->post_norms ? &layer->ffn_post_norm : NULL, "post_ffw_norm.weight", 1, c->n_embd,
         REQUIRED},
    };
    RIDGE_TRY(LOAD_TENSORS(l, i, norms));
    RIDGE_TRY(c->latent.rank > 0 ? load_latent_attention(l, i) : load_attention(l, i));
    bool sparse = c->moe.n_experts > 0 && i >= c->moe.n_dense_layers;
    return sparse ? load_experts(l, i) : load_feed_forward(l, i);
}

/* What one token of a layer keeps in the cache. */
static dev_kv_group cache_shape(const model_config *c, uint32_t window) {
    if (c->latent.rank > 0)
        return (dev_kv_group){.n_kv_heads = 1,
                              .head_dim = c->latent.rank + c->latent.n_rope,
                              .window = window,
                              .latent = true};
    return (dev_kv_group){.n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .window = window};
}

/* Layers of equal window and KV shape share a group; the group counts its layers. */
static void place_in_group(model *m, model_layer *layer) {
    uint32_t g = 0;
    while (g < m->n_groups && m->groups[g].window != layer->window) g++;
    ridge_assert(g < DEV_MAX_GROUPS);
    if (g == m->n_groups) m->groups[m->n_groups++] = cache_shape(&m->config, layer->window);
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
