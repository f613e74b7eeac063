/* sched/cost: a machine of known coefficients is learned from its steps; what a step does is
 * counted right; nothing can make a prediction that is not a number. */
#include "unit.h"
#include <math.h>
#include <string.h>

#include "sched/cost.h"

/* A machine of 30 GB/s, 1 TFLOP/s and 0.2 TFLOP/s; a model of 100 MB and 100M parameters. */
static cost_shape small_shape(void) {
    cost_shape s = {.bytes_per_s = 30e9,
                    .linear_ops_per_s = 1e12,
                    .attention_ops_per_s = 2e11,
                    .weight_bytes = 80e6,
                    .head_bytes = 20e6,
                    .row_ops = 160e6,
                    .head_row_ops = 40e6,
                    .n_groups = 1};
    s.groups[0].attention_ops = 70e3;
    s.groups[0].bytes_per_token = 20e3;
    return s;
}

static uint64_t seed;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

/* n sequences that decode at a context, and a chunk of a prompt. */
static cost_work work_of(const cost_shape *s, uint32_t n, uint32_t context, uint32_t first,
                         uint32_t chunk) {
    cost_work w = {0};
    for (uint32_t i = 0; i < n; i++) cost_add(s, &w, context, 1, 1);
    cost_add(s, &w, first, chunk, 0);
    return w;
}

typedef struct {
    cost_shape shape;
    cost_rates truth;
    cost_model model;
} machine;

static machine machine_make(const cost_rates *truth) {
    machine m = {.shape = small_shape(), .truth = *truth};
    seed = 7;
    cost_init(&m.model, &m.shape);
    return m;
}

/* One step of random kind; noise: at most so much of its time. Returns the relative error. */
static double step(machine *m, bool prompts, double noise, double factor) {
    cost_work w = work_of(&m->shape, 1 + below(16), 10 + below(2000), below(4000),
                          prompts ? 1 + below(400) : 0);
    double off = 1 + noise * ((double)below(2001) / 1000 - 1);
    double seconds = cost_seconds(&m->shape, &m->truth, &w) * off * factor;
    double predicted = cost_predict(&m->model, &w);
    cost_learn(&m->model, &w, prompts, seconds);
    assert_true(cost_predict(&m->model, &w) > 0);
    for (int i = 0; i < COST_PARTS; i++) assert_true(m->model.rates.b[i] >= 0);
    return fabs(predicted - seconds) / seconds;
}

static double mean_error(machine *m, int n, double noise, double factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += step(m, i % 3 != 0, noise, factor);
    return sum / n;
}

static const cost_rates usual = {{2e-4, 1.3, 1.9, 2.2, 1.1}}, odd = {{5e-3, .2, .3, 15, .4}};

static void test_what_a_step_does(void **state) {
    (void)state;
    cost_shape s = small_shape();
    cost_work w = {0};
    cost_add(&s, &w, 10, 3, 1); /* rows that see 11, 12 and 13 tokens */
    assert_true(w.n_rows == 3 && w.n_wanted == 1);
    assert_true(w.attention_ops == 36 * 70e3 && w.cache_bytes == 13 * 20e3);
    cost_add(&s, &w, 5, 0, 0);
    assert_true(w.n_rows == 3 && w.cache_bytes == 13 * 20e3);

    for (uint32_t window = 1; window < 12; window++)
        for (uint32_t first = 0; first < 15; first++)
            for (uint32_t n = 1; n < 10; n++) {
                double seen = 0, oldest = first + n;
                for (uint32_t p = first; p < first + n; p++) {
                    uint32_t k = p + 1 < window ? p + 1 : window;
                    seen += k;
                    if (p + 1 - k < oldest) oldest = p + 1 - k;
                }
                w = (cost_work){0};
                s.groups[0].window = window;
                cost_add(&s, &w, first, n, 0);
                assert_true(w.attention_ops == seen * 70e3);
                assert_true(w.cache_bytes == (first + n - oldest) * 20e3);
            }
}

