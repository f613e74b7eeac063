/* ridge score MODEL < TEXT: the log-probability of every token of a text, and the most likely ones.
 *
 * positions[i] describes the distribution after token i: top predicts token i + 1, logprob is that
 * of the actual token i + 1 (absent at the last).
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/engine_args.h"

#define MAX_TOP 1000

typedef struct {
    engine *e;
    uint64_t top;
    bool ids, no_bos, parse_special, jsonl;
    bool add_bos;
    FILE *logits;
    /* of the document at hand */
    const int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    buf *out;
} scorer;

static void write_position(void *context, uint64_t id, uint32_t position, const float *logits) {
    scorer *s = context;
    int32_t top[MAX_TOP];
    size_t n_vocab = (size_t)engine_n_vocab(s->e);
    double sum = sampler_logsumexp(logits, n_vocab);
    (void)id;
    buf_puts(s->out, position > 0 ? ",{" : "{");
    if (position + 1 < s->n_tokens) {
        buf_puts(s->out, "\"logprob\":");
        buf_json_double(s->out, (double)sampler_logprob_of(logits[s->tokens[position + 1]], sum));
    }
    if (s->top > 0) {
        size_t n = sampler_top(logits, n_vocab, top, s->top);
        buf_puts(s->out, position + 1 < s->n_tokens ? ",\"top\":[" : "\"top\":[");
        for (size_t i = 0; i < n; i++) {
            buf_printf(s->out, "%s[%d,", i > 0 ? "," : "", top[i]);
            buf_json_double(s->out, (double)sampler_logprob_of(logits[top[i]], sum));
            buf_putc(s->out, ']');
        }
        buf_putc(s->out, ']');
    }
    buf_putc(s->out, '}');
    if (s->logits != NULL) fwrite(logits, sizeof *logits, n_vocab, s->logits);
}

/* {"ids":[...],"positions":[...]} appended to s->out. */
static ridge_status score_ids(scorer *s, const int32_t *ids, size_t n, ridge_error *err) {
    engine_request r = engine_request_default();
    const engine_event *events;
    size_t n_events;
    uint64_t id;
    r.prompt = ids;
    r.n_prompt = n;
    r.prompt_only = r.prompt_logits = true;
    RIDGE_TRY(engine_submit(s->e, &r, &id, err));
    s->tokens = ids;
    s->n_tokens = n;
    buf_puts(s->out, "{\"ids\":[");
    for (size_t i = 0; i < n; i++) buf_printf(s->out, i > 0 ? ",%d" : "%d", ids[i]);
    buf_puts(s->out, "],\"positions\":[");
    while (engine_step(s->e, &events, &n_events))
        for (size_t i = 0; i < n_events; i++)
            if (events[i].finish == ENGINE_ERROR)
                return RIDGE_FAIL(err, events[i].error->code, "%s", events[i].error->text);
    buf_puts(s->out, "]}");
    return s->out->failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "the output") : RIDGE_OK;
}

static ridge_status score_text(scorer *s, const char *text, size_t n, ridge_error *err) {
    int32_t *ids;
    size_t n_ids;
    tokenizer_options o = {.parse_special = s->parse_special, .add_bos = s->add_bos};
    RIDGE_TRY(tokenizer_encode(engine_tokenizer(s->e), text, n, o, &ids, &n_ids, err));
    ridge_status status = n_ids > 0 ? score_ids(s, ids, n_ids, err)
                                    : RIDGE_FAIL(err, RIDGE_EINVAL, "the text has no tokens");
    mem_free(ids);
    return status;
}

static ridge_status score_id_list(scorer *s, const json_t *list, ridge_error *err) {
    size_t n = json_array_size(list);
    int32_t *ids = mem_zalloc(n, sizeof *ids);
    ridge_status status = ids != NULL ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "the ids");
    for (size_t i = 0; i < n && status == RIDGE_OK; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            status = RIDGE_FAIL(err, RIDGE_EINVAL, "ids[%zu]: expected a token id", i);
        ids[i] = (int32_t)id;
    }
    if (status == RIDGE_OK) status = score_ids(s, ids, n, err);
    mem_free(ids);
    return status;
}

/* A string, an id list, or an object with one of them and this call's options. */
static ridge_status score_value(const scorer *shared, const json_t *v, buf *out, ridge_error *err) {
    scorer s = *shared;
    s.out = out;
    if (json_is_object(v)) {
        const json_t *text = json_object_get(v, "text"), *ids = json_object_get(v, "ids");
        const json_t *top = json_object_get(v, "top");
        const json_t *special = json_object_get(v, "parse_special");
        const json_t *bos = json_object_get(v, "add_bos");
        if (json_is_integer(top)) s.top = (uint64_t)json_integer_value(top);
        if (s.top > MAX_TOP)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "top must be between 0 and %d", MAX_TOP);
        if (json_is_boolean(special)) s.parse_special = json_is_true(special);
        if (json_is_boolean(bos)) s.add_bos = json_is_true(bos);
        v = ids != NULL ? ids : text;
    }
    engine_on_logits(s.e, write_position, &s);
    if (json_is_array(v)) return score_id_list(&s, v, err);
    if (json_is_string(v)) return score_text(&s, json_string_value(v), json_string_length(v), err);
    return RIDGE_FAIL(err, RIDGE_EINVAL, "expected a string, a list of ids, or an object with one");
}

