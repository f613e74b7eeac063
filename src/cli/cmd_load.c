/* ridge load URL: a load generator for any server that speaks OpenAI's API. Flags and printing; the
 * rest is in load/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/report.h"
#include "cli/traffic_args.h"
#include "load/load.h"

#define USAGE "load URL [--rate R | --concurrency N | --trace FILE] [OPTION ...]"

#define NOT_GIVEN UINT64_MAX

typedef struct {
    load_params load;
    traffic_args traffic;
    const char *endpoint, *per_request;
    uint64_t concurrency, vocab_size, max_connections;
    bool json;
} load_args;

/* ---- one JSON document ---- */

static void json_arrivals(buf *b, const load_params *p) {
    const traffic_params *t = &p->traffic;
    switch (t->arrivals) {
    case TRAFFIC_AT_ONCE: buf_printf(b, ",\"concurrency\":%zu", p->concurrency); break;
    case TRAFFIC_POISSON: buf_json_field(b, "rate", t->rate); break;
    case TRAFFIC_TRACE:
        report_json_member(b, "trace", t->trace);
        buf_json_field(b, "trace_speed", t->trace_speed);
        break;
    }
}

static void json_errors(buf *b, const load_summary *s) {
    buf_puts(b, ",\"errors\":{");
    for (size_t i = 0; i < s->n_errors; i++) {
        buf_printf(b, "%s\"%s\":{\"count\":%zu", i > 0 ? "," : "", s->errors[i].name,
                   s->errors[i].count);
        if (s->errors[i].first != NULL) report_json_member(b, "first", s->errors[i].first);
        buf_putc(b, '}');
    }
    buf_putc(b, '}');
}

static void json_goodput(buf *b, const load_args *a, const load_result *r, const load_summary *s) {
    if (a->traffic.slo_ttft_ms <= 0 && a->traffic.slo_tpot_ms <= 0) return;
    buf_puts(b, ",\"goodput\":{");
    if (a->traffic.slo_ttft_ms > 0) buf_json_field(b, "slo_ttft_ms", a->traffic.slo_ttft_ms);
    if (a->traffic.slo_tpot_ms > 0) buf_json_field(b, "slo_tpot_ms", a->traffic.slo_tpot_ms);
    buf_json_field(b, "requests_per_s", report_per_second((double)s->n_good, r->seconds));
    buf_json_field(b, "share", r->n > 0 ? (double)s->n_good / (double)r->n : 0);
    buf_printf(b, ",\"requests\":%zu}", s->n_good);
}

static void print_json(const load_args *a, const load_result *r, const load_summary *s) {
    buf b = {0};
    buf_puts(&b, "{\"url\":");
    buf_json_string(&b, r->url, strlen(r->url));
    report_json_member(&b, "model", r->model);
    json_arrivals(&b, &a->load);
    buf_printf(&b, ",\"seed\":%llu,\"requests\":%zu,\"completed\":%zu,\"failed\":%zu",
               (unsigned long long)a->load.traffic.seed, r->n, s->n_ok, s->n_failed);
    buf_printf(&b, ",\"interrupted\":%s", r->interrupted ? "true" : "false");
    buf_json_field(&b, "duration_s", r->seconds);
    buf_printf(&b, ",\"input_tokens\":%llu,\"cached_tokens\":%llu,\"output_tokens\":%llu",
               (unsigned long long)s->input_tokens, (unsigned long long)s->cached_tokens,
               (unsigned long long)s->output_tokens);
    buf_json_field(&b, "requests_per_s", report_per_second((double)s->n_ok, r->seconds));
    buf_json_field(&b, "input_tokens_per_s",
                   report_per_second((double)s->input_tokens, r->seconds));
    buf_json_field(&b, "output_tokens_per_s",
                   report_per_second((double)s->output_tokens, r->seconds));
    report_json_quantiles(&b, "ttft_ms", &s->ttft_ms);
    report_json_quantiles(&b, "tpot_ms", &s->tpot_ms);
    report_json_quantiles(&b, "itl_ms", &s->itl_ms);
    report_json_quantiles(&b, "e2e_ms", &s->e2e_ms);
    report_json_quantiles(&b, "lateness_ms", &s->late_ms);
    buf_printf(&b, ",\"late\":%s", s->late ? "true" : "false");
    json_goodput(&b, a, r, s);
    json_errors(&b, s);
    buf_puts(&b, "}\n");
    if (!b.failed) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
}

