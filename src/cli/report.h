/* cli/report: latencies, as the commands that measure or simulate them print them. */
#ifndef RIDGE_CLI_REPORT_H
#define RIDGE_CLI_REPORT_H

#include "base/buf.h"
#include "base/stats.h"

/* ,"name":{"mean":...}; null where there are none. */
void report_json_quantiles(buf *b, const char *name, const quantiles *q);
void report_json_member(buf *b, const char *name, const char *text); /* ,"name":"text" */

/* A table of milliseconds: its heading, then a line for each that has any. */
void report_print_heading(void);
void report_print_quantiles(const char *name, const quantiles *q);

double report_per_second(double n, double seconds); /* 0 in no time */

#endif
