/* plan/minimize: the minimum of a function of a few variables, without its derivatives. */
#ifndef RIDGE_PLAN_MINIMIZE_H
#define RIDGE_PLAN_MINIMIZE_H

#include <stddef.h>

#define MINIMIZE_MAX_VARIABLES 12

typedef double (*minimize_fn)(const void *context, const double *x);

/* Moves x to a local minimum and returns the value there. The simplex of Nelder and Mead (The
 * Computer Journal, 1965), begun with steps of `step` and anew, half as large, from where it ended,
 * until max_calls of f. Deterministic; allocates nothing. */
double minimize(minimize_fn f, const void *context, double *x, size_t n_variables, double step,
                int max_calls);

#endif
