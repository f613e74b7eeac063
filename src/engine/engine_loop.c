/* engine/engine_loop: see engine_loop.h.
 *
 * One mutex guards the two queues and the flags; it is held for a few pointer moves, never across a
 * step or a callback. Requests travel as the prepared objects themselves; the events of a step
 * travel as one batch with its own copy of their texts.
 */
#include "engine/engine_loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/admission.h"
#include "engine/engine_internal.h"

#define EVENT_QUEUE 65536 /* events that may lie untaken before the engine waits */

/* An accepted request whose last event has not been taken. Its room is made when it is accepted, so
 * that cancelling it cannot fail. */
typedef struct {
    uint64_t id;
    bool leaves; /* a cancel has been asked for, */
    bool passed; /* and the engine knows */
} ticket;

typedef struct batch batch;
struct batch {
    batch *next;
    size_t n_events;
    engine_event *events; /* [n_events]; these four point behind the struct */
    ridge_error *errors;
    int32_t *near; /* tokens of their misses */
    char *text;
};

struct engine_loop {
    pthread_t thread;
    int fd;
    size_t most;          /* unfinished at once */
    engine_params params; /* its strings are copies */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* work for the engine, or room for its events */
    /* under lock: */
    engine_loop_state state;
    ridge_error error;
    engine *engine;
    request *submitted_first, *submitted_last; /* linked by next */
    _Atomic size_t n_submitted; /* in this queue; written under the lock, read by stats without */
    ticket *tickets;            /* [n_unfinished] */
    size_t n_unfinished, tickets_capacity;
    size_t n_leaving, n_cancels; /* of them leave; and not passed yet */
    bool cancel_everything, draining, stop;
    batch *out_first, *out_last;
    size_t n_out; /* events untaken */

    admission admission; /* has its own rules */

    /* For stats: written by the engine's thread, read by any; each is right by itself. */
    _Atomic uint64_t stats[sizeof(engine_stats) / sizeof(uint64_t)];
};

_Static_assert(sizeof(engine_stats) % sizeof(uint64_t) == 0, "stats are published as words");

static void wake_owner(engine_loop *l) {
    uint64_t one = 1;
    ssize_t ignored = write(l->fd, &one, sizeof one); /* full: it is readable anyway */
    (void)ignored;
}

/* The engine's thread. */

/* Also when a step is planned: it may be long, and who runs and who waits is known by then. */
static void publish_stats(void *context) {
    engine_loop *l = context;
    engine_stats stats;
    uint64_t words[sizeof stats / sizeof(uint64_t)];
    engine_get_stats(l->engine, &stats);
    memcpy(words, &stats, sizeof stats);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        atomic_store_explicit(&l->stats[i], words[i], memory_order_relaxed);
}

static void on_plan(void *context) {
    engine_loop *l = context;
    publish_stats(l);
    admission_publish(&l->admission, l->engine, clock_now_s());
}

static batch *batch_create(const engine_event *events, size_t n) {
    size_t n_text = 0, n_errors = 0, n_near = 0, size;
    for (size_t i = 0; i < n; i++) {
        n_text += events[i].n_text + 1;
        n_errors += events[i].error != NULL;
        n_near += events[i].usage.miss.n_near;
    }
    size = sizeof(batch) + n * sizeof(engine_event) + n_errors * sizeof(ridge_error) +
           n_near * sizeof(int32_t) + n_text;
    batch *b = mem_alloc(size);
    if (b == NULL) return NULL;
    *b = (batch){.n_events = n, .events = (engine_event *)(b + 1)};
    b->errors = (ridge_error *)(b->events + n);
    b->near = (int32_t *)(b->errors + n_errors);
    b->text = (char *)(b->near + n_near);
    char *text = b->text;
    int32_t *near = b->near;
    ridge_error *error = b->errors;
    for (size_t i = 0; i < n; i++) {
        engine_event *e = &b->events[i];
        *e = events[i];
        memcpy(text, e->text, e->n_text);
        text[e->n_text] = '\0';
        e->text = text;
        text += e->n_text + 1;
        engine_miss *miss = &e->usage.miss;
        if (miss->n_near > 0) miss->near = memcpy(near, miss->near, miss->n_near * sizeof *near);
        near += miss->n_near;
        if (e->error != NULL) {
            *error = *e->error;
            e->error = error++;
        }
    }
    return b;
}