/* From the first step on there is a prediction; soon it is right for steps never seen. */
static void test_a_known_machine_is_learned(void **state) {
    (void)state;
    const cost_rates *truths[] = {&usual, &odd};
    for (int i = 0; i < 2; i++) {
        machine m = machine_make(truths[i]);
        cost_work w = work_of(&m.shape, 8, 500, 0, 0);
        assert_true(cost_predict(&m.model, &w) > 0);
        mean_error(&m, 60, 0, 1);
        /* the odd one's overhead is hard to tell from its memory's slowness */
        assert_true(mean_error(&m, 100, 0, 1) < (i == 0 ? .01 : .06));
        uint64_t n = m.model.n_steps;
        double sum = m.model.error_sum, last = step(&m, true, 0, 1);
        assert_int_equal(m.model.n_steps, n + 1);
        assert_true(fabs(m.model.error_sum - sum - last) < 1e-9 && m.model.last_error == last);

        m = machine_make(truths[i]);
        mean_error(&m, 60, .2, 1);
        assert_true(mean_error(&m, 200, .2, 1) < .15); /* the noise's own mean is .1 */
    }
}

/* Without peaks the first guess is far off and no more than that. */
static void test_unknown_peaks(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    cost_shape blind = m.shape;
    blind.bytes_per_s = blind.linear_ops_per_s = blind.attention_ops_per_s = 0;
    cost_init(&m.model, &blind);
    mean_error(&m, 80, 0, 1);
    assert_true(mean_error(&m, 100, 0, 1) < .02);
}

/* Streams read the cache for one row each, at less than half of the speed of weights; the rows of a
 * prompt share what they read. What a further row costs is known all the same, and what the first
 * one does. */
static void test_reading_the_cache_is_not_attention(void **state) {
    (void)state;
    const cost_rates slow_cache = {{2e-4, 1.2, 3, 2, 1.2}};
    machine m = machine_make(&slow_cache);
    for (uint32_t i = 0; i < 300; i++) {
        cost_work w = work_of(&m.shape, 8, 500 + i, 0, 0);
        cost_learn(&m.model, &w, false, cost_seconds(&m.shape, &m.truth, &w));
    }
    for (uint32_t i = 0; i < 40; i++) { /* of another prompt, in chunks of 30 */
        cost_work w = work_of(&m.shape, 8, 800 + i, 30 * i, 30);
        cost_learn(&m.model, &w, true, cost_seconds(&m.shape, &m.truth, &w));
    }
    for (uint32_t first = 1000; first <= 4000; first += 1000)
        for (uint32_t n = 1; n <= 32; n *= 2) {
            cost_work none = work_of(&m.shape, 8, 850, 0, 0),
                      some = work_of(&m.shape, 8, 850, first, n);
            double truth =
                cost_seconds(&m.shape, &m.truth, &some) - cost_seconds(&m.shape, &m.truth, &none);
            double predicted = cost_predict(&m.model, &some) - cost_predict(&m.model, &none);
            assert_true(fabs(predicted - truth) < .1 * truth);
        }
}

/* One step in twenty is held up to ten times its time: the others are still predicted well. */
static void test_outliers(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    mean_error(&m, 60, .05, 1);
    double sum = 0;
    int n = 0;
    for (int i = 0; i < 400; i++) {
        bool held_up = i % 20 == 7;
        double error = step(&m, i % 3 != 0, .05, held_up ? 10 : 1);
        if (held_up) continue;
        sum += error;
        n++;
    }
    assert_true(sum / n < .1);
}

/* A neighbour takes half of the machine, and leaves. */
static void test_a_change_of_speed_is_followed(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    mean_error(&m, 100, .02, 1);
    const double factors[] = {2, 1, 5, 1};
    for (int i = 0; i < 4; i++) {
        mean_error(&m, 20, .02, factors[i]);
        assert_true(mean_error(&m, 30, .02, factors[i]) < .15);
    }
}

/* Neighbours come and go: what a step takes wanders, by an autoregression of .7. No prediction errs
 * by less than sqrt(1 - .7^2) = .71 of what one does that takes no notice. */
static void test_a_wandering_speed_is_followed(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    double wander = 0, error = 0, unnoticed = 0;
    mean_error(&m, 100, 0, 1);
    for (int i = 0; i < 3000; i++) {
        double sum = 0; /* of three even ones: nearly normal, and a deviation of 1 */
        for (int k = 0; k < 3; k++) sum += (double)below(2001) / 1000 - 1;
        wander = .7 * wander + .1 * sum;
        error += step(&m, i % 3 != 0, 0, exp(wander));
        unnoticed += fabs(exp(-wander) - 1);
    }
    if (!(error < .85 * unnoticed)) fail_msg("%g of it", error / unnoticed);
}

