/* tests/support/tiny_model: see tiny_model.h. */
#include "unit.h"

#include "tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf_write.h"

#define N_EMBD 64
#define N_FF 96
#define N_HEADS 4
#define N_KV_HEADS 2
#define HEAD_DIM 32

const char *const tiny_kinds[] = {"llama", "llama-rope-freqs", "llama-yarn", "qwen2",
                                  "qwen3", "gemma2",           "gemma3",     NULL};

typedef struct {
    gguf_writer w;
    char arch[16];
    quant_type type; /* of the matrices; varied, for the kernels differ */
} tiny;

static const char *key_of(const tiny *t, const char *name, char key[static 96]) {
    snprintf(key, 96, "%s.%s", t->arch, name);
    return key;
}

static void put_u32(tiny *t, const char *name, uint32_t v) {
    char key[96];
    gguf_write_u32(&t->w, key_of(t, name, key), v);
}

static void put_f32(tiny *t, const char *name, float v) {
    char key[96];
    gguf_write_f32(&t->w, key_of(t, name, key), v);
}

static void matrix(tiny *t, const char *name, uint64_t rows, uint64_t cols) {
    static const quant_type types[] = {QUANT_Q8_0, QUANT_Q4_0, QUANT_F16, QUANT_Q5_1, QUANT_F32};
    t->type = types[t->w.n_tensors % 5];
    gguf_write_random(&t->w, name, t->type, 2, (uint64_t[]){cols, rows}, 2.0f / sqrtf((float)cols));
}

static void vector(tiny *t, const char *name, uint64_t n, float base, float scale) {
    float *v = malloc(n * sizeof *v);
    for (uint64_t i = 0; i < n; i++) v[i] = base + scale * sinf((float)(i * 7 + t->w.n_tensors));
    gguf_write_tensor(&t->w, name, QUANT_F32, 1, &n, v, n * sizeof *v);
    free(v);
}

