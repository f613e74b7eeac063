/* device/cpu/kernels_avx512: the table of the avx512 path. */
#include <math.h>

#include "device/cpu/linear.h"
#include "device/cpu/vec_avx512.h"
#include "format/quant.h"

#include "device/cpu/vector_ops.inc"

const cpu_kernels cpu_kernels_avx512 = {
    .isa = "avx512",
    .unpack = cpu_unpack_avx512,
    .gemm = cpu_gemm_avx512,
    .gemm_packed = cpu_gemm_packed_avx512,
    .max_packed = CPU_FEW_AVX512,
    VECTOR_KERNELS,
};
