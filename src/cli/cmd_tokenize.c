/* cli/cmd_tokenize: `ridge tokenize` and `ridge detokenize`: text to ids and back, on stdin.
 *
 * Without --jsonl the whole input is one text, or one JSON list of ids. With it every line is one
 * JSON value and is answered by one line; a line that fails says so and the rest goes on.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "text/tokenizer.h"

#define MAX_INPUT_BYTES ((size_t)1 << 30)

typedef struct {
    const tokenizer *t;
    tokenizer_options options;
    bool skip_special, json;
} job;

/* One input to one line of output, without its line end. */
typedef ridge_status (*answer_fn)(const job *j, const char *input, size_t n, buf *out,
                                  ridge_error *err);

/* Faster than printf, which would cost more than the tokens did. */
static void put_id(buf *out, int32_t id, char before) {
    char digits[12];
    size_t i = sizeof digits;
    do digits[--i] = (char)('0' + id % 10);
    while ((id /= 10) > 0);
    if (before != '\0') digits[--i] = before;
    buf_append(out, digits + i, sizeof digits - i);
}

static ridge_status put_ids(const job *j, tokenizer_options options, const char *text, size_t n,
                            buf *out, ridge_error *err) {
    int32_t *ids;
    size_t n_ids;
    RIDGE_TRY(tokenizer_encode(j->t, text, n, options, &ids, &n_ids, err));
    buf_puts(out, j->json ? "{\"ids\":[" : "");
    for (size_t i = 0; i < n_ids; i++) put_id(out, ids[i], i == 0 ? '\0' : j->json ? ',' : ' ');
    buf_puts(out, j->json ? "]}" : "");
    mem_free(ids);
    return RIDGE_OK;
}

static ridge_status answer_text(const job *j, const char *input, size_t n, buf *out,
                                ridge_error *err) {
    return put_ids(j, j->options, input, n, out, err);
}

static ridge_status parse_json(json_t **out, const char *input, size_t n, ridge_error *err) {
    json_error_t where;
    *out = json_loadb(input, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (*out == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "not JSON: %s at byte %d", where.text, where.position);
    return RIDGE_OK;
}

static ridge_status get_flag(const json_t *object, const char *name, bool *flag, ridge_error *err) {
    const json_t *v = json_object_get(object, name);
    if (v == NULL || json_is_null(v)) return RIDGE_OK;
    if (!json_is_boolean(v))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "'%s' is not true or false", name);
    *flag = json_is_true(v);
    return RIDGE_OK;
}

/* A JSON string, or {"text":…,"parse_special":…,"add_bos":…}. */
static ridge_status answer_text_value(const job *j, const json_t *v, buf *out, ridge_error *err) {
    tokenizer_options options = j->options;
    const json_t *text = json_is_object(v) ? json_object_get(v, "text") : v;
    if (!json_is_string(text))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "expected a string or an object with 'text'");
    RIDGE_TRY(get_flag(v, "parse_special", &options.parse_special, err));
    RIDGE_TRY(get_flag(v, "add_bos", &options.add_bos, err));
    return put_ids(j, options, json_string_value(text), json_string_length(text), out, err);
}

static ridge_status answer_text_line(const job *j, const char *input, size_t n, buf *out,
                                     ridge_error *err) {
    json_t *v;
    RIDGE_TRY(parse_json(&v, input, n, err));
    ridge_status status = answer_text_value(j, v, out, err);
    json_decref(v);
    return status;
}

static ridge_status put_text(const job *j, const json_t *list, bool skip_special, buf *out,
                             ridge_error *err) {
    size_t n = json_array_size(list);
    buf text = {0};
    int32_t *ids = mem_zalloc(n, sizeof *ids);
    if (ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%zu ids", n);
    ridge_status status = RIDGE_OK;
    for (size_t i = 0; i < n && status == RIDGE_OK; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= tokenizer_n_vocab(j->t))
            status = RIDGE_FAIL(err, RIDGE_EINVAL, "element %zu is no token id (0 to %d)", i,
                                tokenizer_n_vocab(j->t) - 1);
        ids[i] = (int32_t)id;
    }
    if (status == RIDGE_OK) status = tokenizer_decode(j->t, ids, n, !skip_special, &text, err);
    if (status == RIDGE_OK && j->json) {
        buf_puts(out, "{\"text\":");
        buf_json_string(out, text.data != NULL ? text.data : "", text.len);
        buf_putc(out, '}');
    } else if (status == RIDGE_OK) {
        buf_append(out, text.data, text.len);
    }
    buf_free(&text);
    mem_free(ids);
    return status;
}

