/* engine_loop: the same answers as the engine gives, from another thread; limits, cancelling,
 * draining, a model that doesn't open. */
#include "unit.h"
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine_loop.h"
#include "tiny_model.h"

#define N_REQUESTS 12
#define GATE N_REQUESTS /* the first of two requests that hold the engine up */
#define MANY 16         /* more than N_REQUESTS */
#define PATIENCE_MS 60000

/* Holds the engine's thread in a step, however the machine runs its threads: of the prompts of
 * requests that pass it, only positions below the limit are let through. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    uint32_t limit;
} gate;

typedef struct {
    engine_loop *loop;
    gate *gate; /* opened when the first has been cancelled */
    uint64_t ids[N_REQUESTS + 2];
    char text[N_REQUESTS + 2][512];
    size_t n_text[N_REQUESTS + 2];
    uint32_t n_tokens[N_REQUESTS + 2];
    engine_finish finish[N_REQUESTS + 2];
    int n_finished;
    uint32_t cancel_first_after; /* tokens of request 0; 0: never */
} client;

static void wait_readable(engine_loop *l) {
    struct pollfd p = {.fd = engine_loop_fd(l), .events = POLLIN};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
}

static void wait_at_gate(void *context, uint64_t id, uint32_t position, const float *logits) {
    gate *g = context;
    (void)id;
    (void)logits;
    pthread_mutex_lock(&g->lock);
    while (position >= g->limit) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g, uint32_t limit) {
    pthread_mutex_lock(&g->lock);
    g->limit = limit;
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

static void on_event(void *context, const engine_event *event) {
    client *c = context;
    uintptr_t i = (uintptr_t)event->user;
    assert_int_equal(event->id, c->ids[i]);
    assert_int_equal(c->finish[i], ENGINE_RUNNING); /* nothing comes after the last */
    memcpy(c->text[i] + c->n_text[i], event->text, event->n_text);
    c->n_text[i] += event->n_text;
    c->n_tokens[i] += event->has_token;
    c->finish[i] = event->finish;
    c->n_finished += event->finish != ENGINE_RUNNING;
    if (i == 0 && c->cancel_first_after > 0 && c->n_tokens[0] == c->cancel_first_after) {
        engine_loop_cancel(c->loop, event->id); /* from inside a callback */
        open_gate(c->gate, UINT32_MAX);
    }
}

static void take_until(client *c, int n_finished) {
    while (c->n_finished < n_finished) {
        wait_readable(c->loop);
        engine_loop_take(c->loop, on_event, c);
    }
}

static engine_params small_params(void) {
    engine_params p = engine_params_default();
    p.model_path = tiny_llama_path;
    p.n_threads = 2;
    p.max_num_batched_tokens = 16;
    p.kv_cache_bytes = 32 << 20;
    p.checks = true;
    return p;
}

static engine_loop *start(size_t max_waiting, uint32_t max_num_seqs) {
    engine_loop *l;
    engine_params p = small_params();
    p.max_num_seqs = max_num_seqs;
    assert_int_equal(engine_loop_start(&l, &p, max_waiting, NULL), RIDGE_OK);
    while (engine_loop_get_state(l, NULL) == LOOP_LOADING) {
        wait_readable(l);
        engine_loop_take(l, on_event, NULL);
    }
    assert_int_equal(engine_loop_get_state(l, NULL), LOOP_READY);
    return l;
}

static const int32_t prompt[] = {1, 80, 90, 100, 110, 120};

static engine_request request_of(uintptr_t i, uint32_t max_tokens) {
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = 2 + i % 5;
    q.max_tokens = max_tokens;
    q.ignore_eos = true;
    q.sampling.temperature = 1;
    q.sampling.seed = i;
    q.user = (void *)i;
    return q;
}

static void submit_to_gate(client *c, uintptr_t i, size_t n_prompt) {
    static const int32_t any[60];
    engine_request q = engine_request_default();
    q.prompt = any;
    q.n_prompt = n_prompt;
    q.prompt_only = q.prompt_logits = true;
    q.user = (void *)i;
    assert_int_equal(engine_loop_submit(c->loop, &q, &c->ids[i], NULL), RIDGE_OK);
}

/* While nothing has been submitted, so that the engine's thread sleeps. It stops in its next step.
 */
static void close_gate(client *c, gate *g) {
    *g = (gate){.limit = 0};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->opened, NULL);
    c->gate = g;
    engine_on_logits((engine *)engine_loop_engine(c->loop), wait_at_gate, g);
    submit_to_gate(c, GATE, 1);
}

static void submit_all(client *c, uint32_t max_tokens) {
    for (uintptr_t i = 0; i < N_REQUESTS; i++) {
        engine_request q = request_of(i, max_tokens);
        assert_int_equal(engine_loop_submit(c->loop, &q, &c->ids[i], NULL), RIDGE_OK);
    }
}

