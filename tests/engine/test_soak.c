/* engine/: soak: 10,000 requests in a random order through one engine whose cache holds hardly more
 * than the longest of them, so that they preempt each other all the time: lengths, ends, ways to
 * draw, priorities, tenants, prompts that begin alike, guesses (n-grams), cancels at any moment.
 * Every answer is, bit for bit, the one of the same request alone; every invariant holds after
 * every step (engine_params.checks); the last 8,000 leave not a byte behind. */
#include "unit.h"
#include <malloc.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "tiny_engine.h"

#ifdef RIDGE_CHECKS /* under sanitizers: a tenth */
#define N_WARM 200
#define N_REQUESTS 1000
#else
#define N_WARM 2000 /* until then all that grows with use may have grown */
#define N_REQUESTS 10000
#endif
#define N_CLASSES 96 /* different requests */
#define MAX_PROMPT 48
#define MAX_OUTPUT 48
#define MAX_LIVE 24
#define BLOCK 4

/* What it says, in a hash: texts, ids, log-probabilities, those of the prompt, the reason of its
 * end. */
typedef struct {
    uint64_t bits;
    uint32_t n_tokens;
    engine_finish finish;
} answer;

typedef struct {
    engine_request request;
    int32_t prompt[MAX_PROMPT];
    answer alone;
} class;

typedef struct {
    const class *of;
    uint64_t id;
    bool live, cancelled;
    answer said;
} talk;

static class classes[N_CLASSES];
static uint32_t n_finished, n_cancelled;
static uint64_t random_state = 1;

