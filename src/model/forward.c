/* model/forward: the transformer, as the paper has it, as a list of operations.
 *
 *     x = embed(token)
 *     for each layer:  x += attention(norm(x));  x += feed_forward(norm(x))
 *     logits = head(norm(x))
 *
 * The list is built once. Activation values are reused from layer to layer: each is written before
 * it is read again.
 */
#include <string.h>

#include "base/mem.h"
#include "model/model_internal.h"

enum {
    X,
    NORMED,
    Q,
    K,
    V,
    MIXED,
    DELTA,
    GATE,
    UP,
    HIDDEN,
    Q_DOWN,
    Q_ROPE,
    LATENT,
    K_ROPE,
    SCORES,
    SHARED_GATE,
    SHARED_UP,
    SHARED_HIDDEN,
    SHARED,
    SHARE,
    WANTED,
    WANTED_NORMED,
    LOGITS, /* of this rank's part of the vocabulary */
    ALL_LOGITS,
    N_VALUES
};

/* A send, 13 of attention, 14 of experts; of the embedding 2, of the head 5. */
#define MAX_OPS_PER_LAYER 28
#define MAX_OPS_OUTSIDE 7

typedef struct {
    const model *m;
    dev_program *p;
    size_t max_ops;
} builder;

static dev_op *add_op(builder *b, dev_op_kind kind, dev_value in, dev_value out) {
    ridge_assert(b->p->n_ops < b->max_ops);
    dev_op *op = &b->p->ops[b->p->n_ops++];
    *op = (dev_op){.kind = kind, .in = {in, DEV_NONE}, .out = {out, DEV_NONE, DEV_NONE}};
    return op;
}

static void rms_norm(builder *b, dev_value in, dev_value out, const dev_weight *w,
                     uint32_t head_dim) {
    dev_op *op = add_op(b, DEV_RMS_NORM, in, out);
    op->w[0] = w;
    op->eps = b->m->config.norm_eps;
    op->head_dim = head_dim;
}

static dev_op *linear(builder *b, dev_value in, dev_value out, const dev_weight *w,
                      const dev_weight *bias) {
    dev_op *op = add_op(b, DEV_LINEAR, in, out);
    op->w[0] = w;
    op->bias[0] = bias;
    op->n_weights = 1;
    return op;
}

/* One more matrix over the same input. */
static void linear_also(dev_op *op, dev_value out, const dev_weight *w, const dev_weight *bias) {
    op->out[op->n_weights] = out;
    op->w[op->n_weights] = w;
    op->bias[op->n_weights] = bias;
    op->n_weights++;
}

static void rope(builder *b, dev_value x, uint32_t n_heads, uint32_t head_dim, bool window) {
    const model *m = b->m;
    dev_op *op = add_op(b, DEV_ROPE, x, x);
    op->n_heads = n_heads;
    op->head_dim = head_dim;
    op->n_rot = m->config.rope.n_rot;
    op->rope_neox = m->config.rope.neox;
    op->rope_inv_freq = window ? m->rope_window : m->rope_full;
    op->rope_mscale = window ? 1 : m->rope_mscale;
}

/* Of a layer that several ranks share, each has a part of the sum. */
static void all_reduce(builder *b, dev_value x) {
    uint32_t n = b->m->config.split.n_tensor;
    if (n > 1) add_op(b, DEV_ALL_REDUCE, x, x)->n_ranks = n;
}

static void residual(builder *b, dev_value delta) {
    add_op(b, DEV_ADD, X, X)->in[1] = delta;
}

/* The place of a layer in the cache, and the shape of its heads. */
static void set_heads(builder *b, dev_op *op, const model_layer *layer) {
    const model_config *c = &b->m->config;
    op->head_dim = c->head_dim;
    op->n_heads = c->n_heads;
    op->n_kv_heads = c->n_kv_heads;
    op->window = layer->window;
    op->group = layer->group;
    op->layer = layer->layer_in_group;
}

