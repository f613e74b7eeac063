/* device/cpu/vec_avx2: the vector of vector_ops.inc, 8 lanes of AVX2 and FMA. */
#ifndef RIDGE_DEVICE_CPU_VEC_AVX2_H
#define RIDGE_DEVICE_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "device/cpu/vec_x86.h"

#define V_LANES 8
#define V_QUERIES 6
#define V_GROUPS(q) ((q) < 4 ? 2 : 1)
#define V_COLUMNS(q) ((q) < 4 ? 4 : 2)
#define V_FETCH 1
#define V_FGEMM 4
typedef __m256 vf;

static inline vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf a) {
    _mm256_storeu_ps(p, a);
}
static inline __m256i v_first(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load_n(const float *p, uint32_t n) {
    return _mm256_maskload_ps(p, v_first(n));
}
static inline void v_store_n(float *p, vf a, uint32_t n) {
    _mm256_maskstore_ps(p, v_first(n), a);
}
static inline vf v_set1(float a) {
    return _mm256_set1_ps(a);
}
static inline vf v_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf v_abs(vf a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf v_rint(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_if_lt(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline vf v_pow2(vf a) {
    __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
/* One store, of which loads of the whole need not wait. */
static inline void v_store_i8(int8_t *p, const vf a[2]) {
    __m256i h = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1]));
    __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    _mm_storeu_si128((__m128i *)p, _mm_shuffle_epi32(b, 0xD8)); /* fours in order */
}
static inline vf v_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf v_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline void v_store_f16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* lane i with lane i ^ n */
static inline vf v_swap(vf a, uint32_t n) {
    switch (n) {
    case 1: return _mm256_permute_ps(a, 0xB1);
    case 2: return _mm256_permute_ps(a, 0x4E);
    default: return _mm256_permute2f128_ps(a, a, 0x01);
    }
}
static inline vf v_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf v_load_byte(const uint8_t *p, int i) {
    __m256i v = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p), 8 * i);
    return _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(255)));
}

static inline float v_sum(vf a) {
    return x86_sum8(a);
}
static inline float v_max_lane(vf a) {
    return x86_max8(a);
}

#endif
