/* The avx512 path on a machine with AVX2 alone: its own source, in which a register of 512 bits is
 * two of 256. Compiled once for each SOURCE of src/device/cpu; in a test linked with these the
 * path is chosen as if the machine had it, so that tests which compare paths run it everywhere.
 */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    __m256 h[2];
} two_ps;
typedef struct {
    __m256i h[2];
} two_i;
/* Macros to some compilers, functions to others. */
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32
#undef _mm512_slli_epi32
#undef _mm512_roundscale_ps
#undef _mm512_permute_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#define __m512 two_ps
#define __m512i two_i

#define BINARY(T, op)                                                                              \
    static inline T h_##op(T a, T b) {                                                             \
        return (T){{_mm256_##op(a.h[0], b.h[0]), _mm256_##op(a.h[1], b.h[1])}};                    \
    }
#define FROM(T, name, from, op)                                                                    \
    static inline T h_##name(from a) {                                                             \
        return (T){{op(a.h[0]), op(a.h[1])}};                                                      \
    }
#define SET(T, name, from, op)                                                                     \
    static inline T h_##name(from a) {                                                             \
        return (T){{op(a), op(a)}};                                                                \
    }
#define SHIFT(name, n_type)                                                                        \
    static inline two_i h_##name(two_i a, n_type n) {                                              \
        return (two_i){{_mm256_##name(a.h[0], n), _mm256_##name(a.h[1], n)}};                      \
    }

BINARY(two_ps, add_ps)
BINARY(two_ps, sub_ps)
BINARY(two_ps, mul_ps)
BINARY(two_ps, div_ps)
BINARY(two_ps, max_ps)
BINARY(two_ps, min_ps)
BINARY(two_ps, xor_ps)
BINARY(two_i, add_epi32)
BINARY(two_i, shuffle_epi8)
BINARY(two_i, sllv_epi32)
FROM(two_ps, cvtepi32_ps, two_i, _mm256_cvtepi32_ps)
FROM(two_i, cvtps_epi32, two_ps, _mm256_cvtps_epi32)
FROM(two_ps, castsi512_ps, two_i, _mm256_castsi256_ps)
SET(two_ps, set1_ps, float, _mm256_set1_ps)
SET(two_i, set1_epi32, int, _mm256_set1_epi32)
SET(two_i, set1_epi8, char, _mm256_set1_epi8)
SET(two_i, broadcast_i32x4, __m128i, _mm256_broadcastsi128_si256)
SHIFT(srli_epi16, int)
SHIFT(srli_epi32, int)
SHIFT(slli_epi32, int)
#define _mm512_add_ps h_add_ps
#define _mm512_sub_ps h_sub_ps
#define _mm512_mul_ps h_mul_ps
#define _mm512_div_ps h_div_ps
#define _mm512_max_ps h_max_ps
#define _mm512_min_ps h_min_ps
#define _mm512_xor_ps h_xor_ps
#define _mm512_add_epi32 h_add_epi32
#define _mm512_shuffle_epi8 h_shuffle_epi8
#define _mm512_sllv_epi32 h_sllv_epi32
#define _mm512_cvtepi32_ps h_cvtepi32_ps
#define _mm512_cvtps_epi32 h_cvtps_epi32
#define _mm512_castsi512_ps h_castsi512_ps
#define _mm512_set1_ps h_set1_ps
#define _mm512_set1_epi32 h_set1_epi32
#define _mm512_set1_epi8 h_set1_epi8
#define _mm512_setzero_ps() h_set1_ps(0)
#define _mm512_setzero_si512() h_set1_epi32(0)
#define _mm512_broadcast_i32x4 h_broadcast_i32x4
#define _mm512_srli_epi16(a, n) h_srli_epi16(a, (int)(n))
#define _mm512_srli_epi32(a, n) h_srli_epi32(a, (int)(n))
#define _mm512_slli_epi32(a, n) h_slli_epi32(a, (int)(n))

/* Bits: the names of 512 are not those of 256 with another number. */
#define BITS(name, op)                                                                             \
    static inline two_i h_##name(two_i a, two_i b) {                                               \
        return (two_i){{op(a.h[0], b.h[0]), op(a.h[1], b.h[1])}};                                  \
    }
BITS(and_si512, _mm256_and_si256)
BITS(or_si512, _mm256_or_si256)
#define _mm512_and_si512 h_and_si512
#define _mm512_or_si512 h_or_si512

static inline two_ps h_fmadd_ps(two_ps a, two_ps b, two_ps c) {
    return (two_ps){
        {_mm256_fmadd_ps(a.h[0], b.h[0], c.h[0]), _mm256_fmadd_ps(a.h[1], b.h[1], c.h[1])}};
}
static inline two_ps h_abs_ps(two_ps a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (two_ps){{_mm256_andnot_ps(sign, a.h[0]), _mm256_andnot_ps(sign, a.h[1])}};
}
#define _mm512_fmadd_ps h_fmadd_ps
#define _mm512_abs_ps h_abs_ps
#define _mm512_roundscale_ps(a, how)                                                               \
    ((two_ps){{_mm256_round_ps((a).h[0], how), _mm256_round_ps((a).h[1], how)}})
#define _mm512_permute_ps(a, how)                                                                  \
    ((two_ps){{_mm256_permute_ps((a).h[0], how), _mm256_permute_ps((a).h[1], how)}})
#define _mm512_castps512_ps256(a) ((a).h[0])
#define _mm512_extractf32x8_ps(a, i) ((a).h[i])

