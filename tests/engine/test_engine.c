/* engine/: the scheduler can never change an answer. Tiny random models of every architecture; the
 * same requests alone, together, chunked, preempted, on other threads and other blocks: bit for bit
 * the same logits, tokens and text, with the invariants checked after every step. */
#include "unit.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "tiny_engine.h"

#ifdef __SANITIZE_THREAD__ /* slow: what threads do, and no more; they meet alike in all kinds */
#define THREADS_ALONE true
#define N_REQUESTS 12
#define N_KINDS 1
#else
#define THREADS_ALONE false
#ifdef __SANITIZE_ADDRESS__
#define N_REQUESTS 12
#else
#define N_REQUESTS 32
#endif
#define N_KINDS INT_MAX
#endif
#define MAX_PROMPT 60
#define MAX_OUTPUT 24

/* What one request gave. */
typedef struct {
    uint64_t prompt_logits; /* a hash of every row's bits */
    uint32_t n_rows;
    int32_t ids[MAX_OUTPUT];
    float logprobs[MAX_OUTPUT][6];
    uint32_t n_ids;
    char text[512];
    size_t n_text;
    engine_finish finish;
} outcome;

typedef struct {
    engine *e;
    outcome *out; /* [n] by index, which `user` carries */
    uint64_t ids[N_REQUESTS];
    uint64_t n_preempted, n_prompt_tokens;
} run;

static uint32_t prompt_of(uint32_t index, int32_t *prompt) {
    uint32_t n = 1 + index * 37 % MAX_PROMPT, state = index * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        prompt[i] = (int32_t)(3 + (state >> 16) % (TINY_N_VOCAB - 3));
    }
    return n;
}

static engine_params small_params(const char *path) {
    engine_params p = tiny_engine_params(path);
    p.max_num_seqs = 32;
    return p;
}

static void hash_row(void *context, uint64_t id, uint32_t position, const float *logits) {
    run *r = context;
    uint32_t i = 0;
    while (r->ids[i] != id) i++;
    assert_int_equal(position, r->out[i].n_rows);
    r->out[i].n_rows++;
    for (int k = 0; k < TINY_N_VOCAB; k++) assert_true(isfinite(logits[k]));
    r->out[i].prompt_logits = XXH64(logits, TINY_N_VOCAB * sizeof *logits, r->out[i].prompt_logits);
}

static void take(outcome *o, const engine_event *event) {
    assert_int_equal(o->finish, ENGINE_RUNNING);
    if (event->has_token) {
        o->ids[o->n_ids] = event->token.id;
        o->logprobs[o->n_ids][0] = event->token.logprob;
        for (int k = 0; k < event->token.n_top; k++)
            o->logprobs[o->n_ids][k + 1] = event->token.top[k].logprob;
        o->n_ids++;
    }
    memcpy(o->text + o->n_text, event->text, event->n_text);
    o->n_text += event->n_text;
    o->finish = event->finish;
}

static uint64_t submit(run *r, uint32_t slot, uint32_t index) {
    int32_t prompt[MAX_PROMPT];
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = prompt_of(index, prompt);
    q.max_tokens = 1 + index * 11 % MAX_OUTPUT;
    q.sampling.temperature = index % 3 == 0 ? 0 : 1;
    q.sampling.seed = index;
    q.sampling.n_logprobs = 5;
    q.sampling.repetition_penalty = index % 4 == 1 ? 1.3f : 1;
    q.sampling.frequency_penalty = index % 4 == 2 ? .5f : 0;
    q.prompt_logits = true;
    q.ignore_eos = index % 5 != 0;
    q.user = (void *)(uintptr_t)slot;
    assert_int_equal(engine_submit(r->e, &q, &r->ids[slot], NULL), RIDGE_OK);
    return q.n_prompt;
}

static void finish_all(run *r) {
    const engine_event *events;
    size_t n;
    while (engine_step(r->e, &events, &n)) {
        engine_check(r->e);
        for (size_t i = 0; i < n; i++) take(&r->out[(uintptr_t)events[i].user], &events[i]);
    }
    assert_int_equal(engine_n_running(r->e) + engine_n_waiting(r->e), 0);
    engine_stats stats;
    engine_get_stats(r->e, &stats);
    assert_int_equal(stats.kv_blocks_used, 0);
    r->n_preempted = stats.preemptions;
    r->n_prompt_tokens = stats.prompt_tokens;
}

