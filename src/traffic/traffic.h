/* traffic: what is asked and when: drawn by a seed, or read from a trace. The load generator and
 * the simulator ask the same.
 *
 * Every number drawn is a function of the seed, the request's index and what is drawn (Philox): a
 * request is the same whatever is asked around it, and the same seed gives the same traffic.
 * Requests come one at a time, so that a long trace needs no memory. Pure but for reading the
 * trace; one thread.
 */
#ifndef RIDGE_TRAFFIC_TRAFFIC_H
#define RIDGE_TRAFFIC_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>

#include "format/trace.h"
#include "traffic/length.h"

typedef struct traffic traffic;

typedef enum { TRAFFIC_AT_ONCE, TRAFFIC_POISSON, TRAFFIC_TRACE } traffic_arrivals;

/* Strings are borrowed by traffic_open alone. */
typedef struct {
    traffic_arrivals arrivals;
    double rate;                        /* TRAFFIC_POISSON: requests per second */
    const char *trace;                  /* TRAFFIC_TRACE: a file (format/trace.h) */
    double trace_speed;                 /* its times are divided by this */
    size_t n_requests;                  /* of a trace at most so many (0: all) */
    length_spec input, output;          /* without a trace */
    uint32_t max_input, max_output;     /* what is longer is cut; 0: nothing is */
    uint32_t prefix_tokens, n_prefixes; /* before each prompt one of so many shared beginnings; 0:
                                           as 1 */
    uint64_t seed;
} traffic_params;

typedef struct {
    int64_t due_us;   /* after the start */
    uint32_t n_input; /* its own tokens, after the shared beginning */
    uint32_t n_output;
    uint32_t prefix;       /* which of the shared beginnings */
    const int64_t *blocks; /* [n_blocks] the trace's names of its blocks (TRACE_BLOCK_TOKENS each),
                              borrowed until the next call */
    uint32_t n_blocks;
} traffic_request;

/* RIDGE_EINVAL: a number that is out of range, named. */
ridge_status traffic_check(const traffic_params *p, ridge_error *err) RIDGE_CHECKED;
/* Checks them, and of a trace every line. */
ridge_status traffic_open(traffic **out, const traffic_params *p, ridge_error *err) RIDGE_CHECKED;
/* In order of due_us. *more: there was one. */
ridge_status traffic_next(traffic *t, traffic_request *out, bool *more,
                          ridge_error *err) RIDGE_CHECKED;
void traffic_close(traffic *t); /* NULL allowed */

#endif
