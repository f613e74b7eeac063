/* device/cpu/kv: the pool of keys and values.
 *
 * A block holds, for each layer and head, runs of `lanes` tokens: 16, or the whole block where its
 * size is no multiple of 16; the values of a run follow its keys. Blocks of neighbouring numbers,
 * as many as hold a span of attention, are together: for each layer and head lie the runs of the
 * one block, then those of the next. So what is read together lies together where a sequence got
 * neighbours, as it does from a fresh pool; and yet a short text touches but little memory, though
 * the pool's pages are huge. In a run of n tokens lie
 *
 *     f16, f32   keys [head_dim][n], so that the scores of n tokens are made together without a sum
 *                across lanes; values [n][head_dim]
 *     q8_0       keys [head_dim / 32] of {f16 scales [n], u8 [8][n][4], biased by 128}: of 16
 *                tokens a panel of 16 rows of Q8_0 weights (cpu_internal.h), so that their product
 *                with a query is that of linear layers; values i8 [n][head_dim], f16 scales
 *                [n][head_dim / 32]. Keys are multiplied by an orthogonal matrix before they are
 *                quantised, as queries will be (QuaRot, Ashkboos et al. 2024): beside the few large
 *                values that the biases of some models make, all others would have but few steps
 *
 * Both grow token by token; an entry is written once, from its own token.
 */
#include <string.h>

#include "device/cpu/cpu_internal.h"
#include "format/quant.h"

/* The pool's life ------------------------------------------------------------------------------ */

void cpu_kv_free(device *d, dev_kv *kv) {
    (void)d;
    if (kv == NULL) return;
    for (uint32_t g = 0; g < kv->layout.n_groups; g++)
        mem_unmap(kv->groups[g].data, kv->groups[g].bytes);
    mem_free(kv);
}

static ridge_status check_layout(const dev_kv_layout *l, ridge_error *err) {
    if (l->n_groups < 1 || l->n_groups > DEV_MAX_GROUPS || l->block_size == 0 ||
        l->type == DEV_KV_AUTO)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u groups, blocks of %u tokens, type %s",
                          l->n_groups, l->block_size, dev_kv_type_name(l->type));
    if (l->type > DEV_KV_Q8_0)
        return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED,
                          "a KV cache of type %s; this device has f16, f32 and q8_0",
                          dev_kv_type_name(l->type));
    for (uint32_t g = 0; g < l->n_groups; g++) {
        const dev_kv_group *group = &l->groups[g];
        if (group->n_layers == 0 || group->n_kv_heads == 0 || group->head_dim == 0 ||
            group->n_blocks == 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "KV group %u is empty", g);
        if (group->latent)
            return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED, "a latent KV cache; this device has none");
        if (l->type == DEV_KV_Q8_0 && group->head_dim % CPU_BLOCK != 0)
            return RIDGE_FAIL(
                err, RIDGE_EUNSUPPORTED,
                "a KV cache of type q8_0 has a scale per %d values: the model's heads "
                "have %u, no multiple of it; use f16 (--kv-cache-dtype)",
                CPU_BLOCK, group->head_dim);
    }
    return RIDGE_OK;
}

/* No size is beyond what can be counted if the largest, of all entries in f32, is not. */
static bool map_group(dev_kv *kv, uint32_t g) {
    const dev_kv_group *group = &kv->layout.groups[g];
    size_t most = 2 * sizeof(float);
    if (!mem_mul(most, group->head_dim, &most) || !mem_mul(most, group->n_kv_heads, &most) ||
        !mem_mul(most, kv->layout.block_size, &most) || !mem_mul(most, group->n_layers, &most) ||
        !mem_mul(most, group->n_blocks, &most))
        return false;
    size_t n_blocks = (group->n_blocks + (size_t)kv->together - 1) / kv->together * kv->together;
    kv->groups[g].block_bytes = dev_kv_bytes_per_block(&kv->layout, g);
    if (!mem_mul(kv->groups[g].block_bytes, n_blocks, &kv->groups[g].bytes)) return false;
    kv->groups[g].data = mem_map(kv->groups[g].bytes);
    return kv->groups[g].data != NULL;
}

