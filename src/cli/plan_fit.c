/* cli/plan_fit: see plan_fit.h. */
#include "cli/plan_fit.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/newfile.h"
#include "cli/cli.h"
#include "plan/fit.h"
#include "roof/hardware.h"

typedef struct {
    bool fit, json;
    const char *gpu, *test, *output, *base;
} fit_args;

static ridge_status find_gpu(fit_params *out, const char *name, ridge_error *err) {
    hardware h;
    RIDGE_TRY(hardware_find(&h, name, err));
    *out = (fit_params){.peaks = {.flops_per_s = hardware_flops(&h, PEAK_16),
                                  .bytes_per_s = h.bytes_per_s,
                                  .link_bytes_per_s = hardware_link(&h)},
                        .network_bytes_per_s = h.network_bytes_per_s};
    return RIDGE_OK;
}

/* "a100" of "a100-80gb": how its files begin, and what the profile is called. */
static int family_length(const char *gpu) {
    return (int)strcspn(gpu, "-");
}

/* ---- files ---- */

static ridge_status open_directory(measured *m, const char *path, const char *gpu,
                                   ridge_error *err) {
    struct dirent **entries;
    size_t n_files = m->n_files;
    ridge_status status = RIDGE_OK;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) return error_set_errno(err, RIDGE_EIO, "%s", path);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        size_t len = strlen(name);
        buf file = {0};
        if (status == RIDGE_OK && strncmp(name, gpu, (size_t)family_length(gpu)) == 0 && len > 4 &&
            strcmp(name + len - 4, ".csv") == 0) {
            buf_printf(&file, "%s/%s", path, name);
            status = file.failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "a file's name")
                                 : measured_open(m, file.data, err);
        }
        buf_free(&file);
        free(entries[i]);
    }
    free(entries);
    if (status == RIDGE_OK && m->n_files == n_files)
        return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "%s: no file %.*s*.csv", path, family_length(gpu),
                          gpu);
    return status;
}

static ridge_status open_all(measured *m, char **paths, int n, const char *gpu, ridge_error *err) {
    for (int i = 0; i < n; i++) {
        struct stat st;
        if (stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode))
            RIDGE_TRY(open_directory(m, paths[i], gpu, err));
        else
            RIDGE_TRY(measured_open(m, paths[i], err));
    }
    return RIDGE_OK;
}

ridge_status plan_profile_check(const char *path, ridge_error *err) {
    newfile file = {0};
    RIDGE_TRY(newfile_open(&file, path, 0666, err));
    newfile_abandon(&file);
    return RIDGE_OK;
}

ridge_status plan_profile_save(const efficiency_profile *profile, const char *path,
                               ridge_error *err) {
    buf text = {0};
    efficiency_write(&text, profile);
    if (text.failed) {
        buf_free(&text);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the profile");
    }
    newfile file = {0};
    ridge_status status = newfile_open(&file, path, 0666, err);
    if (status == RIDGE_OK && fwrite(text.data, 1, text.len, file.file) != text.len)
        status = error_set_errno(err, RIDGE_EIO, "%s: cannot write", path);
    if (status == RIDGE_OK) status = newfile_commit(&file, err);
    newfile_abandon(&file);
    buf_free(&text);
    return status;
}

/* ---- printing ---- */

static void print_errors(const fit_errors *e) {
    if (e->n == 0)
        printf("%8s %7s %7s %7s", "-", "", "", "");
    else
        printf("%8zu %6.1f%% %6.1f%% %+6.1f%%", e->n, 100 * e->median, 100 * e->p90, 100 * e->bias);
}

static void print_table(const fit_report *r) {
    printf("%-28s %31s   %31s\n", "error of predicted times", "fitted on", "held out");
    printf("%-28s", "");
    for (int i = 0; i < 2; i++)
        printf("%s%8s %7s %7s %7s", i > 0 ? "   " : " ", "n", "median", "p90", "bias");
    printf("\n");
    for (size_t i = 0; i < r->n; i++) {
        printf("%-28s ", r->rows[i].name);
        print_errors(&r->rows[i].fitted);
        printf("   ");
        print_errors(&r->rows[i].held_out);
        printf("\n");
    }
}

