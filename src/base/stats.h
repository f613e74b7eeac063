/* base/stats: what a set of measurements comes to. Pure; any thread. */
#ifndef RIDGE_BASE_STATS_H
#define RIDGE_BASE_STATS_H

#include <stdbool.h>
#include <stddef.h>

/* A growing set of numbers; zero-initialise. */
typedef struct {
    double *values; /* [n] */
    size_t n, capacity;
    bool failed; /* out of memory: some are missing */
} samples;

void samples_add(samples *s, double x);
void samples_free(samples *s);

/* All 0 when n is. */
typedef struct {
    size_t n;
    double mean, min, p50, p90, p95, p99, max;
} quantiles;

void sort_values(double *values, size_t n); /* ascending */

/* The value below which the share q (0 to 1) of sorted values lies, linear between neighbours (as
 * numpy's percentile); n > 0. */
double quantile(const double *sorted, size_t n, double q);
quantiles quantiles_times(quantiles q, double factor); /* in another unit */
/* Sorts the samples. */
quantiles quantiles_of(samples *s);

#endif
