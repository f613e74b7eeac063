/* server/routes: which path and method is whose, and the answers that need no work: /health,
 * /version, /metrics, /v1/models. */
#include <string.h>

#include "base/clock.h"
#include "server/server_internal.h"

/* Is the server open for work? */
static bool check_ready(server *s, api_error *e) {
    ridge_error err = {0};
    engine_loop_state state = server_state(s, &err);
    if (s->draining) return api_fail(e, 503, NULL, "the server is shutting down");
    if (state == LOOP_LOADING) return api_fail(e, 503, NULL, "Loading model");
    if (state == LOOP_FAILED) return api_fail(e, 503, NULL, "the engine has failed: %s", err.text);
    return true;
}

/* An engine that has work begins or ends a step now and then. */
static bool check_progress(const server *s, api_error *e) {
    engine_stats stats;
    double limit = s->params.watchdog_s;
    s->backend.stats(s->backend.self, &stats);
    double silent = metrics_silent_s(&s->metrics, &stats, clock_now_s());
    if (limit <= 0 || silent <= limit) return true;
    return api_fail(e, 503, NULL, "the engine has work, but has made no step for %.0f s", silent);
}

static void handle_health(conn *c) {
    api_error e = {0};
    if (check_ready(c->server, &e)) check_progress(c->server, &e);
    if (e.status != 0)
        conn_fail(c, &e);
    else
        conn_reply(c, 200, "text/plain", "", 0);
}

static void handle_version(conn *c) {
    buf b = {0};
    buf_printf(&b, "{\"version\":\"%s\"}", ridge_version());
    conn_reply_json(c, 200, &b);
    buf_free(&b);
}

/* Also while the model loads, and with nothing to say yet: a scrape that fails is an alarm. */
static void handle_metrics(conn *c) {
    server *s = c->server;
    engine_stats stats;
    api_error e = {0};
    server_state(s, NULL);
    s->backend.stats(s->backend.self, &stats);
    if (s->record != NULL) {
        s->metrics.n_recorded = record_n_lines(s->record);
        s->metrics.n_record_lost = record_n_lost(s->record);
    }
    const buf *text = metrics_write(&s->metrics, &stats, clock_now_s());
    if (text != NULL) {
        conn_reply(c, 200, METRICS_CONTENT_TYPE, text->data, text->len);
    } else {
        api_fail(&e, 503, NULL, "out of memory");
        conn_fail(c, &e);
    }
}

static void write_model(const server *s, buf *b) {
    buf_puts(b, "{\"id\":");
    buf_json_string(b, s->names.model_id, strlen(s->names.model_id));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"ridge\",\"root\":",
               (long long)s->created);
    buf_json_string(b, s->names.model_root, strlen(s->names.model_root));
    buf_printf(b, ",\"parent\":null,\"max_model_len\":%u,\"permission\":[]}",
               s->backend.info(s->backend.self).max_model_len);
}

static void handle_models(conn *c) {
    buf b = {0};
    buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    write_model(c->server, &b);
    buf_puts(&b, "]}");
    conn_reply_json(c, 200, &b);
    buf_free(&b);
}

#define MODEL_PREFIX "/v1/models/"

static void handle_model(conn *c) {
    const char *name = c->head.path + sizeof MODEL_PREFIX - 1;
    const api_names *names = &c->server->names;
    if (strcmp(name, names->model_id) != 0 && strcmp(name, names->model_root) != 0) {
        api_error e = {0};
        api_fail(&e, 404, "model", "The model `%.200s` does not exist; this server has `%.200s`.",
                 name, names->model_id);
        conn_fail(c, &e);
        return;
    }
    buf b = {0};
    write_model(c->server, &b);
    conn_reply_json(c, 200, &b);
    buf_free(&b);
}

static void handle_options(conn *c) {
    conn_reply(c, 204, NULL, NULL, 0);
}

static const struct {
    const char *path;
    http_method method;
    bool open;        /* needs no key */
    bool needs_model; /* 503 while it loads or the server drains */
    route_handler handler;
} routes[] = {
    {"/health", HTTP_GET, true, false, handle_health},
    {"/ping", HTTP_GET, true, false, handle_health},
    {"/version", HTTP_GET, true, false, handle_version},
    {"/metrics", HTTP_GET, true, false, handle_metrics},
    {"/v1/models", HTTP_GET, false, true, handle_models},
    {MODEL_PREFIX "*", HTTP_GET, false, true, handle_model},
    {"/v1/chat/completions", HTTP_POST, false, true, handle_chat},
    {"/v1/completions", HTTP_POST, false, true, handle_completions},
    {"/tokenize", HTTP_POST, false, true, handle_tokenize},
    {"/detokenize", HTTP_POST, false, true, handle_detokenize},
};

static bool path_matches(const char *pattern, const char *path) {
    size_t n = strlen(pattern);
    if (pattern[n - 1] == '*') return strncmp(pattern, path, n - 1) == 0 && path[n - 1] != '\0';
    return strcmp(pattern, path) == 0;
}

/* Compares all bytes of the given key, so that the time says nothing about the right one. */
static bool key_is_right(const char *key, const conn *c) {
    const char *given = http_head_find(&c->head, "Authorization");
    if (given == NULL || strncasecmp(given, "Bearer ", 7) != 0) return false;
    given += 7;
    size_t n = strlen(given), n_key = strlen(key);
    unsigned different = n != n_key;
    for (size_t i = 0; i < n; i++)
        different |=
            (unsigned)(unsigned char)given[i] ^ (unsigned char)key[n_key > 0 ? i % n_key : 0];
    return different == 0;
}

void route_request(conn *c) {
    server *s = c->server;
    http_method method = c->head.method == HTTP_HEAD ? HTTP_GET : c->head.method;
    bool known = false;
    c->handler = NULL;
    if (method == HTTP_OPTIONS) {
        c->handler = handle_options;
        return;
    }
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!path_matches(routes[i].path, c->head.path)) continue;
        known = true;
        c->allowed = routes[i].method == HTTP_GET ? "GET, HEAD" : "POST";
        if (routes[i].method != method) continue;
        if (s->params.api_key != NULL && !routes[i].open && !key_is_right(s->params.api_key, c)) {
            api_fail(&c->reject, 401, NULL, "the API key is missing or wrong");
            return;
        }
        if (routes[i].needs_model && !check_ready(s, &c->reject)) return;
        c->handler = routes[i].handler;
        return;
    }
    if (known)
        api_fail(&c->reject, 405, NULL, "%.100s does not take this method", c->head.path);
    else
        api_fail(&c->reject, 404, NULL, "there is nothing at %.100s", c->head.path);
}
