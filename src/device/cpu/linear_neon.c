/* device/cpu/linear_neon: the integer product on NEON with dot products (sdot, Armv8.2).
 *
 * sdot multiplies signed bytes, four to a lane, exactly. Quants of up to 6 bits are signed as they
 * are. Those whose zero is 128 go as q - 128, so that no zero has to be taken off afterwards.
 */
#include <arm_neon.h>
#include <string.h>

#include "device/cpu/linear.h"

#define INLINE static inline __attribute__((always_inline))
#define TOKENS 4 /* of a register tile of ROWS x TOKENS: a float and an integer sum for 4 rows */
#define ROWS 8
#define N_ROW (ROWS / 4) /* registers of rows */

INLINE uint8x16_t nibbles(const uint8_t *p, int quad) {
    uint8x16_t v = vld1q_u8(p + quad / 2 * 64);
    return quad & 1 ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15));
}

/* Bits `mask` of each byte moved right (left where negative), the mask as it lies afterwards. */
INLINE uint8x16_t moved(uint8x16_t v, int right, int mask) {
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)-right)), vdupq_n_u8((uint8_t)mask));
}

INLINE uint8x16_t pairs(const uint8_t *p, int quad, int at) {
    return moved(vld1q_u8(p + quad / 4 * 64), 2 * (quad & 3) - at, 3 << at);
}

INLINE uint8x16_t bits(const uint8_t *p, int quad, int at) {
    return moved(vld1q_u8(p), quad - at, 1 << at);
}

/* The quants of 4 rows of one quad: p at the planes, moved on by 16 bytes for each next 4. */
INLINE uint8x16_t quants(cpu_planes planes, const uint8_t *p, int quad) {
    switch (planes) {
    case CPU_U2: return pairs(p, quad, 0);
    case CPU_U3: return vorrq_u8(pairs(p, quad, 0), bits(p + 128, quad, 2));
    case CPU_U4: return nibbles(p, quad);
    case CPU_U4_TABLE: return vqtbl1q_u8(vld1q_u8(cpu_iq4_table), nibbles(p, quad));
    case CPU_U5: return vorrq_u8(nibbles(p, quad), bits(p + 256, quad, 4));
    case CPU_U6: return vorrq_u8(nibbles(p, quad), pairs(p + 256, quad, 4));
    case CPU_U8: return vld1q_u8(p + quad * 64);
    }
    return vdupq_n_u8(0);
}

INLINE void unpack_quants(cpu_planes planes, const uint8_t *p, uint8_t *q) {
#pragma GCC unroll 8
    for (int quad = 0; quad < CPU_QUADS; quad++)
        for (int part = 0; part < 4; part++)
            vst1q_u8(q + quad * 64 + part * 16, quants(planes, p + part * 16, quad));
}

static void block_quants(cpu_planes planes, const uint8_t *block, uint8_t *q) {
    switch (planes) {
    case CPU_U2: unpack_quants(CPU_U2, block, q); break;
    case CPU_U3: unpack_quants(CPU_U3, block, q); break;
    case CPU_U4: unpack_quants(CPU_U4, block, q); break;
    case CPU_U4_TABLE: unpack_quants(CPU_U4_TABLE, block, q); break;
    case CPU_U5: unpack_quants(CPU_U5, block, q); break;
    case CPU_U6: unpack_quants(CPU_U6, block, q); break;
    case CPU_U8: memcpy(q, block, CPU_BLOCK * CPU_PANEL); break;
    }
}

void cpu_unpack_neon(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                     cpu_ublock *out) {
    cpu_unpack_blocks(f, panel, n_blocks, block_quants, out);
}

