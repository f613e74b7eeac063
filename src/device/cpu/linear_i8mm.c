/* device/cpu/linear_i8mm: the integer product of many tokens on NEON with products of matrices
 * (usmmla, Armv8.6 or FEAT_I8MM).
 *
 * usmmla multiplies 2 rows of 8 unsigned quants by 2 tokens of 8 signed activations, exactly: twice
 * the work of an sdot. Quants need no sign, so whatever their zero is, the sums start from it.
 */
#include "device/cpu/gemm_neon.inc"

/* Register ROWS / 2 * p + i: rows 2i and 2i + 1, of each tokens 2p and 2p + 1. The last of an odd
 * number of tokens is its own second one. */
INLINE int second(int t, int T) {
    return t + 1 < T ? t + 1 : t;
}

INLINE void start(int32x4_t *isum, const int32_t *from, int T) {
#pragma GCC unroll 2
    for (int t = 0; t < T; t += 2) {
        const int32_t both[] = {from[t], from[second(t, T)]};
        int32x2_t two = vld1_s32(both);
#pragma GCC unroll 4
        for (int i = 0; i < ROWS / 2; i++) isum[ROWS / 2 * (t / 2) + i] = vcombine_s32(two, two);
    }
}

INLINE int32x4_t sums_of(const int32x4_t *isum, int t, int r) {
    const int32x4_t *at = isum + ROWS / 2 * (t / 2) + 2 * r;
    return t % 2 == 0 ? vuzp1q_s32(at[0], at[1]) : vuzp2q_s32(at[0], at[1]);
}

/* Two neighbouring quads of 4 rows are twice 8 quants of 2 rows. */
INLINE void add_half(const uint8_t *w, const cpu_xblock *x, int h, int T, bool centred,
                     int32x4_t *isum) {
    (void)centred;
#pragma GCC unroll 2
    for (int eight = 2 * h; eight < 2 * h + 2; eight++)
#pragma GCC unroll 2
        for (int r = 0; r < N_ROW; r++) {
            uint32x4_t low = vreinterpretq_u32_u8(vld1q_u8(w + eight * 128 + r * 16));
            uint32x4_t high = vreinterpretq_u32_u8(vld1q_u8(w + eight * 128 + 64 + r * 16));
            uint8x16_t v[] = {vreinterpretq_u8_u32(vzip1q_u32(low, high)),
                              vreinterpretq_u8_u32(vzip2q_u32(low, high))};
#pragma GCC unroll 2
            for (int t = 0; t < T; t += 2) {
                int8x16_t y = vcombine_s8(vld1_s8(x[t].q + 8 * eight),
                                          vld1_s8(x[second(t, T)].q + 8 * eight));
                int32x4_t *sum = isum + ROWS / 2 * (t / 2) + 2 * r;
                sum[0] = vusmmlaq_s32(sum[0], v[0], y);
                sum[1] = vusmmlaq_s32(sum[1], v[1], y);
            }
        }
}

/* Of one token alone dot products do as much. */
void cpu_gemm_i8mm(const cpu_gemm_args *a) {
    if (a->width == 1) {
        cpu_gemm_neon(a);
        return;
    }
    for (uint32_t row = 0; row < a->n_panels * CPU_PANEL; row += ROWS) gemm_rows(a, row, false);
}
