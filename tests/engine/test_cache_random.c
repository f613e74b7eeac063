/* engine/: random traffic through the prefix cache, on tiny models with and without windows, in
 * pools of all sizes: prompts that begin alike and go on with others' answers, tenants, priorities,
 * requests that keep away from the cache or want their prompt's log-probabilities, cancels at any
 * time, a restart in the middle. Every answer is the one of the same request alone, bit for bit;
 * every step has something to do; every invariant holds (engine_params.checks). */
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "tiny_engine.h"

#define N_QUESTIONS 60
#define MAX_PROMPT 100
#define MAX_OUTPUT 16
#define MAX_LIVE 24

typedef struct {
    int32_t prompt[MAX_PROMPT];
    uint32_t n_prompt, n_output;
    uint64_t seed;
    int32_t ids[MAX_OUTPUT]; /* the answer alone */
    uint64_t bits;
} question;

typedef struct {
    const question *q;
    uint64_t id, bits, salt;
    uint32_t n_ids;
    bool live, cancelled, keeps_away;
    int32_t ids[MAX_OUTPUT];
} talk;

static uint64_t state;

static uint32_t any(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

static engine_params params(const char *path) {
    engine_params p = tiny_engine_params(path);
    p.max_model_len = MAX_PROMPT + MAX_OUTPUT;
    return p;
}

static void submit(engine *e, talk *t) {
    engine_request r = engine_request_default();
    r.prompt = t->q->prompt;
    r.n_prompt = t->q->n_prompt;
    r.max_tokens = t->q->n_output;
    r.ignore_eos = true;
    r.sampling.temperature = 1;
    r.sampling.seed = t->q->seed;
    r.sampling.n_logprobs = 2;
    r.cache_salt = t->salt;
    r.priority = (int)any(3);
    r.no_cache = t->keeps_away;
    r.explain = any(4) == 0;
    if (any(12) == 0) r.prompt_logprobs = 1;
    r.user = t;
    t->live = true;
    assert_int_equal(engine_submit(e, &r, &t->id, NULL), RIDGE_OK);
}

static uint64_t add_bits(const engine_event *ev, uint64_t bits) {
    bits = XXH64(&ev->token.logprob, sizeof(float), bits);
    bits = XXH64(&ev->token.top[1].logprob, sizeof(float), bits);
    return XXH64(ev->text, ev->n_text, bits);
}

static void take(const engine_event *events, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const engine_event *ev = &events[i];
        talk *t = ev->user;
        assert_true(t->live && t->id == ev->id);
        if (ev->has_token) {
            t->ids[t->n_ids++] = ev->token.id;
            t->bits = add_bits(ev, t->bits);
        }
        if (ev->finish == ENGINE_RUNNING) continue;
        t->live = false;
        assert_int_equal(ev->finish, t->cancelled ? ENGINE_CANCELLED : ENGINE_LENGTH);
        assert_true(ev->usage.cached_tokens < t->q->n_prompt);
        assert_true(!t->keeps_away || ev->usage.cached_tokens == 0);
        for (uint32_t k = 0; k < ev->usage.miss.n_near; k++)
            assert_in_range(ev->usage.miss.near[k], 0, TINY_N_VOCAB - 1);
        if (t->q->bits == 0 || t->cancelled) continue;
        assert_int_equal(t->n_ids, t->q->n_output);
        assert_memory_equal(t->ids, t->q->ids, t->n_ids * sizeof *t->ids);
        assert_int_equal(t->bits, t->q->bits);
    }
}

static void run_to_end(engine *e) {
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n)) take(events, n);
}