/* Quarters a[how & 3], a[how >> 2 & 3] of a, then of b. */
static inline two_ps h_shuffle_f32x4(two_ps a, two_ps b, int how) {
    __m128 from[2][4], to[4];
    two_ps out;
    memcpy(from[0], &a, sizeof a);
    memcpy(from[1], &b, sizeof b);
    for (int i = 0; i < 4; i++) to[i] = from[i / 2][how >> 2 * i & 3];
    memcpy(&out, to, sizeof out);
    return out;
}
#define _mm512_shuffle_f32x4 h_shuffle_f32x4

/* Memory --------------------------------------------------------------------------------------- */

static inline two_ps h_load_ps(const float *p) {
    return (two_ps){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
static inline void h_store_ps(float *p, two_ps a) {
    _mm256_storeu_ps(p, a.h[0]);
    _mm256_storeu_ps(p + 8, a.h[1]);
}
static inline two_i h_load_si512(const void *p) {
    two_i a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline void h_store_si512(void *p, two_i a) {
    memcpy(p, &a, sizeof a);
}
/* All bits of the lanes of half h that the mask names. */
static inline __m256i h_lanes(__mmask16 mask, int h) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask >> 8 * h), bit), bit);
}
static inline two_ps h_maskz_loadu_ps(__mmask16 mask, const float *p) {
    return (two_ps){
        {_mm256_maskload_ps(p, h_lanes(mask, 0)), _mm256_maskload_ps(p + 8, h_lanes(mask, 1))}};
}
static inline void h_mask_storeu_ps(float *p, __mmask16 mask, two_ps a) {
    for (int h = 0; h < 2; h++) _mm256_maskstore_ps(p + 8 * h, h_lanes(mask, h), a.h[h]);
}
#define _mm512_load_ps h_load_ps
#define _mm512_loadu_ps h_load_ps
#define _mm512_store_ps h_store_ps
#define _mm512_storeu_ps h_store_ps
#define _mm512_load_si512 h_load_si512
#define _mm512_loadu_si512 h_load_si512
#define _mm512_storeu_si512 h_store_si512
#define _mm512_maskz_loadu_ps h_maskz_loadu_ps
#define _mm512_mask_storeu_ps h_mask_storeu_ps

#define _mm512_cmp_ps_mask(a, b, how)                                                              \
    ((__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps((a).h[0], (b).h[0], how)) |                      \
                 _mm256_movemask_ps(_mm256_cmp_ps((a).h[1], (b).h[1], how)) << 8))
static inline two_ps h_mask_blend_ps(__mmask16 mask, two_ps a, two_ps b) {
    two_ps out;
    for (int h = 0; h < 2; h++)
        out.h[h] = _mm256_blendv_ps(a.h[h], b.h[h], _mm256_castsi256_ps(h_lanes(mask, h)));
    return out;
}
#define _mm512_mask_blend_ps h_mask_blend_ps

/* Widths --------------------------------------------------------------------------------------- */

#define WIDER(name, from, low, high, op, T)                                                        \
    static inline T h_##name(from a) {                                                             \
        return (T){{op(low), op(high)}};                                                           \
    }
WIDER(cvtepi8_epi32, __m128i, a, _mm_srli_si128(a, 8), _mm256_cvtepi8_epi32, two_i)
WIDER(cvtepu8_epi32, __m128i, a, _mm_srli_si128(a, 8), _mm256_cvtepu8_epi32, two_i)
WIDER(cvtepu16_epi32, __m256i, _mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1),
      _mm256_cvtepu16_epi32, two_i)
WIDER(cvtph_ps, __m256i, _mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1), _mm256_cvtph_ps,
      two_ps)
#define _mm512_cvtepi8_epi32 h_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 h_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 h_cvtepu16_epi32
#define _mm512_cvtph_ps h_cvtph_ps
#define _mm512_cvtps_ph(a, how)                                                                    \
    _mm256_set_m128i(_mm256_cvtps_ph((a).h[1], how), _mm256_cvtps_ph((a).h[0], how))

static inline __m128i h_cvtsepi32_epi8(two_i a) {
    int32_t from[16];
    int8_t to[16];
    memcpy(from, &a, sizeof from);
    for (int i = 0; i < 16; i++)
        to[i] = (int8_t)(from[i] < -128 ? -128 : from[i] > 127 ? 127 : from[i]);
    return _mm_loadu_si128((const __m128i *)(const void *)to);
}
#define _mm512_cvtsepi32_epi8 h_cvtsepi32_epi8

/* VNNI ----------------------------------------------------------------------------------------- */

/* In place of device/cpu/dpbusd.h: unsigned bytes of w times signed ones of x, by fours. */
#define RIDGE_DEVICE_CPU_DPBUSD_H
static inline two_i dot_reg(two_i isum, two_i w, two_i x) {
    const __m256i low = _mm256_set1_epi16(255);
    for (int h = 0; h < 2; h++) {
        __m256i even = _mm256_madd_epi16(_mm256_and_si256(w.h[h], low),
                                         _mm256_srai_epi16(_mm256_slli_epi16(x.h[h], 8), 8));
        __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w.h[h], 8), _mm256_srai_epi16(x.h[h], 8));
        isum.h[h] = _mm256_add_epi32(isum.h[h], _mm256_add_epi32(even, odd));
    }
    return isum;
}
static inline two_i dot(two_i isum, two_i w, const int8_t *x) {
    int32_t v;
    memcpy(&v, x, sizeof v);
    return dot_reg(isum, w, h_set1_epi32(v));
}

/* choose.c: this machine has it, and is of the other maker: the tests run both tables everywhere.
 */
static inline int other_maker(void) {
    return !__builtin_cpu_is("amd");
}
#define __builtin_cpu_is(maker) other_maker()
#define __builtin_cpu_supports(feature) 1

#include SOURCE
