/* cli/report: see report.h. */
#include "cli/report.h"

#include <stdio.h>
#include <string.h>

void report_json_quantiles(buf *b, const char *name, const quantiles *q) {
    buf_printf(b, ",\"%s\":", name);
    if (q->n == 0) {
        buf_puts(b, "null");
        return;
    }
    buf_putc(b, '{');
    const struct {
        const char *name;
        double value;
    } fields[] = {{"mean", q->mean}, {"min", q->min}, {"p50", q->p50}, {"p90", q->p90},
                  {"p95", q->p95},   {"p99", q->p99}, {"max", q->max}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        buf_json_field(b, fields[i].name, fields[i].value);
    buf_putc(b, '}');
}

void report_json_member(buf *b, const char *name, const char *text) {
    buf_printf(b, ",\"%s\":", name);
    buf_json_string(b, text, strlen(text));
}

void report_print_heading(void) {
    printf("%-12s %10s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p95", "p99",
           "max");
}

void report_print_quantiles(const char *name, const quantiles *q) {
    if (q->n > 0)
        printf("%-12s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, q->mean, q->p50, q->p90,
               q->p95, q->p99, q->max);
}

double report_per_second(double n, double seconds) {
    return seconds > 0 ? n / seconds : 0;
}
