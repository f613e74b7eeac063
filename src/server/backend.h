/* server/backend: what the server needs of an engine, as a table, so that its tests run on a fake.
 *
 * backend_engine.c makes one of an engine_loop. Threads: `encode` to `submit` may be called on any
 * thread once the state is LOOP_READY; the others on the event loop's.
 */
#ifndef RIDGE_SERVER_BACKEND_H
#define RIDGE_SERVER_BACKEND_H

#include <jansson.h>

#include "engine/engine_loop.h"
#include "text/template.h"

typedef struct {
    int32_t n_vocab;
    uint32_t max_model_len;
    size_t max_sequences;    /* that run and wait at once */
    const char *fingerprint; /* borrowed; "" none */
    engine_cache_info cache;
    double peak_bytes_per_s, peak_flops_per_s; /* 0: unknown */
} backend_info;

typedef struct {
    void *self;

    int (*fd)(void *self); /* readable when the state has changed or events wait */
    engine_loop_state (*state)(void *self, ridge_error *err);
    backend_info (*info)(void *self); /* when ready */

    /* Control tokens in the text are parsed. *ids: mem_free. */
    ridge_status (*encode)(void *self, const char *text, size_t n, bool add_special, int32_t **ids,
                           size_t *n_ids, ridge_error *err);
    /* What encode gives at least, found at once. */
    size_t (*min_tokens)(void *self, const char *text, size_t n);
    /* The chat template on variables (an object, which may be added to). */
    ridge_status (*render)(void *self, json_t *variables, buf *out, ridge_error *err);
    const char *(*token_bytes)(void *self, int32_t id, size_t *n); /* control tokens too */
    /* For the text of r's answer. */
    detokenizer (*detokenize_begin)(void *self, const engine_request *r);
    void (*detokenize)(void *self, detokenizer *d, int32_t id, bool special, buf *out);
    void (*detokenize_end)(void *self, detokenizer *d, buf *out);

    size_t (*room)(void *self); /* so many may be submitted before one gets RIDGE_EFULL */
    ridge_status (*submit)(void *self, const engine_request *r, uint64_t *id, ridge_error *err);
    void (*cancel)(void *self, uint64_t id);
    size_t (*take)(void *self, engine_event_fn fn, void *context);
    void (*drain)(void *self);
    void (*cancel_all)(void *self);
    bool (*is_idle)(void *self);
    void (*stats)(void *self, engine_stats *out); /* in any state; waits for nothing */
} server_backend;

typedef struct backend_engine backend_engine;

/* Starts the engine's thread, which opens the model. given: the chat template to use in place of
 * the model's (borrowed until destroy); NULL: the model's. */
ridge_status backend_engine_create(backend_engine **out, server_backend *table,
                                   const engine_params *params, size_t max_waiting,
                                   const chat_template *given, ridge_error *err) RIDGE_CHECKED;
void backend_engine_destroy(backend_engine *b); /* NULL allowed */

#endif
