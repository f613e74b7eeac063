/* model/hf_config: config.json to shapes; each wrong value named; what the classes of transformers
 * have where files say nothing. */
#include "unit.h"
#include <stdio.h>
#include <string.h>

#include "model/hf_config.h"

static ridge_status read_json(model_config *c, const char *json, ridge_error *err) {
    return hf_config_read(c, json, strlen(json), err);
}

#define LLAMA                                                                                      \
    "\"vocab_size\": 320, \"hidden_size\": 64, \"intermediate_size\": 128, "                       \
    "\"num_hidden_layers\": 6, \"num_attention_heads\": 4"

static model_config read_ok(const char *json) {
    model_config c;
    ridge_error err = {0};
    if (read_json(&c, json, &err) != RIDGE_OK) fail_msg("%s: %s", json, err.text);
    return c;
}

static void test_llama(void **state) {
    (void)state;
    model_config c = read_ok("{\"model_type\": \"llama\", " LLAMA "}");
    assert_int_equal(c.n_vocab, 320);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_false(c.tied || c.qkv_bias || c.qk_norm);
    assert_int_equal(c.moe.n_experts, 0);
    assert_int_equal(c.latent.rank, 0);
    c = read_ok("{\"model_type\": \"llama\", " LLAMA ", \"num_key_value_heads\": 2, "
                "\"head_dim\": 32, \"attention_bias\": true, \"tie_word_embeddings\": true}");
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 32);
    assert_true(c.tied && c.qkv_bias && c.out_bias);
    c = read_ok("{\"model_type\": \"qwen2\", " LLAMA ", \"sliding_window\": 32, "
                "\"attention_bias\": true}"); /* its class has biases of its own in any case */
    assert_true(c.qkv_bias && !c.out_bias);
    assert_int_equal(c.window, 0); /* use_sliding_window is false unless said */
}

/* Qwen2.5-7B-Instruct's README: 131,072 tokens with the YaRN that it says to add; DeepSeek-V3 and
 * Llama 3.1 have the whole context beside what stretches it. */
static void test_contexts(void **state) {
    (void)state;
    static const struct {
        const char *members;
        uint32_t context;
    } cases[] = {
        {"", 131072},
        {", \"max_position_embeddings\": 32768, \"rope_scaling\": {\"factor\": 4.0, "
         "\"original_max_position_embeddings\": 32768, \"type\": \"yarn\"}",
         131072},
        {", \"max_position_embeddings\": 32768, \"rope_scaling\": {\"rope_type\": \"yarn\", "
         "\"factor\": 4}",
         131072},
        {", \"max_position_embeddings\": 163840, \"rope_scaling\": {\"factor\": 40, "
         "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}",
         163840},
        {", \"max_position_embeddings\": 131072, \"rope_scaling\": {\"factor\": 8.0, "
         "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
         131072},
        {", \"max_position_embeddings\": 4096, \"rope_scaling\": null", 4096},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[512];
        snprintf(json, sizeof json, "{\"model_type\": \"llama\", " LLAMA "%s}", cases[i].members);
        assert_int_equal(read_ok(json).n_context, cases[i].context);
    }
}

/* layers with a window, as letters: f is full */
static void check_windows(const char *json, const char *layers, uint32_t window) {
    model_config c = read_ok(json);
    assert_int_equal(c.n_layers, strlen(layers));
    for (uint32_t i = 0; i < c.n_layers; i++)
        assert_int_equal(model_layer_window(&c, i), layers[i] == 'f' ? 0 : window);
}

#define TYPES "\"sliding_attention\", \"full_attention\""

