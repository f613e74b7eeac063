/* cli/plan_host: what serving adds to the steps of a model on this machine, measured by serving it:
 * ridge's server and ridge's load generator in this process, over the loopback address.
 *
 * Of a step that is, first, the time that passes while nothing is computed: sampling, texts, and
 * from one step to the next. Then what the threads of the server and of the client compute for it:
 * where the engine computes on all processors, they take it from the engine, whose threads share
 * what is to be done, so that each of n is late by an n-th.
 */
#ifndef RIDGE_CLI_PLAN_HOST_H
#define RIDGE_CLI_PLAN_HOST_H

#include "engine/engine.h"
#include "roof/efficiency.h"

#define PLAN_HOST_CONTEXT 128 /* what a model's context must have room for */

/* p: model, threads; the rest is chosen here. Rounds for about so many seconds, five at least, of
 * which the medians count. */
ridge_status plan_host_measure(efficiency_host *out, const engine_params *p, double enough_s,
                               ridge_error *err) RIDGE_CHECKED;

#endif
