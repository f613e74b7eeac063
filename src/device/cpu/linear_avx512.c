/* device/cpu/linear_avx512: the integer product on AVX-512 VNNI.
 *
 * A register holds 4 consecutive K of 16 rows; dpbusd multiplies them by 4 activations broadcast
 * to all rows. For many tokens a panel is unpacked once to bytes and multiplied by tiles of up to
 * 12 tokens (12 float and 12 integer accumulators of the 32 registers); for one token it is
 * unpacked in registers on its way from memory.
 */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/linear.h"

#define INLINE static inline __attribute__((always_inline))

/* Prefetch distance of the one-token product, in bytes: some 12 blocks of four bits. */
#define AHEAD 4096

INLINE __m512i load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

INLINE __m512i nibbles(const uint8_t *p, int quad) {
    __m512i v = load(p + quad / 2 * 64);
    return _mm512_and_si512(quad & 1 ? _mm512_srli_epi16(v, 4) : v, _mm512_set1_epi8(15));
}

/* The two bits of `quad`, moved to bits 0-1 (at = 0) or 4-5 (at = 4) and the rest cleared. */
INLINE __m512i pairs(const uint8_t *p, int quad, int at) {
    __m512i v = load(p + quad / 4 * 64);
    int right = 2 * (quad & 3) - at;
    v = right >= 0 ? _mm512_srli_epi16(v, (unsigned)right) : _mm512_slli_epi16(v, (unsigned)-right);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(3 << at)));
}

INLINE __m512i bits(const uint8_t *p, int quad, int at) {
    __m512i v = load(p);
    int right = quad - at;
    v = right >= 0 ? _mm512_srli_epi16(v, (unsigned)right) : _mm512_slli_epi16(v, (unsigned)-right);
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(1 << at)));
}

/* The unsigned quants of one quad; planes and quad are constants wherever this is inlined. */
INLINE __m512i quants(cpu_planes planes, const uint8_t *p, int quad) {
    switch (planes) {
    case CPU_U2: return pairs(p, quad, 0);
    case CPU_U3: return _mm512_or_si512(pairs(p, quad, 0), bits(p + 128, quad, 2));
    case CPU_U4: return nibbles(p, quad);
    case CPU_U4_TABLE: {
        __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)cpu_iq4_table));
        return _mm512_shuffle_epi8(table, nibbles(p, quad));
    }
    case CPU_U5: return _mm512_or_si512(nibbles(p, quad), bits(p + 256, quad, 4));
    case CPU_U6: return _mm512_or_si512(nibbles(p, quad), pairs(p + 256, quad, 4));
    case CPU_U8: return load(p + quad * 64);
    }
    return _mm512_setzero_si512();
}

typedef struct {
    __m512 s[2], m[2];
} scales;

INLINE __m512 half16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 bytes16(__m128i b) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
}

/* Of one block: the products of the file's formula, each rounded once or not at all. */
INLINE scales block_scales(cpu_scaling scaling, const uint8_t *head, const uint8_t *sub) {
    const __m128i low = _mm_set1_epi8(15);
    scales r = {.s = {half16(head)}};
    __m512 minus = _mm512_setzero_ps();
    if (scaling == CPU_SUB_MIN || scaling == CPU_SUB_HALF_MIN)
        minus = _mm512_xor_ps(half16(head + 32), _mm512_set1_ps(-0.0f));
    __m128i a = _mm_setzero_si128(), b = a;
    if (scaling >= CPU_SUB_MIN) {
        a = _mm_loadu_si128((const __m128i *)sub);
        b = _mm_loadu_si128((const __m128i *)(sub + 16));
    }
    switch (scaling) {
    case CPU_SCALE: break;
    case CPU_SCALE_MIN: r.m[0] = half16(head + 32); break;
    case CPU_SUB_MIN:
        r.s[0] = _mm512_mul_ps(r.s[0], bytes16(a));
        r.m[0] = _mm512_mul_ps(minus, bytes16(b));
        break;
    case CPU_SUB_HALF:
        r.s[1] = _mm512_mul_ps(r.s[0], _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)));
        r.s[0] = _mm512_mul_ps(r.s[0], _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a)));
        break;
    case CPU_SUB_HALF_MIN:
        r.s[1] = _mm512_mul_ps(r.s[0], bytes16(_mm_and_si128(b, low)));
        r.s[0] = _mm512_mul_ps(r.s[0], bytes16(_mm_and_si128(a, low)));
        r.m[0] = _mm512_mul_ps(minus, bytes16(_mm_and_si128(_mm_srli_epi16(a, 4), low)));
        r.m[1] = _mm512_mul_ps(minus, bytes16(_mm_and_si128(_mm_srli_epi16(b, 4), low)));
        break;
    }
    return r;
}

