/* load/client: see client.h. */
#include "load/client.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "load/answer.h"
#include "load/reach.h"
#include "load/sse.h"

#define MAX_PLAIN_BYTES ((size_t)64 << 20)
#define NO_TIMEOUT_S 1e8
#define WIND_UP_S 1 /* for the end of HTTP's message once the answer's own end has come */

/* A connection and what goes over it now. */
typedef struct lane {
    client *client;
    struct evhttp_connection *connection;
    struct event *deadline;
    struct lane *next_free;
    load_record *record;            /* NULL: idle */
    struct evhttp_request *request; /* libevent's; kept to cancel it */
    buf body;                       /* what was sent */
    bool reused;                    /* it has answered before: the server may just have closed it */
    bool answered;                  /* a head has come */
    bool streams;                   /* the answer is a stream of events */
    bool judged;                    /* how it ended is in the record; the rest is not looked at */
    int http_error;                 /* evhttp's word for what went wrong; -1: none */
    int64_t read_us;                /* when the bytes at hand were read */
    buf plain;                      /* an answer that is no stream */
    sse_parser sse;
    XXH64_state_t *hash;
} lane;

struct client {
    struct event_base *base;
    const load_params *params;
    client_done_fn done;
    void *context;
    load_server server;
    char *path, *shown_url;
    lane **lanes; /* [n] */
    size_t n, capacity, n_busy;
    lane *free;
    int64_t start_us;
};

static int64_t now_us(const client *c) {
    return clock_now_us() - c->start_us;
}

static struct timeval seconds(double s) {
    return (struct timeval){(time_t)s, (suseconds_t)((s - (double)(time_t)s) * 1e6)};
}

/* ---- the end of a request ---- */

static void set_deadline(lane *l, double s) {
    struct timeval tv = seconds(s);
    if (s > 0)
        evtimer_add(l->deadline, &tv);
    else
        evtimer_del(l->deadline);
}

/* The first verdict stands. Message: owned by the record from now on. */
static void judge(lane *l, load_end end, char *message) {
    if (l->judged) {
        mem_free(message);
        return;
    }
    l->judged = true;
    l->record->end = end;
    l->record->end_us = l->read_us;
    l->record->message = message;
    set_deadline(l, WIND_UP_S);
}

/* What the server sent may be quoted in it. */
static void judge_error(lane *l, load_end end, const ridge_error *err) {
    char *message = mem_strdup(err->text);
    if (message != NULL) utf8_make_printable(message);
    judge(l, end, message);
}

/* Gives the record back; the lane is free. */
static void finish(lane *l) {
    client *c = l->client;
    load_record *r = l->record;
    r->text_hash = XXH64_digest(l->hash);
    evtimer_del(l->deadline);
    sse_free(&l->sse);
    l->sse = (sse_parser){0};
    buf_clear(&l->plain);
    l->record = NULL;
    l->request = NULL;
    l->next_free = c->free;
    c->free = l;
    c->n_busy--;
    c->done(c->context, r);
}

/* Ends it from here: the connection is closed with it. */
static void abandon(lane *l, load_end end, const char *why) {
    struct evhttp_request *request = l->request;
    l->read_us = now_us(l->client);
    judge(l, end, why != NULL ? mem_strdup(why) : NULL);
    l->reused = false;
    l->request = NULL;
    evhttp_cancel_request(request);
    finish(l);
}

static void on_deadline(evutil_socket_t fd, short what, void *context) {
    (void)fd;
    (void)what;
    abandon(context, LOAD_TIMEOUT, NULL);
}

/* ---- what comes back ---- */

static void note_text(lane *l) {
    load_record *r = l->record;
    if (r->n_texts == 0) {
        r->first_us = l->read_us;
    } else {
        if (!mem_grow((void **)&r->gaps_us, &r->gaps_capacity, r->n_texts, sizeof *r->gaps_us)) {
            judge(l, LOAD_PROTOCOL, mem_strdup("out of memory in the load generator"));
            return;
        }
        r->gaps_us[r->n_texts - 1] = (uint32_t)(l->read_us - r->last_us);
    }
    r->last_us = l->read_us;
    r->n_texts++;
}

static void take_document(lane *l, const char *data, size_t n) {
    ridge_error err = {0};
    bool has_text = false;
    load_record *r = l->record;
    ridge_status status = answer_take(r, l->hash, data, n, &has_text, &err);
    if (status != RIDGE_OK)
        judge_error(l, status == RIDGE_EIO ? LOAD_STREAM_ERROR : LOAD_PROTOCOL, &err);
    else if (has_text && l->streams)
        note_text(l);
}

static void on_event(void *context, const char *type, const char *data, size_t n) {
    lane *l = context;
    if (l->judged) return;
    if (strcmp(data, "[DONE]") == 0)
        judge(l, LOAD_OK, NULL);
    else if (strcmp(type, "error") == 0)
        judge(l, LOAD_STREAM_ERROR, answer_error_message(data, n));
    else
        take_document(l, data, n);
}

