/* plan/models: what shapes come to against the numbers that their makers publish. */
#include "unit.h"
#include <math.h>
#include <string.h>

#include "device/count/count.h"
#include "plan/models.h"

static plan_model open_model(device **d, const char *name) {
    plan_model m = {0};
    ridge_error err = {0};
    if (device_count_create(d, &(count_params){0}, &err) != RIDGE_OK ||
        plan_model_open(&m, name, *d, &err) != RIDGE_OK)
        fail_msg("%s: %s", name, err.text);
    return m;
}

static void close_model(device *d, plan_model *m) {
    plan_model_close(m);
    d->vtable->destroy(d);
}

/* Parameters of the published checkpoints: the number that Hugging Face shows for the repository's
 * safetensors, unless another source is named. Where a checkpoint holds tied embeddings twice, or
 * layers beyond the model (those of prediction of several tokens), or images, other sources. */
static const struct {
    const char *name;
    double total;  /* within 0.5 % */
    double active; /* 0: dense */
    double tolerance;
    bool without_embedding; /* as the source counts active parameters */
} published[] = {
    {"llama-2-7b", 6738415616, 0, 0, false},
    {"llama-2-13b", 13015864320, 0, 0, false},
    {"llama-2-70b", 68976648192, 0, 0, false},
    {"llama-3.1-8b", 8030261248, 0, 0, false},
    {"llama-3.1-70b", 70553706496, 0, 0, false},
    {"llama-3.1-405b", 405853388800, 0, 0, false},
    {"mistral-7b", 7248023552, 0, 0, false},
    {"mixtral-8x7b", 46702792704, 12.9e9, 0.05e9,
     false}, /* arXiv 2401.04088: 47B, 13B; blog 12.9 */
    {"qwen2.5-0.5b", 494032768, 0, 0, false},
    {"qwen2.5-1.5b", 1543714304, 0, 0, false},
    {"qwen2.5-3b", 3085938688, 0, 0, false},
    {"qwen2.5-7b", 7615616512, 0, 0, false},
    {"qwen2.5-14b", 14770033664, 0, 0, false},
    {"qwen2.5-32b", 32763876352, 0, 0, false},
    {"qwen2.5-72b", 72706203648, 0, 0, false},
    {"qwen3-0.6b", 751632384 - 151936 * 1024.0, 0, 0, false},  /* there the embedding is twice */
    {"qwen3-1.7b", 2031739904 - 151936 * 2048.0, 0, 0, false}, /* and here */
    {"qwen3-4b", 4022468096, 0, 0, false},
    {"qwen3-8b", 8190735360, 0, 0, false},
    {"qwen3-14b", 14768307200, 0, 0, false},
    {"qwen3-32b", 32762123264, 0, 0, false},
    {"qwen3-30b-a3b", 30532122624, 3.3e9, 0.1e9, false}, /* model card: 30.5B, 3.3B */
    {"qwen3-235b-a22b", 235093634560, 22e9, 0.5e9, false},
    /* arXiv 2503.19786, table 1: embedding and other parameters */
    {"gemma-3-1b", 302e6 + 698e6, 0, 0, false},
    {"gemma-3-4b", 675e6 + 3209e6, 0, 0, false},
    {"gemma-3-12b", 1012e6 + 10759e6, 0, 0, false},
    {"gemma-3-27b", 1416e6 + 25600e6, 0, 0, false},
    {"deepseek-67b", 67424e6, 0, 0, false},
    {"deepseek-v2", 235741434880, 21e9, 0.5e9, false},      /* arXiv 2405.04434: 236B, 21B */
    {"deepseek-v2-lite", 15706484224, 2.4e9, 0.06e9, true}, /* the same, appendix B: 2.4B */
    {"deepseek-v3", 671e9, 37e9, 0.75e9, false},            /* arXiv 2412.19437: 671B, 37B */
    {"deepseek-r1", 671e9, 37e9, 0.75e9, false},
    {"kimi-k2", 1026470731056, 32.6e9, 0.5e9, false}, /* arXiv 2507.20534: 32.6B (and 1.04T) */
    /* arXiv 2508.10925, table 1: 20.91B and 3.61B, 116.83B and 5.13B; embedding not active */
    {"gpt-oss-20b", 20.91e9, 3.61e9, 0.005e9, true},
    {"gpt-oss-120b", 116.83e9, 5.13e9, 0.005e9, true},
};

static void test_parameters(void **state) {
    (void)state;
    size_t n = sizeof published / sizeof *published;
    for (size_t i = 0; i < n; i++) {
        device *d;
        plan_model m = open_model(&d, published[i].name);
        const model_config *c = &m.model->config;
        double total = (double)m.model->n_parameters, embedding = (double)c->n_vocab * c->n_embd;
        double active = total - (double)m.model->n_idle_parameters;
        if (published[i].without_embedding) active -= embedding;
        if (fabs(total - published[i].total) > 0.005 * published[i].total)
            fail_msg("%s: %.0f parameters, published %.0f", published[i].name, total,
                     published[i].total);
        if (published[i].active > 0 && fabs(active - published[i].active) > published[i].tolerance)
            fail_msg("%s: %.0f active, published %.0f", published[i].name, active,
                     published[i].active);
        if (published[i].active == 0) assert_int_equal(m.model->n_idle_parameters, 0);
        close_model(d, &m);
    }
    size_t n_known = 0;
    while (plan_model_name(n_known) != NULL) n_known++;
    assert_int_equal(n_known, n); /* none is left out */
}

/* A model that is spread in every way has a send before each layer but the first. */
static void test_every_layer_a_stage(void **state) {
    (void)state;
    const char *name;
    for (size_t i = 0; (name = plan_model_name(i)) != NULL; i++) {
        device *d;
        plan_model whole = open_model(&d, name);
        model_config part;
        model *m;
        ridge_error err = {0};
        uint32_t n_layers = whole.model->config.n_layers, n_sends = 0;
        const model_split split = {.n_tensor = 2,
                                   .n_expert = whole.model->config.moe.n_experts > 0 ? 2 : 1,
                                   .n_stages = n_layers};
        if (model_config_split(&part, &whole.model->config, &split, &err) != RIDGE_OK ||
            model_open_shape(&m, &part, d, &err) != RIDGE_OK)
            fail_msg("%s: %s", name, err.text);
        for (size_t k = 0; k < m->program.n_ops; k++) n_sends += m->program.ops[k].kind == DEV_SEND;
        assert_int_equal(n_sends, n_layers - 1);
        model_close(m);
        close_model(d, &whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_every_layer_a_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
