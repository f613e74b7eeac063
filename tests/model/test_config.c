/* model/config: hyper-parameters from small files, each wrong value named; rope against formulas
 * computed elsewhere (the published ones of Llama 3.1 and of YaRN, in double precision). */
#include "unit.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf_write.h"
#include "model/config.h"

typedef struct {
    const char *key;
    double value; /* NAN: leave the key out */
} override;

static double value_of(const override *o, const char *key, double usual) {
    return o != NULL && strcmp(o->key, key) == 0 ? o->value : usual;
}

static void put(gguf_writer *w, const char *arch, const override *o, const char *name, double usual,
                bool integer) {
    char key[128];
    double v = value_of(o, name, usual);
    if (isnan(v)) return;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (integer)
        gguf_write_u32(w, key, (uint32_t)v);
    else
        gguf_write_f32(w, key, (float)v);
}

/* Reads the configuration of a small model of `arch` in which *o (NULL: nothing) is changed. */
static ridge_status read_config(model_config *c, const char *arch, const override *o,
                                ridge_error *err) {
    gguf_writer w = {0};
    gguf *g = NULL;
    static const struct {
        const char *name;
        double usual;
        bool integer;
    } keys[] = {
        {"block_count", 12, true},
        {"embedding_length", 64, true},
        {"feed_forward_length", 128, true},
        {"context_length", 1024, true},
        {"attention.head_count", 4, true},
        {"attention.head_count_kv", 2, true},
        {"attention.layer_norm_rms_epsilon", 1e-5, false},
        {"attention.key_length", NAN, true},
        {"attention.value_length", NAN, true},
        {"attention.sliding_window", NAN, true},
        {"attn_logit_softcapping", NAN, false},
        {"rope.freq_base", 10000, false},
        {"rope.dimension_count", NAN, true},
        {"expert_count", NAN, true},
    };
    gguf_write_string(&w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        put(&w, arch, o, keys[i].name, keys[i].usual, keys[i].integer);
    gguf_write_random(&w, "token_embd.weight", QUANT_F32, 2, (uint64_t[]){64, 32}, 1);
    char *path = gguf_write_temp(&w);
    ridge_status status = gguf_open(&g, path, err);
    if (status == RIDGE_OK) status = model_config_read(c, g, err);
    gguf_close(g);
    unlink(path);
    mem_free(path);
    gguf_write_free(&w);
    return status;
}

static void test_llama(void **state) {
    (void)state;
    model_config c;
    assert_int_equal(read_config(&c, "llama", NULL, NULL), RIDGE_OK);
    assert_int_equal(c.n_vocab, 32);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope.n_rot, 16);
    assert_false(c.rope.neox);
    assert_int_equal(model_layer_window(&c, 0), 0);
    assert_true(c.attn_scale == 0.25f);
}

static void test_gemma_windows_and_scales(void **state) {
    (void)state;
    model_config c;
    const override window = {"attention.sliding_window", 512};
    assert_int_equal(read_config(&c, "gemma3", &window, NULL), RIDGE_OK);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(model_layer_window(&c, i), i % 6 == 5 ? 0 : 512);
    assert_true(c.qk_norm && c.post_norms && c.gelu && c.rope.neox);
    assert_true(c.embed_scale == 8 && c.rope.base_window == 10000);
    assert_true(c.attn_softcap == 0 && c.final_softcap == 0);

    assert_int_equal(read_config(&c, "gemma2", &window, NULL), RIDGE_OK);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(model_layer_window(&c, i), i % 2 == 1 ? 0 : 512);
    assert_true(!c.qk_norm && c.attn_softcap == 50 && c.final_softcap == 30);
    const override wide = {"block_count", 46}; /* the 27B model: scale by width per head */
    assert_int_equal(read_config(&c, "gemma2", &wide, NULL), RIDGE_OK);
    assert_true(c.window == 4096 && c.attn_scale == 0.25f);
}

