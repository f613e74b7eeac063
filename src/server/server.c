/* server: see server.h. This file: the loop, the listener, starting and stopping. */
#include "server/server.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/server_internal.h"

#define ACCEPT_PAUSE_US 100000 /* when the process has no file descriptor left */
#define DRAIN_TICK_US 20000
#define CANCEL_GRACE_S 5.0 /* for the last events and answers once the drain time is over */

server_params server_params_default(void) {
    return (server_params){
        .host = "127.0.0.1",
        .port = 8080,
        .model_id = "model",
        .model_root = "model",
        .stop_fd = -1,
        .max_connections = 4096,
        .max_head_bytes = 32 * 1024,
        .max_body_bytes = 64u << 20,
        .max_pending_bytes = 256u << 20,
        .max_answer_bytes = 256u << 20,
        .head_timeout_s = 30,
        .body_timeout_s = 60,
        .idle_timeout_s = 120,
        .write_timeout_s = 60,
        .request_timeout_s = 3600,
        .shutdown_timeout_s = 30,
        .watchdog_s = 120,
        .n_workers = 2,
    };
}

/* ---- the listener ---- */

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *address, int n,
                      void *context) {
    (void)l;
    conn_accept(context, fd, address, n);
}

static void resume_accepting(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    (void)fd;
    (void)what;
    evconnlistener_enable(s->listener);
}

/* Without descriptors accept would fail at once, again and again. */
static void on_accept_error(struct evconnlistener *l, void *context) {
    server *s = context;
    struct timeval pause = {0, ACCEPT_PAUSE_US};
    log_printf(s->params.log, LOG_WARN, "cannot accept a connection: %s", strerror(errno));
    evconnlistener_disable(l);
    event_base_once(s->base, -1, EV_TIMEOUT, resume_accepting, s, &pause);
}

static ridge_status listen_on(server *s, ridge_error *err) {
    const server_params *p = &s->params;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", p->port);
    int rc = getaddrinfo(p->host, port, &hints, &list);
    if (rc != 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "cannot listen on '%s': %s", p->host,
                          gai_strerror(rc));
    for (struct addrinfo *a = list; a != NULL && s->listener == NULL; a = a->ai_next)
        s->listener = evconnlistener_new_bind(s->base, on_accept, s,
                                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE |
                                                  LEV_OPT_CLOSE_ON_EXEC,
                                              1024, a->ai_addr, (int)a->ai_addrlen);
    freeaddrinfo(list);
    if (s->listener == NULL)
        return error_set_errno(err, RIDGE_EIO, "cannot listen on %s port %u", p->host, p->port);
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    return RIDGE_OK;
}

uint16_t server_port(const server *s) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    if (getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&address, &n) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)(void *)&address)->sin6_port
                     : ((struct sockaddr_in *)(void *)&address)->sin_port);
}

/* ---- stopping ---- */

static bool is_answering(const server *s) {
    for (const conn *c = s->conns; c != NULL; c = c->next) {
        if (c->phase == CONN_BUSY || c->phase == CONN_BODY) return true;
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0) return true;
    }
    return s->n_works > 0 || !s->backend.is_idle(s->backend.self);
}

static void on_drain_tick(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    int64_t now = clock_now_us();
    (void)fd;
    (void)what;
    if (!is_answering(s)) {
        event_base_loopbreak(s->base);
    } else if (now >= s->drain_deadline_us && !s->cancelled) {
        s->cancelled = true;
        s->drain_deadline_us = now + (int64_t)(CANCEL_GRACE_S * 1e6);
        s->backend.cancel_all(s->backend.self);
    } else if (now >= s->drain_deadline_us) {
        event_base_loopbreak(s->base);
    }
}

/* New connections are still taken, to be told 503: a refused connection says less. */
static void begin_drain(server *s) {
    struct timeval tick = {0, DRAIN_TICK_US};
    s->draining = true;
    s->drain_deadline_us = clock_now_us() + (int64_t)(s->params.shutdown_timeout_s * 1e6);
    s->backend.drain(s->backend.self);
    log_printf(s->params.log, LOG_INFO, "stopping: what runs is finished, for at most %g s",
               s->params.shutdown_timeout_s);
    event_add(s->drain_event, &tick);
}

static void on_stop(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    char notice[128]; /* one signalfd_siginfo, or whatever the owner writes */
    (void)what;
    ssize_t n = read(fd, notice, sizeof notice);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) event_del(s->stop_event); /* its writer has gone: once is enough */
    if (s->draining)
        event_base_loopbreak(s->base);
    else
        begin_drain(s);
}

/* ---- the backend and the pool ---- */

