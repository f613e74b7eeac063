/* server/conn: one client: reads requests, one at a time, and writes their answers.
 *
 *     HEAD -> BODY -> BUSY (being answered) -> HEAD ...     FLUSH -> LINGER -> gone
 *
 * Reading goes on while an answer is made, so that the end of the connection is seen; what a
 * pipelining client sends meanwhile waits in the input. Where that is too much it is read over, and
 * the connection ends with the answer. A connection that the server ends is shut down for writing
 * first and read over for a while (LINGER), so that the answer isn't lost to a reset. Connections
 * are destroyed only from libevent's callbacks and by server_close: a reply never frees its
 * connection.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <event2/buffer.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/server_internal.h"

#define MAX_PIPELINED_BYTES (256 * 1024)
#define BODY_BYTES_PER_S (16 * 1024)
#define LINGER_S 2.0
#define UNREAD_US 1000000 /* without a byte taken: the client does not read */

static void set_deadline(conn *c, double seconds) {
    if (c->dropped) return; /* its end is set */
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    if (seconds > 0)
        evtimer_add(c->timer, &tv);
    else
        evtimer_del(c->timer);
}

static void drop_body(conn *c) {
    c->server->pending_bytes -= c->body.len;
    buf_free(&c->body);
}

static void forget_request(conn *c) {
    drop_body(c);
    mem_free(c->head_text);
    c->head_text = NULL;
    c->scanned = 0;
    c->head_begun = c->streaming = false;
    c->chunks = (http_chunks){0};
    c->reject.status = 0;
    c->answer_bytes = 0;
    c->work = (conn_work){0};
    c->head = (http_head){0}; /* it borrowed from head_text */
}

/* Some of the output has been taken, or there is some again. */
static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *context) {
    (void)out;
    conn *c = context;
    if (info->n_deleted > 0 || info->orig_size == 0) c->taken_us = clock_now_us();
}

/* What is written and not taken: gone at once, not when libevent comes to free it. */
static void drop_output(conn *c) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_unfreeze(out, 1);
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
}

/* It ends with this round of the loop. Nothing goes out any more: behind what is missing from its
 * answer it would look whole. */
static void drop(conn *c) {
    set_deadline(c, 1e-6);
    c->dropped = true;
    c->keep_alive = false;
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    drop_output(c);
}

void conn_destroy(conn *c) {
    server *s = c->server;
    conn_work work = c->work;
    c->work = (conn_work){0};
    if (work.gone != NULL) work.gone(work.self);
    forget_request(c);
    if (c->previous != NULL)
        c->previous->next = c->next;
    else
        s->conns = c->next;
    if (c->next != NULL) c->next->previous = c->previous;
    s->n_conns--;
    if (c->timer != NULL) event_free(c->timer);
    if (c->bev != NULL) {
        evbuffer_remove_cb(bufferevent_get_output(c->bev), on_output, c);
        drop_output(c);
        bufferevent_free(c->bev); /* closes the socket */
    }
    mem_free(c);
}

/* ---- answers ---- */

static void write_bytes(conn *c, const char *data, size_t n) {
    if (!c->dropped && bufferevent_write(c->bev, data, n) != 0) drop(c); /* out of memory */
}

/* What follows the first `from` bytes, which have gone out. */
static void write_rest(conn *c, buf *b, size_t from) {
    if (b->failed)
        drop(c); /* out of memory */
    else if (from < b->len)
        write_bytes(c, b->data + from, b->len - from);
    buf_free(b);
}

static void write_buf(conn *c, buf *b) {
    write_rest(c, b, 0);
}

static void log_access(const conn *c) {
    static const char *const methods[] = {"GET", "HEAD", "POST", "OPTIONS", "?"};
    if (!c->server->params.verbose) return;
    bool parsed = c->head_text != NULL && c->head.path != NULL;
    log_printf(c->server->params.log, LOG_INFO, "%s %s %s %d %.1f ms %s", c->peer,
               parsed ? methods[c->head.method] : "-", parsed ? c->head.path : "-", c->status,
               (double)(clock_now_us() - c->started_us) / 1e3, c->request_id);
}