ridge_status cpu_kv_create(device *d, dev_kv **out, const dev_kv_layout *layout, ridge_error *err) {
    RIDGE_TRY(check_layout(layout, err));
    dev_kv *kv = mem_zalloc(1, sizeof *kv);
    if (kv == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool");
    kv->layout = *layout;
    kv->lanes = layout->block_size % 16 == 0 ? 16 : layout->block_size;
    kv->together = layout->block_size < CPU_SPAN ? CPU_SPAN / layout->block_size : 1;
    for (uint32_t g = 0; g < layout->n_groups; g++)
        if (!map_group(kv, g)) {
            cpu_kv_free(d, kv);
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool: %u blocks of %u tokens",
                              layout->groups[g].n_blocks, layout->block_size);
        }
    *out = kv;
    return RIDGE_OK;
}

/* Runs ----------------------------------------------------------------------------------------- */

/* The runs of one layer and head, in blocks by their place in a table. */
typedef struct {
    const int32_t *blocks;
    uint8_t *data; /* of the layer and head, in the first blocks that are together */
    uint32_t block_size, lanes, together;
    size_t key_bytes, bytes;       /* of a run: its keys, all of it */
    size_t block_bytes, all_bytes; /* of a block: its runs, all layers and heads */
} kv_runs;

static kv_runs find_runs(const dev_kv *kv, uint32_t group, uint32_t layer, const int32_t *blocks,
                         uint32_t head) {
    const dev_kv_layout *l = &kv->layout;
    kv_runs r = {.blocks = blocks,
                 .block_size = l->block_size,
                 .lanes = kv->lanes,
                 .together = kv->together,
                 .all_bytes = kv->groups[group].block_bytes};
    dev_kv_type type = dev_kv_layer_type(l, group, layer);
    r.key_bytes = kv->lanes * dev_kv_entry_bytes(type, l->groups[group].head_dim);
    r.bytes = 2 * r.key_bytes;
    r.block_bytes = l->block_size / kv->lanes * r.bytes;
    r.data = kv->groups[group].data +
             kv->together * (dev_kv_layers_bytes(l, group, layer) + head * r.block_bytes);
    return r;
}

/* The n-th run of a block: its keys; the values are key_bytes further. */
static uint8_t *run_at(const kv_runs *r, uint32_t block, uint32_t n) {
    uint32_t number = (uint32_t)r->blocks[block], at = number % r->together;
    return r->data + (size_t)(number - at) * r->all_bytes + at * r->block_bytes + n * r->bytes;
}

static uint8_t *run_of(const kv_runs *r, uint32_t position) {
    return run_at(r, position / r->block_size, position % r->block_size / r->lanes);
}

/* Whole blocks --------------------------------------------------------------------------------- */

/* What lies past n_tokens in the source is overwritten before it is read. */
void cpu_kv_copy(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                 uint32_t n_tokens) {
    const dev_kv_group *g = &kv->layout.groups[group];
    const int32_t blocks[] = {from, to};
    (void)d;
    (void)n_tokens;
    for (uint32_t i = 0; i < g->n_layers * g->n_kv_heads; i++) {
        kv_runs r = find_runs(kv, group, i / g->n_kv_heads, blocks, i % g->n_kv_heads);
        memcpy(run_at(&r, 1, 0), run_at(&r, 0, 0), r.block_bytes);
    }
}

/* Outside the pool a block is all of its keys, then all of its values: what files have. */

void cpu_kv_read_block(device *d, const dev_kv *kv, uint32_t group, int32_t block, void *to) {
    const dev_kv_group *g = &kv->layout.groups[group];
    uint8_t *keys = to, *values = keys + kv->groups[group].block_bytes / 2;
    (void)d;
    for (uint32_t i = 0; i < g->n_layers * g->n_kv_heads; i++) {
        kv_runs r = find_runs(kv, group, i / g->n_kv_heads, &block, i % g->n_kv_heads);
        for (uint32_t n = 0; n < kv->layout.block_size / kv->lanes; n++) {
            const uint8_t *run = run_at(&r, 0, n);
            memcpy(keys, run, r.key_bytes);
            memcpy(values, run + r.key_bytes, r.key_bytes);
            keys += r.key_bytes;
            values += r.key_bytes;
        }
    }
}