static void direct_answers(client *c, uint32_t max_tokens) {
    engine *e;
    engine_params p = small_params();
    const engine_event *events;
    size_t n;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    for (uintptr_t i = 0; i < N_REQUESTS; i++) {
        engine_request q = request_of(i, max_tokens);
        assert_int_equal(engine_submit(e, &q, &c->ids[i], NULL), RIDGE_OK);
        while (engine_step(e, &events, &n))
            for (size_t k = 0; k < n; k++) on_event(c, &events[k]);
    }
    engine_close(e);
}

static void test_the_same_answers(void **state) {
    (void)state;
    static client c, direct;
    c = (client){.loop = start(64, MANY)};
    direct = (client){0};
    direct_answers(&direct, 20);
    submit_all(&c, 20);
    take_until(&c, N_REQUESTS);
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(c.finish[i], ENGINE_LENGTH);
        assert_int_equal(c.n_text[i], direct.n_text[i]);
        assert_memory_equal(c.text[i], direct.text[i], c.n_text[i]);
    }
    assert_true(engine_loop_is_idle(c.loop));
    engine_stats stats;
    engine_loop_stats(c.loop, &stats);
    assert_int_equal(stats.generation_tokens, N_REQUESTS * 20);
    assert_int_equal(stats.finished[ENGINE_LENGTH], N_REQUESTS);
    assert_int_equal(stats.kv_blocks_used, 0);
    engine_loop_destroy(c.loop);
}

static void test_cancelling_disturbs_nobody(void **state) {
    (void)state;
    static client c, direct;
    c = (client){.loop = start(64, MANY), .cancel_first_after = 3};
    direct = (client){0};
    direct_answers(&direct, 100);
    /* Behind 11 others 5 tokens of its prompt come with each step: by its 21st token the first has
     * said 3 of its 100. */
    gate g;
    close_gate(&c, &g);
    submit_all(&c, 100);
    submit_to_gate(&c, GATE + 1, 60);
    engine_loop_cancel(c.loop, c.ids[N_REQUESTS - 1]);
    engine_loop_cancel(c.loop, 999999);
    open_gate(&g, 20);
    take_until(&c, N_REQUESTS + 2);
    assert_int_equal(c.finish[0], ENGINE_CANCELLED);
    assert_int_equal(c.finish[N_REQUESTS - 1], ENGINE_CANCELLED);
    for (int i = 1; i < N_REQUESTS - 1; i++) {
        assert_int_equal(c.n_text[i], direct.n_text[i]);
        assert_memory_equal(c.text[i], direct.text[i], c.n_text[i]);
    }
    engine_loop_destroy(c.loop);
}

/* Not even where there is no memory left, nor among many. */
static void test_a_cancel_is_not_lost(void **state) {
    (void)state;
    static client c;
    c = (client){.loop = start(64, MANY)};
    gate g;
    close_gate(&c, &g);
    submit_all(&c, 110);
    mem_fail_after(1);
    for (int i = 0; i < N_REQUESTS; i++) {
        engine_loop_cancel(c.loop, 1000 + (uint64_t)i);
        engine_loop_cancel(c.loop, c.ids[i]);
        engine_loop_cancel(c.loop, c.ids[i]);
    }
    mem_fail_after(0);
    open_gate(&g, UINT32_MAX);
    take_until(&c, N_REQUESTS + 1);
    for (int i = 0; i < N_REQUESTS; i++) assert_int_equal(c.finish[i], ENGINE_CANCELLED);
    assert_true(engine_loop_is_idle(c.loop));
    engine_loop_destroy(c.loop);
}

/* Who goes away leaves his place to the next at once, not only when the engine comes to see it. */
static void test_a_cancel_frees_a_place(void **state) {
    (void)state;
    static client c;
    c = (client){.loop = start(0, 1)};
    for (uintptr_t i = 0; i < N_REQUESTS; i++) {
        engine_request q = request_of(i, 100);
        assert_int_equal(engine_loop_submit(c.loop, &q, &c.ids[i], NULL), RIDGE_OK);
        assert_int_equal(engine_loop_room(c.loop), 0);
        engine_loop_cancel(c.loop, c.ids[i]);
        assert_int_equal(engine_loop_room(c.loop), 1);
    }
    take_until(&c, N_REQUESTS);
    assert_int_equal(engine_loop_room(c.loop), 1);
    engine_loop_destroy(c.loop);
}

/* As many as may run, and max_waiting more, however soon the engine's thread comes to see them. */
static void test_room_for_so_many(void **state) {
    (void)state;
    static client c;
    c = (client){.loop = start(3, 4)};
    for (int round = 0; round < 3; round++) {
        ridge_error err = {0};
        engine_request q = request_of(0, 50);
        assert_int_equal(engine_loop_most(c.loop), 7);
        for (uintptr_t i = 0; i < 7; i++) {
            assert_int_equal(engine_loop_room(c.loop), 7 - i);
            q.user = (void *)i;
            c.finish[i] = ENGINE_RUNNING;
            c.n_text[i] = 0;
            assert_int_equal(engine_loop_submit(c.loop, &q, &c.ids[i], NULL), RIDGE_OK);
        }
        assert_int_equal(engine_loop_submit(c.loop, &q, &c.ids[7], &err), RIDGE_EFULL);
        assert_non_null(strstr(err.text, "7 requests run or wait already, the limit is 7"));
        take_until(&c, 7 * (round + 1));
    }
    engine_loop_destroy(c.loop);
    c = (client){.loop = start(SIZE_MAX, 4)};
    assert_true(engine_loop_room(c.loop) == SIZE_MAX);
    engine_loop_destroy(c.loop);
}

