/* engine_loop: the engine on a thread of its own, behind two bounded queues and an eventfd.
 *
 * The owner (the server's event loop) starts it, submits and cancels, and takes events whenever the
 * eventfd is readable. Opening the model happens on the engine's thread too: until the state is
 * LOOP_READY nothing can be submitted. Nothing here blocks but engine_loop_destroy; the engine's
 * thread waits only when the events of EVENT_QUEUE tokens lie untaken. Order: the events of a
 * request come in the order of its tokens; exactly one of them has `finish` set.
 *
 * Threads: start, take, drain and destroy belong to one owner thread; submit, cancel, state and
 * stats may be called on any thread (tokenizing pools submit).
 */
#ifndef RIDGE_ENGINE_ENGINE_LOOP_H
#define RIDGE_ENGINE_ENGINE_LOOP_H

#include "engine/engine.h"

typedef struct engine_loop engine_loop;

typedef enum { LOOP_LOADING, LOOP_READY, LOOP_FAILED } engine_loop_state;

/* Starts the thread, which opens the engine (p and its strings are copied; p->log is called on the
 * engine's thread until destroy). max_waiting: requests beyond the p->max_num_seqs that may run;
 * the next one gets RIDGE_EFULL. */
ridge_status engine_loop_start(engine_loop **out, const engine_params *p, size_t max_waiting,
                               ridge_error *err) RIDGE_CHECKED;
/* Cancels what runs, joins the thread, closes the engine. Events not taken are dropped. */
void engine_loop_destroy(engine_loop *l); /* NULL allowed */

/* Readable when the state has changed or events wait. Owned by the loop; don't read it yourself:
 * engine_loop_take does. */
int engine_loop_fd(const engine_loop *l);
/* LOOP_FAILED: *err (NULL allowed) says why the model did not open. */
engine_loop_state engine_loop_get_state(const engine_loop *l, ridge_error *err);
/* NULL until LOOP_READY; then for the getters of engine.h (tokenizer, chat template, limits,
 * fingerprint), which are immutable and allowed on any thread. */
const engine *engine_loop_engine(const engine_loop *l);

/* Checks and copies the request on the caller's thread, so a bad one fails here with its reason:
 * RIDGE_EINVAL / RIDGE_ENOMEM as engine_submit, RIDGE_EFULL when there is no room,
 * RIDGE_EBUSY when it would miss its target and those are shed (engine/admission.h),
 * RIDGE_ECANCEL when draining or not ready. */
ridge_status engine_loop_submit(engine_loop *l, const engine_request *r, uint64_t *id,
                                ridge_error *err) RIDGE_CHECKED;
/* So many may be submitted before one gets RIDGE_EFULL; and when nothing runs or waits. */
size_t engine_loop_room(const engine_loop *l);
size_t engine_loop_most(const engine_loop *l);
/* The sequence and its blocks are freed before the engine's next step; its last event is
 * ENGINE_CANCELLED (unless it had finished). An unknown or finished id is ignored. Needs no memory:
 * it cannot be lost. */
void engine_loop_cancel(engine_loop *l, uint64_t id);

/* Hands every waiting event to fn, oldest first; the event lives until fn returns. fn may submit
 * and cancel. Returns how many. */
typedef void (*engine_event_fn)(void *context, const engine_event *event);
size_t engine_loop_take(engine_loop *l, engine_event_fn fn, void *context);

/* From now on submit is refused; what was accepted goes on. The owner goes on taking events until
 * engine_loop_is_idle (or its patience ends: then engine_loop_cancel_all, and take the last). */
void engine_loop_drain(engine_loop *l);
void engine_loop_cancel_all(engine_loop *l);
/* No accepted request is unfinished and every event has been taken. */
bool engine_loop_is_idle(const engine_loop *l);

/* A snapshot for /metrics; takes no lock that the step loop wants. */
void engine_loop_stats(const engine_loop *l, engine_stats *out);

#endif