void cpu_kv_write_block(device *d, dev_kv *kv, uint32_t group, int32_t block, const void *from) {
    const dev_kv_group *g = &kv->layout.groups[group];
    const uint8_t *keys = from, *values = keys + kv->groups[group].block_bytes / 2;
    (void)d;
    for (uint32_t i = 0; i < g->n_layers * g->n_kv_heads; i++) {
        kv_runs r = find_runs(kv, group, i / g->n_kv_heads, &block, i % g->n_kv_heads);
        for (uint32_t n = 0; n < kv->layout.block_size / kv->lanes; n++) {
            uint8_t *run = run_at(&r, 0, n);
            memcpy(run, keys, r.key_bytes);
            memcpy(run + r.key_bytes, values, r.key_bytes);
            keys += r.key_bytes;
            values += r.key_bytes;
        }
    }
}

/* One token ------------------------------------------------------------------------------------ */

/* A block of 32 values of the keys of a run of q8_0: its scales; its quants are 2 * lanes further.
 */
static size_t key_block(uint32_t lanes, uint32_t b) {
    return (size_t)b * (CPU_BLOCK + 2) * lanes;
}

static void write_q8_key(const cpu_kernels *kernels, uint8_t *run, uint32_t lanes, uint32_t lane,
                         const float *k, uint32_t dim, float *scratch) {
    uint8_t *q = (uint8_t *)(scratch + dim); /* [dim], then the scales */
    uint16_t *scales = (uint16_t *)(void *)(q + dim);
    kernels->hadamard(k, scratch, dim);
    kernels->quantize_q8(scratch, dim, (int8_t *)q, scales);
    for (uint32_t i = 0; i < dim; i++) q[i] ^= 0x80;
    for (uint32_t b = 0; b < dim / CPU_BLOCK; b++, q += CPU_BLOCK) {
        uint8_t *to = run + key_block(lanes, b);
        memcpy(to + 2 * lane, scales + b, 2);
        to += 2 * lanes + 4 * lane;
        for (int quad = 0; quad < CPU_QUADS; quad++, to += 4 * lanes) memcpy(to, q + 4 * quad, 4);
    }
}

static void write_key(const cpu_kernels *kernels, dev_kv_type type, uint8_t *run, uint32_t lanes,
                      uint32_t lane, const float *k, uint32_t dim, float *scratch) {
    if (type == DEV_KV_Q8_0) {
        write_q8_key(kernels, run, lanes, lane, k, dim, scratch);
    } else if (type == DEV_KV_F16) {
        uint16_t *to = (uint16_t *)(void *)run + lane, *half = (uint16_t *)(void *)scratch;
        kernels->narrow_f16(k, half, dim);
        for (uint32_t d = 0; d < dim; d++) to[(size_t)d * lanes] = half[d];
    } else {
        float *to = (float *)(void *)run + lane;
        for (uint32_t d = 0; d < dim; d++) to[(size_t)d * lanes] = k[d];
    }
}

static int8_t *q8_values(const uint8_t *run, uint32_t lane, uint32_t dim) {
    return (int8_t *)run + (size_t)lane * dim;
}

static uint16_t *q8_value_scales(const uint8_t *run, uint32_t lanes, uint32_t lane, uint32_t dim) {
    return (uint16_t *)(void *)(run + (size_t)lanes * dim) + (size_t)lane * (dim / CPU_BLOCK);
}

static void write_value(const cpu_kernels *kernels, dev_kv_type type, uint8_t *run, uint32_t lanes,
                        uint32_t lane, const float *v, uint32_t dim) {
    size_t at = (size_t)lane * dim;
    if (type == DEV_KV_Q8_0)
        kernels->quantize_q8(v, dim, q8_values(run, lane, dim),
                             q8_value_scales(run, lanes, lane, dim));
    else if (type == DEV_KV_F16)
        kernels->narrow_f16(v, (uint16_t *)(void *)run + at, dim);
    else
        memcpy((float *)(void *)run + at, v, dim * sizeof *v);
}

