/* engine/: an answer out of the prefix cache is the answer without it, bit for bit, on tiny models
 * of every architecture: conversations that grow, prompts that begin alike, n choices, a pool so
 * small that prefixes are forgotten and sequences preempted, blocks of any size; and cached_tokens
 * is exactly what was not computed. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "tiny_engine.h"

#define MAX_ANSWERS 64
#define MAX_PROMPT 90
#define N_OUTPUT 8

typedef struct {
    int32_t ids[N_OUTPUT];
    uint32_t n_ids, cached;
    uint64_t bits; /* of every log-probability and text */
    engine_finish finish;
} answer;

typedef struct {
    int32_t prompt[MAX_PROMPT];
    uint32_t n_prompt, choice;
    uint64_t salt;
} question;

static engine *open_engine(const char *path, bool caching, uint32_t block_size, uint32_t chunk,
                           uint64_t kv_bytes) {
    engine_params p = tiny_engine_params(path);
    p.max_num_seqs = 8;
    p.max_num_batched_tokens = chunk;
    p.max_model_len = MAX_PROMPT + N_OUTPUT;
    p.block_size = block_size;
    p.kv_cache_bytes = kv_bytes;
    p.prefix_caching = caching;
    return tiny_engine_open(&p);
}

static void ask(engine *e, const question *q, answer *a) {
    uint64_t id;
    engine_request r = engine_request_default();
    r.prompt = q->prompt;
    r.n_prompt = q->n_prompt;
    r.max_tokens = N_OUTPUT;
    r.ignore_eos = true;
    r.cache_salt = q->salt;
    r.sampling.temperature = 1;
    r.sampling.seed = 5;
    r.sampling.choice = q->choice;
    r.sampling.n_logprobs = 3;
    r.sampling.presence_penalty = .5f;
    r.user = a;
    *a = (answer){0};
    assert_int_equal(engine_submit(e, &r, &id, NULL), RIDGE_OK);
}

static void run(engine *e) {
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) {
            answer *a = events[i].user;
            if (events[i].has_token) a->ids[a->n_ids++] = events[i].token.id;
            a->bits = XXH64(&events[i].token.logprob, sizeof(float), a->bits);
            for (int k = 0; k < events[i].token.n_top; k++)
                a->bits = XXH64(&events[i].token.top[k].logprob, sizeof(float), a->bits);
            a->bits = XXH64(events[i].text, events[i].n_text, a->bits);
            a->finish = events[i].finish;
            a->cached = events[i].usage.cached_tokens;
        }
}

static uint32_t state = 1;

static int32_t any_token(void) {
    state = state * 1664525u + 1013904223u;
    return (int32_t)(3 + (state >> 16) % (TINY_N_VOCAB - 3));
}

static void say(question *q, uint32_t n) {
    while (n-- > 0) q->prompt[q->n_prompt++] = any_token();
}

/* Ten that begin alike, in two tenants; each four choices; three turns of a conversation. */
static size_t make_questions(question *q) {
    question common = {0};
    size_t n = 0;
    say(&common, 37);
    for (uint32_t i = 0; i < 10; i++) {
        q[n] = common;
        q[n].n_prompt -= i;
        q[n].salt = i % 3 == 0 ? 99 : 0;
        say(&q[n], 1 + i * 3);
        n++;
    }
    for (uint32_t i = 0; i < 4; i++) {
        q[n] = q[2];
        q[n++].choice = i;
    }
    for (uint32_t turn = 0; turn < 3; turn++) {
        q[n] = n > 0 && turn > 0 ? q[n - 1] : (question){0};
        say(&q[n++], 11 + turn);
    }
    return n;
}

static void assert_same(const answer *a, const answer *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(a[i].n_ids, N_OUTPUT);
        assert_int_equal(b[i].n_ids, N_OUTPUT);
        assert_memory_equal(a[i].ids, b[i].ids, sizeof a[i].ids);
        assert_int_equal(a[i].bits, b[i].bits);
        assert_int_equal(a[i].finish, b[i].finish);
    }
}