static void write_errors(buf *b, const char *name, const fit_errors *e) {
    buf_printf(b, ",\"%s\":{\"n\":%zu", name, e->n);
    if (e->n > 0) {
        buf_json_field(b, "median", e->median);
        buf_json_field(b, "p90", e->p90);
        buf_json_field(b, "bias", e->bias);
    }
    buf_puts(b, "}");
}

static int print_json(const fit_report *r, const fit_args *a) {
    buf b = {0};
    buf_puts(&b, "{\"gpu\":");
    buf_json_string(&b, a->gpu, strlen(a->gpu));
    buf_puts(&b, ",\"operations\":[");
    for (size_t i = 0; i < r->n; i++) {
        buf_puts(&b, i > 0 ? ",{\"name\":" : "{\"name\":");
        buf_json_string(&b, r->rows[i].name, strlen(r->rows[i].name));
        write_errors(&b, "fitted", &r->rows[i].fitted);
        write_errors(&b, "held_out", &r->rows[i].held_out);
        buf_puts(&b, "}");
    }
    buf_puts(&b, "]}");
    if (!b.failed) puts(b.data);
    int status = b.failed ? CLI_FAILED : CLI_OK;
    buf_free(&b);
    return status;
}

/* ---- the command ---- */

/* As it was called, for whoever wants to make the profile again. */
static void describe(efficiency_profile *p, const fit_args *a, char **paths, int n) {
    size_t used = 0, size = sizeof p->made;
    snprintf(p->name, sizeof p->name, "%.*s", family_length(a->gpu), a->gpu);
    used = (size_t)snprintf(p->made, size, "ridge plan --fit --gpu %s", a->gpu);
    if (a->base != NULL && used < size)
        used += (size_t)snprintf(p->made + used, size - used, " --base %s", a->base);
    if (a->test != NULL && used < size)
        used += (size_t)snprintf(p->made + used, size - used, " --test %s", a->test);
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(p->made + used, size - used, " %s", paths[i]);
}

static ridge_status fit(efficiency_profile *profile, fit_report *report, const fit_args *a,
                        char **paths, int n, ridge_error *err) {
    fit_params params;
    efficiency_profile base;
    measured m = {0};
    if (a->output != NULL) RIDGE_TRY(plan_profile_check(a->output, err));
    RIDGE_TRY(find_gpu(&params, a->gpu, err));
    if (a->base != NULL) {
        RIDGE_TRY(efficiency_find(&base, a->base, err));
        params.base = &base;
    }
    ridge_status status = open_all(&m, paths, n, a->gpu, err);
    if (status == RIDGE_OK && a->test != NULL) status = measured_hold_out(&m, a->test, err);
    if (status == RIDGE_OK) status = fit_profile(profile, &m, &params, err);
    if (status == RIDGE_OK) status = fit_report_create(report, profile, &m, &params, err);
    measured_free(&m);
    if (status != RIDGE_OK) return status;
    describe(profile, a, paths, n);
    return a->output != NULL ? plan_profile_save(profile, a->output, err) : RIDGE_OK;
}

int cmd_plan_fit(int argc, char **argv) {
    fit_args a = {0};
    const cli_option options[] = {
        {"fit", CLI_FLAG, &a.fit, "fit an efficiency profile on measured times"},
        {"gpu", CLI_STRING, &a.gpu, "what was measured: a name (plan --gpus)"},
        {"test", CLI_STRING, &a.test,
         "what is held out to test on: tp=N, every-other (size of a collective), part of a "
         "file's name; several separated by commas"},
        {"base", CLI_STRING, &a.base, "profile for operations that were not measured (ideal)"},
        {"output", CLI_STRING, &a.output, "file for the profile"},
        {"json", CLI_FLAG, &a.json, "print JSON"},
    };
    static const char usage[] =
        "plan --fit --gpu NAME [--test RULES] [--output FILE] FILE|DIR ...\n"
        "A DIR stands for its files whose names begin as the GPU's: h100*.csv.";
    int n = 0;
    int status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n);
    if (status == CLI_OK) status = cli_count(usage, argv, n, 1, INT_MAX);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    if (a.gpu == NULL) return cli_misused(usage, "--gpu is needed");
    ridge_error err = {0};
    efficiency_profile profile;
    fit_report report;
    if (fit(&profile, &report, &a, argv, n, &err) != RIDGE_OK) return cli_refuse(&err);
    if (a.json)
        status = print_json(&report, &a);
    else
        print_table(&report);
    fit_report_free(&report);
    return status;
}
