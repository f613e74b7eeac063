/* engine/draft_model: it guesses what the model would say, keeps to its pool, catches up in chunks,
 * and refuses another vocabulary. */
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/draft_model.h"
#include "engine/engine.h"
#include "tiny_model.h"

#define BLOCK 4
#define MAX_TOKENS 64

static device *dev;
static gguf *file;
static tokenizer *vocabulary;
static sampler *draws;

static int setup(void **state) {
    ridge_error err = {0};
    device_cpu_params p = {.n_threads = 1};
    tiny_llama_setup(state);
    assert_int_equal(device_cpu_create(&dev, &p, &err), RIDGE_OK);
    assert_int_equal(gguf_open(&file, tiny_llama_path, &err), RIDGE_OK);
    assert_int_equal(tokenizer_open(&vocabulary, file, NULL, &err), RIDGE_OK);
    assert_int_equal(sampler_create(&draws, TINY_N_VOCAB, &err), RIDGE_OK);
    return 0;
}

static int teardown(void **state) {
    sampler_destroy(draws);
    tokenizer_close(vocabulary);
    gguf_close(file);
    dev->vtable->destroy(dev);
    return tiny_llama_teardown(state);
}

static draft_model_params params(uint32_t n_blocks, uint32_t max_rows) {
    return (draft_model_params){.path = tiny_llama_path,
                                .dev = dev,
                                .target = vocabulary,
                                .n_vocab = TINY_N_VOCAB,
                                .kv_type = DEV_KV_F16,
                                .block_size = BLOCK,
                                .n_blocks = n_blocks,
                                .max_num_seqs = 4,
                                .max_num_batched_tokens = max_rows};
}

static draft_model *open_model(uint32_t n_blocks, uint32_t max_rows) {
    draft_model *d = NULL;
    ridge_error err = {0};
    draft_model_params p = params(n_blocks, max_rows);
    if (draft_model_open(&d, &p, &err) != RIDGE_OK) fail_msg("%s: %s", err.where, err.text);
    return d;
}

/* A sequence and what is asked for it. */
typedef struct {
    sequence seq;
    draft_cache cache;
    sampler_params sampling;
    int32_t guesses[DRAFT_MAX];
} asked;

static void ask(asked *a, draft_model *d, const int32_t *tokens, uint32_t n, uint64_t seed) {
    *a = (asked){.sampling = sampler_params_default()};
    a->sampling.temperature = seed > 0;
    a->sampling.seed = seed;
    assert_int_equal(sequence_init(&a->seq, tokens, n, MAX_TOKENS, BLOCK, 1, NULL), RIDGE_OK);
    assert_int_equal(draft_cache_init(&a->cache, d, MAX_TOKENS, NULL), RIDGE_OK);
}

static draft_job job_of(asked *a, uint32_t n_wanted) {
    return (draft_job){.seq = &a->seq,
                       .cache = &a->cache,
                       .sampling = &a->sampling,
                       .n_wanted = n_wanted,
                       .guesses = a->guesses};
}

static void leave(asked *a, draft_model *d) {
    draft_cache_release(&a->cache, d);
    draft_cache_deinit(&a->cache);
    sequence_deinit(&a->seq);
}

static const int32_t text[] = {1, 100, 101, 102, 50, 7, 8, 9, 100, 101, 33, 34};

/* What the model itself says. */
static void continuation(const int32_t *prompt, uint32_t n, uint64_t seed, int32_t *out,
                         uint32_t n_out) {
    engine *e = NULL;
    engine_params p = engine_params_default();
    engine_request q = engine_request_default();
    const engine_event *events;
    uint64_t id;
    size_t n_events, got = 0;
    p.model_path = tiny_llama_path;
    p.n_threads = 1;
    p.kv_cache_bytes = 1 << 20;
    q.prompt = prompt;
    q.n_prompt = n;
    q.max_tokens = n_out;
    q.ignore_eos = true;
    q.sampling.temperature = seed > 0;
    q.sampling.seed = seed;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
    while (engine_step(e, &events, &n_events))
        for (size_t i = 0; i < n_events; i++) out[got++] = events[i].token.id;
    engine_close(e);
}

/* Of several at once, some at temperature; again after some came true. */
static void test_what_the_model_would_say(void **state) {
    (void)state;
    draft_model *d = open_model(64, 64);
    asked a[3];
    int32_t expected[3][12];
    draft_job jobs[3];
    for (uint32_t i = 0; i < 3; i++) {
        ask(&a[i], d, text, 4 + 3 * i, i);
        continuation(text, 4 + 3 * i, i, expected[i], 12);
        jobs[i] = job_of(&a[i], 2 + i);
    }
    draft_work w = draft_model_guess(d, draws, jobs, 3);
    assert_int_equal(w.n_rounds, 4);
    assert_int_equal(w.n_rows, 4 + 7 + 10 + 1 + 2 + 3);
    assert_true(w.account.flops > 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(jobs[i].n, 2 + i);
        assert_memory_equal(a[i].guesses, expected[i], jobs[i].n * sizeof *expected[i]);
    }
    /* the first token was another one: what was computed from there on is void */
    sequence_append(&a[2].seq, 200);
    draft_cache_keep(&a[2].cache, 10);
    continuation(a[2].seq.tokens, 11, 2, expected[2], 12);
    jobs[2] = job_of(&a[2], 3);
    w = draft_model_guess(d, draws, &jobs[2], 1);
    assert_memory_equal(a[2].guesses, expected[2], 3 * sizeof *expected[2]);
    assert_int_equal(w.n_rows, 1 + 1 + 1);
    for (int i = 0; i < 3; i++) leave(&a[i], d);
    draft_model_close(d);
}

