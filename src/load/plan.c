/* load/plan: see plan.h. */
#include "load/plan.h"

#include "base/mem.h"

static ridge_status add(load_plan *plan, const traffic_request *r, ridge_error *err) {
    if (plan->n == LOAD_MAX_REQUESTS)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "more than %zu requests", LOAD_MAX_REQUESTS);
    if (!mem_grow((void **)&plan->requests, &plan->requests_capacity, plan->n + 1,
                  sizeof *plan->requests) ||
        !mem_grow((void **)&plan->blocks, &plan->blocks_capacity, plan->n_blocks + r->n_blocks,
                  sizeof *plan->blocks))
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the plan");
    plan->requests[plan->n++] = (planned_request){.due_us = r->due_us,
                                                  .n_input = r->n_input,
                                                  .n_output = r->n_output,
                                                  .prefix = r->prefix,
                                                  .first_block = plan->n_blocks,
                                                  .n_blocks = r->n_blocks};
    for (uint32_t i = 0; i < r->n_blocks; i++) plan->blocks[plan->n_blocks++] = r->blocks[i];
    return RIDGE_OK;
}

static ridge_status fill(load_plan *plan, traffic *from, ridge_error *err) {
    traffic_request r;
    for (bool more = true;;) {
        RIDGE_TRY(traffic_next(from, &r, &more, err));
        if (!more) return RIDGE_OK;
        RIDGE_TRY(add(plan, &r, err));
    }
}

ridge_status load_plan_make(load_plan *out, const load_params *p, ridge_error *err) {
    traffic *from = NULL;
    *out = (load_plan){0};
    RIDGE_TRY(traffic_open(&from, &p->traffic, err));
    ridge_status status = fill(out, from, err);
    traffic_close(from);
    return status;
}

void load_plan_free(load_plan *plan) {
    mem_free(plan->requests);
    mem_free(plan->blocks);
    *plan = (load_plan){0};
}
