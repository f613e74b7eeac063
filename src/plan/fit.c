/* plan/fit: see fit.h. */
#include "plan/fit.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "plan/minimize.h"

#define MAX_SAMPLES 500 /* of a kind: a part of more */
#define FIRST_CALLS 300 /* of the error, from each start */
#define LAST_CALLS 1500 /* from the best of them */
#define N_OCTAVES 64
#define OUTLIER 0.5 /* beyond it an error counts no more: a slow kernel, not a slow machine */

double fit_predict(const efficiency_profile *profile, const fit_params *p,
                   const measured_sample *s) {
    efficiency_peaks peaks = p->peaks;
    if (s->kind == MEASURED_SEND_NETWORK) peaks.link_bytes_per_s = p->network_bytes_per_s;
    double seconds = 0;
    for (int i = 0; i < s->n_ops; i++) seconds += efficiency_seconds(profile, &peaks, &s->ops[i]);
    return seconds;
}

/* ---- the numbers of a kind, as variables without bounds ---- */

typedef struct {
    size_t offset;
    double min, max;
} variable;

/* A logistic curve over the logarithm, from min to max. */
static double bounded(const variable *v, double x) {
    return v->min * pow(v->max / v->min, 1 / (1 + exp(-x)));
}

#define FIELD(name) offsetof(efficiency_numbers, name)
#define COMPUTE                                                                                    \
    { FIELD(compute), 0.05, 1 }
#define BANDWIDTH                                                                                  \
    { FIELD(bandwidth), 0.05, 1.5 }
#define LINK                                                                                       \
    { FIELD(link), 0.05, 1 }
#define OVERHEAD                                                                                   \
    { FIELD(overhead_s), 1e-7, 1e-3 }
#define LATENCY                                                                                    \
    { FIELD(latency_s), 1e-7, 1e-3 }
#define SHARPNESS                                                                                  \
    { FIELD(sharpness), 1, 16 }
#define WAVE                                                                                       \
    { FIELD(wave_outputs), 1e3, 1e8 }

static const variable linear_variables[] = {COMPUTE, BANDWIDTH, OVERHEAD, SHARPNESS, WAVE};
static const variable row_variables[] = {BANDWIDTH, LATENCY, SHARPNESS};
static const variable link_variables[] = {LINK, LATENCY, SHARPNESS};

typedef struct {
    const variable *variables;
    size_t n_variables;
    const fit_params *params;
    const efficiency_profile *profile;
    efficiency_kind kind;
    size_t n_measured, n; /* a part of them is enough */
    const measured_sample *samples[MAX_SAMPLES];
    double weights[MAX_SAMPLES];
} kind_fit;

static bool is_link(efficiency_kind kind) {
    return kind >= EFFICIENCY_ALL_REDUCE;
}

static void choose_variables(kind_fit *f) {
    if (is_link(f->kind))
        f->variables = link_variables, f->n_variables = 3;
    else if (f->kind == EFFICIENCY_LINEAR)
        f->variables = linear_variables, f->n_variables = 5;
    else
        f->variables = row_variables, f->n_variables = 3;
}

static efficiency_numbers numbers_of(const kind_fit *f, const double *x) {
    efficiency_numbers c = f->profile->kinds[f->kind];
    for (size_t i = 0; i < f->n_variables; i++)
        *(double *)((char *)&c + f->variables[i].offset) = bounded(&f->variables[i], x[i]);
    return c;
}

/* ---- samples ---- */

static int octave(const measured_sample *s) {
    double size = is_link(s->ops[0].kind) ? s->ops[0].bytes : s->ops[0].m;
    int o = (int)floor(log2(fmax(1, size)));
    return o < N_OCTAVES ? o : N_OCTAVES - 1;
}

static bool is_fitted(const measured_sample *s, efficiency_kind kind) {
    return s->ops[0].kind == kind && !s->held_out;
}

/* Half of the weight is shared by the samples, half by the octaves of their sizes: a few tokens
 * are measured at few sizes, yet are what decoding does. */
static void weigh(kind_fit *f) {
    double in_octave[N_OCTAVES] = {0}, n_octaves = 0;
    for (size_t i = 0; i < f->n; i++) in_octave[octave(f->samples[i])]++;
    for (int o = 0; o < N_OCTAVES; o++) n_octaves += in_octave[o] > 0;
    for (size_t i = 0; i < f->n; i++)
        f->weights[i] = 0.5 / (double)f->n + 0.5 / (n_octaves * in_octave[octave(f->samples[i])]);
}

/* Spread evenly by the golden ratio: a fixed stride would meet the same operation of every row. */
static bool is_chosen(size_t i, double share) {
    return fmod((double)i * 0.6180339887498949, 1) < share;
}