static uint32_t any(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* ---- what is asked ---- */

/* The beginning of an earlier one's prompt, mostly, and something of its own. */
static void make_prompt(class *c, uint32_t i) {
    size_t n = 0;
    if (i > 0 && any(4) > 0) {
        const class *other = &classes[any(i)];
        n = 1 + any((uint32_t)other->request.n_prompt);
        memcpy(c->prompt, other->prompt, n * sizeof *c->prompt);
    }
    size_t end = n + 1 + any(any(3) == 0 ? 40 : 12);
    while (n < end && n < MAX_PROMPT) c->prompt[n++] = (int32_t)(3 + any(6) * 40);
    c->request.prompt = c->prompt;
    c->request.n_prompt = n;
}

static void make_class(class *c, uint32_t i) {
    static const char *const stops[] = {"e", "th"};
    static const sampler_bias bias = {TINY_EOS, 5}; /* some end by themselves */
    engine_request *r = &c->request;
    *r = engine_request_default();
    make_prompt(c, i);
    r->max_tokens = 1 + any(MAX_OUTPUT);
    r->min_tokens = any(3) == 0 ? any(r->max_tokens + 1) : 0;
    r->ignore_eos = any(4) == 0;
    r->n_stop = any(3);
    r->stop = stops;
    r->prompt_logprobs = any(12) == 0 ? (int)any(3) : -1;
    sampler_params *s = &r->sampling;
    s->temperature = any(3) == 0 ? 0 : .5f + (float)any(2);
    s->top_k = (int32_t)any(3) * 4;
    s->top_p = any(3) == 0 ? .8f : 1;
    s->repetition_penalty = any(4) == 0 ? 1.3f : 1;
    s->presence_penalty = any(4) == 0 ? .5f : 0;
    s->seed = any(3);
    s->choice = any(2);
    s->n_logprobs = (int)any(5) - 1;
    s->bias = &bias;
    s->n_bias = any(2);
}

static void submit(engine *e, talk *t, const class *c) {
    engine_request r = c->request;
    r.priority = (int)any(3);
    r.cache_salt = any(8) == 0 ? 1 + any(3) : 0;
    r.no_cache = any(16) == 0;
    r.explain = any(16) == 0;
    r.user = t;
    *t = (talk){.of = c, .live = true};
    assert_int_equal(engine_submit(e, &r, &t->id, NULL), RIDGE_OK);
}

/* ---- what comes back ---- */

static void add(answer *a, const engine_event *ev) {
    if (ev->has_token || ev->is_prompt) {
        a->n_tokens += ev->has_token;
        a->bits = XXH64(&ev->token.id, sizeof ev->token.id, a->bits + ev->position);
        a->bits = XXH64(&ev->token.logprob, sizeof ev->token.logprob, a->bits);
        a->bits = XXH64(ev->token.top, (size_t)ev->token.n_top * sizeof *ev->token.top, a->bits);
    }
    if (ev->n_text > 0) a->bits = XXH64(ev->text, ev->n_text, a->bits);
    a->finish = ev->finish;
}

static void assert_as_alone(const talk *t) {
    const answer *alone = &t->of->alone;
    assert_int_equal(t->said.finish, alone->finish);
    assert_int_equal(t->said.n_tokens, alone->n_tokens);
    assert_int_equal(t->said.bits, alone->bits);
}

static bool step(engine *e) {
    const engine_event *events;
    size_t n;
    bool more = engine_step(e, &events, &n);
    for (size_t i = 0; i < n; i++) {
        talk *t = events[i].user;
        assert_true(t->live && t->id == events[i].id);
        add(&t->said, &events[i]);
        if (t->said.finish == ENGINE_RUNNING) continue;
        t->live = false;
        if (t->said.finish == ENGINE_CANCELLED) {
            assert_true(t->cancelled);
            n_cancelled++;
        } else if (t->of->alone.n_tokens > 0) {
            assert_as_alone(t);
            n_finished++;
        }
    }
    return more;
}

/* ---- the traffic ---- */

static engine_params params(const char *path) {
    engine_params p = tiny_engine_params(path);
    p.max_model_len = MAX_PROMPT + MAX_OUTPUT;
    p.block_size = BLOCK;
    return p;
}

static void answer_alone(const char *path) {
    engine_params p = params(path);
    p.prefix_caching = false;
    engine *e = tiny_engine_open(&p);
    for (uint32_t i = 0; i < N_CLASSES; i++) {
        talk t;
        make_class(&classes[i], i);
        submit(e, &t, &classes[i]);
        while (step(e)) continue;
        classes[i].alone = t.said;
    }
    engine_close(e);
}

static void converse(engine *e, uint32_t n_requests) {
    static talk talks[MAX_LIVE];
    while (n_requests > 0) {
        for (uint32_t i = 0; i < MAX_LIVE; i++) {
            talk *t = &talks[i];
            if (!t->live && n_requests > 0 && any(4) == 0) {
                submit(e, t, &classes[any(N_CLASSES)]);
                n_requests--;
            } else if (t->live && !t->cancelled && any(150) == 0) {
                t->cancelled = true;
                engine_cancel(e, t->id);
            }
        }
        step(e);
    }
    while (step(e)) continue;
    for (uint32_t i = 0; i < MAX_LIVE; i++) assert_false(talks[i].live);
}

/* Room for the longest and a half. */
static engine *open_tight(const char *path) {
    engine_params p = params(path);
    engine *e = tiny_engine_open(&p);
    uint32_t n_blocks = (p.max_model_len + BLOCK - 1) / BLOCK * 3 / 2;
    p.kv_cache_bytes = engine_kv_bytes_per_token(e) * BLOCK * n_blocks;
    engine_close(e);
    p.max_num_seqs = 12;
    p.max_num_batched_tokens = 48;
    p.speculative_ngram = true;
    p.num_speculative_tokens = 3;
    return tiny_engine_open(&p);
}

static void test_soak(void **unused) {
    (void)unused;
    char *path = tiny_model_write_cut("gemma2", 2); /* a layer with a window, one without */
    answer_alone(path);
    engine *e = open_tight(path);
    converse(e, N_WARM);
    size_t in_use = mallinfo2().uordblks;
    converse(e, N_REQUESTS - N_WARM);
    /* A leak of anything at all per request would be 8,000 chunks of 32 bytes; the allocator counts
     * what it keeps at hand as in use. */
    assert_in_range(mallinfo2().uordblks, 0, in_use + (64 << 10));

    engine_stats stats;
    engine_get_stats(e, &stats);
    assert_int_equal(n_finished + n_cancelled, N_REQUESTS);
    assert_int_equal(stats.finished[ENGINE_STOP] + stats.finished[ENGINE_LENGTH], n_finished);
    assert_int_equal(stats.finished[ENGINE_CANCELLED], n_cancelled);
    assert_int_equal(stats.kv_blocks_used, 0);
    /* It was what it is meant to be. */
    assert_true(n_cancelled > N_REQUESTS / 50);
    assert_true(stats.preemptions > N_REQUESTS / 20);
    assert_true(stats.prefix_hits > stats.prefix_queries / 20);
    assert_true(stats.accepted_tokens > N_REQUESTS / 50);
    assert_true(stats.finished[ENGINE_STOP] > N_REQUESTS / 50);
    engine_close(e);
    unlink(path);
    mem_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_soak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
