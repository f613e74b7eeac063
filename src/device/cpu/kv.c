/* device/cpu/kv: the pool of keys and values.
 *
 * Within a block and a head, keys lie transposed ([head_dim][block_size]) so that scores are made
 * 16 tokens at a time without a sum across lanes; values lie as they come. Both grow token by
 * token; an entry is written once.
 */
#include <string.h>

#include "device/cpu/cpu_internal.h"

size_t dev_kv_bytes_per_block(const dev_kv_layout *layout, uint32_t group) {
    const dev_kv_group *g = &layout->groups[group];
    size_t elem = layout->type == DEV_KV_F16 ? 2 : 4;
    return (size_t)g->n_layers * 2 * g->n_kv_heads * g->head_dim * layout->block_size * elem;
}

void cpu_kv_free(device *d, dev_kv *kv) {
    (void)d;
    if (kv == NULL) return;
    for (uint32_t g = 0; g < kv->layout.n_groups; g++) {
        mem_unmap(kv->groups[g].k, kv->groups[g].bytes);
        mem_unmap(kv->groups[g].v, kv->groups[g].bytes);
    }
    mem_free(kv);
}

static ridge_status check_layout(const dev_kv_layout *l, ridge_error *err) {
    if (l->n_groups < 1 || l->n_groups > DEV_MAX_GROUPS || l->block_size == 0 || l->n_blocks == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u groups, %u blocks of %u tokens",
                          l->n_groups, l->n_blocks, l->block_size);
    for (uint32_t g = 0; g < l->n_groups; g++)
        if (l->groups[g].n_layers == 0 || l->groups[g].n_kv_heads == 0 ||
            l->groups[g].head_dim == 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "KV group %u is empty", g);
    return RIDGE_OK;
}

ridge_status cpu_kv_create(device *d, dev_kv **out, const dev_kv_layout *layout, ridge_error *err) {
    RIDGE_TRY(check_layout(layout, err));
    dev_kv *kv = mem_zalloc(1, sizeof *kv);
    if (kv == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool");
    kv->layout = *layout;
    kv->elem_bytes = layout->type == DEV_KV_F16 ? 2 : 4;
    for (uint32_t g = 0; g < layout->n_groups; g++) {
        const dev_kv_group *group = &layout->groups[g];
        size_t elems = group->n_kv_heads, bytes = 0;
        bool fits =
            mem_mul(elems, group->head_dim, &elems) && mem_mul(elems, layout->block_size, &elems) &&
            mem_mul(elems, layout->n_blocks, &bytes) && mem_mul(bytes, group->n_layers, &bytes) &&
            mem_mul(bytes, kv->elem_bytes, &bytes);
        kv->groups[g].block_elems = elems;
        kv->groups[g].bytes = bytes;
        if (fits) kv->groups[g].k = mem_map(bytes);
        if (fits) kv->groups[g].v = mem_map(bytes);
        if (kv->groups[g].k == NULL || kv->groups[g].v == NULL) {
            cpu_kv_free(d, kv);
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool: %u blocks of %u tokens",
                              layout->n_blocks, layout->block_size);
        }
    }
    *out = kv;
    return RIDGE_OK;
}

/* First element of a block in a layer. */
static size_t block_at(const dev_kv *kv, uint32_t group, uint32_t layer, int32_t block) {
    return ((size_t)layer * kv->layout.n_blocks + (size_t)block) * kv->groups[group].block_elems;
}

/* Whole blocks: what lies past n_tokens in the source is overwritten before it is read. */
void cpu_kv_copy(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                 uint32_t n_tokens) {
    (void)d;
    (void)n_tokens;
    size_t elem = kv->elem_bytes, bytes = kv->groups[group].block_elems * elem;
    for (uint32_t layer = 0; layer < kv->layout.groups[group].n_layers; layer++) {
        size_t src = block_at(kv, group, layer, from) * elem;
        size_t dst = block_at(kv, group, layer, to) * elem;
        memcpy(kv->groups[group].k + dst, kv->groups[group].k + src, bytes);
        memcpy(kv->groups[group].v + dst, kv->groups[group].v + src, bytes);
    }
}

