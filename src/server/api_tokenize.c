/* server/api_tokenize: /tokenize and /detokenize, in vLLM's shapes, on the pool. */
#include <string.h>

#include "base/mem.h"
#include "server/json_field.h"
#include "server/server_internal.h"

typedef struct {
    pool_job job; /* first: the pool hands it back */
    server *server;
    conn *conn; /* NULL: the client has left */
    bool detokenize;
    buf body, answer;
    api_error error;
} tokenize_job;

static void write_tokens(const server_backend *b, const int32_t *ids, size_t n, bool strings,
                         buf *out) {
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", n,
               b->info(b->self).max_model_len);
    for (size_t i = 0; i < n; i++) buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    buf_puts(out, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    if (!strings) return;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = b->token_bytes(b->self, ids[i], &len);
        if (i > 0) buf_putc(out, ',');
        buf_json_string(out, bytes, len);
    }
    buf_puts(out, "]}");
}

/* {"prompt"} or {"messages"}: the ids that a completion or a chat of it would begin with. */
static bool tokenize(const json_t *root, const server_backend *b, buf *out, api_error *e) {
    const char *prompt = NULL;
    size_t n = 0, n_ids = 0;
    buf rendered = {0};
    ridge_error err = {0};
    int32_t *ids = NULL;
    bool strings = false, add_special = field_get(root, "messages") == NULL;
    if (!api_check_features(root, e) || !field_string(root, "prompt", &prompt, &n, e) ||
        !field_bool(root, "add_special_tokens", &add_special, e) ||
        !field_bool(root, "return_token_strs", &strings, e))
        return false;
    if (prompt == NULL && field_get(root, "messages") == NULL)
        return api_fail(e, 400, "prompt", "'prompt' or 'messages' is required");
    if (prompt == NULL) {
        if (!api_chat_render(root, b, &rendered, e)) {
            buf_free(&rendered);
            return false;
        }
        prompt = rendered.len > 0 ? rendered.data : "";
        n = rendered.len;
    }
    if (n > API_MAX_TOKENIZE_BYTES) {
        buf_free(&rendered);
        return api_fail(e, 400, "prompt", "the text has %zu bytes, at most %u are taken", n,
                        API_MAX_TOKENIZE_BYTES);
    }
    ridge_status status = b->encode(b->self, prompt, n, add_special, &ids, &n_ids, &err);
    buf_free(&rendered);
    if (status != RIDGE_OK) return api_fail_from(e, "prompt", &err);
    write_tokens(b, ids, n_ids, strings, out);
    mem_free(ids);
    return true;
}

static bool detokenize(const json_t *root, const server_backend *b, buf *out, api_error *e) {
    const json_t *tokens = field_get(root, "tokens");
    int32_t *ids = NULL;
    size_t n = 0;
    if (tokens == NULL) return api_fail(e, 400, "tokens", "'tokens' is required");
    if (!json_is_array(tokens)) return field_type_error(e, "tokens", "a list of token ids", tokens);
    if (!json_token_ids(tokens, "tokens", b->info(b->self).n_vocab, &ids, &n, e)) return false;
    buf text = {0};
    detokenizer d = {0};
    for (size_t i = 0; i < n; i++) b->detokenize(b->self, &d, ids[i], true, &text);
    b->detokenize_end(b->self, &d, &text);
    mem_free(ids);
    buf_puts(out, "{\"prompt\":");
    buf_json_string(out, text.len > 0 ? text.data : "", text.len);
    buf_putc(out, '}');
    out->failed |= text.failed;
    buf_free(&text);
    return true;
}

static void job_work(pool_job *job) {
    tokenize_job *t = (tokenize_job *)job;
    const server_backend *b = &t->server->backend;
    json_t *root = json_parse_object(t->body.len > 0 ? t->body.data : "", t->body.len, &t->error);
    if (root != NULL && api_check_model(root, &t->server->names, &t->error)) {
        if (t->detokenize)
            detokenize(root, b, &t->answer, &t->error);
        else
            tokenize(root, b, &t->answer, &t->error);
    }
    json_decref(root);
}

static void job_done(pool_job *job) {
    tokenize_job *t = (tokenize_job *)job;
    size_t limit = t->answer.limit;
    t->server->pending_bytes -= t->body.len;
    if (t->answer.failed && t->error.status == 0)
        api_fail(&t->error, 400, NULL, "there is no room for the answer: at most %zu bytes", limit);
    if (t->conn != NULL && t->error.status != 0)
        conn_fail(t->conn, &t->error);
    else if (t->conn != NULL)
        conn_reply_json(t->conn, 200, &t->answer);
    t->server->n_works--;
    buf_free(&t->body);
    buf_free(&t->answer);
    mem_free(t);
}

static void on_gone(void *self) {
    ((tokenize_job *)self)->conn = NULL;
}

static void on_expired(void *self) {
    conn *c = ((tokenize_job *)self)->conn;
    api_error e = conn_expired(c);
    on_gone(self);
    conn_fail(c, &e);
}

static void begin(conn *c, bool detok) {
    size_t most = c->server->params.max_answer_bytes;
    tokenize_job *t = NULL;
    api_error e = {0};
    if (c->server->answer_bytes > most)
        api_fail(&e, 503, NULL, "the answers that are being made and read take more than %zu bytes",
                 most);
    else if ((t = mem_zalloc(1, sizeof *t)) == NULL)
        api_fail(&e, 503, NULL, "out of memory");
    if (t == NULL) {
        conn_fail(c, &e);
        return;
    }
    t->job =
        (pool_job){.work = job_work, .done = job_done, .heavy = c->body.len > HEAVY_BODY_BYTES};
    t->server = c->server;
    t->server->n_works++;
    t->conn = c;
    t->detokenize = detok;
    t->body = c->body;
    t->answer.limit = most;
    c->body = (buf){0};
    conn_wait(c, (conn_work){t, on_gone, on_expired, NULL});
    pool_submit(c->server->pool, &t->job);
}

void handle_tokenize(conn *c) {
    begin(c, false);
}
void handle_detokenize(conn *c) {
    begin(c, true);
}
