/* roof: see roof.h. */
#include "roof/roof.h"

static double higher(double a, double b) {
    return a > b ? a : b;
}

roof_peaks roof_peaks_higher(const roof_peaks *a, const roof_peaks *b) {
    return (roof_peaks){.read_bytes_per_s = higher(a->read_bytes_per_s, b->read_bytes_per_s),
                        .int8_ops_per_s = higher(a->int8_ops_per_s, b->int8_ops_per_s),
                        .f32_flops_per_s = higher(a->f32_flops_per_s, b->f32_flops_per_s)};
}

static double over(double amount, double per_second) {
    return per_second > 0 ? amount / per_second : 0;
}

double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s) {
    return higher(over(ops, peak_ops_per_s), over(bytes, bytes_per_s));
}
