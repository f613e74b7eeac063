/* cli/plan_calibrate: see plan_calibrate.h. */
#include "cli/plan_calibrate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/stats.h"
#include "cli/cli.h"
#include "cli/engine_args.h"
#include "cli/machine.h"
#include "cli/plan_fit.h"
#include "cli/plan_host.h"
#include "plan/calibrate.h"

#define HOST_SHARE 0.2 /* of the seconds for steps, as many more for what serving adds */

typedef struct {
    engine_args engine;
    const char *model, *output;
    double seconds;
    bool json;
} calibrate_args;

typedef struct {
    char *path;
    gguf *file;
    device *cpu;
    machine_peaks peaks;
    calibrate_step steps[CALIBRATE_MAX_STEPS];
    size_t n;
    uint32_t n_context; /* of the model */
    efficiency_host host;
    efficiency_profile profile;
} calibration;

static ridge_status open_all(calibration *c, const calibrate_args *a, ridge_error *err) {
    device_cpu_params cpu;
    model_config config;
    RIDGE_TRY(engine_args_check(&a->engine, err));
    engine_args_device(&a->engine, &cpu);
    RIDGE_TRY(cli_model_path(&c->path, a->model, err));
    RIDGE_TRY(gguf_open(&c->file, c->path, err));
    RIDGE_TRY(model_config_read(&config, c->file, err));
    c->n = calibrate_plan(c->steps, config.n_context);
    c->n_context = config.n_context;
    return device_cpu_create(&c->cpu, &cpu, err);
}

static uint64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static ridge_status describe(calibration *c, const calibrate_args *a, uint64_t free_bytes,
                             ridge_error *err) {
    efficiency_profile *p = &c->profile;
    char *title = machine_text(device_cpu_isa(c->cpu), device_cpu_threads(c->cpu));
    if (title == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the machine's name");
    snprintf(p->name, sizeof p->name, "%.31s", device_cpu_isa(c->cpu));
    snprintf(p->made, sizeof p->made, "ridge plan --calibrate %.200s", a->model);
    snprintf(p->machine.title, sizeof p->machine.title, "%s", title);
    p->machine.flops_per_s = c->peaks.int8_ops_per_s;
    p->machine.bytes_per_s = c->peaks.read_bytes_per_s;
    p->machine.memory_bytes = (double)free_bytes;
    mem_free(title);
    return RIDGE_OK;
}

/* The higher ones, of several times: while others compute, there are no peaks to be seen. */
static ridge_status measure_peaks(calibration *c, ridge_error *err) {
    machine_peaks p;
    if (!machine_peaks_get(&p, device_cpu_isa(c->cpu), device_cpu_threads(c->cpu),
                           file_bytes(c->path), true))
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot measure the machine's peaks");
    c->peaks = roof_peaks_higher(&c->peaks, &p);
    return RIDGE_OK;
}

/* Zeros of a model whose context has no room for it. */
static ridge_status measure_host(calibration *c, const calibrate_args *a, ridge_error *err) {
    engine_params p = engine_params_default();
    p.model_path = c->path;
    p.n_threads = device_cpu_threads(c->cpu);
    p.isa = device_cpu_isa(c->cpu);
    if (c->n_context < PLAN_HOST_CONTEXT) return RIDGE_OK;
    return plan_host_measure(&c->host, &p, HOST_SHARE * a->seconds, err);
}

static ridge_status calibrate(calibration *c, const calibrate_args *a, ridge_error *err) {
    uint64_t free_bytes = mem_available_bytes(); /* before anything is opened */
    if (!(a->seconds >= 0 && a->seconds <= 1e5))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--seconds: expected 0 to 100000, found %g",
                          a->seconds);
    if (a->output != NULL) RIDGE_TRY(plan_profile_check(a->output, err));
    RIDGE_TRY(open_all(c, a, err));
    RIDGE_TRY(measure_peaks(c, err));
    RIDGE_TRY(calibrate_measure(c->steps, c->n, c->file, c->cpu, a->seconds, cli_log(), err));
    RIDGE_TRY(measure_host(c, a, err));
    RIDGE_TRY(measure_peaks(c, err));
    const calibrate_machine machine = {
        .peaks = {.flops_per_s = c->peaks.int8_ops_per_s, .bytes_per_s = c->peaks.read_bytes_per_s},
        .packed_tokens = device_cpu_packed_tokens(c->cpu)};
    RIDGE_TRY(calibrate_fit(&c->profile, c->steps, c->n, c->file, &machine, err));
    c->profile.host = c->host;
    RIDGE_TRY(describe(c, a, free_bytes, err));
    return a->output != NULL ? plan_profile_save(&c->profile, a->output, err) : RIDGE_OK;
}

/* ---- printing ---- */

static double error_of(const calibrate_step *s) {
    return s->predicted_s / s->seconds - 1;
}

