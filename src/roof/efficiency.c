/* efficiency: see efficiency.h. */
#include "roof/efficiency.h"

#include "roof/roof.h"

efficiency_profile efficiency_ideal(void) {
    return (efficiency_profile){.name = "ideal"};
}

/* Bytes that each rank sends: rings, the best for large messages (Patarasuk, Yuan, JPDC 2009). */
static double sent_bytes(const efficiency_op *op) {
    double others = op->n_ranks > 1 ? op->n_ranks - 1 : 0;
    switch (op->kind) {
    case EFFICIENCY_ALL_REDUCE: return 2 * others / (others + 1) * op->bytes;
    case EFFICIENCY_ALL_GATHER: return others / (others + 1) * op->bytes;
    default: return others > 0 ? op->bytes : 0;
    }
}

double efficiency_seconds(const efficiency_profile *profile, const efficiency_peaks *peaks,
                          const efficiency_op *op) {
    (void)profile;
    if (op->kind >= EFFICIENCY_ALL_REDUCE)
        return roof_seconds(0, 0, sent_bytes(op), peaks->link_bytes_per_s);
    return roof_seconds(op->flops, peaks->flops_per_s, op->bytes, peaks->bytes_per_s);
}