void cpu_kv_write(const cpu_kernels *kernels, dev_kv *kv, uint32_t group, uint32_t layer,
                  const int32_t *blocks, uint32_t position, const float *k, const float *v,
                  uint16_t *scratch) {
    const dev_kv_group *g = &kv->layout.groups[group];
    uint32_t size = kv->layout.block_size, slot = position % size,
             width = g->n_kv_heads * g->head_dim;
    size_t base = block_at(kv, group, layer, blocks[position / size]);
    if (kv->layout.type == DEV_KV_F32) {
        float *keys = (float *)(void *)kv->groups[group].k + base + slot;
        float *values = (float *)(void *)kv->groups[group].v + base;
        for (uint32_t i = 0; i < width; i++) keys[(size_t)i * size] = k[i];
        for (uint32_t h = 0; h < g->n_kv_heads; h++)
            memcpy(values + ((size_t)h * size + slot) * g->head_dim, v + h * g->head_dim,
                   g->head_dim * sizeof *v);
        return;
    }
    uint16_t *keys = (uint16_t *)(void *)kv->groups[group].k + base + slot;
    uint16_t *values = (uint16_t *)(void *)kv->groups[group].v + base;
    kernels->narrow_f16(k, scratch, width);
    for (uint32_t i = 0; i < width; i++) keys[(size_t)i * size] = scratch[i];
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        kernels->narrow_f16(v + h * g->head_dim, values + ((size_t)h * size + slot) * g->head_dim,
                            g->head_dim);
}

/* n elements from element `at` of a pool, as f32. */
static void load_elems(const cpu_kernels *kernels, const dev_kv *kv, const uint8_t *pool, size_t at,
                       float *dst, size_t n) {
    if (kv->layout.type == DEV_KV_F32)
        memcpy(dst, pool + at * 4, n * 4);
    else
        kernels->widen_f16((const uint16_t *)(const void *)pool + at, dst, n);
}

/* Keys of the 16 tokens from `token` on: dst [head_dim][16]; lanes from `end` on are anything. */
static void stage_keys(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                       const int32_t *blocks, uint32_t kv_head, uint32_t token, uint32_t end,
                       float *dst) {
    uint32_t size = kv->layout.block_size, dim = kv->layout.groups[group].head_dim;
    const uint8_t *pool = kv->groups[group].k;
    if (size % 16 == 0) {
        size_t at = block_at(kv, group, layer, blocks[token / size]) +
                    (size_t)kv_head * dim * size + token % size;
        if (size == 16) {
            load_elems(kernels, kv, pool, at, dst, (size_t)dim * 16);
            return;
        }
        for (uint32_t d = 0; d < dim; d++)
            load_elems(kernels, kv, pool, at + (size_t)d * size, dst + (size_t)d * 16, 16);
        return;
    }
    uint32_t last = token + 16 < end ? token + 16 : end;
    for (uint32_t t = token; t < last; t++) {
        size_t at =
            block_at(kv, group, layer, blocks[t / size]) + (size_t)kv_head * dim * size + t % size;
        for (uint32_t d = 0; d < dim; d++)
            load_elems(kernels, kv, pool, at + (size_t)d * size, dst + (size_t)d * 16 + (t - token),
                       1);
    }
}

void cpu_kv_stage(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                  const int32_t *blocks, uint32_t kv_head, uint32_t begin, uint32_t end, float *k,
                  float *v) {
    uint32_t size = kv->layout.block_size, dim = kv->layout.groups[group].head_dim;
    uint32_t base = begin / CPU_SPAN * CPU_SPAN;
    for (uint32_t t = begin & ~15u; t < end; t += 16)
        stage_keys(kernels, kv, group, layer, blocks, kv_head, t, end,
                   k + (size_t)(t - base) * dim);
    for (uint32_t t = begin; t < end;) {
        uint32_t n = size - t % size < end - t ? size - t % size : end - t;
        size_t at = block_at(kv, group, layer, blocks[t / size]) +
                    ((size_t)kv_head * size + t % size) * dim;
        load_elems(kernels, kv, kv->groups[group].v, at, v + (size_t)(t - base) * dim,
                   (size_t)n * dim);
        t += n;
    }
}
