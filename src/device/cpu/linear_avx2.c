/* device/cpu/linear_avx2: the integer product on AVX2.
 *
 * maddubs multiplies unsigned quants by signed activations in pairs of 16 bits; quants of up to 6
 * bits cannot saturate it. Those of 8 bits go as |q - 128| times the activation with its sign:
 * 128 * 127 * 2 fits, and no zero has to be taken off afterwards.
 */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/linear.h"

#define INLINE static inline __attribute__((always_inline))
#define TOKENS 4 /* of a register tile: 4 float and 4 integer accumulators */

INLINE __m256i load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m256i nibbles(const uint8_t *p, int quad) {
    __m256i v = load(p + quad / 2 * 64);
    return _mm256_and_si256(quad & 1 ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
}

INLINE __m256i moved(__m256i v, int right, int mask) {
    v = right >= 0 ? _mm256_srli_epi16(v, right) : _mm256_slli_epi16(v, -right);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

INLINE __m256i pairs(const uint8_t *p, int quad, int at) {
    return moved(load(p + quad / 4 * 64), 2 * (quad & 3) - at, 3 << at);
}

INLINE __m256i bits(const uint8_t *p, int quad, int at) {
    return moved(load(p), quad - at, 1 << at);
}

/* The quants of 8 rows of one quad: p at the planes, moved on by 32 bytes for the other 8. */
INLINE __m256i quants(cpu_planes planes, const uint8_t *p, int quad) {
    switch (planes) {
    case CPU_U2: return pairs(p, quad, 0);
    case CPU_U3: return _mm256_or_si256(pairs(p, quad, 0), bits(p + 128, quad, 2));
    case CPU_U4: return nibbles(p, quad);
    case CPU_U4_TABLE: {
        __m256i table = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)cpu_iq4_table));
        return _mm256_shuffle_epi8(table, nibbles(p, quad));
    }
    case CPU_U5: return _mm256_or_si256(nibbles(p, quad), bits(p + 256, quad, 4));
    case CPU_U6: return _mm256_or_si256(nibbles(p, quad), pairs(p + 256, quad, 4));
    case CPU_U8: return load(p + quad * 64);
    }
    return _mm256_setzero_si256();
}

INLINE void unpack_quants(cpu_planes planes, const uint8_t *p, uint8_t *q) {
#pragma GCC unroll 8
    for (int quad = 0; quad < CPU_QUADS; quad++)
        for (int half = 0; half < 2; half++)
            _mm256_storeu_si256((__m256i *)(void *)(q + quad * 64 + half * 32),
                                quants(planes, p + half * 32, quad));
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

void cpu_unpack_avx2(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                     cpu_ublock *out) {
    cpu_unpack_blocks(f, panel, n_blocks, block_quants, out);
}

INLINE __m256i four(const cpu_xblock *x, int quad) {
    int32_t v;
    memcpy(&v, x->q + quad * 4, 4);
    return _mm256_set1_epi32(v);
}

/* Quads [first, first + n) of 8 rows into isum; T is a constant. */
INLINE void add_quads(const uint8_t *w, const cpu_xblock *x, int first, int n, int T, bool wide,
                      __m256i isum[TOKENS]) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int quad = first; quad < first + n; quad++) {
        __m256i v = load(w + quad * 64), centred = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
        if (wide) v = _mm256_abs_epi8(centred);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            __m256i y = four(&x[t], quad);
            if (wide) y = _mm256_sign_epi8(y, centred);
            __m256i sum = _mm256_madd_epi16(_mm256_maddubs_epi16(v, y), ones);
            isum[t] = _mm256_add_epi32(isum[t], sum);
        }
    }
}

INLINE __m256 add_scaled(__m256 acc, __m256i isum, __m256 s, float d) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(s, _mm256_set1_ps(d)), acc);
}

/* T tokens of the tile from token t0, rows [row, row + 8). */
INLINE void gemm_tile(const cpu_gemm_args *a, uint32_t t0, int T, uint32_t row, bool wide) {
    const cpu_format *f = a->format;
    const cpu_xblock *x = a->x + t0;
    const cpu_ublock *w = a->w + row / CPU_PANEL * CPU_K_BLOCKS;
    const uint32_t lane = row % CPU_PANEL; /* first row within the panel */
    const int zero = f->zero_shift < 0 || wide ? 0 : 1 << f->zero_shift;
    const int n_halves = f->halves ? 2 : 1;
    float *out = a->acc + t0 * CPU_PAIR + row;
    __m256 acc[TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[t] = _mm256_load_ps(out + t * CPU_PAIR);
    for (uint32_t b = 0; b < a->n_blocks; b++, w++, x += a->width)
        for (int h = 0; h < n_halves; h++) {
            __m256i isum[TOKENS];
            int32_t nsum[TOKENS];
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                nsum[t] = cpu_half_nsum(&x[t], h, f->halves);
                isum[t] = _mm256_set1_epi32(zero * nsum[t]);
            }
            if (n_halves == 1)
                add_quads(w->q + lane * 4, x, 0, 8, T, wide, isum);
            else if (h == 0)
                add_quads(w->q + lane * 4, x, 0, 4, T, wide, isum);
            else
                add_quads(w->q + lane * 4, x, 4, 4, T, wide, isum);
            __m256 s = _mm256_load_ps(w->s[h] + lane), m = _mm256_load_ps(w->m[h] + lane);
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                acc[t] = add_scaled(acc[t], isum[t], s, x[t].d);
                if (!f->has_min) continue;
                float xsum = n_halves == 1 ? x[t].xsum : x[t].d * (float)-nsum[t];
                acc[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(xsum), acc[t]);
            }
        }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) _mm256_store_ps(out + t * CPU_PAIR, acc[t]);
}

INLINE void gemm_rows(const cpu_gemm_args *a, uint32_t row, bool wide) {
    uint32_t t = 0;
    for (; t + TOKENS <= a->width; t += TOKENS) gemm_tile(a, t, TOKENS, row, wide);
    for (; t < a->width; t++) gemm_tile(a, t, 1, row, wide);
}

void cpu_gemm_avx2(const cpu_gemm_args *a) {
    for (uint32_t row = 0; row < a->n_panels * CPU_PANEL; row += 8) {
        if (a->format->zero_shift == 7)
            gemm_rows(a, row, true);
        else
            gemm_rows(a, row, false);
    }
}
