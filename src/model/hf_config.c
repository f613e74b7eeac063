/* model/hf_config: see hf_config.h. Keys and defaults: the configuration classes of transformers
 * (src/transformers/models/MODEL/configuration_MODEL.py). */
#include "model/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 32

/* Reads keys of one object. The first failure sticks. */
typedef struct {
    const json_t *object;
    ridge_error *err;
    ridge_status status;
} reader;

static ridge_status fail(reader *r, ridge_status code, const char *key, const char *what) {
    if (r->status != RIDGE_OK) return r->status;
    error_where(r->err, key);
    return r->status = RIDGE_FAIL(r->err, code, "%s: %s", key, what);
}

/* null is as good as absent. */
static const json_t *find(const reader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return json_is_null(v) ? NULL : v;
}

static uint32_t u32(reader *r, const char *key, uint32_t low, uint32_t high) {
    const json_t *v = find(r, key);
    char text[96];
    if (v == NULL) {
        fail(r, RIDGE_EFORMAT, key, "is missing");
    } else if (!json_is_integer(v)) {
        fail(r, RIDGE_EFORMAT, key, "must be an integer");
    } else if (json_integer_value(v) < low || json_integer_value(v) > high) {
        snprintf(text, sizeof text, "is %lld, must be between %u and %u",
                 (long long)json_integer_value(v), low, high);
        fail(r, RIDGE_EFORMAT, key, text);
    } else {
        return (uint32_t)json_integer_value(v);
    }
    return low;
}

static uint32_t u32_or(reader *r, const char *key, uint32_t low, uint32_t high, uint32_t other) {
    return find(r, key) != NULL ? u32(r, key, low, high) : other;
}

static bool boolean_or(reader *r, const char *key, bool other) {
    const json_t *v = find(r, key);
    if (v != NULL && !json_is_boolean(v)) fail(r, RIDGE_EFORMAT, key, "must be true or false");
    return v != NULL ? json_is_true(v) : other;
}

static float number_or(reader *r, const char *key, double low, double high, double other) {
    const json_t *v = find(r, key);
    double x = v != NULL ? json_number_value(v) : other;
    char text[96];
    if (v != NULL && !json_is_number(v)) {
        fail(r, RIDGE_EFORMAT, key, "must be a number");
    } else if (!(x >= low && x <= high)) {
        snprintf(text, sizeof text, "is %g, must be between %g and %g", x, low, high);
        fail(r, RIDGE_EFORMAT, key, text);
    }
    return (float)x;
}

/* Windows ---------------------------------------------------------------------------------------
 */

/* layer_types names each layer; ours is a pattern: a full layer after so many of a window. */
static void read_layer_types(reader *r, const json_t *types, model_config *c) {
    uint32_t n = (uint32_t)json_array_size(types);
    if (!json_is_array(types) || n != c->n_layers) {
        fail(r, RIDGE_EFORMAT, "layer_types", "must name each of the num_hidden_layers layers");
        return;
    }
    c->window_pattern = c->n_layers + 1; /* none is full */
    for (uint32_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(types, i));
        bool full = name != NULL && strcmp(name, "full_attention") == 0;
        if (!full && (name == NULL || strcmp(name, "sliding_attention") != 0)) {
            fail(r, RIDGE_EUNSUPPORTED, "layer_types",
                 "known are full_attention and sliding_attention");
            return;
        }
        if (full && c->window_pattern > c->n_layers) c->window_pattern = i + 1;
        if (full == (model_layer_window(c, i) == 0)) continue;
        fail(r, RIDGE_EUNSUPPORTED, "layer_types",
             "supported is a full layer after every so many with a window");
        return;
    }
}

/* every: layer i is full when i % every == every - 1, where the file doesn't say; 0: all windows */
static void read_windows(reader *r, model_config *c, uint32_t window, uint32_t every) {
    if (!boolean_or(r, "use_sliding_window", true)) return;
    c->window = u32_or(r, "sliding_window", 1, MODEL_MAX_CONTEXT, window);
    if (c->window == 0) return;
    c->window_pattern = every > 0 ? every : c->n_layers + 1;
    c->window_pattern = u32_or(r, "sliding_window_pattern", 1, MODEL_MAX_LAYERS, c->window_pattern);
    if (find(r, "layer_types") != NULL) read_layer_types(r, find(r, "layer_types"), c);
}

/* Precision -------------------------------------------------------------------------------------
 */

