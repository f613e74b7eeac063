/* device/cpu/peaks_avx2: the loops of peaks.h on 256-bit registers. */
#include "device/cpu/peaks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define CHAINS 12
#define WIDENED 4 /* sums that are widened at once */

static uint64_t read_all(const void *data, size_t size) {
    const char *p = data;
    __m256i acc[8];
    for (int j = 0; j < 8; j++) acc[j] = _mm256_setzero_si256();
    for (size_t i = 0; i + 256 <= size; i += 256)
        for (int j = 0; j < 8; j++)
            acc[j] = _mm256_xor_si256(acc[j], _mm256_loadu_si256((const void *)(p + i + 32 * j)));
    for (int j = 1; j < 8; j++) acc[0] = _mm256_xor_si256(acc[0], acc[j]);
    return (uint64_t)_mm256_extract_epi64(acc[0], 0) ^ (uint64_t)_mm256_extract_epi64(acc[0], 2);
}

/* Without VNNI a dot of bytes is a multiply-add to 16 bits and an addition; where the quants are
 * small (linear_avx2.c) the sums are widened to 32 bits after eight of them. */
static int32_t int8_dots(long rounds) {
    __m256i acc[WIDENED], x = _mm256_set1_epi8(1), y = _mm256_set1_epi8(2);
#pragma GCC unroll 4
    for (int j = 0; j < WIDENED; j++) acc[j] = _mm256_setzero_si256();
    for (long i = 0; i < rounds; i++) {
        __m256i sum[WIDENED];
#pragma GCC unroll 32
        for (int k = 0; k < 8 * WIDENED; k++) {
            __m256i two;
            __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(two) : "x"(x), "x"(y));
            if (k < WIDENED)
                sum[k] = two;
            else
                __asm__ volatile("vpaddw %1, %0, %0" : "+x"(sum[k % WIDENED]) : "x"(two));
        }
#pragma GCC unroll 4
        for (int j = 0; j < WIDENED; j++)
            acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(sum[j], _mm256_set1_epi16(1)));
    }
    for (int j = 1; j < WIDENED; j++) acc[0] = _mm256_add_epi32(acc[0], acc[j]);
    return _mm256_extract_epi32(acc[0], 0) ^ _mm256_extract_epi32(acc[0], 5);
}

static float f32_fmas(long rounds) {
    __m256 acc[CHAINS], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.5f);
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm256_set1_ps((float)j);
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < CHAINS; j++) acc[j] = _mm256_fmadd_ps(acc[j], x, y);
        __asm__ volatile("" : "+x"(x));
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm256_add_ps(acc[0], acc[j]);
    return _mm256_cvtss_f32(acc[0]);
}

const peaks_loops peaks_avx2 = {read_all, int8_dots, f32_fmas, 8 * WIDENED * 32 * 2,
                                CHAINS * 8 * 2};
#endif