static void attention(builder *b, const model_layer *layer) {
    const model_config *c = &b->m->config;
    rms_norm(b, X, NORMED, layer->attn_norm, 0);
    dev_op *qkv = linear(b, NORMED, Q, layer->q, layer->q_bias);
    linear_also(qkv, K, layer->k, layer->k_bias);
    linear_also(qkv, V, layer->v, layer->v_bias);
    if (c->qk_norm) {
        rms_norm(b, Q, Q, layer->q_norm, c->head_dim);
        rms_norm(b, K, K, layer->k_norm, c->head_dim);
    }
    rope(b, Q, c->n_heads, c->head_dim, layer->window > 0);
    rope(b, K, c->n_kv_heads, c->head_dim, layer->window > 0);
    dev_op *write = add_op(b, DEV_KV_WRITE, K, DEV_NONE);
    write->in[1] = V;
    set_heads(b, write, layer);
    dev_op *mix = add_op(b, DEV_ATTENTION, Q, MIXED);
    set_heads(b, mix, layer);
    mix->scale = c->attn_scale;
    mix->softcap = c->attn_softcap;
    mix->w[0] = layer->sinks;
    linear(b, MIXED, DELTA, layer->attn_out, layer->attn_out_bias);
    all_reduce(b, DELTA);
    if (c->post_norms) rms_norm(b, DELTA, DELTA, layer->attn_post_norm, 0);
    residual(b, DELTA);
}

/* Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434, equations 37 to 47. */
static void latent_attention(builder *b, const model_layer *layer) {
    const model_config *c = &b->m->config;
    dev_value q_from = layer->latent.q_down != NULL ? Q_DOWN : NORMED;
    rms_norm(b, X, NORMED, layer->attn_norm, 0);
    linear_also(linear(b, NORMED, LATENT, layer->latent.kv_down, NULL), K_ROPE,
                layer->latent.k_rope, NULL);
    rms_norm(b, LATENT, LATENT, layer->latent.kv_norm, 0);
    if (q_from == Q_DOWN) {
        linear(b, NORMED, Q_DOWN, layer->latent.q_down, NULL);
        rms_norm(b, Q_DOWN, Q_DOWN, layer->latent.q_norm, 0);
    }
    linear_also(linear(b, q_from, Q, layer->latent.q_up, NULL), Q_ROPE, layer->latent.q_rope, NULL);
    rope(b, Q_ROPE, c->n_heads, c->latent.n_rope, false);
    rope(b, K_ROPE, 1, c->latent.n_rope, false);
    dev_op *write = add_op(b, DEV_KV_WRITE, LATENT, DEV_NONE);
    write->in[1] = K_ROPE;
    write->group = layer->group;
    write->layer = layer->layer_in_group;
    dev_op *mix = add_op(b, DEV_LATENT_ATTENTION, Q, MIXED);
    set_heads(b, mix, layer);
    mix->in[1] = Q_ROPE;
    mix->w[0] = layer->latent.k_up;
    mix->w[1] = layer->latent.v_up;
    mix->head_dim = c->latent.n_nope;
    mix->rank = c->latent.rank;
    mix->n_rope = c->latent.n_rope;
    mix->n_value = c->latent.n_value;
    mix->scale = c->attn_scale;
    linear(b, MIXED, DELTA, layer->attn_out, NULL);
    all_reduce(b, DELTA);
    residual(b, DELTA);
}

static dev_activation activation(const model_config *c) {
    return c->gelu ? DEV_GELU_TANH : DEV_SILU;
}

static void glu(builder *b, dev_value gate, dev_value up, dev_value hidden) {
    dev_op *op = add_op(b, DEV_GLU, gate, hidden);
    op->in[1] = up;
    op->activation = activation(&b->m->config);
}

static void dense(builder *b, const model_layer *layer) {
    linear_also(linear(b, NORMED, GATE, layer->gate, NULL), UP, layer->up, NULL);
    glu(b, GATE, UP, HIDDEN);
    linear(b, HIDDEN, DELTA, layer->down, NULL);
}

