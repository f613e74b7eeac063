/* roof: see roof.h. */
#include "roof/roof.h"

double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s) {
    double compute = peak_ops_per_s > 0 ? ops / peak_ops_per_s : 0;
    double memory = bytes_per_s > 0 ? bytes / bytes_per_s : 0;
    return compute > memory ? compute : memory;
}