static void check_kind(const char *kind) {
    static question q[MAX_ANSWERS];
    static answer alone[MAX_ANSWERS], warm[MAX_ANSWERS];
    char *path = tiny_model_write(kind);
    size_t n = make_questions(q);
    engine *e = open_engine(path, false, 16, 512, 64 << 20);
    uint64_t token_bytes = engine_kv_bytes_per_token(e);
    for (size_t i = 0; i < n; i++) {
        ask(e, &q[i], &alone[i]);
        run(e);
        assert_int_equal(alone[i].cached, 0);
    }
    engine_close(e);
    const struct {
        uint32_t block_size, chunk;
        uint64_t tokens;
    } cases[] = {{16, 512, 4096}, {1, 64, 4096}, {5, 7, 4096}, {8, 512, 128}, {32, 3, 160}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint64_t n_cached = 0;
        e = open_engine(path, true, cases[c].block_size, cases[c].chunk,
                        cases[c].tokens * token_bytes);
        for (size_t i = 0; i < n; i++) ask(e, &q[i], &warm[i]); /* all at once, cold */
        run(e);
        assert_same(alone, warm, n);
        for (size_t i = 0; i < n; i++) { /* one by one, warm */
            ask(e, &q[i], &warm[i]);
            run(e);
            n_cached += warm[i].cached;
            assert_true(warm[i].cached < q[i].n_prompt);
            if (cases[c].tokens == 4096) assert_int_equal(warm[i].cached, q[i].n_prompt - 1);
        }
        assert_same(alone, warm, n);
        assert_true(n_cached > 0);
        engine_stats stats;
        engine_get_stats(e, &stats);
        assert_int_equal(stats.kv_blocks_used, 0);
        assert_true(stats.kv_blocks_cached > 0 && stats.prefix_hits >= n_cached);
        assert_true((stats.kv_blocks_evicted > 0) == (cases[c].tokens < 4096));
        engine_close(e);
    }
    unlink(path);
    mem_free(path);
}

static void test_a_cached_prefix_changes_nothing(void **unused) {
    (void)unused;
    for (int i = 0; tiny_kinds[i] != NULL; i++) check_kind(tiny_kinds[i]);
}

/* Steps and tokens that are really computed: of a prompt known but for its last token, one. */
static void test_cached_tokens_are_not_computed(void **unused) {
    (void)unused;
    char *path = tiny_model_write("llama");
    engine *e = open_engine(path, true, 16, 512, 64 << 20);
    question q = {0};
    answer a;
    engine_account cold, warm;
    say(&q, 80);
    ask(e, &q, &a);
    run(e);
    engine_account_take(e, &cold);
    ask(e, &q, &a);
    run(e);
    engine_account_take(e, &warm);
    assert_int_equal(a.cached, 79);
    assert_int_equal(warm.n_steps, cold.n_steps);
    assert_true(warm.flops < cold.flops / 5); /* 8 tokens against 87 */
    engine_close(e);
    unlink(path);
    mem_free(path);
}

static void test_why_it_missed(void **unused) {
    (void)unused;
    char *path = tiny_model_write("llama");
    engine *e = open_engine(path, true, 4, 512, 64 << 20);
    question q = {0};
    answer a;
    say(&q, 20);
    ask(e, &q, &a);
    run(e);
    int32_t changed[20];
    memcpy(changed, q.prompt, sizeof changed);
    changed[9] = changed[9] == 5 ? 6 : 5;
    for (uint64_t salt = 0; salt < 2; salt++) {
        engine_request r = engine_request_default();
        const engine_event *events;
        size_t n;
        uint64_t id;
        r.prompt = changed;
        r.n_prompt = 20;
        r.max_tokens = 1;
        r.explain = true;
        r.cache_salt = salt;
        assert_int_equal(engine_submit(e, &r, &id, NULL), RIDGE_OK);
        assert_true(engine_step(e, &events, &n));
        assert_int_equal(n, 1);
        const engine_usage *u = &events[0].usage;
        assert_int_equal(u->cached_tokens, salt == 0 ? 9 : 0);
        assert_int_equal(u->miss.left_at, salt == 0 ? 8 : 0);
        assert_int_equal(u->miss.n_near, salt == 0 ? 20 + N_OUTPUT - 1 - 8 : 0);
        if (salt == 0) assert_memory_equal(u->miss.near, q.prompt + 8, 12 * sizeof *u->miss.near);
    }
    engine_close(e);
    unlink(path);
    mem_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cached_prefix_changes_nothing),
        cmocka_unit_test(test_cached_tokens_are_not_computed),
        cmocka_unit_test(test_why_it_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