engine_loop_state server_state(server *s, ridge_error *err) {
    engine_loop_state state = s->backend.state(s->backend.self, err);
    if (state == LOOP_READY && !s->ready) {
        backend_info info = s->backend.info(s->backend.self);
        log_printf(s->params.log, LOG_INFO, "the model is ready");
        metrics_model_is_ready(&s->metrics, info.max_model_len, &info.cache, info.peak_bytes_per_s,
                               info.peak_flops_per_s);
        if (s->record != NULL) record_begin(s->record, clock_now_s());
        s->ready = true;
    }
    return state;
}

static void on_backend(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    (void)fd;
    (void)what;
    if (s->failure.code == RIDGE_OK && server_state(s, &s->failure) == LOOP_FAILED)
        event_base_loopbreak(s->base);
    s->backend.take(s->backend.self, generation_on_event, s);
}

static void on_record(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    (void)fd;
    (void)what;
    record_flush(s->record);
    if (!record_is_flushed(s->record)) server_flush_soon(s);
}

void server_flush_soon(server *s) {
    struct timeval second = {1, 0};
    if (!event_pending(s->record_event, EV_TIMEOUT, NULL)) event_add(s->record_event, &second);
}

static void on_pool(evutil_socket_t fd, short what, void *context) {
    server *s = context;
    (void)fd;
    (void)what;
    pool_take(s->pool);
}

/* ---- life ---- */

static void no_log(int severity, const char *message) {
    (void)severity;
    (void)message;
}

ridge_status server_open(server **out, const server_params *params, const server_backend *backend,
                         ridge_error *err) {
    server *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "server");
    s->params = *params;
    s->backend = *backend;
    s->names = (api_names){params->model_id, params->model_root};
    s->created = (int64_t)time(NULL);
    event_set_log_callback(no_log); /* libevent must not write to stderr by itself */
    s->base = event_base_new();
    ridge_status status =
        s->base != NULL ? listen_on(s, err) : RIDGE_FAIL(err, RIDGE_ENOMEM, "event loop");
    if (status == RIDGE_OK) status = pool_create(&s->pool, params->n_workers, err);
    if (status == RIDGE_OK)
        status = metrics_init(&s->metrics, params->model_id, params->legacy_metric_names, err);
    if (status == RIDGE_OK && params->record_path != NULL)
        status = record_open(&s->record, params->record_path, params->log, err);
    if (status == RIDGE_OK) {
        short flags = EV_READ | EV_PERSIST;
        s->backend_event = event_new(s->base, s->backend.fd(s->backend.self), flags, on_backend, s);
        s->pool_event = event_new(s->base, pool_fd(s->pool), flags, on_pool, s);
        s->drain_event = event_new(s->base, -1, EV_PERSIST, on_drain_tick, s);
        s->record_event = evtimer_new(s->base, on_record, s);
        if (params->stop_fd >= 0)
            s->stop_event = event_new(s->base, params->stop_fd, flags, on_stop, s);
        if (s->backend_event == NULL || s->pool_event == NULL || s->drain_event == NULL ||
            s->record_event == NULL || (params->stop_fd >= 0 && s->stop_event == NULL))
            status = RIDGE_FAIL(err, RIDGE_ENOMEM, "event loop");
    }
    if (status != RIDGE_OK) {
        server_close(s);
        return status;
    }
    *out = s;
    return RIDGE_OK;
}

ridge_status server_run(server *s, ridge_error *err) {
    event_add(s->backend_event, NULL);
    event_add(s->pool_event, NULL);
    if (s->stop_event != NULL) event_add(s->stop_event, NULL);
    if (event_base_dispatch(s->base) < 0)
        return RIDGE_FAIL(err, RIDGE_EIO, "the event loop failed");
    if (s->failure.code == RIDGE_OK) return RIDGE_OK;
    if (err != NULL) *err = s->failure;
    return s->failure.code;
}

/* Orphaned works are told that nothing more will come: their last events are taken here. */
static void settle(server *s) {
    pool_destroy(s->pool);
    s->backend.cancel_all(s->backend.self);
    int64_t deadline = clock_now_us() + (int64_t)(CANCEL_GRACE_S * 1e6);
    while (s->n_works > 0 && clock_now_us() < deadline) {
        if (s->backend.take(s->backend.self, generation_on_event, s) > 0) continue;
        if (s->backend.state(s->backend.self, NULL) != LOOP_READY) break;
        usleep(1000);
    }
}

void server_close(server *s) {
    if (s == NULL) return;
    while (s->conns != NULL) conn_destroy(s->conns);
    settle(s);
    if (s->backend_event != NULL) event_free(s->backend_event);
    if (s->pool_event != NULL) event_free(s->pool_event);
    if (s->stop_event != NULL) event_free(s->stop_event);
    if (s->drain_event != NULL) event_free(s->drain_event);
    if (s->record_event != NULL) event_free(s->record_event);
    if (s->listener != NULL) evconnlistener_free(s->listener);
    if (s->base != NULL) event_base_free(s->base);
    metrics_deinit(&s->metrics);
    record_close(s->record);
    mem_free(s);
}
