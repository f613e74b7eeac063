/* cli/plan_print: a plan as text and as JSON. */
#ifndef RIDGE_CLI_PLAN_PRINT_H
#define RIDGE_CLI_PLAN_PRINT_H

#include "base/buf.h"
#include "plan/plan.h"

/* What was planned, and what came out. */
typedef struct {
    const char *model;
    plan_params params;
    plan_result result;
    const char *misfit;                        /* why it doesn't fit; NULL: it does */
    dev_profile_row operations[PLAN_MAX_ROWS]; /* [n_operations] of the counted step */
    size_t n_operations;
} plan_report;

/* One object, its fields as design.md has them, and more. */
void plan_print_json(buf *out, const plan_report *r);
void plan_print_text(buf *out, const plan_report *r);
/* The main numbers before and after. */
void plan_print_change(buf *out, const char *what, const plan_report *from, const plan_report *to);
void plan_print_change_json(buf *out, const char *what, const plan_report *to);

#endif
