/* device/cpu/vec_avx512: the vector of vector_ops.inc, 16 lanes of AVX-512. */
#ifndef RIDGE_DEVICE_CPU_VEC_AVX512_H
#define RIDGE_DEVICE_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "device/cpu/vec_x86.h"

#define V_LANES 16
#define V_QUERIES 4
#define V_GROUPS(q) 4
#define V_COLUMNS(q) 4
#define V_FETCH 2
#define V_FGEMM 8
typedef __m512 vf;

static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf a) {
    _mm512_storeu_ps(p, a);
}
static inline __mmask16 v_first(uint32_t n) {
    return (__mmask16)((1u << (n < 16 ? n : 16)) - 1);
}
static inline vf v_load_n(const float *p, uint32_t n) {
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
static inline void v_store_n(float *p, vf a, uint32_t n) {
    _mm512_mask_storeu_ps(p, v_first(n), a);
}
static inline vf v_set1(float a) {
    return _mm512_set1_ps(a);
}
static inline vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf v_abs(vf a) {
    return _mm512_abs_ps(a);
}
static inline vf v_rint(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_if_lt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline vf v_pow2(vf a) {
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
static inline void v_store_i8(int8_t *p, const vf a[1]) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a[0])));
}
static inline vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf v_load_bf16(const uint16_t *p) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline void v_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* lane i with lane i ^ n */
static inline vf v_swap(vf a, uint32_t n) {
    switch (n) {
    case 1: return _mm512_permute_ps(a, 0xB1);
    case 2: return _mm512_permute_ps(a, 0x4E);
    case 4: return _mm512_shuffle_f32x4(a, a, 0xB1);
    default: return _mm512_shuffle_f32x4(a, a, 0x4E);
    }
}
static inline vf v_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vf v_load_byte(const uint8_t *p, int i) {
    __m512i v = _mm512_srli_epi32(_mm512_loadu_si512(p), 8 * (unsigned)i);
    return _mm512_cvtepi32_ps(_mm512_and_si512(v, _mm512_set1_epi32(255)));
}

static inline float v_sum(vf a) {
    return x86_sum8(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
static inline float v_max_lane(vf a) {
    return x86_max8(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}

#endif
