/* server/generation: one request of /v1/chat/completions or /v1/completions, from its body to the
 * last byte of its answer.
 *
 * Its life: read on a worker (api_request_read), one engine sequence per prompt and choice, events
 * into choices, chunks or a whole answer out. It outlives its connection (`conn` is then NULL)
 * until the worker and every sequence have let go of it: `conn` is set exactly while an answer is
 * owed.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/choice.h"
#include "server/server_internal.h"

struct generation {
    pool_job job; /* first: the pool hands it back */
    server *server;
    conn *conn;
    api_kind kind;
    buf body;
    api_request request;
    api_error error;
    int64_t created;
    double arrived_s;
    uint64_t number; /* of the server's requests */
    char id[160];
    prompt_report *reports; /* [request.n_prompts] */
    choice *choices;        /* [n_choices], by prompt, then by sample: the candidates */
    uint32_t n_choices;
    size_t n_bytes;  /* that the answer takes so far, in memory or once it is written */
    uint32_t n_live; /* sequences whose last event is still to come */
    bool submitted;
    buf out;
};

static void free_body(generation *g) {
    g->server->pending_bytes -= g->body.len;
    buf_free(&g->body);
}

/* All of the answer that is kept: it has been written, or nobody waits for it. */
static void free_answer(generation *g) {
    for (uint32_t i = 0; i < g->n_choices; i++) choice_free(&g->choices[i]);
    for (size_t i = 0; g->reports != NULL && i < g->request.n_prompts; i++)
        prompt_report_free(&g->reports[i]);
    buf_free(&g->out);
    g->server->answer_bytes -= g->n_bytes;
    g->n_bytes = 0;
}

static void generation_free(generation *g) {
    free_answer(g);
    mem_free(g->choices);
    mem_free(g->reports);
    free_body(g);
    api_request_free(&g->request);
    g->server->n_works--;
    mem_free(g);
}

/* Nobody is owed an answer any more: cancel what runs; free now, or with the last event. */
static void abandon(generation *g) {
    const server_backend *b = &g->server->backend;
    g->conn = NULL;
    if (!g->submitted) return; /* still with the pool, which hands it back */
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].live) b->cancel(b->self, g->choices[i].id);
    if (g->n_live == 0)
        generation_free(g);
    else
        free_answer(g);
}

/* ---- which candidates are the answer's choices ---- */

static int by_likelihood(const void *a, const void *b) {
    const choice *x = a, *y = b;
    double mx = choice_mean_logprob(x), my = choice_mean_logprob(y);
    if (mx > my) return -1;
    if (mx < my) return 1;
    return x->index < y->index ? -1 : 1;
}

/* Brings the n best of each prompt's candidates to the front, in their order; nothing is live. */
static void rank_candidates(generation *g) {
    uint32_t n = g->request.n, best_of = g->request.best_of;
    if (best_of == n) return;
    for (uint32_t p = 0; p < g->request.n_prompts; p++) {
        choice *candidates = &g->choices[p * best_of];
        qsort(candidates, best_of, sizeof *candidates, by_likelihood);
        for (uint32_t k = 0; k < best_of; k++)
            candidates[k].index = k < n ? p * n + k : CHOICE_HIDDEN;
    }
}

static uint32_t n_shown(const generation *g) {
    return g->n_choices / g->request.best_of * g->request.n;
}

/* The choice of that index. */
static choice *shown(const generation *g, uint32_t index) {
    uint32_t n = g->request.n;
    return &g->choices[index / n * g->request.best_of + index % n];
}

/* ---- what is written ---- */

/* Of a prompt with n choices: of those that have begun. */
static uint32_t cached_tokens(const choice *first, uint32_t n) {
    uint32_t least = UINT32_MAX;
    for (const choice *c = first; c < first + n; c++) {
        bool begun = c->n_tokens > 0 || c->finish != ENGINE_RUNNING;
        if (begun && c->usage.cached_tokens < least) least = c->usage.cached_tokens;
    }
    return least < UINT32_MAX ? least : 0;
}

