/* plan/calibrate and plan/steps: the same steps run on the device that computes and on the one that
 * counts; a profile that made the times of some steps is found again by what it predicts. */
#include "unit.h"
#include <math.h>

#include "device/count/count.h"
#include "plan/calibrate.h"
#include "tiny_model.h"

static const efficiency_peaks PEAKS = {.flops_per_s = 1e12, .bytes_per_s = 30e9};

static void no_step_needs_more_than_the_model_has(void **state) {
    (void)state;
    calibrate_step list[CALIBRATE_MAX_STEPS];
    static const uint32_t contexts[] = {127, 128, 512, 8192};
    static const size_t n_expected[] = {1, 8, 16, 37}; /* by hand: 6 batches by contexts, prompts */
    for (size_t i = 0; i < 4; i++) {
        size_t n = calibrate_plan(list, contexts[i]);
        assert_int_equal(n, n_expected[i]);
        for (size_t j = 0; j < n; j++) {
            assert_true(list[j].shape.n_context <= contexts[i]);
            assert_true(list[j].shape.n_rows <= list[j].shape.n_context);
            assert_int_equal(list[j].held_out, j % 2);
        }
    }
}

/* Times as a profile makes them. */
static void count_steps(calibrate_step *list, size_t n, const gguf *g,
                        const efficiency_profile *truth) {
    step_shape shapes[CALIBRATE_MAX_STEPS];
    const count_params params = {.profile = truth, .linear = PEAKS, .other = PEAKS};
    device *d = NULL;
    steps *s = NULL;
    ridge_error err = {0};
    for (size_t i = 0; i < n; i++) shapes[i] = list[i].shape;
    assert_int_equal(device_count_create(&d, &params, &err), RIDGE_OK);
    assert_int_equal(steps_open(&s, g, d, shapes, n, NULL, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(steps_run(s, &shapes[i], true, &list[i].seconds, &err), RIDGE_OK);
    steps_close(s);
    d->vtable->destroy(d);
}

static void the_profile_behind_times_is_found(void **state) {
    (void)state;
    calibrate_step list[CALIBRATE_MAX_STEPS];
    size_t n = calibrate_plan(list, TINY_N_CONTEXT);
    efficiency_profile truth = efficiency_ideal(), fitted;
    gguf *g = NULL;
    ridge_error err = {0};
    truth.activations = 1;
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        truth.kinds[k].compute = 0.4, truth.kinds[k].bandwidth = 0.7;
    truth.kinds[EFFICIENCY_LINEAR].overhead_s = 2e-6;
    truth.kinds[EFFICIENCY_LINEAR].few_tokens = DEV_FEW_TOKENS;
    truth.kinds[EFFICIENCY_LINEAR].few_compute = 0.1;
    truth.kinds[EFFICIENCY_LINEAR].unpack_tokens = 5;
    assert_int_equal(gguf_open(&g, tiny_llama_path, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++) list[i].held_out = false; /* eight for nine numbers */
    count_steps(list, n, g, &truth);
    assert_int_equal(calibrate_fit(&fitted, list, n, g, &PEAKS, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++)
        if (fabs(list[i].predicted_s / list[i].seconds - 1) > 0.05)
            fail_msg("%u x %u: %g s, predicted %g", list[i].shape.n_seqs, list[i].shape.n_rows,
                     list[i].seconds, list[i].predicted_s);
    gguf_close(g);
}

static void steps_run_on_the_real_device(void **state) {
    (void)state;
    calibrate_step list[CALIBRATE_MAX_STEPS];
    size_t n = calibrate_plan(list, TINY_N_CONTEXT);
    gguf *g = NULL;
    device *cpu = NULL;
    ridge_error err = {0};
    assert_int_equal(gguf_open(&g, tiny_llama_path, &err), RIDGE_OK);
    assert_int_equal(device_cpu_create(&cpu, &(device_cpu_params){.n_threads = 1}, &err), RIDGE_OK);
    assert_int_equal(calibrate_measure(list, n, g, cpu, 0, NULL, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++)
        assert_true(0 < list[i].low_s && list[i].low_s <= list[i].seconds &&
                    list[i].seconds <= list[i].high_s && isfinite(list[i].high_s));
    cpu->vtable->destroy(cpu);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_needs_more_than_the_model_has),
        cmocka_unit_test(the_profile_behind_times_is_found),
        cmocka_unit_test(steps_run_on_the_real_device),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
