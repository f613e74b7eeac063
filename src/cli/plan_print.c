/* cli/plan_print: see plan_print.h. */
#include "cli/plan_print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *bound_name(roof_bound bound) {
    static const char *const names[] = {
        [ROOF_MEMORY] = "memory", [ROOF_COMPUTE] = "compute", [ROOF_LINK] = "link"};
    return names[bound];
}

/* JSON ------------------------------------------------------------------------------------------
 */

/* Counts as integers, which they are. */
static void field(buf *b, const char *name, double x) {
    if (!(fabs(x) < 9e15) || x != floor(x)) {
        buf_json_field(b, name, x);
        return;
    }
    bool first = b->len > 0 && b->data[b->len - 1] == '{';
    buf_printf(b, "%s\"%s\":%.0f", first ? "" : ",", name, x);
}

static void text_field(buf *b, const char *name, const char *text) {
    bool first = b->len > 0 && b->data[b->len - 1] == '{';
    buf_printf(b, "%s\"%s\":", first ? "" : ",", name);
    buf_json_string(b, text, strlen(text));
}

static void phase_times(buf *b, const plan_phase *f) {
    field(b, "flops", f->flops);
    field(b, "seconds", f->seconds);
    field(b, "compute_seconds", f->compute_s);
    field(b, "memory_seconds", f->memory_s);
    text_field(b, "bound", bound_name(f->bound));
    buf_puts(b, ",\"seconds_by_bound\":{");
    for (int i = 0; i < ROOF_N_BOUNDS; i++) field(b, bound_name((roof_bound)i), f->bounds[i]);
    buf_putc(b, '}');
    field(b, "flops_per_byte", f->flops / (f->weight_bytes + f->kv_bytes));
}

static void prefill_json(buf *b, const plan_phase *f, const plan_report *r) {
    buf_puts(b, "\"prefill\":{");
    field(b, "tokens", r->params.prompt);
    field(b, "prompts_at_once", r->result.prompts_at_once);
    field(b, "weight_bytes_read", f->weight_bytes);
    field(b, "kv_bytes", f->kv_bytes);
    phase_times(b, f);
    field(b, "tokens_per_s", r->result.prompts_at_once * r->params.prompt / f->seconds);
    buf_putc(b, '}');
}

static void decode_json(buf *b, const plan_phase *f, const plan_report *r) {
    const plan_params *p = &r->params;
    buf_puts(b, "\"decode\":{");
    field(b, "batch", p->batch);
    field(b, "context", p->context);
    field(b, "weight_bytes_read", f->weight_bytes);
    field(b, "kv_bytes_read", f->kv_bytes);
    phase_times(b, f);
    field(b, "tokens_per_s", p->batch / f->seconds);
    field(b, "tokens_per_s_per_user", 1 / f->seconds);
    field(b, "arithmetic_idle", 1 - fmin(1, f->compute_s / f->seconds));
    buf_putc(b, '}');
}

static void model_json(buf *b, const plan_report *r) {
    buf_puts(b, "\"model\":{");
    text_field(b, "name", r->model);
    field(b, "parameters", r->result.parameters);
    field(b, "active_parameters", r->result.active_parameters);
    field(b, "weight_bytes", r->result.weight_bytes);
    field(b, "kv_bytes_per_token", r->result.kv_bytes_per_token);
    text_field(b, "dtype", r->result.weights);
    if (r->params.dtype.note != NULL) text_field(b, "dtype_note", r->params.dtype.note);
    text_field(b, "kv_cache_dtype", dev_kv_type_name(r->params.kv_type));
    buf_puts(b, "},\"gpu\":{");
    text_field(b, "name", r->params.gpu.name);
    field(b, "peak_flops", r->result.peak_flops);
    field(b, "bandwidth", r->params.gpu.bytes_per_s);
    field(b, "memory_bytes", r->params.gpu.memory_bytes);
    field(b, "ridge_flops_per_byte", r->result.ridge);
    field(b, "count", r->result.n_gpus);
    text_field(b, "source", r->params.gpu.source);
    buf_puts(b, "},");
}

/* The kinds of operation in the plan for which the profile has nothing measured. */
static bool is_assumed(const plan_report *r, int kind) {
    return (r->result.kinds >> kind & 1) != 0 &&
           efficiency_assumed(&r->params.profile, (efficiency_kind)kind) != NULL;
}

static void profile_json(buf *b, const plan_report *r) {
    const efficiency_profile *p = &r->params.profile;
    buf_puts(b, "\"profile\":{");
    text_field(b, "name", p->name);
    buf_puts(b, ",\"assumed\":{");
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        if (is_assumed(r, k))
            text_field(b, efficiency_kind_name((efficiency_kind)k),
                       efficiency_assumed(p, (efficiency_kind)k));
    buf_puts(b, "}},");
}