static engine_usage sum_usage(const generation *g) {
    engine_usage sum = {0};
    uint32_t n = g->request.best_of;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const choice *c = &g->choices[i];
        sum.completion_tokens += c->n_tokens;
        if (i % n > 0) continue; /* a prompt counts once, however many choices it has */
        sum.prompt_tokens += (uint32_t)c->report->prompt->n_ids;
        sum.cached_tokens += cached_tokens(c, n);
    }
    return sum;
}

static void write_usage(const generation *g, buf *out) {
    engine_usage u = sum_usage(g);
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens,
               u.cached_tokens);
}

/* vLLM's per-request times, and how near the roof its steps were. */
static void write_metrics(const generation *g, buf *out) {
    if (g->n_choices != 1) return;
    const engine_usage *u = &g->choices[0].usage;
    double gaps = g->choices[0].n_tokens > 1 ? (double)(g->choices[0].n_tokens - 1) : 0;
    buf_puts(out, ",\"metrics\":{");
    buf_json_field(out, "queue_time_ms", u->queue_s * 1e3);
    buf_json_field(out, "time_to_first_token_ms", u->ttft_s * 1e3);
    buf_json_field(out, "generation_time_ms", u->decode_s * 1e3);
    buf_json_field(out, "mean_itl_ms", gaps > 0 ? u->decode_s * 1e3 / gaps : 0);
    buf_json_field(out, "tokens_per_second", u->decode_s > 0 ? gaps / u->decode_s : 0);
    if (u->mbu > 0) {
        buf_json_field(out, "mbu", u->mbu);
        buf_json_field(out, "mfu", u->mfu);
    }
    buf_putc(out, '}');
}

/* What was asked for with `explain`: of the sequence that kept the client waiting longest, and,
 * where that is not all of the answer, of each choice. */
static void write_explanation(const generation *g, buf *out) {
    const choice *slowest = &g->choices[0];
    uint32_t n = n_shown(g);
    if (!g->request.explain) return;
    for (const choice *c = slowest; c < g->choices + g->n_choices; c++)
        if (c->measured.end_seen_s > slowest->measured.end_seen_s) slowest = c;
    buf_puts(out, ",\"ridge\":{");
    choice_explain(slowest, out);
    for (uint32_t i = 0; g->n_choices > 1 && i < n; i++) {
        buf_puts(out, i == 0 ? ",\"choices\":[{" : ",{");
        choice_explain(shown(g, i), out);
        buf_puts(out, i + 1 == n ? "}]" : "}");
    }
    buf_putc(out, '}');
}

static void write_envelope(const generation *g, bool chunk, buf *out) {
    const char *object = g->kind == API_COMPLETIONS ? "text_completion"
                         : chunk                    ? "chat.completion.chunk"
                                                    : "chat.completion";
    const char *fingerprint = g->server->backend.info(g->server->backend.self).fingerprint;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    buf_json_string(out, g->server->names.model_id, strlen(g->server->names.model_id));
    buf_puts(out, ",\"system_fingerprint\":");
    if (fingerprint[0] != '\0')
        buf_json_string(out, fingerprint, strlen(fingerprint));
    else
        buf_puts(out, "null");
}

static void send_out(generation *g) {
    static const char oom[] = "{\"error\":{\"message\":\"out of memory\",\"code\":503}}";
    if (g->out.failed)
        conn_stream_event(g->conn, oom, sizeof oom - 1);
    else
        conn_stream_event(g->conn, g->out.data, g->out.len);
    buf_clear(&g->out);
}

static void send_chunk(generation *g, choice *c, bool first) {
    buf *out = &g->out;
    bool role = first && g->kind == API_CHAT;
    write_envelope(g, true, out);
    if (role) choice_write_prompt_ids(c, out);
    buf_puts(out, ",\"choices\":[");
    choice_write_chunk(c, first, out);
    buf_putc(out, ']');
    if (g->request.continuous_usage) {
        buf_putc(out, ',');
        write_usage(g, out);
    }
    /* Without a usage chunk the last chunk has it. */
    if (g->n_live == 0 && c->finish != ENGINE_RUNNING && !role && !g->request.include_usage)
        write_explanation(g, out);
    buf_putc(out, '}');
    send_out(g);
}

/* The role goes out with the first token, not before: clients take it for the first token's time.
 */
