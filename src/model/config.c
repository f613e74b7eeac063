/* model/config: see config.h. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const arch_names[] = {
    [ARCH_LLAMA] = "llama",        [ARCH_QWEN2] = "qwen2",         [ARCH_QWEN3] = "qwen3",
    [ARCH_GEMMA2] = "gemma2",      [ARCH_GEMMA3] = "gemma3",       [ARCH_QWEN2_MOE] = "qwen2moe",
    [ARCH_QWEN3_MOE] = "qwen3moe", [ARCH_DEEPSEEK2] = "deepseek2", [ARCH_GPT_OSS] = "gpt-oss"};
#define N_FILE_ARCHS (ARCH_GEMMA3 + 1) /* those that files are read of */

const char *model_arch_names(void) {
    return "llama (and mistral), qwen2, qwen3, gemma2, gemma3";
}

uint32_t model_layer_window(const model_config *c, uint32_t layer) {
    bool full = c->window_pattern == 0 || layer % c->window_pattern == c->window_pattern - 1;
    return full ? 0 : c->window;
}

/* Reads keys of one architecture: "<arch>.<name>". The first failure sticks. */
typedef struct {
    const gguf *g;
    const char *arch;
    ridge_error *err;
    ridge_status status;
} reader;

static const char *key_of(const reader *r, const char *name, char key[static 128]) {
    snprintf(key, 128, "%s.%s", r->arch, name);
    return key;
}

static bool has(const reader *r, const char *name) {
    char key[128];
    key_of(r, name, key);
    for (size_t i = 0; i < gguf_n_keys(r->g); i++) {
        gguf_type type;
        if (strcmp(gguf_key(r->g, i, &type), key) == 0) return true;
    }
    return false;
}

static void fail(reader *r, const char *name, const char *what) {
    char key[128];
    if (r->status != RIDGE_OK) return;
    error_where(r->err, key_of(r, name, key));
    r->status = RIDGE_FAIL(r->err, RIDGE_EFORMAT, "%s: %s", key, what);
}