static void test_submit_survives_every_failing_allocation(void **state) {
    (void)state;
    static client c;
    c = (client){.loop = start(64, MANY)};
    engine_request q = request_of(0, 4);
    ridge_status status = RIDGE_ENOMEM;
    for (long nth = 1; status != RIDGE_OK; nth++) {
        ridge_error err = {0};
        mem_fail_after(nth);
        status = engine_loop_submit(c.loop, &q, &c.ids[0], &err);
        mem_fail_after(0);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_true(engine_loop_is_idle(c.loop));
    }
    take_until(&c, 1);
    assert_int_equal(c.finish[0], ENGINE_LENGTH);
    engine_loop_destroy(c.loop);
}

static void test_draining_cancelled(void **state) {
    (void)state;
    static client c;
    engine_request q = request_of(0, 4);
    c = (client){.loop = start(64, MANY)};
    q.n_prompt = 0;
    assert_int_equal(engine_loop_submit(c.loop, &q, &c.ids[0], NULL), RIDGE_EINVAL);
    submit_all(&c, 110);
    engine_loop_drain(c.loop);
    q = request_of(0, 4);
    uint64_t id;
    assert_int_equal(engine_loop_submit(c.loop, &q, &id, NULL), RIDGE_ECANCEL);
    assert_false(engine_loop_is_idle(c.loop));
    engine_loop_cancel_all(c.loop);
    take_until(&c, N_REQUESTS);
    assert_true(engine_loop_is_idle(c.loop));
    engine_loop_destroy(c.loop);
}

/* With everything in flight: requests queued, events untaken. */
static void test_destroying_at_any_time(void **state) {
    (void)state;
    static client c;
    for (int i = 0; i < 5; i++) {
        c = (client){.loop = start(64, MANY)};
        submit_all(&c, 110);
        usleep((useconds_t)(i * 2000));
        engine_loop_destroy(c.loop);
    }
    engine_loop *l;
    engine_params p = small_params();
    assert_int_equal(engine_loop_start(&l, &p, 1, NULL), RIDGE_OK);
    engine_loop_destroy(l); /* while it loads */
    engine_loop_destroy(NULL);
}

/* What engine_loop_start was given may be gone when it returns. */
static void test_the_parameters_are_copied(void **state) {
    (void)state;
    static client c;
    char affinity[] = "auto", isa[] = "portable";
    engine_params p = small_params();
    p.n_threads = 1;
    p.cpu_affinity = affinity;
    p.isa = isa;
    engine_loop *l;
    assert_int_equal(engine_loop_start(&l, &p, 64, NULL), RIDGE_OK);
    memset(affinity, 'x', sizeof affinity - 1);
    memset(isa, 'x', sizeof isa - 1);
    ridge_error err = {0};
    while (engine_loop_get_state(l, NULL) == LOOP_LOADING) wait_readable(l);
    if (engine_loop_get_state(l, &err) != LOOP_READY) fail_msg("%s", err.text);
    assert_string_equal(engine_isa(engine_loop_engine(l)), "portable");
    c = (client){.loop = l};
    submit_all(&c, 10);
    take_until(&c, N_REQUESTS);
    engine_loop_destroy(l);
}

static void test_a_model_that_does_not_open(void **state) {
    (void)state;
    engine_loop *l;
    ridge_error err = {0};
    engine_params p = small_params();
    p.model_path = "/nonexistent.gguf";
    assert_int_equal(engine_loop_start(&l, &p, 1, NULL), RIDGE_OK);
    while (engine_loop_get_state(l, &err) == LOOP_LOADING) {
        wait_readable(l);
        engine_loop_take(l, on_event, NULL);
    }
    assert_int_equal(engine_loop_get_state(l, &err), LOOP_FAILED);
    assert_int_equal(err.code, RIDGE_ENOTFOUND);
    assert_null(engine_loop_engine(l));
    engine_request q = request_of(0, 4);
    uint64_t id;
    assert_int_equal(engine_loop_submit(l, &q, &id, NULL), RIDGE_ECANCEL);
    engine_loop_destroy(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_answers),
        cmocka_unit_test(test_cancelling_disturbs_nobody),
        cmocka_unit_test(test_a_cancel_is_not_lost),
        cmocka_unit_test(test_a_cancel_frees_a_place),
        cmocka_unit_test(test_room_for_so_many),
        cmocka_unit_test(test_submit_survives_every_failing_allocation),
        cmocka_unit_test(test_draining_cancelled),
        cmocka_unit_test(test_destroying_at_any_time),
        cmocka_unit_test(test_the_parameters_are_copied),
        cmocka_unit_test(test_a_model_that_does_not_open),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
