/* sched/pace: how much of prompts a step may take while streams decode.
 *
 * With a target for the time per token (--slo-tpot), prompts get only the tokens that keep the
 * predicted step within it. They never starve: in every step each running sequence gets one token,
 * prompts too, and prompts together get what costs a tenth of that, even past the target. Without a
 * target, and while nobody decodes, the budget of tokens alone decides.
 *
 * The target is for nearly every step, but steps spread about what is predicted: neighbours come
 * and go, predictions err. So the prediction must stay short of the target by a margin, within
 * which all but PACE_LATE of the steps with prompts are. It follows them: up a little with each
 * step that took longer than the prediction and the margin, down by so much less with each that did
 * not that the two balance where PACE_LATE of them do. So that part is kept in the long run,
 * whatever steps take, while the margin is not at its bound: quantile tracking, of Angelopoulos,
 * Candes and Tibshirani, "Conformal PID Control for Time Series Prediction" (2023), after Gibbs and
 * Candes, "Adaptive Conformal Inference Under Distribution Shift" (2021). Of what the target leaves
 * beyond the streams' own time it takes no more than half: prompts that get hardly anything stay
 * until the streams, whose contexts grow, are past the target by themselves.
 *
 * Pure; part of the scheduler.
 */
#ifndef RIDGE_SCHED_PACE_H
#define RIDGE_SCHED_PACE_H

#include "sched/cost.h"
#include "sched/sequence.h"

#define PACE_LEAST_SHARE 0.1
#define PACE_LATE 0.05

typedef struct {
    double target_s; /* of a step; 0: none */
    double margin;   /* learned: steps are thought to take up to 1 + margin times the prediction */
    /* this step's: */
    double limit_s; /* 0: none */
    cost_work work; /* planned so far */
    bool full;      /* a prompt has got less than it lacks */
} pace;

/* What one sequence does in the step, as it is scheduled. */
void pace_add(cost_work *w, const cost_shape *shape, const sequence *q);
/* Every running sequence has its token: sets the limit for what follows. */
void pace_begin(pace *p, const cost_model *cost, const sequence *running);
/* What the prediction of a step may be that takes own_s with one token of each sequence. */
double pace_within(double target_s, double margin, double own_s);
/* So many more tokens may q get; they are counted with pace_take. */
uint32_t pace_allows(pace *p, const cost_model *cost, const sequence *q);
void pace_take(pace *p, const cost_model *cost, const sequence *q, uint32_t n);
/* The step, in which prompts were computed, was predicted to take so long and took so long. */
void pace_learn(pace *p, double predicted_s, double seconds);

#endif