/* The 4 quads of half h of ROWS rows into isum; T is a constant, as is centred: q - 128 for q. */
INLINE void add_half(const uint8_t *w, const cpu_xblock *x, int h, int T, bool centred,
                     int32x4_t isum[TOKENS][N_ROW]) {
    const uint8x16_t flip = vdupq_n_u8(centred ? 128 : 0);
    int8x16_t y[TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) y[t] = vld1q_s8(x[t].q + 16 * h);
#pragma GCC unroll 2
    for (int r = 0; r < N_ROW; r++) {
        int8x16_t v[4];
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; quad++)
            v[quad] =
                vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + (4 * h + quad) * 64 + r * 16), flip));
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            isum[t][r] = vdotq_laneq_s32(isum[t][r], v[0], y[t], 0);
            isum[t][r] = vdotq_laneq_s32(isum[t][r], v[1], y[t], 1);
            isum[t][r] = vdotq_laneq_s32(isum[t][r], v[2], y[t], 2);
            isum[t][r] = vdotq_laneq_s32(isum[t][r], v[3], y[t], 3);
        }
    }
}

INLINE float32x4_t add_scaled(float32x4_t acc, int32x4_t isum, float32x4_t s, float d) {
    return vfmaq_f32(acc, vcvtq_f32_s32(isum), vmulq_f32(s, vdupq_n_f32(d)));
}

/* T tokens of the tile from token t0, rows [row, row + ROWS). */
INLINE void gemm_tile(const cpu_gemm_args *a, uint32_t t0, int T, uint32_t row, bool centred) {
    const cpu_format *f = a->format;
    const cpu_xblock *x = a->x + t0;
    const cpu_ublock *w = a->w + row / CPU_PANEL * CPU_K_BLOCKS;
    const uint32_t lane = row % CPU_PANEL; /* first row within the panel */
    const int zero = f->zero_shift < 0 || centred ? 0 : 1 << f->zero_shift;
    const int n_halves = f->halves ? 2 : 1;
    float *out = a->acc + t0 * CPU_PAIR + row;
    float32x4_t acc[TOKENS][N_ROW];
#pragma GCC unroll 8
    for (int c = 0; c < T * N_ROW; c++)
        acc[c / N_ROW][c % N_ROW] = vld1q_f32(out + c / N_ROW * CPU_PAIR + c % N_ROW * 4);
    for (uint32_t b = 0; b < a->n_blocks; b++, w++, x += a->width)
        for (int h = 0; h < n_halves; h++) {
            int32x4_t isum[TOKENS][N_ROW];
            int32_t nsum[TOKENS];
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                nsum[t] = cpu_half_nsum(&x[t], h, f->halves);
                for (int r = 0; r < N_ROW; r++) isum[t][r] = vdupq_n_s32(zero * nsum[t]);
            }
            add_half(w->q + lane * 4, x, h, T, centred, isum);
            if (n_halves == 1) add_half(w->q + lane * 4, x, 1, T, centred, isum);
#pragma GCC unroll 2
            for (int r = 0; r < N_ROW; r++) {
                float32x4_t s = vld1q_f32(w->s[h] + lane + r * 4);
                float32x4_t m = vld1q_f32(w->m[h] + lane + r * 4);
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) {
                    acc[t][r] = add_scaled(acc[t][r], isum[t][r], s, x[t].d);
                    if (!f->has_min) continue;
                    float xsum = n_halves == 1 ? x[t].xsum : x[t].d * (float)-nsum[t];
                    acc[t][r] = vfmaq_f32(acc[t][r], m, vdupq_n_f32(xsum));
                }
            }
        }
#pragma GCC unroll 8
    for (int c = 0; c < T * N_ROW; c++)
        vst1q_f32(out + c / N_ROW * CPU_PAIR + c % N_ROW * 4, acc[c / N_ROW][c % N_ROW]);
}

INLINE void gemm_rows(const cpu_gemm_args *a, uint32_t row, bool centred) {
    uint32_t t = 0;
    for (; t + TOKENS <= a->width; t += TOKENS) gemm_tile(a, t, TOKENS, row, centred);
    for (; t < a->width; t++) gemm_tile(a, t, 1, row, centred);
}

void cpu_gemm_neon(const cpu_gemm_args *a) {
    for (uint32_t row = 0; row < a->n_panels * CPU_PANEL; row += ROWS) {
        if (a->format->zero_shift == 7)
            gemm_rows(a, row, true);
        else
            gemm_rows(a, row, false);
    }
}
