/* sched/pace: how much of prompts a step may take while streams decode.
 *
 * With a target for the time per token (--slo-tpot), prompts get only the tokens that keep the
 * predicted step within it. They never starve: in every step each running sequence gets one token,
 * prompts too, and prompts together get what costs a tenth of that, even past the target. Without a
 * target, and while nobody decodes, the budget of tokens alone decides.
 *
 * Pure; part of the scheduler.
 */
#ifndef RIDGE_SCHED_PACE_H
#define RIDGE_SCHED_PACE_H

#include "sched/cost.h"
#include "sched/sequence.h"

#define PACE_LEAST_SHARE 0.1

typedef struct {
    double target_s; /* of a step; 0: none */
    /* this step's: */
    double limit_s; /* 0: none */
    cost_work work; /* planned so far */
    bool full;      /* a prompt has got less than it lacks */
} pace;

/* What one sequence does in the step, as it is scheduled. */
void pace_add(cost_work *w, const cost_shape *shape, const sequence *q);
/* Every running sequence has its token: sets the limit for what follows. */
void pace_begin(pace *p, const cost_model *cost, const sequence *running);
/* So many more tokens may q get; they are counted with pace_take. */
uint32_t pace_allows(pace *p, const cost_model *cost, const sequence *q);
void pace_take(pace *p, const cost_model *cost, const sequence *q, uint32_t n);

#endif