/* Requests [first, first + n) together; returns how many preemptions it took. */
static uint64_t run_together(const engine_params *p, uint32_t first, uint32_t n, outcome *out) {
    run r = {.e = tiny_engine_open(p), .out = out};
    memset(out, 0, n * sizeof *out);
    engine_on_logits(r.e, hash_row, &r);
    uint64_t n_prompt_tokens = 0;
    for (uint32_t i = 0; i < n; i++) n_prompt_tokens += submit(&r, i, first + i);
    finish_all(&r);
    assert_int_equal(r.n_prompt_tokens, n_prompt_tokens); /* preempted or not */
    engine_close(r.e);
    return r.n_preempted;
}

/* Each alone, one after the other. */
static void run_alone(const engine_params *p, outcome *out) {
    run r = {.e = tiny_engine_open(p)};
    memset(out, 0, N_REQUESTS * sizeof *out);
    engine_on_logits(r.e, hash_row, &r);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        r.out = out + i;
        submit(&r, 0, i);
        finish_all(&r);
    }
    engine_close(r.e);
}

static void assert_same(const outcome *a, const outcome *b, uint32_t n, const char *kind,
                        const char *what) {
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, %s: request %u differs (prompt logits %s, %u and %u tokens)", kind, what,
                     i, a[i].prompt_logits == b[i].prompt_logits ? "equal" : "differ", a[i].n_ids,
                     b[i].n_ids);
}

static void check_invariance(const char *kind, bool precise) {
    static outcome alone[N_REQUESTS], other[N_REQUESTS];
    static const uint32_t chunks[] = {1, 7, 32, 512}, blocks[] = {1, 5, 16, 64};
    char *path = tiny_model_write(kind);
    engine_params p = small_params(path);
    p.precise = precise;
    run_alone(&p, alone);
    for (uint32_t i = 0; i < N_REQUESTS; i++) assert_true(alone[i].n_ids > 0);
    for (size_t i = THREADS_ALONE ? 3 : 0; i < 4; i++) {
        p = small_params(path);
        p.precise = precise;
        p.max_num_batched_tokens = chunks[i];
        p.n_threads = chunks[i] < 512 ? 1 : 2; /* few steps: barriers are slow on a busy machine */
        p.block_size = blocks[i];
        uint32_t n = chunks[i] == 1 ? N_REQUESTS / 4 : N_REQUESTS; /* a step per token is slow */
        run_together(&p, 0, n, other);
        assert_same(alone, other, n, kind, "chunks");
    }
    p = small_params(path);
    p.precise = precise;
    p.n_threads = 2;
    for (uint32_t n = 2; n <= 9; n += 7) {
        run_together(&p, 3, n, other);
        assert_same(alone + 3, other, n, kind, "batch");
    }
    if (!THREADS_ALONE) {
        p.n_threads = 1;
        p.max_num_seqs = 8;
        p.max_model_len = 84;
        p.block_size = 4;
        engine *e = tiny_engine_open(&p);
        p.kv_cache_bytes = 24 * 4 * engine_kv_bytes_per_token(e); /* hardly more than one request */
        engine_close(e);
        uint64_t n_preempted = run_together(&p, 0, N_REQUESTS, other);
        assert_true(n_preempted > 0);
        assert_same(alone, other, N_REQUESTS, kind, "preemption");
    }
    unlink(path);
    mem_free(path);
}

static void test_nothing_changes_an_answer(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS && tiny_kinds[i] != NULL; i++)
        check_invariance(tiny_kinds[i], false);
}

static void test_nothing_changes_a_precise_answer(void **state) {
    (void)state;
    check_invariance("gemma3", true);
}

/* One engine for the tests below. */
static char *llama_path;
static engine *llama;

static int open_llama(void **state) {
    (void)state;
    llama_path = tiny_model_write("llama");
    engine_params p = small_params(llama_path);
    llama = tiny_engine_open(&p);
    return 0;
}

static int close_llama(void **state) {
    (void)state;
    engine_close(llama);
    unlink(llama_path);
    mem_free(llama_path);
    return 0;
}

static const int32_t short_prompt[] = {1, 100, 101, 102, 50};

