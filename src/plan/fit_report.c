/* plan/fit_report: how far a profile is from measured times (fit.h). */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/stats.h"
#include "plan/fit.h"

/* Where few tokens end and many begin: linear operations by their tokens. */
static const double token_bounds[] = {0, 32, 128, 512, 2048, INFINITY};
#define N_BOUNDS (sizeof token_bounds / sizeof *token_bounds - 1)

/* A group of samples: of one kind, or the linear ones of (above, to] tokens. */
typedef struct {
    bool linear;
    measured_kind kind;
    double above, to;
} group;

static bool is_in(const group *g, const measured_sample *s) {
    if (!g->linear) return s->kind == g->kind;
    return s->ops[0].kind == EFFICIENCY_LINEAR && s->ops[0].m > g->above && s->ops[0].m <= g->to;
}

/* The smallest that at least a share q of them doesn't exceed; sorts. */
static double nearest_rank(double *x, size_t n, double q) {
    sort_values(x, n);
    size_t at = (size_t)ceil(q * (double)n);
    return x[at > 0 ? at - 1 : 0];
}

/* errors: the relative error of each sample, signed; scratch: [n]. */
static fit_errors errors_of(const group *g, const measured *m, const double *errors, bool held_out,
                            double *scratch) {
    fit_errors e = {0};
    for (size_t i = 0; i < m->n; i++)
        if (m->samples[i].held_out == held_out && is_in(g, &m->samples[i]))
            scratch[e.n++] = errors[i];
    if (e.n == 0) return e;
    e.bias = nearest_rank(scratch, e.n, 0.5);
    for (size_t i = 0; i < e.n; i++) scratch[i] = fabs(scratch[i]);
    e.median = nearest_rank(scratch, e.n, 0.5);
    e.p90 = nearest_rank(scratch, e.n, 0.9);
    return e;
}

static void add_row(fit_report *r, const group *g, const measured *m, const double *errors,
                    double *scratch) {
    fit_row *row = &r->rows[r->n];
    row->fitted = errors_of(g, m, errors, false, scratch);
    row->held_out = errors_of(g, m, errors, true, scratch);
    if (row->fitted.n + row->held_out.n == 0) return;
    if (!g->linear)
        snprintf(row->name, sizeof row->name, "%s", measured_kind_name(g->kind));
    else if (g->above == 0 && !isfinite(g->to))
        snprintf(row->name, sizeof row->name, "linear, all");
    else if (!isfinite(g->to))
        snprintf(row->name, sizeof row->name, "linear, over %.0f tokens", g->above);
    else
        snprintf(row->name, sizeof row->name, "linear, %.0f to %.0f tokens", g->above + 1, g->to);
    r->n++;
}

ridge_status fit_report_create(fit_report *out, const efficiency_profile *profile,
                               const measured *m, const fit_params *p, ridge_error *err) {
    fit_report r = {.rows = mem_zalloc(MEASURED_N_KINDS + 1 + N_BOUNDS, sizeof *r.rows)};
    double *errors = mem_zalloc(m->n, sizeof *errors), *scratch = mem_zalloc(m->n, sizeof *scratch);
    bool ok = r.rows != NULL && errors != NULL && scratch != NULL;
    for (size_t i = 0; ok && i < m->n; i++)
        errors[i] = fit_predict(profile, p, &m->samples[i]) / m->samples[i].seconds - 1;
    for (int k = 0; ok && k < MEASURED_N_KINDS; k++)
        add_row(&r, &(group){.kind = (measured_kind)k}, m, errors, scratch);
    if (ok) add_row(&r, &(group){.linear = true, .to = INFINITY}, m, errors, scratch);
    for (size_t b = 0; ok && b < N_BOUNDS; b++)
        add_row(&r, &(group){.linear = true, .above = token_bounds[b], .to = token_bounds[b + 1]},
                m, errors, scratch);
    mem_free(errors);
    mem_free(scratch);
    if (!ok) {
        mem_free(r.rows);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "report");
    }
    *out = r;
    return RIDGE_OK;
}

void fit_report_free(fit_report *r) {
    mem_free(r->rows);
    *r = (fit_report){0};
}
