/* engine/: targets and schedulers change when things happen, never what is said; how the targets
 * were met is counted; with `shed` whoever would come too late is refused with the numbers. */
#include "unit.h"
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine_loop.h"
#include "tiny_engine.h"

#define N_REQUESTS 24
#define MAX_OUTPUT 24

typedef struct {
    int32_t ids[MAX_OUTPUT];
    float logprobs[MAX_OUTPUT];
    uint32_t n_ids;
    char text[256];
    size_t n_text;
    engine_finish finish;
} outcome;

static engine_params small_params(void) {
    engine_params p = tiny_engine_params(tiny_llama_path);
    p.max_num_seqs = 8;
    p.max_num_batched_tokens = 64;
    p.kv_cache_bytes = 32 << 20;
    return p;
}

static engine_request request_of(uint32_t i, int32_t *prompt) {
    engine_request q = engine_request_default();
    uint32_t state = i * 2654435761u + 1;
    q.prompt = prompt;
    q.n_prompt = 1 + i * 37 % 80;
    for (size_t k = 0; k < q.n_prompt; k++) {
        state = state * 1664525u + 1013904223u;
        prompt[k] = (int32_t)(3 + (state >> 16) % (TINY_N_VOCAB - 3));
    }
    q.max_tokens = 1 + i * 11 % MAX_OUTPUT;
    q.priority = (int)(i % 3);
    q.sampling.temperature = i % 3 == 0 ? 0 : 1;
    q.sampling.seed = i;
    q.sampling.frequency_penalty = i % 4 == 2 ? .5f : 0;
    q.ignore_eos = i % 5 != 0;
    q.user = (void *)(uintptr_t)i;
    return q;
}

static void take(outcome *out, const engine_event *event) {
    outcome *o = &out[(uintptr_t)event->user];
    assert_int_equal(o->finish, ENGINE_RUNNING);
    if (event->has_token) {
        o->logprobs[o->n_ids] = event->token.logprob;
        o->ids[o->n_ids++] = event->token.id;
    }
    memcpy(o->text + o->n_text, event->text, event->n_text);
    o->n_text += event->n_text;
    o->finish = event->finish;
}

/* New ones come while others run. */
static engine_stats run_all(const engine_params *p, outcome *out) {
    engine *e;
    engine_stats stats;
    int32_t prompt[TINY_N_CONTEXT];
    const engine_event *events;
    size_t n;
    uint32_t next = 0;
    memset(out, 0, N_REQUESTS * sizeof *out);
    assert_int_equal(engine_open(&e, p, NULL), RIDGE_OK);
    for (bool busy = true; busy || next < N_REQUESTS;) {
        for (int i = 0; i < 3 && next < N_REQUESTS; i++, next++) {
            engine_request q = request_of(next, prompt);
            uint64_t id;
            assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
        }
        busy = engine_step(e, &events, &n);
        for (size_t i = 0; i < n; i++) take(out, &events[i]);
    }
    engine_get_stats(e, &stats);
    engine_close(e);
    return stats;
}

static void test_no_target_changes_an_answer(void **state) {
    (void)state;
    static outcome plain[N_REQUESTS], other[N_REQUESTS];
    engine_params p = small_params();
    engine_stats stats = run_all(&p, plain);
    assert_int_equal(stats.slo_met + stats.slo_missed, 0);
    assert_int_equal(stats.step_predictions, stats.steps);
    assert_true(stats.step_error_sum > 0);
    const double targets[] = {1e-9, 1e-4, 1e-3, 1e3};
    for (int i = 0; i < 4; i++) {
        p = small_params();
        p.slo_tpot_s = targets[i];
        p.slo_ttft_s = i % 2 == 0 ? 1e3 : 0;
        p.shed = p.slo_ttft_s > 0;
        stats = run_all(&p, other);
        assert_memory_equal(plain, other, sizeof plain);
        assert_int_equal(stats.slo_met + stats.slo_missed, N_REQUESTS);
        if (targets[i] > 1) assert_int_equal(stats.slo_met, N_REQUESTS);
        if (targets[i] < 1e-6) assert_true(stats.slo_missed > N_REQUESTS / 2);
    }
}

