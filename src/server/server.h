/* server: OpenAI's API over HTTP/1.1, on one event loop that never blocks.
 *
 * server_run's thread owns every connection and request. Bodies are parsed, rendered and tokenized
 * on a small pool; tokens come from the backend, whose fd wakes the loop. A client that goes away
 * (or half-closes: an HTTP client that stops sending has left) cancels its sequences at once.
 *
 * Every buffer, time and count has a limit below. Bad input ends a request with a 4xx and a reason,
 * never the process.
 */
#ifndef RIDGE_SERVER_SERVER_H
#define RIDGE_SERVER_SERVER_H

#include "base/log.h"
#include "server/backend.h"

typedef struct server server;

typedef struct {
    const char *host;       /* an address or a name */
    uint16_t port;          /* 0: any free one, see server_port */
    const char *model_id;   /* what /v1/models lists */
    const char *model_root; /* what was loaded: another name for it */
    const char *api_key;    /* NULL: any key is accepted */
    int stop_fd; /* becomes readable: drain, then return; once more: return now. -1: none */
    size_t max_connections;
    size_t max_head_bytes, max_body_bytes;
    size_t max_pending_bytes;  /* of bodies in memory, and of one client's unread answer */
    size_t max_answer_bytes;   /* of all answers that are being made; past it the largest ends */
    double head_timeout_s;     /* from a head's first byte to its last */
    double body_timeout_s;     /* for a body; a second more per 16 KiB received */
    double idle_timeout_s;     /* a kept-alive connection without a request */
    double write_timeout_s;    /* a client that reads nothing */
    double request_timeout_s;  /* from a whole request to its whole answer; 0: none */
    double shutdown_timeout_s; /* what runs may go on for so long */
    double watchdog_s;         /* an engine that has work and makes no step for so long is said to
                                  be dead (/health is 503); 0: never */
    int n_workers;
    const char *record_path;  /* a line per sequence is written there (record.h); NULL: none */
    bool legacy_metric_names; /* /metrics has vLLM's old names, too */
    bool verbose;             /* one log line per request */
    const log_sink *log;      /* borrowed */
} server_params;

server_params server_params_default(void); /* loopback, 8080, no key */

/* Binds and listens, so that a port in use is known before a model loads. Everything in params is
 * borrowed until server_close; the table is copied. */
ridge_status server_open(server **out, const server_params *params, const server_backend *backend,
                         ridge_error *err) RIDGE_CHECKED;
uint16_t server_port(const server *s);
/* Serves until stop_fd says so (RIDGE_OK) or the backend has failed (its error). The process
 * ignores SIGPIPE: clients leave while they are written to. */
ridge_status server_run(server *s, ridge_error *err) RIDGE_CHECKED;
void server_close(server *s); /* NULL allowed */

#endif
