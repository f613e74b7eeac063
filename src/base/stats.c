/* base/stats: see stats.h. */
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

void samples_add(samples *s, double x) {
    if (!mem_grow((void **)&s->values, &s->capacity, s->n + 1, sizeof *s->values)) {
        s->failed = true;
        return;
    }
    s->values[s->n++] = x;
}

void samples_free(samples *s) {
    mem_free(s->values);
    *s = (samples){0};
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_values(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_value);
}

double quantile(const double *sorted, size_t n, double q) {
    double at = q * (double)(n - 1);
    size_t below = (size_t)floor(at), above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

quantiles quantiles_times(quantiles q, double factor) {
    double *const all[] = {&q.mean, &q.min, &q.p50, &q.p90, &q.p95, &q.p99, &q.max};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] *= factor;
    return q;
}

quantiles quantiles_of(samples *s) {
    quantiles q = {.n = s->n};
    if (s->n == 0) return q;
    sort_values(s->values, s->n);
    for (size_t i = 0; i < s->n; i++) q.mean += s->values[i] / (double)s->n;
    q.min = s->values[0];
    q.p50 = quantile(s->values, s->n, 0.50);
    q.p90 = quantile(s->values, s->n, 0.90);
    q.p95 = quantile(s->values, s->n, 0.95);
    q.p99 = quantile(s->values, s->n, 0.99);
    q.max = s->values[s->n - 1];
    return q;
}
