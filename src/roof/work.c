/* roof/work: see work.h. */
#include "roof/work.h"

#include <math.h>

double work_seen_by_rows(uint32_t window, double first, double n) {
    double last = first + n; /* tokens that the last row sees */
    if (window == 0 || last <= window) return n * first + n * (n + 1) / 2;
    if (first >= window) return n * window;
    double growing = window - first;
    return growing * first + growing * (growing + 1) / 2 + (n - growing) * window;
}

double work_latent_flops(const work_latent *l, double n, double seen, double read) {
    double up =
        2 * l->n_heads * l->rank * (l->n_nope + l->n_value); /* per token that goes through */
    double made = up * read + 2 * l->n_heads * (l->n_nope + l->n_rope + l->n_value) * seen;
    double absorbed = up * n + 2 * l->n_heads * (2 * l->rank + l->n_rope) * seen;
    return fmin(made, absorbed);
}

double work_experts_touched(double n_experts, double top_k, double n) {
    return n_experts * (1 - pow(1 - top_k / n_experts, n));
}
