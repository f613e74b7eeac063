/* efficiency: how long an operation takes on a machine that doesn't reach its roof.
 *
 * The roofline says what an operation takes at best; a profile, a few numbers per kind of
 * operation, says what one machine makes of it:
 *
 *     compute = (flops (1 + unpack_tokens / m) + 2 k wave_outputs) / (compute * peak)
 *             = flops / (few_compute * peak) of m <= few_tokens
 *     memory  = (bytes + activations * intermediate_bytes) / (bandwidth * peak)
 *     link    = bytes that a rank sends / (link * peak)
 *     seconds = overhead + (latency^p + compute^p + memory^p + link^p)^(1/p),  p = sharpness
 *
 * p is what hides behind what: infinite, and the slowest hides all others (the roofline); 1, and
 * they follow one another. Nothing hides the overhead. wave_outputs is the work of units that idle:
 * a GPU computes tiles of outputs in waves, and an operation's last wave is on average half empty.
 * unpack_tokens are those whose products take as long as it takes to unpack a matrix of quants; a
 * few tokens may have kernels that read it as it is.
 *
 * The ideal profile is the roofline itself. plan/fit.h fits others on measured times; as files
 * they are JSON (efficiency_file.c). Pure.
 */
#ifndef RIDGE_ROOF_EFFICIENCY_H
#define RIDGE_ROOF_EFFICIENCY_H

#include "base/buf.h"
#include "base/error.h"

#define EFFICIENCY_MAX_BYTES ((size_t)1 << 20) /* of a file */

typedef enum {
    EFFICIENCY_LINEAR,            /* m tokens by a matrix of n outputs, k inputs */
    EFFICIENCY_EXPERTS,           /* the same of several matrices at once */
    EFFICIENCY_ATTENTION_PREFILL, /* several query rows per sequence */
    EFFICIENCY_ATTENTION_DECODE,  /* one query row per sequence */
    EFFICIENCY_EMBED,
    EFFICIENCY_NORM,
    EFFICIENCY_ROPE,
    EFFICIENCY_CACHE_WRITE,
    EFFICIENCY_GLU,
    EFFICIENCY_ADD,
    EFFICIENCY_ROWS, /* anything else that goes row by row */
    EFFICIENCY_ALL_REDUCE,
    EFFICIENCY_ALL_GATHER,
    EFFICIENCY_SEND,         /* from one rank to the next */
    EFFICIENCY_SEND_NETWORK, /* the same to another node, over its network */
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
    double compute, bandwidth, link; /* fractions of the peaks; over 1 where caches help */
    double overhead_s, latency_s;
    double sharpness; /* p, at least 1; may be infinite */
    double wave_outputs;
    double few_tokens, few_compute, unpack_tokens;
    char from[48]; /* what the numbers rest on */
} efficiency_numbers;

/* The machine that was measured; 0: the profile doesn't say. */
typedef struct {
    char title[64];
    double flops_per_s, bytes_per_s; /* its peaks, of which the numbers are fractions */
    double memory_bytes;
    double link_bytes_per_s, network_bytes_per_s; /* hardware.h's; 0: unknown */
} efficiency_machine;

/* What serving adds to a step, beside the device: for the step, and for each row whose token is
 * sampled and sent. Zeros: nothing, or unknown. */
typedef struct {
    double step_s, token_s;
} efficiency_host;

typedef struct {
    char name[32];
    char made[256]; /* the command that made it */
    efficiency_machine machine;
    efficiency_host host;
    double activations; /* share of the activations that goes through memory */
    efficiency_numbers kinds[EFFICIENCY_N_KINDS];
} efficiency_profile;

/* The roofline itself: no overheads, all of the peaks. */
efficiency_profile efficiency_ideal(void);

/* What a kind has numbers of where nothing was measured: "as linear"; NULL: they rest on
 * measurements, or the profile is the ideal one. */
const char *efficiency_assumed(const efficiency_profile *profile, efficiency_kind kind);

/* Seconds that the operation takes. A collective over one rank takes none. */
double efficiency_seconds(const efficiency_profile *profile, const efficiency_peaks *peaks,
                          const efficiency_op *op);

/* "linear", "all_reduce" ... as in files. */
const char *efficiency_kind_name(efficiency_kind kind);

/* A profile's text; `where` names it in errors. Every field is checked, unknown ones are refused.
 * *out is untouched on failure. */
ridge_status efficiency_parse(efficiency_profile *out, const char *where, const char *text,
                              size_t size, ridge_error *err) RIDGE_CHECKED;
void efficiency_write(buf *b, const efficiency_profile *profile);

/* By name ("ideal", or one that comes with ridge), else by path. */
ridge_status efficiency_find(efficiency_profile *out, const char *name,
                             ridge_error *err) RIDGE_CHECKED;

/* Those that come with ridge, by name; NULL ends the list. Written by cmake from data/profiles. */
typedef struct {
    const char *name, *text;
} efficiency_builtin;
extern const efficiency_builtin efficiency_builtins[];

#endif
