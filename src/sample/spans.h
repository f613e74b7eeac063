/* sample/spans: passes over logits, a span of 256 at a time.
 *
 * A vocabulary is cut into spans; of each the largest logit is found first, and what cannot matter
 * is left out by that alone: spans without a candidate are never looked at again. Weights are
 * powers of two, 2^((x - top) * c), by a polynomial in plain C (spans.inc), which each path's
 * instructions compute in the same order: all paths give the same bits.
 */
#ifndef RIDGE_SAMPLE_SPANS_H
#define RIDGE_SAMPLE_SPANS_H

#include <stdint.h>

#define SPAN 256
#define SPAN_LOG2E 1.44269504f /* c of weights e^(x - top) */

/* x [SPAN]; weights are of x - top, top >= every x, and 0 for NaN, -inf and below 2^-126. Relative
 * error: under 3e-7, and under 2e-7 of |x - top| * c more. Sums are in float, in a fixed tree. */
typedef struct {
    float (*largest)(const float *x); /* never NaN, -inf where there is none */
    float (*sum)(const float *x, float top, float c);
    /* Of those with x >= limit: their sum, and how many. */
    float (*sum_from)(const float *x, float top, float c, float limit, uint32_t *n);
    /* Those in [from, below), in their order, and first + their indices; returns how many. */
    uint32_t (*pick)(const float *x, float from, float below, int32_t first,
                     float *out_x /* [SPAN] */, int32_t *out_at /* [SPAN] */);
    void (*weights)(const float *x, float top, float c, float *w /* [SPAN] */);
    float (*weight)(float x, float top, float c); /* of one */
} span_passes;

/* The exponent whose power is 0. No constant: compilers would branch on it. */
extern const float span_lowest;

/* By the name of the device's path ("avx512"); the portable one for a name that has none of its
 * own. The machine must have that path. */
const span_passes *span_passes_find(const char *isa);

extern const span_passes span_passes_portable;
#if defined(__x86_64__)
extern const span_passes span_passes_avx2, span_passes_avx512;
#endif

#endif
