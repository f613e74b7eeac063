/* device/cpu/vec_x86: the last steps of sums over lanes, the same on AVX2 and AVX-512. */
#ifndef RIDGE_DEVICE_CPU_VEC_X86_H
#define RIDGE_DEVICE_CPU_VEC_X86_H

#include <immintrin.h>
#include <stdint.h>

/* Lane i with i + 4, then 2 and 1 apart: the tree of vector_ops.inc. */
static inline float x86_sum8(__m256 a) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float x86_max8(__m256 a) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline int32_t v_sum_i8(const int8_t *p) {
    __m128i biased = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(-128));
    __m128i s = _mm_sad_epu8(biased, _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

#endif
