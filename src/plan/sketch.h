/* plan/sketch: the distribution of any number of values in little memory: quantiles are wrong by
 * at most SKETCH_ERROR of their value; count, mean, least and largest are exact.
 *
 * Buckets grow by a constant factor (DDSketch: Masson, Rim, Lee, VLDB 2019). Values from 1e-7 to
 * 1e7, what is beyond counts as the nearest. Zero-initialise. One thread.
 */
#ifndef RIDGE_PLAN_SKETCH_H
#define RIDGE_PLAN_SKETCH_H

#include <stdint.h>

#include "base/stats.h"

#define SKETCH_ERROR 0.001
#define SKETCH_BUCKETS 16384

typedef struct {
    uint64_t counts[SKETCH_BUCKETS], n;
    double sum, min, max;
} sketch;

void sketch_add(sketch *s, double x, uint64_t n); /* n values of x */
quantiles sketch_quantiles(const sketch *s);

#endif
