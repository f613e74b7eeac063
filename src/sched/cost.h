/* sched/cost: what a step costs: what it computes and reads, and what that has been seen to take.
 *
 * The roofline (roof/roof.h) says what a step's bytes, its linear layers' operations and its
 * attention's would take at the machine's peaks. What they do take is learned from every step:
 *
 *     seconds = a + b[weights] * bytes / bandwidth + b[cache] * bytes / bandwidth
 *                 + b[linear] * operations / peak + b[attention] * operations / peak
 *
 * A sum rather than the roofline's maximum, with a b for each part, because on a processor one
 * kernel does not hide another, and each kind reaches a part of its roof that is its own: with one
 * b predictions of mixed steps err more, and far more where the peaks were measured on a busy
 * machine. The cache is read more slowly than weights are, and by a stream that decodes for one row
 * alone: were both one part, what that takes would be laid on attention's operations, and a further
 * row of a prompt, which reads nothing more, be held for dearer than it is.
 *
 * Learning: least squares of relative errors, old steps forgotten, every coefficient at least 0,
 * and on top a common factor that follows the machine's speed within a few steps: exponential
 * smoothing with each surprise cut short, as Gelper, Fried and Croux, "Robust Forecasting with
 * Exponential and Holt-Winters Smoothing" (2010), have it. Steps with and without prompts in them
 * are remembered apart, so that an hour of decoding does not wash out what prompts cost. What no
 * step has shown yet is drawn to a prior. One step held up by the system counts for little. Never
 * NaN, whatever is given.
 *
 * Pure: no clock, no allocation. A cost_model belongs to the scheduler's thread; shapes never
 * change and rates are copied to whoever wants to predict elsewhere.
 */
#ifndef RIDGE_SCHED_COST_H
#define RIDGE_SCHED_COST_H

#include <stdbool.h>
#include <stdint.h>

#define COST_MAX_GROUPS 4

/* The model and the machine. Zeroed: nothing is known of either, steps cost the same. */
typedef struct {
    double bytes_per_s, linear_ops_per_s, attention_ops_per_s; /* peaks; 0: unknown */
    double weight_bytes, head_bytes; /* once a step; once when the logits of any row are wanted */
    double row_ops, head_row_ops; /* of linear layers: per row; per row whose logits are wanted */
    struct {
        uint32_t window;                       /* 0: full */
        double attention_ops, bytes_per_token; /* per row and token that it sees; of the cache */
    } groups[COST_MAX_GROUPS];
    uint32_t n_groups;
} cost_shape;

/* What a step does: sums over its sequences. Zeroed: nothing. */
typedef struct {
    double n_rows, n_wanted; /* wanted: rows of which logits are needed */
    double attention_ops, cache_bytes;
} cost_work;

/* One sequence's rows at positions [first, first + n). */
void cost_add(const cost_shape *s, cost_work *w, uint32_t first, uint32_t n, uint32_t n_wanted);

enum { COST_OVERHEAD, COST_WEIGHTS, COST_CACHE, COST_LINEAR, COST_ATTENTION, COST_PARTS };

/* a and b as they are now. */
typedef struct {
    double b[COST_PARTS];
} cost_rates;

double cost_seconds(const cost_shape *s, const cost_rates *r, const cost_work *w);

typedef struct {
    cost_shape shape;
    cost_rates rates;
    uint64_t n_steps;             /* learned from */
    double error_sum, last_error; /* |predicted - taken| / taken: over those steps; of the last */
    /* private */
    cost_rates slow; /* the rates without the common factor */
    double log_factor;
    double prior_ratio, prior_weight; /* taken over the prior's prediction: sums */
    struct {
        uint64_t n;
        double square[COST_PARTS][COST_PARTS], product[COST_PARTS];
    } kinds[2]; /* steps without and with prompts */
} cost_model;

void cost_init(cost_model *m, const cost_shape *shape);
double cost_predict(const cost_model *m, const cost_work *w);
/* The most of a sequence's n rows at [first, first + n) that keep a step which does w already
 * within so many seconds. */
uint32_t cost_fit(const cost_model *m, const cost_work *w, uint32_t first, uint32_t n,
                  double seconds);
/* A step took so long. */
void cost_learn(cost_model *m, const cost_work *w, bool prompts, double seconds);

#endif
