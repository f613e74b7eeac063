/* roof: the roofline: what a machine can do at best, used by everyone who predicts or reports.
 *
 * A step that does `flops` and moves `bytes` takes at least max(flops / peak, bytes / bandwidth)
 * (Williams, Waterman, Patterson, CACM 2009). Pure.
 */
#ifndef RIDGE_ROOF_ROOF_H
#define RIDGE_ROOF_ROOF_H

/* Measured on n_threads threads; read bandwidth over a working set of a stated size. */
typedef struct {
    double read_bytes_per_s; /* streaming reads */
    double
        int8_ops_per_s; /* multiply and add counted as two; the unit of quantized linear layers */
    double f32_flops_per_s; /* the unit of attention and of everything else */
} roof_peaks;

/* Of each the higher one: what is lower was measured while something else computed. */
roof_peaks roof_peaks_higher(const roof_peaks *a, const roof_peaks *b);

/* Seconds that a step of so many operations and bytes takes at the roof; 0 for unknown peaks. */
double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s);

/* What an operation waits for: the roof that it is nearer to. */
typedef enum { ROOF_MEMORY, ROOF_COMPUTE, ROOF_LINK, ROOF_N_BOUNDS } roof_bound;

#endif
