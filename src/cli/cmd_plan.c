/* ridge plan: what a model takes on a GPU, on paper. Flags and printing; the rest is in plan/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/plan_calibrate.h"
#include "cli/plan_explain.h"
#include "cli/plan_fit.h"
#include "cli/plan_print.h"
#include "cli/plan_svg.h"
#include "cli/shape_args.h"
#include "cli/svg.h"
#include "plan/plan.h"

#define USAGE                                                                                      \
    "plan --model NAME|FILE --gpu NAME [OPTION ...]\n       ridge plan --fit --help\n       "      \
    "ridge plan --calibrate MODEL --help"

#define NOT_GIVEN UINT64_MAX

typedef struct {
    const char *model, *gpu, *dtype, *kv_cache_dtype, *profile, *plot;
    uint64_t batch, context, prompt, tensor, pipeline, experts, redundant, node, memory;
    double weight_bits, peak_flops, bandwidth, link_bandwidth,
        network_bandwidth;              /* NAN: not given */
    double slo_tpot_ms, price_per_hour; /* 0: not given */
    cli_list what_if;
    bool halves, json, explain, models, gpus;
} plan_args;

static const plan_args defaults = {.dtype = "auto",
                                   .kv_cache_dtype = "auto",
                                   .batch = 1,
                                   .prompt = 1000,
                                   .tensor = 1,
                                   .pipeline = 1,
                                   .experts = 1,
                                   .node = PLAN_NODE,
                                   .memory = NOT_GIVEN,
                                   .weight_bits = NAN,
                                   .peak_flops = NAN,
                                   .bandwidth = NAN,
                                   .link_bandwidth = NAN,
                                   .network_bandwidth = NAN};

/* cli_parse over a: all arguments, or one that is given as --what-if. */
static int parse(plan_args *a, int argc, char **argv, int *n_args) {
    const cli_option options[] = {
        {"model", CLI_STRING, &a->model, "a name (--models), a config.json or a .gguf file"},
        {"gpu", CLI_STRING, &a->gpu, "a name (--gpus), or a file of --calibrate"},
        {"batch", CLI_UINT, &a->batch, "sequences that decode together (default 1)"},
        {"context", CLI_UINT, &a->context, "tokens of each in the cache (default 0)"},
        {"prompt", CLI_UINT, &a->prompt, "tokens of a new prompt (default 1000)"},
        {"dtype", CLI_STRING, &a->dtype, SHAPE_DTYPE_HELP},
        {"weight-bits", CLI_DOUBLE, &a->weight_bits, "of each weight, in place of dtype's"},
        {"kv-cache-dtype", CLI_STRING, &a->kv_cache_dtype, "f16 (default), fp8, fp6, q8_0 or f32"},
        {"tensor-parallel-size", CLI_UINT, &a->tensor, "GPUs that share each layer (default 1)"},
        {"pipeline-parallel-size", CLI_UINT, &a->pipeline,
         "GPUs that have some layers each (default 1)"},
        {"expert-parallel-size", CLI_UINT, &a->experts,
         "GPUs that share the experts, with sequences of their own (default 1)"},
        {"num-redundant-experts", CLI_UINT, &a->redundant,
         "of the experts so many are there twice (default 0)"},
        {"enable-dbo", CLI_FLAG, &a->halves,
         "rows go to experts and back while the other half of the batch computes"},
        {"gpus-per-node", CLI_UINT, &a->node, "that links join; beyond is the network (default 8)"},
        {"profile", CLI_STRING, &a->profile,
         "how much of the peaks is reached: ideal (default), a100, h100, or a file of --fit or "
         "--calibrate"},
        {"peak-flops", CLI_DOUBLE, &a->peak_flops, "FLOP/s of the GPU, in place of the table's"},
        {"bandwidth", CLI_DOUBLE, &a->bandwidth, "bytes/s of its memory, in place of the table's"},
        {"link-bandwidth", CLI_DOUBLE, &a->link_bandwidth,
         "bytes/s from it to others of its node, in place of the table's"},
        {"network-bandwidth", CLI_DOUBLE, &a->network_bandwidth, "likewise to other nodes"},
        {"memory", CLI_BYTES, &a->memory, "of the GPU, in place of the table's"},
        {"slo-tpot", CLI_DOUBLE, &a->slo_tpot_ms, "target per token in ms: the largest batch"},
        {"price-per-hour", CLI_DOUBLE, &a->price_per_hour, "of one GPU: cost of tokens"},
        {"what-if", CLI_LIST, &a->what_if, "OPTION=VALUE: the plan with this changed, too"},
        {"explain", CLI_FLAG, &a->explain, "the working of each number: formula, values, source"},
        {"plot", CLI_STRING, &a->plot, "a picture (SVG): roofline, and time against sequences"},
        {"json", CLI_FLAG, &a->json, "one JSON document"},
        {"models", CLI_FLAG, &a->models, "list the models that are known by name"},
        {"gpus", CLI_FLAG, &a->gpus, "list the GPUs that are known"},
    };
    return cli_parse(argc, argv, USAGE, options, sizeof options / sizeof *options, n_args);
}