static void test_windows(void **state) {
    (void)state;
    check_windows("{\"model_type\": \"mistral\", " LLAMA ", \"sliding_window\": 32}", "wwwwww", 32);
    check_windows("{\"model_type\": \"mistral\", " LLAMA ", \"sliding_window\": null}", "ffffff",
                  0);
    check_windows("{\"model_type\": \"gemma2\", " LLAMA ", \"sliding_window\": 8}", "wfwfwf", 8);
    check_windows("{\"model_type\": \"gemma3_text\", " LLAMA ", \"sliding_window\": 8}", "wwwwwf",
                  8);
    check_windows("{\"model_type\": \"gemma3_text\", " LLAMA ", \"sliding_window\": 8, "
                  "\"sliding_window_pattern\": 3}",
                  "wwfwwf", 8);
    check_windows("{\"model_type\": \"gpt_oss\", " LLAMA ", \"num_local_experts\": 4, "
                  "\"num_experts_per_tok\": 2, \"layer_types\": [" TYPES ", " TYPES ", " TYPES "]}",
                  "wfwfwf", 128);
    model_config c;
    ridge_error err = {0};
    assert_int_equal(read_json(&c,
                               "{\"model_type\": \"mistral\", " LLAMA ", \"sliding_window\": 32, "
                               "\"layer_types\": [\"full_attention\", " TYPES ", " TYPES
                               ", \"full_attention\"]}",
                               &err),
                     RIDGE_EUNSUPPORTED);
    assert_string_equal(err.where, "layer_types");
}

/* google/gemma-3-4b-it leaves out its heads and vocabulary, and has images beside the text. */
static void test_text_of_a_model_with_images(void **state) {
    (void)state;
    model_config c =
        read_ok("{\"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 2560, "
                "\"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", "
                "\"num_hidden_layers\": 34, \"sliding_window\": 1024}}");
    assert_int_equal(c.n_vocab, 262208);
    assert_true(c.text_part && !read_ok("{\"model_type\": \"llama\", " LLAMA "}").text_part);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 256);
    assert_true(c.tied);
}

static void test_experts(void **state) {
    (void)state;
    model_config c = read_ok("{\"model_type\": \"qwen2_moe\", " LLAMA ", \"num_experts\": 60, "
                             "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 32, "
                             "\"shared_expert_intermediate_size\": 96}");
    assert_int_equal(c.moe.n_experts, 60);
    assert_int_equal(c.moe.top_k, 4);
    assert_int_equal(c.moe.n_ff, 32);
    assert_int_equal(c.moe.n_ff_shared, 96);
    assert_true(c.moe.shared_gate);
    c = read_ok("{\"model_type\": \"deepseek_v3\", " LLAMA ", \"kv_lora_rank\": 32, "
                "\"q_lora_rank\": null, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
                "\"v_head_dim\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                "\"moe_intermediate_size\": 32, \"n_shared_experts\": 2, "
                "\"first_k_dense_replace\": 3, \"topk_method\": \"noaux_tc\"}");
    assert_int_equal(c.latent.rank, 32);
    assert_int_equal(c.latent.q_rank, 0);
    assert_int_equal(c.moe.n_ff_shared, 64);
    assert_int_equal(c.moe.n_dense_layers, 3);
    assert_true(c.moe.router_bias);
}

#define LATENT(n_rope)                                                                             \
    "{\"model_type\": \"deepseek_v2\", " LLAMA ", \"kv_lora_rank\": 32, "                          \
    "\"qk_nope_head_dim\": 8, \"v_head_dim\": 8, \"qk_rope_head_dim\": " #n_rope

