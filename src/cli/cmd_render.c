/* cli/cmd_render: `ridge render`: a conversation to the text of a prompt. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/template_file.h"
#include "format/gguf.h"
#include "text/template.h"

#define MAX_INPUT_BYTES ((size_t)256 << 20)

typedef struct {
    chat_template *tmpl;
    char *bos, *eos; /* of the model; NULL: none */
} renderer;

static void renderer_close(renderer *r) {
    template_free(r->tmpl);
    mem_free(r->bos);
    mem_free(r->eos);
}

/* The text of the token whose id a key holds, or NULL. */
static char *token_text(const gguf *g, const char *key) {
    uint64_t id;
    gguf_type type;
    size_t n;
    if (!gguf_get_u64(g, key, &id) || !gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n) ||
        type != GGUF_STRING || id >= n)
        return NULL;
    gguf_string *tokens = mem_zalloc(n, sizeof *tokens);
    char *text = NULL;
    if (tokens != NULL && gguf_array_string(g, "tokenizer.ggml.tokens", tokens, n))
        text = mem_strndup(tokens[id].data, tokens[id].len);
    mem_free(tokens);
    return text;
}

static ridge_status open_model(renderer *r, const char *model, bool with_template,
                               ridge_error *err) {
    char *path = NULL;
    gguf *g = NULL;
    gguf_string source;
    RIDGE_TRY(cli_model_path(&path, model, err));
    ridge_status status = gguf_open(&g, path, err);
    if (status == RIDGE_OK && with_template) {
        if (gguf_get_string(g, "tokenizer.chat_template", &source))
            status = template_parse(&r->tmpl, source.data, source.len, "chat_template", err);
        else
            status = RIDGE_FAIL(err, RIDGE_ENOTFOUND,
                                "%s has no chat template; choose one with --template FILE or NAME "
                                "(%s)",
                                model, template_builtin_names());
    }
    if (status == RIDGE_OK) {
        r->bos = token_text(g, "tokenizer.ggml.bos_token_id");
        r->eos = token_text(g, "tokenizer.ggml.eos_token_id");
    }
    gguf_close(g);
    mem_free(path);
    return status;
}

/* "2024-07-26T12:00:00", a date alone, with or without fraction and zone (which are ignored: it is
 * the wall clock that a template sees). */
static bool parse_iso(const char *s, int64_t *out) {
    struct tm tm = {0};
    const char *end = strptime(s, "%Y-%m-%d", &tm);
    if (end == NULL) return false;
    if (*end == 'T' || *end == ' ') {
        const char *time = strptime(end + 1, "%H:%M:%S", &tm);
        if (time == NULL) time = strptime(end + 1, "%H:%M", &tm);
        if (time == NULL) return false;
        end = time;
    }
    if (*end == '.') end += 1 + strspn(end + 1, "0123456789");
    if (*end != '\0' && *end != 'Z' && *end != '+' && *end != '-') return false;
    *out = (int64_t)timegm(&tm);
    return true;
}

/* This moment as local wall time. */
static int64_t wall_clock(void) {
    time_t now = time(NULL);
    struct tm tm;
    return localtime_r(&now, &tm) != NULL ? (int64_t)now + tm.tm_gmtoff : (int64_t)now;
}

static void set_default(json_t *object, const char *key, json_t *value) {
    if (json_object_get(object, key) == NULL)
        json_object_set_new(object, key, value);
    else
        json_decref(value);
}

static ridge_status render(const renderer *r, json_t *input, buf *out, ridge_error *err) {
    int64_t now = wall_clock();
    if (!json_is_object(input))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "expected a JSON object such as {\"messages\":[...]}");
    const json_t *at = json_object_get(input, "now");
    if (at != NULL && (!json_is_string(at) || !parse_iso(json_string_value(at), &now)))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "now: expected an ISO time such as 2024-07-26T12:00:00");
    if (at != NULL) json_object_del(input, "now");
    set_default(input, "messages", json_null());
    set_default(input, "tools", json_null());
    set_default(input, "documents", json_null());
    set_default(input, "add_generation_prompt", json_false());
    set_default(input, "bos_token", json_string(r->bos != NULL ? r->bos : ""));
    set_default(input, "eos_token", json_string(r->eos != NULL ? r->eos : ""));
    return template_render(r->tmpl, input, now, NULL, out, err);
}

/* Renders one JSON text and prints the result; false: it was an error. */
static bool render_json(const renderer *r, const char *text, size_t n, bool as_json) {
    ridge_error err = {0};
    json_error_t fault;
    buf out = {0}, line = {0};
    json_t *input = json_loadb(text, n, JSON_ALLOW_NUL, &fault);
    ridge_status status;
    if (input == NULL)
        status = RIDGE_FAIL(&err, RIDGE_EINVAL, "input is not JSON: line %d: %s", fault.line,
                            fault.text);
    else
        status = render(r, input, &out, &err);
    json_decref(input);
    bool failed = status != RIDGE_OK;
    if (as_json) {
        buf_puts(&line, failed ? "{\"error\":" : "{\"text\":");
        if (failed)
            buf_json_string(&line, err.text, strlen(err.text));
        else
            buf_json_string(&line, out.data != NULL ? out.data : "", out.len);
        buf_puts(&line, "}\n");
        failed = failed || line.failed;
        if (line.data != NULL) fwrite(line.data, 1, line.len, stdout);
    } else if (failed) {
        cli_fail(&err);
    } else if (out.len > 0) {
        fwrite(out.data, 1, out.len, stdout);
    }
    buf_free(&line);
    buf_free(&out);
    return !failed;
}

static int render_lines(const renderer *r) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int status = CLI_OK;
    while ((n = getline(&line, &capacity, stdin)) >= 0) {
        if (n > 0 && line[n - 1] == '\n') n--;
        if (!render_json(r, line, (size_t)n, true)) status = CLI_FAILED;
    }
    free(line);
    if (!ferror(stdin)) return status;
    ridge_error err = {0};
    (void)error_set_errno(&err, RIDGE_EIO, "cannot read standard input");
    return cli_fail(&err);
}

static int render_stdin(const renderer *r, bool as_json) {
    ridge_error err = {0};
    char *text;
    size_t n;
    if (file_read(&text, &n, "-", MAX_INPUT_BYTES, &err) != RIDGE_OK) return cli_fail(&err);
    bool ok = render_json(r, text, n, as_json);
    mem_free(text);
    return ok ? CLI_OK : CLI_FAILED;
}

int cmd_render(int argc, char **argv) {
    static const char usage[] = "render MODEL|--template FILE [--json|--jsonl] < JSON";
    const char *template_name = NULL;
    bool as_json = false, lines = false;
    const cli_option options[] = {
        {"template", CLI_STRING, &template_name, "a template file, or a built-in template's name"},
        {"json", CLI_FLAG, &as_json, "print {\"text\":...}, or {\"error\":...}"},
        {"jsonl", CLI_FLAG, &lines, "one JSON object per input line, one result per line"},
    };
    int n_args = 0,
        status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (status == CLI_OK) status = cli_count(usage, argv, n_args, template_name == NULL, 1);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    ridge_error err = {0};
    renderer r = {0};
    ridge_status opened = RIDGE_OK;
    if (n_args == 1) opened = open_model(&r, argv[0], template_name == NULL, &err);
    if (opened == RIDGE_OK && template_name != NULL)
        opened = template_file_open(&r.tmpl, "--template", template_name, &err);
    if (opened != RIDGE_OK)
        status = cli_fail(&err);
    else
        status = lines ? render_lines(&r) : render_stdin(&r, as_json);
    renderer_close(&r);
    return status;
}
