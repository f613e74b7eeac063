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
