/* load/run: the runner: sends what is due, gathers what ends. See load.h. */
#include <errno.h>
#include <event2/event.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "load/client.h"
#include "load/plan.h"

typedef struct {
    const load_params *params;
    struct event_base *base;
    struct event *pump, *stop;
    client *client;
    load_plan plan;
    load_result *result;
    int64_t start_us;
    size_t next, n_running; /* plan.requests[next] is the next to be sent */
    buf body;               /* its body, written while there is time */
    int64_t *free_us;       /* closed loop: since when places are free, [n_free], oldest first */
    size_t n_free;
    bool stopping;
    bool failed; /* out of memory for a body */
} runner;

load_params load_params_default(void) {
    return (load_params){
        .stream = true,
        .traffic = {.arrivals = TRAFFIC_AT_ONCE,
                    .rate = 1,
                    .trace_speed = 1,
                    .n_requests = 100,
                    .input = {LENGTH_FIXED, 128, 0},
                    .output = {LENGTH_FIXED, 128, 0},
                    .n_prefixes = 1},
        .concurrency = 1,
        .ignore_eos = true,
        .max_connections = 4096,
        .timeout_s = 600,
        .stop_fd = -1,
    };
}

static bool is_closed(const load_params *p) {
    return p->traffic.arrivals == TRAFFIC_AT_ONCE;
}

static void prepare_body(runner *r) {
    buf_clear(&r->body);
    if (r->next < r->plan.n)
        load_body_write(&r->body, r->params, client_model(r->client), &r->plan, r->next);
}

static bool is_over(const runner *r) {
    return r->next == r->plan.n || r->stopping || r->failed;
}

/* In a closed loop a request is due when a place is free, and has been since then. */
static bool is_due(const runner *r, int64_t now_us) {
    if (is_over(r)) return false;
    if (is_closed(r->params)) return r->n_free > 0;
    return r->plan.requests[r->next].due_us <= now_us;
}

static int64_t take_place(runner *r) {
    int64_t since = r->free_us[0];
    memmove(r->free_us, r->free_us + 1, --r->n_free * sizeof *r->free_us);
    return since;
}

static void give_place(runner *r, int64_t now_us) {
    if (is_closed(r->params)) r->free_us[r->n_free++] = now_us;
}

static void send_next(runner *r, int64_t now_us) {
    const planned_request *planned = &r->plan.requests[r->next];
    load_record *record = &r->result->records[r->result->n++];
    ridge_error err = {0};
    *record = (load_record){
        .n_input = planned->n_input + r->params->traffic.prefix_tokens,
        .n_output = planned->n_output,
        .due_us = is_closed(r->params) ? take_place(r) : planned->due_us,
        .prompt_tokens = -1,
        .cached_tokens = -1,
        .output_tokens = -1,
    };
    r->next++;
    r->failed = r->failed || r->body.failed;
    if (r->failed || client_send(r->client, record, &r->body, &err) != RIDGE_OK) {
        record->end = LOAD_CONNECT;
        record->sent_us = record->end_us = now_us;
        record->message = mem_strdup(err.text);
        give_place(r, now_us);
    } else {
        r->n_running++;
    }
    prepare_body(r);
}

static void pump(runner *r) {
    int64_t now = clock_now_us() - r->start_us;
    while (is_due(r, now) && client_has_room(r->client)) {
        send_next(r, now);
        now = clock_now_us() - r->start_us;
    }
    if (is_over(r) && r->n_running == 0) event_base_loopbreak(r->base);
    /* Where the next has to wait for one to end, on_done leads here again. */
    if (is_over(r) || is_closed(r->params) || !client_has_room(r->client)) return;
    int64_t wait = r->plan.requests[r->next].due_us - now;
    struct timeval tv = {wait / 1000000, wait % 1000000};
    evtimer_add(r->pump, &tv);
}

static void on_pump(evutil_socket_t fd, short what, void *context) {
    (void)fd;
    (void)what;
    pump(context);
}

/* Not pump itself: it would send from within the client's own callbacks. */
static void on_done(void *context, load_record *record) {
    runner *r = context;
    (void)record;
    r->n_running--;
    give_place(r, clock_now_us() - r->start_us);
    log_progress(r->params->log, "measuring", (double)r->next / (double)(r->plan.n + 1));
    event_active(r->pump, EV_TIMEOUT, 0);
}

static void on_stop(evutil_socket_t fd, short what, void *context) {
    runner *r = context;
    (void)fd;
    (void)what;
    r->stopping = r->result->interrupted = true;
    client_end_all(r->client, LOAD_INTERRUPTED);
    event_active(r->pump, EV_TIMEOUT, 0);
}

