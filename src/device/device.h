/* device: the operations that a transformer needs, on ragged batches; the only arithmetic on
 * tensors.
 *
 * A model builds a dev_program (a list of operations over named activation values) once; the device
 * compiles it, then runs it for batch after batch. Contract: one row's result is bitwise the same
 * whatever else is in the batch, however it is chunked, and for any number of threads; nor may it
 * depend on fusion. One thread at a time calls a device.
 *
 * Values are [n_tokens, width] f32 buffers that the device owns. Weights are uploaded once; the
 * device keeps its own packed copy (and may keep the pointer: the file must outlive it).
 */
#ifndef RIDGE_DEVICE_DEVICE_H
#define RIDGE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "format/quant.h"

typedef struct device device;
typedef struct dev_weight dev_weight; /* a matrix [rows, cols] or a vector [cols], uploaded */
typedef struct dev_kv dev_kv;         /* the KV pool: all groups, all blocks */
typedef struct dev_compiled dev_compiled;
typedef uint16_t dev_value;

#define DEV_NONE 0xFFFF
#define DEV_MAX_FANOUT 3
#define DEV_MAX_GROUPS 4

typedef enum {
    DEV_KV_AUTO, /* no type: whoever makes a layout chooses one */
    DEV_KV_F16,
    DEV_KV_F32,
    DEV_KV_Q8_0, /* int8, a scale in f16 per token and 32 values of a head */
    DEV_KV_FP8,  /* this and the next are counted, but not computed yet */
    DEV_KV_FP6,  /* 6 bits a value, as in the paper of DeepSeek-V2 */
} dev_kv_type;

typedef enum {
    DEV_EMBED,    /* out[0][t] = row tokens[t] of w[0], times scale */
    DEV_RMS_NORM, /* out = in / sqrt(mean(in^2) + eps) * w[0], per `head_dim` columns (0: whole row)
                   */
    DEV_LINEAR,   /* out[i] = in * w[i]^T (+ bias[i]), i < n_weights: matrices sharing an input */
    DEV_ROPE,     /* in place on in[0]: rotates the first n_rot of each head_dim columns */
    DEV_KV_WRITE, /* in[0] = k, in[1] = v into layer `layer` of group `group` */
    DEV_ATTENTION, /* out = softmax(scale * q k^T) v, causal, grouped heads; window, soft-cap; w[0]:
                      NULL, or a logit per head that takes part in the sum (counted only) */
    DEV_GLU,       /* out = act(in[0]) * in[1] */
    DEV_ADD,       /* out = in[0] + in[1]; out may be in[0] */
    DEV_SCALE,     /* out = in * scale; times column in[1], unless DEV_NONE (counted only) */
    DEV_SOFTCAP,   /* out = cap * tanh(in / cap) */
    DEV_GATHER,    /* head only: out = the rows of in[0] whose logits are wanted */
    /* What follows is counted (device/count/), but no device computes it yet. */
    DEV_EXPERTS,          /* out = sum over the top_k experts e of a row, by its scores in[1], of
                             score_e * down_e (act(gate_e in[0]) * up_e in[0]); w: gate, up, down, each
                             [n_experts * rows of one, cols] */
    DEV_LATENT_ATTENTION, /* in: the still and the rotating columns of q; keys and values are made
                             of what the cache has: w[0] [n_heads * head_dim, rank] makes keys, w[1]
                             [n_heads * n_value, rank] values; out [n_heads * n_value] */
    DEV_ALL_REDUCE,       /* in place on in[0]: the sum over n_ranks ranks */
    DEV_ALL_GATHER,       /* out = the columns in[0] of n_ranks ranks next to each other */
    DEV_ALL_TO_ALL, /* rows of in[0] go to the ranks of their top_k experts, or come back from them
                     */
    DEV_SEND,       /* in[0] goes on to the rank that has the next layers */
} dev_op_kind;

typedef enum { DEV_SILU, DEV_GELU_TANH } dev_activation;

