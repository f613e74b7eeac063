/* ridge perplexity: as llama-perplexity measures it.
 *
 * The text is cut into windows of --ctx tokens, the remainder dropped; where the model adds BOS
 * each window's first token is replaced by it. `perplexity` scores the targets of each window's
 * second half (logits at positions ctx/2 .. ctx-2), `perplexity_all` every target.
 */
#include <math.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "cli/engine_args.h"

#define TEXT_LIMIT ((size_t)1 << 30)

typedef struct {
    const int32_t *ids; /* [ctx] the window under way */
    uint32_t ctx;
    int32_t n_vocab;
    const char *isa;
    double nll_all, nll_half;
    size_t n_all, n_half;
} tally;

static void tally_row(void *context, uint64_t id, uint32_t position, const float *logits) {
    tally *t = context;
    (void)id;
    if (position + 1 >= t->ctx) return;
    double nll = sampler_logsumexp(logits, (size_t)t->n_vocab, t->isa) -
                 (double)logits[t->ids[position + 1]];
    t->nll_all += nll;
    t->n_all++;
    if (position < t->ctx / 2) return;
    t->nll_half += nll;
    t->n_half++;
}

static ridge_status run_window(engine *e, tally *t, ridge_error *err) {
    engine_request r = engine_request_default();
    r.prompt = t->ids;
    r.n_prompt = t->ctx;
    r.prompt_only = true; /* a window may fill the context */
    r.prompt_logits = true;
    uint64_t id;
    RIDGE_TRY(engine_submit(e, &r, &id, err));
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++)
            if (events[i].finish == ENGINE_ERROR)
                return RIDGE_FAIL(err, events[i].error->code, "%s", events[i].error->text);
    return RIDGE_OK;
}

static ridge_status run_windows(engine *e, tally *t, int32_t *ids, size_t n_windows, bool bos,
                                ridge_error *err) {
    const tokenizer *tok = engine_tokenizer(e);
    for (size_t w = 0; w < n_windows; w++) {
        int32_t *window = ids + w * t->ctx;
        if (bos && tokenizer_adds_bos(tok)) window[0] = tokenizer_bos(tok);
        t->ids = window;
        RIDGE_TRY(run_window(e, t, err));
        log_progress(cli_log(), "perplexity", (double)(w + 1) / (double)n_windows);
    }
    return RIDGE_OK;
}

static void print_result(const tally *t, size_t n_ids, bool json) {
    double half = exp(t->nll_half / (double)t->n_half), all = exp(t->nll_all / (double)t->n_all);
    if (!json) {
        printf(
            "perplexity %.5f (second halves, %zu targets), %.5f (all, %zu targets), %zu tokens\n",
            half, t->n_half, all, t->n_all, n_ids);
        return;
    }
    buf b = {0};
    buf_puts(&b, "{\"perplexity\":");
    buf_json_double(&b, half);
    buf_puts(&b, ",\"perplexity_all\":");
    buf_json_double(&b, all);
    buf_printf(&b, ",\"tokens\":%zu,\"scored\":%zu,\"scored_all\":%zu,\"windows\":%zu,\"ctx\":%u}",
               n_ids, t->n_half, t->n_all, t->n_all / (t->ctx - 1), t->ctx);
    if (!b.failed) printf("%s\n", b.data);
    buf_free(&b);
}

int cmd_perplexity(int argc, char **argv) {
    engine_args args = engine_args_default();
    uint64_t ctx = 512;
    bool json = false, bos = true;
    const cli_option options[] = {
        {"ctx", CLI_UINT, &ctx, "tokens per window (default 512)"},
        {"json", CLI_FLAG, &json, "print one JSON document"},
        {"bos", CLI_FLAG, &bos, "BOS first where the model says so (default; --no-bos)"},
        ENGINE_OPTIONS(&args),
    };
    static const char usage[] = "perplexity MODEL FILE [options]";
    int n_args,
        parsed = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(usage, argv, n_args, 2, 2);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    ridge_error err = {0};
    uint32_t n_window;
    if (cli_whole(&n_window, "ctx", ctx, 4, 1u << 20, &err) != RIDGE_OK ||
        engine_args_check(&args, &err) != RIDGE_OK)
        return cli_refuse(&err);
    engine *e = NULL;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_ids = 0;
    tally t = {.ctx = n_window};
    ridge_status status = file_read(&text, &n, argv[1], TEXT_LIMIT, &err);
    if (status == RIDGE_OK) status = engine_args_open(&e, &args, argv[0], &err);
    if (status == RIDGE_OK)
        status = tokenizer_encode(engine_tokenizer(e), text, n, (tokenizer_options){.add_bos = bos},
                                  &ids, &n_ids, &err);
    if (status == RIDGE_OK && n_ids < ctx)
        status = RIDGE_FAIL(&err, RIDGE_EINVAL, "'%s' has %zu token%s: one window needs %zu",
                            argv[1], n_ids, plural(n_ids), (size_t)ctx);
    if (status == RIDGE_OK) {
        t.n_vocab = engine_n_vocab(e);
        t.isa = engine_isa(e);
        engine_on_logits(e, tally_row, &t);
        status = run_windows(e, &t, ids, n_ids / ctx, bos, &err);
    }
    if (status == RIDGE_OK) print_result(&t, n_ids, json);
    mem_free(ids);
    mem_free(text);
    engine_close(e);
    return status == RIDGE_OK ? CLI_OK : cli_fail(&err);
}
