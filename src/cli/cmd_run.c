/* ridge run: answers one prompt, streaming, or chats when no prompt is given. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/answer.h"
#include "cli/engine_args.h"
#include "cli/machine.h"

typedef struct {
    engine_args engine;
    answer_options answer;
    bool raw, json, bos;
    const char *system, *chat_template;
    double load_s; /* what opening the model took */
} run_args;

static volatile int stop_requested;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    stop_requested = 1;
}

/* How near the roof the steps were: of the peaks where those can be had. */
static void write_roof(const machine_peaks *peaks, const engine_usage *u, bool precise, buf *b) {
    buf_puts(b, ",\"bytes_per_s\":");
    buf_json_double(b, u->bytes_per_s);
    buf_puts(b, ",\"flops_per_s\":");
    buf_json_double(b, u->flops_per_s);
    if (u->bytes_per_s <= 0 || peaks == NULL) return;
    buf_puts(b, ",\"mbu\":");
    buf_json_double(b, u->bytes_per_s / peaks->read_bytes_per_s);
    buf_puts(b, ",\"mfu\":");
    buf_json_double(b, u->flops_per_s / (precise ? peaks->f32_flops_per_s : peaks->int8_ops_per_s));
}

static void print_json(const answer *a, const machine_peaks *peaks, double load_s, bool precise) {
    const engine_usage *u = &a->usage;
    buf b = {0};
    buf_puts(&b, "{\"text\":");
    buf_json_string(&b, a->text.data != NULL ? a->text.data : "", a->text.len);
    buf_puts(&b, ",\"ids\":[");
    for (size_t i = 0; i < a->n_ids; i++) buf_printf(&b, "%s%d", i > 0 ? "," : "", a->ids[i]);
    buf_printf(&b, "],\"finish_reason\":\"%s\"", answer_finish_name(a->finish));
    buf_printf(&b, ",\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u}",
               u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens);
    buf_puts(&b, ",\"timing\":{\"load\":");
    buf_json_double(&b, load_s);
    buf_puts(&b, ",\"ttft\":");
    buf_json_double(&b, u->ttft_s);
    buf_puts(&b, ",\"decode\":");
    buf_json_double(&b, u->decode_s);
    buf_puts(&b, ",\"tpot\":");
    buf_json_double(&b, u->completion_tokens > 1 ? u->decode_s / (u->completion_tokens - 1) : 0);
    buf_puts(&b, ",\"decode_bytes_per_s\":");
    buf_json_double(&b, a->decode_bytes_per_s);
    write_roof(peaks, u, precise, &b);
    buf_printf(&b, ",\"drafted_tokens\":%u,\"accepted_tokens\":%u}}", u->draft_tokens,
               u->accepted_tokens);
    if (!b.failed) printf("%s\n", b.data);
    buf_free(&b);
}

static ridge_status prompt_ids(engine *e, const run_args *a, const chat_template *t,
                               const char *prompt, int32_t **ids, size_t *n_ids, ridge_error *err) {
    if (a->raw)
        return tokenizer_encode(engine_tokenizer(e), prompt, strlen(prompt),
                                (tokenizer_options){.parse_special = true, .add_bos = a->bos}, ids,
                                n_ids, err);
    json_t *messages = json_array();
    bool ok = messages != NULL;
    if (ok && a->system != NULL)
        ok = json_array_append_new(
                 messages, json_pack("{s:s, s:s}", "role", "system", "content", a->system)) == 0;
    if (ok)
        ok = json_array_append_new(messages,
                                   json_pack("{s:s, s:s}", "role", "user", "content", prompt)) == 0;
    ridge_status status = ok ? answer_render(e, t, messages, ids, n_ids, err)
                             : RIDGE_FAIL(err, RIDGE_EINVAL, "the prompt is not UTF-8");
    json_decref(messages);
    return status;
}

