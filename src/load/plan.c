/* load/plan: see plan.h. */
#include "load/plan.h"

#include <math.h>

#include "base/mem.h"
#include "sample/philox.h"

/* What a draw is for: its own stream of numbers. */
enum { DRAW_GAP, DRAW_INPUT, DRAW_INPUT_2, DRAW_OUTPUT, DRAW_OUTPUT_2, DRAW_PREFIX };

#define LONGEST_RUN_US ((int64_t)1 << 53)

static uint32_t cut(uint32_t n, uint32_t max) {
    return max != 0 && n > max ? max : n;
}

/* Arrivals of a Poisson process: gaps are exponential with mean 1 / rate. */
static int64_t next_arrival(int64_t before_us, const load_params *p, size_t i) {
    double gap_us = -log1p(-philox_uniform(p->seed, DRAW_GAP, i)) / p->rate * 1e6;
    double at = (double)before_us + gap_us;
    return at < (double)LONGEST_RUN_US ? (int64_t)at : LONGEST_RUN_US;
}

static void draw(load_plan *plan, const load_params *p) {
    for (size_t i = 0; i < plan->n; i++) {
        planned_request *r = &plan->requests[i];
        if (p->arrivals == LOAD_POISSON)
            r->due_us = next_arrival(i > 0 ? plan->requests[i - 1].due_us : 0, p, i);
        r->n_input = length_draw(&p->input, philox_uniform(p->seed, DRAW_INPUT, i),
                                 philox_uniform(p->seed, DRAW_INPUT_2, i));
        r->n_output = length_draw(&p->output, philox_uniform(p->seed, DRAW_OUTPUT, i),
                                  philox_uniform(p->seed, DRAW_OUTPUT_2, i));
    }
}

static ridge_status reserve(load_plan *plan, size_t n, ridge_error *err) {
    if (n > LOAD_MAX_REQUESTS)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%zu requests; at most %zu", n, LOAD_MAX_REQUESTS);
    plan->requests = mem_zalloc(n, sizeof *plan->requests);
    if (plan->requests == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the plan");
    plan->n = n;
    return RIDGE_OK;
}

static ridge_status replay(load_plan *plan, const load_params *p, ridge_error *err) {
    trace t;
    ridge_status status = trace_open(&t, p->trace, p->n_requests, err);
    if (status == RIDGE_OK) status = reserve(plan, t.n, err);
    for (size_t i = 0; i < plan->n; i++) {
        const trace_request *from = &t.requests[i];
        double due = (double)from->at_us / p->trace_speed;
        plan->requests[i] = (planned_request){
            .due_us = due < (double)LONGEST_RUN_US ? (int64_t)due : LONGEST_RUN_US,
            .n_input = from->n_input,
            .n_output = from->n_output,
            .first_block = from->first_block,
            .n_blocks = from->n_blocks};
    }
    plan->blocks = t.blocks;
    t.blocks = NULL;
    trace_free(&t);
    return status;
}

ridge_status load_plan_make(load_plan *out, const load_params *p, ridge_error *err) {
    *out = (load_plan){0};
    if (p->arrivals == LOAD_TRACE) {
        RIDGE_TRY(replay(out, p, err));
    } else {
        RIDGE_TRY(reserve(out, p->n_requests, err));
        draw(out, p);
    }
    for (size_t i = 0; i < out->n; i++) {
        planned_request *r = &out->requests[i];
        r->n_input = cut(r->n_input, p->max_input);
        r->n_output = cut(r->n_output, p->max_output);
        if (p->n_prefixes > 1)
            r->prefix = (uint32_t)(philox_uniform(p->seed, DRAW_PREFIX, i) * (double)p->n_prefixes);
    }
    return RIDGE_OK;
}

void load_plan_free(load_plan *plan) {
    mem_free(plan->requests);
    mem_free(plan->blocks);
    *plan = (load_plan){0};
}