/* quantization_config: modules_to_not_convert is taken to be what each method leaves by default. */
static void read_published(reader *r, const json_t *root, model_config *c) {
    const json_t *q = json_object_get(root, "quantization_config"); /* never within text_config */
    if (q == NULL || json_is_null(q)) return;
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (method == NULL)
        fail(r, RIDGE_EFORMAT, "quantization_config", "must be an object with a quant_method");
    else if (strcmp(method, "fp8") == 0)
        c->published = MODEL_PUBLISHED_FP8;
    else if (strcmp(method, "mxfp4") == 0)
        c->published = MODEL_PUBLISHED_MXFP4;
    else
        c->published = MODEL_PUBLISHED_OTHER;
    if (method != NULL) snprintf(c->published_as, sizeof c->published_as, "%s", method);
}

/* Families --------------------------------------------------------------------------------------
 */

static void read_llama(reader *r, model_config *c) {
    (void)c;
    if (boolean_or(r, "mlp_bias", false))
        fail(r, RIDGE_EUNSUPPORTED, "mlp_bias", "biases of the feed-forward");
}

static void read_mistral(reader *r, model_config *c) {
    read_windows(r, c, 0, 0);
}

static void read_qwen2(reader *r, model_config *c) {
    c->qkv_bias = true;
    c->out_bias = false;
    if (!boolean_or(r, "use_sliding_window", false)) return;
    if (find(r, "layer_types") == NULL && find(r, "sliding_window") != NULL)
        fail(r, RIDGE_EUNSUPPORTED, "use_sliding_window", "windows of some layers of qwen2");
    read_windows(r, c, 0, 0);
}

static void read_qwen3(reader *r, model_config *c) {
    read_qwen2(r, c);
    c->qkv_bias = c->out_bias = boolean_or(r, "attention_bias", false);
    c->qk_norm = true;
}

static void read_gemma2(reader *r, model_config *c) {
    c->gelu = c->post_norms = true;
    c->embed_scale = sqrtf((float)c->n_embd);
    c->attn_softcap = number_or(r, "attn_logit_softcapping", 0, 1e6, 0);
    c->final_softcap = number_or(r, "final_logit_softcapping", 0, 1e6, 0);
    read_windows(r, c, 4096, 2);
}

static void read_gemma3(reader *r, model_config *c) {
    c->gelu = c->post_norms = c->qk_norm = true;
    c->embed_scale = sqrtf((float)c->n_embd);
    read_windows(r, c, 4096, 6);
}

/* n experts of so many rows stand in one matrix. */
static void check_rows(reader *r, const char *key, uint64_t n, uint64_t rows) {
    char text[96];
    if (n * rows <= MODEL_MAX_EXPERT_ROWS) return;
    snprintf(text, sizeof text, "is %llu: of %llu rows each at most %llu", (unsigned long long)n,
             (unsigned long long)rows, (unsigned long long)(MODEL_MAX_EXPERT_ROWS / rows));
    fail(r, RIDGE_EFORMAT, key, text);
}

static void read_experts(reader *r, model_config *c, const char *n_experts, const char *n_ff) {
    c->moe.n_experts = u32(r, n_experts, 1, MODEL_MAX_EXPERTS);
    c->moe.top_k = u32(r, "num_experts_per_tok", 1, c->moe.n_experts);
    c->moe.n_ff = u32(r, n_ff, 1, MODEL_MAX_WIDTH);
    check_rows(r, n_experts, c->moe.n_experts, c->moe.n_ff);
    check_rows(r, n_experts, c->moe.n_experts, c->n_embd);
}

static void read_mixtral(reader *r, model_config *c) {
    read_windows(r, c, 0, 0);
    read_experts(r, c, "num_local_experts", "intermediate_size");
}

/* Which layers are sparse: ours are all after the first few. */
static void check_sparse_layers(reader *r) {
    const json_t *dense = find(r, "mlp_only_layers");
    if (dense != NULL && json_array_size(dense) > 0)
        fail(r, RIDGE_EUNSUPPORTED, "mlp_only_layers", "dense layers among sparse ones");
    if (u32_or(r, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1) != 1)
        fail(r, RIDGE_EUNSUPPORTED, "decoder_sparse_step", "dense layers among sparse ones");
    if (u32_or(r, "moe_layer_freq", 1, MODEL_MAX_LAYERS, 1) != 1)
        fail(r, RIDGE_EUNSUPPORTED, "moe_layer_freq", "dense layers among sparse ones");
}

static void read_qwen2_moe(reader *r, model_config *c) {
    read_qwen2(r, c);
    check_sparse_layers(r);
    read_experts(r, c, "num_experts", "moe_intermediate_size");
    c->moe.n_ff_shared = u32(r, "shared_expert_intermediate_size", 1, MODEL_MAX_WIDTH);
    c->moe.shared_gate = true;
}

static void read_qwen3_moe(reader *r, model_config *c) {
    read_qwen3(r, c);
    check_sparse_layers(r);
    read_experts(r, c, "num_experts", "moe_intermediate_size");
}

