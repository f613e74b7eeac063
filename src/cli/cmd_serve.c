/* ridge serve MODEL: OpenAI's API over HTTP. Flags, the chat template, signals; the rest is in
 * server/. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/engine_args.h"
#include "cli/machine.h"
#include "cli/template_file.h"
#include "server/server.h"

#define USAGE "serve MODEL [--host H] [--port P] [--api-key KEY] [OPTION ...]"

typedef struct {
    engine_args engine;
    server_params server;
    uint64_t port, max_waiting, max_connections, max_body, max_pending, max_answer, workers;
    const char *name, *chat_template, *prefix_cache_file;
    uint64_t prefix_cache_file_bytes;
} serve_args;

static ridge_status serve(const serve_args *a, const engine_params *params,
                          const chat_template *template, ridge_error *err) {
    backend_engine *backend = NULL;
    server_backend table;
    server *s = NULL;
    ridge_status status =
        backend_engine_create(&backend, &table, params, (size_t)a->max_waiting, template, err);
    if (status == RIDGE_OK) status = server_open(&s, &a->server, &table, err);
    if (status == RIDGE_OK) {
        fprintf(stderr, "ridge: serving %s on http://%s:%u\n", a->server.model_id, a->server.host,
                server_port(s));
        status = server_run(s, err);
    }
    server_close(s);
    backend_engine_destroy(backend);
    return status;
}

static ridge_status check_prefix_file(const serve_args *a, ridge_error *err) {
    bool is_static = engine_args_is_static(&a->engine);
    if (a->prefix_cache_file == NULL && a->prefix_cache_file_bytes > 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--prefix-cache-file-bytes needs the file: --prefix-cache-file FILE");
    if (a->prefix_cache_file != NULL && (!a->engine.prefix_caching || is_static))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--prefix-cache-file needs the prefix cache, which %s turns off",
                          is_static ? "--scheduler static" : "--no-enable-prefix-caching");
    return RIDGE_OK;
}

static ridge_status check(serve_args *a, ridge_error *err) {
    RIDGE_TRY(engine_args_check(&a->engine, err));
    RIDGE_TRY(check_prefix_file(a, err));
    if (a->port > 65535)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--port %llu: the highest is 65535",
                          (unsigned long long)a->port);
    if (a->max_body == 0 || a->max_answer == 0 || a->workers == 0 || a->workers > 64 ||
        a->max_connections == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--max-body-bytes, --max-answer-bytes, --max-connections and --workers "
                          "(at most 64) must be positive");
    if (a->server.api_key != NULL && a->server.api_key[0] == '\0')
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--api-key is empty; leave it out to serve everybody without a key");
    const double times[] = {a->server.head_timeout_s,    a->server.body_timeout_s,
                            a->server.idle_timeout_s,    a->server.write_timeout_s,
                            a->server.request_timeout_s, a->server.shutdown_timeout_s,
                            a->server.watchdog_s};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (times[i] < 0 || times[i] > 1e8)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "a time-out of %g s is out of range", times[i]);
    a->server.port = (uint16_t)a->port;
    a->server.max_connections = (size_t)a->max_connections;
    a->server.max_body_bytes = (size_t)a->max_body;
    a->server.max_pending_bytes =
        (size_t)(a->max_pending > a->max_body ? a->max_pending : a->max_body);
    a->server.max_answer_bytes = (size_t)a->max_answer;
    a->server.n_workers = (int)a->workers;
    return RIDGE_OK;
}

/* Said now, not when the server stops: what could not be kept then. */
static ridge_status prefix_file_params(const serve_args *a, engine_params *p, ridge_error *err) {
    const char *path = a->prefix_cache_file;
    p->prefix_cache_file = path;
    p->prefix_cache_file_bytes = a->prefix_cache_file_bytes;
    if (path == NULL || access(path, F_OK) == 0) return RIDGE_OK;
    return cli_check_output(path, err);
}