/* ---- text ---- */

static void print_arrivals(const load_params *p) {
    const traffic_params *t = &p->traffic;
    switch (t->arrivals) {
    case TRAFFIC_AT_ONCE: printf("%zu at a time", p->concurrency); break;
    case TRAFFIC_POISSON: printf("Poisson, %g/s", t->rate); break;
    case TRAFFIC_TRACE: printf("%s at speed %g", t->trace, t->trace_speed); break;
    }
}

static void print_goodput(const load_args *a, const load_result *r, const load_summary *s) {
    if (a->traffic.slo_ttft_ms <= 0 && a->traffic.slo_tpot_ms <= 0) return;
    printf("goodput: %.2f requests/s (%.1f %% of all) with",
           report_per_second((double)s->n_good, r->seconds),
           r->n > 0 ? 100.0 * (double)s->n_good / (double)r->n : 0);
    if (a->traffic.slo_ttft_ms > 0) printf(" TTFT <= %g ms", a->traffic.slo_ttft_ms);
    if (a->traffic.slo_tpot_ms > 0) printf(" TPOT <= %g ms", a->traffic.slo_tpot_ms);
    putchar('\n');
}

static void print_text(const load_args *a, const load_result *r, const load_summary *s) {
    char *model = mem_strdup(r->model); /* the server's word */
    if (model != NULL) utf8_make_printable(model);
    printf("%s, %s: ", r->url, model != NULL ? model : "?");
    mem_free(model);
    print_arrivals(&a->load);
    printf(", seed %llu\n", (unsigned long long)a->load.traffic.seed);
    printf("%zu of %zu requests succeeded in %.2f s%s\n", s->n_ok, r->n, r->seconds,
           r->interrupted ? " (interrupted)" : "");
    printf("%.2f requests/s, input %.1f tokens/s, output %.1f tokens/s\n",
           report_per_second((double)s->n_ok, r->seconds),
           report_per_second((double)s->input_tokens, r->seconds),
           report_per_second((double)s->output_tokens, r->seconds));
    printf("%llu input tokens (%llu cached), %llu output tokens\n\n",
           (unsigned long long)s->input_tokens, (unsigned long long)s->cached_tokens,
           (unsigned long long)s->output_tokens);
    report_print_heading();
    report_print_quantiles("TTFT", &s->ttft_ms);
    report_print_quantiles("TPOT", &s->tpot_ms);
    report_print_quantiles("ITL", &s->itl_ms);
    report_print_quantiles("E2E", &s->e2e_ms);
    report_print_quantiles("lateness", &s->late_ms);
    print_goodput(a, r, s);
    for (size_t i = 0; i < s->n_errors; i++)
        printf("error: %zu x %s%s%s\n", s->errors[i].count, s->errors[i].name,
               s->errors[i].first != NULL ? ", the first: " : "",
               s->errors[i].first != NULL ? s->errors[i].first : "");
}

/* ---- a line for each request ---- */

static void json_ms(buf *b, const char *name, double ms) {
    if (!isnan(ms)) buf_json_field(b, name, ms);
}

static void json_count(buf *b, const char *name, int64_t n) {
    if (n >= 0) buf_printf(b, ",\"%s\":%lld", name, (long long)n);
}

