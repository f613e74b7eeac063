/* Activations as the integer products take them, of every path that this machine has: against
 * values worked out by hand, and a naive computation of random ones. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "device/cpu/cpu_internal.h"

#define N_BLOCKS 3
#define STRIDE 5 /* of a tile with so many tokens */

static uint64_t random_state = 1;

static float random_value(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(random_state >> 40) - (1 << 23)) * 0x1p-20f;
}

static cpu_xblock quantized(const cpu_kernels *k, const float x[CPU_BLOCK]) {
    cpu_xblock out;
    memset(&out, 0x55, sizeof out);
    k->quantize(x, CPU_BLOCK, &out, 1);
    return out;
}

/* With 127 among them a block's quants are its values, rounded: ties go to the even neighbour. */
static void check_ties(const cpu_kernels *k) {
    static const float x[] = {127.0f, 0.5f,  1.5f,  2.5f,   -0.5f,   -1.5f,   -2.5f,
                              126.5f, 0.49f, 3.51f, -3.49f, -126.5f, -127.0f, -0.0f};
    static const int8_t expected[] = {127, 0, 2, 2, 0, -2, -2, 126, 0, 4, -3, -126, -127, 0};
    const uint32_t n = sizeof expected;
    for (uint32_t shift = 0; shift < CPU_BLOCK; shift++) {
        float block[CPU_BLOCK] = {0};
        int8_t q[CPU_BLOCK] = {0};
        for (uint32_t i = 0; i < n; i++) block[(i + shift) % CPU_BLOCK] = x[i];
        for (uint32_t i = 0; i < n; i++) q[(i + shift) % CPU_BLOCK] = expected[i];
        cpu_xblock out = quantized(k, block);
        assert_memory_equal(out.q, q, sizeof q);
        assert_true(out.d == 1.0f && out.xsum == 1.0f); /* the sum of what is expected */
    }
}

/* What is infinite or no number makes a scale that is no number, wherever it stands; what is too
 * small to be scaled up is 0. */
static void check_extremes(const cpu_kernels *k) {
    static const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (uint32_t i = 0; i < 4 * CPU_BLOCK; i++) {
        float x[CPU_BLOCK] = {0};
        for (uint32_t j = 0; j < CPU_BLOCK && i % 3 > 0; j++) x[j] = i % 3 == 1 ? 3e38f : -1e-31f;
        x[i / 4] = odd[i % 4];
        assert_true(isnan(quantized(k, x).d));
    }
    float large[CPU_BLOCK] = {3e38f, 3e38f, 3e38f, -3e38f};
    cpu_xblock out = quantized(k, large);
    assert_true(out.d == 3e38f / 127.0f && out.q[0] == 127 && out.q[3] == -127);
    float small[CPU_BLOCK] = {1e-31f, -1e-38f};
    out = quantized(k, small);
    assert_memory_equal(out.q, (int8_t[CPU_BLOCK]){0}, CPU_BLOCK);
    assert_true(out.d == 0 && out.xsum == 0);
}

/* Rows of several blocks; the sums are those of the quants that are there. */
static void check_random(const cpu_kernels *k) {
    float x[N_BLOCKS * CPU_BLOCK];
    cpu_xblock out[N_BLOCKS * STRIDE];
    for (size_t i = 0; i < N_BLOCKS * CPU_BLOCK; i++) x[i] = random_value();
    memset(out, 0x55, sizeof out);
    k->quantize(x, N_BLOCKS * CPU_BLOCK, out, STRIDE);
    for (size_t b = 0; b < N_BLOCKS; b++) {
        const cpu_xblock *block = &out[b * STRIDE];
        int sums[2][2] = {{0}};
        float most = 0;
        for (size_t i = 0; i < CPU_BLOCK; i++) most = fmaxf(most, fabsf(x[b * CPU_BLOCK + i]));
        assert_true(block->d == most / 127.0f);
        for (size_t i = 0; i < CPU_BLOCK; i++) {
            assert_int_equal(block->q[i], (int)rintf(x[b * CPU_BLOCK + i] * (127.0f / most)));
            sums[i / 16][i / 2 % 2] -= block->q[i];
        }
        for (int h = 0; h < 2; h++) {
            assert_int_equal(block->pairs_lo[h], sums[0][h]);
            assert_int_equal(block->pairs[h], sums[0][h] + sums[1][h]);
            assert_int_equal(block->nsum_of[h], sums[h][0] + sums[h][1]);
        }
        assert_int_equal(block->nsum, block->nsum_of[0] + block->nsum_of[1]);
    }
}

static void test_every_path(void **state) {
    (void)state;
    const cpu_kernels *paths[CPU_MAX_PATHS];
    int n = cpu_paths(cpu_features_here(), paths);
    assert_true(n >= 1);
    for (int i = 0; i < n; i++) {
        check_ties(paths[i]);
        check_extremes(paths[i]);
        for (int round = 0; round < 200; round++) check_random(paths[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