void cpu_kv_write(const cpu_kernels *kernels, dev_kv *kv, uint32_t group, uint32_t layer,
                  const int32_t *blocks, uint32_t position, const float *k, const float *v,
                  float *scratch) {
    uint32_t dim = kv->layout.groups[group].head_dim, lanes = kv->lanes;
    uint32_t lane = position % kv->layout.block_size % lanes;
    dev_kv_type type = dev_kv_layer_type(&kv->layout, group, layer);
    for (uint32_t h = 0; h < kv->layout.groups[group].n_kv_heads; h++, k += dim, v += dim) {
        kv_runs runs = find_runs(kv, group, layer, blocks, h);
        uint8_t *run = run_of(&runs, position);
        write_key(kernels, type, run, lanes, lane, k, dim, scratch);
        write_value(kernels, type, run + runs.key_bytes, lanes, lane, v, dim);
    }
}

/* A span --------------------------------------------------------------------------------------- */

/* One token out of a run of another length: into lane `to` of key and value of 16. */
static void gather_q8(const cpu_kernels *kernels, const uint8_t *key_run, const uint8_t *value_run,
                      uint32_t lanes, uint32_t lane, uint32_t dim, uint32_t to, uint8_t *key,
                      float *value) {
    const int8_t *v = q8_values(value_run, lane, dim);
    const uint16_t *scales = q8_value_scales(value_run, lanes, lane, dim);
    for (uint32_t b = 0; b < dim / CPU_BLOCK; b++) {
        const uint8_t *from = key_run + key_block(lanes, b);
        uint8_t *k = key + key_block(16, b);
        memcpy(k + 2 * to, from + 2 * lane, 2);
        for (uint32_t quad = 0; quad < CPU_QUADS; quad++)
            memcpy(k + 2 * 16 + (quad * 16 + to) * 4, from + 2 * lanes + (quad * lanes + lane) * 4,
                   4);
        float scale = quant_f16_to_f32(scales[b]);
        kernels->widen_q8(v + b * CPU_BLOCK, &scale, value + to * dim + b * CPU_BLOCK, CPU_BLOCK);
    }
}

static void gather_one(const cpu_kernels *kernels, bool half, const uint8_t *key_run,
                       const uint8_t *value_run, uint32_t lanes, uint32_t lane, uint32_t dim,
                       uint32_t to, float *key, float *value) {
    if (half) {
        const uint16_t *k = (const uint16_t *)(const void *)key_run + lane;
        const uint16_t *v = (const uint16_t *)(const void *)value_run + (size_t)lane * dim;
        for (uint32_t d = 0; d < dim; d++) key[d * 16 + to] = quant_f16_to_f32(k[d * lanes]);
        kernels->widen_f16(v, value + to * dim, dim);
    } else {
        const float *k = (const float *)(const void *)key_run + lane;
        const float *v = (const float *)(const void *)value_run + (size_t)lane * dim;
        for (uint32_t d = 0; d < dim; d++) key[d * 16 + to] = k[d * lanes];
        memcpy(value + to * dim, v, dim * sizeof *v);
    }
}

/* Tokens [begin, end), of a group of 16, of blocks that hold them in other runs: into a run of 16
 * of keys, in f32 or q8_0, and one of values in f32; what of them is of other tokens is anything.
 */
static void gather(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                   const kv_runs *runs, uint32_t begin, uint32_t end, float *key, float *value) {
    uint32_t dim = kv->layout.groups[group].head_dim, lanes = kv->lanes;
    dev_kv_type type = dev_kv_layer_type(&kv->layout, group, layer);
    for (uint32_t t = begin; t < end; t++) {
        const uint8_t *k = run_of(runs, t), *v = k + runs->key_bytes;
        uint32_t lane = t % kv->layout.block_size % lanes;
        if (type == DEV_KV_Q8_0)
            gather_q8(kernels, k, v, lanes, lane, dim, t % 16, (uint8_t *)key, value);
        else
            gather_one(kernels, type == DEV_KV_F16, k, v, lanes, lane, dim, t % 16, key, value);
    }
}