static void fit_json(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    buf_puts(b, ",\"fit\":{\"fits\":");
    buf_puts(b, r->misfit == NULL ? "true" : "false");
    field(b, "memory_bytes", x->memory_bytes);
    field(b, "weight_bytes", x->deployed_bytes);
    field(b, "kv_tokens", x->kv_tokens);
    if (r->params.context > 0) field(b, "users", x->users);
    if (r->misfit != NULL) text_field(b, "reason", r->misfit);
    buf_putc(b, '}');
    buf_puts(b, ",\"latency\":{");
    field(b, "ttft_seconds", x->prefill.counted.seconds);
    field(b, "tpot_seconds", x->decode.counted.seconds);
    buf_putc(b, '}');
    if (r->params.slo_tpot_s > 0) {
        buf_puts(b, ",\"slo\":{");
        field(b, "tpot_seconds", r->params.slo_tpot_s);
        field(b, "largest_batch", x->slo_batch);
        buf_putc(b, '}');
    }
    if (r->params.price_per_hour > 0) {
        buf_puts(b, ",\"cost\":{");
        field(b, "price_per_hour", r->params.price_per_hour);
        field(b, "per_million_input_tokens", x->cost_per_m_input);
        field(b, "per_million_output_tokens", x->cost_per_m_output);
        buf_putc(b, '}');
    }
}

static void fields_json(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    model_json(b, r);
    profile_json(b, r);
    prefill_json(b, &x->prefill.textbook, r);
    buf_putc(b, ',');
    decode_json(b, &x->decode.textbook, r);
    fit_json(b, r);
    buf_puts(b, ",\"counted\":{");
    prefill_json(b, &x->prefill.counted, r);
    buf_putc(b, ',');
    decode_json(b, &x->decode.counted, r);
    buf_putc(b, '}');
}

void plan_print_json(buf *b, const plan_report *r) {
    buf_putc(b, '{');
    fields_json(b, r);
}

void plan_print_change_json(buf *b, const char *what, const plan_report *to) {
    buf_putc(b, '{');
    text_field(b, "change", what);
    buf_putc(b, ',');
    fields_json(b, to);
    buf_putc(b, '}');
}

/* Text ------------------------------------------------------------------------------------------
 */

/* "16.06 GB": four digits with a decimal prefix. */
static const char *amount(char out[32], double x, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    int i = 0;
    while (fabs(x) >= 999.95 && i < 6) {
        x /= 1000;
        i++;
    }
    snprintf(out, 32, "%.4g %s%s", x, prefixes[i], unit);
    return out;
}

static const char *seconds_text(char out[32], double s) {
    if (s >= 1)
        snprintf(out, 32, "%.3g s", s);
    else if (s >= 1e-3)
        snprintf(out, 32, "%.3g ms", s * 1e3);
    else
        snprintf(out, 32, "%.3g us", s * 1e6);
    return out;
}

static void phase_row(buf *b, const char *name, const plan_phase *f, double n_tokens) {
    char t[5][32];
    buf_printf(b, "  %-9s %12s %12s %12s %10s %9.4g  %-7s %12.1f\n", name,
               amount(t[0], f->flops, "FLOP"), amount(t[1], f->weight_bytes, "B"),
               amount(t[2], f->kv_bytes, "B"), seconds_text(t[3], f->seconds),
               f->flops / (f->weight_bytes + f->kv_bytes), bound_name(f->bound),
               n_tokens / f->seconds);
}

static void phase_text(buf *b, const plan_count *c, double n_tokens) {
    buf_printf(b, "  %-9s %12s %12s %12s %10s %9s  %-7s %12s\n", "", "arithmetic", "weights",
               "cache", "time", "FLOP/B", "bound", "tokens/s");
    phase_row(b, "textbook", &c->textbook, n_tokens);
    phase_row(b, "counted", &c->counted, n_tokens);
}

static void head_text(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    char t[3][32];
    char count[32] = "";
    if (x->n_gpus > 1) snprintf(count, sizeof count, "%.0f x ", x->n_gpus);
    const char *note = r->params.dtype.note;
    buf_printf(b, "%s on %s%s, weights %s%s%s%s, cache %s\n\n", r->model, count,
               r->params.gpu.title, r->params.file_weights ? "as in the file" : x->weights,
               note != NULL ? " (" : "", note != NULL ? note : "", note != NULL ? ")" : "",
               dev_kv_type_name(r->params.kv_type));
    buf_printf(b, "  parameters      %s", amount(t[0], x->parameters, ""));
    if (x->active_parameters < x->parameters)
        buf_printf(b, ", %s of them active for a token", amount(t[0], x->active_parameters, ""));
    if (x->config.text_part) buf_puts(b, " (for text; what takes images is left out)");
    buf_printf(b, "\n  weights         %s of %s\n", amount(t[0], x->deployed_bytes, "B"),
               amount(t[1], x->memory_bytes, "B"));
    buf_printf(b, "  cache           %.0f bytes per token; %.0f tokens fit", x->kv_bytes_per_token,
               x->kv_tokens);
    if (r->params.context > 0) buf_printf(b, ": %.0f sequences of %u", x->users, r->params.context);
    buf_printf(b, "\n  ridge point     %.1f FLOP/byte: %s over %s\n", x->ridge,
               amount(t[0], x->peak_flops, "FLOP/s"),
               amount(t[1], r->params.gpu.bytes_per_s, "B/s"));
}