/* A JSON list of ids, or {"ids":[…],"skip_special_tokens":…}. */
static ridge_status answer_ids_value(const job *j, const json_t *v, buf *out, ridge_error *err) {
    bool skip_special = j->skip_special;
    const json_t *list = json_is_object(v) ? json_object_get(v, "ids") : v;
    if (!json_is_array(list))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "expected a list of ids or an object with 'ids'");
    RIDGE_TRY(get_flag(v, "skip_special_tokens", &skip_special, err));
    return put_text(j, list, skip_special, out, err);
}

static ridge_status answer_ids(const job *j, const char *input, size_t n, buf *out,
                               ridge_error *err) {
    json_t *v;
    RIDGE_TRY(parse_json(&v, input, n, err));
    ridge_status status = answer_ids_value(j, v, out, err);
    json_decref(v);
    return status;
}

static void print_error(const ridge_error *err) {
    buf line = {0};
    const char *text = err->text[0] != '\0' ? err->text : ridge_status_text(err->code);
    buf_puts(&line, "{\"error\":");
    buf_json_string(&line, text, strlen(text));
    printf("%s}\n", line.data != NULL ? line.data : "");
    buf_free(&line);
}

static int answer_one(const job *j, answer_fn answer, const char *input, size_t n, bool line) {
    buf out = {0};
    ridge_error err = {0};
    ridge_status status = answer(j, input, n, &out, &err);
    if (status == RIDGE_OK && out.failed) status = RIDGE_FAIL(&err, RIDGE_ENOMEM, "output");
    if (status == RIDGE_OK) {
        fwrite(out.data, 1, out.len, stdout);
        if (line) putchar('\n');
    }
    buf_free(&out);
    return status == RIDGE_OK ? CLI_OK
           : line && j->json  ? (print_error(&err), CLI_FAILED)
                              : cli_fail(&err);
}

static int answer_lines(const job *j, answer_fn answer, const char *input, size_t n) {
    int worst = CLI_OK;
    for (size_t i = 0; i < n;) {
        const char *end = memchr(input + i, '\n', n - i);
        size_t len = end != NULL ? (size_t)(end - input) - i : n - i;
        if (strspn(input + i, " \t\r") < len &&
            answer_one(j, answer, input + i, len, true) != CLI_OK)
            worst = CLI_FAILED;
        i += len + 1;
    }
    return worst;
}

static ridge_status open_model(tokenizer **out, const char *model, ridge_error *err) {
    char *path;
    gguf *g;
    RIDGE_TRY(cli_model_path(&path, model, err));
    ridge_status status = gguf_open(&g, path, err);
    mem_free(path);
    if (status != RIDGE_OK) return status;
    status = tokenizer_open(out, g, cli_log(), err);
    gguf_close(g);
    return status;
}

static int run(const char *model, job *j, bool lines, answer_fn whole, answer_fn line) {
    ridge_error err = {0};
    tokenizer *t;
    char *input;
    size_t n;
    if (open_model(&t, model, &err) != RIDGE_OK) return cli_fail(&err);
    j->t = t;
    j->json = j->json || lines;
    int status;
    if (file_read(&input, &n, "-", MAX_INPUT_BYTES, &err) != RIDGE_OK) {
        status = cli_fail(&err);
    } else {
        status = lines ? answer_lines(j, line, input, n)
                       : answer_one(j, whole, input, n, j->json || whole == answer_text);
        mem_free(input);
    }
    tokenizer_close(t);
    return status;
}

int cmd_tokenize(int argc, char **argv) {
    static const char usage[] = "tokenize MODEL [--parse-special] [--add-bos] [--json] < TEXT";
    job j = {0};
    bool lines = false;
    int n_args;
    const cli_option options[] = {
        {"parse-special", CLI_FLAG, &j.options.parse_special,
         "special tokens in the text are parsed"},
        {"add-bos", CLI_FLAG, &j.options.add_bos, "add BOS where the model says so"},
        {"json", CLI_FLAG, &j.json, "{\"ids\":[...]}"},
        {"jsonl", CLI_FLAG, &lines, "a JSON string or object with 'text' in each line"}};
    int status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (status == CLI_OK) status = cli_count(usage, argv, n_args, 1, 1);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    return run(argv[0], &j, lines, answer_text, answer_text_line);
}

int cmd_detokenize(int argc, char **argv) {
    static const char usage[] = "detokenize MODEL [--skip-special-tokens] [--json] < JSON ids";
    job j = {0};
    bool lines = false;
    int n_args;
    const cli_option options[] = {
        {"skip-special-tokens", CLI_FLAG, &j.skip_special, "leave out control tokens"},
        {"json", CLI_FLAG, &j.json, "{\"text\":\"...\"}"},
        {"jsonl", CLI_FLAG, &lines, "a list of ids or an object with 'ids' in each line"}};
    int status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (status == CLI_OK) status = cli_count(usage, argv, n_args, 1, 1);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    return run(argv[0], &j, lines, answer_ids, answer_ids);
}
