/* server/metrics: see metrics.h. This file: what is counted; metrics_write.c writes it. */
#include "server/metrics.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

#define N_OF(a) (sizeof(a) / sizeof *(a))

/* vLLM's buckets: dashboards and alert rules name them. */
static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                            0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                            20,    40,    80,   160,  640,  2560};
static const double token_gap_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double choices_bounds[] = {1, 2, 5, 10, 20};

/* The text format's escapes in the value of a label. */
static void add_label(buf *b, const char *name, const char *value) {
    buf_printf(b, "%s%s=\"", b->len > 0 ? "," : "", name);
    for (; *value != '\0'; value++)
        if (*value == '\n')
            buf_puts(b, "\\n");
        else if (*value == '\\' || *value == '"')
            buf_printf(b, "\\%c", *value);
        else
            buf_putc(b, *value);
    buf_putc(b, '"');
}

static void init_token_counts(metrics *m, double most) {
    histogram *all[] = {&m->n_prompt, &m->n_generated, &m->n_computed, &m->n_allowed,
                        &m->n_longest};
    for (size_t i = 0; i < N_OF(all); i++) histogram_init_125(all[i], most);
}

ridge_status metrics_init(metrics *m, const char *model_name, bool legacy, ridge_error *err) {
    *m = (metrics){.legacy = legacy, .opened_s = (double)time(NULL)};
    add_label(&m->labels, "model_name", model_name);
    add_label(&m->labels, "engine", "0");
    if (m->labels.failed) {
        metrics_deinit(m);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the metrics");
    }
    histogram_init(&m->ttft, first_token_bounds, N_OF(first_token_bounds));
    histogram_init(&m->itl, token_gap_bounds, N_OF(token_gap_bounds));
    histogram_init(&m->tpot, token_gap_bounds, N_OF(token_gap_bounds));
    histogram *times[] = {&m->e2e, &m->queue, &m->inference, &m->prefill, &m->decode};
    for (size_t i = 0; i < N_OF(times); i++)
        histogram_init(times[i], request_bounds, N_OF(request_bounds));
    histogram_init(&m->n_choices, choices_bounds, N_OF(choices_bounds));
    init_token_counts(m, 0);
    return RIDGE_OK;
}

void metrics_deinit(metrics *m) {
    buf_free(&m->labels);
    buf_free(&m->out);
}

void metrics_model_is_ready(metrics *m, uint32_t max_model_len, const engine_cache_info *cache,
                            double peak_bytes_per_s, double peak_flops_per_s) {
    if (m->ready) return;
    m->ready = true;
    m->cache = *cache;
    m->peak_bytes_per_s = peak_bytes_per_s;
    m->peak_flops_per_s = peak_flops_per_s;
    init_token_counts(m, max_model_len);
}

void metrics_submitted(metrics *m, metrics_sequence *s, double arrived_s, uint32_t n_allowed,
                       double now_s) {
    *s = (metrics_sequence){.arrived_s = arrived_s, .n_allowed = n_allowed};
    m->n_live++;
    m->last_submit_s = now_s;
}

/* All tokens of a step have its time: a gap is one between steps, as a client sees it. */
static void add_token(metrics *m, metrics_sequence *s, double step_s, double now_s) {
    if (s->n_tokens++ == 0) {
        s->first_seen_s = now_s;
        histogram_add(&m->ttft, now_s - s->arrived_s);
    } else if (step_s > s->last_s) {
        histogram_add(&m->itl, step_s - s->last_s);
    }
    s->last_s = step_s;
}

/* Of one that never ran, or never said anything, only what it has is counted. */
static void add_finished(metrics *m, const metrics_sequence *s, const engine_event *e,
                         double now_s) {
    const engine_usage *u = &e->usage;
    bool ran = u->prefill.n_steps > 0;
    m->finished[e->finish]++;
    histogram_add(&m->e2e, now_s - s->arrived_s);
    histogram_add(&m->n_prompt, u->prompt_tokens);
    histogram_add(&m->n_generated, u->completion_tokens);
    histogram_add(&m->n_allowed, s->n_allowed);
    if (!ran) return;
    uint32_t cached = u->cached_tokens < u->prompt_tokens ? u->cached_tokens : u->prompt_tokens;
    histogram_add(&m->n_computed, u->prompt_tokens - cached);
    histogram_add(&m->queue, u->queue_s);
    histogram_add(&m->inference, u->prefill_s + u->decode_s);
    histogram_add(&m->prefill, u->prefill_s);
    if (u->completion_tokens == 0) return;
    uint32_t n_gaps = u->completion_tokens - 1;
    histogram_add(&m->decode, u->decode_s);
    histogram_add(&m->tpot, n_gaps > 0 ? u->decode_s / n_gaps : 0);
}

void metrics_event(metrics *m, metrics_sequence *s, const engine_event *e, double now_s) {
    if (e->has_token) add_token(m, s, e->time_s, now_s);
    if (e->finish == ENGINE_RUNNING) return;
    m->n_live--;
    s->end_seen_s = now_s;
    add_finished(m, s, e, now_s);
}

void metrics_prompt_done(metrics *m, uint32_t n_choices, uint32_t n_longest) {
    histogram_add(&m->n_choices, n_choices);
    histogram_add(&m->n_longest, n_longest);
}

void metrics_queue_full(metrics *m) {
    m->n_queue_full++;
}

double metrics_silent_s(const metrics *m, const engine_stats *s, double now_s) {
    double turned_s = s->turned_s > m->last_submit_s ? s->turned_s : m->last_submit_s;
    return m->n_live > 0 && now_s > turned_s ? now_s - turned_s : 0;
}
