/* roof: see roof.h. */
#include "roof/roof.h"

static double over(double amount, double per_second) {
    return per_second > 0 ? amount / per_second : 0;
}

double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s) {
    double compute = over(ops, peak_ops_per_s), memory = over(bytes, bytes_per_s);
    return compute > memory ? compute : memory;
}