INLINE bool has_halves(cpu_scaling s) {
    return s == CPU_SUB_HALF || s == CPU_SUB_HALF_MIN;
}

INLINE bool has_min(cpu_scaling s) {
    return s == CPU_SCALE_MIN || s == CPU_SUB_MIN || s == CPU_SUB_HALF_MIN;
}

/* Unpacking ------------------------------------------------------------------------------------ */

INLINE void unpack_panel(cpu_planes planes, cpu_scaling scaling, const cpu_format *f,
                         const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out) {
    const uint8_t *head = panel, *at = panel + f->head_bytes;
    for (uint32_t b = 0; b < n_blocks; b++, out++) {
        if (b > 0 && b % f->n_blocks == 0) {
            head = at;
            at += f->head_bytes;
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < CPU_QUADS; quad++)
            _mm512_storeu_si512(out->q + quad * 64, quants(planes, at, quad));
        scales s = block_scales(scaling, head, at + f->quant_bytes);
        for (int h = 0; h < 1 + has_halves(scaling); h++) {
            _mm512_storeu_ps(out->s[h], s.s[h]);
            if (has_min(scaling)) _mm512_storeu_ps(out->m[h], s.m[h]);
        }
        at += f->quant_bytes + f->sub_bytes;
    }
}

/* One token ------------------------------------------------------------------------------------ */

INLINE __m512i four(const cpu_xblock *x, int quad) {
    int32_t v;
    memcpy(&v, x->q + quad * 4, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 add_scaled(__m512 acc, __m512i isum, __m512 s, float d) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(s, _mm512_set1_ps(d)), acc);
}

/* -zero * sum x, where the integer sum starts; shift < 0: zero is 0 */
INLINE __m512i start(int32_t nsum, int shift) {
    return shift < 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(nsum * (1 << shift));
}

INLINE void gemv_panel(cpu_planes planes, cpu_scaling scaling, const cpu_format *f,
                       const uint8_t *panel, uint32_t n_blocks, const cpu_xblock *x, float *out,
                       uint32_t n_rows) {
    const uint8_t *head = panel, *at = panel + f->head_bytes;
    const uint32_t step = f->quant_bytes + f->sub_bytes, per_super = f->n_blocks;
    __m512 acc = _mm512_setzero_ps();
    for (uint32_t b = 0, left = per_super; b < n_blocks; b++, x++, left--) {
        if (left == 0) {
            head = at;
            at += f->head_bytes;
            left = per_super;
        }
        for (uint32_t i = 0; i < step + 32; i += 64)
            _mm_prefetch((const char *)(at + AHEAD + i), _MM_HINT_T0);
        scales s = block_scales(scaling, head, at + f->quant_bytes);
        int32_t low_nsum = has_halves(scaling) ? x->nsum_lo : x->nsum;
        __m512i low = start(low_nsum, f->zero_shift);
        __m512i high = start(x->nsum - low_nsum, f->zero_shift);
#pragma GCC unroll 8
        for (int quad = 0; quad < CPU_QUADS; quad++) {
            __m512i *isum = quad < 4 ? &low : &high;
            *isum = _mm512_dpbusd_epi32(*isum, quants(planes, at, quad), four(x, quad));
        }
        if (has_halves(scaling)) {
            acc = add_scaled(acc, low, s.s[0], x->d);
            if (has_min(scaling))
                acc = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(x->d * (float)-x->nsum_lo), acc);
            acc = add_scaled(acc, high, s.s[1], x->d);
            if (has_min(scaling))
                acc = _mm512_fmadd_ps(s.m[1], _mm512_set1_ps(x->d * (float)-(x->nsum - x->nsum_lo)),
                                      acc);
        } else {
            acc = add_scaled(acc, _mm512_add_epi32(low, high), s.s[0], x->d);
            if (has_min(scaling)) acc = _mm512_fmadd_ps(s.m[0], _mm512_set1_ps(x->xsum), acc);
        }
        at += step;
    }
    _mm512_mask_storeu_ps(out, (__mmask16)((1u << n_rows) - 1), acc);
}

/* Both entries choose among the formats once per panel. */
#define EACH_FORMAT(X)                                                                             \
    X(QUANT_Q4_0, CPU_U4, CPU_SCALE)                                                               \
    X(QUANT_Q4_1, CPU_U4, CPU_SCALE_MIN)                                                           \
    X(QUANT_Q5_0, CPU_U5, CPU_SCALE)                                                               \
    X(QUANT_Q5_1, CPU_U5, CPU_SCALE_MIN)                                                           \
    X(QUANT_Q8_0, CPU_U8, CPU_SCALE)                                                               \
    X(QUANT_IQ4_NL, CPU_U4_TABLE, CPU_SCALE)                                                       \
    X(QUANT_Q2_K, CPU_U2, CPU_SUB_HALF_MIN)                                                        \
    X(QUANT_Q3_K, CPU_U3, CPU_SUB_HALF)                                                            \
    X(QUANT_Q4_K, CPU_U4, CPU_SUB_MIN)                                                             \
    X(QUANT_Q5_K, CPU_U5, CPU_SUB_MIN)                                                             \
    X(QUANT_Q6_K, CPU_U6, CPU_SUB_HALF)

