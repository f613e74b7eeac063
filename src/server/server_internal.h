/* server/server_internal: what the files of server/ share. Everything here runs on the loop. */
#ifndef RIDGE_SERVER_SERVER_INTERNAL_H
#define RIDGE_SERVER_SERVER_INTERNAL_H

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

#include "server/api_request.h"
#include "server/http_head.h"
#include "server/metrics.h"
#include "server/pool.h"
#include "server/record.h"
#include "server/server.h"

#define HEAVY_BODY_BYTES (256 * 1024) /* what parsing and tokenizing may need seconds for */

typedef struct conn conn;

struct server {
    server_params params;
    server_backend backend;
    api_names names;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *backend_event, *pool_event, *stop_event, *drain_event;
    pool *pool;
    conn *conns; /* all of them, newest first */
    size_t n_conns;
    size_t n_works;       /* jobs and generations alive, orphans too */
    size_t pending_bytes; /* of request bodies */
    size_t answer_bytes;  /* of answers that are being made, and of whole ones not yet sent */
    bool ready;           /* it has been said that the model is */
    bool draining;
    int64_t drain_deadline_us;
    bool cancelled;  /* the drain deadline has passed */
    int64_t created; /* unix time of the start, for /v1/models */
    metrics metrics;
    uint64_t n_requests; /* generations so far */
    record *record;      /* NULL: none */
    struct event *record_event;
    ridge_error failure;
};

/* The backend's state; the first time that it is LOOP_READY, what then becomes known is noted. */
engine_loop_state server_state(server *s, ridge_error *err);
/* Something has been recorded: it is written within a second. */
void server_flush_soon(server *s);

/* ---- conn.c: one client ---- */

/* Who answers the current request later. Each is called at most once, and none after the answer has
 * ended. */
typedef struct {
    void *self;
    void (*gone)(void *self);      /* the client has left: forget the connection */
    void (*expired)(void *self);   /* the request's time is over: answer now */
    void (*too_large)(void *self); /* answers take too much, this one most: end it now */
} conn_work;

typedef enum { CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_FLUSH, CONN_LINGER } conn_phase;

typedef void (*route_handler)(conn *c);

struct conn {
    server *server;
    conn *previous, *next;
    struct bufferevent *bev;
    struct event *timer;
    conn_phase phase;
    bool head_begun, end_of_input, streaming, keep_alive;
    bool dropped;        /* a part of its answer has no room: it ends */
    size_t answer_bytes; /* of the answer that is being made */
    size_t scanned;      /* bytes of the input in which no end of a head was found */
    char *head_text;
    http_head head;
    http_chunks chunks;
    uint64_t body_left;
    uint64_t body_received;
    buf body;
    api_error reject;      /* said once the body has been read over */
    route_handler handler; /* of the request being read */
    const char *allowed;   /* methods of its path, for a 405 */
    conn_work work;
    int64_t started_us;
    int64_t taken_us;       /* when the client last took some of what is written */
    int status;             /* of the answer, for the log */
    uint32_t retry_after_s; /* of that, if it is a 429 or 503 */
    char request_id[129];
    char peer[64];
};

void conn_accept(server *s, evutil_socket_t fd, const struct sockaddr *address, int n);
void conn_destroy(conn *c);
/* A whole answer. type NULL: no body. */
void conn_reply(conn *c, int status, const char *type, const char *data, size_t n);
void conn_reply_json(conn *c, int status, buf *body); /* takes the body */
void conn_fail(conn *c, const api_error *e);
/* An event stream: its head goes out with the first event, "data: [DONE]" with the end. */
void conn_stream_event(conn *c, const char *json, size_t n); /* "data: JSON\n\n", one write */
void conn_stream_end(conn *c);
void conn_wait(conn *c, conn_work work); /* the handler will answer later */
api_error conn_expired(const conn *c);   /* what an answer is that took too long */
/* What is made or waits to be read takes too much: whoever has most of it ends, but for those that
 * are reading: an answer once made is not cut while it is taken. */
void conn_end_largest(server *s);

/* ---- routes.c ---- */

/* Sets c->handler, or c->reject: 404, 405, 401, 503 while loading or draining. */
void route_request(conn *c);

/* ---- generation.c, api_tokenize.c: handlers that answer later ---- */

void handle_chat(conn *c);
void handle_completions(conn *c);
void handle_tokenize(conn *c);
void handle_detokenize(conn *c);
void generation_on_event(void *context, const engine_event *event);

#endif