/* From options to parameters ------------------------------------------------------------------- */

/* *out stays where v is NAN: not given. */
static ridge_status amount_of(const char *name, double v, double low, double high, double *out,
                              ridge_error *err) {
    return isnan(v) ? RIDGE_OK : cli_real(out, name, v, low, high, err);
}

/* With the profile of it, where that is known and no other is asked for. */
static ridge_status gpu_of(const plan_args *a, plan_params *p, ridge_error *err) {
    double memory = a->memory == NOT_GIVEN ? NAN : (double)a->memory;
    hardware *gpu = &p->gpu;
    hardware_peak precision = p->dtype.peak;
    RIDGE_TRY(hardware_open(gpu, &p->profile, a->gpu, err));
    if (a->profile != NULL) RIDGE_TRY(efficiency_find(&p->profile, a->profile, err));
    RIDGE_TRY(amount_of("bandwidth", a->bandwidth, 1e6, 1e18, &gpu->bytes_per_s, err));
    RIDGE_TRY(
        amount_of("link-bandwidth", a->link_bandwidth, 1e6, 1e18, &gpu->link_bytes_per_s, err));
    RIDGE_TRY(amount_of("network-bandwidth", a->network_bandwidth, 1e6, 1e18,
                        &gpu->network_bytes_per_s, err));
    RIDGE_TRY(amount_of("memory", memory, 1e6, 1e18, &gpu->memory_bytes, err));
    RIDGE_TRY(amount_of("peak-flops", a->peak_flops, 1e6, 1e21, &gpu->peaks[precision], err));
    return amount_of("peak-flops", a->peak_flops, 1e6, 1e21, &gpu->peaks[PEAK_16], err);
}

/* path: of the model. */
static ridge_status params_of(const plan_args *a, const char *path, plan_params *p,
                              ridge_error *err) {
    *p = plan_params_default();
    RIDGE_TRY(shape_dtype(&p->dtype, &p->file_weights, path, a->dtype, a->weight_bits, err));
    RIDGE_TRY(gpu_of(a, p, err));
    if (strcmp(a->kv_cache_dtype, "auto") != 0 && !dev_kv_type_find(a->kv_cache_dtype, &p->kv_type))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--kv-cache-dtype: expected f16, fp8, fp6, q8_0 or f32, found '%s'",
                          a->kv_cache_dtype);
    RIDGE_TRY(cli_whole(&p->batch, "batch", a->batch, 1, PLAN_MAX_BATCH, err));
    RIDGE_TRY(
        cli_whole(&p->split.n_tensor, "tensor-parallel-size", a->tensor, 1, MODEL_MAX_RANKS, err));
    RIDGE_TRY(cli_whole(&p->split.n_stages, "pipeline-parallel-size", a->pipeline, 1,
                        MODEL_MAX_RANKS, err));
    RIDGE_TRY(
        cli_whole(&p->split.n_expert, "expert-parallel-size", a->experts, 1, MODEL_MAX_RANKS, err));
    RIDGE_TRY(cli_whole(&p->split.n_redundant, "num-redundant-experts", a->redundant, 0,
                        MODEL_MAX_EXPERTS, err));
    p->halves = a->halves;
    if (p->halves && p->split.n_expert == 1)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--enable-dbo is of --expert-parallel-size N");
    RIDGE_TRY(cli_whole(&p->n_node, "gpus-per-node", a->node, 1, MODEL_MAX_RANKS, err));
    RIDGE_TRY(cli_whole(&p->context, "context", a->context, 0, MODEL_MAX_CONTEXT, err));
    RIDGE_TRY(cli_whole(&p->prompt, "prompt", a->prompt, 1, MODEL_MAX_CONTEXT, err));
    RIDGE_TRY(amount_of("slo-tpot", a->slo_tpot_ms, 0, 1e9, &p->slo_tpot_s, err));
    p->slo_tpot_s /= 1000;
    return amount_of("price-per-hour", a->price_per_hour, 0, 1e9, &p->price_per_hour, err);
}

/* A plan ----------------------------------------------------------------------------------------
 */

static ridge_status plot(const char *path, plan *p, const plan_report *r, ridge_error *err) {
    plan_sweep sweep;
    buf b = {0};
    ridge_status status = plan_sweep_make(&sweep, p, r->params.context, err);
    if (status != RIDGE_OK) return status;
    plan_svg(&b, r, &sweep);
    status = svg_write(&b, path, err);
    buf_free(&b);
    return status;
}

