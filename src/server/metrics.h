/* server/metrics: what /metrics says, in Prometheus's text format.
 *
 * What concerns requests (histograms, how they ended) is kept here, from the engine's events; what
 * concerns the engine (queues, cache, steps) comes with each scrape as the engine's own snapshot,
 * for which no lock is taken. The names are vLLM's where vLLM has one, else begin with "ridge:".
 * Every series is there from the start, at 0, so that rates miss nothing; no value is ever NaN.
 *
 * Event loop's thread only. A scrape writes into a buffer that is kept: it allocates nothing once
 * that has grown.
 */
#ifndef RIDGE_SERVER_METRICS_H
#define RIDGE_SERVER_METRICS_H

#include "base/buf.h"
#include "engine/engine.h"
#include "server/histogram.h"

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* The engine's counters at one time: rates are taken between two of them. */
typedef struct {
    double time_s, flops, bytes, step_s, roof_s;
} metrics_mark;

typedef struct {
    buf labels;      /* model_name="...",engine="0" */
    double opened_s; /* unix time */
    bool legacy;     /* vLLM's old names, too */
    bool ready;      /* the model is known: */
    engine_cache_info cache;
    double peak_bytes_per_s, peak_flops_per_s;

    uint64_t n_live; /* sequences submitted whose last event is still to come */
    double last_submit_s;
    uint64_t finished[ENGINE_ERROR + 1];              /* [engine_finish] */
    uint64_t n_queue_full;                            /* requests that found no room in the queue */
    uint64_t n_recorded, n_record_lost;               /* set by who records, before each scrape */
    histogram ttft, itl, tpot;                        /* seconds */
    histogram e2e, queue, inference, prefill, decode; /* seconds */
    histogram n_prompt, n_generated, n_computed, n_allowed; /* tokens of a sequence */
    histogram n_longest, n_choices;                         /* of a prompt */

    metrics_mark older, newer;
    buf out;
} metrics;

/* What is to be remembered of a sequence between its events. */
typedef struct {
    double arrived_s;                /* clock_now_s when the request had come in */
    double last_s;                   /* of the step that gave its last token; 0: none yet */
    double first_seen_s, end_seen_s; /* when its first token and its last event came; 0: not yet */
    uint32_t n_tokens;
    uint32_t n_allowed; /* the most that it may generate */
} metrics_sequence;

ridge_status metrics_init(metrics *m, const char *model_name, bool legacy,
                          ridge_error *err) RIDGE_CHECKED;
void metrics_deinit(metrics *m); /* zeroed ones too */
/* Once the model has opened: the buckets of token counts end at its context. */
void metrics_model_is_ready(metrics *m, uint32_t max_model_len, const engine_cache_info *cache,
                            double peak_bytes_per_s, double peak_flops_per_s);

/* A sequence has been handed to the engine; then each of its events, in order. */
void metrics_submitted(metrics *m, metrics_sequence *s, double arrived_s, uint32_t n_allowed,
                       double now_s);
void metrics_event(metrics *m, metrics_sequence *s, const engine_event *e, double now_s);
/* A prompt's choices are all over: how many, and the longest. */
void metrics_prompt_done(metrics *m, uint32_t n_choices, uint32_t n_longest);
void metrics_queue_full(metrics *m);

/* While it has work: seconds since the engine last began or ended a step. */
double metrics_silent_s(const metrics *m, const engine_stats *stats, double now_s);
/* The whole text, borrowed until the next call; NULL: out of memory. stats: now_s's. */
const buf *metrics_write(metrics *m, const engine_stats *stats, double now_s);

#endif
