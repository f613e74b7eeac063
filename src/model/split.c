/* model/split: the part of a model that one rank has (Megatron-LM, arXiv 1909.08053; experts as in
 * DeepSeek-V3, arXiv 2412.19437, section 3.4). */
#include "model/config.h"

static uint32_t ranks(uint32_t n) {
    return n > 1 ? n : 1;
}

static ridge_status divide(uint32_t *value, uint32_t n, const char *what, ridge_error *err) {
    if (*value % n != 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%u %s cannot be divided among %u ranks", *value, what,
                          n);
    *value /= n;
    return RIDGE_OK;
}

/* With more ranks than KV heads each head is on several. */
static ridge_status divide_heads(model_config *c, uint32_t n, ridge_error *err) {
    RIDGE_TRY(divide(&c->n_heads, n, "heads", err));
    if (c->n_kv_heads % n == 0) {
        c->n_kv_heads /= n;
    } else {
        if (n % c->n_kv_heads != 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "%u KV heads cannot be divided among %u ranks",
                              c->n_kv_heads, n);
        c->n_kv_heads = 1;
    }
    return RIDGE_OK;
}

uint32_t model_experts_here(const model_config *c) {
    if (c->split.n_expert <= 1) return c->moe.n_experts;
    return (c->moe.n_experts + c->split.n_redundant) / c->split.n_expert;
}

static ridge_status check_experts(const model_moe *e, uint32_t n, uint32_t n_redundant,
                                  ridge_error *err) {
    if (n > 1 && e->n_experts == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "no experts to divide among %u ranks", n);
    if (n_redundant > e->n_experts || (n_redundant > 0 && n <= 1))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%u of %u experts twice, on %u ranks", n_redundant,
                          e->n_experts, n);
    uint32_t over = (e->n_experts + n_redundant) % n;
    if (over == 0) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "%u experts cannot be divided among %u ranks; with %u of them twice they can "
                      "(--num-redundant-experts)",
                      e->n_experts + n_redundant, n, n_redundant + n - over);
}

ridge_status model_config_split(model_config *out, const model_config *whole,
                                const model_split *split, ridge_error *err) {
    model_config c = *whole;
    uint32_t n = ranks(split->n_tensor), experts = ranks(split->n_expert);
    uint32_t stages = ranks(split->n_stages);
    RIDGE_TRY(check_experts(&c.moe, experts, split->n_redundant, err));
    if (stages > c.n_layers)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%u layers in %u stages", c.n_layers, stages);
    RIDGE_TRY(divide_heads(&c, n, err));
    RIDGE_TRY(divide(&c.n_ff, n, "columns of the feed-forward", err));
    RIDGE_TRY(divide(&c.moe.n_ff, n, "columns of an expert", err));
    RIDGE_TRY(divide(&c.moe.n_ff_shared, n, "columns of the shared expert", err));
    c.n_vocab = (c.n_vocab + n - 1) / n;
    c.split = (model_split){n, experts, stages, split->n_redundant};
    *out = c;
    return RIDGE_OK;
}