void cpu_unpack_avx512(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_ublock *out) {
    switch (f->type) {
#define X(type, planes, scaling)                                                                   \
    case type: unpack_panel(planes, scaling, f, panel, n_blocks, out); break;
        EACH_FORMAT(X)
#undef X
    default: ridge_assert(f->type == QUANT_Q4_0);
    }
}

void cpu_gemv_avx512(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                     const cpu_xblock *x, float *out, uint32_t n_rows) {
    switch (f->type) {
#define X(type, planes, scaling)                                                                   \
    case type: gemv_panel(planes, scaling, f, panel, n_blocks, x, out, n_rows); break;
        EACH_FORMAT(X)
#undef X
    default: ridge_assert(f->type == QUANT_Q4_0);
    }
}

/* Up to 12 tokens ------------------------------------------------------------------------------ */

/* Quads [first, first + n) of a block into isum; T is a constant. */
INLINE void add_quads(const cpu_ublock *w, const cpu_xblock *x, int first, int n, int T,
                      __m512i isum[CPU_TILE]) {
#pragma GCC unroll 8
    for (int quad = first; quad < first + n; quad++) {
        __m512i v = _mm512_load_si512(w->q + quad * 64);
#pragma GCC unroll 12
        for (int t = 0; t < T; t++) isum[t] = _mm512_dpbusd_epi32(isum[t], v, four(&x[t], quad));
    }
}

/* T tokens of the tile from token t0 on; T is a constant. */
INLINE void gemm_tile(const cpu_gemm_args *a, uint32_t t0, int T, bool halves, bool min) {
    const cpu_ublock *w = a->w;
    const cpu_xblock *x = a->x + t0;
    const __m128i shift = _mm_cvtsi32_si128(a->format->zero_shift);
    __m512 acc[CPU_TILE];
    for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < a->n_blocks; b++, w++, x += a->width) {
        for (int h = 0; h < 1 + halves; h++) {
            __m512i isum[CPU_TILE];
#pragma GCC unroll 12
            for (int t = 0; t < T; t++) {
                int32_t nsum = !halves  ? x[t].nsum
                               : h == 0 ? x[t].nsum_lo
                                        : x[t].nsum - x[t].nsum_lo;
                isum[t] =
                    min ? _mm512_setzero_si512() : _mm512_sll_epi32(_mm512_set1_epi32(nsum), shift);
            }
            add_quads(w, x, 4 * h, halves ? 4 : 8, T, isum);
            __m512 s = _mm512_load_ps(w->s[h]), m = _mm512_load_ps(w->m[h]);
#pragma GCC unroll 12
            for (int t = 0; t < T; t++) {
                acc[t] = add_scaled(acc[t], isum[t], s, x[t].d);
                if (!min) continue;
                int32_t nsum = h == 0 ? x[t].nsum_lo : x[t].nsum - x[t].nsum_lo;
                float xsum = halves ? x[t].d * (float)-nsum : x[t].xsum;
                acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(xsum), acc[t]);
            }
        }
    }
    const __mmask16 rows = (__mmask16)((1u << a->n_rows) - 1);
    for (int t = 0; t < T; t++)
        _mm512_mask_storeu_ps(a->out + (t0 + (size_t)t) * a->ld, rows, acc[t]);
}

/* Widths are made of 12, 4 and 1: a function for each would take compilers minutes. */
INLINE void gemm_widths(const cpu_gemm_args *a, bool halves, bool min) {
    if (a->width == CPU_TILE) {
        gemm_tile(a, 0, CPU_TILE, halves, min);
        return;
    }
    uint32_t t = 0;
    for (; t + 4 <= a->width; t += 4) gemm_tile(a, t, 4, halves, min);
    for (; t < a->width; t++) gemm_tile(a, t, 1, halves, min);
}

void cpu_gemm_avx512(const cpu_gemm_args *a) {
    if (a->format->halves && a->format->has_min)
        gemm_widths(a, true, true);
    else if (a->format->halves)
        gemm_widths(a, true, false);
    else if (a->format->has_min)
        gemm_widths(a, false, true);
    else
        gemm_widths(a, false, false);
}
