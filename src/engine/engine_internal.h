/* engine/: what engine.c, step.c, request.c and engine_loop.c share. */
#ifndef RIDGE_ENGINE_ENGINE_INTERNAL_H
#define RIDGE_ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/speculate.h"
#include "engine/stop.h"
#include "model/model.h"
#include "sched/scheduler.h"

/* A request and everything that follows it through the steps. */
struct request {
    sequence seq; /* first: the scheduler's view */
    engine_request given;
    sampler_params sampling; /* with banned end tokens while min_tokens are not reached */
    sampler_counts *counts;  /* NULL: no penalties */
    request_drafts drafts;
    bool rows_void; /* the step's further rows saw a wrong guess, or come after the end */
    stop_filter stop;
    detokenizer detok;
    uint32_t n_output;
    uint32_t n_described; /* rows of the prompt whose logits have been reported */
    uint32_t n_counted;   /* tokens of the prompt in stats.prompt_tokens: once, though preempted */
    engine_finish finish;
    ridge_error error;
    double arrived_s, scheduled_s, first_token_s, last_token_s; /* 0: not yet */
    double predicted_ttft_s;      /* 0: not asked (engine/admission.h) */
    engine_phase prefill, decode; /* the steps it took part in */
    engine_account steps;         /* the same, in bytes and FLOPs */
    uint32_t n_ahead;             /* waiting or running when it came */
    uint32_t n_preempted_seen;    /* of seq.n_preempted; the last one of them ... */
    uint32_t n_again;             /* ... threw away what up to here had been computed, but one */
    engine_event *last_event; /* with `finish`; its usage comes when the step is accounted for */
    bool cancelled;
    /* Only with engine_params.checks: what its events have said. */
    buf said;
    uint32_t n_said; /* tokens */
    bool said_last;
    request *next, *previous; /* among the live; then among the done */
};

/* Checks and copies r; may run on any thread (it reads only what is fixed after engine_open). */
ridge_status request_create(request **out, engine *e, const engine_request *r,
                            ridge_error *err) RIDGE_CHECKED;
void request_destroy(request *q); /* not in the scheduler; NULL allowed */
/* Does this token end the text, and is no part of it? */
bool request_is_end(const engine *e, const request *q, int32_t id);
/* Hands a created request to the engine: the engine's thread only. */
void engine_enqueue(engine *e, request *q);

/* A row whose logits are wanted. */
typedef struct {
    request *request;
    uint32_t row, position; /* in the batch; of the token in the sequence */
} wanted_row;

/* draw.c: is the next token drawn from this row; is the prompt's next token described by it? */
bool wants_token(const wanted_row *w);
bool wants_description(const wanted_row *w);
/* What rows [n <= DEV_HEAD_ROWS] lead to, where one of the above holds by now; else out[i].id is
 * -1: the row of a guess, whose turn comes when the guess has come true (draw_row). */
void draw_rows(engine *e, const wanted_row *rows, uint32_t n, const float *logits,
               sampler_result *out);
void draw_row(engine *e, const wanted_row *row, const float *logits, sampler_result *out);
ridge_status draw_open(engine *e, ridge_error *err) RIDGE_CHECKED;
void draw_close(engine *e);

/* Asserts, of the events of a step that is over: each request's tokens come one by one, in order,
 * and one last event; its texts together are its output decoded. */
void engine_check_events(engine *e);

typedef char fingerprint[24];

/* What decides the numbers beside the file. */
typedef struct {
    const char *version, *isa;
    dev_kv_type kv_type;
    bool precise;
} fingerprint_path;

void fingerprint_make(fingerprint out, const gguf *file, const fingerprint_path *path);

/* Sizes the KV cache, sets params.max_model_len to what it holds, makes e->kv and e->sched. */
ridge_status engine_open_cache(engine *e, ridge_error *err) RIDGE_CHECKED;

struct engine {
    engine_params params;
    gguf *file;
    tokenizer *tokenizer;
    device *dev;
    model *model;
    dev_compiled *program;
    dev_kv_layout kv_layout;
    dev_kv *kv;
    scheduler *sched;
    sampler
        *samplers[DEV_HEAD_ROWS]; /* one for each thread that draws; the engine's is the first */
    speculation *speculation;     /* NULL: none */
    char *chat_template;          /* NULL: none */
    fingerprint fingerprint;
    char *prefix_cache_file; /* NULL: none */
    int32_t *end_ids;        /* [n_end_ids] tokens that end a generation */
    size_t n_end_ids;
    uint64_t kv_token_bytes;
    roof_peaks peaks; /* zeros: unknown */
    atomic_uint_fast64_t next_id;

    request *live, *done; /* done: finished, freed at the next step */
    request *padding;     /* finished, but still in a static batch */

    /* The step's scratch, sized at open. */
    int32_t *tokens, *positions; /* [max_num_batched_tokens] */
    dev_seq *dev_seqs;           /* [max_num_seqs] */
    wanted_row *wanted;          /* [max_num_batched_tokens] */
    request **finished;          /* [max_num_seqs] */
    float *logits;               /* [DEV_HEAD_ROWS, n_vocab] */
    engine_event *events;        /* [max_events] */
    size_t *event_text;          /* [max_events] where in `text` each event's begins */
    size_t n_events, max_events;
    buf text, piece; /* of the step's events; of one token */

    engine_logits_fn on_logits;
    void *on_logits_context;
    engine_stats stats;
    engine_account account;
    void (*on_plan)(void *context); /* NULL: none. When a step is planned, before its forward. */
    void *on_plan_context;
};

#endif
