/* engine/: out of memory at every single allocation from opening a model to the last token: never a
 * crash, a leak (under ASan) or a wrong answer, always an error that says so; and the engine goes
 * on to answer the next request. */
#include "unit.h"
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "tiny_model.h"

#define N_OUTPUT 6

static char *path;
typedef enum { OPEN, SUBMIT, STEP, DONE } stage;

static engine_params params(void) {
    engine_params p = engine_params_default();
    p.model_path = path;
    p.n_threads = 1;
    p.max_num_seqs = 4;
    p.max_num_batched_tokens = 8;
    p.kv_cache_bytes = 8 << 20;
    p.checks = false; /* they allocate, and go on without */
    return p;
}

/* With all that takes memory. */
static ridge_status submit(engine *e, ridge_error *err) {
    static const int32_t prompt[] = {1, 100, 101, 102, 50, 60, 70, 80, 90, 100}, stop_ids[] = {5};
    static const char *const stop[] = {"xxyz", "never"};
    static const sampler_bias bias = {3 + 'x', 100};
    uint64_t id;
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = sizeof prompt / sizeof *prompt;
    q.max_tokens = N_OUTPUT;
    q.min_tokens = 1;
    q.stop = stop;
    q.n_stop = 2;
    q.stop_ids = stop_ids;
    q.n_stop_ids = 1;
    q.prompt_logprobs = 2;
    q.sampling.temperature = 1;
    q.sampling.bias = &bias;
    q.sampling.n_bias = 1;
    q.sampling.n_logprobs = 3;
    q.sampling.presence_penalty = 1;
    return engine_submit(e, &q, &id, err);
}

typedef struct {
    char text[256]; /* fixed: the test's own memory must not be what fails */
    size_t n_text;
    engine_finish finish;
    ridge_error error;
} answer;

static void finish(engine *e, answer *a) {
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(a->finish, ENGINE_RUNNING);
            assert_true(a->n_text + events[i].n_text <= sizeof a->text);
            memcpy(a->text + a->n_text, events[i].text, events[i].n_text);
            a->n_text += events[i].n_text;
            a->finish = events[i].finish;
            if (a->finish == ENGINE_ERROR) a->error = *events[i].error;
        }
    engine_check(e);
}

static answer expected;

static void assert_answers(engine *e) {
    answer a = {0};
    assert_int_equal(submit(e, NULL), RIDGE_OK);
    finish(e, &a);
    assert_int_equal(a.finish, ENGINE_LENGTH);
    assert_int_equal(a.n_text, expected.n_text);
    assert_memory_equal(a.text, expected.text, a.n_text);
}

/* How far it comes when the nth allocation fails. */
static stage run(long nth) {
    engine_params p = params();
    engine *e = NULL;
    answer a = {0};
    stage reached = OPEN;
    mem_fail_after(nth);
    ridge_status status = engine_open(&e, &p, &a.error);
    if (status == RIDGE_OK) {
        reached = SUBMIT;
        status = submit(e, &a.error);
    }
    if (status == RIDGE_OK) {
        finish(e, &a);
        status = a.error.code;
        reached = a.finish == ENGINE_ERROR ? STEP : DONE;
        assert_memory_equal(a.text, expected.text, a.n_text); /* as far as it came */
    }
    mem_fail_after(0);
    if (reached == DONE) {
        assert_int_equal(a.n_text, expected.n_text);
    } else {
        const char *what = strstr(a.error.text, ": out of memory");
        if (status != RIDGE_ENOMEM || what == NULL || what == a.error.text)
            fail_msg("allocation %ld: %d '%s'", nth, status, a.error.text);
    }
    if (e != NULL) assert_answers(e);
    engine_close(e);
    return reached;
}

static void answer_undisturbed(void) {
    engine_params p = params();
    engine *e = NULL;
    expected = (answer){0};
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    assert_int_equal(submit(e, NULL), RIDGE_OK);
    finish(e, &expected);
    assert_int_equal(expected.finish, ENGINE_LENGTH);
    engine_close(e);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    for (int i = 0; tiny_kinds[i] != NULL; i++) {
        long n_at[DONE + 1] = {0};
        path = tiny_model_write(tiny_kinds[i]);
        answer_undisturbed();
        for (long nth = 1; n_at[DONE] == 0; nth++) n_at[run(nth)]++;
        for (stage s = OPEN; s <= DONE; s++) assert_true(n_at[s] > 0);
        unlink(path);
        mem_free(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
