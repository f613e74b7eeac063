/* ridge score: the log-probability of every token of a text, and the most likely ones beside it.
 *
 * positions[i] describes the distribution after token i. Natural logs over the whole vocabulary.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "cli/engine_args.h"

#define SCORE_INPUT_LIMIT ((size_t)256 << 20)

typedef struct {
    engine_args engine;
    uint64_t top;
    bool json, jsonl, ids, parse_special, bos;
    const char *logits_path;
} score_args;

/* One scoring under way: the engine calls row() for every position, in order. */
typedef struct {
    const int32_t *ids;
    size_t n_ids, n_top, n_rows;
    int32_t n_vocab;
    const char *isa;
    sampler_logprob *top; /* [n_top] scratch, most likely first */
    buf *out;
    FILE *logits;
} scoring;

/* Keeps the n_top largest of logits in order; ties go to the lower id. */
static size_t select_top(scoring *s, const float *logits) {
    size_t n = 0;
    for (int32_t id = 0; id < s->n_vocab && s->n_top > 0; id++) {
        float x = logits[id];
        if (n == s->n_top && !(x > s->top[n - 1].logprob)) continue;
        size_t i = n < s->n_top ? n++ : n - 1;
        for (; i > 0 && x > s->top[i - 1].logprob; i--) s->top[i] = s->top[i - 1];
        s->top[i] = (sampler_logprob){.id = id, .logprob = x};
    }
    return n;
}

static void score_row(void *context, uint64_t id, uint32_t position, const float *logits) {
    scoring *s = context;
    (void)id;
    if (position >= s->n_ids) return;
    s->n_rows++;
    if (s->logits != NULL) fwrite(logits, sizeof *logits, (size_t)s->n_vocab, s->logits);
    double total = sampler_logsumexp(logits, (size_t)s->n_vocab, s->isa);
    buf_puts(s->out, position > 0 ? ",{" : "{");
    if (position + 1 < s->n_ids) {
        buf_puts(s->out, "\"logprob\":");
        buf_json_double(s->out, (double)logits[s->ids[position + 1]] - total);
        buf_puts(s->out, ",");
    }
    buf_puts(s->out, "\"top\":[");
    size_t n = select_top(s, logits);
    for (size_t i = 0; i < n; i++) {
        buf_printf(s->out, "%s[%d,", i > 0 ? "," : "", s->top[i].id);
        buf_json_double(s->out, (double)s->top[i].logprob - total);
        buf_putc(s->out, ']');
    }
    buf_puts(s->out, "]}");
}

static ridge_status score_ids(engine *e, const score_args *a, const int32_t *ids, size_t n_ids,
                              FILE *logits, buf *out, ridge_error *err) {
    scoring s = {.ids = ids,
                 .n_ids = n_ids,
                 .n_top = a->top,
                 .n_vocab = engine_n_vocab(e),
                 .isa = engine_isa(e),
                 .out = out,
                 .logits = logits};
    if (n_ids == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "nothing to score: the text has no tokens");
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= s.n_vocab)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "token %d at position %zu: the vocabulary has %d",
                              ids[i], i, s.n_vocab);
    s.top = mem_zalloc(s.n_top + 1, sizeof *s.top);
    if (s.top == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "score");
    buf_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < n_ids; i++) buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    buf_puts(out, "],\"positions\":[");
    engine_request r = engine_request_default();
    r.prompt = ids;
    r.n_prompt = n_ids;
    r.prompt_only = true; /* a text may fill the context */
    r.prompt_logits = true;
    uint64_t id;
    engine_on_logits(e, score_row, &s);
    ridge_status status = engine_submit(e, &r, &id, err);
    const engine_event *events;
    size_t n_events;
    while (status == RIDGE_OK && engine_step(e, &events, &n_events))
        for (size_t i = 0; i < n_events; i++)
            if (events[i].finish == ENGINE_ERROR) {
                status = RIDGE_FAIL(err, events[i].error->code, "%s", events[i].error->text);
            }
    engine_on_logits(e, NULL, NULL);
    if (status == RIDGE_OK && s.n_rows != n_ids)
        status = RIDGE_FAIL(err, RIDGE_EIO, "%zu of %zu positions scored", s.n_rows, n_ids);
    buf_puts(out, "]}");
    mem_free(s.top);
    if (status == RIDGE_OK && out->failed) status = RIDGE_FAIL(err, RIDGE_ENOMEM, "score");
    return status;
}

static ridge_status ids_from_json(const json_t *list, int32_t **ids, size_t *n, ridge_error *err) {
    if (!json_is_array(list))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "expected a JSON list of token ids, or {\"ids\":[...]}");
    *n = json_array_size(list);
    *ids = mem_zalloc(*n, sizeof **ids);
    if (*ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "token ids");
    for (size_t i = 0; i < *n; i++) {
        json_t *item = json_array_get(list, i);
        json_int_t v = json_integer_value(item);
        if (!json_is_integer(item) || v < 0 || v > INT32_MAX) {
            mem_free(*ids);
            return RIDGE_FAIL(err, RIDGE_EINVAL, "element %zu is no token id", i);
        }
        (*ids)[i] = (int32_t)v;
    }
    return RIDGE_OK;
}

/* One text or id list to one document in out (cleared first). */
static ridge_status score_one(engine *e, const score_args *a, const char *text, size_t n,
                              const json_t *list, bool parse_special, FILE *logits, buf *out,
                              ridge_error *err) {
    int32_t *ids = NULL;
    size_t n_ids = 0;
    buf_clear(out);
    if (list != NULL)
        RIDGE_TRY(ids_from_json(list, &ids, &n_ids, err));
    else
        RIDGE_TRY(
            tokenizer_encode(engine_tokenizer(e), text, n,
                             (tokenizer_options){.parse_special = parse_special, .add_bos = a->bos},
                             &ids, &n_ids, err));
    ridge_status status = score_ids(e, a, ids, n_ids, logits, out, err);
    mem_free(ids);
    return status;
}

