/* efficiency: how long an operation takes on a machine that doesn't reach its roof.
 *
 * The roofline says what an operation takes at best; an efficiency profile, a few numbers per kind
 * of operation, says what one machine makes of it. The ideal profile is the roofline itself. A
 * profile is fitted on measured times (plan/fit.h) and read from a file (efficiency_open). Pure.
 */
#ifndef RIDGE_ROOF_EFFICIENCY_H
#define RIDGE_ROOF_EFFICIENCY_H

typedef enum {
    EFFICIENCY_LINEAR,            /* m tokens by a matrix of n outputs, k inputs */
    EFFICIENCY_ATTENTION_PREFILL, /* several query rows per sequence */
    EFFICIENCY_ATTENTION_DECODE,  /* one query row per sequence */
    EFFICIENCY_ELEMENTWISE,       /* norms, rotations, activations, additions, look-ups */
    EFFICIENCY_ALL_REDUCE,
    EFFICIENCY_ALL_GATHER,
    EFFICIENCY_SEND, /* from one rank to the next */
    EFFICIENCY_N_KINDS,
} efficiency_kind;

typedef struct {
    efficiency_kind kind;
    double flops;              /* multiply and add are two */
    double bytes;              /* weights and cache that it must read or write; of a collective: the
                                * size of the whole message on one rank */
    double intermediate_bytes; /* activations in and out: the ideal profile leaves them out */
    double m, n, k;            /* linear only: tokens, outputs, inputs of each matrix */
    double n_matrices;         /* linear only: as many at once (experts); 0 is 1 */
    int n_ranks;               /* collectives only */
} efficiency_op;

/* What the machine does at best; 0: unknown, and then no limit. */
typedef struct {
    double flops_per_s; /* in the precision of the operation at hand */
    double bytes_per_s;
    double link_bytes_per_s; /* that one rank sends while it receives as much */
} efficiency_peaks;

typedef struct {
    char name[32];
} efficiency_profile;

/* The roofline itself: no overheads, all of the peaks. */
efficiency_profile efficiency_ideal(void);

/* Seconds that the operation takes. A collective over one rank takes none. */
double efficiency_seconds(const efficiency_profile *profile, const efficiency_peaks *peaks,
                          const efficiency_op *op);

#endif
