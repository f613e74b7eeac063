/* device/cpu/dpbusd: the multiply-add of VNNI, 4 unsigned bytes times 4 signed ones in each lane.
 * Written out, as gcc 12 copies the accumulator of the intrinsic around. */
#ifndef RIDGE_DEVICE_CPU_DPBUSD_H
#define RIDGE_DEVICE_CPU_DPBUSD_H

#include <immintrin.h>
#include <stdint.h>

/* isum += w * the four activations at x, which the instruction itself broadcasts. */
static inline __attribute__((always_inline)) __m512i dot(__m512i isum, __m512i w, const int8_t *x) {
    typedef int32_t unaligned __attribute__((aligned(1), may_alias));
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(isum) : "v"(w), "m"(*(const unaligned *)x));
    return isum;
}

/* The same with the activations in a register: for two panels they are loaded once. */
static inline __attribute__((always_inline)) __m512i dot_reg(__m512i isum, __m512i w, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(isum) : "v"(w), "v"(x));
    return isum;
}

#endif
