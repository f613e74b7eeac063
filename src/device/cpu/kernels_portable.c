/* device/cpu/kernels_portable: the table of the portable path. */
#include <math.h>

#include "device/cpu/linear.h"
#include "device/cpu/vec_portable.h"
#include "format/quant.h"

#include "device/cpu/vector_ops.inc"

const cpu_kernels cpu_kernels_portable = {
    .isa = "portable",
    .unpack = cpu_unpack_portable,
    .gemm = cpu_gemm_portable,
    VECTOR_KERNELS,
};