static ridge_status make(const plan_args *a, plan_report *r, ridge_error *misfit,
                         ridge_error *err) {
    plan *p = NULL;
    char *path = NULL;
    *r = (plan_report){.model = a->model};
    RIDGE_TRY(shape_path(&path, a->model, err));
    ridge_status status = params_of(a, path, &r->params, err);
    if (status == RIDGE_OK) status = plan_open(&p, path, &r->params, err);
    if (status == RIDGE_OK) status = plan_work_out(p, &r->result, err);
    if (status == RIDGE_OK) r->n_operations = plan_operations(p, r->operations);
    if (status == RIDGE_OK && plan_check_fit(p, &r->result, misfit) != RIDGE_OK)
        r->misfit = misfit->text;
    if (status == RIDGE_OK && a->plot != NULL) status = plot(a->plot, p, r, err);
    plan_close(p);
    mem_free(path);
    return status;
}

static void list_models(void) {
    for (size_t i = 0; plan_model_name(i) != NULL; i++)
        printf("%-18s https://huggingface.co/%s\n", plan_model_name(i), plan_model_source(i));
}

static void list_gpus(void) {
    const hardware *h;
    for (size_t i = 0; (h = hardware_at(i)) != NULL; i++)
        printf("%-12s %-62s %6.0f TFLOP/s %6.0f GB/s %4.0f GB\n", h->name, h->title,
               h->peaks[PEAK_16] / 1e12, h->bytes_per_s / 1e9, h->memory_bytes / 1e9);
}

/* a with one option changed, which is `text`: "--gpu=h200"; its strings are borrowed. */
static int change(const plan_args *a, char *text, plan_args *out) {
    char command[] = "plan", *argv[] = {command, text, NULL};
    int n_args = 0;
    *out = *a;
    out->plot = NULL; /* of what is, not of what if */
    int status = parse(out, 2, argv, &n_args);
    return status == CLI_OK && n_args == 0 ? CLI_OK : CLI_USAGE;
}

/* text: what to change, as an option. */
static int print_change(const plan_args *a, char *text, const plan_report *from, buf *out) {
    plan_args changed;
    plan_report to;
    ridge_error err = {0}, misfit = {0};
    const char *what = text + strlen("--");
    if (*what == '=' || strchr(what, '=') == NULL) {
        error_set(&err, RIDGE_EINVAL, "--what-if: expected OPTION=VALUE, found '%s'", what);
        return cli_refuse(&err);
    }
    int status = change(a, text, &changed);
    if (status != CLI_OK) return status;
    if (make(&changed, &to, &misfit, &err) != RIDGE_OK) return cli_refuse(&err);
    if (a->json)
        plan_print_change_json(out, what, &to);
    else
        plan_print_change(out, what, from, &to);
    return CLI_OK;
}

static int print_changes(const plan_args *a, const plan_report *from, buf *out) {
    int status = CLI_OK;
    if (a->json && a->what_if.n > 0) buf_puts(out, ",\"what_if\":[");
    for (size_t i = 0; i < a->what_if.n && status == CLI_OK; i++) {
        buf text = {0};
        buf_printf(&text, "--%s", a->what_if.items[i]);
        if (text.failed) return cli_fail(&(ridge_error){.code = RIDGE_ENOMEM});
        if (a->json && i > 0) buf_putc(out, ',');
        status = print_change(a, text.data, from, out);
        buf_free(&text);
    }
    if (a->json && a->what_if.n > 0) buf_putc(out, ']');
    return status;
}

static int print_plan(const plan_args *a, buf *out) {
    plan_report r;
    ridge_error err = {0}, misfit = {0};
    if (make(a, &r, &misfit, &err) != RIDGE_OK) return cli_refuse(&err);
    (a->json ? plan_print_json : plan_print_text)(out, &r);
    if (a->explain) (a->json ? plan_explain_json : plan_explain_text)(out, &r);
    int status = print_changes(a, &r, out);
    if (status != CLI_OK) return status;
    if (a->json) buf_puts(out, "}\n");
    if (out->failed) return cli_fail(&(ridge_error){.code = RIDGE_ENOMEM});
    fputs(out->data, stdout);
    /* It is what was asked for, so no failure. */
    if (r.misfit != NULL) log_printf(cli_log(), LOG_WARN, "it does not fit: %s", r.misfit);
    uint32_t context = r.params.context > r.params.prompt ? r.params.context : r.params.prompt;
    if (context > r.result.config.n_context)
        log_printf(cli_log(), LOG_WARN,
                   "a context of %u is more than the %u that the model was made for", context,
                   r.result.config.n_context);
    return CLI_OK;
}

int cmd_plan(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fit") == 0) return cmd_plan_fit(argc, argv);
        if (strncmp(argv[i], "--calibrate", 11) == 0) return cmd_plan_calibrate(argc, argv);
    }
    plan_args a = defaults;
    int n_args = 0, status = parse(&a, argc, argv, &n_args);
    if (status == CLI_OK) status = cli_count(USAGE, argv, n_args, 0, 0);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    if (a.models) list_models();
    if (a.gpus) list_gpus();
    if (a.models || a.gpus) return CLI_OK;
    if (a.model == NULL || a.gpu == NULL)
        return cli_misused(USAGE, "--%s is needed", a.model == NULL ? "model" : "gpu");
    buf out = {0};
    status = print_plan(&a, &out);
    buf_free(&out);
    return status;
}