/* A prompt: a beginning of another one, perhaps with its answer, and something of its own. */
static void make_question(question *all, uint32_t i) {
    question *q = &all[i];
    *q = (question){.n_output = 1 + any(MAX_OUTPUT), .seed = any(3)};
    if (i > 0 && any(5) > 0) {
        const question *o = &all[any(i)];
        q->n_prompt = any(3) == 0 ? any(o->n_prompt + 1) : o->n_prompt;
        memcpy(q->prompt, o->prompt, q->n_prompt * sizeof *q->prompt);
        if (q->n_prompt == o->n_prompt && any(2) == 0)
            for (uint32_t k = 0; k < o->n_output && q->n_prompt < MAX_PROMPT; k++)
                q->prompt[q->n_prompt++] = o->ids[k];
    }
    uint32_t more = any(i % 4 == 0 ? 70 : 12);
    while ((more-- > 0 || q->n_prompt == 0) && q->n_prompt < MAX_PROMPT)
        q->prompt[q->n_prompt++] = (int32_t)(3 + any(4) * 60);
}

static void answer_alone(const char *path, question *all) {
    engine_params p = params(path);
    p.prefix_caching = false;
    engine *e = tiny_engine_open(&p);
    for (uint32_t i = 0; i < N_QUESTIONS; i++) {
        make_question(all, i);
        talk t = {.q = &all[i]};
        submit(e, &t);
        run_to_end(e);
        memcpy(all[i].ids, t.ids, sizeof t.ids);
        all[i].bits = t.bits;
    }
    engine_close(e);
}

static void converse(engine *e, const question *all, uint32_t n_requests) {
    static talk talks[MAX_LIVE];
    memset(talks, 0, sizeof talks);
    uint32_t n_idle_steps = 0;
    const engine_event *events;
    size_t n;
    while (n_requests > 0) {
        for (uint32_t i = 0; i < MAX_LIVE; i++) {
            talk *t = &talks[i];
            if (t->live && !t->cancelled && any(60) == 0) {
                t->cancelled = true;
                engine_cancel(e, t->id);
            } else if (!t->live && n_requests > 0 && any(8) == 0) {
                *t = (talk){.q = &all[any(N_QUESTIONS)],
                            .salt = any(4) == 0 ? any(40) : 0,
                            .keeps_away = any(9) == 0};
                submit(e, t);
                n_requests--;
            }
        }
        n_idle_steps = engine_step(e, &events, &n) ? 0 : n_idle_steps + 1;
        take(events, n);
        if (n_idle_steps > 0) assert_int_equal(engine_n_waiting(e), 0);
    }
    run_to_end(e);
    for (uint32_t i = 0; i < MAX_LIVE; i++) assert_false(talks[i].live);
}

/* First one sequence at a time and more memory than it could use. */
static void check_kind(const char *kind, const char *file) {
    static question all[N_QUESTIONS];
    char *path = tiny_model_write(kind);
    answer_alone(path, all);
    static const uint32_t sizes[] = {1, 2, 4, 5, 16, 33, 128, 4096};
    for (uint32_t i = 0; i < 4; i++) {
        engine_params p = params(path);
        uint32_t size = p.block_size = i == 0 ? 2 : sizes[any(8)];
        p.max_num_seqs = i == 0 ? 1 : 1 + any(any(2) == 0 ? 4 : 24);
        p.max_num_batched_tokens = i == 0 ? 3 : 1 + any(any(2) == 0 ? 20 : 300);
        if (i > 0 && any(4) > 0) { /* so many blocks that the longest fits, and hardly more */
            engine *e = tiny_engine_open(&p);
            uint32_t least = (p.max_model_len + size - 1) / size;
            p.kv_cache_bytes = engine_kv_bytes_per_token(e) * size * (least + any(least + 3));
            engine_close(e);
        }
        p.prefix_cache_file = any(2) == 0 ? file : NULL;
        engine *e = tiny_engine_open(&p);
        converse(e, all, 150);
        engine_close(e);
        if (p.prefix_cache_file == NULL) continue;
        e = tiny_engine_open(&p);
        converse(e, all, 60);
        engine_close(e);
    }
    unlink(path);
    mem_free(path);
}

static void test_random_traffic(void **unused) {
    (void)unused;
    char file[] = "/tmp/ridge-random-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    unlink(file);
    state = 1;
    static const char *const kinds[] = {"llama", "gemma2", "gemma3", "gemma3-windows"};
    for (int i = 0; i < 4; i++) check_kind(kinds[i], file);
    unlink(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_traffic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
