/* cli/sim_svg: what `ridge sim --compare` found, as a picture: each variant a curve over the rates,
 * of the time between tokens and of the share of good requests, or, without targets, of the tokens
 * per second. */
#ifndef RIDGE_CLI_SIM_SVG_H
#define RIDGE_CLI_SIM_SVG_H

#include "base/buf.h"

typedef struct {
    double itl_p99_ms, good, output_per_s; /* good: a share; negative: there are no targets */
} sim_point;

/* All borrowed. */
typedef struct {
    const char *title, *x_name;
    const char *const *names; /* [n_names] of the variants */
    const double *rates;      /* [n_rates] growing */
    const sim_point *points;  /* [n_rates, n_names] */
    size_t n_names, n_rates;
} sim_curves;

void sim_svg(buf *out, const sim_curves *c);

#endif
