/* cli/plan_host: serving is measured, or it is said why it cannot be. */
#include "unit.h"

#include <string.h>

#include "cli/plan_host.h"
#include "tiny_model.h"

static engine_params params_of(const char *path) {
    engine_params p = engine_params_default();
    p.model_path = path;
    p.n_threads = 1;
    return p;
}

/* Both are set, to what a profile may have; on a busy machine it may take several times until
 * something is seen. */
static void test_a_model_is_served(void **state) {
    (void)state;
    efficiency_host host = {-1, -1};
    ridge_error err = {0};
    engine_params p = params_of(tiny_llama_path);
    for (int i = 0; i < 20 && host.step_s + host.token_s < 1e-6; i++)
        if (plan_host_measure(&host, &p, 0, &err) != RIDGE_OK) fail_msg("%s", err.text);
    assert_true(host.step_s + host.token_s > 1e-6);
    assert_true(host.step_s >= 0 && host.step_s <= 1);
    assert_true(host.token_s >= 0 && host.token_s <= 1);
}

static void test_a_model_that_cannot_be(void **state) {
    (void)state;
    efficiency_host host = {-1, -1};
    ridge_error err = {0};
    engine_params p = params_of("/nowhere.gguf");
    assert_int_not_equal(plan_host_measure(&host, &p, 0, &err), RIDGE_OK);
    assert_non_null(strstr(err.text, "/nowhere.gguf"));
    assert_true(host.step_s == -1 && host.token_s == -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_is_served),
        cmocka_unit_test(test_a_model_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
