/* engine/slo: the model as the scheduler's cost (sched/cost.h) sees it, and how the targets for the
 * first token's time and the time per token (--slo-ttft, --slo-tpot) were met. On the engine's
 * thread. */
#ifndef RIDGE_ENGINE_SLO_H
#define RIDGE_ENGINE_SLO_H

#include "engine/engine_internal.h"

ridge_status slo_check_params(const engine_params *p, ridge_error *err) RIDGE_CHECKED;
/* Of an open model, cache and known (or unknown) peaks. */
cost_shape slo_cost_shape(const engine *e);
/* q has its first token: as it was predicted? */
void slo_note_first_token(engine *e, const request *q);
/* q has ended: did it meet the targets? */
void slo_note_end(engine *e, const request *q);

#endif
