/* model: the transformer: hyper-parameters, weights on a device, and its forward as a program.
 *
 * Written once for every architecture and every device. model_open checks each tensor's shape
 * before it uploads it; after that nothing here computes anything: the program does, on the device.
 * Owned by the engine, on its thread.
 */
#ifndef RIDGE_MODEL_MODEL_H
#define RIDGE_MODEL_MODEL_H

#include "base/log.h"
#include "device/device.h"
#include "model/config.h"

typedef struct {
    const dev_weight *attn_norm, *q, *k, *v, *attn_out, *ffn_norm, *gate, *up, *down;
    const dev_weight *q_bias, *k_bias, *v_bias, *attn_out_bias; /* NULL: none */
    const dev_weight *q_norm, *k_norm;                          /* NULL: none */
    const dev_weight *attn_post_norm, *ffn_post_norm;           /* NULL: none */
    const dev_weight *sinks;                                    /* NULL: none */
    struct { /* latent attention, in the paper's letters: Wdq, Wuq, Wqr, Wdkv, Wkr, Wuk, Wuv */
        const dev_weight *q_down, *q_norm, *q_up,
            *q_rope; /* q_down NULL: up and rope from the row */
        const dev_weight *kv_down, *kv_norm, *k_rope, *k_up, *v_up;
    } latent;
    struct { /* of a layer with experts: gate, up, down are [n_experts * ...] */
        const dev_weight *router, *router_bias, *gate_bias, *up_bias, *down_bias;
        const dev_weight *shared_gate, *shared_up, *shared_down, *share;
    } moe;                          /* router NULL: a dense layer */
    uint32_t window;                /* 0: full */
    uint32_t group, layer_in_group; /* its place in the KV cache */
} model_layer;

typedef struct {
    model_config config;
    const dev_weight *embedding, *out_norm, *head; /* head is embedding where they are tied */
    model_layer *layers;                           /* [n_layers] */
    dev_kv_group groups[DEV_MAX_GROUPS];           /* layers of equal window and KV shape */
    uint32_t n_groups;
    float *rope_full, *rope_window; /* [n_rot / 2] inverse frequencies */
    float rope_mscale;              /* of full layers */
    dev_program program;
    uint64_t n_parameters;
    uint64_t n_idle_parameters; /* of the experts that a token does not take */
    uint64_t weight_bytes;      /* of all of them, as the file has them */
    uint64_t step_bytes; /* of the file's weights that a decode step reads: all but the embedding
                            table, unless it is the head too */
    /* private: every weight, for freeing */
    device *dev;
    dev_weight **weights; /* [n_weights] */
    size_t n_weights, weights_capacity;
} model;

/* g and dev must outlive the model (a device may keep pointers into the file). *out is untouched on
 * failure. */
ridge_status model_open(model **out, const gguf *g, device *dev, const log_sink *log,
                        ridge_error *err) RIDGE_CHECKED;
/* The same program over weights of 16 bits that are shapes alone: for devices that count
 * (device/count/count.h). What is optional in a file is not there. */
ridge_status model_open_shape(model **out, const model_config *config, device *dev,
                              ridge_error *err) RIDGE_CHECKED;
void model_close(model *m); /* NULL allowed */

#endif
