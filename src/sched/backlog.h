/* sched/backlog: the work before a new request, as a summary, and when its first token would come.
 *
 * The summary is a plain value that the scheduler's thread fills when a step is planned, so that
 * others can predict from a copy. A request waits for the prompts before it in the served order and
 * for a place among the running ones, in steps that those who decode share:
 *
 *     seconds = (what the prompts before it and its own add to steps) + (steps) * (a step without)
 *
 * with as many steps as the budget of tokens, the target of the time per token (pace.h) or the
 * places ask for, and a step as it is in their mean: those who decode end, prompts that are done
 * decode, and contexts grow. That is no more than an estimate: who comes later with a higher
 * priority is not known, nor how long answers will be, for which the mean of those before stands
 * in. What of a
 * prompt is cached is known as it was when the request came (sequence.h: n_expected); prompts that
 * come together can find more, each what the one before has computed: how much less than expected
 * was computed of those before stands in.
 * Pure.
 */
#ifndef RIDGE_SCHED_BACKLOG_H
#define RIDGE_SCHED_BACKLOG_H

#include "sched/cost.h"

/* Priorities within a class count as equal: -8 and below, -7, ..., 6, 7 and above. */
#define BACKLOG_CLASSES 16

typedef struct {
    uint32_t n;           /* sequences */
    double n_tokens;      /* of theirs that are not computed yet */
    double attention_ops; /* of those tokens */
} backlog_class;

typedef struct {
    cost_rates rates;
    double step_s; /* of the step that is planned; the rest is as it will be after it */
    uint32_t n_running, n_decoding;
    uint32_t n_places;      /* that can run at once: fewer than the limit while blocks are short */
    double decoding_tokens; /* of those that decode: their contexts */
    backlog_class running;  /* with some of their prompt to come: before whoever waits */
    backlog_class waiting[BACKLOG_CLASSES];
    double steps_per_answer; /* recent mean; 0: no answer has ended yet */
    double margin;           /* of steps that keep a target (pace.h) */
    double computed_share;   /* of what was expected to be, recent mean; at most 1 */
} backlog;

/* What never changes. */
typedef struct {
    const cost_shape *shape;
    uint32_t max_num_batched_tokens;
    double tpot_s; /* 0: none */
} backlog_machine;

uint32_t backlog_class_of(int priority);
void backlog_class_add(backlog_class *c, const cost_shape *shape, uint32_t first, uint32_t n);
/* Seconds from the planned step's end until a request of so many tokens of prompt, n_cached of them
 * known, that has come by then has its first token. */
double backlog_first_token_s(const backlog *b, const backlog_machine *m, int priority,
                             uint32_t n_prompt, uint32_t n_cached);

#endif
