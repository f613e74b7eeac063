/* plan/find: the most that a deployment bears, and the least that bears a load: by bisection, as
 * more requests a second can only be worse, and more replicas only better. (Nearly: a rate that is
 * a little higher may by chance be a little better; so the answer is a rate that does, next to one
 * that does not.) */
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

/* *good: at this rate enough are; *out is what came of it then, else untouched. */
static ridge_status try_rate(bool *good, experiment_result *out, const experiment *e, double rate,
                             double target, ridge_error *err) {
    experiment at = *e;
    experiment_result r;
    experiment_set_rate(&at, rate);
    RIDGE_TRY(experiment_run(&r, &at, err));
    *good = experiment_goodput(&r) >= target;
    if (*good) *out = r;
    return RIDGE_OK;
}

ridge_status experiment_max_rate(double *rate, experiment_result *out, const experiment *e,
                                 double target, ridge_error *err) {
    double low = 0, high = 1;
    bool good = true;
    while (good && high < MOST_RATE) { /* the first that does not, or none */
        RIDGE_TRY(try_rate(&good, out, e, high, target, err));
        if (good) {
            low = high;
            high *= 2;
        }
    }
    while (low == 0 && high > LEAST_RATE) {
        double less = high / 2;
        RIDGE_TRY(try_rate(&good, out, e, less, target, err));
        *(good ? &low : &high) = less;
    }
    while (low > 0 && high < MOST_RATE && high > low * PRECISION) {
        double middle = (low + high) / 2;
        RIDGE_TRY(try_rate(&good, out, e, middle, target, err));
        *(good ? &low : &high) = middle;
    }
    *rate = low;
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