/* An hour of decoding: what prompts cost is still known. */
static void test_decoding_does_not_wash_out_prompts(void **state) {
    (void)state;
    machine m = machine_make(&odd);
    mean_error(&m, 100, 0, 1);
    for (int i = 0; i < 20000; i++) {
        cost_work w = work_of(&m.shape, 8, 700, 0, 0);
        cost_learn(&m.model, &w, false, cost_seconds(&m.shape, &m.truth, &w));
    }
    cost_work w = work_of(&m.shape, 8, 700, 1000, 300);
    double truth = cost_seconds(&m.shape, &m.truth, &w);
    assert_true(fabs(cost_predict(&m.model, &w) - truth) < .1 * truth);
}

/* Only decoding seen, on a machine that is five times slower than its peaks say: prompts are
 * expected to be slower too. */
static void test_what_was_not_seen_follows_what_was(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    cost_work w = work_of(&m.shape, 8, 700, 1000, 300);
    double first = cost_predict(&m.model, &w);
    for (int i = 0; i < 100; i++) step(&m, false, .02, 5);
    double now = cost_predict(&m.model, &w);
    assert_true(now > 2 * first && now < 10 * first);
}

static void test_the_most_that_fits(void **state) {
    (void)state;
    machine m = machine_make(&usual);
    mean_error(&m, 60, 0, 1);
    cost_work w = work_of(&m.shape, 8, 300, 0, 0);
    uint32_t before = 1000;
    for (uint32_t first = 0; first <= 4000; first += 500) {
        double limit = 2 * cost_predict(&m.model, &w);
        uint32_t n = cost_fit(&m.model, &w, first, 1000, limit);
        cost_work at = w, over = w;
        cost_add(&m.shape, &at, first, n, 0);
        cost_add(&m.shape, &over, first, n + 1, 0);
        assert_true(cost_predict(&m.model, &at) <= limit);
        assert_true(cost_predict(&m.model, &over) > limit);
        assert_true(n < before); /* later chunks of a prompt are dearer */
        before = n;
    }
    assert_int_equal(cost_fit(&m.model, &w, 0, 1000, 0), 0);
    assert_int_equal(cost_fit(&m.model, &w, 0, 1000, 1e9), 1000);
    assert_int_equal(cost_fit(&m.model, &w, 0, 0, 1e9), 0);
}

static void test_never_not_a_number(void **state) {
    (void)state;
    static const double times[] = {0, -1, 1e-300, 1e300, 1e-12, 1, 1e9};
    static const double peaks[] = {0, -1, 1e-300, 1e300, 1, 1e12};
    for (size_t p = 0; p < sizeof peaks / sizeof *peaks; p++)
        for (int empty = 0; empty < 2; empty++) {
            cost_shape s = empty ? (cost_shape){0} : small_shape();
            s.bytes_per_s = s.linear_ops_per_s = s.attention_ops_per_s = peaks[p];
            cost_model m;
            cost_init(&m, &s);
            seed = p;
            for (int i = 0; i < 3000; i++) {
                cost_work w =
                    work_of(&s, below(3), below(1u << 20), below(1u << 20), below(1u << 17));
                double t = times[below(sizeof times / sizeof *times)];
                cost_learn(&m, &w, below(2), t);
                if (i % 50 == 0) cost_learn(&m, &w, true, (double)NAN);
                if (i % 50 == 1) cost_learn(&m, &w, true, (double)INFINITY);
                double predicted = cost_predict(&m, &w);
                assert_true(isfinite(predicted) && predicted >= 0);
                assert_true(isfinite(m.error_sum));
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_step_does),
        cmocka_unit_test(test_a_known_machine_is_learned),
        cmocka_unit_test(test_unknown_peaks),
        cmocka_unit_test(test_reading_the_cache_is_not_attention),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_a_change_of_speed_is_followed),
        cmocka_unit_test(test_a_wandering_speed_is_followed),
        cmocka_unit_test(test_decoding_does_not_wash_out_prompts),
        cmocka_unit_test(test_what_was_not_seen_follows_what_was),
        cmocka_unit_test(test_the_most_that_fits),
        cmocka_unit_test(test_never_not_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
