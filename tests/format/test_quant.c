/* format/quant: every type's floats against the gguf package's, bit for bit; f16 over all values.
 */
#include "unit.h"
#include <math.h>
#include <string.h>

#include "format/quant.h"

#include "quant_golden.inc"

#define N_GOLDEN (sizeof golden / sizeof *golden)
#define MAX_VALUES (3 * 256)

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void test_floats_are_the_packages(void **state) {
    (void)state;
    assert_int_equal(N_GOLDEN, 14);
    for (size_t k = 0; k < N_GOLDEN; k++) {
        float out[MAX_VALUES];
        assert_true(golden[k].n <= MAX_VALUES);
        assert_int_equal(golden[k].size / quant_block_bytes(golden[k].type) *
                             quant_block_values(golden[k].type),
                         golden[k].n);
        quant_dequantize(golden[k].type, golden[k].blocks, out, golden[k].n);
        for (size_t i = 0; i < golden[k].n; i++)
            if (bits_of(out[i]) != golden[k].floats[i])
                fail_msg("%s value %zu: %08x, expected %08x", quant_name(golden[k].type), i,
                         bits_of(out[i]), golden[k].floats[i]);
    }
}

/* One block alone gives what it gives among others. */
static void test_blocks_are_independent(void **state) {
    (void)state;
    for (size_t k = 0; k < N_GOLDEN; k++) {
        size_t values = quant_block_values(golden[k].type);
        size_t bytes = quant_block_bytes(golden[k].type);
        float out[256];
        for (size_t i = 0; i < golden[k].n / values; i++) {
            quant_dequantize(golden[k].type, golden[k].blocks + i * bytes, out, values);
            assert_memory_equal(out, golden[k].floats + i * values, values * sizeof *out);
        }
    }
}

static void test_zero_scales_give_zeros(void **state) {
    (void)state;
    for (size_t k = 0; k < N_GOLDEN; k++) {
        uint8_t block[256] = {0};
        float out[256];
        quant_dequantize(golden[k].type, block, out, quant_block_values(golden[k].type));
        for (size_t i = 0; i < quant_block_values(golden[k].type); i++) assert_true(out[i] == 0.0f);
    }
    /* What a quantizer stores for zeros is +0, not −0. */
    uint8_t q4_0[18] = {0};
    float out[32];
    memset(q4_0 + 2, 0x88, 16);
    quant_dequantize(QUANT_Q4_0, q4_0, out, 32);
    for (int i = 0; i < 32; i++) assert_int_equal(bits_of(out[i]), 0);
}

/* By the definition of binary16: sign, 5 bits of exponent with bias 15, 10 bits of fraction. */
static double f16_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    double x = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
    return h & 0x8000 ? -x : x;
}

static void test_every_f16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = quant_f16_to_f32((uint16_t)h);
        uint16_t back = quant_f32_to_f16(x);
        if ((h & 0x7c00) != 0x7c00) {
            assert_true((double)x == f16_value((uint16_t)h));
            assert_int_equal(signbit(x) != 0, h >> 15);
            assert_int_equal(back, h);
        } else if ((h & 0x3ff) == 0) {
            assert_true(isinf(x) && (x > 0) == (h >> 15 == 0));
            assert_int_equal(back, h);
        } else {
            assert_true(isnan(x));
            assert_int_equal(back, h | 0x200); /* quiet */
        }
    }
}

/* Between each pair of neighbours: below the middle to the lower, above to the upper, the middle
 * itself to the even one. */
static void test_f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        uint16_t even = h & 1 ? (uint16_t)(h + 1) : h;
        float middle = (float)((f16_value(h) + f16_value((uint16_t)(h + 1))) / 2);
        assert_int_equal(quant_f32_to_f16(middle), even);
        assert_int_equal(quant_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(quant_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(quant_f32_to_f16(-middle), even | 0x8000);
    }
    assert_int_equal(quant_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(quant_f32_to_f16(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(quant_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(quant_f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(quant_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(quant_f32_to_f16(1e-40f), 0);
    assert_int_equal(quant_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(quant_f32_to_f16(NAN) & 0x7e00, 0x7e00);
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(quant_name(QUANT_IQ4_NL), "IQ4_NL");
    assert_string_equal(quant_known_name(16), "IQ2_XXS");
    assert_null(quant_name((quant_type)16));
    assert_null(quant_name((quant_type)36));
    assert_null(quant_known_name(36));
    assert_null(quant_known_name(UINT32_MAX));
    for (size_t k = 0; k < N_GOLDEN; k++)
        assert_non_null(strstr(quant_supported(), quant_name(golden[k].type)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats_are_the_packages),
        cmocka_unit_test(test_blocks_are_independent),
        cmocka_unit_test(test_zero_scales_give_zeros),
        cmocka_unit_test(test_every_f16),
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