static void write_record(buf *b, size_t index, const load_record *r) {
    char name[16];
    buf_printf(b, "{\"index\":%zu,\"status\":\"%s\"", index, load_end_name(r, name));
    json_ms(b, "due_s", (double)r->due_us / 1e6);
    json_ms(b, "sent_s", (double)r->sent_us / 1e6);
    json_ms(b, "end_s", (double)r->end_us / 1e6);
    json_ms(b, "ttft_ms", load_record_ttft_ms(r));
    json_ms(b, "tpot_ms", load_record_tpot_ms(r));
    json_ms(b, "e2e_ms", (double)(r->end_us - r->due_us) / 1e3);
    buf_printf(b, ",\"planned_input\":%u,\"planned_output\":%u", r->n_input, r->n_output);
    json_count(b, "prompt_tokens", r->prompt_tokens);
    json_count(b, "cached_tokens", r->cached_tokens);
    json_count(b, "output_tokens", (int64_t)load_record_tokens(r));
    if (r->http_status != 0) json_count(b, "http_status", r->http_status);
    if (r->finish_reason[0] != '\0') report_json_member(b, "finish_reason", r->finish_reason);
    if (r->message != NULL) report_json_member(b, "message", r->message);
    buf_printf(b, ",\"text_hash\":\"%016llx\",\"itl_ms\":[", (unsigned long long)r->text_hash);
    for (uint32_t i = 1; i < r->n_texts; i++)
        buf_printf(b, "%s%.3f", i > 1 ? "," : "", r->gaps_us[i - 1] / 1e3);
    buf_puts(b, "]}\n");
}

static ridge_status write_records(const char *path, FILE *f, const load_result *r,
                                  ridge_error *err) {
    buf b = {0};
    bool ok = true;
    for (size_t i = 0; i < r->n && ok; i++) {
        buf_clear(&b);
        write_record(&b, i, &r->records[i]);
        ok = !b.failed && fwrite(b.data, 1, b.len, f) == b.len;
    }
    buf_free(&b);
    if (fclose(f) != 0) ok = false;
    return ok ? RIDGE_OK : error_set_errno(err, RIDGE_EIO, "cannot write '%s'", path);
}

/* ---- the run ---- */

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static ridge_status set_endpoint(load_args *a, ridge_error *err) {
    if (a->endpoint == NULL)
        a->load.chat = ends_with(a->load.url, "/chat/completions");
    else if (strcmp(a->endpoint, "chat") == 0 || strcmp(a->endpoint, "completions") == 0)
        a->load.chat = strcmp(a->endpoint, "chat") == 0;
    else
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--endpoint: expected chat or completions, found '%s'",
                          a->endpoint);
    if (a->load.token_ids && a->load.chat)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--token-ids: a chat takes no ids; use --endpoint "
                          "completions");
    if (a->load.token_ids && a->vocab_size < 4)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--token-ids needs --vocab-size, the model's");
    return RIDGE_OK;
}

static ridge_status set_params(load_args *a, ridge_error *err) {
    load_params *p = &a->load;
    bool open = !isnan(a->traffic.rate) || a->traffic.trace != NULL;
    RIDGE_TRY(set_endpoint(a, err));
    RIDGE_TRY(traffic_args_read(&a->traffic, &p->traffic, err));
    if (open && a->concurrency != NOT_GIVEN)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--rate, --concurrency and --trace exclude each other");
    if (a->concurrency != NOT_GIVEN) p->concurrency = (size_t)a->concurrency;
    RIDGE_TRY(cli_whole(&p->vocab_size, "vocab-size", a->vocab_size, 0, LENGTH_MAX, err));
    p->max_connections = (size_t)a->max_connections;
    return RIDGE_OK;
}

