/* device/cpu/kv: the pool of keys and values.
 *
 * Within a block and a head, the keys of 16 tokens lie transposed ([head_dim][16]) so that their
 * scores are made together without a sum across lanes; values lie as they come. Both grow token by
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
    if (l->n_groups < 1 || l->n_groups > DEV_MAX_GROUPS || l->block_size == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u groups, blocks of %u tokens",
                          l->n_groups, l->block_size);
    for (uint32_t g = 0; g < l->n_groups; g++)
        if (l->groups[g].n_layers == 0 || l->groups[g].n_kv_heads == 0 ||
            l->groups[g].head_dim == 0 || l->groups[g].n_blocks == 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "KV group %u is empty", g);
    return RIDGE_OK;
}

ridge_status cpu_kv_create(device *d, dev_kv **out, const dev_kv_layout *layout, ridge_error *err) {
    RIDGE_TRY(check_layout(layout, err));
    dev_kv *kv = mem_zalloc(1, sizeof *kv);
    if (kv == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool");
    kv->layout = *layout;
    kv->elem_bytes = layout->type == DEV_KV_F16 ? 2 : 4;
    kv->lanes = layout->block_size % 16 == 0 ? 16 : layout->block_size;
    for (uint32_t g = 0; g < layout->n_groups; g++) {
        const dev_kv_group *group = &layout->groups[g];
        size_t elems = group->n_kv_heads, bytes = 0;
        bool fits =
            mem_mul(elems, group->head_dim, &elems) && mem_mul(elems, layout->block_size, &elems) &&
            mem_mul(elems, group->n_blocks, &bytes) && mem_mul(bytes, group->n_layers, &bytes) &&
            mem_mul(bytes, kv->elem_bytes, &bytes);
        kv->groups[g].block_elems = elems;
        kv->groups[g].bytes = bytes;
        if (fits) kv->groups[g].k = mem_map(bytes);
        if (fits) kv->groups[g].v = mem_map(bytes);
        if (kv->groups[g].k == NULL || kv->groups[g].v == NULL) {
            cpu_kv_free(d, kv);
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool: %u blocks of %u tokens", group->n_blocks,
                              layout->block_size);
        }
    }
    *out = kv;
    return RIDGE_OK;
}

/* First element of a block in a layer. The layers of a block lie together: what a short context
 * touches is small, though the pool's pages are huge. */
static size_t block_at(const dev_kv *kv, uint32_t group, uint32_t layer, int32_t block) {
    return ((size_t)block * kv->layout.groups[group].n_layers + layer) *
           kv->groups[group].block_elems;
}

static size_t block_bytes(const dev_kv *kv, uint32_t group) { /* of k, and of v */
    return block_at(kv, group, 0, 1) * kv->elem_bytes;
}

/* Whole blocks: what lies past n_tokens in the source is overwritten before it is read. */
void cpu_kv_copy(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                 uint32_t n_tokens) {
    (void)d;
    (void)n_tokens;
    size_t bytes = block_bytes(kv, group), src = (size_t)from * bytes, dst = (size_t)to * bytes;
    memcpy(kv->groups[group].k + dst, kv->groups[group].k + src, bytes);
    memcpy(kv->groups[group].v + dst, kv->groups[group].v + src, bytes);
}

/* Keys, then values. */
void cpu_kv_read_block(device *d, const dev_kv *kv, uint32_t group, int32_t block, void *to) {
    (void)d;
    size_t bytes = block_bytes(kv, group), at = (size_t)block * bytes;
    memcpy(to, kv->groups[group].k + at, bytes);
    memcpy((uint8_t *)to + bytes, kv->groups[group].v + at, bytes);
}

void cpu_kv_write_block(device *d, dev_kv *kv, uint32_t group, int32_t block, const void *from) {
    (void)d;
    size_t bytes = block_bytes(kv, group), at = (size_t)block * bytes;
    memcpy(kv->groups[group].k + at, from, bytes);
    memcpy(kv->groups[group].v + at, (const uint8_t *)from + bytes, bytes);
}

/* First element of a slot's key, whose elements are `lanes` apart, and of its value, of a head. */
static size_t key_at(const dev_kv *kv, uint32_t group, size_t block, uint32_t head, uint32_t slot) {
    uint32_t dim = kv->layout.groups[group].head_dim, lanes = kv->lanes;
    return block + (size_t)head * dim * kv->layout.block_size +
           (size_t)(slot - slot % lanes) * dim + slot % lanes;
}