/* The expert that every token takes. */
static void shared_expert(builder *b, const model_layer *layer) {
    linear_also(linear(b, NORMED, SHARED_GATE, layer->moe.shared_gate, NULL), SHARED_UP,
                layer->moe.shared_up, NULL);
    glu(b, SHARED_GATE, SHARED_UP, SHARED_HIDDEN);
    linear(b, SHARED_HIDDEN, SHARED, layer->moe.shared_down, NULL);
    if (layer->moe.share != NULL) {
        linear(b, NORMED, SHARE, layer->moe.share, NULL);
        add_op(b, DEV_SCALE, SHARED, SHARED)->in[1] = SHARE;
    }
}

/* To the ranks that have a row's experts, or back. */
static void all_to_all(builder *b, dev_value x, bool back) {
    const model_config *c = &b->m->config;
    if (c->split.n_expert <= 1) return;
    dev_op *op = add_op(b, DEV_ALL_TO_ALL, x, x);
    op->n_ranks = c->split.n_expert;
    op->rank_stride = c->split.n_tensor;
    op->top_k = c->moe.top_k;
    op->back = back;
}

static void experts(builder *b, const model_layer *layer) {
    const model_moe *e = &b->m->config.moe;
    linear(b, NORMED, SCORES, layer->moe.router, layer->moe.router_bias);
    if (e->n_ff_shared > 0) shared_expert(b, layer);
    all_to_all(b, NORMED, false);
    dev_op *op = add_op(b, DEV_EXPERTS, NORMED, DELTA);
    op->in[1] = SCORES;
    op->w[0] = layer->gate;
    op->w[1] = layer->up;
    op->w[2] = layer->down;
    op->bias[0] = layer->moe.gate_bias;
    op->bias[1] = layer->moe.up_bias;
    op->bias[2] = layer->moe.down_bias;
    op->n_experts = e->n_experts + b->m->config.split.n_redundant;
    op->top_k = e->top_k;
    op->n_ranks = b->m->config.split.n_expert;
    op->activation = activation(&b->m->config);
    all_to_all(b, DELTA, true);
    if (e->n_ff_shared > 0) add_op(b, DEV_ADD, DELTA, DELTA)->in[1] = SHARED;
}

static void feed_forward(builder *b, const model_layer *layer) {
    const model_config *c = &b->m->config;
    rms_norm(b, X, NORMED, layer->ffn_norm, 0);
    if (layer->moe.router != NULL)
        experts(b, layer);
    else
        dense(b, layer);
    all_reduce(b, DELTA);
    if (c->post_norms) rms_norm(b, DELTA, DELTA, layer->ffn_post_norm, 0);
    residual(b, DELTA);
}

static void head(builder *b) {
    const model *m = b->m;
    b->p->head_start = b->p->n_ops;
    add_op(b, DEV_GATHER, X, WANTED);
    rms_norm(b, WANTED, WANTED_NORMED, m->out_norm, 0);
    linear(b, WANTED_NORMED, LOGITS, m->head, NULL);
    if (m->config.final_softcap > 0)
        add_op(b, DEV_SOFTCAP, LOGITS, LOGITS)->softcap = m->config.final_softcap;
    if (m->config.split.n_tensor > 1)
        add_op(b, DEV_ALL_GATHER, LOGITS, ALL_LOGITS)->n_ranks = m->config.split.n_tensor;
}