static void read_deepseek(reader *r, model_config *c) {
    check_sparse_layers(r);
    c->latent.rank = u32(r, "kv_lora_rank", 1, MODEL_MAX_WIDTH);
    c->latent.q_rank = u32_or(r, "q_lora_rank", 1, MODEL_MAX_WIDTH, 0);
    c->latent.n_nope = u32(r, "qk_nope_head_dim", 1, MODEL_MAX_HEAD_DIM);
    c->latent.n_rope = u32(r, "qk_rope_head_dim", 2, MODEL_MAX_HEAD_DIM);
    c->latent.n_value = u32(r, "v_head_dim", 1, MODEL_MAX_HEAD_DIM);
    if (c->latent.n_rope % 2 != 0)
        fail(r, RIDGE_EFORMAT, "qk_rope_head_dim", "must be even: pairs of columns rotate");
    c->rope.n_rot = c->latent.n_rope;
    c->n_kv_heads = c->n_heads;
    if (find(r, "n_routed_experts") == NULL) return;
    read_experts(r, c, "n_routed_experts", "moe_intermediate_size");
    uint32_t n_shared = u32_or(r, "n_shared_experts", 0, MODEL_MAX_EXPERTS, 0);
    check_rows(r, "n_shared_experts", n_shared, c->moe.n_ff);
    c->moe.n_ff_shared = n_shared * c->moe.n_ff;
    c->moe.n_dense_layers = u32_or(r, "first_k_dense_replace", 0, c->n_layers, 0);
    const char *method = json_string_value(find(r, "topk_method"));
    c->moe.router_bias = method != NULL && strcmp(method, "noaux_tc") == 0;
}

static void read_gpt_oss(reader *r, model_config *c) {
    read_windows(r, c, 128, 2);
    read_experts(r, c, "num_local_experts", "intermediate_size");
    c->qkv_bias = c->out_bias = boolean_or(r, "attention_bias", true);
    c->sinks = c->moe.router_bias = c->moe.bias = true;
}

/* tied: what the class has where the file says nothing */
typedef struct {
    const char *type;
    model_arch arch;
    bool tied;
    void (*read)(reader *r, model_config *c);
} family;

static const family families[] = {
    {"llama", ARCH_LLAMA, false, read_llama},
    {"mistral", ARCH_LLAMA, false, read_mistral},
    {"mixtral", ARCH_LLAMA, false, read_mixtral},
    {"qwen2", ARCH_QWEN2, false, read_qwen2},
    {"qwen2_moe", ARCH_QWEN2_MOE, false, read_qwen2_moe},
    {"qwen3", ARCH_QWEN3, false, read_qwen3},
    {"qwen3_moe", ARCH_QWEN3_MOE, false, read_qwen3_moe},
    {"gemma2", ARCH_GEMMA2, true, read_gemma2},
    {"gemma3_text", ARCH_GEMMA3, true, read_gemma3},
    {"deepseek_v2", ARCH_DEEPSEEK2, false, read_deepseek},
    {"deepseek_v3", ARCH_DEEPSEEK2, false, read_deepseek},
    {"kimi_k2", ARCH_DEEPSEEK2, false, read_deepseek},
    {"gpt_oss", ARCH_GPT_OSS, false, read_gpt_oss},
};
#define N_FAMILIES (sizeof families / sizeof *families)

const char *hf_config_types(void) {
    return "llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma2, gemma3_text, "
           "deepseek_v2, deepseek_v3, kimi_k2, gpt_oss";
}

static const family *find_family(reader *r) {
    const char *type = json_string_value(find(r, "model_type"));
    if (type == NULL) {
        fail(r, RIDGE_EFORMAT, "model_type", "is missing or no string");
        return NULL;
    }
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].type, type) == 0) return &families[i];
    error_where(r->err, "model_type");
    r->status =
        RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED, "model_type '%.64s' is not known; known are %s",
                   type, hf_config_types());
    return NULL;
}

static void read_heads(reader *r, model_config *c) {
    bool gemma3 = c->arch == ARCH_GEMMA3; /* whose files leave out what the class has */
    c->n_heads = gemma3 ? u32_or(r, "num_attention_heads", 1, MODEL_MAX_HEADS, 8)
                        : u32(r, "num_attention_heads", 1, MODEL_MAX_HEADS);
    c->n_kv_heads = u32_or(r, "num_key_value_heads", 1, MODEL_MAX_HEADS, gemma3 ? 4 : c->n_heads);
    if (r->status != RIDGE_OK) return;
    c->head_dim =
        u32_or(r, "head_dim", 2, MODEL_MAX_HEAD_DIM, gemma3 ? 256 : c->n_embd / c->n_heads);
    bool implied = find(r, "head_dim") == NULL && !gemma3 && c->arch != ARCH_DEEPSEEK2;
    if (implied && c->n_embd % c->n_heads != 0)
        fail(r, RIDGE_EFORMAT, "hidden_size", "must be a multiple of num_attention_heads");
    if (c->n_heads % c->n_kv_heads != 0)
        fail(r, RIDGE_EFORMAT, "num_attention_heads", "must be a multiple of num_key_value_heads");
    if (c->head_dim < 2 || c->head_dim > MODEL_MAX_HEAD_DIM)
        fail(r, RIDGE_EFORMAT, "num_attention_heads", "leaves heads too small or too large");
    if (c->head_dim % 2 != 0 && c->arch != ARCH_DEEPSEEK2)
        fail(r, RIDGE_EFORMAT, "head_dim", "must be even: pairs of columns rotate");
}