static engine_request short_request(uint32_t max_tokens) {
    engine_request q = engine_request_default();
    q.prompt = short_prompt;
    q.n_prompt = 5;
    q.max_tokens = max_tokens;
    q.ignore_eos = true;
    return q;
}

static outcome answer(const engine_request *q) {
    outcome o = {0};
    uint64_t id;
    const engine_event *events;
    size_t n;
    assert_int_equal(engine_submit(llama, q, &id, NULL), RIDGE_OK);
    while (engine_step(llama, &events, &n)) {
        engine_check(llama);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(events[i].id, id);
            if (events[i].finish != ENGINE_RUNNING && events[i].finish != ENGINE_CANCELLED)
                assert_int_equal(events[i].usage.prompt_tokens, q->n_prompt);
            take(&o, &events[i]);
        }
    }
    assert_true(o.finish != ENGINE_RUNNING);
    return o;
}

static void test_streamed_text_is_the_decoded_text(void **state) {
    (void)state;
    engine_request q = short_request(24);
    q.sampling.temperature = 1.5f; /* many byte tokens: broken characters too */
    for (uint64_t seed = 0; seed < 20; seed++) {
        q.sampling.seed = seed;
        outcome o = answer(&q);
        buf whole = {0};
        detokenizer d = {0};
        for (uint32_t i = 0; i < o.n_ids; i++)
            detokenizer_push(&d, engine_tokenizer(llama), o.ids[i], false, &whole);
        detokenizer_finish(&d, &whole);
        assert_int_equal(o.n_text, whole.len);
        assert_memory_equal(o.text, whole.data, whole.len);
        assert_int_equal(o.finish, ENGINE_LENGTH);
        buf_free(&whole);
    }
}

static void test_stop_strings_and_ids(void **state) {
    (void)state;
    engine_request q = short_request(24);
    q.sampling.temperature = 1;
    q.sampling.seed = 4;
    outcome whole = answer(&q);
    assert_int_equal(whole.n_ids, 24);
    q.stop_ids = &whole.ids[9];
    q.n_stop_ids = 1;
    outcome o = answer(&q);
    assert_int_equal(o.finish, ENGINE_STOP);
    assert_true(o.n_ids <= 10 && o.ids[o.n_ids - 1] == whole.ids[9]);
    q.min_tokens = 24; /* the id is banned rather than drawn */
    o = answer(&q);
    assert_int_equal(o.n_ids, 24);
    for (int i = 0; i < 24; i++) assert_true(o.ids[i] != whole.ids[9]);
    q = short_request(24);
    q.sampling = (sampler_params){0};
    q.sampling = sampler_params_default();
    q.sampling.temperature = 1;
    q.sampling.seed = 4;
    char tail[8] = {0};
    memcpy(tail, whole.text + 10, 3); /* wherever the tokens' borders are */
    const char *stop[] = {tail};
    q.stop = stop;
    q.n_stop = 1;
    o = answer(&q);
    assert_int_equal(o.finish, ENGINE_STOP);
    assert_true(o.n_text <= 10);
    assert_memory_equal(o.text, whole.text, o.n_text);
}

static bool round_peaks(void *context, const char *isa, int n_threads, uint64_t weight_bytes,
                        roof_peaks *out) {
    assert_string_equal(isa, "portable");
    assert_int_equal(n_threads, 1);
    assert_true(weight_bytes > 0);
    *out = (roof_peaks){1e9, 1e10, 1e8};
    return *(bool *)context;
}

/* Two at once, the second with a longer answer: the shares of the steps each was in. */
static void usages_of_two(bool known, bool precise, engine_usage usage[2], engine_account *all) {
    engine_params p = small_params(llama_path);
    p.isa = "portable";
    p.precise = precise;
    p.peaks = round_peaks;
    p.peaks_context = &known;
    p.prefix_caching = false; /* both prompts are the same, and computed in one step */
    engine *e = tiny_engine_open(&p);
    const engine_event *events;
    size_t n;
    for (uintptr_t i = 0; i < 2; i++) {
        uint64_t id;
        engine_request q = short_request(4 + 8 * (uint32_t)i);
        q.user = (void *)i;
        assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
    }
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++)
            if (events[i].finish != ENGINE_RUNNING)
                usage[(uintptr_t)events[i].user] = events[i].usage;
    engine_account_take(e, all);
    engine_close(e);
}

