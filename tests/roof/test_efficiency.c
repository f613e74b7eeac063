/* The ideal profile is the roofline; collectives send what a ring sends. */
#include "unit.h"
#include <math.h>

#include "roof/efficiency.h"
#include "roof/roof.h"

static const efficiency_peaks H100 = {
    .flops_per_s = 989e12, .bytes_per_s = 3.35e12, .link_bytes_per_s = 450e9};

static void assert_near(double is, double should) {
    if (fabs(is - should) > 1e-9 * fabs(should)) fail_msg("%.12g, not %.12g", is, should);
}

static efficiency_op linear(double m, double n, double k) {
    return (efficiency_op){.kind = EFFICIENCY_LINEAR,
                           .flops = 2 * m * n * k,
                           .bytes = 2 * n * k,
                           .intermediate_bytes = 2 * m * (n + k),
                           .m = m,
                           .n = n,
                           .k = k};
}

static void ideal_is_the_roofline(void **state) {
    (void)state;
    efficiency_profile ideal = efficiency_ideal();
    for (double m = 1; m <= 8192; m *= 2) {
        efficiency_op op = linear(m, 28672, 8192);
        double roof = roof_seconds(op.flops, H100.flops_per_s, op.bytes, H100.bytes_per_s);
        assert_near(efficiency_seconds(&ideal, &H100, &op), roof);
    }
}

static void ideal_collectives_are_rings(void **state) {
    (void)state;
    efficiency_profile ideal = efficiency_ideal();
    efficiency_op op = {.kind = EFFICIENCY_ALL_REDUCE, .bytes = 450e6, .n_ranks = 4};
    assert_near(efficiency_seconds(&ideal, &H100, &op), 1.5e-3);
    op.kind = EFFICIENCY_ALL_GATHER;
    assert_near(efficiency_seconds(&ideal, &H100, &op), 0.75e-3);
    op.kind = EFFICIENCY_SEND;
    assert_near(efficiency_seconds(&ideal, &H100, &op), 1e-3);
    op.n_ranks = 1;
    for (op.kind = EFFICIENCY_ALL_REDUCE; op.kind <= EFFICIENCY_SEND; op.kind++)
        assert_near(efficiency_seconds(&ideal, &H100, &op), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ideal_is_the_roofline),
        cmocka_unit_test(ideal_collectives_are_rings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
