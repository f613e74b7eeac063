/* device/cpu/vec_portable: the vector of vector_ops.inc, one lane: plain C. */
#ifndef RIDGE_DEVICE_CPU_VEC_PORTABLE_H
#define RIDGE_DEVICE_CPU_VEC_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "format/quant.h"

#define V_LANES 1
#define V_QUERIES 4    /* register tiles of attention: queries, */
#define V_GROUPS(q) 1  /* groups of 16 tokens of q queries, */
#define V_COLUMNS(q) 4 /* registers of columns */
#define V_FETCH 0      /* lines of keys and values asked for ahead at each step */
#define V_FGEMM 4      /* tokens of a tile of fgemm */
typedef float vf;

static inline vf v_load(const float *p) {
    return *p;
}
static inline void v_store(float *p, vf a) {
    *p = a;
}
static inline vf v_load_n(const float *p, uint32_t n) {
    return n > 0 ? *p : 0;
}
static inline void v_store_n(float *p, vf a, uint32_t n) {
    if (n > 0) *p = a;
}
static inline vf v_set1(float a) {
    return a;
}
static inline vf v_add(vf a, vf b) {
    return a + b;
}
static inline vf v_sub(vf a, vf b) {
    return a - b;
}
static inline vf v_mul(vf a, vf b) {
    return a * b;
}
static inline vf v_div(vf a, vf b) {
    return a / b;
}
static inline vf v_fma(vf a, vf b, vf c) {
    return fmaf(a, b, c);
}
static inline vf v_max(vf a, vf b) {
    return a > b ? a : b;
}
static inline vf v_min(vf a, vf b) {
    return a < b ? a : b;
}
static inline vf v_abs(vf a) {
    return fabsf(a);
}
static inline vf v_rint(vf a) {
    return rintf(a);
}
/* a < b ? x : y */
static inline vf v_if_lt(vf a, vf b, vf x, vf y) {
    return a < b ? x : y;
}
/* 2^a for integral a in [-126, 127] */
static inline vf v_pow2(vf a) {
    uint32_t bits = (uint32_t)((int32_t)a + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* 16 values, rounded to the nearest, ties to even. */
static inline void v_store_i8(int8_t *p, const vf a[16]) {
    for (int i = 0; i < 16; i++) p[i] = (int8_t)rintf(a[i]);
}
static inline vf v_load_f16(const uint16_t *p) {
    return quant_f16_to_f32(*p);
}
static inline vf v_load_bf16(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
static inline void v_store_f16(uint16_t *p, vf a) {
    *p = quant_f32_to_f16(a);
}
/* lane i with lane i ^ n: there are none */
static inline vf v_swap(vf a, uint32_t n) {
    (void)n;
    return a;
}
static inline vf v_load_i8(const int8_t *p) {
    return *p;
}
/* byte i of each 4 */
static inline vf v_load_byte(const uint8_t *p, int i) {
    return p[i];
}

static inline float v_sum(vf a) {
    return a;
}
static inline float v_max_lane(vf a) {
    return a;
}
/* Of 16: minus the sum of the first two of each four, and of the last two. */
static inline void v_negated_sums(const int8_t *p, int16_t out[2]) {
    out[0] = out[1] = 0;
    for (int i = 0; i < 16; i++) out[i / 2 % 2] = (int16_t)(out[i / 2 % 2] - p[i]);
}

#endif