static bool is_stopping(engine_loop *l) {
    pthread_mutex_lock(&l->lock);
    bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    return stop;
}

/* Waits where there is neither memory nor room: no event may be lost. */
static void send_events(engine_loop *l, const engine_event *events, size_t n) {
    if (n == 0) return;
    batch *b;
    while ((b = batch_create(events, n)) == NULL) {
        if (is_stopping(l)) return; /* nobody will take them */
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    pthread_mutex_lock(&l->lock);
    while (l->n_out >= EVENT_QUEUE && !l->stop) pthread_cond_wait(&l->changed, &l->lock);
    *(l->out_last != NULL ? &l->out_last->next : &l->out_first) = b;
    l->out_last = b;
    l->n_out += n;
    pthread_mutex_unlock(&l->lock);
    wake_owner(l);
}

/* Under the lock. */
static void pass_cancels(engine_loop *l) {
    for (size_t i = 0; i < l->n_unfinished && l->n_cancels > 0; i++) {
        ticket *t = &l->tickets[i];
        if (!t->leaves || t->passed) continue;
        engine_cancel(l->engine, t->id);
        t->passed = true;
        l->n_cancels--;
    }
    if (l->cancel_everything)
        for (request *q = l->engine->live; q != NULL; q = q->next)
            engine_cancel(l->engine, q->seq.id);
    l->cancel_everything = false;
}

/* Moves what the owner has asked for into the engine. False: stop. */
static bool take_commands(engine_loop *l, bool idle) {
    pthread_mutex_lock(&l->lock);
    while (idle && !l->stop && l->submitted_first == NULL && l->n_cancels == 0 &&
           !l->cancel_everything)
        pthread_cond_wait(&l->changed, &l->lock);
    request *next;
    for (request *q = l->submitted_first; q != NULL; q = next) {
        next = q->next;
        q->next = NULL;
        admission_take(&l->admission, q);
        engine_enqueue(l->engine, q);
    }
    l->submitted_first = l->submitted_last = NULL;
    l->n_submitted = 0;
    pass_cancels(l);
    bool go_on = !l->stop;
    pthread_mutex_unlock(&l->lock);
    return go_on;
}

static void set_state(engine_loop *l, engine_loop_state state, engine *e) {
    pthread_mutex_lock(&l->lock);
    l->state = state;
    l->engine = e;
    pthread_mutex_unlock(&l->lock);
    wake_owner(l);
}

static void *loop_main(void *context) {
    engine_loop *l = context;
    engine *e = NULL;
    ridge_error err = {0};
    if (engine_open(&e, &l->params, &err) != RIDGE_OK) {
        l->error = err; /* seen through the lock in set_state */
        set_state(l, LOOP_FAILED, NULL);
        return NULL;
    }
    e->on_plan = on_plan;
    e->on_plan_context = l;
    admission_init(&l->admission, e);
    set_state(l, LOOP_READY, e);
    publish_stats(l);
    bool busy = false;
    while (take_commands(l, !busy)) {
        const engine_event *events;
        size_t n;
        busy = engine_step(e, &events, &n);
        publish_stats(l);
        send_events(l, events, n);
    }
    return NULL;
}

/* The owner's side. */

#define N_STRINGS 5

static const char **string_of(engine_params *p, int i) {
    const char **const all[N_STRINGS] = {&p->model_path, &p->isa, &p->cpu_affinity,
                                         &p->prefix_cache_file, &p->speculative_model};
    return all[i];
}

static bool copy_strings(engine_params *p) {
    bool copied = true;
    for (int i = 0; i < N_STRINGS; i++) {
        const char **s = string_of(p, i);
        if (*s == NULL) continue;
        *s = mem_strdup(*s);
        copied = copied && *s != NULL;
    }
    return copied;
}

static void free_strings(engine_params *p) {
    for (int i = 0; i < N_STRINGS; i++) mem_free((void *)*string_of(p, i));
}

ridge_status engine_loop_start(engine_loop **out, const engine_params *p, size_t max_waiting,
                               ridge_error *err) {
    engine_loop *l = mem_zalloc(1, sizeof *l);
    if (l == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine's loop");
    l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!mem_add(max_waiting, p->max_num_seqs, &l->most)) l->most = SIZE_MAX;
    l->params = *p;
    bool copied = copy_strings(&l->params);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    ridge_status status = RIDGE_OK;
    if (!copied)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine's loop");
    else if (l->fd < 0)
        status = error_set_errno(err, RIDGE_EIO, "cannot make an eventfd");
    else if (pthread_create(&l->thread, NULL, loop_main, l) != 0)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot start the engine's thread");
    if (status == RIDGE_OK) {
        *out = l;
        return RIDGE_OK;
    }
    l->stop = true;
    if (l->fd >= 0) close(l->fd);
    free_strings(&l->params);
    mem_free(l);
    return status;
}

void engine_loop_destroy(engine_loop *l) {
    if (l == NULL) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    engine_close(l->engine);
    for (request *q = l->submitted_first, *next; q != NULL; q = next) {
        next = q->next;
        request_destroy(q);
    }
    for (batch *b = l->out_first, *next; b != NULL; b = next) {
        next = b->next;
        mem_free(b);
    }
    close(l->fd);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    mem_free(l->tickets);
    free_strings(&l->params);
    mem_free(l);
}

int engine_loop_fd(const engine_loop *l) {
    return l->fd;
}

/* The lock is no part of the loop's value: const callers may take it. */
static pthread_mutex_t *lock_of(const engine_loop *l) {
    return (pthread_mutex_t *)&l->lock;
}

engine_loop_state engine_loop_get_state(const engine_loop *l, ridge_error *err) {
    pthread_mutex_lock(lock_of(l));
    engine_loop_state state = l->state;
    if (state == LOOP_FAILED && err != NULL) *err = l->error;
    pthread_mutex_unlock(lock_of(l));
    return state;
}

const engine *engine_loop_engine(const engine_loop *l) {
    pthread_mutex_lock(lock_of(l));
    const engine *e = l->state == LOOP_READY ? l->engine : NULL;
    pthread_mutex_unlock(lock_of(l));
    return e;
}

/* Under the lock. Who leaves frees a place before the engine's next step. */
static size_t room(const engine_loop *l) {
    size_t n = l->n_unfinished - l->n_leaving;
    return n < l->most ? l->most - n : 0;
}

size_t engine_loop_room(const engine_loop *l) {
    pthread_mutex_lock(lock_of(l));
    size_t n = room(l);
    pthread_mutex_unlock(lock_of(l));
    return n;
}

size_t engine_loop_most(const engine_loop *l) {
    return l->most;
}

/* Under the lock: may one more request come in? */
static ridge_status may_submit(const engine_loop *l, ridge_error *err) {
    if (l->state != LOOP_READY) return RIDGE_FAIL(err, RIDGE_ECANCEL, "the model is not loaded");
    if (l->draining) return RIDGE_FAIL(err, RIDGE_ECANCEL, "shutting down");
    if (room(l) == 0)
        return RIDGE_FAIL(err, RIDGE_EFULL, "%zu requests run or wait already, the limit is %zu",
                          l->n_unfinished - l->n_leaving, l->most);
    return RIDGE_OK;
}

ridge_status engine_loop_submit(engine_loop *l, const engine_request *r, uint64_t *id,
                                ridge_error *err) {
    request *q;
    pthread_mutex_lock(&l->lock);
    ridge_status status = may_submit(l, err); /* before the copy: a full queue costs nothing */
    pthread_mutex_unlock(&l->lock);
    if (status != RIDGE_OK) return status;
    RIDGE_TRY(request_create(&q, l->engine, r, err));
    status = admission_check(&l->admission, q, clock_now_s(), err);
    if (status != RIDGE_OK) {
        request_destroy(q);
        return status;
    }
    pthread_mutex_lock(&l->lock);
    status = may_submit(l, err);
    if (status == RIDGE_OK && !mem_grow((void **)&l->tickets, &l->tickets_capacity,
                                        l->n_unfinished + 1, sizeof *l->tickets))
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "the request");
    if (status == RIDGE_OK) {
        *id = q->seq.id;
        *(l->submitted_last != NULL ? &l->submitted_last->next : &l->submitted_first) = q;
        l->submitted_last = q;
        admission_accept(&l->admission, q);
        l->n_submitted++;
        l->tickets[l->n_unfinished++] = (ticket){.id = *id};
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    if (status != RIDGE_OK) request_destroy(q);
    return status;
}

/* Under the lock; NULL: unknown, or its last event has been taken. */
static ticket *ticket_of(engine_loop *l, uint64_t id) {
    for (size_t i = 0; i < l->n_unfinished; i++)
        if (l->tickets[i].id == id) return &l->tickets[i];
    return NULL;
}

static void drop_ticket(engine_loop *l, uint64_t id) {
    ticket *t = ticket_of(l, id);
    ridge_assert(t != NULL);
    l->n_leaving -= t->leaves;
    l->n_cancels -= t->leaves && !t->passed;
    *t = l->tickets[--l->n_unfinished];
}

void engine_loop_cancel(engine_loop *l, uint64_t id) {
    pthread_mutex_lock(&l->lock);
    ticket *t = ticket_of(l, id);
    if (t != NULL && !t->leaves) {
        t->leaves = true;
        l->n_leaving++;
        l->n_cancels++;
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

size_t engine_loop_take(engine_loop *l, engine_event_fn fn, void *context) {
    uint64_t counter;
    ssize_t ignored = read(l->fd, &counter, sizeof counter); /* before the queue: none is missed */
    (void)ignored;
    pthread_mutex_lock(&l->lock);
    batch *first = l->out_first;
    l->out_first = l->out_last = NULL;
    l->n_out = 0;
    for (const batch *b = first; b != NULL; b = b->next)
        for (size_t i = 0; i < b->n_events; i++)
            if (b->events[i].finish != ENGINE_RUNNING) drop_ticket(l, b->events[i].id);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    size_t n = 0;
    for (batch *b = first, *next; b != NULL; b = next) {
        next = b->next;
        for (size_t i = 0; i < b->n_events; i++, n++) fn(context, &b->events[i]);
        mem_free(b);
    }
    return n;
}

void engine_loop_drain(engine_loop *l) {
    pthread_mutex_lock(&l->lock);
    l->draining = true;
    pthread_mutex_unlock(&l->lock);
}

void engine_loop_cancel_all(engine_loop *l) {
    pthread_mutex_lock(&l->lock);
    l->cancel_everything = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

bool engine_loop_is_idle(const engine_loop *l) {
    pthread_mutex_lock(lock_of(l));
    bool idle = l->n_unfinished == 0 && l->out_first == NULL;
    pthread_mutex_unlock(lock_of(l));
    return idle;
}

void engine_loop_stats(const engine_loop *l, engine_stats *out) {
    uint64_t words[sizeof *out / sizeof(uint64_t)];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        words[i] = atomic_load_explicit(&l->stats[i], memory_order_relaxed);
    memcpy(out, words, sizeof words);
    out->n_waiting += l->n_submitted;
    out->shed = l->admission.n_shed;
}