static void stream_choice(generation *g, choice *c) {
    if (c->ended || choice_waits(c)) return;
    if (!c->begun && c->n_tokens == 0 && c->finish == ENGINE_RUNNING) return;
    bool first = !c->begun;
    if (first && g->kind == API_CHAT) send_chunk(g, c, true);
    c->begun = true;
    if (!choice_has_news(c)) return;
    send_chunk(g, c, first && g->kind == API_COMPLETIONS);
    choice_clear(c);
}

static void end_stream(generation *g) {
    if (g->request.include_usage) {
        write_envelope(g, true, &g->out);
        buf_puts(&g->out, ",\"choices\":[],");
        write_usage(g, &g->out);
        write_metrics(g, &g->out);
        write_explanation(g, &g->out);
        buf_putc(&g->out, '}');
        send_out(g);
    }
    conn_stream_end(g->conn);
}

static void reply_whole(generation *g) {
    buf *out = &g->out;
    write_envelope(g, false, out);
    buf_puts(out, ",\"service_tier\":null,\"choices\":[");
    rank_candidates(g);
    for (uint32_t i = 0; i < n_shown(g); i++) {
        if (i > 0) buf_putc(out, ',');
        choice_take_whole(shown(g, i), out);
    }
    buf_puts(out, "],");
    write_usage(g, out);
    write_metrics(g, out);
    write_explanation(g, out);
    if (g->kind == API_CHAT) {
        prompt_report_write_ranked(&g->reports[0], out);
        choice_write_prompt_ids(&g->choices[0], out);
    }
    buf_putc(out, '}');
    conn_reply_json(g->conn, 200, out);
}

/* Before the first byte an HTTP error; afterwards an event, as the status has been sent. */
static void fail_answer(generation *g, const api_error *e) {
    conn *c = g->conn;
    if (!c->streaming) {
        conn_fail(c, e);
    } else {
        buf b = {0};
        api_error_write(e, &b);
        if (!b.failed) conn_stream_event(c, b.data, b.len);
        buf_free(&b);
        conn_stream_end(c);
    }
    abandon(g);
}

static void on_gone(void *self) {
    abandon(self);
}

static void on_expired(void *self) {
    generation *g = self;
    api_error e = conn_expired(g->conn);
    fail_answer(g, &e);
}

/* ---- how much answers may take ---- */

static void count_bytes(generation *g, choice *c) {
    size_t n = choice_bytes(c), n_report = prompt_report_bytes(c->report);
    if (!g->request.stream) n_report *= g->request.n; /* a part of each */
    size_t before = c->n_counted + c->report->n_counted;
    g->n_bytes += n + n_report - before;
    g->server->answer_bytes += n + n_report - before;
    g->conn->answer_bytes = g->n_bytes;
    c->n_counted = n;
    c->report->n_counted = n_report;
}

static bool is_too_large(const generation *g, api_error *e) {
    size_t limit = g->server->params.max_answer_bytes;
    if (g->n_bytes <= limit) return false;
    api_fail(e, 400, NULL,
             "the answer takes more than %zu bytes, all that the server has for answers: ask for "
             "fewer tokens, choices or log-probabilities, or for a stream",
             limit);
    return true;
}

static void on_too_large(void *self) {
    generation *g = self;
    api_error e = {0};
    if (!is_too_large(g, &e))
        api_fail(&e, 503, NULL,
                 "the answers being made take more than %zu bytes, of them this one %zu: try again "
                 "later, or ask for a stream",
                 g->server->params.max_answer_bytes, g->n_bytes);
    fail_answer(g, &e);
}

/* ---- the engine's events ---- */

static void finish_answer(generation *g) {
    if (g->request.stream)
        end_stream(g);
    else
        reply_whole(g);
    abandon(g); /* nothing is live: frees */
}

/* A prompt with its choices is one request to whoever counts them; one that was refused is none. */
static void measure_prompts(const generation *g) {
    for (uint32_t i = 0; i < g->n_choices; i += g->request.best_of) {
        uint32_t longest = 0;
        for (uint32_t k = 0; k < g->request.best_of; k++)
            if (g->choices[i + k].n_tokens > longest) longest = g->choices[i + k].n_tokens;
        metrics_prompt_done(&g->server->metrics, g->request.n, longest);
    }
}