static void test_a_dry_pool(void **state) {
    (void)state;
    draft_model *d = open_model(3, 64);
    asked a[2];
    ask(&a[0], d, text, 6, 0);
    ask(&a[1], d, text, 7, 0);
    draft_job jobs[] = {job_of(&a[0], 2), job_of(&a[1], 2)};
    draft_model_guess(d, draws, jobs, 2);
    assert_int_equal(jobs[0].n, 2);
    assert_int_equal(jobs[1].n, 0); /* two blocks, and there is one */
    draft_cache_release(&a[0].cache, d);
    draft_model_guess(d, draws, &jobs[1], 1);
    assert_int_equal(jobs[1].n, 2);
    for (int i = 0; i < 2; i++) leave(&a[i], d);
    draft_model_close(d);
}

static void test_catching_up(void **state) {
    (void)state;
    draft_model *d = open_model(16, 5);
    asked a;
    int32_t expected[3];
    continuation(text, 12, 0, expected, 3);
    ask(&a, d, text, 12, 0);
    draft_job job = job_of(&a, 3);
    for (uint32_t n = 5; n <= 10; n += 5) {
        draft_work w = draft_model_guess(d, draws, &job, 1);
        assert_int_equal(w.n_rows, 5);
        assert_int_equal(job.n, 0);
        assert_int_equal(a.cache.n_computed, n);
    }
    draft_model_guess(d, draws, &job, 1);
    assert_int_equal(job.n, 3);
    assert_memory_equal(a.guesses, expected, sizeof expected);
    leave(&a, d);
    draft_model_close(d);
}

/* Counts are used, and given back as they were; bans hold as long as for the target. */
static void test_penalties_and_bans(void **state) {
    (void)state;
    draft_model *d = open_model(16, 64);
    asked a;
    ask(&a, d, text, 12, 0);
    a.sampling.repetition_penalty = 100;
    a.sampling.frequency_penalty = 2;
    sampler_counts *counts;
    assert_int_equal(sampler_counts_create(&counts, MAX_TOKENS, NULL), RIDGE_OK);
    draft_job job = job_of(&a, 12);
    job.counts = counts;
    draft_model_guess(d, draws, &job, 1);
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < i; k++) assert_true(a.guesses[i] != a.guesses[k]);
    int32_t first = a.guesses[0];
    a.sampling.banned = &first;
    a.sampling.n_banned = 1;
    job.n_free = 2;
    draft_cache_keep(&a.cache, 11);
    draft_model_guess(d, draws, &job, 1);
    assert_true(a.guesses[0] != first && a.guesses[1] != first);
    a.sampling.n_banned = 0; /* nothing was left in the counts: the first is the first again */
    draft_cache_keep(&a.cache, 11);
    draft_model_guess(d, draws, &job, 1);
    assert_int_equal(a.guesses[0], first);
    sampler_counts_destroy(counts);
    leave(&a, d);
    draft_model_close(d);
}

/* The same file with other bytes in one place. */
static char *patched(const char *find, const char *replace) {
    char name[] = "/tmp/ridge-test-XXXXXX", *data;
    FILE *in = fopen(tiny_llama_path, "rb");
    fseek(in, 0, SEEK_END);
    size_t n = (size_t)ftell(in), at = 0;
    rewind(in);
    data = malloc(n);
    assert_int_equal(fread(data, 1, n, in), n);
    fclose(in);
    while (memcmp(data + at, find, strlen(find)) != 0) at++;
    memcpy(data + at, replace, strlen(replace));
    int fd = mkstemp(name);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
    free(data);
    return mem_strdup(name);
}

static void test_another_vocabulary(void **state) {
    (void)state;
    char *path = patched("<0x41>", "<0x5A>");
    draft_model *d = NULL;
    ridge_error err = {0};
    draft_model_params p = params(4, 8);
    p.path = path;
    assert_int_equal(draft_model_open(&d, &p, &err), RIDGE_EINVAL);
    assert_string_equal(err.where, "--speculative-model");
    assert_string_equal(err.text, "token 68 is 'Z' in the draft model and 'A' in the model: they "
                                  "must have the same vocabulary");
    unlink(path);
    mem_free(path);
    err = (ridge_error){0};
    p = params(4, 8);
    p.n_vocab = TINY_N_VOCAB + 8;
    assert_int_equal(draft_model_open(&d, &p, &err), RIDGE_EINVAL);
    assert_non_null(strstr(err.text, "logits of 272 tokens, the model 280"));
    err = (ridge_error){0};
    p.path = "/nowhere.gguf";
    assert_true(draft_model_open(&d, &p, &err) != RIDGE_OK);
    assert_null(d);
}

static void test_without_memory(void **state) {
    (void)state;
    ridge_status status = RIDGE_ENOMEM;
    for (long n = 1; status != RIDGE_OK; n++) {
        draft_model *d = NULL;
        draft_model_params p = params(4, 8);
        mem_fail_after(n);
        status = draft_model_open(&d, &p, NULL);
        mem_fail_after(0);
        assert_true(status == RIDGE_OK ? d != NULL : d == NULL);
        draft_model_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_model_would_say),
        cmocka_unit_test(test_a_dry_pool),
        cmocka_unit_test(test_catching_up),
        cmocka_unit_test(test_penalties_and_bans),
        cmocka_unit_test(test_another_vocabulary),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