typedef struct {
    dev_op_kind kind;
    dev_value in[2], out[DEV_MAX_FANOUT];
    const dev_weight *w[DEV_MAX_FANOUT], *bias[DEV_MAX_FANOUT]; /* bias NULL: none */
    int n_weights;
    float scale, eps, softcap; /* softcap 0: none */
    uint32_t head_dim, n_heads, n_kv_heads;
    uint32_t layer, group;     /* layer within the group */
    uint32_t window;           /* 0: full; query i sees j with 0 <= i - j < window */
    uint32_t n_experts, top_k; /* w: those of this rank, n_experts / n_ranks */
    uint32_t n_ranks;          /* that take part; 0 and 1: this one alone */
    uint32_t rank_stride; /* of all ranks in their order every so-manieth; 0 and 1: neighbours */
    bool back;            /* of all-to-all */
    uint32_t rank, n_rope, n_value; /* of latent attention: head_dim are the still columns */
    dev_activation activation;
    /* rope: angle(pos, i) = pos * rope_inv_freq[i]; cos and sin are scaled by rope_mscale */
    const float *rope_inv_freq; /* [n_rot / 2], owned by the model */
    uint32_t n_rot;
    bool rope_neox; /* pairs (i, i + n_rot/2); else (2i, 2i+1) */
    float rope_mscale;
} dev_op;

/* The body runs over all tokens of a batch; the head over up to 32 wanted rows at a time. The last
 * operation of the head writes the logits. */
typedef struct {
    dev_op *ops; /* [n_ops]; body = [0, head_start), head = [head_start, n_ops) */
    size_t n_ops, head_start;
    uint32_t *widths; /* [n_values] columns of each value */
    size_t n_values;
    uint32_t n_vocab;
} dev_program;

typedef struct {
    uint32_t first_row, n_rows; /* rows of the batch that belong to this sequence */
    uint32_t n_context;         /* tokens in the cache after this step */
    const int32_t
        *blocks[DEV_MAX_GROUPS]; /* block table per group: position p is in blocks[p / block_size];
                                    -1 where no row of this step sees any of its positions */
} dev_seq;

typedef struct {
    uint32_t n_tokens, n_seqs;
    const int32_t *tokens;    /* [n_tokens] */
    const int32_t *positions; /* [n_tokens] */
    const dev_seq *seqs;      /* [n_seqs] */
    /* Of all ranks that share experts; 0: each has as many tokens as this one (counted only). */
    uint32_t n_group_tokens;
    bool group_halves; /* with that: all of them have enough for two halves (count.h) */
} dev_batch;

typedef struct {
    uint32_t n_layers, n_kv_heads, head_dim; /* K and V share head_dim */
    uint32_t window;                         /* 0: full */
    uint32_t n_blocks;                       /* set by who sizes the cache */
    uint32_t n_f16_layers;                   /* of q8_0: so many of its first layers stay f16 */
    bool latent; /* one entry is key and value: head_dim is rank + n_rope, n_kv_heads 1 */
} dev_kv_group;

typedef struct {
    dev_kv_group groups[DEV_MAX_GROUPS];
    uint32_t n_groups, block_size;
    dev_kv_type type;
} dev_kv_layout;

#define DEV_HEAD_ROWS 32

/* What one submit did, for the roofline. */
typedef struct {
    double flops, weight_bytes, kv_bytes, seconds;
} dev_account; /* the rules of counting: roof/work.h */

static inline void dev_account_add(dev_account *to, const dev_account *a) {
    to->flops += a->flops;
    to->weight_bytes += a->weight_bytes;
    to->kv_bytes += a->kv_bytes;
    to->seconds += a->seconds;
}

/* One kind of operation as it ran since the last reset; what the device fused is one. */
typedef struct {
    char name[96]; /* "linear 896 -> 4864+4864 q5_0" */
    uint64_t n;    /* times it ran */
    double seconds, flops, bytes;
    bool integer; /* its roof is the int8 unit, else f32 */
} dev_profile_row;

typedef void (*dev_share_fn)(void *context, int member, uint32_t i);