static void test_wrong_values_are_named(void **state) {
    (void)state;
    static const struct {
        override o;
        const char *text;
    } cases[] = {
        {{"attention.head_count", 0}, "llama.attention.head_count: is 0"},
        {{"attention.head_count", 65}, "llama.attention.head_count"},
        {{"attention.head_count", NAN}, "llama.attention.head_count: is missing"},
        {{"attention.head_count_kv", 3}, "must be a multiple of head_count_kv"},
        {{"attention.head_count_kv", 0}, "llama.attention.head_count_kv: is 0"},
        {{"block_count", 2147483647}, "llama.block_count: is 2147483647"},
        {{"block_count", 0}, "llama.block_count: is 0"},
        {{"embedding_length", 0}, "llama.embedding_length: is 0"},
        {{"embedding_length", 66}, "llama.embedding_length: must be a multiple"},
        {{"context_length", 0}, "llama.context_length: is 0"},
        {{"attention.layer_norm_rms_epsilon", -1}, "epsilon: is -1"},
        {{"attention.value_length", 8}, "llama.attention.value_length: must equal"},
        {{"attention.key_length", 5000}, "llama.attention.key_length: is 5000"},
        {{"rope.dimension_count", 3}, "llama.rope.dimension_count: must be even"},
        {{"rope.dimension_count", 18}, "llama.rope.dimension_count: is 18"},
        {{"rope.freq_base", 0}, "llama.rope.freq_base: is 0"},
        {{"expert_count", 8}, "mixtures of experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c;
        ridge_error err = {0};
        assert_int_equal(read_config(&c, "llama", &cases[i].o, &err), RIDGE_EFORMAT);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("'%s' does not say '%s'", err.text, cases[i].text);
    }
}

static void test_unknown_architecture_is_named(void **state) {
    (void)state;
    model_config c;
    ridge_error err = {0};
    assert_int_equal(read_config(&c, "mamba", NULL, &err), RIDGE_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "'mamba' is not supported; supported are llama"));
}

static void close_to(double x, double y) {
    assert_true(fabs(x - y) <= 2e-7 * fabs(y));
}

static void test_rope_scaling(void **state) {
    (void)state;
    float f[64], mscale;
    model_rope r = {.base = 500000,
                    .base_window = 10000,
                    .n_rot = 128,
                    .factor = 8,
                    .attn_factor = 1,
                    .ext_factor = 1,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .beta_fast = 32,
                    .beta_slow = 1};
    static const struct {
        int i;
        double llama3, yarn;
    } expected[] = {{0, 1, 1},
                    {20, 0.016560440081, 0.0133352143216},
                    {28, 0.00321144599475, 0.00184827656471},
                    {30, 0.00137189356776, 0.00106436098125},
                    {34, 0.000178507812768, 0.000334240545664},
                    {40, 3.42810219595e-05, 4.4456985251e-05},
                    {63, 3.06892598891e-07, 3.10234440188e-07}};
    r.scaling = ROPE_LLAMA3;
    r.n_context_original = 8192;
    model_rope_frequencies(&r, false, NULL, f, &mscale);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++)
        close_to((double)f[expected[k].i], expected[k].llama3);
    assert_true(mscale == 1);

    r.scaling = ROPE_YARN;
    r.base = 1000000;
    r.factor = 4;
    r.n_context_original = 32768;
    model_rope_frequencies(&r, false, NULL, f, &mscale);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++)
        close_to((double)f[expected[k].i], expected[k].yarn);
    close_to((double)mscale, 1.1386294361119891);
    model_rope_frequencies(&r, true, NULL, f, &mscale); /* window layers are never scaled */
    close_to((double)f[32], 0.01);
    assert_true(mscale == 1);

    float factors[64];
    for (int i = 0; i < 64; i++) factors[i] = 2;
    r.scaling = ROPE_NONE;
    model_rope_frequencies(&r, false, factors, f, &mscale);
    close_to((double)f[0], 0.5);
    r.scaling = ROPE_LINEAR;
    model_rope_frequencies(&r, false, NULL, f, &mscale);
    close_to((double)f[0], 0.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_gemma_windows_and_scales),
        cmocka_unit_test(test_wrong_values_are_named),
        cmocka_unit_test(test_unknown_architecture_is_named),
        cmocka_unit_test(test_rope_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
