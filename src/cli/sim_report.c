/* cli/sim_report: see sim_report.h. */
#include "cli/sim_report.h"

#include <stdio.h>

#include "cli/report.h"

static quantiles ms(quantiles q) {
    return quantiles_times(q, 1e3);
}

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static double per_s(double n, const experiment_result *r) {
    return report_per_second(n, r->sim.seconds);
}

static bool has_targets(const experiment *e) {
    return e->sim.slo_ttft_s > 0 || e->sim.slo_tpot_s > 0;
}

static double cost_of(const experiment_result *r, double price) {
    return price * r->n_gpus * r->sim.seconds / 3600;
}

static void json_latencies(buf *b, const sim_result *r) {
    const struct {
        const char *name;
        quantiles q;
    } all[] = {{"ttft_ms", r->ttft_s},
               {"tpot_ms", r->tpot_s},
               {"itl_ms", r->itl_s},
               {"e2e_ms", r->e2e_s},
               {"queue_ms", r->queue_s}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        quantiles q = ms(all[i].q);
        report_json_quantiles(b, all[i].name, &q);
    }
}

static const char *const bounds[ROOF_N_BOUNDS] = {
    [ROOF_MEMORY] = "memory", [ROOF_COMPUTE] = "compute", [ROOF_LINK] = "link"};

static double waited(const sim_result *r) {
    double seconds = 0;
    for (int i = 0; i < ROOF_N_BOUNDS; i++) seconds += r->bounds_s[i];
    return seconds;
}

/* Members of an object; the first has no comma, as buf_json_field sees. */
static void json_bounds(buf *b, const sim_result *r) {
    buf_puts(b, ",\"bound\":{");
    for (int i = 0; i < ROOF_N_BOUNDS; i++)
        buf_json_field(b, bounds[i], share(r->bounds_s[i], waited(r)));
    buf_putc(b, '}');
}

static void json_goodput(buf *b, const experiment *e, const experiment_result *r) {
    if (!has_targets(e)) return;
    buf_puts(b, ",\"goodput\":{");
    if (e->sim.slo_ttft_s > 0) buf_json_field(b, "slo_ttft_ms", e->sim.slo_ttft_s * 1e3);
    if (e->sim.slo_tpot_s > 0) buf_json_field(b, "slo_tpot_ms", e->sim.slo_tpot_s * 1e3);
    buf_json_field(b, "requests_per_s", per_s((double)r->sim.n_good, r));
    buf_json_field(b, "share", experiment_goodput(r));
    buf_printf(b, ",\"requests\":%llu}", (unsigned long long)r->sim.n_good);
}

static void json_machine(buf *b, const experiment *e, const experiment_result *r) {
    const sim_result *s = &r->sim;
    buf_printf(b, ",\"gpus\":%u,\"max_model_len\":%u,\"model_context_len\":%u", r->n_gpus,
               r->max_model_len, r->model_context);
    buf_json_field(b, "weight_bytes", r->weight_bytes);
    buf_puts(b, ",\"kv\":{");
    buf_json_field(b, "bytes_per_token", r->kv_token_bytes);
    buf_printf(b, ",\"tokens\":%llu", (unsigned long long)r->kv_tokens);
    buf_json_field(b, "held", s->kv_held);
    buf_json_field(b, "used_of_held", s->kv_used);
    buf_putc(b, '}');
    json_bounds(b, s);
    buf_json_field(b, "busy", share(s->busy_s, r->n_gpus * s->seconds));
    buf_json_field(b, "mfu",
                   share(s->account.flops, s->busy_s * hardware_flops(&e->gpu, e->dtype.peak)));
    buf_json_field(
        b, "mbu",
        share(s->account.weight_bytes + s->account.kv_bytes, s->busy_s * e->gpu.bytes_per_s));
}