/* The runs of 16 with tokens [begin, end) of a span; how many. */
static uint32_t find_span(const kv_runs *r, uint32_t begin, uint32_t end, const uint8_t **out) {
    uint32_t per_block = r->block_size / 16, n = 0;
    uint32_t block = begin / 16 / per_block, run = begin / 16 % per_block;
    for (uint32_t t = begin & ~15u; t < end; t += 16) {
        out[n++] = run_at(r, block, run);
        if (++run < per_block) continue;
        run = 0;
        block++;
    }
    return n;
}

/* Slot i of a span: the run of 16 at k and v, of a type and head_dim. */
static void view_run(const cpu_kernels *kernels, dev_kv_type type, uint32_t dim, const uint8_t *k,
                     const uint8_t *v, bool widen, float *key, float *value, uint32_t i,
                     cpu_kv_span *out) {
    size_t n = (size_t)16 * dim;
    out->k[i] = k;
    out->v[i] = v;
    if (!widen || type == DEV_KV_F32) return;
    out->v[i] = value;
    if (type == DEV_KV_Q8_0) { /* keys stay as they are: there is room for scales */
        kernels->widen_f16(q8_value_scales(v, 16, 0, dim), key, n / CPU_BLOCK);
        kernels->widen_q8(q8_values(v, 0, dim), key, value, n);
        return;
    }
    out->k[i] = key;
    kernels->widen_f16((const uint16_t *)(const void *)k, key, n);
    kernels->widen_f16((const uint16_t *)(const void *)v, value, n);
}

void cpu_kv_view(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                 const int32_t *blocks, uint32_t kv_head, uint32_t begin, uint32_t end, bool widen,
                 float *key, float *value, cpu_kv_span *out) {
    uint32_t dim = kv->layout.groups[group].head_dim, n = 16 * dim, i = begin % CPU_SPAN / 16;
    dev_kv_type type = dev_kv_layer_type(&kv->layout, group, layer);
    kv_runs runs = find_runs(kv, group, layer, blocks, kv_head);
    out->type = kv->lanes == 16 && !widen ? type : DEV_KV_F32;
    if (kv->lanes == 16) {
        const uint8_t *found[CPU_SPAN / 16];
        uint32_t n_found = find_span(&runs, begin, end, found);
        for (uint32_t f = 0; f < n_found; f++, i++)
            view_run(kernels, type, dim, found[f], found[f] + runs.key_bytes, widen,
                     key + (size_t)i * n, value + (size_t)i * n, i, out);
        return;
    }
    for (uint32_t t = begin & ~15u; t < end; t += 16, i++) {
        out->k[i] = key + (size_t)i * n;
        out->v[i] = value + (size_t)i * n;
        gather(kernels, kv, group, layer, &runs, t < begin ? begin : t, t + 16 < end ? t + 16 : end,
               key + (size_t)i * n, value + (size_t)i * n);
    }
}

void cpu_kv_ahead(const dev_kv *kv, uint32_t group, uint32_t layer, const int32_t *blocks,
                  uint32_t kv_head, uint32_t begin, uint32_t end, cpu_kv_part part,
                  cpu_ahead *ahead) {
    if (kv->lanes != 16) return;
    kv_runs runs = find_runs(kv, group, layer, blocks, kv_head);
    ahead->bytes = (uint32_t)(part == CPU_KV_BOTH ? runs.bytes : runs.key_bytes);
    const uint8_t **to = ahead->runs + ahead->end;
    uint32_t n = find_span(&runs, begin, end, to);
    for (uint32_t i = 0; i < n && part == CPU_KV_VALUES; i++) to[i] += runs.key_bytes;
    ahead->end += n;
}

void cpu_kv_scales(const cpu_kernels *kernels, const cpu_kv_span *span, uint32_t dim,
                   uint32_t begin, uint32_t end, float *scales) {
    size_t n = 16 * dim / CPU_BLOCK;
    for (uint32_t i = begin % CPU_SPAN / 16; i <= (end - 1) % CPU_SPAN / 16; i++)
        kernels->widen_f16(q8_value_scales(span->v[i], 16, 0, dim), scales + i * n, n);
}
