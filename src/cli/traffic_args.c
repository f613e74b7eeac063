/* cli/traffic_args: see traffic_args.h. */
#include "cli/traffic_args.h"

#include <math.h>

#define NOT_GIVEN UINT64_MAX

traffic_args traffic_args_default(void) {
    return (traffic_args){.rate = NAN, .trace_speed = 1, .n_requests = NOT_GIVEN, .n_prefixes = 1};
}

static ridge_status set_length(length_spec *out, const char *text, const char *flag,
                               ridge_error *err) {
    ridge_status status = text != NULL ? length_parse(out, text, err) : RIDGE_OK;
    if (status != RIDGE_OK) error_where(err, flag);
    return status;
}

static ridge_status set_arrivals(const traffic_args *a, traffic_params *p, ridge_error *err) {
    bool rate = !isnan(a->rate);
    if (rate && a->trace != NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--rate and --trace exclude each other");
    if (a->trace != NULL && (a->input != NULL || a->output != NULL))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--input-len and --output-len: the lengths are the trace's");
    p->arrivals = rate ? TRAFFIC_POISSON : a->trace != NULL ? TRAFFIC_TRACE : TRAFFIC_AT_ONCE;
    if (rate) p->rate = a->rate;
    p->trace = a->trace;
    if (a->trace == NULL && a->trace_speed != 1)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--trace-speed is of a --trace");
    if (a->n_prefixes > 1 && a->prefix_tokens == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--prefix-groups are of --prefix-tokens N");
    p->trace_speed = a->trace_speed;
    if (a->n_requests == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--num-prompts: at least one request is needed");
    if (a->n_requests != NOT_GIVEN)
        p->n_requests = (size_t)a->n_requests;
    else if (a->trace != NULL)
        p->n_requests = 0;
    return RIDGE_OK;
}

/* A target in milliseconds; 0: none. */
static ridge_status check_target(const char *flag, double ms, ridge_error *err) {
    return cli_real(&ms, flag, ms, 0, 1e9, err);
}

ridge_status traffic_args_read(const traffic_args *a, traffic_params *out, ridge_error *err) {
    RIDGE_TRY(set_arrivals(a, out, err));
    RIDGE_TRY(set_length(&out->input, a->input, "--input-len", err));
    RIDGE_TRY(set_length(&out->output, a->output, "--output-len", err));
    RIDGE_TRY(cli_whole(&out->max_input, "max-input-len", a->max_input, 0, LENGTH_MAX, err));
    RIDGE_TRY(cli_whole(&out->max_output, "max-output-len", a->max_output, 0, LENGTH_MAX, err));
    RIDGE_TRY(
        cli_whole(&out->prefix_tokens, "prefix-tokens", a->prefix_tokens, 0, LENGTH_MAX, err));
    RIDGE_TRY(cli_whole(&out->n_prefixes, "prefix-groups", a->n_prefixes, 1, LENGTH_MAX, err));
    RIDGE_TRY(check_target("slo-ttft", a->slo_ttft_ms, err));
    RIDGE_TRY(check_target("slo-tpot", a->slo_tpot_ms, err));
    out->seed = a->seed;
    return traffic_check(out, err);
}
