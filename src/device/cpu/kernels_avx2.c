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
