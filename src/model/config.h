/* model/config: the hyper-parameters of a transformer, read from a GGUF file and checked.
 *
 * Nothing downstream checks them again: every field is within bounds that make the shapes of
 * weights.c and the sums of forward.c safe.
 */
#ifndef RIDGE_MODEL_CONFIG_H
#define RIDGE_MODEL_CONFIG_H

#include <stdbool.h>

#include "format/gguf.h"

typedef enum {
    ARCH_LLAMA,
    ARCH_QWEN2,
    ARCH_QWEN3,
    ARCH_GEMMA2,
    ARCH_GEMMA3,
    /* known by their shapes alone (model/hf_config.h): no file of these is read yet */
    ARCH_QWEN2_MOE,
    ARCH_QWEN3_MOE,
    ARCH_DEEPSEEK2,
    ARCH_GPT_OSS,
} model_arch;
typedef enum { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } rope_scaling;

typedef struct {
    rope_scaling scaling;
    float base;        /* theta of full layers */
    float base_window; /* theta of window layers, which are never scaled */
    float factor, attn_factor;
    float low_freq_factor, high_freq_factor; /* llama3 */
    float beta_fast, beta_slow, ext_factor;  /* yarn */
    uint32_t n_context_original;             /* llama3, yarn */
    uint32_t n_rot;                          /* columns of each head that rotate; even */
    bool neox;                               /* pairs (i, i + n_rot/2); else (2i, 2i + 1) */
} model_rope;

/* How the weights were published, where that is neither 16 nor 32 bits; the embedding table, the
 * head and norms are bf16 in any case. */
typedef enum {
    MODEL_PUBLISHED_16,
    MODEL_PUBLISHED_FP8,   /* matrices of 8 bits, with a scale for 128 x 128 (DeepSeek-V3) */
    MODEL_PUBLISHED_MXFP4, /* the experts' matrices, all else bf16 (gpt-oss) */
    MODEL_PUBLISHED_OTHER, /* quantized in a way that is not known here */
} model_published;

/* A feed-forward of many small experts, of which each token takes some. */
typedef struct {
    uint32_t n_experts, top_k, n_ff; /* n_experts 0: every layer is dense */
    uint32_t n_ff_shared;            /* of one more, which every token takes; 0: there is none */
    bool shared_gate;                /* which a gate of its own scales */
    bool router_bias, bias;          /* bias: of the experts' three products */
    uint32_t n_dense_layers;         /* the first ones are dense, of n_ff as usual */
} model_moe;

/* Multi-head latent attention (DeepSeek-V2): the cache keeps `rank` values that keys and values are
 * made of, and a key of `n_rope` columns that rotates, for all heads together. */
typedef struct {
    uint32_t rank;                    /* 0: keys and values themselves are kept */
    uint32_t q_rank;                  /* queries come from so many values; 0: from the row itself */
    uint32_t n_nope, n_rope, n_value; /* columns of a head: still and rotating of q and k; of v */
} model_latent;

/* How a model is spread over devices; zeroed: it is on one. */
typedef struct {
    uint32_t n_tensor; /* ranks that share each layer: heads, feed-forward columns, vocabulary */
    uint32_t
        n_expert; /* ranks that share the experts; each has all else, and sequences of its own */
    uint32_t n_stages;    /* ranks that have some layers each, one after the other */
    uint32_t n_redundant; /* of the experts so many are there twice, so that they can be divided */
} model_split;

/* Of a split's numbers: 0 is as 1. */
static inline uint32_t model_split_ways(uint32_t n) {
    return n > 1 ? n : 1;
}

#define MODEL_MAX_RANKS 4096
#define MODEL_MAX_LAYERS 1024
#define MODEL_MAX_WIDTH (1u << 20)
#define MODEL_MAX_VOCAB (1u << 24)
#define MODEL_MAX_HEADS 1024
#define MODEL_MAX_HEAD_DIM 1024
#define MODEL_MAX_CONTEXT (1u << 27)
#define MODEL_MAX_EXPERTS 4096
#define MODEL_MAX_EXPERT_ROWS (1u << 28) /* of all experts' matrices together */

typedef struct {
    model_arch arch;
    uint32_t n_vocab, n_layers, n_embd, n_ff;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t n_context; /* that the model was made for */
    float norm_eps;
    model_rope rope;
    uint32_t window;         /* of window layers; 0: there are none */
    uint32_t window_pattern; /* layer i is full when i % pattern == pattern - 1; 0: all are full */
    float attn_scale;
    float attn_softcap, final_softcap; /* 0: none */
    float embed_scale;
    bool gelu;       /* else SiLU */
    bool qk_norm;    /* RMS norm of each head of q and k before rope */
    bool post_norms; /* norms of the outputs of attention and feed-forward */
    bool qkv_bias;   /* required; elsewhere biases are used where they are */
    bool tied;       /* the embedding table is the head, too */
    bool out_bias;   /* of attention's output; in files it is used where it is */
    bool sinks;      /* a learned logit per head that takes part in the softmax (gpt-oss) */
    model_moe moe;
    model_latent latent;
    model_published published; /* of a config.json; files say it of each tensor */
    char published_as[32];     /* its name for that; "": none */
    bool text_part;            /* of a model that takes images, too, whose parts are left out */
    model_split split;         /* what it is a part of */
} model_config;

uint32_t model_experts_here(const model_config *c); /* of one rank, copies included */
/* The part of a model that one rank has; of all stages together. RIDGE_EINVAL: it can't be divided
 * so; the message says what by what. */
ridge_status model_config_split(model_config *out, const model_config *whole,
                                const model_split *split, ridge_error *err) RIDGE_CHECKED;

/* Errors name the key, what was found and what is allowed. An unknown architecture is
 * RIDGE_EUNSUPPORTED and lists those that are supported. */
ridge_status model_config_read(model_config *out, const gguf *g, ridge_error *err) RIDGE_CHECKED;
const char *model_arch_names(void);                                 /* "llama, qwen2, ..." */
uint32_t model_layer_window(const model_config *c, uint32_t layer); /* 0: full */

/* inv_freq [n_rot / 2] of a full or a window layer; *mscale multiplies cos and sin. factors
 * [n_rot / 2]: the file's rope_freqs, or NULL. */
void model_rope_frequencies(const model_rope *r, bool window, const float *factors, float *inv_freq,
                            float *mscale);

#endif
