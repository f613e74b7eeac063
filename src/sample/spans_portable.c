/* sample/spans: the passes for the portable path, and the choice. */
#include "sample/spans.inc"

const float span_lowest = -127.0f;

const span_passes span_passes_portable = {largest, sum, sum_from, pick, weights, weight};

const span_passes *span_passes_find(const char *isa) {
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0) return &span_passes_avx512;
    if (strcmp(isa, "avx2") == 0) return &span_passes_avx2;
#else
    (void)isa;
#endif
    return &span_passes_portable;
}
