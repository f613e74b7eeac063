/* engine/admission: when would a new request have its first token, and is that soon enough?
 *
 * With a target (engine_params.slo_ttft_s) the engine's thread publishes a summary of its work
 * (sched/backlog.h) whenever it has planned a step; who submits predicts from a copy of it, from
 * what has been accepted since, and from what is cached of the prompt, on his own thread. With
 * `shed`, a request predicted past the target is refused (RIDGE_EBUSY). An idle engine takes any
 * request: there is nobody to wait for, and only what runs corrects a prediction that is too dark.
 * What a client asks for at once, several prompts or choices, comes in with the first of it: else
 * what is refused because of its own beginning would be told for ever to try later.
 *
 * The summary is guarded by a counter that is odd while it is written (a sequence lock): nobody
 * waits for a lock, readers read again. Without a target nothing is published and nothing asked.
 */
#ifndef RIDGE_ENGINE_ADMISSION_H
#define RIDGE_ENGINE_ADMISSION_H

#include "engine/engine_internal.h"
#include "sched/backlog.h"

/* Of one class, since the start: sums that only grow. */
typedef struct {
    uint64_t n, n_tokens, attention_ops;
} admission_sum;

typedef struct {
    backlog backlog;
    double free_s;                        /* clock_now_s when the step that runs will be over */
    admission_sum taken[BACKLOG_CLASSES]; /* accepted requests that are in the backlog, or were */
} admission_view;

typedef struct {
    double target_s; /* 0: none, and nothing below is used */
    bool shed;
    const kv_cache *cache; /* for kv_cache_known alone */
    backlog_machine machine;
    admission_sum taken[BACKLOG_CLASSES]; /* the engine's thread's */
    /* shared */
    _Atomic uint64_t turn; /* odd: being written */
    _Atomic uint64_t view[sizeof(admission_view) / sizeof(uint64_t)];
    struct {
        _Atomic uint64_t n, n_tokens, attention_ops;
    } accepted[BACKLOG_CLASSES];
    _Atomic uint64_t n_shed;
} admission;

/* Of an open engine, before anybody submits. */
void admission_init(admission *a, const engine *e);
/* The engine's thread: q has come in; a step has been planned. */
void admission_take(admission *a, const request *q);
void admission_publish(admission *a, const engine *e, double now_s);

/* Any thread. Sets q->predicted_ttft_s, seq.n_expected; RIDGE_EBUSY with the numbers: refused. */
ridge_status admission_check(admission *a, request *q, double now_s,
                             ridge_error *err) RIDGE_CHECKED;
/* q is handed to the engine, who cannot have taken it yet. */
void admission_accept(admission *a, const request *q);

#endif
