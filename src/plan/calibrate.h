/* plan/calibrate: an efficiency profile of this machine, from a few steps of a model on the cpu
 * device.
 *
 * Whole steps are measured, not operations: the numbers of the profile are those with which the
 * counting device predicts the steps best.
 */
#ifndef RIDGE_PLAN_CALIBRATE_H
#define RIDGE_PLAN_CALIBRATE_H

#include "plan/steps.h"
#include "roof/efficiency.h"

#define CALIBRATE_MAX_STEPS 64

typedef struct {
    step_shape shape;
    double seconds, low_s, high_s; /* the median and the quartiles of its undisturbed runs */
    double predicted_s;
    bool held_out; /* not to be fitted on */
} calibrate_step;

/* Decodes of 1 to 32 sequences at contexts of 128 to 4,096 tokens, chunks of prompts, and chunks
 * beside decodes; every other one is held out. Returns how many, of which none needs more than
 * max_context tokens. */
size_t calibrate_plan(calibrate_step out[CALIBRATE_MAX_STEPS], uint32_t max_context);

/* Sets what they take on the device that computes. Rounds of all steps, for about so many seconds
 * (at least three rounds): a machine that is slow for a while, as shared ones are, is so for all of
 * them alike. Of a step's runs those count that were not put aside for other programs more than
 * twice as often as the least quarter of them, and once; but half of them at least, so that few
 * quiet moments don't tell of some steps what the others never were. */
ridge_status calibrate_measure(calibrate_step *list, size_t n, const gguf *g, device *cpu,
                               double enough_s, const log_sink *log,
                               ridge_error *err) RIDGE_CHECKED;

/* What is known of the machine. */
typedef struct {
    efficiency_peaks peaks;
    uint32_t packed_tokens; /* that have kernels of their own: device_cpu_packed_tokens */
} calibrate_machine;

/* *out gets its numbers, each step its prediction. */
ridge_status calibrate_fit(efficiency_profile *out, calibrate_step *list, size_t n, const gguf *g,
                           const calibrate_machine *machine, ridge_error *err) RIDGE_CHECKED;

#endif
