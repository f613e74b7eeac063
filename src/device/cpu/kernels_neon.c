/* device/cpu/kernels_neon: the table of the neon path. */
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