static ridge_status run_prompt(engine *e, const run_args *a, const chat_template *t,
                               const char *prompt, answer *out, ridge_error *err) {
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    RIDGE_TRY(prompt_ids(e, a, t, prompt, &ids, &n_ids, err));
    ridge_status status =
        n_ids == 0 ? RIDGE_FAIL(err, RIDGE_EINVAL,
                                "the prompt has no tokens: there is nothing to continue")
                   : answer_run(e, ids, n_ids, &a->answer, !a->json, &stop_requested, out, err);
    if (status == RIDGE_OK && !a->json) printf("\n");
    fflush(stdout);
    mem_free(ids);
    return status;
}

/* Closes the engine first: peaks that are not known yet are measured on memory as large as its
 * weights, which shall not be there twice. */
static bool close_and_know_peaks(engine *e, machine_peaks *out) {
    const char *isa = engine_isa(e); /* a constant */
    int n_threads = engine_n_threads(e);
    uint64_t weight_bytes = engine_weight_bytes(e);
    engine_close(e);
    return machine_peaks_get(out, isa, n_threads, weight_bytes, false);
}

static void close_and_report(engine *e, const run_args *a, const answer *out) {
    machine_peaks peaks, *known = NULL;
    double rate = a->json ? out->usage.bytes_per_s : out->decode_bytes_per_s;
    if (rate == 0) /* nothing to be shown beside them */
        engine_close(e);
    else if (close_and_know_peaks(e, &peaks))
        known = &peaks;
    if (a->json)
        print_json(out, known, a->load_s, a->engine.precise);
    else
        answer_print_timing(out, known);
}

int cmd_run(int argc, char **argv) {
    run_args a = {.engine = engine_args_default(), .answer = answer_options_default(), .bos = true};
    const cli_option options[] = {
        ANSWER_OPTIONS(&a.answer),
        {"raw", CLI_FLAG, &a.raw, "the prompt as it is, no chat template"},
        {"json", CLI_FLAG, &a.json, "print one JSON document at the end"},
        {"bos", CLI_FLAG, &a.bos,
         "with --raw: BOS first where the model says so (default; --no-bos)"},
        {"system", CLI_STRING, &a.system, "a system message"},
        {"chat-template", CLI_STRING, &a.chat_template, "a template's FILE or built-in NAME"},
        ENGINE_OPTIONS(&a.engine),
    };
    static const char usage[] = "run MODEL [PROMPT ...] [options]";
    int n_args,
        parsed = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(usage, argv, n_args, 1, INT_MAX);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    if (n_args == 1 && (a.raw || a.json))
        return cli_misused(usage, "--raw and --json need a PROMPT (it may be empty)");
    ridge_error err = {0};
    if (engine_args_check(&a.engine, &err) != RIDGE_OK ||
        answer_options_check(&a.answer, &err) != RIDGE_OK)
        return cli_refuse(&err);
    engine *e = NULL;
    chat_template *t = NULL;
    answer out = {0};
    buf prompt = {0};
    a.engine.max_num_seqs = 1;
    a.answer.goes_on = a.raw;
    for (int i = 1; i < n_args; i++) buf_printf(&prompt, "%s%s", i > 1 ? " " : "", argv[i]);
    double started = clock_now_s();
    ridge_status status = engine_args_open(&e, &a.engine, argv[0], &err);
    a.load_s = clock_now_s() - started;
    if (status == RIDGE_OK && !a.raw) status = answer_template(e, a.chat_template, &t, &err);
    int result = CLI_OK;
    if (status == RIDGE_OK && n_args == 1)
        result = chat_run(e, t, a.system, &a.answer);
    else if (status == RIDGE_OK)
        status = run_prompt(e, &a, t, prompt.data != NULL ? prompt.data : "", &out, &err);
    if (status != RIDGE_OK) result = cli_fail(&err);
    template_free(t);
    buf_free(&prompt);
    machine_peaks next; /* what the next chat's answers are measured by */
    if (status != RIDGE_OK)
        engine_close(e);
    else if (n_args > 1)
        close_and_report(e, &a, &out);
    else
        close_and_know_peaks(e, &next);
    answer_free(&out);
    return result;
}
