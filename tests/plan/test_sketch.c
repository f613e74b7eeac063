/* sketch: against exact quantiles of the same values. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include "plan/sketch.h"
#include "sample/philox.h"

static void assert_within(double x, double exact) {
    if (fabs(x - exact) > SKETCH_ERROR * exact) fail_msg("%.9g, exactly %.9g", x, exact);
}

static void test_against_exact(void **state) {
    (void)state;
    for (uint32_t shape = 0; shape < 4; shape++) {
        sketch *s = calloc(1, sizeof *s);
        samples exact = {0};
        for (uint64_t i = 0; i < 20001; i++) {
            double u = philox_uniform(1, shape, i);
            double x = shape == 0   ? u
                       : shape == 1 ? -log1p(-u) * 1e-4
                       : shape == 2 ? exp(20 * u - 10)
                                    : floor(u * 3) + 1;
            sketch_add(s, x, 1);
            samples_add(&exact, x);
        }
        quantiles a = sketch_quantiles(s), b = quantiles_of(&exact);
        assert_int_equal(a.n, b.n);
        assert_true(a.min == b.min && a.max == b.max);
        assert_true(fabs(a.mean - b.mean) < 1e-9 * b.mean);
        assert_within(a.p50, b.p50);
        assert_within(a.p90, b.p90);
        assert_within(a.p95, b.p95);
        assert_within(a.p99, b.p99);
        samples_free(&exact);
        free(s);
    }
}

/* The ends of its range, and beyond; one value alone is exact. */
static void test_ends(void **state) {
    (void)state;
    static const double values[] = {0, 1e-12, 1e-7, 1e-6, 1, 1e6, 1e7};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        sketch *s = calloc(1, sizeof *s);
        sketch_add(s, values[i], 1);
        quantiles q = sketch_quantiles(s);
        assert_true(q.p50 == values[i] && q.p99 == values[i] && q.mean == values[i]);
        free(s);
    }
    sketch *s = calloc(1, sizeof *s);
    assert_int_equal(sketch_quantiles(s).n, 0);
    sketch_add(s, 1e6, 50);
    sketch_add(s, 9e6, 50);
    assert_within(sketch_quantiles(s).p90, 9e6);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_exact),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