static bool get_u32(reader *r, const char *name, uint32_t low, uint32_t high, uint32_t *out) {
    char key[128], text[96];
    uint64_t v;
    if (!gguf_get_u64(r->g, key_of(r, name, key), &v)) {
        fail(r, name, has(r, name) ? "must be one integer >= 0" : "is missing");
        return false;
    }
    if (v < low || v > high) {
        snprintf(text, sizeof text, "is %llu, must be between %u and %u", (unsigned long long)v,
                 low, high);
        fail(r, name, text);
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

static uint32_t u32(reader *r, const char *name, uint32_t low, uint32_t high) {
    uint32_t v = low;
    return get_u32(r, name, low, high, &v) ? v : low;
}

static uint32_t u32_or(reader *r, const char *name, uint32_t low, uint32_t high, uint32_t other) {
    return has(r, name) ? u32(r, name, low, high) : other;
}

static float f32(reader *r, const char *name, double low, double high) {
    char key[128], text[96];
    double v;
    if (!gguf_get_f64(r->g, key_of(r, name, key), &v)) {
        fail(r, name, has(r, name) ? "must be a number" : "is missing");
        return (float)low;
    }
    if (!(v >= low && v <= high)) {
        snprintf(text, sizeof text, "is %g, must be between %g and %g", v, low, high);
        fail(r, name, text);
        return (float)low;
    }
    return (float)v;
}

static float f32_or(reader *r, const char *name, double low, double high, float other) {
    return has(r, name) ? f32(r, name, low, high) : other;
}

static void read_scaling(reader *r, model_rope *rope, uint32_t n_context) {
    static const struct {
        const char *name;
        rope_scaling scaling;
    } kinds[] = {{"none", ROPE_NONE},
                 {"", ROPE_NONE},
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN}};
    char key[128], text[128];
    gguf_string name = {"", 0};
    if (gguf_get_string(r->g, key_of(r, "rope.scaling.type", key), &name)) {
        size_t i = 0, n = sizeof kinds / sizeof *kinds;
        while (i < n && (strlen(kinds[i].name) != name.len ||
                         memcmp(kinds[i].name, name.data, name.len) != 0))
            i++;
        if (i == n) {
            snprintf(text, sizeof text, "is '%.*s', supported are none, linear, llama3 and yarn",
                     (int)(name.len < 40 ? name.len : 40), name.data);
            fail(r, "rope.scaling.type", text);
            return;
        }
        rope->scaling = kinds[i].scaling;
    } else if (has(r, "rope.scale_linear")) { /* files from before rope.scaling */
        rope->factor = f32(r, "rope.scale_linear", 1e-3, 1e6);
        rope->scaling = rope->factor != 1 ? ROPE_LINEAR : ROPE_NONE;
        return;
    }
    if (rope->scaling == ROPE_NONE) return;
    rope->factor = f32(r, "rope.scaling.factor", 1e-3, 1e6);
    rope->attn_factor = f32_or(r, "rope.scaling.attn_factor", 0, 1e3, 1);
    rope->n_context_original =
        u32_or(r, "rope.scaling.original_context_length", 1, MODEL_MAX_CONTEXT, n_context);
    rope->low_freq_factor = f32_or(r, "rope.scaling.low_freq_factor", 1e-3, 1e6, 1);
    rope->high_freq_factor = f32_or(r, "rope.scaling.high_freq_factor", 1e-3, 1e6, 4);
    if (rope->high_freq_factor <= rope->low_freq_factor)
        fail(r, "rope.scaling.high_freq_factor", "must be above low_freq_factor");
    rope->ext_factor = f32_or(r, "rope.scaling.yarn_ext_factor", 0, 1, 1);
    rope->beta_fast = f32_or(r, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
    rope->beta_slow = f32_or(r, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
}

static void read_rope(reader *r, model_config *c) {
    model_rope *rope = &c->rope;
    *rope = (model_rope){.factor = 1, .attn_factor = 1, .neox = c->arch != ARCH_LLAMA};
    rope->n_rot = u32_or(r, "rope.dimension_count", 2, c->head_dim, c->head_dim);
    if (rope->n_rot % 2 != 0) fail(r, "rope.dimension_count", "must be even");
    rope->base = f32_or(r, "rope.freq_base", 1, 1e12, 10000);
    float local = c->arch == ARCH_GEMMA3 ? 10000 : rope->base;
    rope->base_window = f32_or(r, "rope.freq_base_swa", 1, 1e12, local);
    read_scaling(r, rope, c->n_context);
}

static void read_shape(reader *r, model_config *c) {
    c->n_layers = u32(r, "block_count", 1, MODEL_MAX_LAYERS);
    c->n_embd = u32(r, "embedding_length", 1, MODEL_MAX_WIDTH);
    c->n_ff = u32(r, "feed_forward_length", 1, MODEL_MAX_WIDTH);
    c->n_context = u32(r, "context_length", 1, MODEL_MAX_CONTEXT);
    c->n_heads = u32(r, "attention.head_count", 1, MODEL_MAX_HEADS);
    c->n_kv_heads = u32_or(r, "attention.head_count_kv", 1, MODEL_MAX_HEADS, c->n_heads);
    if (r->status != RIDGE_OK) return;
    if (c->n_heads % c->n_kv_heads != 0)
        fail(r, "attention.head_count", "must be a multiple of head_count_kv");
    c->head_dim = u32_or(r, "attention.key_length", 2, MODEL_MAX_HEAD_DIM, c->n_embd / c->n_heads);
    if (!has(r, "attention.key_length") && c->n_embd % c->n_heads != 0)
        fail(r, "embedding_length",
             "must be a multiple of attention.head_count, or attention.key_length be given");
    if (c->head_dim < 2 || c->head_dim > MODEL_MAX_HEAD_DIM)
        fail(r, "attention.head_count", "leaves heads too small or too large");
    if (u32_or(r, "attention.value_length", 2, MODEL_MAX_HEAD_DIM, c->head_dim) != c->head_dim)
        fail(r, "attention.value_length", "must equal attention.key_length");
    if (u32_or(r, "expert_count", 0, UINT32_MAX, 0) > 0)
        fail(r, "expert_count", "mixtures of experts are not supported");
    c->norm_eps = f32(r, "attention.layer_norm_rms_epsilon", 0, 1);
}

/* gemma: windows, caps, scaled embedding. Its two 27B models scale queries by their width per head
 * instead of by head_dim; the file doesn't say so, their depth does. */
static void read_gemma(reader *r, model_config *c) {
    bool second = c->arch == ARCH_GEMMA2, wide = c->n_layers == (second ? 46 : 62);
    c->gelu = c->post_norms = true;
    c->qk_norm = !second;
    c->embed_scale = sqrtf((float)c->n_embd);
    c->window = u32_or(r, "attention.sliding_window", 0, MODEL_MAX_CONTEXT, second ? 4096 : 0);
    c->window_pattern = c->window == 0 ? 0 : second ? 2 : 6;
    c->attn_softcap = f32_or(r, "attn_logit_softcapping", 0, 1e6, second ? 50 : 0);
    c->final_softcap = f32_or(r, "final_logit_softcapping", 0, 1e6, second ? 30 : 0);
    if (wide) c->attn_scale = 1.0f / sqrtf((float)c->n_embd / (float)c->n_heads);
}

static ridge_status find_arch(const gguf *g, model_arch *out, ridge_error *err) {
    gguf_string name;
    if (!gguf_get_string(g, "general.architecture", &name))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "general.architecture: is missing or no string");
    for (size_t i = 0; i < N_FILE_ARCHS; i++)
        if (strlen(arch_names[i]) == name.len && memcmp(arch_names[i], name.data, name.len) == 0) {
            *out = (model_arch)i;
            return RIDGE_OK;
        }
    error_where(err, "general.architecture");
    return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED,
                      "architecture '%.*s' is not supported; supported are %s",
                      (int)(name.len < 64 ? name.len : 64), name.data, model_arch_names());
}

ridge_status model_config_read(model_config *out, const gguf *g, ridge_error *err) {
    model_config c = {.embed_scale = 1};
    RIDGE_TRY(find_arch(g, &c.arch, err));
    reader r = {.g = g, .arch = arch_names[c.arch], .err = err};
    read_shape(&r, &c);
    if (r.status != RIDGE_OK) return r.status;
    const gguf_tensor *embedding = gguf_tensor_find(g, "token_embd.weight");
    if (embedding == NULL || embedding->n_dims != 2 || embedding->dims[1] < 1 ||
        embedding->dims[1] > MODEL_MAX_VOCAB)
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "token_embd.weight: missing or no matrix; is this a vocabulary only?");
    c.n_vocab = (uint32_t)embedding->dims[1];
    c.tied = gguf_tensor_find(g, "output.weight") == NULL;
    c.qkv_bias = c.arch == ARCH_QWEN2;
    c.qk_norm = c.arch == ARCH_QWEN3;
    c.attn_scale = 1.0f / sqrtf((float)c.head_dim);
    if (c.arch == ARCH_GEMMA2 || c.arch == ARCH_GEMMA3) read_gemma(&r, &c);
    c.attn_scale = f32_or(&r, "attention.scale", 1e-6, 1e3, c.attn_scale);
    if (r.status == RIDGE_OK) read_rope(&r, &c);
    if (r.status == RIDGE_OK) *out = c;
    return r.status;
}

