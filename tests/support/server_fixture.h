/* tests/support/server_fixture: a whole server over loopback on a fake engine, and a client that
 * speaks raw HTTP to it. In the header, so that each test takes what it needs. */
#ifndef RIDGE_TESTS_SERVER_FIXTURE_H
#define RIDGE_TESTS_SERVER_FIXTURE_H

#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "fake_backend.h"
#include "server/server.h"

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define ENDLESS "\"ignore_eos\":true,\"max_tokens\":1900}"
#define SCRIPT "Hello, \xE4\xB8\x96\xE7\x95\x8C! \xF0\x9F\x91\x8B"

typedef struct {
    server_params params;
    server_backend table;
    fake_backend *fake;
    server *server;
    pthread_t thread;
    uint16_t port;
    ridge_status status;
    ridge_error error;
    bool loading;       /* at first */
    const char *script; /* NULL: SCRIPT */
} fixture;

static inline void *run_server(void *context) {
    fixture *f = context;
    f->status = server_run(f->server, &f->error);
    return NULL;
}

static inline void begin(fixture *f, int step_us, size_t max_live) {
    f->fake = fake_backend_create(&f->table, f->script != NULL ? f->script : SCRIPT, step_us,
                                  max_live, 2000);
    if (f->loading) fake_backend_set_state(f->fake, LOOP_LOADING);
    f->params.port = 0;
    f->params.model_id = "org/fake";
    f->params.model_root = "/fake.gguf";
    f->params.stop_fd = eventfd(0, EFD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(server_open(&f->server, &f->params, &f->table, &f->error), RIDGE_OK);
    f->port = server_port(f->server);
    assert_int_equal(pthread_create(&f->thread, NULL, run_server, f), 0);
}

static inline void ask_to_stop(fixture *f) {
    assert_int_equal(write(f->params.stop_fd, &(uint64_t){1}, 8), 8);
}

static inline void end(fixture *f) {
    pthread_join(f->thread, NULL);
    server_close(f->server);
    fake_backend_destroy(f->fake);
    close(f->params.stop_fd);
}

static inline void stop(fixture *f) {
    ask_to_stop(f);
    end(f);
    assert_int_equal(f->status, RIDGE_OK);
}

static inline int dial_with(const fixture *f, int receive_bytes) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(f->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (receive_bytes > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline int dial(const fixture *f) {
    return dial_with(f, 0);
}

/* Of what a client does not read the system takes little. */
static inline int dial_slowly(const fixture *f) {
    return dial_with(f, 4096);
}

static inline void send_text(int fd, const char *text, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the server may have closed after its refusal */
        text += sent;
        n -= (size_t)sent;
    }
}

/* Reads until `until` has come or the end of the connection; false after a minute. */
static inline bool read_until(int fd, buf *out, const char *until) {
    int64_t deadline = clock_now_us() + 60000000;
    char piece[4096];
    while (clock_now_us() < deadline) {
        if (until != NULL && out->len > 0 && strstr(out->data, until) != NULL) return true;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0) continue;
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0) return until == NULL || (out->len > 0 && strstr(out->data, until) != NULL);
        buf_append(out, piece, (size_t)n);
    }
    return false;
}

/* Sends raw bytes and returns all that comes back until the server closes. */
static inline char *exchange(const fixture *f, const char *request) {
    buf out = {0};
    int fd = dial(f);
    send_text(fd, request, strlen(request));
    assert_true(read_until(fd, &out, NULL));
    close(fd);
    buf_putc(&out, '\0');
    return buf_take(&out);
}

static inline char *http(const char *method, const char *path, const char *headers,
                         const char *body) {
    buf b = {0};
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s\r\n%s", method, path,
               strlen(body), headers, body);
    return buf_take(&b);
}

#define CLOSE "Connection: close\r\n"

static inline char *ask(const fixture *f, const char *method, const char *path, const char *body) {
    char *request = http(method, path, CLOSE, body);
    char *answer = exchange(f, request);
    mem_free(request);
    return answer;
}

static inline int status_of(const char *answer) {
    return strncmp(answer, "HTTP/1.1 ", 9) == 0 ? atoi(answer + 9) : 0;
}

static inline void check_status(const fixture *f, const char *method, const char *path,
                                const char *body, int status) {
    char *answer = ask(f, method, path, body);
    if (status_of(answer) != status) fail_msg("%s %s: %s", method, path, answer);
    mem_free(answer);
}

static inline json_t *body_json(const char *answer) {
    const char *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    json_t *root = json_loads(body + 4, 0, NULL);
    if (root == NULL) fail_msg("no JSON: %s", answer);
    return root;
}

static inline json_t *ask_json(const fixture *f, const char *path, const char *body) {
    char *answer = ask(f, body[0] == '\0' ? "GET" : "POST", path, body);
    json_t *root = body_json(answer);
    mem_free(answer);
    return root;
}

static inline const char *string_at(json_t *root, const char *a, size_t i, const char *b,
                                    const char *c) {
    json_t *v = json_array_get(json_object_get(root, a), i);
    v = json_object_get(v, b);
    return json_string_value(c != NULL ? json_object_get(v, c) : v);
}

static inline int64_t usage_of(json_t *root, const char *name) {
    return json_integer_value(json_object_get(json_object_get(root, "usage"), name));
}

/* Undoes the chunked coding of an answer's body, in place. */
static inline void unchunk(char *body) {
    char *out = body;
    for (;;) {
        char *end;
        size_t n = strtoul(body, &end, 16);
        if (n == 0) break;
        memmove(out, end + 2, n);
        out += n;
        body = end + 2 + n + 2;
    }
    *out = '\0';
}

static inline int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

static inline void wait_live(fixture *f, size_t n) {
    int64_t deadline = clock_now_us() + 10000000;
    while (fake_backend_n_live(f->fake) != n && clock_now_us() < deadline) usleep(1000);
    assert_int_equal(fake_backend_n_live(f->fake), n);
}

#endif
