/* sample/spans: the passes for the avx2 path. */
#include "sample/spans.inc"

const span_passes span_passes_avx2 = {largest, sum, sum_from, pick, weights, weight};
