/* cli/plan_explain: the working of a plan's numbers, as a person would write it: what is put into
 * which formula, where that comes from, and why the two counts differ. */
#ifndef RIDGE_CLI_PLAN_EXPLAIN_H
#define RIDGE_CLI_PLAN_EXPLAIN_H

#include "cli/plan_print.h"

void plan_explain_text(buf *out, const plan_report *r);
/* "explain":[{"name","formula","working","value","source"}] */
void plan_explain_json(buf *out, const plan_report *r);

#endif