static void test_how_near_the_roof(void **state) {
    (void)state;
    engine_usage u[2];
    engine_account all;
    for (int precise = 0; precise < 2; precise++) {
        usages_of_two(true, precise != 0, u, &all);
        assert_int_equal(all.n_steps, 12);
        for (int i = 0; i < 2; i++) {
            assert_true(u[i].bytes_per_s > 0 && u[i].flops_per_s > 0);
            assert_true(u[i].mbu == u[i].bytes_per_s / 1e9);
            assert_true(u[i].mfu == u[i].flops_per_s / (precise ? 1e8 : 1e10));
        }
        /* the second was in every step, its last one too */
        assert_true(u[1].bytes_per_s == (all.weight_bytes + all.kv_bytes) / all.seconds);
        assert_true(u[1].flops_per_s == all.flops / all.seconds);
    }
    usages_of_two(false, false, u, &all);
    assert_true(u[1].bytes_per_s > 0 && u[1].mbu == 0 && u[1].mfu == 0);
}

static void count_row(void *context, uint64_t id, uint32_t position, const float *logits) {
    uint32_t *n = context;
    (void)id;
    (void)logits;
    assert_int_equal(position, *n);
    ++*n;
}

static void test_a_full_context_ends_by_length(void **state) {
    (void)state;
    static int32_t prompt[TINY_N_CONTEXT];
    engine_request q = engine_request_default();
    for (int i = 0; i < TINY_N_CONTEXT; i++) prompt[i] = 3 + i;
    q.prompt = prompt;
    q.n_prompt = TINY_N_CONTEXT - 3;
    q.ignore_eos = true;
    outcome o = answer(&q);
    assert_int_equal(o.finish, ENGINE_LENGTH);
    assert_int_equal(o.n_ids, 3);
    q.n_prompt = TINY_N_CONTEXT;
    ridge_error err = {0};
    uint64_t id;
    assert_int_equal(engine_submit(llama, &q, &id, &err), RIDGE_EINVAL);
    assert_non_null(strstr(err.text, "128 tokens, too many for a context of 128"));
    uint32_t n_rows = 0;
    q.prompt_only = q.prompt_logits = true; /* as score and perplexity ask */
    engine_on_logits(llama, count_row, &n_rows);
    o = answer(&q);
    engine_on_logits(llama, NULL, NULL);
    assert_int_equal(o.finish, ENGINE_LENGTH);
    assert_int_equal(o.n_ids, 0);
    assert_int_equal(n_rows, TINY_N_CONTEXT);
}

static void test_bad_requests_are_refused(void **state) {
    (void)state;
    const int32_t unknown[] = {1, TINY_N_VOCAB}, negative[] = {-1};
    const char *empty[] = {""};
    uint64_t id;
    engine_request q = short_request(4);
    q.n_prompt = 0;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    q = short_request(4);
    q.prompt = unknown;
    q.n_prompt = 2;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    q.prompt = negative;
    q.n_prompt = 1;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    q = short_request(4);
    q.sampling.top_p = 2;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    q = short_request(4);
    q.stop = empty;
    q.n_stop = 1;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    q = short_request(4);
    q.min_tokens = 5;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_EINVAL);
    ridge_error err = {0}; /* what the context cannot hold, though max_tokens would be cut to it */
    q.max_tokens = 0;
    q.min_tokens = TINY_N_CONTEXT - (uint32_t)q.n_prompt + 1;
    assert_int_equal(engine_submit(llama, &q, &id, &err), RIDGE_EINVAL);
    assert_string_equal(err.where, "min_tokens");
    char room[64];
    snprintf(room, sizeof room, "leaves room for %u in a context of 128", q.min_tokens - 1);
    assert_non_null(strstr(err.text, room));
    q.min_tokens--;
    q.max_tokens = 1000;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_OK);
    engine_cancel(llama, id);
    const engine_event *events;
    for (size_t n = 0; engine_step(llama, &events, &n);) continue;
    engine_check(llama);
}

