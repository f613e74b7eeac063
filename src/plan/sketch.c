/* plan/sketch: see sketch.h. */
#include "plan/sketch.h"

#include <math.h>

#define LEAST 1e-7
/* ln((1 + e) / (1 - e)): a bucket is (LEAST * g^(i-1), LEAST * g^i]. */
#define LOG_GROWTH (2 * (SKETCH_ERROR + SKETCH_ERROR * SKETCH_ERROR * SKETCH_ERROR / 3))

static uint32_t bucket_of(double x) {
    double i = ceil(log(x / LEAST) / LOG_GROWTH);
    return i > 0 ? i < SKETCH_BUCKETS - 1 ? (uint32_t)i : SKETCH_BUCKETS - 1 : 0;
}

void sketch_add(sketch *s, double x, uint64_t n) {
    s->counts[bucket_of(x)] += n;
    s->min = s->n == 0 || x < s->min ? x : s->min;
    s->max = s->n == 0 || x > s->max ? x : s->max;
    s->sum += x * (double)n;
    s->n += n;
}

/* The value of so high a rank, from 0: what is within SKETCH_ERROR of a whole bucket. */
static double value_at(const sketch *s, uint64_t rank) {
    uint64_t n = 0;
    uint32_t i = 0;
    while (i < SKETCH_BUCKETS - 1 && (n += s->counts[i]) <= rank) i++;
    double x = LEAST * exp(LOG_GROWTH * i) * (1 - SKETCH_ERROR);
    return fmin(fmax(x, s->min), s->max);
}

/* Between neighbours as quantile() of base/stats.h. */
static double quantile_of(const sketch *s, double q) {
    double at = q * (double)(s->n - 1);
    uint64_t below = (uint64_t)at, above = below + 1 < s->n ? below + 1 : below;
    double low = value_at(s, below);
    return low + (at - (double)below) * (value_at(s, above) - low);
}

quantiles sketch_quantiles(const sketch *s) {
    if (s->n == 0) return (quantiles){0};
    return (quantiles){.n = s->n,
                       .mean = s->sum / (double)s->n,
                       .min = s->min,
                       .p50 = quantile_of(s, 0.50),
                       .p90 = quantile_of(s, 0.90),
                       .p95 = quantile_of(s, 0.95),
                       .p99 = quantile_of(s, 0.99),
                       .max = s->max};
}
