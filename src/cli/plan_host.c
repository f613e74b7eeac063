/* cli/plan_host: see plan_host.h. */
#include "cli/plan_host.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/stats.h"
#include "load/load.h"
#include "server/server.h"

#define MANY 16 /* streams, against one */
#define PROMPT_TOKENS 8
#define SHORT_TOKENS 4 /* answers; what the beginning of a run takes is in both, */
#define LONG_TOKENS 20 /* so that the difference is of steps alone */
#define MIN_ROUNDS 5
#define MAX_ROUNDS 15

typedef struct {
    backend_engine *engine;
    server_backend backend;
    server *server;
    pthread_t thread;
    bool running;
    int stop_fd;
    ridge_status status; /* server_run's */
    ridge_error error;
    double late; /* part of a processor's second by which it makes the engine late */
} serving;

static void *serve(void *context) {
    serving *s = context;
    s->status = server_run(s->server, &s->error);
    return NULL;
}

static ridge_status await_model(const serving *s, ridge_error *err) {
    engine_loop_state state;
    ridge_error why = {0};
    while ((state = s->backend.state(s->backend.self, &why)) == LOOP_LOADING)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (state == LOOP_READY) return RIDGE_OK;
    if (err != NULL) *err = why;
    return why.code;
}

static ridge_status begin(serving *s, const engine_params *p, ridge_error *err) {
    server_params params = server_params_default();
    s->stop_fd = params.stop_fd = eventfd(0, EFD_CLOEXEC);
    params.port = 0;
    if (s->stop_fd < 0) return error_set_errno(err, RIDGE_EIO, "cannot make an eventfd");
    signal(SIGPIPE, SIG_IGN);
    RIDGE_TRY(backend_engine_create(&s->engine, &s->backend, p, 0, NULL, err));
    RIDGE_TRY(server_open(&s->server, &params, &s->backend, err));
    if (pthread_create(&s->thread, NULL, serve, s) != 0)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot start the server's thread");
    s->running = true;
    return await_model(s, err);
}

static void end(serving *s) {
    ssize_t ignored = s->running ? write(s->stop_fd, &(uint64_t){1}, sizeof(uint64_t)) : 0;
    (void)ignored;
    if (s->running) pthread_join(s->thread, NULL);
    server_close(s->server);
    backend_engine_destroy(s->engine);
    if (s->stop_fd >= 0) close(s->stop_fd);
}

/* Of the server's thread and the caller's, which is the client's. */
static double threads_s(const serving *s) {
    clockid_t clocks[2] = {CLOCK_THREAD_CPUTIME_ID};
    double seconds = 0;
    pthread_getcpuclockid(s->thread, &clocks[1]);
    for (int i = 0; i < 2; i++) {
        struct timespec t = {0};
        clock_gettime(clocks[i], &t);
        seconds += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return seconds;
}

/* A run: steps, and what they take beside the device. */
typedef struct {
    double n_steps, seconds;
} host_run;

static ridge_status check_answers(const load_result *r, ridge_error *err) {
    for (size_t i = 0; i < r->n; i++)
        if (r->records[i].end != LOAD_OK)
            return RIDGE_FAIL(err, RIDGE_EIO, "a request to the server that is measured: %s",
                              r->records[i].message != NULL ? r->records[i].message : "no answer");
    return RIDGE_OK;
}

static ridge_status run(const serving *s, uint32_t n_streams, uint32_t n_output, host_run *out,
                        ridge_error *err) {
    load_params p = load_params_default();
    char url[48];
    snprintf(url, sizeof url, "http://127.0.0.1:%u", server_port(s->server));
    p.url = url;
    p.wait_s = 10;      /* until the server has noticed, too, that the model is there */
    p.token_ids = true; /* as many as are asked for */
    p.vocab_size = (uint32_t)s->backend.info(s->backend.self).n_vocab;
    p.concurrency = p.traffic.n_requests = n_streams;
    p.traffic.input.a = PROMPT_TOKENS;
    p.traffic.output.a = n_output;
    load_result result = {0};
    engine_stats before, after;
    s->backend.stats(s->backend.self, &before);
    double threads = threads_s(s);
    RIDGE_TRY(load_run(&result, &p, err));
    threads = threads_s(s) - threads;
    s->backend.stats(s->backend.self, &after);
    ridge_status status = check_answers(&result, err);
    *out = (host_run){(double)(after.steps - before.steps),
                      result.seconds - (after.device_s - before.device_s) + s->late * threads};
    load_result_free(&result);
    return status;
}

/* Of one step with so many streams. */
static ridge_status measure(const serving *s, uint32_t n_streams, double *seconds,
                            ridge_error *err) {
    host_run brief, longer;
    RIDGE_TRY(run(s, n_streams, SHORT_TOKENS, &brief, err));
    RIDGE_TRY(run(s, n_streams, LONG_TOKENS, &longer, err));
    *seconds = (longer.seconds - brief.seconds) / fmax(longer.n_steps - brief.n_steps, 1);
    return RIDGE_OK;
}

static ridge_status measure_rounds(const serving *s, double enough_s, double *one, double *many,
                                   ridge_error *err) {
    double ones[MAX_ROUNDS], manys[MAX_ROUNDS];
    host_run first;
    size_t n = 0;
    RIDGE_TRY(run(s, MANY, SHORT_TOKENS, &first, err)); /* after this all pages are there */
    double start = clock_now_s();
    while (n < MIN_ROUNDS || (n < MAX_ROUNDS && clock_now_s() - start < enough_s)) {
        RIDGE_TRY(measure(s, 1, &ones[n], err));
        RIDGE_TRY(measure(s, MANY, &manys[n], err));
        n++;
    }
    sort_values(ones, n);
    sort_values(manys, n);
    *one = fmax(ones[n / 2], 0);
    *many = fmax(manys[n / 2], *one);
    return RIDGE_OK;
}

ridge_status plan_host_measure(efficiency_host *out, const engine_params *p, double enough_s,
                               ridge_error *err) {
    engine_params params = *p;
    params.max_num_seqs = MANY;
    params.max_model_len = PLAN_HOST_CONTEXT;
    params.prefix_caching = false;
    params.log = NULL;
    bool all = params.n_threads >= cpus_usable();
    serving s = {.stop_fd = -1, .late = all ? 1.0 / params.n_threads : 0};
    double one = 0, many = 0;
    ridge_status status = begin(&s, &params, err);
    if (status == RIDGE_OK) status = measure_rounds(&s, enough_s, &one, &many, err);
    end(&s);
    if (status != RIDGE_OK) return status;
    if (s.status != RIDGE_OK) {
        if (err != NULL) *err = s.error;
        return s.status;
    }
    out->token_s = (many - one) / (MANY - 1);
    out->step_s = fmax(one - out->token_s, 0);
    return RIDGE_OK;
}
