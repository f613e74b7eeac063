/* cli/bench_report: what `ridge bench MODEL` measured, as a table, as JSON and as a roofline. */
#ifndef RIDGE_CLI_BENCH_REPORT_H
#define RIDGE_CLI_BENCH_REPORT_H

#include "cli/machine.h"
#include "engine/engine.h"

/* One phase: prefill, or decode of so many sequences. */
typedef struct {
    bool decode;
    uint32_t batch;
    const char *sampling; /* how tokens were drawn */
    uint64_t tokens;
    double seconds, flops, bytes;
    double sample_s;       /* of seconds */
    machine_peaks peaks;   /* measured in turn with its steps */
    dev_profile_row *rows; /* [n_rows], owned; NULL: not asked for */
    size_t n_rows;
} bench_result;

typedef struct {
    const engine *e;
    const char *model;         /* as it was given */
    const machine_peaks *best; /* the machine's: the highest, before the results or among them */
    uint64_t n_prompt;
    bool profile, sampler;       /* are shown */
    const bench_result *results; /* [n_results] */
    size_t n_results;
} bench_report;

/* To stdout. */
void bench_report_table(const bench_report *r);
ridge_status bench_report_json(const bench_report *r, ridge_error *err) RIDGE_CHECKED;
/* Replaces the file at path; every result has rows. */
ridge_status bench_report_svg(const bench_report *r, const char *path,
                              ridge_error *err) RIDGE_CHECKED;

#endif
