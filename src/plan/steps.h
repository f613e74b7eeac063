/* plan/steps: single steps of a model on any device: what they take by the clock on one that
 * computes, or by the profile of one that counts.
 *
 * No prompt is computed before: the cache holds zeros, which cost as much to read as anything.
 */
#ifndef RIDGE_PLAN_STEPS_H
#define RIDGE_PLAN_STEPS_H

#include "base/log.h"
#include "format/gguf.h"
#include "model/model.h"

typedef struct {
    uint32_t n_seqs, n_rows; /* of each sequence */
    uint32_t n_context;      /* tokens of each after the step */
    uint32_t n_beside;       /* so many others have one row each, and as many tokens */
} step_shape;

typedef struct steps steps;

/* Ready for the largest of the shapes, of 1 to DEV_HEAD_ROWS sequences in all. g and d must outlive
 * it. */
ridge_status steps_open(steps **out, const gguf *g, device *d, const step_shape *shapes, size_t n,
                        const log_sink *log, ridge_error *err) RIDGE_CHECKED;
void steps_close(steps *s); /* NULL allowed */

/* One step, with the logits of each sequence's last row; *seconds by the device's account where
 * `counted`, else by the clock. */
ridge_status steps_run(steps *s, const step_shape *shape, bool counted, double *seconds,
                       ridge_error *err) RIDGE_CHECKED;

#endif