static ridge_status score_json(const scorer *s, const char *text, size_t n, buf *out,
                               ridge_error *err) {
    json_error_t e;
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (v == NULL) return RIDGE_FAIL(err, RIDGE_EFORMAT, "not JSON: %s", e.text);
    ridge_status status = score_value(s, v, out, err);
    json_decref(v);
    return status;
}

/* One document per line; a failing line gives {"error":...} and exit status 1 at the end. */
static int score_lines(const scorer *s, const char *text, size_t n) {
    int result = CLI_OK;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - text) - at : n - at;
        buf out = {0};
        ridge_error err = {0};
        if (len > 0 && score_json(s, text + at, len, &out, &err) != RIDGE_OK) {
            buf_clear(&out);
            buf_puts(&out, "{\"error\":");
            buf_json_string(&out, err.text, strlen(err.text));
            buf_putc(&out, '}');
            result = CLI_FAILED;
        }
        if (len > 0) printf("%s\n", out.data != NULL ? out.data : "{\"error\":\"out of memory\"}");
        buf_free(&out);
        at += len + 1;
    }
    return result;
}

static int score_one(scorer *s, const char *text, size_t n) {
    buf out = {0};
    ridge_error err = {0};
    ridge_status status;
    if (s->ids) {
        status = score_json(s, text, n, &out, &err);
    } else {
        s->out = &out;
        engine_on_logits(s->e, write_position, s);
        status = score_text(s, text, n, &err);
    }
    if (status == RIDGE_OK) printf("%s\n", out.data);
    buf_free(&out);
    return status == RIDGE_OK ? CLI_OK : cli_fail(&err);
}

static int score(scorer *s, const engine_args *args, const char *model, const char *logits) {
    char *text = NULL;
    size_t n;
    ridge_error err = {0};
    int result = CLI_FAILED;
    if (cli_read_stdin(&text, &n, &err) != RIDGE_OK ||
        engine_args_open(&s->e, args, model, &err) != RIDGE_OK) {
        cli_fail(&err);
        goto done;
    }
    s->add_bos = !s->no_bos;
    if (logits != NULL && (s->logits = fopen(logits, "wb")) == NULL) {
        fprintf(stderr, "ridge: cannot write '%s': %s\n", logits, strerror(errno));
        goto done;
    }
    result = s->jsonl ? score_lines(s, text, n) : score_one(s, text, n);
    if (s->logits != NULL && fclose(s->logits) != 0) {
        fprintf(stderr, "ridge: cannot write '%s': %s\n", logits, strerror(errno));
        result = CLI_FAILED;
    }
done:
    engine_close(s->e);
    mem_free(text);
    return cli_finish(result);
}

int cmd_score(int argc, char **argv) {
    static const char usage[] = "score MODEL [--top K] [--ids] [--json] < TEXT";
    scorer s = {0};
    engine_args args;
    bool json;
    const char *logits = NULL;
    cli_option options[ENGINE_ARGS_OPTIONS + 7] = {
        {"top", CLI_UINT, &s.top, "the K most likely tokens after each"},
        {"ids", CLI_FLAG, &s.ids, "standard input is a JSON list of ids"},
        {"no-bos", CLI_FLAG, &s.no_bos, "no BOS, also where the model says so"},
        {"parse-special", CLI_FLAG, &s.parse_special, "control tokens in the text are parsed"},
        {"jsonl", CLI_FLAG, &s.jsonl, "one JSON value per line, one document per line"},
        {"json", CLI_FLAG, &json, "one JSON document (the default)"},
        {"logits", CLI_STRING, &logits, "write raw f32 [n, n_vocab] to this file"},
    };
    engine_args_options(&args, options + 7);
    args.max_num_seqs = 1;
    int n_args, status = cli_parse(argc, argv, usage, options, ENGINE_ARGS_OPTIONS + 7, &n_args);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    if (n_args != 1) {
        fprintf(stderr, "usage: ridge %s\n", usage);
        return CLI_USAGE;
    }
    if (s.top > MAX_TOP) {
        fprintf(stderr, "ridge: --top must be between 0 and %d\n", MAX_TOP);
        return CLI_USAGE;
    }
    return score(&s, &args, argv[0], logits);
}
