/* device/cpu/kernels_neon: the tables of the neon path, and of the same with products of matrices.
 */
#include <math.h>

#include "device/cpu/linear.h"
#include "device/cpu/vec_neon.h"
#include "format/quant.h"

#include "device/cpu/vector_ops.inc"

const cpu_kernels cpu_kernels_neon = {
    .isa = "neon",
    .unpack = cpu_unpack_neon,
    .gemm = cpu_gemm_neon,
    VECTOR_KERNELS,
};

const cpu_kernels cpu_kernels_i8mm = {
    .isa = "i8mm",
    .unpack = cpu_unpack_neon,
    .gemm = cpu_gemm_i8mm,
    VECTOR_KERNELS,
};