static ridge_status run(serve_args *a, const char *model, ridge_error *err) {
    engine_params params;
    chat_template *template = NULL;
    char *path = NULL, *name = NULL;
    ridge_status status = engine_args_params(&a->engine, model, &path, &params, err);
    if (status == RIDGE_OK) status = prefix_file_params(a, &params, err);
    if (status == RIDGE_OK)
        params.peaks = machine_peaks_known; /* measuring would delay the start */
    if (status == RIDGE_OK && a->chat_template != NULL)
        status = template_file_open(&template, "--chat-template", a->chat_template, err);
    if (status == RIDGE_OK) {
        name = cli_model_name(model);
        a->server.model_id = a->name != NULL ? a->name : name;
        a->server.model_root = model;
        a->server.log = cli_log();
        a->server.stop_fd = cli_signals_as_fd();
        cli_raise_file_limit();
        if (name == NULL)
            status = RIDGE_FAIL(err, RIDGE_ENOMEM, "the model's name");
        else
            status = serve(a, &params, template, err);
        if (a->server.stop_fd >= 0) close(a->server.stop_fd);
    }
    template_free(template);
    mem_free(path);
    mem_free(name);
    return status;
}

int cmd_serve(int argc, char **argv) {
    serve_args a = {
        .engine = engine_args_default(), .server = server_params_default(), .max_waiting = 1024};
    server_params *s = &a.server;
    a.port = s->port;
    s->api_key = cli_env("RIDGE_API_KEY");
    a.max_connections = s->max_connections;
    a.max_body = s->max_body_bytes;
    a.max_pending = s->max_pending_bytes;
    a.max_answer = s->max_answer_bytes;
    a.workers = (uint64_t)s->n_workers;
    const cli_option options[] = {
        {"host", CLI_STRING, &s->host, "address to listen on (default: 127.0.0.1)"},
        {"port", CLI_UINT, &a.port, "port (default: 8080; 0: any free one)"},
        {"served-model-name", CLI_STRING, &a.name, "the model's id (default: from MODEL)"},
        {"api-key", CLI_STRING, &s->api_key, "refuse requests without it (or $RIDGE_API_KEY)"},
        {"chat-template", CLI_STRING, &a.chat_template, "a template's FILE or built-in NAME"},
        {"max-waiting", CLI_UINT, &a.max_waiting,
         "sequences beyond --max-num-seqs; the next gets 429"},
        {"max-connections", CLI_UINT, &a.max_connections, "clients at once"},
        {"max-body-bytes", CLI_BYTES, &a.max_body, "largest request (default: 64M)"},
        {"max-pending-bytes", CLI_BYTES, &a.max_pending,
         "of all requests being read (default: 256M)"},
        {"max-answer-bytes", CLI_BYTES, &a.max_answer, "of all answers being made (default: 256M)"},
        {"workers", CLI_UINT, &a.workers, "threads that parse, render and tokenize"},
        {"head-timeout", CLI_DOUBLE, &s->head_timeout_s, "seconds for a request's head"},
        {"body-timeout", CLI_DOUBLE, &s->body_timeout_s, "seconds for a body, and 1 per 16 KiB"},
        {"idle-timeout", CLI_DOUBLE, &s->idle_timeout_s, "seconds without a request"},
        {"write-timeout", CLI_DOUBLE, &s->write_timeout_s, "seconds in which nothing is read"},
        {"request-timeout", CLI_DOUBLE, &s->request_timeout_s, "seconds for an answer (0: any)"},
        {"shutdown-timeout", CLI_DOUBLE, &s->shutdown_timeout_s,
         "seconds for what runs at the end"},
        {"record", CLI_STRING, &s->record_path,
         "write a line per request to this file: arrival, lengths, block hashes, times; no text"},
        {"watchdog", CLI_DOUBLE, &s->watchdog_s,
         "seconds without a step, though there is work, after which /health is 503 (0: never)"},
        {"metrics-legacy-names", CLI_FLAG, &s->legacy_metric_names,
         "/metrics has the names that vLLM has given up, too"},
        {"prefix-cache-file", CLI_STRING, &a.prefix_cache_file,
         "keep the most used prefixes here from one run to the next"},
        {"prefix-cache-file-bytes", CLI_BYTES, &a.prefix_cache_file_bytes,
         "size of that file at most (default: 1G)"},
        {"verbose", CLI_FLAG, &s->verbose, "a line on stderr for each request"},
        SLO_OPTIONS(&a.engine),
        ENGINE_OPTIONS(&a.engine),
    };
    int n_args = 0,
        parsed = cli_parse(argc, argv, USAGE, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(USAGE, argv, n_args, 1, 1);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    ridge_error err = {0};
    if (check(&a, &err) != RIDGE_OK) return cli_refuse(&err);
    return run(&a, argv[0], &err) == RIDGE_OK ? CLI_OK : cli_fail(&err);
}