static void test_how_weights_were_published(void **state) {
    (void)state;
    static const struct {
        const char *json;
        model_published published;
    } cases[] = {
        {"", MODEL_PUBLISHED_16},
        {", \"quantization_config\": null", MODEL_PUBLISHED_16},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\"}",
         MODEL_PUBLISHED_FP8},
        {", \"quantization_config\": {\"quant_method\": \"mxfp4\"}", MODEL_PUBLISHED_MXFP4},
        {", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}",
         MODEL_PUBLISHED_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[400];
        snprintf(json, sizeof json, "{\"model_type\": \"llama\", " LLAMA "%s}", cases[i].json);
        assert_int_equal(read_ok(json).published, cases[i].published);
        snprintf(json, sizeof json,
                 "{\"text_config\": {\"model_type\": \"gemma3_text\", " LLAMA "}%s}",
                 cases[i].json);
        assert_int_equal(read_ok(json).published, cases[i].published);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *json, *where, *text;
        ridge_status status;
    } cases[] = {
        {"", "", "config: line", RIDGE_EFORMAT},
        {"[]", "", "must be an object", RIDGE_EFORMAT},
        {"{}", "model_type", "is missing", RIDGE_EFORMAT},
        {"{\"model_type\": 3}", "model_type", "no string", RIDGE_EFORMAT},
        {"{\"model_type\": \"mamba\"}", "model_type", "'mamba' is not known; known are llama",
         RIDGE_EUNSUPPORTED},
        {"{\"model_type\": \"llama\"}", "num_hidden_layers", "is missing", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 0}", "num_hidden_layers",
         "is 0, must be between 1 and 1024", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 99999999999}", "num_hidden_layers",
         "is 99999999999, must be", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": \"6\"}", "num_hidden_layers",
         "must be an integer", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", " LLAMA ", \"num_key_value_heads\": 3}",
         "num_attention_heads", "must be a multiple", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", " LLAMA ", \"tie_word_embeddings\": 1}",
         "tie_word_embeddings", "true or false", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", " LLAMA ", \"mlp_bias\": true}", "mlp_bias", "biases",
         RIDGE_EUNSUPPORTED},
        {"{\"model_type\": \"mixtral\", " LLAMA "}", "num_local_experts", "is missing",
         RIDGE_EFORMAT},
        {"{\"model_type\": \"mixtral\", " LLAMA
         ", \"num_local_experts\": 4, \"num_experts_per_tok\": 5}",
         "num_experts_per_tok", "is 5, must be between 1 and 4", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", " LLAMA ", \"head_dim\": 15}", "head_dim", "must be even",
         RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", \"vocab_size\": 9, \"num_hidden_layers\": 1, "
         "\"intermediate_size\": 8, \"hidden_size\": 65, \"num_attention_heads\": 4}",
         "hidden_size", "must be a multiple of num_attention_heads", RIDGE_EFORMAT},
        {"{\"model_type\": \"qwen3_moe\", " LLAMA ", \"num_experts\": 4096, "
         "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 1048576}",
         "num_experts", "is 4096: of 1048576 rows each at most 256", RIDGE_EFORMAT},
        {LATENT(3) "}", "qk_rope_head_dim", "must be even", RIDGE_EFORMAT},
        {LATENT(4) ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                   "\"moe_intermediate_size\": 1048576, \"n_shared_experts\": 4096}",
         "n_shared_experts", "is 4096: of 1048576 rows each at most 256", RIDGE_EFORMAT},
        {"{\"model_type\": \"qwen3_moe\", " LLAMA ", \"decoder_sparse_step\": 2}",
         "decoder_sparse_step", "dense layers", RIDGE_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", " LLAMA ", \"quantization_config\": \"fp8\"}",
         "quantization_config", "an object with a quant_method", RIDGE_EFORMAT},
        {"{\"model_type\": \"llama\", \"model_type\": \"llama\"}", "", "duplicate", RIDGE_EFORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c;
        ridge_error err = {0};
        assert_int_equal(read_json(&c, cases[i].json, &err), cases[i].status);
        assert_string_equal(err.where, cases[i].where);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("%s: '%s' not in '%s'", cases[i].json, cases[i].text, err.text);
    }
    char deep[4000];
    memset(deep, '[', sizeof deep);
    model_config c;
    ridge_error err = {0};
    assert_int_equal(hf_config_read(&c, deep, sizeof deep, &err), RIDGE_EFORMAT);
    assert_non_null(strstr(err.text, "nested deeper"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_text_of_a_model_with_images),
        cmocka_unit_test(test_how_weights_were_published),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
