/* device/cpu/kernels_avx2: the table of the avx2 path. */
#include <math.h>

#include "device/cpu/linear.h"
#include "device/cpu/vec_avx2.h"
#include "format/quant.h"

#include "device/cpu/vector_ops.inc"

const cpu_kernels cpu_kernels_avx2 = {
    .isa = "avx2",
    .unpack = cpu_unpack_avx2,
    .gemm = cpu_gemm_avx2,
    .gemm_packed = cpu_gemm_packed_avx2,
    .max_packed = 2 * CPU_TILE,
    .gemv_pair = cpu_gemv_pair_avx2,
    VECTOR_KERNELS,
};
