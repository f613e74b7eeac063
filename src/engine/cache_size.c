/* engine/cache_size: see cache_size.h; and the engine's pool. */
#include "engine/cache_size.h"

#include <string.h>

#include "base/mem.h"
#include "engine/engine_internal.h"

/* Of a q8_0 cache the first layers stay f16, one of so many: their keys may be such (biases of 100
 * and more in qwen2.5's) that what q8_0 loses in all layers it loses there. */
#define LAYERS_PER_F16 12

#define DEFAULT_KV_BYTES ((uint64_t)1 << 30) /* where the free memory is unknown */

/* Blocks of group g beside n_full ones in the full groups. */
static uint64_t blocks_of(const sched_params *s, uint32_t g, uint64_t n_full) {
    if (s->window[g] == 0) return n_full;
    uint64_t most = 2 * (uint64_t)sched_window_blocks(s, s->window[g]);
    return n_full < most ? n_full : most;
}

static uint64_t bytes_of(const dev_kv_layout *l, const sched_params *s, uint64_t n_full) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        bytes += blocks_of(s, g, n_full) * dev_kv_bytes_per_block(l, g);
    return bytes;
}

uint64_t cache_size_within(const dev_kv_layout *l, const sched_params *s, uint64_t bytes,
                           uint64_t most) {
    uint64_t low = 0, high = most;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (bytes_of(l, s, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void cache_size_groups(dev_kv_layout *l, sched_params *s, const model *m) {
    memcpy(l->groups, m->groups, sizeof l->groups);
    l->n_groups = s->n_groups = m->n_groups;
    l->block_size = s->block_size;
    l->groups[0].n_f16_layers = l->groups[0].n_layers / LAYERS_PER_F16;
    bool any_full = false;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        s->window[g] = l->groups[g].window;
        any_full = any_full || s->window[g] == 0;
    }
    if (!any_full) s->window[0] = 0; /* as kv/cache.h has it: the whole context is kept there */
}

void cache_size_set(dev_kv_layout *l, sched_params *s, uint64_t n_full) {
    for (uint32_t g = 0; g < l->n_groups; g++)
        s->n_blocks[g] = l->groups[g].n_blocks = (uint32_t)blocks_of(s, g, n_full);
}

uint64_t cache_size_token_bytes(const dev_kv_layout *l) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < l->n_groups; g++)
        bytes += dev_kv_bytes_per_block(l, g) / l->block_size;
    return bytes;
}

static ridge_status choose_context(engine *e, uint64_t n_blocks, ridge_error *err) {
    engine_params *p = &e->params;
    uint32_t wanted = p->max_model_len > 0 ? p->max_model_len : e->model->config.n_context;
    uint64_t holds = n_blocks * p->block_size;
    if (wanted > holds && (p->max_model_len > 0 || holds == 0))
        return RIDGE_FAIL(err, RIDGE_ENOMEM,
                          "the KV cache holds %llu tokens (%llu bytes each), fewer than a context "
                          "of %u; give it more memory (--kv-cache-memory-bytes) or shorten the "
                          "context (--max-model-len)",
                          (unsigned long long)holds, (unsigned long long)e->kv_token_bytes, wanted);
    if (wanted > holds) {
        log_printf(p->log, LOG_INFO, "context cut from %u to %llu tokens: all that the cache holds",
                   wanted, (unsigned long long)holds);
        wanted = (uint32_t)holds;
    }
    if (wanted > e->model->config.n_context)
        log_printf(p->log, LOG_WARN, "a context of %u tokens is beyond the model's %u", wanted,
                   e->model->config.n_context);
    p->max_model_len = wanted;
    return RIDGE_OK;
}

/* What was asked for by name must be there, used or not: a size beyond the machine is a slip that
 * is better said at the start. */
static ridge_status check_cache_memory(uint64_t bytes, ridge_error *err) {
    uint64_t available = mem_available_bytes();
    if (available == 0 || bytes <= available) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ENOMEM,
                      "--kv-cache-memory-bytes: a KV cache of %llu bytes, but %llu bytes of memory "
                      "are free",
                      (unsigned long long)bytes, (unsigned long long)available);
}

/* By default room for every running sequence at its longest, but no more than half of the memory
 * that is free. What is asked for by name is taken as it is, as far as it could ever be used: the
 * prefix cache uses any amount. */
static ridge_status choose_blocks(const engine *e, const sched_params *s, uint64_t *out,
                                  ridge_error *err) {
    const engine_params *p = &e->params;
    uint32_t context = p->max_model_len > 0 ? p->max_model_len : e->model->config.n_context;
    uint64_t most = (uint64_t)kv_blocks_for(context, p->block_size) * p->max_num_seqs;
    uint64_t bytes = p->kv_cache_bytes;
    if (bytes == 0) {
        uint64_t available = mem_available_bytes();
        bytes = available > 0 ? available / 2 : DEFAULT_KV_BYTES;
    } else {
        RIDGE_TRY(check_cache_memory(bytes, err));
        if (p->prefix_caching) most = INT32_MAX;
    }
    *out = cache_size_within(&e->kv_layout, s, bytes, most < INT32_MAX ? most : INT32_MAX);
    return RIDGE_OK;
}

static dev_kv_type choose_kv_type(const engine_params *p) {
    if (p->kv_type != DEV_KV_AUTO) return p->kv_type;
    return p->precise ? DEV_KV_F32 : DEV_KV_F16;
}

ridge_status engine_open_cache(engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    dev_kv_layout *l = &e->kv_layout;
    *l = (dev_kv_layout){.type = choose_kv_type(p)};
    sched_params s = {.max_num_seqs = p->max_num_seqs,
                      .max_num_batched_tokens = p->max_num_batched_tokens,
                      .block_size = p->block_size,
                      .prefix_caching = p->prefix_caching,
                      .cache_summary = true};
    cache_size_groups(l, &s, e->model);
    e->kv_token_bytes = cache_size_token_bytes(l);
    uint64_t n_blocks;
    RIDGE_TRY(choose_blocks(e, &s, &n_blocks, err));
    RIDGE_TRY(choose_context(e, n_blocks, err));
    cache_size_set(l, &s, n_blocks);
    RIDGE_TRY(e->dev->vtable->kv_create(e->dev, &e->kv, l, err));
    s.static_batches = p->static_batches;
    s.max_model_len = p->max_model_len;
    return sched_create(&e->sched, &s, err);
}
