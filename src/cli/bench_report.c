/* cli/bench_report: see bench_report.h. */
#include "cli/bench_report.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/roofline_svg.h"

/* How much of its operations' roofs a whole phase reached: what has neither bytes nor FLOPs only
 * adds to its time. */
static double phase_reached(const bench_result *r) {
    double roof_seconds = 0;
    for (size_t i = 0; i < r->n_rows; i++)
        roof_seconds += roofline_reached(&r->rows[i], &r->peaks) * r->rows[i].seconds;
    return roof_seconds / roofline_seconds(r->rows, r->n_rows);
}

static void profile_json(buf *b, const bench_result *r) {
    double total = roofline_seconds(r->rows, r->n_rows);
    buf_json_field(b, "of_roof", phase_reached(r));
    buf_puts(b, ",\"profile\":[");
    for (size_t i = 0; i < r->n_rows; i++) {
        const dev_profile_row *row = &r->rows[i];
        buf_puts(b, i > 0 ? ",{\"operation\":" : "{\"operation\":");
        buf_json_string(b, row->name, strlen(row->name));
        buf_printf(b, ",\"n\":%llu,\"unit\":\"%s\"", (unsigned long long)row->n,
                   row->integer ? "int8" : "f32");
        buf_json_field(b, "share", row->seconds / total);
        buf_json_field(b, "seconds", row->seconds);
        buf_json_field(b, "bytes", row->bytes);
        buf_json_field(b, "flops", row->flops);
        buf_json_field(b, "of_roof", roofline_reached(row, &r->peaks));
        buf_puts(b, "}");
    }
    buf_puts(b, "]");
}

static void profile_table(const bench_result *r) {
    double total = roofline_seconds(r->rows, r->n_rows);
    printf("  %6s %9s %8s %8s %9s  %s\n", "share", "us each", "GB/s", "GFLOP/s", "of roof",
           "operation");
    for (size_t i = 0; i < r->n_rows; i++) {
        const dev_profile_row *row = &r->rows[i];
        printf("  %5.1f%% %9.1f", 100 * row->seconds / total, row->seconds / (double)row->n * 1e6);
        if (row->flops > 0)
            printf(" %8.1f %8.1f %8.1f%%", row->bytes / row->seconds / 1e9,
                   row->flops / row->seconds / 1e9, 100 * roofline_reached(row, &r->peaks));
        else
            printf(" %8s %8s %9s", "", "", "");
        printf("  %s\n", row->name);
    }
    printf("  %5.1f%% %9s %8s %8s %8.1f%%  all\n", 100.0, "", "", "", 100 * phase_reached(r));
}

static void peaks_json(buf *b, const machine_peaks *peaks) {
    buf_json_field(b, "peak_read_bytes_per_s", peaks->read_bytes_per_s);
    buf_json_field(b, "peak_int8_ops_per_s", peaks->int8_ops_per_s);
    buf_json_field(b, "peak_f32_flops_per_s", peaks->f32_flops_per_s);
}

ridge_status bench_report_json(const bench_report *report, ridge_error *err) {
    char *name = cli_model_name(report->model);
    buf b = {0};
    buf_puts(&b, "{\"machine\":{");
    machine_json(&b, engine_isa(report->e), engine_n_threads(report->e));
    peaks_json(&b, report->best);
    buf_puts(&b, "},\"model\":{\"name\":");
    buf_json_string(&b, name != NULL ? name : "", name != NULL ? strlen(name) : 0);
    buf_printf(
        &b, ",\"parameters\":%llu,\"weight_bytes\":%llu,\"kv_bytes_per_token\":%llu},\"results\":[",
        (unsigned long long)engine_n_parameters(report->e),
        (unsigned long long)engine_weight_bytes(report->e),
        (unsigned long long)engine_kv_bytes_per_token(report->e));
    for (size_t i = 0; i < report->n_results; i++) {
        const bench_result *r = &report->results[i];
        buf_printf(&b, "%s{\"phase\":\"%s\",\"batch\":%u,\"prompt\":%llu,\"tokens\":%llu",
                   i > 0 ? "," : "", r->decode ? "decode" : "prefill", r->batch,
                   (unsigned long long)report->n_prompt, (unsigned long long)r->tokens);
        buf_json_field(&b, "seconds", r->seconds);
        buf_json_field(&b, "tokens_per_s", (double)r->tokens / r->seconds);
        buf_json_field(&b, "bytes_per_s", r->bytes / r->seconds);
        buf_json_field(&b, "flops_per_s", r->flops / r->seconds);
        peaks_json(&b, &r->peaks);
        buf_json_field(&b, "mbu", r->bytes / r->seconds / r->peaks.read_bytes_per_s);
        buf_json_field(&b, "mfu", r->flops / r->seconds / r->peaks.int8_ops_per_s);
        buf_printf(&b, ",\"sampling\":\"%s\"", r->sampling);
        buf_json_field(&b, "sampler_share", r->sample_s / r->seconds);
        if (report->profile) profile_json(&b, r);
        buf_puts(&b, "}");
    }
    buf_puts(&b, "]}");
    ridge_status status = b.failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "JSON") : RIDGE_OK;
    if (status == RIDGE_OK) printf("%s\n", b.data);
    buf_free(&b);
    mem_free(name);
    return status;
}

