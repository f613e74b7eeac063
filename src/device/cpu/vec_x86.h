/* device/cpu/vec_x86: the last steps of sums over lanes, the same on AVX2 and AVX-512. */
#ifndef RIDGE_DEVICE_CPU_VEC_X86_H
#define RIDGE_DEVICE_CPU_VEC_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

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

static inline void v_negated_sums(const int8_t *p, int16_t out[2]) {
    __m128i v = _mm_loadu_si128((const __m128i *)p), s = _mm_maddubs_epi16(_mm_set1_epi8(1), v);
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xB1));
    int32_t both = _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), s));
    memcpy(out, &both, sizeof both);
}

#endif