static void end_answer(conn *c) {
    log_access(c);
    forget_request(c);
    if (!c->keep_alive) {
        c->phase = CONN_FLUSH;
        set_deadline(c, c->server->params.write_timeout_s);
        return;
    }
    c->phase = CONN_HEAD;
    set_deadline(c, c->server->params.idle_timeout_s);
    /* A pipelined request may lie in the input already. */
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void write_common_headers(const conn *c, buf *b) {
    buf_puts(b, "Access-Control-Allow-Origin: *\r\n");
    if (c->request_id[0] != '\0') buf_printf(b, "X-Request-Id: %s\r\n", c->request_id);
    if (!c->keep_alive)
        buf_puts(b, "Connection: close\r\n");
    else if (c->head.http10)
        buf_puts(b, "Connection: keep-alive\r\n");
}

static void write_status_headers(const conn *c, int status, buf *b) {
    if (status == 429 || status == 503)
        buf_printf(b, "Retry-After: %u\r\n", c->retry_after_s > 0 ? c->retry_after_s : 1);
    if (status == 401) buf_puts(b, "WWW-Authenticate: Bearer\r\n");
    if (status == 405) buf_printf(b, "Allow: %s, OPTIONS\r\n", c->allowed);
    if (status != 204) return;
    const char *wanted = http_head_find(&c->head, "Access-Control-Request-Headers");
    buf_printf(b,
               "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
               "Access-Control-Allow-Headers: %s\r\nAccess-Control-Max-Age: 86400\r\n",
               wanted != NULL ? wanted : "authorization, content-type, x-request-id");
}

static void write_head(conn *c, int status, const char *type, size_t n) {
    buf b = {0};
    c->status = status;
    if (c->server->draining) c->keep_alive = false;
    buf_printf(&b, "HTTP/1.1 %d %s\r\n", status, http_status_text(status));
    if (type != NULL) buf_printf(&b, "Content-Type: %s\r\n", type);
    if (status != 204) buf_printf(&b, "Content-Length: %zu\r\n", n);
    write_common_headers(c, &b);
    write_status_headers(c, status, &b);
    buf_puts(&b, "\r\n");
    write_buf(c, &b);
}

void conn_reply(conn *c, int status, const char *type, const char *data, size_t n) {
    write_head(c, status, type, n);
    if (c->head.method != HTTP_HEAD) write_bytes(c, data, n);
    end_answer(c);
}

void conn_fail(conn *c, const api_error *e) {
    buf b = {0};
    api_error_write(e, &b);
    c->retry_after_s = e->retry_after_s;
    conn_reply_json(c, e->status, &b);
    c->retry_after_s = 0;
    buf_free(&b);
}

static void free_sent(const void *data, size_t n, void *context) {
    server *s = context;
    s->answer_bytes -= n;
    mem_free((void *)data);
}

/* An answer may be large: it is not copied. */
void conn_reply_json(conn *c, int status, buf *body) {
    static const char oom[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                              "\"ServiceUnavailableError\",\"param\":null,\"code\":503}}";
    size_t n = body->len;
    char *data = buf_take(body);
    if (data == NULL) {
        conn_reply(c, 503, "application/json", oom, sizeof oom - 1);
        return;
    }
    write_head(c, status, "application/json", n);
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (c->head.method == HTTP_HEAD) {
        mem_free(data);
    } else if (evbuffer_add_reference(out, data, n, free_sent, c->server) == 0) {
        c->server->answer_bytes += n;
    } else {
        mem_free(data);
        drop(c); /* out of memory */
    }
    end_answer(c);
}

/* Straight to the socket where nothing lies before it: a round of the event loop less for each
 * token of each stream. What the socket does not take is the bufferevent's, which sees why. */
static void write_now(conn *c, buf *b) {
    bool next = !c->dropped && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0;
    ssize_t sent = 0;
    if (next && !b->failed)
        sent = send(bufferevent_getfd(c->bev), b->data, b->len, MSG_DONTWAIT | MSG_NOSIGNAL);
    write_rest(c, b, sent > 0 ? (size_t)sent : 0);
}

static void write_stream_head(conn *c, buf *b) {
    c->status = 200;
    c->streaming = true;
    if (c->server->draining || c->head.http10) c->keep_alive = false;
    buf_puts(b, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (!c->head.http10) buf_puts(b, "Transfer-Encoding: chunked\r\n");
    write_common_headers(c, b);
    buf_puts(b, "\r\n");
}

static void write_event(conn *c, const char *data, size_t n, buf *b) {
    if (!c->streaming) write_stream_head(c, b);
    if (!c->head.http10) buf_printf(b, "%zx\r\n", n + sizeof "data: \n\n" - 1);
    buf_puts(b, "data: ");
    buf_append(b, data, n);
    buf_puts(b, c->head.http10 ? "\n\n" : "\n\n\r\n");
}

void conn_stream_event(conn *c, const char *json, size_t n) {
    buf b = {0};
    write_event(c, json, n, &b);
    write_now(c, &b);
    /* A client that does not read must not fill the memory. */
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) > c->server->params.max_pending_bytes)
        drop(c);
}

/* By the bufferevent: where the connection ends with the answer, on_written goes on. */
void conn_stream_end(conn *c) {
    buf b = {0};
    write_event(c, "[DONE]", 6, &b);
    if (!c->head.http10) buf_puts(&b, "0\r\n\r\n");
    write_buf(c, &b);
    end_answer(c);
}

void conn_wait(conn *c, conn_work work) {
    c->work = work;
}

api_error conn_expired(const conn *c) {
    api_error e = {0};
    api_fail(&e, 504, NULL, "the request has taken longer than %g s",
             c->server->params.request_timeout_s);
    return e;
}

/* Written, and not being read. */
static size_t unread_bytes(const conn *c, int64_t now_us) {
    if (now_us - c->taken_us < UNREAD_US) return 0;
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void conn_end_largest(server *s) {
    conn *largest = NULL;
    size_t most = 0;
    int64_t now_us = clock_now_us();
    for (conn *c = s->conns; c != NULL; c = c->next) {
        size_t n = c->answer_bytes + unread_bytes(c, now_us);
        if (n <= most) continue;
        most = n;
        largest = c;
    }
    if (largest == NULL) return;
    if (largest->work.too_large != NULL && largest->answer_bytes > most / 2) {
        largest->work.too_large(largest->work.self);
    } else {
        drop(largest);
    }
}

/* ---- requests ---- */

/* The client's own request id, if it is harmless; else a random one. */
static void choose_request_id(conn *c) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    const char *given = http_head_find(&c->head, "X-Request-Id");
    size_t n = given != NULL ? strlen(given) : 0;
    if (n > 0 && n < sizeof c->request_id && strspn(given, allowed) == n) {
        memcpy(c->request_id, given, n + 1);
        return;
    }
    unsigned char random[16] = {0};
    ssize_t got = getrandom(random, sizeof random, 0);
    (void)got;
    for (size_t i = 0; i < sizeof random; i++) {
        c->request_id[2 * i] = "0123456789abcdef"[random[i] >> 4];
        c->request_id[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
    }
    c->request_id[2 * sizeof random] = '\0';
}

static void refuse(conn *c, int status, const char *why) {
    api_error e = {0};
    c->keep_alive = false; /* where the next request begins is unknown */
    api_fail(&e, status, NULL, "%s", why);
    conn_fail(c, &e);
}

static bool dispatch(conn *c) {
    c->phase = CONN_BUSY;
    set_deadline(c, c->server->params.request_timeout_s);
    if (c->server->answer_bytes > c->server->params.max_answer_bytes) conn_end_largest(c->server);
    if (c->reject.status != 0) {
        api_error e = c->reject;
        conn_fail(c, &e);
    } else {
        c->handler(c);
    }
    return true;
}

/* After a whole head: what will become of it, and is a body to be read first? */
static bool begin_request(conn *c) {
    const server_params *p = &c->server->params;
    choose_request_id(c);
    c->keep_alive = c->head.keep_alive;
    c->allowed = "";
    route_request(c);
    c->body_left = c->head.content_length;
    c->body_received = 0;
    c->body.limit = p->max_body_bytes;
    if (!c->head.chunked && c->body_left == 0) return dispatch(c);
    if (c->body_left > p->max_body_bytes) {
        char why[128];
        evutil_snprintf(why, sizeof why, "the body has %llu bytes, at most %zu are taken",
                        (unsigned long long)c->body_left, p->max_body_bytes);
        refuse(c, 413, why);
        return true;
    }
    if (c->head.expects_continue && c->reject.status != 0) {
        c->keep_alive = false; /* the client may or may not send its body now */
        return dispatch(c);
    }
    if (c->head.expects_continue && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
        write_bytes(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    c->phase = CONN_BODY;
    set_deadline(c, p->body_timeout_s);
    return true;
}

static bool read_head(conn *c, struct evbuffer *in) {
    const server_params *p = &c->server->params;
    size_t n = evbuffer_get_length(in);
    if (n > p->max_head_bytes) n = p->max_head_bytes;
    const char *text = n > 0 ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : NULL;
    if (text == NULL) return false;
    if (!c->head_begun && (*text == '\r' || *text == '\n')) { /* left over from a body */
        evbuffer_drain(in, 1);
        return true;
    }
    if (!c->head_begun) {
        c->head_begun = true;
        c->started_us = clock_now_us();
        c->request_id[0] = '\0';
        set_deadline(c, p->head_timeout_s);
    }
    size_t length = http_head_length(text, n, c->scanned);
    bool bare = length == 0 && http_head_has_bare_lf(text, n, c->scanned);
    c->scanned = n;
    if (length == 0 && !bare && n < p->max_head_bytes) return false;
    const char *why = bare ? "a line of the head ends without a carriage return"
                           : "the head of the request is too large";
    c->head_text = length > 0 ? mem_strndup(text, length) : NULL;
    int status = bare            ? 400
                 : length == 0   ? 431
                 : !c->head_text ? 503
                                 : http_head_parse(&c->head, c->head_text, length, &why);
    if (status != 0) {
        c->head = (http_head){.method = HTTP_OTHER};
        refuse(c, status, status == 503 ? "out of memory" : why);
        return true;
    }
    evbuffer_drain(in, length);
    return begin_request(c);
}

/* Keeps body bytes, or reads over those of a request that is refused anyway. */
static bool keep_bytes(conn *c, const char *data, size_t n) {
    server *s = c->server;
    if (c->reject.status != 0) return true;
    if (s->pending_bytes + n > s->params.max_pending_bytes) {
        refuse(c, 503, "too many large requests are being read; try again later");
        return false;
    }
    size_t before = c->body.len;
    buf_append(&c->body, data, n);
    s->pending_bytes += c->body.len - before;
    if (c->body.failed) {
        refuse(c, c->body.len + n > c->body.limit ? 413 : 503,
               c->body.len + n > c->body.limit ? "the body is too large" : "out of memory");
        return false;
    }
    return true;
}

static bool read_chunked(conn *c, const char *data, size_t n, size_t *used) {
    buf piece = {.limit = 0};
    http_chunks_status status = http_chunks_feed(&c->chunks, data, n, &piece, used);
    c->body_received += *used;
    bool ok = true;
    if (status == HTTP_CHUNKS_BAD ||
        c->body_received > 2 * c->server->params.max_body_bytes + 65536)
        ok = (refuse(c, status == HTTP_CHUNKS_BAD ? 400 : 413,
                     "the chunked body is malformed or "
                     "too large"),
              false);
    else if (piece.failed)
        ok = (refuse(c, 503, "out of memory"), false);
    else if (piece.len > 0)
        ok = keep_bytes(c, piece.data, piece.len);
    buf_free(&piece);
    if (ok) c->body_left = status == HTTP_CHUNKS_DONE ? 0 : 1;
    return ok;
}

static bool read_body(conn *c, struct evbuffer *in) {
    size_t n = evbuffer_get_contiguous_space(in), used;
    const char *data = n > 0 ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : NULL;
    if (data == NULL) return false;
    bool ok = true;
    if (c->head.chunked) {
        ok = read_chunked(c, data, n, &used);
    } else {
        used = n < c->body_left ? n : (size_t)c->body_left;
        ok = keep_bytes(c, data, used);
        c->body_left -= used;
        c->body_received += used;
    }
    if (!ok) return true; /* refused: the phase has changed */
    evbuffer_drain(in, used);
    if (c->body_left == 0) return dispatch(c);
    double taken = (double)(clock_now_us() - c->started_us) / 1e6;
    double allowed = c->server->params.body_timeout_s + (double)c->body_received / BODY_BYTES_PER_S;
    set_deadline(c, allowed > taken ? allowed - taken : 1e-6);
    return true;
}

/* ---- libevent's callbacks ---- */

static void on_read(struct bufferevent *bev, void *context) {
    conn *c = context;
    struct evbuffer *in = bufferevent_get_input(bev);
    bool more = true;
    while (more && (c->phase == CONN_HEAD || c->phase == CONN_BODY))
        more = c->phase == CONN_HEAD ? read_head(c, in) : read_body(c, in);
    if (c->phase == CONN_BUSY && evbuffer_get_length(in) > MAX_PIPELINED_BYTES)
        c->keep_alive = false; /* reading must not pause: nothing says then that the client left */
    if (c->phase != CONN_HEAD && c->phase != CONN_BODY && !c->keep_alive)
        evbuffer_drain(in, evbuffer_get_length(in));
}

/* The output has been written. */
static void on_written(struct bufferevent *bev, void *context) {
    conn *c = context;
    if (c->phase != CONN_FLUSH || evbuffer_get_length(bufferevent_get_output(bev)) > 0) return;
    if (c->end_of_input) {
        conn_destroy(c);
        return;
    }
    shutdown(bufferevent_getfd(bev), SHUT_WR);
    c->phase = CONN_LINGER;
    set_deadline(c, LINGER_S);
}

static void on_event(struct bufferevent *bev, short what, void *context) {
    conn *c = context;
    bool writing = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
    if ((what & BEV_EVENT_EOF) && writing && c->phase != CONN_BUSY && c->phase != CONN_LINGER) {
        c->end_of_input = true; /* the last answer is still on its way */
        c->phase = CONN_FLUSH;
        set_deadline(c, c->server->params.write_timeout_s);
    } else {
        conn_destroy(c);
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *context) {
    conn *c = context;
    (void)fd;
    (void)what;
    if (c->dropped)
        conn_destroy(c);
    else if (c->phase == CONN_BUSY && c->work.expired != NULL)
        c->work.expired(c->work.self);
    else if ((c->phase == CONN_HEAD && c->head_begun) || c->phase == CONN_BODY)
        refuse(c, 408, "the request did not arrive in time");
    else
        conn_destroy(c);
}

static void name_peer(conn *c, const struct sockaddr *address) {
    const void *ip =
        address->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    if (inet_ntop(address->sa_family, ip, c->peer, sizeof c->peer) == NULL) c->peer[0] = '-';
}

void conn_accept(server *s, evutil_socket_t fd, const struct sockaddr *address, int n) {
    (void)n;
    conn *c = mem_zalloc(1, sizeof *c);
    if (c == NULL) {
        evutil_closesocket(fd);
        return;
    }
    c->server = s;
    c->next = s->conns;
    if (c->next != NULL) c->next->previous = c;
    s->conns = c;
    s->n_conns++;
    name_peer(c, address);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->timer = evtimer_new(s->base, on_deadline, c);
    if (c->bev == NULL || c->timer == NULL) {
        if (c->bev == NULL) evutil_closesocket(fd);
        conn_destroy(c);
        return;
    }
    struct timeval write_timeout = {(time_t)s->params.write_timeout_s, 0};
    bufferevent_set_timeouts(c->bev, NULL, &write_timeout);
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    if (evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c) == NULL) {
        conn_destroy(c);
        return;
    }
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    c->started_us = clock_now_us();
    set_deadline(c, s->params.head_timeout_s);
    if (s->n_conns > s->params.max_connections) refuse(c, 503, "too many connections");
}
