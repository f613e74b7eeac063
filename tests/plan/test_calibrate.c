/* plan/calibrate and plan/steps: the same steps run on the device that computes and on the one that
 * counts; a profile that made the times of some steps is found again by what it predicts. */
#include "unit.h"
#include <math.h>

#include "device/count/count.h"
#include "plan/calibrate.h"
#include "tiny_model.h"

#define PACKED_TOKENS 12 /* of a machine that no path is */

static const calibrate_machine MACHINE = {.peaks = {.flops_per_s = 1e12, .bytes_per_s = 30e9},
                                          .packed_tokens = PACKED_TOKENS};

static void no_step_needs_more_than_the_model_has(void **state) {
    (void)state;
    calibrate_step list[CALIBRATE_MAX_STEPS];
    static const uint32_t contexts[] = {127, 128, 512, 8192};
    /* by hand: 6 batches by contexts, prompts, prompts beside decodes */
    static const size_t n_expected[] = {1, 6 + 2 + 1, 12 + 4 + 4, 30 + 7 + 6};
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
    const count_params params = {.profile = truth, .linear = MACHINE.peaks, .other = MACHINE.peaks};
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

static void check_fit(calibrate_step *list, size_t n, const gguf *g, const calibrate_machine *m,
                      double most) {
    efficiency_profile fitted;
    ridge_error err = {0};
    assert_int_equal(calibrate_fit(&fitted, list, n, g, m, &err), RIDGE_OK);
    assert_true(fitted.kinds[EFFICIENCY_LINEAR].few_tokens == PACKED_TOKENS);
    for (size_t i = 0; i < n; i++)
        if (fabs(list[i].predicted_s / list[i].seconds - 1) > most)
            fail_msg("%u x %u: %g s, predicted %g", list[i].shape.n_seqs, list[i].shape.n_rows,
                     list[i].seconds, list[i].predicted_s);
}

static void the_profile_behind_times_is_found(void **state) {
    (void)state;
    calibrate_step list[CALIBRATE_MAX_STEPS];
    size_t n = calibrate_plan(list, TINY_N_CONTEXT);
    efficiency_profile truth = efficiency_ideal();
    gguf *g = NULL;
    ridge_error err = {0};
    truth.activations = 1;
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        truth.kinds[k].compute = 0.4, truth.kinds[k].bandwidth = 0.7;
    truth.kinds[EFFICIENCY_LINEAR].overhead_s = 2e-6;
    truth.kinds[EFFICIENCY_LINEAR].few_tokens = PACKED_TOKENS;
    truth.kinds[EFFICIENCY_LINEAR].few_compute = 0.1;
    truth.kinds[EFFICIENCY_LINEAR].unpack_tokens = 5;
    assert_int_equal(gguf_open(&g, tiny_llama_path, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++) list[i].held_out = false; /* nine for nine numbers */
    count_steps(list, n, g, &truth);
    check_fit(list, n, g, &MACHINE, 0.05);
    /* while others computed, peaks are lower */
    calibrate_machine disturbed = MACHINE;
    disturbed.peaks.flops_per_s /= 4;
    disturbed.peaks.bytes_per_s /= 4;
    check_fit(list, n, g, &disturbed, 0.15);
    gguf_close(g);
}

/* Of arithmetic alone, which adds up: a prompt beside decodes is the prompt and the decodes. */
static void a_mixed_step_is_its_parts(void **state) {
    (void)state;
    static const step_shape shapes[] = {{1, 16, 96, 3}, {1, 16, 96, 0}, {3, 1, 96, 0}};
    const efficiency_profile ideal = efficiency_ideal();
    const efficiency_peaks peaks = {.flops_per_s = 1e12};
    const count_params params = {.profile = &ideal, .linear = peaks, .other = peaks};
    device *d = NULL;
    gguf *g = NULL;
    steps *s = NULL;
    double mixed, prompt, decodes;
    ridge_error err = {0};
    assert_int_equal(gguf_open(&g, tiny_llama_path, &err), RIDGE_OK);
    assert_int_equal(device_count_create(&d, &params, &err), RIDGE_OK);
    assert_int_equal(steps_open(&s, g, d, shapes, 3, NULL, &err), RIDGE_OK);
    assert_int_equal(steps_run(s, &shapes[0], true, &mixed, &err), RIDGE_OK);
    assert_int_equal(steps_run(s, &shapes[1], true, &prompt, &err), RIDGE_OK);
    assert_int_equal(steps_run(s, &shapes[2], true, &decodes, &err), RIDGE_OK);
    assert_true(prompt > decodes && decodes > 0);
    assert_true(fabs(mixed / (prompt + decodes) - 1) < 1e-9);
    steps_close(s);
    d->vtable->destroy(d);
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
        cmocka_unit_test(a_mixed_step_is_its_parts),
        cmocka_unit_test(steps_run_on_the_real_device),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
