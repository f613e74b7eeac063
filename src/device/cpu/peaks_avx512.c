/* device/cpu/peaks_avx512: the loops of peaks.h on 512-bit registers. */
#include "device/cpu/peaks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define CHAINS 12 /* independent accumulators: enough to hide the latency of a multiply-add */

static uint64_t read_all(const void *data, size_t size) {
    const char *p = data;
    __m512i acc[8];
    for (int j = 0; j < 8; j++) acc[j] = _mm512_setzero_si512();
    for (size_t i = 0; i + 512 <= size; i += 512)
        for (int j = 0; j < 8; j++)
            acc[j] = _mm512_xor_si512(acc[j], _mm512_loadu_si512(p + i + 64 * j));
    for (int j = 1; j < 8; j++) acc[0] = _mm512_xor_si512(acc[0], acc[j]);
    return (uint64_t)_mm512_reduce_or_epi64(acc[0]);
}

static int32_t int8_dots(long rounds) {
    __m512i acc[CHAINS], x = _mm512_set1_epi8(1), y = _mm512_set1_epi8(2);
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm512_setzero_si512();
    for (long i = 0; i < rounds; i++) {
        /* Written out: gcc 12 copies the accumulator of the intrinsic around. */
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++)
            __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc[j]) : "v"(x), "v"(y));
    }
#pragma GCC unroll 12
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm512_add_epi32(acc[0], acc[j]);
    return _mm512_reduce_or_epi32(acc[0]); /* a sum may overflow */
}

static float f32_fmas(long rounds) {
    __m512 acc[CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.5f);
    for (int j = 0; j < CHAINS; j++) acc[j] = _mm512_set1_ps((float)j);
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < CHAINS; j++) acc[j] = _mm512_fmadd_ps(acc[j], x, y);
        __asm__ volatile("" : "+v"(x)); /* keeps the loop from being folded */
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = _mm512_add_ps(acc[0], acc[j]);
    return _mm512_reduce_add_ps(acc[0]);
}

const peaks_loops peaks_avx512 = {read_all, int8_dots, f32_fmas, CHAINS * 64 * 2, CHAINS * 16 * 2};
#endif