/* Nor do static batches, which compute more for the same: rows of those that are done. */
static void check_static_batches(const char *path) {
    static outcome plain[N_REQUESTS], other[N_REQUESTS];
    engine_params p = small_params();
    p.model_path = path;
    engine_stats stats = run_all(&p, plain);
    double continuous = stats.kv_token_steps_used / stats.kv_token_steps_reserved;
    uint64_t n_rows = stats.step_tokens_sum;
    assert_true(continuous > .5 && continuous <= 1);
    assert_int_equal(stats.kv_tokens_reserved, 0); /* nothing runs any more */
    for (uint32_t seqs = 1; seqs <= 16; seqs *= 4) {
        p = small_params();
        p.model_path = path;
        p.static_batches = true;
        p.max_num_seqs = seqs;
        p.slo_ttft_s = 1e3;
        stats = run_all(&p, other);
        assert_memory_equal(plain, other, sizeof plain);
        assert_int_equal(stats.kv_blocks_used, 0);
        assert_int_equal(stats.slo_met, N_REQUESTS);
        assert_int_equal(stats.preemptions, 0);
        assert_true(stats.kv_token_steps_used / stats.kv_token_steps_reserved < continuous);
        if (seqs > 1) assert_true(stats.step_tokens_sum > n_rows);
    }
}

static void test_static_batches_change_no_answer(void **state) {
    (void)state;
    char *windows = tiny_model_write("gemma3");
    check_static_batches(tiny_llama_path);
    check_static_batches(windows);
    unlink(windows);
    mem_free(windows);
}

/* A step's duration decides how many tokens a prompt gets; so with a target that leaves it next to
 * none, a prompt that comes while another one decodes takes many steps, and without one few. */
static void test_the_target_is_for_prompts(void **state) {
    (void)state;
    const double targets[] = {0, 1e-9};
    uint64_t n_steps[2];
    for (int i = 0; i < 2; i++) {
        engine_params p = small_params();
        engine *e;
        engine_stats stats;
        int32_t prompt[TINY_N_CONTEXT] = {0};
        const engine_event *events;
        size_t n;
        p.slo_tpot_s = targets[i];
        assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
        engine_request first = request_of(0, prompt), second = request_of(2, prompt);
        uint64_t id;
        first.max_tokens = 100;
        first.ignore_eos = true;
        assert_int_equal(engine_submit(e, &first, &id, NULL), RIDGE_OK);
        for (int k = 0; k < 4; k++) assert_true(engine_step(e, &events, &n));
        second.n_prompt = 60;
        second.max_tokens = 1;
        assert_int_equal(engine_submit(e, &second, &id, NULL), RIDGE_OK);
        bool done = false;
        while (!done) {
            assert_true(engine_step(e, &events, &n));
            for (size_t k = 0; k < n; k++) done = done || events[k].id == id;
        }
        engine_get_stats(e, &stats);
        n_steps[i] = stats.steps - 4;
        engine_close(e);
    }
    assert_int_equal(n_steps[0], 1);
    assert_in_range(n_steps[1], 3, 60);
}