/* What positions stretched by YaRN (arXiv 2309.00071) reach, where that is more than the file says:
 * Qwen2.5's keep 32,768 beside a factor of 4. */
static void read_context(reader *r, model_config *c) {
    c->n_context = u32_or(r, "max_position_embeddings", 1, MODEL_MAX_CONTEXT, 131072);
    reader scaling = {.object = find(r, "rope_scaling"), .err = r->err, .status = r->status};
    const json_t *type = find(&scaling, "rope_type");
    if (type == NULL) type = find(&scaling, "type");
    if (json_string_value(type) == NULL || strcmp(json_string_value(type), "yarn") != 0) return;
    uint32_t from =
        u32_or(&scaling, "original_max_position_embeddings", 1, MODEL_MAX_CONTEXT, c->n_context);
    double reach = from * (double)number_or(&scaling, "factor", 1, MODEL_MAX_CONTEXT / from, 1);
    if (reach > c->n_context) c->n_context = (uint32_t)reach;
    r->status = scaling.status;
}

static void read_shape(reader *r, model_config *c) {
    c->n_layers = u32(r, "num_hidden_layers", 1, MODEL_MAX_LAYERS);
    c->n_embd = u32(r, "hidden_size", 1, MODEL_MAX_WIDTH);
    c->n_ff = u32(r, "intermediate_size", 1, MODEL_MAX_WIDTH);
    c->n_vocab = c->arch == ARCH_GEMMA3 ? u32_or(r, "vocab_size", 1, MODEL_MAX_VOCAB, 262208)
                                        : u32(r, "vocab_size", 1, MODEL_MAX_VOCAB);
    read_context(r, c);
    c->norm_eps = number_or(r, "rms_norm_eps", 0, 1, 1e-6);
    read_heads(r, c);
    if (r->status != RIDGE_OK) return;
    c->rope = (model_rope){.factor = 1, .attn_factor = 1, .neox = true, .n_rot = c->head_dim};
    c->rope.base = number_or(r, "rope_theta", 1, 1e12, 10000);
    c->rope.base_window = number_or(r, "rope_local_base_freq", 1, 1e12, (double)c->rope.base);
    c->attn_scale = 1 / sqrtf((float)c->head_dim);
    bool bias = boolean_or(r, "attention_bias", false);
    c->qkv_bias = c->out_bias = bias;
}

static ridge_status read_root(model_config *out, const json_t *root, ridge_error *err) {
    model_config c = {.embed_scale = 1};
    reader r = {.object = root, .err = err};
    const json_t *text = json_object_get(root, "text_config"); /* of models with images */
    if (json_is_object(text)) r.object = text;
    c.text_part = r.object != root;
    const family *f = find_family(&r);
    if (f == NULL) return r.status;
    c.arch = f->arch;
    read_shape(&r, &c);
    c.tied = boolean_or(&r, "tie_word_embeddings", f->tied);
    if (r.status == RIDGE_OK) f->read(&r, &c);
    if (r.status == RIDGE_OK) read_published(&r, root, &c);
    if (r.status == RIDGE_OK) *out = c;
    return r.status;
}

/* jansson recurses once per level. */
static bool too_deep(const char *json, size_t n) {
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string && json[i] == '\\')
            i++;
        else if (json[i] == '"')
            in_string = !in_string;
        else if (!in_string && (json[i] == '{' || json[i] == '[') && ++depth > MAX_DEPTH)
            return true;
        else if (!in_string && (json[i] == '}' || json[i] == ']') && depth > 0)
            depth--;
    }
    return false;
}

ridge_status hf_config_read(model_config *out, const char *json, size_t n, ridge_error *err) {
    json_error_t why;
    if (n > HF_CONFIG_MAX_BYTES)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "config of %zu bytes, at most %u", n,
                          HF_CONFIG_MAX_BYTES);
    if (too_deep(json, n))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "config nested deeper than %d levels", MAX_DEPTH);
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "config: line %d: %s", why.line, why.text);
    ridge_status status = json_is_object(root)
                              ? read_root(out, root, err)
                              : RIDGE_FAIL(err, RIDGE_EFORMAT, "config: must be an object");
    json_decref(root);
    return status;
}