/* Of answers that only announce another, evhttp knows 100 (and calls this again): after one of the
 * others the connection ends, or its real answer would be taken for the next request's. */
static int on_head(struct evhttp_request *request, void *context) {
    lane *l = context;
    const char *type =
        evhttp_find_header(evhttp_request_get_input_headers(request), "Content-Type");
    int one = 1, fd = (int)bufferevent_getfd(evhttp_connection_get_bufferevent(l->connection));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* for the requests to come */
    l->answered = true;
    l->record->http_status = evhttp_request_get_response_code(request);
    l->streams = l->client->params->stream && l->record->http_status == 200 &&
                 (type == NULL || strncasecmp(type, "application/json", 16) != 0);
    if (l->record->http_status <= 100 || l->record->http_status >= 200) return 0;
    l->read_us = now_us(l->client);
    judge(l, LOAD_HTTP, mem_strdup("an answer that announces another"));
    return -1;
}

/* Called with what one read brought, or with the chunks of it one after another. */
static void on_bytes(struct evhttp_request *request, void *context) {
    lane *l = context;
    struct evbuffer *in = evhttp_request_get_input_buffer(request);
    size_t n = evbuffer_get_length(in);
    const char *bytes = (const char *)evbuffer_pullup(in, -1);
    ridge_error err = {0};
    if (n == 0 || bytes == NULL || l->judged) return;
    l->read_us = now_us(l->client);
    if (!l->streams)
        buf_append(&l->plain, bytes, n);
    else if (sse_feed(&l->sse, bytes, n, on_event, l, &err) != RIDGE_OK)
        judge_error(l, LOAD_PROTOCOL, &err);
}

static void judge_stream(lane *l) {
    ridge_error err = {0};
    if (l->judged) return;
    if (sse_end(&l->sse, on_event, l, &err) != RIDGE_OK) judge_error(l, LOAD_PROTOCOL, &err);
    if (l->record->finish_reason[0] != '\0')
        judge(l, LOAD_OK, NULL);
    else
        judge(l, LOAD_INCOMPLETE, mem_strdup("the stream ended without [DONE] or finish_reason"));
}

static void judge_plain(lane *l) {
    if (l->client->params->stream)
        judge(l, LOAD_PROTOCOL, mem_strdup("asked for a stream, got application/json"));
    else if (l->plain.failed)
        judge(l, LOAD_PROTOCOL, mem_strdup("the answer is too long"));
    else
        take_document(l, l->plain.data != NULL ? l->plain.data : "", l->plain.len);
    if (l->record->finish_reason[0] != '\0')
        judge(l, LOAD_OK, NULL);
    else
        judge(l, LOAD_INCOMPLETE, mem_strdup("an answer without finish_reason"));
}

/* ---- sending ---- */

static void on_http_error(enum evhttp_request_error error, void *context) {
    ((lane *)context)->http_error = (int)error;
}

static void on_complete(struct evhttp_request *request, void *context);

static ridge_status send_body(lane *l, ridge_error *err) {
    const client *c = l->client;
    struct evhttp_request *request = evhttp_request_new(on_complete, l);
    if (request == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a request");
    struct evkeyvalq *head = evhttp_request_get_output_headers(request);
    evhttp_request_set_header_cb(request, on_head);
    evhttp_request_set_chunked_cb(request, on_bytes);
    evhttp_request_set_error_cb(request, on_http_error);
    l->answered = l->streams = l->judged = false;
    l->http_error = -1;
    if (!server_add_headers(&c->server, c->params->api_key, request) ||
        evhttp_add_header(head, "Content-Type", "application/json") != 0 ||
        evhttp_add_header(head, "Accept", c->params->stream ? "text/event-stream" : "*/*") != 0 ||
        evbuffer_add(evhttp_request_get_output_buffer(request), l->body.data, l->body.len) != 0) {
        evhttp_request_free(request);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "a request");
    }
    if (evhttp_make_request(l->connection, request, EVHTTP_REQ_POST, c->path) != 0)
        return error_set_errno(err, RIDGE_EIO, "cannot connect");
    l->request = request;
    return RIDGE_OK;
}

/* The server closed a connection that it had kept, just as it was used again: no fault of either.
 */
static bool sent_again(lane *l) {
    bool stale = l->reused && !l->answered && !l->judged && l->http_error == EVREQ_HTTP_EOF;
    l->reused = false;
    return stale && send_body(l, NULL) == RIDGE_OK;
}

