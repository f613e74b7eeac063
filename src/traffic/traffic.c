/* traffic: see traffic.h. */
#include "traffic/traffic.h"

#include <math.h>

#include "base/mem.h"
#include "sample/philox.h"

/* What a draw is for: its own stream of numbers. */
enum { DRAW_GAP, DRAW_INPUT, DRAW_INPUT_2, DRAW_OUTPUT, DRAW_OUTPUT_2, DRAW_PREFIX };

#define LONGEST_RUN_US ((int64_t)1 << 53)

struct traffic {
    traffic_params params;
    trace_reader *reader; /* NULL: there is no trace */
    size_t n;             /* handed out */
    int64_t last_us;
};

ridge_status traffic_check(const traffic_params *p, ridge_error *err) {
    if (p->arrivals == TRAFFIC_POISSON && !(p->rate > 0 && p->rate <= 1e6))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "a rate of %g requests per second; expected up to 1e6",
                          p->rate);
    if (p->arrivals == TRAFFIC_TRACE && !(p->trace_speed > 0 && p->trace_speed <= 1e9))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "a trace speed of %g; expected up to 1e9",
                          p->trace_speed);
    if (p->arrivals != TRAFFIC_TRACE && p->n_requests < 1)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "at least one request is needed");
    if (p->prefix_tokens > LENGTH_MAX)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "shared prefixes of %u tokens; expected up to %u",
                          p->prefix_tokens, LENGTH_MAX);
    return RIDGE_OK;
}

ridge_status traffic_open(traffic **out, const traffic_params *p, ridge_error *err) {
    RIDGE_TRY(traffic_check(p, err));
    traffic *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the traffic");
    t->params = *p;
    ridge_status status = RIDGE_OK;
    if (p->arrivals == TRAFFIC_TRACE)
        status = trace_reader_open(&t->reader, p->trace, p->n_requests, err);
    t->params.trace = NULL;
    if (status == RIDGE_OK)
        *out = t;
    else
        mem_free(t);
    return status;
}

void traffic_close(traffic *t) {
    if (t == NULL) return;
    trace_reader_close(t->reader);
    mem_free(t);
}

static int64_t whole_us(double us) {
    return us < (double)LONGEST_RUN_US ? (int64_t)us : LONGEST_RUN_US;
}

static double uniform(const traffic *t, uint32_t what) {
    return philox_uniform(t->params.seed, what, t->n);
}

/* Arrivals of a Poisson process: gaps are exponential with mean 1 / rate. */
static int64_t next_arrival(const traffic *t) {
    if (t->params.arrivals == TRAFFIC_AT_ONCE) return 0;
    double gap_us = -log1p(-uniform(t, DRAW_GAP)) / t->params.rate * 1e6;
    return whole_us((double)t->last_us + gap_us);
}

static void draw(const traffic *t, traffic_request *out) {
    const traffic_params *p = &t->params;
    out->due_us = next_arrival(t);
    out->n_input = length_draw(&p->input, uniform(t, DRAW_INPUT), uniform(t, DRAW_INPUT_2));
    out->n_output = length_draw(&p->output, uniform(t, DRAW_OUTPUT), uniform(t, DRAW_OUTPUT_2));
}

static ridge_status replay(traffic *t, traffic_request *out, bool *more, ridge_error *err) {
    trace_request from;
    RIDGE_TRY(trace_reader_next(t->reader, &from, &out->blocks, more, err));
    if (!*more) return RIDGE_OK;
    out->due_us = whole_us((double)from.at_us / t->params.trace_speed);
    out->n_input = from.n_input;
    out->n_output = from.n_output;
    out->n_blocks = from.n_blocks;
    return RIDGE_OK;
}

static uint32_t cut(uint32_t n, uint32_t max) {
    return max != 0 && n > max ? max : n;
}

ridge_status traffic_next(traffic *t, traffic_request *out, bool *more, ridge_error *err) {
    const traffic_params *p = &t->params;
    *out = (traffic_request){0};
    *more = true;
    if (t->reader != NULL)
        RIDGE_TRY(replay(t, out, more, err));
    else if (t->n < p->n_requests)
        draw(t, out);
    else
        *more = false;
    if (!*more) return RIDGE_OK;
    out->n_input = cut(out->n_input, p->max_input);
    out->n_output = cut(out->n_output, p->max_output);
    if (p->n_prefixes > 1)
        out->prefix = (uint32_t)(uniform(t, DRAW_PREFIX) * (double)p->n_prefixes);
    t->last_us = out->due_us;
    t->n++;
    return RIDGE_OK;
}
