/* device/cpu/vec_neon: the vector of vector_ops.inc, 4 lanes of NEON.
 *
 * Maximum and minimum are comparisons, not vmaxq and vminq: of a pair with a NaN those give the
 * NaN, the other paths the second operand.
 */
#ifndef RIDGE_DEVICE_CPU_VEC_NEON_H
#define RIDGE_DEVICE_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define V_LANES 4
#define V_QUERIES 4
#define V_GROUPS(q) 1
#define V_COLUMNS(q) 4
#define V_FETCH 0
#define V_FGEMM 4
typedef float32x4_t vf;

static inline void v_prefetch(const void *p) {
    __builtin_prefetch(p);
}
static inline vf v_load(const float *p) {
    return vld1q_f32(p);
}
static inline void v_store(float *p, vf a) {
    vst1q_f32(p, a);
}
static inline vf v_load_n(const float *p, uint32_t n) {
    float x[V_LANES] = {0};
    for (uint32_t i = 0; i < V_LANES && i < n; i++) x[i] = p[i];
    return vld1q_f32(x);
}
static inline void v_store_n(float *p, vf a, uint32_t n) {
    float x[V_LANES];
    vst1q_f32(x, a);
    for (uint32_t i = 0; i < V_LANES && i < n; i++) p[i] = x[i];
}
static inline vf v_set1(float a) {
    return vdupq_n_f32(a);
}
static inline vf v_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf v_max(vf a, vf b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf v_min(vf a, vf b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf v_abs(vf a) {
    return vabsq_f32(a);
}
static inline vf v_rint(vf a) {
    return vrndnq_f32(a);
}
static inline vf v_if_lt(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vcltq_f32(a, b), x, y);
}
static inline vf v_pow2(vf a) {
    int32x4_t i = vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(i, 23));
}
static inline void v_store_i8(int8_t *p, const vf a[4]) {
    int16x4_t h[4];
    for (int i = 0; i < 4; i++) h[i] = vqmovn_s32(vcvtnq_s32_f32(a[i]));
    vst1q_s8(
        p, vcombine_s8(vqmovn_s16(vcombine_s16(h[0], h[1])), vqmovn_s16(vcombine_s16(h[2], h[3]))));
}
static inline vf v_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vf v_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void v_store_f16(uint16_t *p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
/* lane i with lane i ^ n */
static inline vf v_swap(vf a, uint32_t n) {
    return n == 1 ? vrev64q_f32(a) : vextq_f32(a, a, 2);
}
static inline vf v_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
static inline vf v_load_byte(const uint8_t *p, int i) {
    uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(p));
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(v, vdupq_n_s32(-8 * i)), vdupq_n_u32(255)));
}

/* Lane i with i + 2, then 1 apart: the tree of vector_ops.inc. */
static inline float v_sum(vf a) {
    float32x2_t x = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(x, 0) + vget_lane_f32(x, 1);
}
static inline float v_max_lane(vf a) {
    vf x = v_max(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(v_max(x, vextq_f32(x, x, 1)), 0);
}
static inline void v_negated_sums(const int8_t *p, int16_t out[2]) {
    int16x8_t two = vpaddlq_s8(vld1q_s8(p));
    int16x4_t s = vadd_s16(vget_low_s16(two), vget_high_s16(two));
    s = vneg_s16(vadd_s16(s, vext_s16(s, s, 2)));
    out[0] = vget_lane_s16(s, 0);
    out[1] = vget_lane_s16(s, 1);
}

#endif