static void judge_failure(lane *l) {
    switch (l->http_error) {
    case -1: judge(l, LOAD_CONNECT, mem_strdup("no connection")); break;
    case EVREQ_HTTP_TIMEOUT: judge(l, LOAD_TIMEOUT, NULL); break;
    case EVREQ_HTTP_EOF:
    case EVREQ_HTTP_BUFFER_ERROR:
        judge(l, LOAD_DROPPED, mem_strdup("the connection ended before the answer did"));
        break;
    default: judge(l, LOAD_PROTOCOL, mem_strdup("not HTTP as it should be")); break;
    }
}

/* request: NULL or without a status where there was no answer. libevent frees it. */
static void on_complete(struct evhttp_request *request, void *context) {
    lane *l = context;
    int status = request != NULL ? evhttp_request_get_response_code(request) : 0;
    l->request = NULL;
    if (status == 0 && sent_again(l)) return;
    if (!l->judged) l->read_us = now_us(l->client);
    if (status == 0)
        judge_failure(l);
    else if (status != 200)
        judge(l, LOAD_HTTP, answer_error_message(l->plain.data, l->plain.len));
    else if (l->streams)
        judge_stream(l);
    else
        judge_plain(l);
    l->reused = status != 0;
    finish(l);
}

/* ---- lanes ---- */

static void lane_free(lane *l) {
    if (l == NULL) return;
    if (l->connection != NULL) evhttp_connection_free(l->connection);
    if (l->deadline != NULL) event_free(l->deadline);
    if (l->hash != NULL) XXH64_freeState(l->hash);
    sse_free(&l->sse);
    buf_free(&l->plain);
    buf_free(&l->body);
    mem_free(l);
}

static lane *lane_new(client *c) {
    if (!mem_grow((void **)&c->lanes, &c->capacity, c->n + 1, sizeof *c->lanes)) return NULL;
    lane *l = mem_zalloc(1, sizeof *l);
    if (l == NULL) return NULL;
    l->client = c;
    l->plain.limit = MAX_PLAIN_BYTES;
    l->hash = XXH64_createState();
    l->deadline = evtimer_new(c->base, on_deadline, l);
    l->connection = server_connection(&c->server, c->base, NO_TIMEOUT_S);
    if (l->hash == NULL || l->deadline == NULL || l->connection == NULL) {
        lane_free(l);
        return NULL;
    }
    c->lanes[c->n++] = l;
    return l;
}

bool client_has_room(const client *c) {
    return c->n_busy < c->params->max_connections;
}

ridge_status client_send(client *c, load_record *r, const buf *body, ridge_error *err) {
    lane *l = c->free;
    if (l != NULL)
        c->free = l->next_free;
    else
        l = lane_new(c);
    if (l == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a connection");
    XXH64_reset(l->hash, 0);
    buf_clear(&l->body);
    buf_append(&l->body, body->data, body->len);
    r->sent_us = l->read_us = now_us(c);
    l->record = r;
    ridge_status status =
        l->body.failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "a body") : send_body(l, err);
    if (status != RIDGE_OK) {
        l->record = NULL;
        l->next_free = c->free;
        c->free = l;
        return status;
    }
    set_deadline(l, c->params->timeout_s);
    c->n_busy++;
    return RIDGE_OK;
}

void client_end_all(client *c, load_end end) {
    for (size_t i = 0; i < c->n; i++)
        if (c->lanes[i]->record != NULL) abandon(c->lanes[i], end, NULL);
}

static char *concat(const char *a, const char *b, const char *c) {
    buf out = {0};
    buf_printf(&out, "%s%s%s", a, b, c);
    return buf_take(&out);
}

ridge_status client_open(client **out, struct event_base *base, const load_params *p,
                         client_done_fn done, void *context, ridge_error *err) {
    client *c = mem_zalloc(1, sizeof *c);
    if (c == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the client");
    c->base = base;
    c->params = p;
    c->done = done;
    c->context = context;
    ridge_status status = server_reach(&c->server, base, p, err);
    if (status == RIDGE_OK) {
        const load_url *url = &c->server.url;
        c->path = concat(url->prefix, p->chat ? "/v1/chat/completions" : "/v1/completions", "");
        c->shown_url = c->path != NULL ? concat("http://", url->authority, c->path) : NULL;
        if (c->shown_url == NULL) status = RIDGE_FAIL(err, RIDGE_ENOMEM, "the client");
    }
    if (status == RIDGE_OK)
        *out = c;
    else
        client_close(c);
    return status;
}

void client_close(client *c) {
    if (c == NULL) return;
    for (size_t i = 0; i < c->n; i++) lane_free(c->lanes[i]);
    mem_free(c->lanes);
    mem_free(c->path);
    mem_free(c->shown_url);
    server_forget(&c->server);
    mem_free(c);
}

const char *client_model(const client *c) {
    return c->server.model;
}

const char *client_url(const client *c) {
    return c->shown_url;
}

void client_start(client *c, int64_t start_us) {
    c->start_us = start_us;
}