static void test_bad_targets(void **state) {
    (void)state;
    engine *e;
    const struct {
        double tpot_s, ttft_s;
        bool shed;
        const char *where;
    } cases[] = {{-1, 0, false, "slo_tpot"},      {0, -1e-9, false, "slo_ttft"},
                 {0, 1e30, false, "slo_ttft"},    {1, 0, true, "shed"},
                 {1, 0, false, "static_batches"}, {0, 1, true, "static_batches"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ridge_error err = {0};
        engine_params p = small_params();
        p.slo_tpot_s = cases[i].tpot_s;
        p.slo_ttft_s = cases[i].ttft_s;
        p.shed = cases[i].shed;
        p.static_batches = strcmp(cases[i].where, "static_batches") == 0;
        assert_int_equal(engine_open(&e, &p, &err), RIDGE_EINVAL);
        assert_string_equal(err.where, cases[i].where);
    }
}

/* ---- shedding, through the loop ---- */

/* The engine's thread waits in its first step until the gate opens. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open, reached;
} gate;

static void wait_at_gate(void *context, uint64_t id, uint32_t position, const float *logits) {
    gate *g = context;
    (void)id;
    (void)position;
    (void)logits;
    pthread_mutex_lock(&g->lock);
    g->reached = true;
    pthread_cond_broadcast(&g->opened);
    while (!g->open) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void reach_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    while (!g->reached) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

static void count_last(void *context, const engine_event *event) {
    *(int *)context += event->finish != ENGINE_RUNNING;
}

static void take_until(engine_loop *l, int n_ended) {
    int n = 0;
    while (n < n_ended) {
        struct pollfd p = {.fd = engine_loop_fd(l), .events = POLLIN};
        poll(&p, 1, 1000);
        engine_loop_take(l, count_last, &n);
    }
    assert_int_equal(n, n_ended);
}

static engine_loop *start(double ttft_s, bool shed) {
    engine_loop *l;
    engine_params p = small_params();
    int none = 0;
    p.slo_ttft_s = ttft_s;
    p.shed = shed;
    assert_int_equal(engine_loop_start(&l, &p, 64, NULL), RIDGE_OK);
    while (engine_loop_get_state(l, NULL) == LOOP_LOADING) {
        struct pollfd f = {.fd = engine_loop_fd(l), .events = POLLIN};
        poll(&f, 1, 1000);
        engine_loop_take(l, count_last, &none);
    }
    assert_int_equal(engine_loop_get_state(l, NULL), LOOP_READY);
    return l;
}

static ridge_status submit(engine_loop *l, uint32_t choice, int priority, ridge_error *err) {
    int32_t prompt[TINY_N_CONTEXT];
    engine_request q = request_of(1, prompt);
    uint64_t id;
    q.max_tokens = 4;
    q.ignore_eos = true;
    q.sampling.choice = choice;
    q.follows = choice > 0;
    q.priority = priority;
    return engine_loop_submit(l, &q, &id, err);
}

/* A prompt of 70 tokens of its own, which is not for stating anything but its first token. */
static ridge_status submit_own(engine_loop *l, int32_t own, bool follows, ridge_error *err) {
    int32_t prompt[70];
    engine_request q = engine_request_default();
    uint64_t id;
    for (int i = 0; i < 70; i++) prompt[i] = 3 + (own + i * 7) % (TINY_N_VOCAB - 3);
    q.prompt = prompt;
    q.n_prompt = 70;
    q.max_tokens = 2;
    q.ignore_eos = true;
    q.follows = follows;
    return engine_loop_submit(l, &q, &id, err);
}

static ridge_status submit_long(engine_loop *l, int32_t own, ridge_error *err) {
    return submit_own(l, own, false, err);
}

static void submit_to_gate(engine_loop *l, gate *g) {
    int32_t prompt[TINY_N_CONTEXT];
    engine_request q = request_of(3, prompt);
    uint64_t id;
    q.prompt_only = q.prompt_logits = true;
    engine_on_logits((engine *)engine_loop_engine(l), wait_at_gate, g);
    for (int i = 0; engine_loop_submit(l, &q, &id, NULL) != RIDGE_OK; i++) { /* not idle yet */
        assert_in_range(i, 0, 5000);
        usleep(1000);
    }
    reach_gate(g);
}

static void test_shedding(void **state) {
    (void)state;
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    engine_loop *l = start(1e-9, true);
    engine_stats stats;
    submit_to_gate(l, &g); /* an idle engine takes it, late as it will be */
    ridge_error err = {0};
    assert_int_equal(submit(l, 0, 0, &err), RIDGE_EBUSY);
    assert_in_range(err.retry_after_s, 1, 3600);
    assert_int_equal(ridge_status_http(err.code), 429);
    assert_non_null(strstr(err.text, "the first token would come after about "));
    assert_non_null(strstr(err.text, "the target is 1e-09 s"));
    assert_non_null(strstr(
        err.text, "the 38 of this one (0 more are cached); sequences: 1 running, 0 waiting"));
    assert_int_equal(submit(l, 0, 0, NULL), RIDGE_EBUSY);
    assert_int_equal(submit(l, 1, 0, NULL), RIDGE_OK); /* its prompt's first choice was let in */
    open_gate(&g);
    take_until(l, 2);
    uint64_t n_shed = 2; /* a moment after its last event it knows that it is idle */
    for (int i = 0; submit(l, 0, 0, NULL) != RIDGE_OK; i++, n_shed++) {
        assert_in_range(i, 0, 5000);
        usleep(1000);
    }
    take_until(l, 1);
    engine_loop_stats(l, &stats);
    assert_int_equal(stats.shed, n_shed);
    assert_int_equal(stats.ttft_predictions, 2); /* of those that were to say something */
    assert_true(stats.ttft_error_sum > 0);
    assert_int_equal(stats.slo_missed, 2);
    engine_loop_destroy(l);
}

/* An idle engine takes every request, of however many prompts: were the later ones shed because of
 * the first, it would be refused for ever. */
static void test_prompts_that_come_at_once(void **state) {
    (void)state;
    engine_loop *l = start(1e-9, true);
    engine_stats stats;
    for (int32_t i = 0; i < 8; i++) assert_int_equal(submit_own(l, i, i > 0, NULL), RIDGE_OK);
    take_until(l, 8);
    engine_loop_stats(l, &stats);
    assert_int_equal(stats.shed, 0);
    engine_loop_destroy(l);
}

/* Requests that come while a step runs count against each other, and only those before. */
static void test_what_waits_counts(void **state) {
    (void)state;
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    /* Before any step, on a machine whose peaks are unknown: what one prompt takes is a guess, but
     * always the same. So find how late a request behind k others would be. */
    engine_loop *l = start(1e6, true);
    submit_to_gate(l, &g);
    for (int i = 0; i < 12; i++) assert_int_equal(submit(l, 0, 0, NULL), RIDGE_OK);
    open_gate(&g);
    take_until(l, 13);
    engine_loop_destroy(l);

    int n_before = 0;
    for (double ttft_s = 1e-5; n_before < 12 && ttft_s < 100; ttft_s *= 1.2) {
        g.open = g.reached = false;
        l = start(ttft_s, true);
        submit_to_gate(l, &g);
        int n = 0;
        while (n < 20 && submit(l, 0, 0, NULL) == RIDGE_OK) n++;
        if (n > 0 && n < 20) { /* an unimportant one waits for all, an important one for none */
            assert_int_equal(submit(l, 0, 3, NULL), RIDGE_EBUSY);
            assert_int_equal(submit(l, 0, 0, NULL), RIDGE_EBUSY);
            assert_int_equal(submit(l, 0, -3, NULL), RIDGE_OK);
        }
        assert_true(n >= n_before); /* a later target lets more in */
        n_before = n;
        open_gate(&g);
        take_until(l, 1 + n + (n > 0 && n < 20));
        engine_loop_destroy(l);
    }
    assert_true(n_before >= 12);
}

/* Of two prompts of one length the one that is cached comes in where the other one is shed; and at
 * no target the other way round. */
static void test_what_is_cached_is_let_in(void **state) {
    (void)state;
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    int n_told_apart = 0;
    bool other = false; /* once it comes in, it is in the other's way */
    for (double ttft_s = 1e-6; ttft_s < 10 && !other; ttft_s *= 1.3) {
        engine_loop *l = start(ttft_s, true);
        ridge_error err = {0};
        assert_int_equal(submit_long(l, 1, NULL), RIDGE_OK);
        take_until(l, 1);
        g.open = g.reached = false;
        submit_to_gate(l, &g);
        other = submit_long(l, 2, &err) == RIDGE_OK;
        if (!other) assert_non_null(strstr(err.text, "the 70 of this one (0 more are cached)"));
        err = (ridge_error){0};
        bool cached = !other && submit_long(l, 1, &err) == RIDGE_OK;
        if (!other && !cached)
            assert_non_null(strstr(err.text, "the 6 of this one (64 more are cached)"));
        n_told_apart += cached;
        open_gate(&g);
        take_until(l, 1 + other + cached);
        engine_loop_destroy(l);
    }
    assert_true(n_told_apart > 0);
}

static void test_without_shed_all_come_in(void **state) {
    (void)state;
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    engine_loop *l = start(1e-9, false);
    engine_stats stats;
    submit_to_gate(l, &g);
    for (int i = 0; i < 10; i++) assert_int_equal(submit(l, 0, 0, NULL), RIDGE_OK);
    open_gate(&g);
    take_until(l, 11);
    engine_loop_stats(l, &stats);
    assert_int_equal(stats.shed, 0);
    assert_int_equal(stats.slo_missed, 10);
    assert_int_equal(stats.ttft_predictions, 10);
    engine_loop_destroy(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_target_changes_an_answer),
        cmocka_unit_test(test_static_batches_change_no_answer),
        cmocka_unit_test(test_the_target_is_for_prompts),
        cmocka_unit_test(test_bad_targets),
        cmocka_unit_test(test_shedding),
        cmocka_unit_test(test_prompts_that_come_at_once),
        cmocka_unit_test(test_what_waits_counts),
        cmocka_unit_test(test_what_is_cached_is_let_in),
        cmocka_unit_test(test_without_shed_all_come_in),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
