/* server/histogram: a Prometheus histogram: how many values lie at or below each bound, and their
 * sum. Pure; one thread.
 */
#ifndef RIDGE_SERVER_HISTOGRAM_H
#define RIDGE_SERVER_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define HISTOGRAM_MAX_BOUNDS 32

typedef struct {
    double bounds[HISTOGRAM_MAX_BOUNDS];        /* [n_bounds] ascending */
    char bound_texts[HISTOGRAM_MAX_BOUNDS][16]; /* as Go's client and Python's write them: "0.5",
                                                   "1.0", "1e+06": dashboards compare the text */
    size_t n_bounds;
    uint64_t counts[HISTOGRAM_MAX_BOUNDS + 1]; /* of values up to bounds[i] and above the one
                                                  before; the last: above all */
    double sum;
} histogram;

/* Empty. The bounds are at least 0.001 and have up to six significant digits. */
void histogram_init(histogram *h, const double *bounds, size_t n_bounds);
/* The bounds 1, 2, 5, 10, 20 ... up to most. */
void histogram_init_125(histogram *h, double most);
/* What is not above 0 (NaN too) counts as 0; an infinite value isn't counted. */
void histogram_add(histogram *h, double x);
uint64_t histogram_count(const histogram *h);

#endif
