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

void cpu_unpack_portable(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                         cpu_ublock *out);
void cpu_gemm_portable(const cpu_gemm_args *a);

void cpu_unpack_avx2(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out);
void cpu_gemm_avx2(const cpu_gemm_args *a);
void cpu_gemm_packed_avx2(const cpu_packed_args *a);

void cpu_unpack_neon(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out);
void cpu_gemm_neon(const cpu_gemm_args *a);

void cpu_unpack_avx512(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_ublock *out);
void cpu_gemm_avx512(const cpu_gemm_args *a);
void cpu_gemm_packed_avx512(const cpu_packed_args *a);

#endif
