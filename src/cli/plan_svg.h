/* cli/plan_svg: a plan as a picture: the roofline with prompt and step on it, and beside it the
 * time of a step against its sequences. Both counts; log-log; follows the viewer's light or dark
 * scheme. */
#ifndef RIDGE_CLI_PLAN_SVG_H
#define RIDGE_CLI_PLAN_SVG_H

#include "cli/plan_print.h"

#define PLAN_SVG_BATCHES 13

/* Steps of 1, 2, 4, ... sequences of the plan's context. */
typedef struct {
    plan_count steps[PLAN_SVG_BATCHES];
} plan_sweep;

ridge_status plan_sweep_make(plan_sweep *out, plan *p, uint32_t context,
                             ridge_error *err) RIDGE_CHECKED;
void plan_svg(buf *out, const plan_report *r, const plan_sweep *sweep);

#endif
