/* sample/spans: the passes for the avx512 path. */
#include "sample/spans.inc"

const span_passes span_passes_avx512 = {largest, sum, sum_from, pick, weights, weight};
