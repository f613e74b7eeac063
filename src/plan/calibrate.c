/* plan/calibrate: see calibrate.h. */
#include "plan/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/stats.h"
#include "device/count/count.h"
#include "plan/minimize.h"

#define CHUNK 512 /* rows of a long prompt's steps, as the engine cuts them by default */
#define MIN_ROUNDS 3
#define MAX_ROUNDS 25
#define MAX_CALLS 6000

/* ---- which steps ---- */

static void add(calibrate_step *list, size_t *n, step_shape shape, uint32_t max_context) {
    if (*n == CALIBRATE_MAX_STEPS || shape.n_context > max_context) return;
    list[*n] = (calibrate_step){.shape = shape, .held_out = *n % 2 == 1};
    (*n)++;
}

size_t calibrate_plan(calibrate_step out[CALIBRATE_MAX_STEPS], uint32_t max_context) {
    static const uint32_t contexts[] = {128, 512, 1024, 2048, 4096}, prompts[] = {32, 128, 256};
    static const step_shape mixed[] = {{1, 16, 128, 1},        {1, 64, 256, 2},
                                       {1, 192, 256, 4},       {1, 256, 1024, 4},
                                       {1, CHUNK - 8, 512, 8}, {1, CHUNK - 16, 1024, 16}};
    size_t n = 0;
    for (uint32_t batch = 1; batch <= 32; batch *= 2)
        for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++)
            add(out, &n, (step_shape){batch, 1, contexts[c], 0}, max_context);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        add(out, &n, (step_shape){1, prompts[i], prompts[i], 0}, max_context);
    for (uint32_t context = CHUNK; context <= 4096; context *= 2)
        add(out, &n, (step_shape){1, CHUNK, context, 0}, max_context);
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) add(out, &n, mixed[i], max_context);
    return n;
}

/* ---- what they take ---- */

static ridge_status open_steps(steps **out, const calibrate_step *list, size_t n, const gguf *g,
                               device *d, const log_sink *log, ridge_error *err) {
    step_shape shapes[CALIBRATE_MAX_STEPS];
    for (size_t i = 0; i < n; i++) shapes[i] = list[i].shape;
    return steps_open(out, g, d, shapes, n, log, err);
}

/* What each round saw of a step. */
typedef struct {
    double seconds[MAX_ROUNDS];
    double n_put_aside[MAX_ROUNDS]; /* times that a thread had to leave its processor to others */
} step_runs;

/* A decode once before, since those follow their like; what a prompt's chunk reads is little beside
 * what it computes. */
static ridge_status measure(steps *s, const step_shape *shape, step_runs *runs, size_t round,
                            ridge_error *err) {
    double *seconds = &runs->seconds[round];
    if (shape->n_rows == 1) RIDGE_TRY(steps_run(s, shape, false, seconds, err));
    uint64_t before = cpus_times_put_aside();
    RIDGE_TRY(steps_run(s, shape, false, seconds, err));
    runs->n_put_aside[round] = (double)(cpus_times_put_aside() - before);
    return RIDGE_OK;
}

static void summarize(calibrate_step *step, const step_runs *runs, size_t n) {
    double sorted[MAX_ROUNDS];
    size_t n_left = 0;
    memcpy(sorted, runs->n_put_aside, n * sizeof *sorted);
    sort_values(sorted, n);
    double most = fmax(2 * sorted[n / 4] + 1, sorted[(n - 1) / 2]); /* half of them at least */
    for (size_t i = 0; i < n; i++)
        if (runs->n_put_aside[i] <= most) sorted[n_left++] = runs->seconds[i];
    sort_values(sorted, n_left);
    step->low_s = sorted[n_left / 4];
    step->seconds = sorted[n_left / 2];
    step->high_s = sorted[3 * n_left / 4];
}

static ridge_status run_rounds(steps *s, calibrate_step *list, size_t n, double enough_s,
                               ridge_error *err) {
    step_runs runs[CALIBRATE_MAX_STEPS];
    double start = clock_now_s();
    size_t n_rounds = 0;
    while (n_rounds < MIN_ROUNDS || (n_rounds < MAX_ROUNDS && clock_now_s() - start < enough_s)) {
        for (size_t i = 0; i < n; i++)
            RIDGE_TRY(measure(s, &list[i].shape, &runs[i], n_rounds, err));
        n_rounds++;
    }
    for (size_t i = 0; i < n; i++) summarize(&list[i], &runs[i], n_rounds);
    return RIDGE_OK;
}