static size_t value_at(const dev_kv *kv, uint32_t group, size_t block, uint32_t head,
                       uint32_t slot) {
    uint32_t dim = kv->layout.groups[group].head_dim;
    return block + ((size_t)head * kv->layout.block_size + slot) * dim;
}

void cpu_kv_write(const cpu_kernels *kernels, dev_kv *kv, uint32_t group, uint32_t layer,
                  const int32_t *blocks, uint32_t position, const float *k, const float *v,
                  uint16_t *scratch) {
    const dev_kv_group *g = &kv->layout.groups[group];
    uint32_t size = kv->layout.block_size, slot = position % size, dim = g->head_dim;
    size_t block = block_at(kv, group, layer, blocks[position / size]);
    bool half = kv->layout.type == DEV_KV_F16;
    if (half) kernels->narrow_f16(k, scratch, (size_t)g->n_kv_heads * dim);
    for (uint32_t h = 0; h < g->n_kv_heads; h++, k += dim, v += dim, scratch += dim) {
        size_t key = key_at(kv, group, block, h, slot), value = value_at(kv, group, block, h, slot);
        if (half) {
            uint16_t *to = (uint16_t *)(void *)kv->groups[group].k + key;
            for (uint32_t d = 0; d < dim; d++) to[(size_t)d * kv->lanes] = scratch[d];
            kernels->narrow_f16(v, (uint16_t *)(void *)kv->groups[group].v + value, dim);
        } else {
            float *to = (float *)(void *)kv->groups[group].k + key;
            for (uint32_t d = 0; d < dim; d++) to[(size_t)d * kv->lanes] = k[d];
            memcpy((float *)(void *)kv->groups[group].v + value, v, dim * sizeof *v);
        }
    }
}

/* n elements from element `at` of a pool, as f32. */
static void load_elems(const cpu_kernels *kernels, const dev_kv *kv, const uint8_t *pool, size_t at,
                       float *dst, size_t n) {
    if (kv->layout.type == DEV_KV_F32)
        memcpy(dst, pool + at * 4, n * 4);
    else
        kernels->widen_f16((const uint16_t *)(const void *)pool + at, dst, n);
}

/* Tokens [begin, end), of a group of 16, of blocks that hold them in another form: key
 * [head_dim][16], value [16][head_dim]; what of them is of other tokens is anything. */
static void gather(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                   const int32_t *blocks, uint32_t kv_head, uint32_t begin, uint32_t end,
                   float *key, float *value) {
    uint32_t size = kv->layout.block_size, dim = kv->layout.groups[group].head_dim;
    for (uint32_t t = begin; t < end; t++) {
        size_t block = block_at(kv, group, layer, blocks[t / size]);
        size_t at = key_at(kv, group, block, kv_head, t % size);
        for (uint32_t d = 0; d < dim; d++)
            load_elems(kernels, kv, kv->groups[group].k, at + (size_t)d * kv->lanes,
                       key + (size_t)d * 16 + t % 16, 1);
        load_elems(kernels, kv, kv->groups[group].v, value_at(kv, group, block, kv_head, t % size),
                   value + (size_t)(t % 16) * dim, dim);
    }
}

void cpu_kv_view(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                 const int32_t *blocks, uint32_t kv_head, uint32_t begin, uint32_t end, bool widen,
                 float *key, float *value, cpu_kv_span *out) {
    uint32_t size = kv->layout.block_size, dim = kv->layout.groups[group].head_dim;
    size_t elem = kv->elem_bytes, n = (size_t)16 * dim;
    bool in_place = kv->lanes == 16 && (kv->layout.type == DEV_KV_F32 || !widen);
    out->half = in_place && kv->layout.type == DEV_KV_F16;
    for (uint32_t t = begin & ~15u; t < end; t += 16) {
        uint32_t i = t % CPU_SPAN / 16;
        float *k = key + i * n, *v = value + i * n;
        out->k[i] = k;
        out->v[i] = v;
        if (kv->lanes != 16) {
            gather(kernels, kv, group, layer, blocks, kv_head, t < begin ? begin : t,
                   t + 16 < end ? t + 16 : end, k, v);
            continue;
        }
        size_t block = block_at(kv, group, layer, blocks[t / size]);
        size_t k_at = key_at(kv, group, block, kv_head, t % size);
        size_t v_at = value_at(kv, group, block, kv_head, t % size);
        if (in_place) {
            out->k[i] = kv->groups[group].k + k_at * elem;
            out->v[i] = kv->groups[group].v + v_at * elem;
        } else {
            load_elems(kernels, kv, kv->groups[group].k, k_at, k, n);
            load_elems(kernels, kv, kv->groups[group].v, v_at, v, n);
        }
    }
}
