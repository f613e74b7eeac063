/* device/kv_layout: the types of a KV cache and the bytes that they take, on every device. */
#include <string.h>

#include "device/device.h"

static const struct {
    const char *name;
    uint32_t bits;       /* of a value */
    uint32_t scale_bits; /* of each 32 values */
} types[] = {
    [DEV_KV_AUTO] = {"auto", 0, 0},  [DEV_KV_F16] = {"f16", 16, 0}, [DEV_KV_F32] = {"f32", 32, 0},
    [DEV_KV_Q8_0] = {"q8_0", 8, 16}, [DEV_KV_FP8] = {"fp8", 8, 0},  [DEV_KV_FP6] = {"fp6", 6, 0}};

const char *dev_kv_type_name(dev_kv_type type) {
    return types[type].name;
}

bool dev_kv_type_find(const char *name, dev_kv_type *out) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) {
            *out = (dev_kv_type)i;
            return true;
        }
    return false;
}

dev_kv_type dev_kv_layer_type(const dev_kv_layout *layout, uint32_t group, uint32_t layer) {
    bool f16 = layout->type == DEV_KV_Q8_0 && layer < layout->groups[group].n_f16_layers;
    return f16 ? DEV_KV_F16 : layout->type;
}

size_t dev_kv_entry_bytes(dev_kv_type type, uint32_t head_dim) {
    size_t n = head_dim;
    return n * types[type].bits / 8 + n / 32 * types[type].scale_bits / 8;
}

size_t dev_kv_token_bytes(const dev_kv_layout *layout, uint32_t group, uint32_t layer) {
    const dev_kv_group *g = &layout->groups[group];
    dev_kv_type type = dev_kv_layer_type(layout, group, layer);
    return (g->latent ? 1 : 2) * g->n_kv_heads * dev_kv_entry_bytes(type, g->head_dim);
}

size_t dev_kv_layers_bytes(const dev_kv_layout *layout, uint32_t group, uint32_t n_layers) {
    size_t n_f16 = layout->groups[group].n_f16_layers;
    size_t n_first = n_f16 < n_layers ? n_f16 : n_layers;
    size_t bytes = n_first * dev_kv_token_bytes(layout, group, 0);
    if (n_first < n_layers)
        bytes += (n_layers - n_first) * dev_kv_token_bytes(layout, group, (uint32_t)n_first);
    return layout->block_size * bytes;
}

size_t dev_kv_bytes_per_block(const dev_kv_layout *layout, uint32_t group) {
    return dev_kv_layers_bytes(layout, group, layout->groups[group].n_layers);
}