/* <unk> <s> </s>, the 256 bytes, and some pieces, as SentencePiece has them. */
static void vocabulary(tiny *t) {
    static char texts[TINY_N_VOCAB][16];
    static const char *const pieces[] = {"\xE2\x96\x81",  "a",  "e",  "t",  "th", "he",      "the",
                                         "\xE2\x96\x81t", "in", "an", "on", "er", "\xC3\xA9"};
    const char *tokens[TINY_N_VOCAB];
    float scores[TINY_N_VOCAB] = {0};
    int32_t types[TINY_N_VOCAB];
    for (int i = 0; i < TINY_N_VOCAB; i++) {
        static const char *const special[] = {"<unk>", "<s>", "</s>"};
        tokens[i] = texts[i];
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        if (i < 3)
            snprintf(texts[i], sizeof texts[i], "%s", special[i]);
        else if (i < 259)
            snprintf(texts[i], sizeof texts[i], "<0x%02X>", i - 3);
        else
            snprintf(texts[i], sizeof texts[i], "%s", pieces[i - 259]);
        if (i >= 259) scores[i] = (float)-i;
    }
    gguf_write_string(&t->w, "tokenizer.ggml.model", "llama");
    gguf_write_strings(&t->w, "tokenizer.ggml.tokens", tokens, TINY_N_VOCAB);
    gguf_write_array(&t->w, "tokenizer.ggml.scores", GGUF_F32, scores, TINY_N_VOCAB);
    gguf_write_array(&t->w, "tokenizer.ggml.token_type", GGUF_I32, types, TINY_N_VOCAB);
    gguf_write_u32(&t->w, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(&t->w, "tokenizer.ggml.eos_token_id", TINY_EOS);
    gguf_write_bool(&t->w, "tokenizer.ggml.add_bos_token", true);
    gguf_write_bool(&t->w, "tokenizer.ggml.add_space_prefix", false);
}

static void layer(tiny *t, uint32_t i, bool gemma) {
    char name[64];
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%u.%s", i, suffix), name)
    float base = gemma ? 0.8f : 1;
    vector(t, NAME("attn_norm.weight"), N_EMBD, base, .2f);
    matrix(t, NAME("attn_q.weight"), N_HEADS * HEAD_DIM, N_EMBD);
    matrix(t, NAME("attn_k.weight"), N_KV_HEADS * HEAD_DIM, N_EMBD);
    matrix(t, NAME("attn_v.weight"), N_KV_HEADS * HEAD_DIM, N_EMBD);
    matrix(t, NAME("attn_output.weight"), N_EMBD, N_HEADS * HEAD_DIM);
    vector(t, NAME("ffn_norm.weight"), N_EMBD, base, .2f);
    matrix(t, NAME("ffn_gate.weight"), N_FF, N_EMBD);
    matrix(t, NAME("ffn_up.weight"), N_FF, N_EMBD);
    matrix(t, NAME("ffn_down.weight"), N_EMBD, N_FF);
    if (strcmp(t->arch, "qwen2") == 0) {
        vector(t, NAME("attn_q.bias"), N_HEADS * HEAD_DIM, 0, .5f);
        vector(t, NAME("attn_k.bias"), N_KV_HEADS * HEAD_DIM, 0, .5f);
        vector(t, NAME("attn_v.bias"), N_KV_HEADS * HEAD_DIM, 0, .5f);
    }
    if (strcmp(t->arch, "qwen3") == 0 || strcmp(t->arch, "gemma3") == 0) {
        vector(t, NAME("attn_q_norm.weight"), HEAD_DIM, base, .2f);
        vector(t, NAME("attn_k_norm.weight"), HEAD_DIM, base, .2f);
    }
    if (gemma) {
        vector(t, NAME("post_attention_norm.weight"), N_EMBD, base, .2f);
        vector(t, NAME("post_ffw_norm.weight"), N_EMBD, base, .2f);
    }
#undef NAME
}

char *tiny_model_write(const char *kind) {
    return tiny_model_write_cut(kind, UINT32_MAX);
}

char *tiny_model_write_cut(const char *kind, uint32_t max_layers) {
    tiny t = {.w.seed = strlen(kind)};
    size_t n_arch = strcspn(kind, "-");
    memcpy(t.arch, kind, n_arch);
    bool gemma = strncmp(t.arch, "gemma", 5) == 0;
    uint32_t n_layers = strcmp(kind, "gemma3") == 0 ? 7 : 3; /* of fewer than 6 none is full */
    if (n_layers > max_layers) n_layers = max_layers;
    gguf_write_string(&t.w, "general.architecture", t.arch);
    put_u32(&t, "block_count", n_layers);
    put_u32(&t, "embedding_length", N_EMBD);
    put_u32(&t, "feed_forward_length", N_FF);
    put_u32(&t, "context_length", TINY_N_CONTEXT);
    put_u32(&t, "attention.head_count", N_HEADS);
    put_u32(&t, "attention.head_count_kv", N_KV_HEADS);
    put_u32(&t, "attention.key_length", HEAD_DIM);
    put_u32(&t, "attention.value_length", HEAD_DIM);
    put_f32(&t, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (gemma) put_u32(&t, "attention.sliding_window", 10);
    if (strcmp(kind, "llama-yarn") == 0) {
        char key[96];
        gguf_write_string(&t.w, key_of(&t, "rope.scaling.type", key), "yarn");
        put_f32(&t, "rope.scaling.factor", 4);
        put_u32(&t, "rope.scaling.original_context_length", 32);
    }
    vocabulary(&t);
    matrix(&t, "token_embd.weight", TINY_N_VOCAB, N_EMBD);
    vector(&t, "output_norm.weight", N_EMBD, 1, .2f);
    if (!gemma) matrix(&t, "output.weight", TINY_N_VOCAB, N_EMBD);
    if (strcmp(kind, "llama-rope-freqs") == 0) vector(&t, "rope_freqs.weight", HEAD_DIM / 2, 2, 1);
    for (uint32_t i = 0; i < n_layers; i++) layer(&t, i, gemma);
    char *path = gguf_write_temp(&t.w);
    gguf_write_free(&t.w);
    return path;
}

char *tiny_llama_path;

int tiny_llama_setup(void **state) {
    (void)state;
    tiny_llama_path = tiny_model_write("llama");
    return 0;
}

int tiny_llama_teardown(void **state) {
    (void)state;
    unlink(tiny_llama_path);
    mem_free(tiny_llama_path);
    return 0;
}