/* ---- starting and ending ---- */

static ridge_status check_extra(const char *text, ridge_error *err) {
    json_error_t e;
    if (text == NULL) return RIDGE_OK;
    json_t *object = json_loads(text, 0, &e);
    bool ok = json_is_object(object);
    json_decref(object);
    return ok ? RIDGE_OK
              : RIDGE_FAIL(err, RIDGE_EINVAL, "--extra-body: expected a JSON object, found '%.80s'",
                           text);
}

static ridge_status check(const load_params *p, ridge_error *err) {
    RIDGE_TRY(traffic_check(&p->traffic, err));
    if (is_closed(p) && (p->concurrency < 1 || p->concurrency > p->max_connections))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%zu requests at a time over %zu connection%s",
                          p->concurrency, p->max_connections, plural(p->max_connections));
    if (p->max_connections < 1)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "at least one connection is needed");
    if (p->token_ids && (p->chat || p->vocab_size < 4 || p->vocab_size > 1u << 30))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "token ids need /v1/completions and the size of the vocabulary");
    if (!(p->timeout_s >= 0 && p->timeout_s <= 1e8) || !(p->wait_s >= 0 && p->wait_s <= 1e8))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "a time of %g or %g s is out of range", p->timeout_s,
                          p->wait_s);
    return check_extra(p->extra_body, err);
}

static ridge_status open_base(runner *r, ridge_error *err) {
    struct event_config *config = event_config_new();
    /* Arrivals to the microsecond, not to the millisecond of epoll. */
    if (config != NULL) event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    r->base = config != NULL ? event_base_new_with_config(config) : NULL;
    if (config != NULL) event_config_free(config);
    r->pump = r->base != NULL ? evtimer_new(r->base, on_pump, r) : NULL;
    if (r->pump != NULL && r->params->stop_fd >= 0)
        r->stop = event_new(r->base, r->params->stop_fd, EV_READ, on_stop, r);
    if (r->pump == NULL || (r->params->stop_fd >= 0 && r->stop == NULL))
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the event loop");
    return RIDGE_OK;
}

static ridge_status open_all(runner *r, ridge_error *err) {
    RIDGE_TRY(check(r->params, err));
    RIDGE_TRY(load_plan_make(&r->plan, r->params, err));
    r->result->records = mem_zalloc(r->plan.n, sizeof *r->result->records);
    r->n_free = is_closed(r->params) ? r->params->concurrency : 0;
    r->free_us = mem_zalloc(r->n_free + 1, sizeof *r->free_us);
    if (r->result->records == NULL || r->free_us == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the records");
    RIDGE_TRY(open_base(r, err));
    RIDGE_TRY(client_open(&r->client, r->base, r->params, on_done, r, err));
    r->result->model = mem_strdup(client_model(r->client));
    r->result->url = mem_strdup(client_url(r->client));
    if (r->result->model == NULL || r->result->url == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the result");
    return RIDGE_OK;
}

static ridge_status measure(runner *r, ridge_error *err) {
    prepare_body(r);
    r->start_us = clock_now_us();
    client_start(r->client, r->start_us);
    if (r->stop != NULL) event_add(r->stop, NULL);
    event_active(r->pump, EV_TIMEOUT, 0);
    event_base_dispatch(r->base);
    log_progress(r->params->log, "measuring", 1);
    int64_t last_us = 0;
    for (size_t i = 0; i < r->result->n; i++)
        if (r->result->records[i].end_us > last_us) last_us = r->result->records[i].end_us;
    r->result->seconds = (double)last_us / 1e6;
    return r->failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "a prompt") : RIDGE_OK;
}

ridge_status load_run(load_result *out, const load_params *p, ridge_error *err) {
    runner r = {.params = p, .result = out};
    *out = (load_result){0};
    ridge_status status = open_all(&r, err);
    if (status == RIDGE_OK) status = measure(&r, err);
    client_close(r.client);
    if (r.stop != NULL) event_free(r.stop);
    if (r.pump != NULL) event_free(r.pump);
    if (r.base != NULL) event_base_free(r.base);
    load_plan_free(&r.plan);
    buf_free(&r.body);
    mem_free(r.free_us);
    if (status != RIDGE_OK) load_result_free(out);
    return status;
}

void load_result_free(load_result *r) {
    for (size_t i = 0; i < r->n; i++) {
        mem_free(r->records[i].gaps_us);
        mem_free(r->records[i].message);
    }
    mem_free(r->records);
    mem_free(r->model);
    mem_free(r->url);
    *r = (load_result){0};
}
