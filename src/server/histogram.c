/* server/histogram: see histogram.h. */
#include "server/histogram.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"

/* Fixed notation with a fraction below a million, from there d.ddde+XX. */
static void write_bound(double x, char out[16]) {
    if (x >= 1e6)
        snprintf(out, 16, "%g", x);
    else if (x == floor(x))
        snprintf(out, 16, "%.1f", x);
    else
        snprintf(out, 16, "%g", x);
}

void histogram_init(histogram *h, const double *bounds, size_t n_bounds) {
    ridge_assert(n_bounds <= HISTOGRAM_MAX_BOUNDS);
    *h = (histogram){.n_bounds = n_bounds};
    for (size_t i = 0; i < n_bounds; i++) {
        ridge_assert(i == 0 || bounds[i] > bounds[i - 1]);
        h->bounds[i] = bounds[i];
        write_bound(bounds[i], h->bound_texts[i]);
    }
}

void histogram_init_125(histogram *h, double most) {
    double bounds[HISTOGRAM_MAX_BOUNDS];
    size_t n = 0;
    for (double power = 1; power <= most && n + 3 <= HISTOGRAM_MAX_BOUNDS; power *= 10)
        for (int i = 0; i < 3; i++) {
            double bound = power * (i == 0 ? 1 : i == 1 ? 2 : 5);
            if (bound <= most) bounds[n++] = bound;
        }
    histogram_init(h, bounds, n);
}

void histogram_add(histogram *h, double x) {
    if (isinf(x)) return;
    if (!(x > 0)) x = 0;
    size_t i = 0;
    while (i < h->n_bounds && x > h->bounds[i]) i++;
    h->counts[i]++;
    h->sum += x;
}

uint64_t histogram_count(const histogram *h) {
    uint64_t n = 0;
    for (size_t i = 0; i <= h->n_bounds; i++) n += h->counts[i];
    return n;
}