static void profile_text(buf *b, const plan_report *r) {
    const efficiency_profile *p = &r->params.profile;
    int n = 0;
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        if (is_assumed(r, k))
            buf_printf(b, "%s%s %s", n++ == 0 ? "  not measured    " : ", ",
                       efficiency_kind_name((efficiency_kind)k),
                       efficiency_assumed(p, (efficiency_kind)k));
    if (n > 0) buf_printf(b, " (profile %s)\n", p->name);
}

void plan_print_text(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    const plan_params *p = &r->params;
    char t[2][32];
    head_text(b, r);
    profile_text(b, r);
    buf_printf(b, "\nprompt of %u tokens: TTFT %s", p->prompt,
               seconds_text(t[0], x->prefill.counted.seconds));
    if (x->prompts_at_once > 1) buf_printf(b, ", %.0f at once", x->prompts_at_once);
    buf_putc(b, '\n');
    phase_text(b, &x->prefill, x->prompts_at_once * p->prompt);
    buf_printf(b, "\none step of %u sequence%s with %u tokens in the cache each: TPOT %s\n",
               p->batch, plural(p->batch), p->context,
               seconds_text(t[0], x->decode.counted.seconds));
    phase_text(b, &x->decode, p->batch);
    buf_printf(b, "  each user gets %.1f tokens/s; the arithmetic units idle %.1f %% of the time\n",
               1 / x->decode.counted.seconds,
               100 * (1 - fmin(1, x->decode.counted.compute_s / x->decode.counted.seconds)));
    buf_puts(
        b, "  textbook: all parameters are read once; counted: what the program does, without the "
           "embedding table\n  but with the cache that is written and attention's arithmetic "
           "(--explain)\n");
    if (p->slo_tpot_s > 0)
        buf_printf(b, "  within %s a token: at most %u sequences\n",
                   seconds_text(t[0], p->slo_tpot_s), x->slo_batch);
    if (p->price_per_hour > 0)
        buf_printf(b, "  at %.4g an hour: %.4g per million tokens of input, %.4g of output\n",
                   p->price_per_hour, x->cost_per_m_input, x->cost_per_m_output);
    if (r->misfit != NULL) buf_printf(b, "\nIt does not fit: %s.\n", r->misfit);
}

static const char *value_text(char out[32], double x, const char *unit) {
    return strcmp(unit, "s") == 0 ? seconds_text(out, x) : amount(out, x, unit);
}

static void change_row(buf *b, const char *name, double from, double to, const char *unit) {
    char t[2][32];
    if (from == to) return;
    buf_printf(b, "  %-24s %12s -> %12s", name, value_text(t[0], from, unit),
               value_text(t[1], to, unit));
    if (from > 0 && to > 0)
        buf_printf(b, to < from ? "   %.1f %% less\n" : "   x %.3g\n",
                   to < from ? 100 * (1 - to / from) : to / from);
    else
        buf_putc(b, '\n');
}

void plan_print_change(buf *b, const char *what, const plan_report *from, const plan_report *to) {
    const plan_result *x = &from->result, *y = &to->result;
    buf_printf(b, "\nwith %s\n", what);
    change_row(b, "weights", x->weight_bytes, y->weight_bytes, "B");
    change_row(b, "cache per token", x->kv_bytes_per_token, y->kv_bytes_per_token, "B");
    change_row(b, "tokens that fit", x->kv_tokens, y->kv_tokens, "");
    change_row(b, "ridge point", x->ridge, y->ridge, "FLOP/B");
    change_row(b, "TTFT", x->prefill.counted.seconds, y->prefill.counted.seconds, "s");
    change_row(b, "TPOT", x->decode.counted.seconds, y->decode.counted.seconds, "s");
    change_row(b, "tokens/s", from->params.batch / x->decode.counted.seconds,
               to->params.batch / y->decode.counted.seconds, "");
    change_row(b, "largest batch in target", x->slo_batch, y->slo_batch, "");
    if (to->misfit != NULL) buf_printf(b, "  it does not fit: %s\n", to->misfit);
}