/* The median of the absolute errors; 0 of none. */
static double median_error(const calibration *c, bool held_out) {
    double errors[CALIBRATE_MAX_STEPS];
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->steps[i].held_out == held_out) errors[n++] = fabs(error_of(&c->steps[i]));
    if (n == 0) return 0;
    sort_values(errors, n);
    return errors[n / 2];
}

static void print_table(const calibration *c, const calibrate_args *a) {
    printf("%9s %6s %7s %8s %12s %17s %12s %8s\n", "sequences", "rows", "decodes", "context",
           "measured ms", "quartiles", "predicted ms", "error");
    for (size_t i = 0; i < c->n; i++) {
        const calibrate_step *s = &c->steps[i];
        printf("%9u %6u %7u %8u %12.2f %8.2f-%8.2f %12.2f %+7.1f%%%s\n", s->shape.n_seqs,
               s->shape.n_rows, s->shape.n_beside, s->shape.n_context, 1000 * s->seconds,
               1000 * s->low_s, 1000 * s->high_s, 1000 * s->predicted_s, 100 * error_of(s),
               s->held_out ? "  held out" : "");
    }
    printf("median error: %.1f%% fitted on, %.1f%% held out\n", 100 * median_error(c, false),
           100 * median_error(c, true));
    printf("peaks: %.4g int8 operations/s, %.4g bytes/s\n", c->peaks.int8_ops_per_s,
           c->peaks.read_bytes_per_s);
    printf("serving adds %.3f ms to a step and %.3f ms for each token\n", 1000 * c->host.step_s,
           1000 * c->host.token_s);
    if (a->output == NULL) return;
    printf("with ridge plan and sim: --gpu %s%s\n", strchr(a->output, '/') ? "" : "./", a->output);
}

static int print_json(const calibration *c) {
    buf b = {0};
    buf_puts(&b, "{\"machine\":{");
    machine_json(&b, device_cpu_isa(c->cpu), device_cpu_threads(c->cpu));
    buf_json_field(&b, "peak_int8_ops_per_s", c->peaks.int8_ops_per_s);
    buf_json_field(&b, "peak_read_bytes_per_s", c->peaks.read_bytes_per_s);
    buf_puts(&b, "},\"steps\":[");
    for (size_t i = 0; i < c->n; i++) {
        const calibrate_step *s = &c->steps[i];
        buf_printf(&b,
                   "%s{\"sequences\":%u,\"rows\":%u,\"decodes\":%u,\"context\":%u,\"held_out\":%s",
                   i > 0 ? "," : "", s->shape.n_seqs, s->shape.n_rows, s->shape.n_beside,
                   s->shape.n_context, s->held_out ? "true" : "false");
        buf_json_field(&b, "seconds", s->seconds);
        buf_json_field(&b, "low_seconds", s->low_s);
        buf_json_field(&b, "high_seconds", s->high_s);
        buf_json_field(&b, "predicted_seconds", s->predicted_s);
        buf_puts(&b, "}");
    }
    buf_puts(&b, "],\"host\":{");
    buf_json_field(&b, "step_s", c->host.step_s);
    buf_json_field(&b, "token_s", c->host.token_s);
    buf_puts(&b, "}");
    buf_json_field(&b, "median_error_fitted", median_error(c, false));
    buf_json_field(&b, "median_error_held_out", median_error(c, true));
    buf_puts(&b, "}");
    if (!b.failed) puts(b.data);
    int status = b.failed ? CLI_FAILED : CLI_OK;
    buf_free(&b);
    return status;
}

int cmd_plan_calibrate(int argc, char **argv) {
    calibrate_args a = {.engine = engine_args_default(), .seconds = 60};
    const cli_option options[] = {
        {"calibrate", CLI_STRING, &a.model, "model whose steps are measured"},
        {"output", CLI_STRING, &a.output, "file for the profile, which --gpu then takes"},
        {"seconds", CLI_DOUBLE, &a.seconds, "about how long to measure (default: 60)"},
        {"threads", CLI_INT, &a.engine.threads, "threads (default: the usable processors)"},
        {"json", CLI_FLAG, &a.json, "one JSON document"},
    };
    int n = 0;
    static const char usage[] = "plan --calibrate MODEL [--output FILE]";
    int status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n);
    if (status == CLI_OK && a.model == NULL)
        status = cli_misused(usage, "--calibrate needs a MODEL");
    if (status == CLI_OK) status = cli_count(usage, argv, n, 0, 0);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    calibration *c = mem_zalloc(1, sizeof *c);
    ridge_error err = {0};
    if (c == NULL) return cli_fail(&(ridge_error){.code = RIDGE_ENOMEM});
    if (calibrate(c, &a, &err) != RIDGE_OK)
        status = cli_refuse(&err);
    else if (a.json)
        status = print_json(c);
    else
        print_table(c, &a);
    if (c->cpu != NULL) c->cpu->vtable->destroy(c->cpu);
    gguf_close(c->file);
    mem_free(c->path);
    mem_free(c);
    return status;
}
