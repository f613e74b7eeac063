/* engine/usage: what a step cost, and which part of it was whose.
 *
 * A step serves many sequences at once, so its time is each one's time. What the prompts of others
 * added to it is told by the roofline: a step that the memory bounds takes as long without them;
 * one that the arithmetic bounds would have been shorter by their part of the operations. Pure.
 */
#ifndef RIDGE_ENGINE_USAGE_H
#define RIDGE_ENGINE_USAGE_H

#include "engine/engine.h"

typedef struct {
    double seconds;
    double flops, weight_bytes, kv_bytes;
    double peak_flops_per_s, peak_bytes_per_s; /* 0: unknown */
    uint32_t n_tokens, n_prompt_tokens;        /* of all sequences; of them in prompts */
    uint32_t n_seqs;
} step_cost;

/* Seconds at the roof; 0 where a peak is unknown. */
double step_roof_s(const step_cost *c);
/* Does the arithmetic bound it? False where a peak is unknown. */
bool step_is_compute_bound(const step_cost *c);
/* The part of the step, in [0, 1), that n_others tokens of other sequences' prompts added. Where
 * the peaks are unknown, their part of the tokens. */
double step_others_share(const step_cost *c, uint32_t n_others);

/* Adds a step to the phase of a sequence which had n_own tokens of its prompt in it. again: it
 * computed what it had computed before. */
void phase_add_step(engine_phase *p, const step_cost *c, uint32_t n_own, bool again);

/* Adds a step to the engine's counters. */
void stats_add_step(engine_stats *s, const step_cost *c);

#endif