static ridge_status report(const load_args *a, const load_result *r, FILE *per_request, bool *any,
                           ridge_error *err) {
    load_summary s;
    RIDGE_TRY(load_summarize(&s, r, a->traffic.slo_ttft_ms, a->traffic.slo_tpot_ms, err));
    if (a->json)
        print_json(a, r, &s);
    else
        print_text(a, r, &s);
    if (s.late)
        log_printf(a->load.log, LOG_WARN,
                   "requests left late (99th percentile: %.0f ms after they were due): too few "
                   "--max-connections, or this machine is too busy. Latencies count from when they "
                   "were due",
                   s.late_ms.p99);
    *any = s.n_ok > 0;
    if (!*any) log_printf(a->load.log, LOG_WARN, "no request succeeded");
    return per_request != NULL ? write_records(a->per_request, per_request, r, err) : RIDGE_OK;
}

static ridge_status run(load_args *a, bool *any, ridge_error *err) {
    load_result result = {0};
    FILE *per_request = NULL;
    RIDGE_TRY(set_params(a, err));
    /* Before minutes of measuring. */
    if (a->per_request != NULL && (per_request = fopen(a->per_request, "we")) == NULL)
        return error_set_errno(err, RIDGE_EIO, "cannot write '%s'", a->per_request);
    cli_raise_file_limit();
    a->load.stop_fd = cli_signals_as_fd();
    ridge_status status = load_run(&result, &a->load, err);
    if (status == RIDGE_OK)
        status = report(a, &result, per_request, any, err);
    else if (per_request != NULL)
        fclose(per_request);
    load_result_free(&result);
    if (a->load.stop_fd >= 0) close(a->load.stop_fd);
    return status;
}

int cmd_load(int argc, char **argv) {
    load_args a = {
        .load = load_params_default(), .traffic = traffic_args_default(), .concurrency = NOT_GIVEN};
    load_params *p = &a.load;
    p->api_key = cli_env("RIDGE_API_KEY");
    p->log = cli_log();
    a.max_connections = p->max_connections;
    const cli_option options[] = {
        TRAFFIC_OPTIONS(&a.traffic, "100", "128"),
        {"concurrency", CLI_UINT, &a.concurrency,
         "closed loop: so many at a time (default: 1; with --rate or --trace the loop is open)"},
        {"endpoint", CLI_STRING, &a.endpoint, "completions or chat (default: the URL's)"},
        {"token-ids", CLI_FLAG, &p->token_ids, "prompts are lists of token ids"},
        {"vocab-size", CLI_UINT, &a.vocab_size, "of those: what they lie within"},
        {"model", CLI_STRING, &p->model, "the model's id (default: the first listed)"},
        {"api-key", CLI_STRING, &p->api_key, "sent as bearer token (or $RIDGE_API_KEY)"},
        {"stream", CLI_FLAG, &p->stream, "answers as events (default; --no-stream: whole)"},
        {"ignore-eos", CLI_FLAG, &p->ignore_eos, "answers of full length (default)"},
        {"temperature", CLI_DOUBLE, &p->temperature, "default 0"},
        {"extra-body", CLI_STRING, &p->extra_body, "more members of each request, a JSON object"},
        {"max-connections", CLI_UINT, &a.max_connections, "at once (default: 4096)"},
        {"timeout", CLI_DOUBLE, &p->timeout_s, "seconds for an answer (default: 600; 0: any)"},
        {"wait", CLI_DOUBLE, &p->wait_s, "seconds in which the server may become ready"},
        {"per-request", CLI_STRING, &a.per_request, "write a JSON line for each to this file"},
        {"json", CLI_FLAG, &a.json, "print one JSON document"},
    };
    int n_args = 0,
        parsed = cli_parse(argc, argv, USAGE, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(USAGE, argv, n_args, 1, 1);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    p->url = argv[0];
    ridge_error err = {0};
    bool any = false;
    ridge_status status = run(&a, &any, &err);
    if (status == RIDGE_EINVAL) {
        cli_fail(&err);
        return CLI_USAGE;
    }
    if (status != RIDGE_OK) return cli_fail(&err);
    return any ? CLI_OK : CLI_FAILED;
}
