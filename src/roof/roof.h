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

/* Seconds that a step of so many operations and bytes takes at the roof; 0 for unknown peaks. */
double roof_seconds(double ops, double peak_ops_per_s, double bytes, double bytes_per_s);

/* Single operations, for those who predict a step from what it is made of. */

typedef enum {
    ROOF_EMBED,
    ROOF_NORM,
    ROOF_LINEAR,
    ROOF_ROPE,
    ROOF_CACHE_WRITE,
    ROOF_ATTENTION,
    ROOF_GLU,
    ROOF_ADD,
    ROOF_ROWS, /* anything else that goes row by row */
    ROOF_EXPERTS,
    ROOF_ALL_REDUCE,
    ROOF_ALL_TO_ALL,
    ROOF_SEND,
    ROOF_N_CLASSES
} roof_class;

/* What one operation asks of a machine (roof/work.h has the rules). Zeroed: nothing. */
typedef struct {
    roof_class class;
    double flops, bytes;          /* bytes: of weights and of the cache */
    double n_rows;                /* tokens of the step that it works on */
    double n_in, n_out;           /* columns of its input and of its outputs together */
    double link_bytes, n_ranks;   /* collectives: that one rank sends; how many take part */
    double activation_value_size; /* bytes of each of n_rows * (n_in + n_out) activations: not in
                                     `bytes`, as at best they never leave the chip */
} roof_op;

typedef enum {
    ROOF_BY_MEMORY,
    ROOF_BY_COMPUTE,
    ROOF_BY_LINK,
    ROOF_BY_OVERHEAD,
    ROOF_N_BOUNDS
} roof_bound;

typedef struct {
    double seconds;
    roof_bound bound; /* what most of them wait for */
} roof_time;

/* How long an operation takes on a machine. Pure, called millions of times. */
typedef roof_time (*roof_timer)(const void *machine, const roof_op *op);

/* A machine at its peaks: no operation costs more than the slower of its roofs. */
typedef struct {
    double linear_ops_per_s, attention_ops_per_s; /* the second: of all but linear and experts */
    double bytes_per_s, link_bytes_per_s;         /* the link: of one rank, in one direction */
} roof_ideal;

roof_time roof_ideal_time(const void *ideal, const roof_op *op); /* a roof_timer */

#endif