typedef struct {
    void (*destroy)(device *d);
    ridge_status (*weight_upload)(device *d, dev_weight **out, quant_type type, const void *data,
                                  uint32_t rows, uint32_t cols, bool embed_only, ridge_error *err);
    void (*weight_free)(device *d, dev_weight *w);
    ridge_status (*kv_create)(device *d, dev_kv **out, const dev_kv_layout *layout,
                              ridge_error *err);
    void (*kv_free)(device *d, dev_kv *kv);
    /* Copies the first n_tokens of a block, all layers of the group. */
    void (*kv_copy)(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                    uint32_t n_tokens);
    /* A whole block, all layers of the group, out of the pool and into one:
     * dev_kv_bytes_per_block bytes, in a form that layouts of equal block size, type and shape of
     * the group share on every path, whatever their number of blocks. */
    void (*kv_read_block)(device *d, const dev_kv *kv, uint32_t group, int32_t block, void *to);
    void (*kv_write_block)(device *d, dev_kv *kv, uint32_t group, int32_t block, const void *from);
    ridge_status (*compile)(device *d, dev_compiled **out, const dev_program *p,
                            uint32_t max_tokens, ridge_error *err);
    void (*compiled_free)(device *d, dev_compiled *c);
    /* Runs the body. The batch must stay until wait returns. */
    ridge_status (*submit)(device *d, dev_compiled *c, dev_kv *kv, const dev_batch *batch,
                           ridge_error *err);
    ridge_status (*wait)(device *d, ridge_error *err);
    /* After wait: logits [n_rows, n_vocab] of rows of that batch, n_rows <= DEV_HEAD_ROWS. */
    ridge_status (*head)(device *d, dev_compiled *c, const uint32_t *rows, uint32_t n_rows,
                         float *logits, ridge_error *err);
    /* Runs fn(context, member, i) for each i of [0, n), on the device's threads at once; member is
     * below n and the device's number of threads, and does one at a time. Not between submit and
     * wait. */
    void (*share)(device *d, uint32_t n, dev_share_fn fn, void *context);
    void (*account)(const device *d, dev_account *out); /* since the last submit, head included */
    /* Fills up to max rows, most seconds first; returns how many; then starts again from 0. */
    size_t (*profile)(device *d, dev_compiled *c, dev_profile_row *out, size_t max);
} device_vtable;

struct device {
    const device_vtable *vtable;
    /* Set by who uploads, NULL: none. Called during an upload, on its thread, for bytes of `data`
     * that are packed: their memory may be given back if they come again when read. */
    void (*on_packed)(void *context, const void *data, size_t size);
    void *on_packed_context;
};

/* A step of no more tokens takes its time from reading the weights, whatever it computes. */
#define DEV_FEW_TOKENS 8

typedef struct {
    int n_threads;       /* 0: all usable, of cpu_affinity if that is given */
    int n_threads_batch; /* in steps of more than DEV_FEW_TOKENS, head included; 0: n_threads */
    const char *cpu_affinity; /* "0-3,8": thread i is pinned to the i-th of these processors;
                                 "auto": those that the process may use; NULL: none is pinned */
    const char
        *isa; /* "portable", "avx2", "avx512", "neon", "i8mm"; NULL: the best this machine has */
    bool precise; /* linear layers with f32 activations on dequantised weights */
} device_cpu_params;

ridge_status device_cpu_create(device **out, const device_cpu_params *p,
                               ridge_error *err) RIDGE_CHECKED;
const char *device_cpu_isa(const device *d); /* "avx512" */
int device_cpu_threads(const device *d);     /* the larger of the two counts */
/* Linear layers of no more tokens take the quants of their weights as they are stored; for more
 * they are unpacked first. */
uint32_t device_cpu_packed_tokens(const device *d);

/* The cache's sizes (kv_layout.c), the same on every device. */
size_t dev_kv_bytes_per_block(const dev_kv_layout *layout, uint32_t group);
/* Of that, the first n_layers of the group. */
size_t dev_kv_layers_bytes(const dev_kv_layout *layout, uint32_t group, uint32_t n_layers);
/* Of a token in one layer. */
size_t dev_kv_token_bytes(const dev_kv_layout *layout, uint32_t group, uint32_t layer);
size_t dev_kv_entry_bytes(dev_kv_type type, uint32_t head_dim); /* of a token's key of a head */
dev_kv_type dev_kv_layer_type(const dev_kv_layout *layout, uint32_t group, uint32_t layer);
const char *dev_kv_type_name(dev_kv_type type); /* "auto", "f16", "f32", "q8_0", "fp8", "fp6" */
/* False: none is called so. */
bool dev_kv_type_find(const char *name, dev_kv_type *out);

#endif