/* A line of --jsonl: a string, an id list, or an object with text or ids. */
static ridge_status score_line(engine *e, const score_args *a, const char *line, size_t n,
                               FILE *logits, buf *out, ridge_error *err) {
    json_error_t json_error;
    json_t *value = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &json_error);
    if (value == NULL) return RIDGE_FAIL(err, RIDGE_EINVAL, "not JSON: %s", json_error.text);
    const json_t *text = json_is_string(value) ? value : json_object_get(value, "text");
    const json_t *list = json_is_array(value) ? value : json_object_get(value, "ids");
    const json_t *special = json_object_get(value, "parse_special");
    ridge_status status;
    if (list == NULL && !json_is_string(text))
        status = RIDGE_FAIL(err, RIDGE_EINVAL,
                            "expected a string, a list of ids, or an object with either");
    else
        status = score_one(e, a, json_string_value(text), json_string_length(text), list,
                           json_is_boolean(special) ? json_is_true(special) : a->parse_special,
                           logits, out, err);
    json_decref(value);
    return status;
}

static void print_error_line(const ridge_error *err) {
    buf b = {0};
    buf_puts(&b, "{\"error\":");
    buf_json_string(&b, err->text, strlen(err->text));
    buf_puts(&b, "}");
    if (!b.failed) printf("%s\n", b.data);
    buf_free(&b);
}

static int score_lines(engine *e, const score_args *a, const char *input, size_t n, FILE *logits) {
    int result = CLI_OK;
    buf out = {0};
    for (const char *line = input, *end = input + n; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t len = (size_t)((newline != NULL ? newline : end) - line);
        ridge_error err = {0};
        if (score_line(e, a, line, len, logits, &out, &err) == RIDGE_OK) {
            printf("%s\n", out.data);
        } else {
            print_error_line(&err);
            result = CLI_FAILED;
        }
        fflush(stdout);
        line += len + 1;
    }
    buf_free(&out);
    return result;
}

static ridge_status score_input(engine *e, const score_args *a, const char *input, size_t n,
                                FILE *logits, ridge_error *err) {
    buf out = {0};
    json_t *value = NULL, *list = NULL;
    if (a->ids) {
        json_error_t json_error;
        value = json_loadb(input, n, 0, &json_error);
        if (value == NULL)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "standard input is no JSON list of ids: %s",
                              json_error.text);
        list = json_is_object(value) ? json_object_get(value, "ids") : value;
        if (list == NULL) list = value; /* named as what it is not */
    }
    ridge_status status = score_one(e, a, input, n, list, a->parse_special, logits, &out, err);
    if (status == RIDGE_OK) printf("%s\n", out.data);
    json_decref(value);
    buf_free(&out);
    return status;
}

int cmd_score(int argc, char **argv) {
    score_args a = {.engine = engine_args_default(), .top = 10, .bos = true};
    const cli_option options[] = {
        {"top", CLI_UINT, &a.top, "most likely tokens per position (default 10)"},
        {"json", CLI_FLAG, &a.json, "one JSON document (the only format; accepted for symmetry)"},
        {"jsonl", CLI_FLAG, &a.jsonl, "one JSON value per input line"},
        {"ids", CLI_FLAG, &a.ids, "standard input is a JSON list of token ids, or {\"ids\":[...]}"},
        {"parse-special", CLI_FLAG, &a.parse_special,
         "control tokens in the text become their ids"},
        {"bos", CLI_FLAG, &a.bos, "BOS first where the model says so (default; --no-bos)"},
        {"logits", CLI_STRING, &a.logits_path,
         "also write raw f32 logits [n, n_vocab] to this file"},
        ENGINE_OPTIONS(&a.engine),
    };
    static const char usage[] = "score MODEL [options] < TEXT";
    int n_args,
        parsed = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(usage, argv, n_args, 1, 1);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    ridge_error err = {0};
    if (engine_args_check(&a.engine, &err) != RIDGE_OK) return cli_refuse(&err);
    engine *e = NULL;
    char *input = NULL;
    size_t n = 0;
    FILE *logits = NULL;
    int result = CLI_OK;
    ridge_status status = engine_args_open(&e, &a.engine, argv[0], &err);
    if (status == RIDGE_OK) status = file_read(&input, &n, "-", SCORE_INPUT_LIMIT, &err);
    if (status == RIDGE_OK && a.logits_path != NULL &&
        (logits = fopen(a.logits_path, "wbe")) == NULL)
        status = error_set_errno(&err, RIDGE_EIO, "cannot write '%s'", a.logits_path);
    if (status == RIDGE_OK && a.top > (uint64_t)engine_n_vocab(e))
        a.top = (uint64_t)engine_n_vocab(e);
    if (status == RIDGE_OK) {
        if (a.jsonl)
            result = score_lines(e, &a, input, n, logits);
        else
            status = score_input(e, &a, input, n, logits, &err);
    }
    if (logits != NULL && (ferror(logits) | fclose(logits)) != 0 && status == RIDGE_OK)
        status = error_set_errno(&err, RIDGE_EIO, "cannot write '%s'", a.logits_path);
    if (status != RIDGE_OK) result = cli_fail(&err);
    mem_free(input);
    engine_close(e);
    return result;
}
