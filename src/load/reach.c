/* load/reach: see reach.h. */
#include "load/reach.h"

#include <errno.h>
#include <event2/buffer.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "load/answer.h"

#define CONNECT_TIMEOUT_MS 10000
#define LISTING_TIMEOUT_S 30
#define MAX_LISTING_BYTES ((size_t)16 << 20)
#define MAX_HEAD_BYTES (64 * 1024)
#define MAX_BODY_BYTES ((ev_ssize_t)1 << 30) /* of a whole stream */
#define RETRY_NS 100000000L

/* 0, or errno's value. */
static int try_address(const struct addrinfo *a) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) return errno;
    int failed = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t size = sizeof failed;
        int n = poll(&p, 1, CONNECT_TIMEOUT_MS);
        if (n < 0)
            failed = errno;
        else if (n == 0)
            failed = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0)
            failed = errno;
    }
    close(fd);
    return failed;
}

/* The first of the host's addresses that accepts a connection (closed again), as a number. */
static ridge_status find_address(const load_url *u, char *address, size_t size, ridge_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", u->port);
    int rc = getaddrinfo(u->host, port, &hints, &list);
    if (rc != 0)
        return RIDGE_FAIL(err, RIDGE_EIO, "cannot find '%s': %s", u->host, gai_strerror(rc));
    int failed = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a != NULL && failed != 0; a = a->ai_next) {
        failed = try_address(a);
        if (failed == 0 && getnameinfo(a->ai_addr, a->ai_addrlen, address, (socklen_t)size, NULL, 0,
                                       NI_NUMERICHOST) != 0)
            failed = EINVAL;
    }
    freeaddrinfo(list);
    errno = failed;
    if (failed != 0)
        return error_set_errno(err, RIDGE_EIO, "cannot connect to %s port %u", u->host, u->port);
    return RIDGE_OK;
}

/* ---- what connections and requests have in common ---- */

struct evhttp_connection *server_connection(const load_server *s, struct event_base *base,
                                            double timeout_s) {
    struct evhttp_connection *connection =
        evhttp_connection_base_new(base, NULL, s->address, s->url.port);
    if (connection == NULL) return NULL;
    struct timeval timeout = {(time_t)timeout_s, 0};
    evhttp_connection_set_timeout_tv(connection, &timeout);
    evhttp_connection_set_max_headers_size(connection, MAX_HEAD_BYTES);
    evhttp_connection_set_max_body_size(connection, MAX_BODY_BYTES);
    return connection;
}

bool server_add_headers(const load_server *s, const char *api_key, struct evhttp_request *request) {
    struct evkeyvalq *head = evhttp_request_get_output_headers(request);
    buf key = {0};
    bool ok = evhttp_add_header(head, "Host", s->url.authority) == 0;
    if (api_key != NULL) {
        buf_printf(&key, "Bearer %s", api_key);
        ok = ok && !key.failed && evhttp_add_header(head, "Authorization", key.data) == 0;
    }
    buf_free(&key);
    return ok;
}

/* ---- its models ---- */

typedef struct {
    int status; /* 0: no answer */
    buf body;
    bool over;
} listing;

static void on_listing(struct evhttp_request *request, void *context) {
    listing *got = context;
    got->over = true;
    got->status = request != NULL ? evhttp_request_get_response_code(request) : 0;
    if (got->status == 0) return;
    struct evbuffer *in = evhttp_request_get_input_buffer(request);
    size_t n = evbuffer_get_length(in);
    if (n > 0) buf_append(&got->body, evbuffer_pullup(in, -1), n);
}

static bool ask(const load_server *s, struct event_base *base, const load_params *p,
                struct evhttp_connection *connection, listing *got) {
    struct evhttp_request *request = evhttp_request_new(on_listing, got);
    buf path = {0};
    buf_printf(&path, "%s/v1/models", s->url.prefix);
    bool ok = request != NULL && !path.failed && server_add_headers(s, p->api_key, request);
    if (ok)
        ok = evhttp_make_request(connection, request, EVHTTP_REQ_GET, path.data) == 0;
    else if (request != NULL)
        evhttp_request_free(request);
    buf_free(&path);
    while (ok && !got->over) event_base_loop(base, EVLOOP_ONCE);
    return ok;
}

static ridge_status get_listing(const load_server *s, struct event_base *base, const load_params *p,
                                listing *got, ridge_error *err) {
    struct evhttp_connection *connection = server_connection(s, base, LISTING_TIMEOUT_S);
    bool ok = connection != NULL && ask(s, base, p, connection, got);
    if (connection != NULL) evhttp_connection_free(connection);
    return ok ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_EIO, "cannot ask for the server's models");
}

static ridge_status use_listing(load_server *s, const load_params *p, const listing *got,
                                ridge_error *err) {
    const char *host = s->url.authority, *prefix = s->url.prefix;
    if (got->status == 0) return RIDGE_FAIL(err, RIDGE_EIO, "%s: no answer in HTTP", p->url);
    if (got->status == 503 || (got->status != 200 && p->model == NULL)) {
        char *why = answer_error_message(got->body.data, got->body.len);
        RIDGE_FAIL(err, RIDGE_EIO, "http://%s%s/v1/models: HTTP %d%s%s%s", host, prefix,
                   got->status, why != NULL ? ": " : "", why != NULL ? why : "",
                   got->status == 503 ? "" : " (is the URL right? else name the --model)");
        mem_free(why);
        return RIDGE_EIO;
    }
    s->model =
        p->model != NULL ? mem_strdup(p->model) : answer_first_model(got->body.data, got->body.len);
    if (s->model != NULL) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EIO, "http://%s%s/v1/models names no model: name one (--model)",
                      host, prefix);
}

/* ---- both ---- */

static ridge_status try_once(load_server *s, struct event_base *base, const load_params *p,
                             ridge_error *err) {
    listing got = {.body.limit = MAX_LISTING_BYTES};
    RIDGE_TRY(find_address(&s->url, s->address, sizeof s->address, err));
    ridge_status status = get_listing(s, base, p, &got, err);
    if (status == RIDGE_OK) status = use_listing(s, p, &got, err);
    buf_free(&got.body);
    return status;
}

ridge_status server_reach(load_server *out, struct event_base *base, const load_params *p,
                          ridge_error *err) {
    int64_t until = clock_now_us() + (int64_t)(p->wait_s * 1e6);
    *out = (load_server){0};
    RIDGE_TRY(url_parse(&out->url, p->url, err));
    for (;;) {
        ridge_error why = {0};
        ridge_status status = try_once(out, base, p, &why);
        if (status == RIDGE_OK) return RIDGE_OK;
        if (clock_now_us() >= until) return RIDGE_FAIL(err, status, "%s", why.text);
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
}

void server_forget(load_server *s) {
    url_free(&s->url);
    mem_free(s->model);
    *s = (load_server){0};
}
