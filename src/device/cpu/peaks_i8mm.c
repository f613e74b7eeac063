/* device/cpu/peaks_i8mm: the loop of peaks.h on products of matrices; the others are NEON's. */
#include <arm_neon.h>

#include "device/cpu/peaks.h"

#define CHAINS 16

int32_t peaks_int8_i8mm(long rounds) {
    int32x4_t acc[CHAINS];
    uint8x16_t x = vdupq_n_u8(1);
    int8x16_t y = vdupq_n_s8(2);
    for (int j = 0; j < CHAINS; j++) acc[j] = vdupq_n_s32(j);
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < CHAINS; j++) acc[j] = vusmmlaq_s32(acc[j], x, y);
        __asm__ volatile("" : "+w"(x));
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = vaddq_s32(acc[0], acc[j]);
    return vaddvq_s32(acc[0]);
}