void sim_report_json(buf *b, const experiment *e, const experiment_result *r, double price) {
    const sim_result *s = &r->sim;
    const struct {
        const char *name;
        uint64_t n;
    } counts[] = {{"requests", s->n_requests + s->n_refused},
                  {"completed", s->n_requests},
                  {"refused", s->n_refused},
                  {"cut", s->n_cut},
                  {"input_tokens", s->input_tokens},
                  {"cached_tokens", s->cached_tokens},
                  {"output_tokens", s->output_tokens},
                  {"steps", s->n_steps},
                  {"preemptions", s->n_preempted},
                  {"transfers", s->n_transfers},
                  {"draft_tokens", s->n_drafted},
                  {"accepted_tokens", s->n_accepted},
                  {"max_live", s->max_live}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        buf_printf(b, ",\"%s\":%llu", counts[i].name, (unsigned long long)counts[i].n);
    buf_json_field(b, "duration_s", s->seconds);
    buf_json_field(b, "requests_per_s", per_s((double)s->n_requests, r));
    buf_json_field(b, "input_tokens_per_s", per_s((double)s->input_tokens, r));
    buf_json_field(b, "output_tokens_per_s", per_s((double)s->output_tokens, r));
    buf_json_field(b, "prefix_hits", share((double)s->cached_tokens, (double)s->input_tokens));
    json_latencies(b, s);
    json_goodput(b, e, r);
    json_machine(b, e, r);
    if (price <= 0) return;
    buf_puts(b, ",\"cost\":{");
    buf_json_field(b, "total", cost_of(r, price));
    buf_json_field(b, "per_million_output_tokens",
                   share(cost_of(r, price) * 1e6, (double)s->output_tokens));
    buf_putc(b, '}');
}

void sim_report_text(const experiment *e, const experiment_result *r, double price) {
    const sim_result *s = &r->sim;
    const quantiles latencies[] = {ms(s->ttft_s), ms(s->tpot_s), ms(s->itl_s), ms(s->e2e_s),
                                   ms(s->queue_s)};
    static const char *const names[] = {"TTFT", "TPOT", "ITL", "E2E", "queue"};
    printf("%llu requests in %.2f s: %.2f requests/s, input %.1f tokens/s, output %.1f tokens/s\n",
           (unsigned long long)s->n_requests, s->seconds, per_s((double)s->n_requests, r),
           per_s((double)s->input_tokens, r), per_s((double)s->output_tokens, r));
    printf("%llu input tokens (%.1f %% cached), %llu output tokens, %llu steps, %llu preemptions\n",
           (unsigned long long)s->input_tokens,
           100 * share((double)s->cached_tokens, (double)s->input_tokens),
           (unsigned long long)s->output_tokens, (unsigned long long)s->n_steps,
           (unsigned long long)s->n_preempted);
    if (s->n_refused > 0 || s->n_cut > 0)
        printf("beyond a context of %u: %llu more requests were refused, %llu answers were cut\n",
               r->max_model_len, (unsigned long long)s->n_refused, (unsigned long long)s->n_cut);
    if (r->max_model_len > r->model_context)
        printf("a context of %u is more than the %u that the model was made for\n",
               r->max_model_len, r->model_context);
    printf("KV cache of %llu tokens: %.1f %% held, %.1f %% of that used\n\n",
           (unsigned long long)r->kv_tokens, 100 * s->kv_held, 100 * s->kv_used);
    report_print_heading();
    for (int i = 0; i < 5; i++) report_print_quantiles(names[i], &latencies[i]);
    printf("\nbusy %.1f %%, of that bound by", 100 * share(s->busy_s, r->n_gpus * s->seconds));
    for (int i = 0; i < ROOF_N_BOUNDS; i++)
        if (s->bounds_s[i] > 0)
            printf(" %s %.1f %%", bounds[i], 100 * share(s->bounds_s[i], waited(s)));
    putchar('\n');
    if (s->n_drafted > 0)
        printf("guesses: %llu, %.1f %% accepted\n", (unsigned long long)s->n_drafted,
               100 * share((double)s->n_accepted, (double)s->n_drafted));
    if (s->n_transfers > 0)
        printf("transfers: %llu, %.2f ms each on the link\n", (unsigned long long)s->n_transfers,
               1e3 * s->transfer_s / (double)s->n_transfers);
    if (has_targets(e))
        printf("goodput: %.2f requests/s (%.1f %% of all)\n", per_s((double)s->n_good, r),
               100 * experiment_goodput(r));
    if (price > 0)
        printf("cost: %.2f, %.2f per million output tokens\n", cost_of(r, price),
               share(cost_of(r, price) * 1e6, (double)s->output_tokens));
}

sim_point sim_report_point(const experiment *e, const experiment_result *r) {
    return (sim_point){.itl_p99_ms = r->sim.itl_s.p99 * 1e3,
                       .good = has_targets(e) ? experiment_goodput(r) : -1,
                       .output_per_s = per_s((double)r->sim.output_tokens, r)};
}

void sim_report_heading(void) {
    printf("%-28s %5s %9s %10s %9s %9s %8s %8s %8s %6s %6s\n", "", "GPUs", "requests/s",
           "out tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "ITL p99", "cached", "KV use", "good");
}

void sim_report_line(const char *name, const experiment *e, const experiment_result *r) {
    const sim_result *s = &r->sim;
    printf("%-28s %5u %10.2f %10.1f %9.1f %9.1f %8.2f %8.2f %7.1f%% %5.1f%%", name, r->n_gpus,
           per_s((double)s->n_requests, r), per_s((double)s->output_tokens, r), s->ttft_s.p50 * 1e3,
           s->ttft_s.p99 * 1e3, s->tpot_s.p50 * 1e3, s->itl_s.p99 * 1e3,
           100 * share((double)s->cached_tokens, (double)s->input_tokens), 100 * s->kv_used);
    if (has_targets(e))
        printf(" %5.1f%%\n", 100 * experiment_goodput(r));
    else
        puts("     -");
}