static void gather(kind_fit *f, const measured *m) {
    size_t seen = 0;
    for (size_t i = 0; i < m->n; i++) f->n_measured += is_fitted(&m->samples[i], f->kind);
    double share = MAX_SAMPLES / (double)f->n_measured;
    for (size_t i = 0; i < m->n && f->n < MAX_SAMPLES; i++)
        if (is_fitted(&m->samples[i], f->kind) && is_chosen(seen++, share))
            f->samples[f->n++] = &m->samples[i];
    weigh(f);
}

static double error_of(const void *context, const double *x) {
    const kind_fit *f = context;
    efficiency_profile p = {.activations = f->profile->activations};
    double sum = 0;
    p.kinds[f->kind] = numbers_of(f, x);
    for (size_t i = 0; i < f->n; i++) {
        double predicted = fit_predict(&p, f->params, f->samples[i]);
        sum += f->weights[i] * fmin(OUTLIER, fabs(log(predicted / f->samples[i]->seconds)));
    }
    return sum;
}

/* The best of a few starts, for the error has more than one valley, followed to its end. */
static void fit_kind(efficiency_profile *out, kind_fit *f) {
    double best = INFINITY, x[MINIMIZE_MAX_VARIABLES];
    for (double start = -1; start <= 0; start += 0.5) {
        double y[MINIMIZE_MAX_VARIABLES];
        for (size_t i = 0; i < f->n_variables; i++) y[i] = start;
        double error = minimize(error_of, f, y, f->n_variables, 1, FIRST_CALLS);
        if (error >= best) continue;
        best = error;
        memcpy(x, y, sizeof x);
    }
    minimize(error_of, f, x, f->n_variables, 0.5, LAST_CALLS);
    efficiency_numbers *c = &out->kinds[f->kind];
    *c = numbers_of(f, x);
    snprintf(c->from, sizeof c->from, "fitted on %zu times", f->n_measured);
}

/* ---- a profile ---- */

/* Whose numbers a kind takes that was not measured itself. */
static const struct {
    efficiency_kind kind, kin;
} kinship[] = {
    {EFFICIENCY_EXPERTS, EFFICIENCY_LINEAR},
    {EFFICIENCY_ATTENTION_PREFILL, EFFICIENCY_LINEAR},
    {EFFICIENCY_ATTENTION_DECODE, EFFICIENCY_LINEAR},
    {EFFICIENCY_CACHE_WRITE, EFFICIENCY_ADD},
    {EFFICIENCY_ROWS, EFFICIENCY_ADD},
    {EFFICIENCY_ALL_GATHER, EFFICIENCY_ALL_REDUCE},
};

static void inherit(efficiency_profile *p, const bool *fitted) {
    for (size_t i = 0; i < sizeof kinship / sizeof *kinship; i++) {
        efficiency_kind kind = kinship[i].kind, kin = kinship[i].kin;
        if (fitted[kind] || !fitted[kin]) continue;
        efficiency_numbers *c = &p->kinds[kind];
        *c = p->kinds[kin];
        snprintf(c->from, sizeof c->from, "assumed: as %s", efficiency_kind_name(kin));
        if (kind != EFFICIENCY_EXPERTS) c->wave_outputs = 0; /* of a matrix's tiles */
    }
}

/* Of a link whose peak is not known nobody can say what fraction it reaches. */
static ridge_status check_links(const measured *m, const fit_params *p, ridge_error *err) {
    for (size_t i = 0; i < m->n; i++) {
        const measured_sample *s = &m->samples[i];
        bool network = s->kind == MEASURED_SEND_NETWORK;
        double peak = network ? p->network_bytes_per_s : p->peaks.link_bytes_per_s;
        if (is_link(s->ops[0].kind) && peak == 0)
            return RIDGE_FAIL(
                err, RIDGE_EINVAL, "%s: times of %s, but the %s of that GPU is not known",
                m->files[s->file], measured_kind_name(s->kind), network ? "network" : "link");
    }
    return RIDGE_OK;
}

ridge_status fit_profile(efficiency_profile *out, const measured *m, const fit_params *p,
                         ridge_error *err) {
    efficiency_profile fitted = p->base != NULL ? *p->base : efficiency_ideal();
    bool done[EFFICIENCY_N_KINDS] = {false}, any = false;
    RIDGE_TRY(check_links(m, p, err));
    kind_fit *f = mem_alloc(sizeof *f);
    if (f == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "fit");
    fitted.activations = 1;
    for (int c = 0; c < EFFICIENCY_N_KINDS; c++) {
        if (p->base != NULL && fitted.kinds[c].from[0] != 0)
            snprintf(fitted.kinds[c].from, sizeof fitted.kinds[c].from, "assumed: as of %s",
                     p->base->name);
        *f = (kind_fit){.params = p, .profile = &fitted, .kind = (efficiency_kind)c};
        choose_variables(f);
        gather(f, m);
        if (f->n == 0) continue;
        fit_kind(&fitted, f);
        any = done[c] = true;
    }
    mem_free(f);
    if (!any) return RIDGE_FAIL(err, RIDGE_EINVAL, "no measurement to fit on: all are held out");
    inherit(&fitted, done);
    *out = fitted;
    return RIDGE_OK;
}
