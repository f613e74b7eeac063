/* efficiency: see efficiency.h. */
#include "roof/efficiency.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

efficiency_profile efficiency_ideal(void) {
    efficiency_profile p = {.name = "ideal"};
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        p.kinds[k] = (efficiency_numbers){
            .compute = 1, .bandwidth = 1, .link = 1, .sharpness = INFINITY, .few_compute = 1};
    return p;
}

/* Bytes that each rank sends: rings, the best for large messages (Patarasuk, Yuan, JPDC 2009). */
static double sent_bytes(const efficiency_op *op) {
    double others = op->n_ranks - 1;
    switch (op->kind) {
    case EFFICIENCY_ALL_REDUCE: return 2 * others / (others + 1) * op->bytes;
    case EFFICIENCY_ALL_GATHER: return others / (others + 1) * op->bytes;
    default: return op->bytes;
    }
}

static double over(double amount, double per_second) {
    return per_second > 0 ? amount / per_second : 0;
}

/* Of terms relative to the largest, so that nothing overflows. */
static double norm_of(const double *terms, int n, double p) {
    double most = 0, sum = 0;
    for (int i = 0; i < n; i++) most = fmax(most, terms[i]);
    if (most <= 0 || isinf(p)) return most;
    for (int i = 0; i < n; i++)
        if (terms[i] > 0) sum += terms[i] < most ? pow(terms[i] / most, p) : 1;
    return most * pow(sum, 1 / p);
}

static double compute_seconds(const efficiency_numbers *c, double peak, const efficiency_op *op) {
    if (op->m > 0 && op->m <= c->few_tokens) return over(op->flops, c->few_compute * peak);
    double unpacking = op->m > 0 ? op->flops / op->m * c->unpack_tokens : 0;
    return over(op->flops + unpacking + 2 * op->k * c->wave_outputs, c->compute * peak);
}

double efficiency_seconds(const efficiency_profile *profile, const efficiency_peaks *peaks,
                          const efficiency_op *op) {
    const efficiency_numbers *c = &profile->kinds[op->kind];
    if (op->kind >= EFFICIENCY_ALL_REDUCE) {
        if (op->n_ranks <= 1) return 0;
        double terms[] = {c->latency_s, over(sent_bytes(op), c->link * peaks->link_bytes_per_s)};
        return c->overhead_s + norm_of(terms, 2, c->sharpness);
    }
    double bytes = op->bytes + profile->activations * op->intermediate_bytes;
    double terms[] = {
        c->latency_s,
        compute_seconds(c, peaks->flops_per_s, op),
        over(bytes, c->bandwidth * peaks->bytes_per_s),
    };
    return c->overhead_s + norm_of(terms, 3, c->sharpness);
}

const char *efficiency_assumed(const efficiency_profile *profile, efficiency_kind kind) {
    static const char mark[] = "assumed: ";
    const char *from = profile->kinds[kind].from;
    if (strncmp(from, mark, strlen(mark)) == 0) return from + strlen(mark);
    bool left_out = from[0] == '\0' && strcmp(profile->name, "ideal") != 0;
    return left_out ? "as ideal" : NULL;
}
