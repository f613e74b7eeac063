/* plan/find: the most that a deployment bears, and the least that bears a load: by bisection, as
 * more requests a second can only be worse, and more replicas only better. (Nearly: a rate that is
 * a little higher may by chance be a little better; so the answer is a rate that does, next to one
 * that does not.) */
#include <math.h>

#include "plan/experiment.h"

#define PRECISION 1.01
#define LEAST_RATE 1e-3
#define MOST_RATE 1e6

void experiment_set_rate(experiment *e, double rate) {
    if (e->traffic.arrivals == TRAFFIC_TRACE) {
        e->traffic.trace_speed = rate;
        return;
    }
    e->traffic.arrivals = TRAFFIC_POISSON;
    e->traffic.rate = rate;
}

/* What lies between the highest rate at which enough are good and the lowest at which they are not.
 */
typedef struct {
    double low, high; /* 0, INFINITY: none is known */
} rate_bounds;

static ridge_status try_rate(rate_bounds *b, experiment_result *out, const experiment *e,
                             double rate, double target, ridge_error *err) {
    experiment at = *e;
    experiment_result r;
    experiment_set_rate(&at, rate);
    RIDGE_TRY(experiment_run(&r, &at, err));
    bool good = experiment_goodput(&r) >= target;
    if (good || b->low == 0) *out = r;
    *(good ? &b->low : &b->high) = rate;
    return RIDGE_OK;
}

ridge_status experiment_max_rate(experiment_rate *out, const experiment *e, double target,
                                 ridge_error *err) {
    rate_bounds b = {0, INFINITY};
    experiment_result *r = &out->result;
    for (double rate = 1; isinf(b.high) && rate < MOST_RATE; rate *= 2)
        RIDGE_TRY(try_rate(&b, r, e, rate, target, err));
    while (b.low == 0 && b.high > LEAST_RATE)
        RIDGE_TRY(try_rate(&b, r, e, b.high / 2, target, err));
    while (b.low > 0 && !isinf(b.high) && b.high > b.low * PRECISION)
        RIDGE_TRY(try_rate(&b, r, e, (b.low + b.high) / 2, target, err));
    out->rate = b.low;
    out->at_least = isinf(b.high);
    return RIDGE_OK;
}

static ridge_status try_replicas(bool *good, experiment_result *out, const experiment *e,
                                 uint32_t n, double target, ridge_error *err) {
    experiment with = *e;
    experiment_result r;
    with.sim.pool.n_replicas = n;
    RIDGE_TRY(experiment_run(&r, &with, err));
    *good = experiment_goodput(&r) >= target;
    if (*good) *out = r;
    return RIDGE_OK;
}

ridge_status experiment_fewest_replicas(uint32_t *n, experiment_result *out, const experiment *e,
                                        double target, uint32_t most, ridge_error *err) {
    uint32_t low = 0, high = 1; /* low do not */
    bool good = false;
    *n = 0;
    for (;;) {
        RIDGE_TRY(try_replicas(&good, out, e, high, target, err));
        if (good || high == most) break;
        low = high;
        high = high < most / 2 ? high * 2 : most;
    }
    if (!good) return RIDGE_OK;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        RIDGE_TRY(try_replicas(&good, out, e, middle, target, err));
        *(good ? &high : &low) = middle;
    }
    *n = high;
    return RIDGE_OK;
}