void bench_report_table(const bench_report *report) {
    const machine_peaks *best = report->best;
    char *machine = machine_text(engine_isa(report->e), engine_n_threads(report->e));
    printf("%s: %.1f GB/s read, %.0f GOPS int8, %.0f GFLOP/s f32 at best\n",
           machine != NULL ? machine : "", best->read_bytes_per_s / 1e9, best->int8_ops_per_s / 1e9,
           best->f32_flops_per_s / 1e9);
    printf("%-8s %5s %9s %8s %6s %7s %8s %6s %7s %8s\n", "phase", "batch", "tok/s", "GB/s", "of",
           "MBU", "GFLOP/s", "of", "MFU", "sampler");
    for (size_t i = 0; i < report->n_results; i++) {
        const bench_result *r = &report->results[i];
        double bytes_per_s = r->bytes / r->seconds, flops_per_s = r->flops / r->seconds;
        printf("%-8s %5u %9.1f %8.1f %6.1f %6.1f%% %8.1f %6.0f %6.1f%% %7.2f%%%s%s\n",
               r->decode ? "decode" : "prefill", r->batch, (double)r->tokens / r->seconds,
               bytes_per_s / 1e9, r->peaks.read_bytes_per_s / 1e9,
               100 * bytes_per_s / r->peaks.read_bytes_per_s, flops_per_s / 1e9,
               r->peaks.int8_ops_per_s / 1e9, 100 * flops_per_s / r->peaks.int8_ops_per_s,
               100 * r->sample_s / r->seconds, report->sampler ? "  " : "",
               report->sampler ? r->sampling : "");
        if (report->profile) profile_table(r);
    }
    mem_free(machine);
}

ridge_status bench_report_svg(const bench_report *report, const char *path, ridge_error *err) {
    size_t n = report->n_results;
    char *machine = machine_text(engine_isa(report->e), engine_n_threads(report->e));
    char *model = cli_model_name(report->model), (*names)[64] = mem_zalloc(n, sizeof *names);
    roofline_series *series = mem_zalloc(n, sizeof *series);
    buf title = {0};
    buf_printf(&title, "Roofline of %s: prefill and decode at a context of %llu tokens",
               model != NULL ? model : "", (unsigned long long)report->n_prompt);
    ridge_status status = RIDGE_OK;
    if (title.failed || machine == NULL || names == NULL || series == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "the picture");
    for (size_t i = 0; i < n && status == RIDGE_OK; i++) {
        const bench_result *r = &report->results[i];
        if (r->decode)
            snprintf(names[i], sizeof names[i], "decode x%u%s%s", r->batch,
                     report->sampler ? ", " : "", report->sampler ? r->sampling : "");
        else
            snprintf(names[i], sizeof names[i], "prefill %llu",
                     (unsigned long long)report->n_prompt);
        series[i] = (roofline_series){names[i], r->rows, r->n_rows, r->peaks};
    }
    if (status == RIDGE_OK)
        status = roofline_svg_write(
            path,
            &(roofline){.title = title.data, .subtitle = machine, .series = series, .n_series = n},
            err);
    buf_free(&title);
    mem_free(series);
    mem_free(names);
    mem_free(model);
    mem_free(machine);
    return status;
}
