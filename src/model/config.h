/* model/config: the hyper-parameters of a transformer, read from a GGUF file and checked.
 *
 * Nothing downstream checks them again: every field is within bounds that make the shapes of
 * weights.c and the sums of forward.c safe.
 */
#ifndef RIDGE_MODEL_CONFIG_H
#define RIDGE_MODEL_CONFIG_H

#include <stdbool.h>

#include "format/gguf.h"

typedef enum { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, ARCH_GEMMA2, ARCH_GEMMA3 } model_arch;
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
} model_config;

/* Errors name the key, what was found and what is allowed. An unknown architecture is
 * RIDGE_EUNSUPPORTED and lists those that are supported. */
ridge_status model_config_read(model_config *out, const gguf *g, ridge_error *err) RIDGE_CHECKED;
const char *model_arch_name(model_arch arch);
const char *model_arch_names(void);                                 /* "llama, qwen2, ..." */
uint32_t model_layer_window(const model_config *c, uint32_t layer); /* 0: full */

/* inv_freq [n_rot / 2] of a full or a window layer; *mscale multiplies cos and sin. factors
 * [n_rot / 2]: the file's rope_freqs, or NULL. */
void model_rope_frequencies(const model_rope *r, bool window, const float *factors, float *inv_freq,
                            float *mscale);

#endif
