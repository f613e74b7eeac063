/* roof: see roof.h. */
#include "roof/roof.h"

#include <stdbool.h>

static double over(double amount, double per_second) {
    return per_second > 0 ? amount / per_second : 0;
}

double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s) {
    double compute = over(ops, peak_ops_per_s), memory = over(bytes, bytes_per_s);
    return compute > memory ? compute : memory;
}

roof_time roof_ideal_time(const void *ideal, const roof_op *op) {
    const roof_ideal *m = ideal;
    bool linear = op->class == ROOF_LINEAR || op->class == ROOF_EXPERTS;
    double compute = over(op->flops, linear ? m->linear_ops_per_s : m->attention_ops_per_s);
    double memory = over(op->bytes, m->bytes_per_s),
           link = over(op->link_bytes, m->link_bytes_per_s);
    if (link > compute && link > memory) return (roof_time){link, ROOF_BY_LINK};
    if (compute > memory) return (roof_time){compute, ROOF_BY_COMPUTE};
    return (roof_time){memory, ROOF_BY_MEMORY};
}