/* Rope. */

/* The pair whose wavelength fits the original context n_rotations times. */
static double yarn_pair(const model_rope *r, double n_rotations) {
    double wavelengths = (double)r->n_context_original / (n_rotations * 2 * M_PI);
    return r->n_rot * log(wavelengths) / (2 * log((double)r->base));
}

/* 1 where the frequency is kept, 0 where it is interpolated, a ramp between (Peng et al., 2023). */
static double yarn_kept(const model_rope *r, double pair) {
    double low = fmax(0, floor(yarn_pair(r, (double)r->beta_fast)));
    double high = fmin(r->n_rot - 1.0, ceil(yarn_pair(r, (double)r->beta_slow)));
    double y = (pair - low) / fmax(0.001, high - low);
    return (1 - fmin(1, fmax(0, y))) * (double)r->ext_factor;
}

/* Wavelengths beyond the original context are stretched, short ones kept (Llama 3.1). */
static double llama3_scaled(const model_rope *r, double f) {
    double turns = (double)r->n_context_original * f / (2 * M_PI);
    double low = (double)r->low_freq_factor, high = (double)r->high_freq_factor;
    double kept = fmin(1, fmax(0, (turns - low) / (high - low)));
    return kept * f + (1 - kept) * f / (double)r->factor;
}

void model_rope_frequencies(const model_rope *r, bool window, const float *factors, float *inv_freq,
                            float *mscale) {
    rope_scaling scaling = window ? ROPE_NONE : r->scaling;
    double base = (double)(window ? r->base_window : r->base), factor = (double)r->factor;
    for (uint32_t i = 0; i < r->n_rot / 2; i++) {
        double f = pow(base, -2.0 * i / r->n_rot);
        if (factors != NULL && !window) f /= (double)factors[i];
        if (scaling == ROPE_LINEAR) f /= factor;
        if (scaling == ROPE_LLAMA3 && factors == NULL) f = llama3_scaled(r, f);
        if (scaling == ROPE_YARN) {
            double kept = yarn_kept(r, i);
            f = kept * f + (1 - kept) * f / factor;
        }
        inv_freq[i] = (float)f;
    }
    *mscale = scaling == ROPE_YARN ? r->attn_factor * (1 + 0.1f * logf(r->factor)) : 1;
}