static void finish_record(const generation *g, choice *c) {
    const metrics_sequence *m = &c->measured;
    if (c->recorded == NULL) return;
    record_outcome o = {.ttft_s = m->first_seen_s > 0 ? m->first_seen_s - m->arrived_s : 0,
                        .e2e_s = m->end_seen_s - m->arrived_s,
                        .n_output = c->n_tokens,
                        .finish = c->finish,
                        .usage = &c->usage};
    record_finished(g->server->record, c->recorded, &o);
    c->recorded = NULL;
    server_flush_soon(g->server);
}

/* They wait for the report that c has filled. */
static void stream_siblings(generation *g, const choice *c) {
    if (!prompt_report_is_whole(c->report)) return;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        if (g->choices[i].report != c->report) continue;
        stream_choice(g, &g->choices[i]);
        count_bytes(g, &g->choices[i]);
    }
}

static void take_event(choice *c, const engine_event *e) {
    generation *g = c->owner;
    api_error error = {0};
    choice_event(c, e, g->conn != NULL);
    metrics_event(&g->server->metrics, &c->measured, e, clock_now_s());
    if (!c->live) finish_record(g, c);
    if (!c->live) g->n_live--;
    if (!c->live && g->n_live == 0 && g->error.status == 0) measure_prompts(g);
    if (g->conn == NULL) {
        if (g->n_live == 0) generation_free(g);
    } else if (e->finish == ENGINE_ERROR) {
        ridge_error unknown = {.code = RIDGE_EIO, .text = "the engine has failed"};
        api_fail_from(&error, NULL, e->error != NULL ? e->error : &unknown);
        if (error.status < 500) error.status = 500;
        fail_answer(g, &error);
    } else if (e->finish == ENGINE_CANCELLED) {
        api_fail(&error, 503, NULL, "the server is shutting down and has cancelled this request");
        fail_answer(g, &error);
    } else {
        if (g->request.stream) stream_choice(g, c);
        if (e->is_prompt && g->request.stream) stream_siblings(g, c);
        count_bytes(g, c);
        if (g->n_live == 0)
            finish_answer(g);
        else if (g->server->answer_bytes > g->server->params.max_answer_bytes)
            conn_end_largest(g->server);
    }
}

void generation_on_event(void *context, const engine_event *event) {
    (void)context;
    if (event->user != NULL) take_event(event->user, event);
}

/* ---- submission ---- */

/* Tokens that the choice may get: what was asked for, as far as the context goes. */
static uint32_t n_allowed(const generation *g, const choice *c) {
    const engine_request *r = &g->request.engine;
    uint32_t context = g->server->backend.info(g->server->backend.self).max_model_len;
    uint32_t room = context - (uint32_t)c->report->prompt->n_ids; /* checked when it was read */
    if (r->prompt_only) return 0;
    return r->max_tokens > 0 && r->max_tokens < room ? r->max_tokens : room;
}

static void begin_record(const generation *g, choice *c) {
    if (g->server->record == NULL) return;
    record_arrival a = {.request = g->number,
                        .arrived_s = g->arrived_s,
                        .prompt = c->report->prompt->ids,
                        .n_prompt = c->report->prompt->n_ids,
                        .salt = g->request.engine.cache_salt,
                        .priority = g->request.engine.priority};
    c->recorded = record_arrived(g->server->record, &a);
}

static bool submit_choice(generation *g, choice *c, uint32_t sample, api_error *e) {
    const server_backend *b = &g->server->backend;
    ridge_error err = {0};
    engine_request r = g->request.engine;
    r.prompt = c->report->prompt->ids;
    r.n_prompt = c->report->prompt->n_ids;
    r.sampling.choice = sample;
    r.follows = c != g->choices;
    if (!c->describes) r.prompt_logprobs = -1;
    r.explain = g->request.explain;
    r.user = c;
    ridge_status status = b->submit(b->self, &r, &c->id, &err);
    if (status == RIDGE_OK) {
        c->live = true;
        g->n_live++;
        metrics_submitted(&g->server->metrics, &c->measured, g->arrived_s, n_allowed(g, c),
                          clock_now_s());
        begin_record(g, c);
        return true;
    }
    return api_fail_from(e, err.where, &err);
}

