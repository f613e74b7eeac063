/* device/cpu/peaks_neon: the loops of peaks.h on NEON with dot products, and the tables of both
 * paths. */
#include <arm_neon.h>

#include "device/cpu/peaks.h"

#define CHAINS 16

static uint64_t read_all(const void *data, size_t size) {
    const uint64_t *p = data;
    uint64x2_t acc[8];
    for (int j = 0; j < 8; j++) acc[j] = vdupq_n_u64(0);
    for (size_t i = 0; i + 16 <= size / 8; i += 16)
        for (int j = 0; j < 8; j++) acc[j] = veorq_u64(acc[j], vld1q_u64(p + i + 2 * j));
    for (int j = 1; j < 8; j++) acc[0] = veorq_u64(acc[0], acc[j]);
    return vgetq_lane_u64(acc[0], 0) ^ vgetq_lane_u64(acc[0], 1);
}

static int32_t int8_dots(long rounds) {
    int32x4_t acc[CHAINS];
    int8x16_t x = vdupq_n_s8(1), y = vdupq_n_s8(2);
    for (int j = 0; j < CHAINS; j++) acc[j] = vdupq_n_s32(j);
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < CHAINS; j++) acc[j] = vdotq_s32(acc[j], x, y);
        __asm__ volatile("" : "+w"(x));
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = vaddq_s32(acc[0], acc[j]);
    return vaddvq_s32(acc[0]);
}

static float f32_fmas(long rounds) {
    float32x4_t acc[CHAINS], x = vdupq_n_f32(0.999f), y = vdupq_n_f32(0.5f);
    for (int j = 0; j < CHAINS; j++) acc[j] = vdupq_n_f32((float)j);
    for (long i = 0; i < rounds; i++) {
        for (int j = 0; j < CHAINS; j++) acc[j] = vfmaq_f32(acc[j], x, y);
        __asm__ volatile("" : "+w"(x));
    }
    for (int j = 1; j < CHAINS; j++) acc[0] = vaddq_f32(acc[0], acc[j]);
    return vaddvq_f32(acc[0]);
}

const peaks_loops peaks_neon = {read_all, int8_dots, f32_fmas, CHAINS * 16 * 2, CHAINS * 4 * 2};

const peaks_loops peaks_i8mm = {read_all, peaks_int8_i8mm, f32_fmas, CHAINS * 32 * 2,
                                CHAINS * 4 * 2};