ridge_status calibrate_measure(calibrate_step *list, size_t n, const gguf *g, device *cpu,
                               double enough_s, const log_sink *log, ridge_error *err) {
    steps *s = NULL;
    ridge_status status = open_steps(&s, list, n, g, cpu, log, err);
    if (status == RIDGE_OK) status = run_rounds(s, list, n, enough_s, err);
    steps_close(s);
    return status;
}

/* ---- the fit ---- */

typedef struct {
    steps *s;
    const calibrate_machine *machine;
    efficiency_profile *profile; /* the counting device's own */
    calibrate_step *list;
    size_t n;
} step_fit;

static double between(double min, double max, double x) {
    return min * pow(max / min, 1 / (1 + exp(-x)));
}

/* Linear operations have six variables; attention computes in prompts and reads in decodes; what
 * goes row by row takes the time of its activations. Peaks may have been measured while others
 * computed, so what is reached of them may be more than all. */
static void set_numbers(efficiency_profile *p, const calibrate_machine *machine, const double *x) {
    *p = efficiency_ideal();
    p->activations = 1;
    efficiency_numbers *linear = &p->kinds[EFFICIENCY_LINEAR];
    linear->compute = between(0.02, 4, x[0]);
    linear->bandwidth = between(0.05, 8, x[1]);
    linear->overhead_s = between(1e-7, 1e-3, x[2]);
    linear->sharpness = between(1, 16, x[3]);
    linear->few_tokens = machine->packed_tokens;
    linear->few_compute = between(0.02, 4, x[7]);
    linear->unpack_tokens = between(0.1, 100, x[8]);
    p->kinds[EFFICIENCY_EXPERTS] = *linear;
    p->kinds[EFFICIENCY_ATTENTION_PREFILL].compute = between(0.002, 4, x[4]);
    p->kinds[EFFICIENCY_ATTENTION_DECODE].bandwidth = between(0.02, 8, x[5]);
    for (int k = EFFICIENCY_EMBED; k <= EFFICIENCY_ROWS; k++)
        p->kinds[k].bandwidth = between(0.01, 10, x[6]);
    for (int k = 0; k <= EFFICIENCY_ROWS; k++)
        snprintf(p->kinds[k].from, sizeof p->kinds[k].from, "fitted on whole steps");
}
#define N_VARIABLES 9

static ridge_status predict(const step_fit *f, ridge_error *err) {
    for (size_t i = 0; i < f->n; i++)
        RIDGE_TRY(steps_run(f->s, &f->list[i].shape, true, &f->list[i].predicted_s, err));
    return RIDGE_OK;
}

static double error_of(const void *context, const double *x) {
    const step_fit *f = context;
    double sum = 0;
    set_numbers(f->profile, f->machine, x);
    if (predict(f, NULL) != RIDGE_OK) return INFINITY;
    for (size_t i = 0; i < f->n; i++)
        if (!f->list[i].held_out) sum += fabs(log(f->list[i].predicted_s / f->list[i].seconds));
    return sum / (double)f->n;
}

ridge_status calibrate_fit(efficiency_profile *out, calibrate_step *list, size_t n, const gguf *g,
                           const calibrate_machine *machine, ridge_error *err) {
    efficiency_profile profile = efficiency_ideal();
    device *counter = NULL;
    step_fit f = {.machine = machine, .profile = &profile, .list = list, .n = n};
    const count_params params = {
        .profile = &profile, .linear = machine->peaks, .other = machine->peaks};
    RIDGE_TRY(device_count_create(&counter, &params, err));
    ridge_status status = open_steps(&f.s, list, n, g, counter, NULL, err);
    if (status == RIDGE_OK) {
        double x[N_VARIABLES] = {0};
        minimize(error_of, &f, x, N_VARIABLES, 1, MAX_CALLS);
        set_numbers(&profile, machine, x);
        status = predict(&f, err);
    }
    steps_close(f.s);
    counter->vtable->destroy(counter);
    if (status == RIDGE_OK) *out = profile;
    return status;
}