/* All of the choices find room, or none comes in. */
static bool check_room(const generation *g, size_t n, api_error *e) {
    const server_backend *b = &g->server->backend;
    size_t room = b->room(b->self);
    if (n <= room) return true;
    metrics_queue_full(&g->server->metrics);
    return api_fail(e, 429, NULL,
                    "too many requests are waiting: this one has %zu choice%s, and there is room "
                    "for %zu; try again later",
                    n, plural(n), room);
}

static void submit(generation *g) {
    api_request *r = &g->request;
    size_t n = r->n_prompts * r->best_of;
    g->submitted = true;
    if (!check_room(g, n, &g->error)) {
        fail_answer(g, &g->error);
        return;
    }
    g->choices = mem_zalloc(n, sizeof *g->choices);
    if (g->choices == NULL) {
        api_fail(&g->error, 503, NULL, "out of memory");
        fail_answer(g, &g->error);
        return;
    }
    g->n_choices = (uint32_t)n;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        choice_init(&g->choices[i], g, &g->reports[i / r->best_of], i);
        count_bytes(g, &g->choices[i]);
    }
    if (is_too_large(g, &g->error)) {
        fail_answer(g, &g->error);
        return;
    }
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!submit_choice(g, &g->choices[i], i % r->best_of, &g->error)) {
            fail_answer(g, &g->error);
            return;
        }
}

/* On a worker: touches only what nobody else looks at until job_done. */
static void job_work(pool_job *job) {
    generation *g = (generation *)job;
    api_request *r = &g->request;
    const server_backend *b = &g->server->backend;
    if (!api_request_read(r, g->kind, g->body.len > 0 ? g->body.data : "", g->body.len, b,
                          &g->server->names, &g->error)) {
        api_request_free(r); /* here: a large one takes longer than the loop may wait */
        return;
    }
    g->reports = mem_zalloc(r->n_prompts, sizeof *g->reports);
    if (g->reports == NULL) api_fail(&g->error, 503, NULL, "out of memory");
    for (size_t i = 0; g->reports != NULL && i < r->n_prompts; i++)
        prompt_report_init(&g->reports[i], r, &r->prompts[i], b);
}

static void job_done(pool_job *job) {
    generation *g = (generation *)job;
    free_body(g);
    if (g->conn == NULL) {
        generation_free(g);
    } else if (g->error.status != 0) {
        g->submitted = true;
        fail_answer(g, &g->error);
    } else {
        submit(g);
    }
}

/* ---- the connection's side ---- */

/* In place of the body's field, for clients that cannot add to their bodies. */
static bool asks_to_explain(const conn *c) {
    const char *value = http_head_find(&c->head, "X-Ridge-Explain");
    return value != NULL && (strcmp(value, "1") == 0 || strcmp(value, "true") == 0);
}

static void begin(conn *c, api_kind kind) {
    generation *g = mem_zalloc(1, sizeof *g);
    if (g == NULL) {
        api_error e = {0};
        api_fail(&e, 503, NULL, "out of memory");
        conn_fail(c, &e);
        return;
    }
    g->job =
        (pool_job){.work = job_work, .done = job_done, .heavy = c->body.len > HEAVY_BODY_BYTES};
    g->server = c->server;
    g->server->n_works++;
    g->conn = c;
    g->kind = kind;
    g->body = c->body;
    c->body = (buf){0};
    g->created = (int64_t)time(NULL);
    g->arrived_s = clock_now_s();
    g->number = g->server->n_requests++;
    g->request.explain = asks_to_explain(c);
    evutil_snprintf(g->id, sizeof g->id, "%s-%s", kind == API_CHAT ? "chatcmpl" : "cmpl",
                    c->request_id);
    conn_wait(c, (conn_work){g, on_gone, on_expired, on_too_large});
    pool_submit(g->server->pool, &g->job);
}

void handle_chat(conn *c) {
    begin(c, API_CHAT);
}
void handle_completions(conn *c) {
    begin(c, API_COMPLETIONS);
}
