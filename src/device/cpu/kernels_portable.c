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
    .store_sums = store_sums,
    .fgemm = fgemm,
    .expand = expand,
    .widen_f16 = widen_f16,
    .narrow_f16 = narrow_f16,
    .quantize = quantize,
    .rms_norm = rms_norm,
    .glu = glu,
    .add = add,
    .scale = scale,
    .softcap = softcap,
    .rope_neox = rope_neox,
    .rope_pairs = rope_pairs,
    .attend = attend,
    .merge = merge,
};
