/* device/cpu/kernels_avx512: the table of the avx512 path. */
#include <math.h>

#include "device/cpu/linear.h"
#include "device/cpu/vec_avx512.h"
#include "format/quant.h"

#include "device/cpu/vector_ops.inc"

/* What a processor likes best. Intel's Ice Lake waits for the loads of a walk down a packed panel,
 * one for each product, and wants to be asked for weights ahead. AMD's Zen 4 does neither: its
 * multipliers are what it waits for, so that weights unpacked for many tokens gain nothing. */
#define TABLE(packed, most)                                                                        \
    {                                                                                              \
        .isa = "avx512", .unpack = cpu_unpack_avx512, .gemm = cpu_gemm_avx512,                     \
        .gemm_packed = packed, .max_packed = most, VECTOR_KERNELS                                  \
    }

const cpu_kernels cpu_kernels_avx512 = TABLE(cpu_gemm_packed_avx512, CPU_TILE);
const cpu_kernels cpu_kernels_zen = TABLE(cpu_gemm_packed_zen, CPU_TOKENS);