static void set_widths(const model_config *c, uint32_t *widths) {
    const model_latent *l = &c->latent;
    uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, mixed = q;
    if (l->rank > 0) {
        q = c->n_heads * l->n_nope;
        mixed = c->n_heads * l->n_value;
    }
    const uint32_t table[N_VALUES] = {[X] = c->n_embd,
                                      [NORMED] = c->n_embd,
                                      [Q] = q,
                                      [K] = kv,
                                      [V] = kv,
                                      [MIXED] = mixed,
                                      [DELTA] = c->n_embd,
                                      [GATE] = c->n_ff,
                                      [UP] = c->n_ff,
                                      [HIDDEN] = c->n_ff,
                                      [Q_DOWN] = l->q_rank,
                                      [Q_ROPE] = c->n_heads * l->n_rope,
                                      [LATENT] = l->rank,
                                      [K_ROPE] = l->n_rope,
                                      [SCORES] = c->moe.n_experts,
                                      [SHARED_GATE] = c->moe.n_ff_shared,
                                      [SHARED_UP] = c->moe.n_ff_shared,
                                      [SHARED_HIDDEN] = c->moe.n_ff_shared,
                                      [SHARED] = c->n_embd,
                                      [SHARE] = 1,
                                      [WANTED] = c->n_embd,
                                      [WANTED_NORMED] = c->n_embd,
                                      [LOGITS] = c->n_vocab,
                                      [ALL_LOGITS] = c->n_vocab * c->split.n_tensor};
    memcpy(widths, table, sizeof table);
}

/* Stages have equally many layers, the first ones one more where that doesn't work out. */
static bool begins_stage(const model_config *c, uint32_t layer) {
    uint32_t n = c->split.n_stages;
    if (n <= 1 || layer == 0) return false;
    uint32_t each = c->n_layers / n, longer = c->n_layers % n, begin = longer * (each + 1);
    return layer < begin ? layer % (each + 1) == 0 : (layer - begin) % each == 0;
}

static void send(builder *b) {
    const model_split *s = &b->m->config.split;
    dev_op *op = add_op(b, DEV_SEND, X, X);
    op->n_ranks = s->n_stages;
    op->rank_stride = s->n_tensor * s->n_expert;
}

ridge_status model_build_program(model *m, ridge_error *err) {
    const model_config *c = &m->config;
    dev_program *p = &m->program;
    size_t max_ops = (size_t)c->n_layers * MAX_OPS_PER_LAYER + MAX_OPS_OUTSIDE;
    p->ops = mem_zalloc(max_ops, sizeof *p->ops);
    p->widths = mem_zalloc(N_VALUES, sizeof *p->widths);
    if (p->ops == NULL || p->widths == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the program");
    p->n_values = N_VALUES;
    p->n_vocab = c->n_vocab;
    set_widths(c, p->widths);
    builder b = {m, p, max_ops};
    dev_op *embed = add_op(&b, DEV_EMBED, DEV_NONE, X);
    embed->w[0] = m->embedding;
    embed->scale = c->embed_scale;
    all_reduce(&b, X);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (begins_stage(c, i)) send(&b);
        (c->latent.rank > 0 ? latent_attention : attention)(&b, &m->layers[i]);
        feed_forward(&b, &m->layers[i]);
    }
    head(&b);
    return RIDGE_OK;
}

static ridge_status open_config(model **out, const model_config *config, const gguf *g, device *dev,
                                const log_sink *log, ridge_error *err) {
    model *m = mem_zalloc(1, sizeof *m);
    if (m == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the model");
    m->dev = dev;
    m->config = *config;
    ridge_status status = model_load_weights(m, g, log, err);
    if (status == RIDGE_OK) status = model_build_program(m, err);
    if (status != RIDGE_OK) {
        model_close(m);
        return status;
    }
    *out = m;
    return RIDGE_OK;
}

ridge_status model_open(model **out, const gguf *g, device *dev, const log_sink *log,
                        ridge_error *err) {
    model_config config;
    RIDGE_TRY(model_config_read(&config, g, err));
    return open_config(out, &config, g, dev, log, err);
}

ridge_status model_open_shape(model **out, const model_config *config, device *dev,
                              ridge_error *err) {
    return open_config(out, config, NULL, dev, NULL, err);
}

void model_close(model *m) {
    if (m == NULL) return;
    for (size_t i = 0; i < m->n_weights; i++) m->dev->vtable->weight_free(m->dev, m->weights[i]);
    mem_free(m->weights);
    mem_free(m->layers);
    mem_free(m->rope_full);
    mem_free(m->rope_window);
    mem_free(m->program.ops);
    mem_free(m->program.widths);
    mem_free(m);
}
