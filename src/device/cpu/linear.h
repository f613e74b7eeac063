/* device/cpu/linear: the integer kernels of each path (contracts: cpu_kernels). */
#ifndef RIDGE_DEVICE_CPU_LINEAR_H
#define RIDGE_DEVICE_CPU_LINEAR_H

#include "device/cpu/cpu_internal.h"

/* Scales of one block, shared by the paths: sub-scales are small next to the quants. */
void cpu_unpack_scales(const cpu_format *f, const uint8_t *head, const uint8_t *sub,
                       cpu_ublock *out);

/* The walk over a panel's blocks, shared by the same: quants makes the 512 of one block. */
typedef void (*cpu_unpack_quants)(cpu_planes planes, const uint8_t *block, uint8_t *q);
void cpu_unpack_blocks(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_unpack_quants quants, cpu_ublock *out);

/* What a kernel of one format has as constants: it is made for each of these, and chooses among
 * them once per panel. */
#define CPU_EACH_FORMAT(X)                                                                         \
    X(QUANT_Q4_0, CPU_U4, CPU_SCALE)                                                               \
    X(QUANT_Q4_1, CPU_U4, CPU_SCALE_MIN)                                                           \
    X(QUANT_Q5_0, CPU_U5, CPU_SCALE)                                                               \
    X(QUANT_Q5_1, CPU_U5, CPU_SCALE_MIN)                                                           \
    X(QUANT_Q8_0, CPU_U8, CPU_SCALE)                                                               \
    X(QUANT_IQ4_NL, CPU_U4_TABLE, CPU_SCALE)                                                       \
    X(QUANT_Q2_K, CPU_U2, CPU_SUB_HALF_MIN)                                                        \
    X(QUANT_Q3_K, CPU_U3, CPU_SUB_HALF)                                                            \
    X(QUANT_Q4_K, CPU_U4, CPU_SUB_MIN)                                                             \
    X(QUANT_Q5_K, CPU_U5, CPU_SUB_MIN)                                                             \
    X(QUANT_Q6_K, CPU_U6, CPU_SUB_HALF)

static inline bool cpu_has_halves(cpu_scaling s) {
    return s == CPU_SUB_HALF || s == CPU_SUB_HALF_MIN;
}

static inline bool cpu_has_min(cpu_scaling s) {
    return s == CPU_SCALE_MIN || s == CPU_SUB_MIN || s == CPU_SUB_HALF_MIN;
}

void cpu_unpack_portable(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                         cpu_ublock *out);
void cpu_gemm_portable(const cpu_gemm_args *a);

void cpu_unpack_avx2(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out);
void cpu_gemm_avx2(const cpu_gemm_args *a);
void cpu_gemm_packed_avx2(const cpu_packed_args *a);
void cpu_gemv_pair_avx2(const cpu_pair_args *a);

void cpu_unpack_neon(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out);
void cpu_gemm_neon(const cpu_gemm_args *a);
void cpu_gemm_i8mm(const cpu_gemm_args *a);

void cpu_unpack_avx512(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_ublock *out);
void cpu_gemm_avx512(const cpu_gemm_args *a);
void cpu_gemm_packed_avx512(const cpu_packed_args *a);
void cpu_gemm_packed_zen(const cpu_packed_args *a);

#endif
