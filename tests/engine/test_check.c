/* engine/check: what must never be is seen. A child breaks one thing and has to die of it. */
#include "unit.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine_internal.h"
#include "tiny_model.h"

static void break_nothing(request *q) {
    (void)q;
}

static void drop_a_byte(request *q) {
    q->said.len--;
}

static void change_a_byte(request *q) {
    q->said.data[0] ^= 1;
}

static void say_a_token_twice(request *q) {
    q->n_said++;
}

static void lose_a_token(request *q) {
    q->seq.n_tokens--;
}

static void lose_a_block(request *q) {
    q->seq.kv.tables[0].n_blocks--;
}

static void hold_a_block_twice(request *q) {
    q->seq.kv.tables[0].blocks[0] = q->seq.kv.tables[0].blocks[1];
}

/* One request that is broken after some steps. */
static void child(void (*break_it)(request *q)) {
    static int32_t prompt[40] = {1, 2};
    engine *e = NULL;
    engine_params p = engine_params_default();
    p.model_path = tiny_llama_path;
    p.n_threads = 1;
    p.kv_cache_bytes = 8 << 20;
    p.checks = true;
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = 40;
    q.max_tokens = 8;
    q.ignore_eos = true;
    const sampler_bias bias = {3 + 'x', 100};
    q.sampling.bias = &bias;
    q.sampling.n_bias = 1;
    uint64_t id;
    const engine_event *events;
    size_t n;
    if (engine_open(&e, &p, NULL) != RIDGE_OK || engine_submit(e, &q, &id, NULL) != RIDGE_OK)
        _exit(2);
    for (int i = 0; i < 3; i++)
        if (!engine_step(e, &events, &n)) _exit(3);
    break_it(e->live);
    while (engine_step(e, &events, &n)) continue;
    engine_close(e);
    _exit(0);
}

static int fate(void (*break_it)(request *q)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        int null = open("/dev/null", O_WRONLY); /* what the assertion says */
        if (null >= 0) dup2(null, STDERR_FILENO);
        child(break_it);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_what_is_broken_is_seen(void **state) {
    (void)state;
    int status = fate(break_nothing);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    void (*const ways[])(request * q) = {drop_a_byte,  change_a_byte, say_a_token_twice,
                                         lose_a_token, lose_a_block,  hold_a_block_twice};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        status = fate(ways[i]);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) fail_msg("way %zu: %x", i, status);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_broken_is_seen)};
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
