/* cli/sim_report: what a simulation came to, as JSON and as text. */
#ifndef RIDGE_CLI_SIM_REPORT_H
#define RIDGE_CLI_SIM_REPORT_H

#include "base/buf.h"
#include "cli/sim_svg.h"
#include "plan/experiment.h"

/* ,"requests":... and all that follows, without the braces. price: of a GPU and hour; 0: none. */
void sim_report_json(buf *b, const experiment *e, const experiment_result *r, double price);
void sim_report_text(const experiment *e, const experiment_result *r, double price);
/* What a picture shows of it. */
sim_point sim_report_point(const experiment *e, const experiment_result *r);
/* One line of a table, and its heading. */
void sim_report_heading(void);
void sim_report_line(const char *name, const experiment *e, const experiment_result *r);

#endif