/* A cancelled sequence leaves at once and disturbs nobody. */
static void test_cancelling(void **state) {
    (void)state;
    engine_request q = short_request(20);
    outcome undisturbed = answer(&q), o[3] = {0};
    uint64_t ids[3];
    const engine_event *events;
    size_t n;
    int steps = 0;
    for (uintptr_t i = 0; i < 3; i++) {
        q.user = (void *)i;
        assert_int_equal(engine_submit(llama, &q, &ids[i], NULL), RIDGE_OK);
    }
    engine_cancel(llama, ids[2]); /* still waiting */
    while (engine_step(llama, &events, &n)) {
        for (size_t i = 0; i < n; i++) take(&o[(uintptr_t)events[i].user], &events[i]);
        if (++steps == 7) {
            engine_cancel(llama, ids[0]);
            engine_cancel(llama, ids[0]);
            engine_cancel(llama, 123456);
        }
        engine_check(llama);
    }
    assert_memory_equal(&o[1], &undisturbed, sizeof undisturbed);
    assert_int_equal(o[0].finish, ENGINE_CANCELLED);
    assert_int_equal(o[0].n_ids, 7);
    assert_int_equal(o[2].finish, ENGINE_CANCELLED);
    assert_int_equal(o[2].n_ids, 0);
}

static void test_prompt_logprobs(void **state) {
    (void)state;
    engine_request q = short_request(2);
    q.prompt_logprobs = 3;
    uint64_t id;
    const engine_event *events;
    size_t n;
    uint32_t next = 1;
    assert_int_equal(engine_submit(llama, &q, &id, NULL), RIDGE_OK);
    while (engine_step(llama, &events, &n))
        for (size_t i = 0; i < n; i++) {
            if (!events[i].is_prompt) continue;
            assert_int_equal(events[i].position, next);
            assert_int_equal(events[i].token.id, short_prompt[next++]);
            assert_int_equal(events[i].token.n_top, 3);
            assert_true(events[i].token.logprob <= events[i].token.top[0].logprob);
        }
    assert_int_equal(next, 5);
}

static void test_a_cache_too_small_says_so(void **state) {
    (void)state;
    engine *e = NULL;
    ridge_error err = {0};
    engine_params p = small_params(llama_path);
    p.kv_cache_bytes = 32 * engine_kv_bytes_per_token(llama);
    assert_int_equal(engine_open(&e, &p, &err), RIDGE_ENOMEM);
    assert_non_null(strstr(err.text, "holds 32 tokens"));
    p.max_model_len = 0; /* not asked for: cut to what there is */
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    assert_int_equal(engine_max_model_len(e), 32);
    engine_close(e);
}

/* Used or not, what was asked for by name has to be there. */
static void test_a_cache_larger_than_memory(void **state) {
    (void)state;
    engine *e = NULL;
    ridge_error err = {0};
    engine_params p = small_params(llama_path);
    p.kv_cache_bytes = (uint64_t)1 << 60;
    assert_int_equal(engine_open(&e, &p, &err), RIDGE_ENOMEM);
    assert_non_null(strstr(err.text, "bytes of memory are free"));
}

static void test_limits(void **state) {
    (void)state;
    engine *e = NULL;
    for (int i = 0; i < 4; i++) {
        engine_params p = small_params(llama_path);
        if (i == 0) p.max_num_seqs = ENGINE_MAX_SEQS + 1;
        if (i == 1) p.max_num_batched_tokens = ENGINE_MAX_BATCHED_TOKENS + 1;
        if (i == 2) p.block_size = ENGINE_MAX_BLOCK_SIZE + 1;
        if (i == 3) p.n_threads = ENGINE_MAX_THREADS + 1;
        assert_int_equal(engine_open(&e, &p, NULL), RIDGE_EINVAL);
    }
    engine_params p = small_params(llama_path);
    p.max_num_seqs = ENGINE_MAX_SEQS;
    p.max_num_batched_tokens = 4096;
    p.block_size = ENGINE_MAX_BLOCK_SIZE;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_changes_an_answer),
        cmocka_unit_test(test_nothing_changes_a_precise_answer),
        cmocka_unit_test(test_streamed_text_is_the_decoded_text),
        cmocka_unit_test(test_stop_strings_and_ids),
        cmocka_unit_test(test_how_near_the_roof),
        cmocka_unit_test(test_a_full_context_ends_by_length),
        cmocka_unit_test(test_bad_requests_are_refused),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_a_cache_too_small_says_so),
        cmocka_unit_test(test_a_cache_larger_than_memory),
        cmocka_unit_test(test_limits),
    };
    if (THREADS_ALONE) cmocka_set_test_filter("test_nothing_changes_*");
    return cmocka_run_group_tests(tests, open_llama, close_llama);
}
