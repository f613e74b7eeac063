/* Speculative decoding never changes an answer: every event of every request, bit for bit that of
 * plain decoding, whatever the guesses are and however the batch is made. */
#include "unit.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "engine/engine_internal.h"
#include "tiny_engine.h"

#define N_REQUESTS 40
#define MAX_PROMPT 48
#define MAX_OUTPUT 40

/* All that was said of one request. */
typedef struct {
    buf events; /* each event's fields, one after the other */
    int32_t tokens[MAX_PROMPT + MAX_OUTPUT];
    uint32_t n_prompt, n_tokens;
    engine_finish finish;
    engine_usage usage;
} outcome;

static void append(outcome *o, const void *data, size_t n) {
    buf_append(&o->events, data, n);
}

static void take(outcome *o, const engine_event *event) {
    assert_int_equal(o->finish, ENGINE_RUNNING);
    append(o, &event->is_prompt, sizeof event->is_prompt);
    append(o, &event->position, sizeof event->position);
    if (event->has_token || event->is_prompt) {
        append(o, &event->token.id, sizeof event->token.id);
        append(o, &event->token.logprob, sizeof event->token.logprob);
        append(o, event->token.top, (size_t)event->token.n_top * sizeof *event->token.top);
    }
    if (event->has_token) o->tokens[o->n_tokens++] = event->token.id;
    append(o, event->text, event->n_text);
    append(o, &event->finish, sizeof event->finish);
    append(o, &event->stop_string, sizeof event->stop_string);
    o->finish = event->finish;
    o->usage = event->usage;
}

static void forget(outcome *out) {
    for (int i = 0; i < N_REQUESTS; i++) buf_free(&out[i].events);
    memset(out, 0, N_REQUESTS * sizeof *out);
}

/* Prompts that repeat themselves, and others; one of a single token. */
static uint32_t prompt_of(uint32_t index, int32_t *prompt) {
    uint32_t n = index % 8 == 7 ? 1 : 3 + index * 37 % (MAX_PROMPT - 3);
    uint32_t state = index * 2654435761u + 1, period = index % 3 == 2 ? MAX_PROMPT : 1 + index % 7;
    for (uint32_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        prompt[i] =
            i < period ? (int32_t)(3 + (state >> 16) % (TINY_N_VOCAB - 3)) : prompt[i - period];
    }
    return n;
}

/* Of every field that has a part in which token comes, is reported, or ends the text. */
static engine_request request_of(uint32_t index, const int32_t *prompt, uint32_t n_prompt) {
    static const sampler_bias bias[] = {{TINY_EOS, 5}, {100, 2}, {40, -100}, {262, 3}, {266, 3}};
    static const char *const stop[] = {"the", "e", "\xC3\xA9", "zz"};
    static int32_t stop_ids[24]; /* so that one comes before long */
    for (int i = 0; i < 24; i++) stop_ids[i] = 20 + 10 * i;
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = n_prompt;
    q.max_tokens = 1 + index * 11 % MAX_OUTPUT;
    q.ignore_eos = index % 5 != 0;
    q.special = index % 7 == 0;
    q.sampling.temperature = index % 2 == 0 ? 0 : .3f * (float)(index % 5);
    q.sampling.seed = index * 77;
    q.sampling.choice = index % 3;
    q.sampling.top_k = index % 6 == 1 ? 20 : 0;
    q.sampling.top_p = index % 6 == 3 ? .9f : 1;
    q.sampling.min_p = index % 6 == 5 ? .05f : 0;
    q.sampling.repetition_penalty = index % 4 == 1 ? 1.2f : 1;
    q.sampling.frequency_penalty = index % 8 == 2 ? .5f : 0;
    q.sampling.presence_penalty = index % 8 == 6 ? .4f : 0;
    q.sampling.n_logprobs = (int)(index % 5) - 1;
    q.prompt_logprobs = index % 9 == 4 ? 2 : -1;
    q.priority = (int)(index % 3);
    if (index % 3 == 0) {
        q.sampling.bias = bias;
        q.sampling.n_bias = 5;
    }
    if (index % 4 == 3) {
        q.stop = stop;
        q.n_stop = 4;
    }
    if (index % 5 == 1) {
        q.stop_ids = stop_ids;
        q.n_stop_ids = 24;
    }
    if (index % 5 == 0) q.min_tokens = q.max_tokens / 2;
    q.user = (void *)(uintptr_t)index;
    return q;
}

static engine_params small_params(const char *path) {
    engine_params p = tiny_engine_params(path);
    p.max_num_seqs = 8;
    p.kv_cache_bytes = 8 << 20;
    return p;
}

static void submit(engine *e, uint32_t index, outcome *out) {
    uint64_t id;
    uint32_t n = prompt_of(index, out[index].tokens);
    engine_request q = request_of(index, out[index].tokens, n);
    out[index].n_prompt = out[index].n_tokens = n;
    assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
}

static void finish_all(engine *e, outcome *out) {
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) take(&out[(uintptr_t)events[i].user], &events[i]);
    assert_int_equal(engine_n_running(e) + engine_n_waiting(e), 0);
}

/* Each alone, one after the other, without any guess: what all others must equal. */
static void run_plain(const char *path, outcome *out) {
    engine_params p = small_params(path);
    p.prefix_caching = false;
    engine *e = tiny_engine_open(&p);
    forget(out);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        submit(e, i, out);
        finish_all(e, out);
    }
    engine_close(e);
}

typedef struct {
    const char *name;
    speculation_fn source;
    void *context;
    bool alone;
} variant;

static engine_stats run(const engine_params *p, const variant *v, outcome *out) {
    engine *e = tiny_engine_open(p);
    engine_stats stats;
    forget(out);
    if (v->source != NULL) speculation_set_source(e->speculation, v->source, v->context);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        submit(e, i, out);
        if (v->alone) finish_all(e, out);
    }
    finish_all(e, out);
    engine_get_stats(e, &stats);
    assert_true(stats.accepted_tokens <= stats.draft_tokens);
    engine_close(e);
    return stats;
}

static void assert_same(const outcome *a, const outcome *b, const char *name) {
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        if (a[i].events.len != b[i].events.len ||
            memcmp(a[i].events.data, b[i].events.data, a[i].events.len) != 0)
            fail_msg("%s: request %u differs: %u and %u tokens, ends %d and %d", name, i,
                     a[i].n_tokens - a[i].n_prompt, b[i].n_tokens - b[i].n_prompt, a[i].finish,
                     b[i].finish);
}

static outcome plain[N_REQUESTS], other[N_REQUESTS];

/* Through everything that shapes a batch: chunks, blocks, company, a pool that runs dry. */
static engine_stats check(const engine_params *base, const variant *v) {
    static const uint32_t chunks[] = {512, 32, 9, 3}, blocks[] = {16, 1, 5, 4};
    engine_stats all = {0};
    for (int i = 0; i < 4; i++) {
        engine_params p = *base;
        variant now = *v;
        p.max_num_batched_tokens = chunks[i];
        p.block_size = blocks[i];
        p.prefix_caching = i % 2 == 0;
        now.alone = i == 0;
        if (i == 3) {
            engine *e = tiny_engine_open(&p);
            p.max_model_len = 92;
            p.kv_cache_bytes = 24 * 4 * engine_kv_bytes_per_token(e);
            engine_close(e);
        }
        engine_stats s = run(&p, &now, other);
        assert_same(plain, other, v->name);
        if (i == 3) assert_true(s.preemptions > 0);
        all.drafts += s.drafts;
        all.draft_tokens += s.draft_tokens;
        all.accepted_tokens += s.accepted_tokens;
        for (int k = 0; k < ENGINE_MAX_DRAFT; k++) all.accepted_at[k] += s.accepted_at[k];
    }
    return all;
}

/* Is what the requests are there for in the answers at all? */
static void test_the_requests_end_in_every_way(void **state) {
    (void)state;
    uint32_t n_length = 0, n_stop = 0, n_early = 0, n_after = 0;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t n = plain[i].n_tokens - plain[i].n_prompt, most = 1 + i * 11 % MAX_OUTPUT;
        assert_true(n >= 1 && n <= most);
        n_length += plain[i].finish == ENGINE_LENGTH;
        n_stop += plain[i].finish == ENGINE_STOP;
        n_early += plain[i].finish == ENGINE_STOP && n < most;
        n_after += plain[i].finish == ENGINE_STOP && n > 4;
    }
    assert_true(n_length > 5 && n_stop > 5 && n_early > 5 && n_after > 3);
}

static void test_ngrams(void **state) {
    engine_params p = small_params(*state);
    p.speculative_ngram = true;
    for (uint32_t k = 0; k <= 16; k = k == 0 ? 1 : k == 1 ? 7 : k + 9) {
        p.num_speculative_tokens = k;
        engine_stats s = check(&p, &(variant){.name = "ngram"});
        if (k > 0) assert_true(s.drafts > 100 && s.accepted_tokens > 50);
        if (k > 0) assert_true(s.draft_tokens <= s.drafts * k);
        if (k == 1) assert_true(s.accepted_at[0] == s.accepted_tokens);
        if (k == 7) assert_true(s.accepted_at[6] > 0 && s.accepted_at[7] == 0);
    }
}

/* The model guesses for itself: whatever is drafted comes true, but for what is behind an end. */
static void test_the_model_itself(void **state) {
    engine_params p = small_params(*state);
    p.speculative_model = *state;
    p.num_speculative_tokens = 5;
    engine_stats s = check(&p, &(variant){.name = "the model itself"});
    assert_true(s.drafts > 200 && s.accepted_at[4] > 50);
    p.max_num_batched_tokens = 64;
    run(&p, &(variant){.name = "the model itself"}, other);
    uint32_t n_drafted = 0;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        if (other[i].finish == ENGINE_STOP) continue;
        assert_int_equal(other[i].usage.accepted_tokens, other[i].usage.draft_tokens);
        n_drafted += other[i].usage.draft_tokens;
    }
    assert_true(n_drafted > 200);
}

static void test_the_model_itself_adaptive(void **state) {
    engine_params p = small_params(*state);
    p.speculative_model = *state;
    check(&p, &(variant){.name = "the model itself, as many as pay"});
}

static void test_its_first_layers(void **state) {
    char *cut = tiny_model_write_cut("llama", 2);
    engine_params p = small_params(*state);
    p.speculative_model = cut;
    for (uint32_t k = 1; k <= 8; k += 7) {
        p.num_speculative_tokens = k;
        engine_stats s = check(&p, &(variant){.name = "its first layers"});
        assert_true(s.accepted_tokens > 0 && s.accepted_tokens < s.draft_tokens);
    }
    unlink(cut);
    mem_free(cut);
}

/* Guesses that are right for a while and then wrong, at every place; ends among them. */
static uint32_t half_true(void *context, const int32_t *tokens, uint32_t n, uint32_t max,
                          int32_t *out) {
    uint32_t *state = context, n_out, n_right;
    *state = *state * 1664525u + 1013904223u;
    n_out = *state >> 31 ? max : (*state >> 8) % (max + 1);
    n_right = (*state >> 16) % (2 * max);
    const outcome *o = NULL;
    for (uint32_t i = 0; i < N_REQUESTS && o == NULL; i++)
        if (plain[i].n_tokens >= n && memcmp(plain[i].tokens, tokens, n * sizeof *tokens) == 0)
            o = &plain[i];
    for (uint32_t i = 0; i < n_out; i++) {
        *state = *state * 1664525u + 1013904223u;
        out[i] = o != NULL && i < n_right && n + i < o->n_tokens
                     ? o->tokens[n + i]
                     : (int32_t)((*state >> 16) % (*state % 4 == 0 ? 4 : TINY_N_VOCAB));
    }
    return n_out;
}

static void test_right_and_wrong_guesses(void **state) {
    uint32_t seed = 1;
    engine_params p = small_params(*state);
    p.speculative_ngram = true;
    for (uint32_t k = 0; k <= 16; k += 8) {
        p.num_speculative_tokens = k;
        engine_stats s =
            check(&p, &(variant){.name = "half true", .source = half_true, .context = &seed});
        if (k == 16) /* runs of every length */
            for (int i = 0; i < ENGINE_MAX_DRAFT; i++) assert_true(s.accepted_at[i] > 0);
    }
}

static uint32_t always_wrong(void *context, const int32_t *tokens, uint32_t n, uint32_t max,
                             int32_t *out) {
    (void)context;
    for (uint32_t i = 0; i < max; i++) out[i] = (tokens[n - 1] + 1 + (int32_t)i) % TINY_N_VOCAB;
    return max;
}

static void test_wrong_guesses(void **state) {
    engine_params p = small_params(*state);
    p.speculative_ngram = true;
    p.num_speculative_tokens = 16;
    engine_stats s = check(&p, &(variant){.name = "wrong", .source = always_wrong});
    assert_true(s.accepted_tokens * 20 < s.draft_tokens);
}

/* Other architectures: windows that give back blocks, soft-caps, biases. */
static void test_every_architecture(void **state) {
    (void)state;
    uint32_t seed = 5;
    for (int i = 1; tiny_kinds[i] != NULL; i++) {
        char *path = tiny_model_write(tiny_kinds[i]);
        run_plain(path, plain);
        engine_params p = small_params(path);
        p.num_speculative_tokens = 6;
        p.max_num_batched_tokens = 40;
        p.block_size = 4;
        p.speculative_model = path;
        engine_stats s = run(&p, &(variant){0}, other);
        assert_same(plain, other, tiny_kinds[i]);
        assert_true(s.accepted_at[5] > 10);
        p.speculative_model = NULL;
        p.speculative_ngram = true;
        s = run(&p, &(variant){.source = half_true, .context = &seed}, other);
        assert_same(plain, other, tiny_kinds[i]);
        assert_true(s.accepted_tokens > 50);
        unlink(path);
        mem_free(path);
    }
}

/* Cancelled between steps: no guess outlives its request, no block of either cache. */
static void test_cancelling(void **state) {
    for (int by_model = 0; by_model < 2; by_model++) {
        engine_params p = small_params(*state);
        p.speculative_ngram = by_model == 0;
        p.speculative_model = by_model == 1 ? *state : NULL;
        p.num_speculative_tokens = 4;
        engine *e = tiny_engine_open(&p);
        uint64_t ids[6];
        static int32_t prompt[6][MAX_PROMPT];
        const engine_event *events;
        size_t n;
        for (uint32_t i = 0; i < 6; i++) {
            engine_request q = engine_request_default();
            q.prompt = prompt[i];
            q.n_prompt = prompt_of(i, prompt[i]);
            q.ignore_eos = true;
            assert_int_equal(engine_submit(e, &q, &ids[i], NULL), RIDGE_OK);
        }
        for (int step = 0; engine_step(e, &events, &n); step++)
            if (step < 12 && step % 2 == 1) engine_cancel(e, ids[step / 2]);
        assert_int_equal(engine_n_running(e), 0);
        engine_close(e); /* asserts that all blocks are back */
    }
}

/* One step gives several tokens, and the stats and the usage say so. */
static void test_what_is_counted(void **state) {
    engine_params p = small_params(*state);
    p.speculative_model = *state;
    p.num_speculative_tokens = 4;
    engine *e = tiny_engine_open(&p);
    outcome o = {0};
    static const int32_t prompt[] = {1, 100, 101};
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = 3;
    q.max_tokens = 12;
    q.ignore_eos = true;
    uint64_t id;
    const engine_event *events;
    engine_stats s;
    size_t n, n_steps = 0;
    assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
    for (; engine_step(e, &events, &n); n_steps++)
        for (size_t i = 0; i < n; i++) take(&o, &events[i]);
    engine_get_stats(e, &s);
    assert_int_equal(n_steps, 4); /* 1, 5, 5, 1 tokens */
    assert_int_equal(s.drafts, 2);
    assert_int_equal(s.draft_tokens, 8);
    assert_int_equal(s.accepted_tokens, 8);
    for (int i = 0; i < ENGINE_MAX_DRAFT; i++) assert_int_equal(s.accepted_at[i], i < 4 ? 2 : 0);
    assert_int_equal(o.usage.draft_tokens, 8);
    assert_int_equal(o.usage.accepted_tokens, 8);
    assert_int_equal(s.generation_tokens, 12);
    buf_free(&o.events);
    engine_close(e);
}

static void test_parameters(void **state) {
    engine *e = NULL;
    ridge_error err = {0};
    engine_params p = small_params(*state);
    p.speculative_ngram = true;
    p.num_speculative_tokens = ENGINE_MAX_DRAFT + 1;
    assert_int_equal(engine_open(&e, &p, &err), RIDGE_EINVAL);
    assert_non_null(strstr(err.text, "between 0 and 16, found 17"));
    p.num_speculative_tokens = 0;
    p.speculative_model = *state;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_EINVAL);
}

/* The distribution of what is drawn, guesses being verified, against the target's. */

#define TOP_K 4
#ifdef __SANITIZE_ADDRESS__ /* slow */
#define N_DRAWS 1000
#else
#define N_DRAWS 4000
#endif

static void keep_logits(void *context, uint64_t id, uint32_t position, const float *logits) {
    (void)id;
    (void)position; /* the last call is that of the last token */
    memcpy(context, logits, TINY_N_VOCAB * sizeof *logits);
}

/* The TOP_K likeliest tokens after the prompt, and their probabilities among themselves. */
static void likeliest(engine *e, const int32_t *prompt, uint32_t n, int32_t *ids, double *p) {
    float logits[TINY_N_VOCAB];
    uint64_t id;
    const engine_event *events;
    size_t n_events;
    double sum = 0;
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = n;
    q.prompt_only = q.prompt_logits = true;
    engine_on_logits(e, keep_logits, logits);
    assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
    while (engine_step(e, &events, &n_events)) continue;
    sampler *s;
    sampler_result top;
    assert_int_equal(sampler_create(&s, TINY_N_VOCAB, NULL), RIDGE_OK);
    sampler_describe(s, logits, 0, TOP_K, &top);
    sampler_destroy(s);
    assert_int_equal(top.n_top, TOP_K);
    for (int i = 0; i < TOP_K; i++) ids[i] = top.top[i].id;
    for (int i = 0; i < TOP_K; i++) sum += p[i] = exp((double)logits[ids[i]]);
    for (int i = 0; i < TOP_K; i++) p[i] /= sum;
}

/* After each of the likeliest first tokens the likeliest second ones. */
typedef struct {
    int32_t first[TOP_K], second[TOP_K][TOP_K];
    double p_first[TOP_K], p_second[TOP_K][TOP_K];
} likely;

/* Each of those after tokens[n - 1] in turn. */
static uint32_t likely_guess(void *context, const int32_t *tokens, uint32_t n, uint32_t max,
                             int32_t *out) {
    static uint32_t turn;
    const likely *l = context;
    (void)max;
    for (int i = 0; i < TOP_K; i++)
        if (l->first[i] == tokens[n - 1]) {
            out[0] = l->second[i][turn++ % TOP_K];
            return 1;
        }
    return 0;
}

static void find_likely(engine *e, const int32_t *prompt, uint32_t n_prompt, likely *l) {
    int32_t text[MAX_PROMPT];
    memcpy(text, prompt, n_prompt * sizeof *prompt);
    likeliest(e, prompt, n_prompt, l->first, l->p_first);
    for (int i = 0; i < TOP_K; i++) {
        text[n_prompt] = l->first[i];
        likeliest(e, text, n_prompt + 1, l->second[i], l->p_second[i]);
    }
}

/* Draws pairs of tokens, the second of them verified against a guess; chi-square over the pairs. */
static double chi_square(engine *e, const int32_t *prompt, uint32_t n_prompt, const likely *l) {
    double n_seen[TOP_K][TOP_K] = {{0}}, chi = 0;
    for (uint32_t seed = 0; seed < N_DRAWS; seed++) {
        uint64_t id;
        const engine_event *events;
        size_t n;
        int drawn = 0, at[2] = {0};
        engine_request q = engine_request_default();
        q.prompt = prompt;
        q.n_prompt = n_prompt;
        q.max_tokens = 3; /* a guess is never made of the last token */
        q.ignore_eos = true;
        q.sampling.temperature = 1;
        q.sampling.top_k = TOP_K;
        q.sampling.seed = seed;
        assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
        while (engine_step(e, &events, &n))
            for (size_t i = 0; i < n; i++, drawn++) {
                if (drawn > 1) continue;
                const int32_t *ids = drawn == 0 ? l->first : l->second[at[0]];
                while (ids[at[drawn]] != events[i].token.id) assert_true(++at[drawn] < TOP_K);
            }
        n_seen[at[0]][at[1]]++;
    }
    for (int i = 0; i < TOP_K; i++)
        for (int k = 0; k < TOP_K; k++) {
            double expected = N_DRAWS * l->p_first[i] * l->p_second[i][k];
            chi += (n_seen[i][k] - expected) * (n_seen[i][k] - expected) / expected;
        }
    return chi;
}

static void test_the_distribution_is_the_targets(void **state) {
    static const int32_t prompt[] = {1, 50, 51, 50, 51, 50};
    char *cut = tiny_model_write_cut("llama", 1);
    for (int i = 0; i < 3; i++) {
        engine_params p = small_params(*state);
        p.checks = p.prefix_caching = false;
        p.num_speculative_tokens = 2;
        p.speculative_ngram = i == 0;
        p.speculative_model = i == 1 ? cut : i == 2 ? *state : NULL;
        engine *e = tiny_engine_open(&p);
        engine_stats s;
        likely l;
        find_likely(e, prompt, 6, &l);
        if (i == 0) speculation_set_source(e->speculation, likely_guess, &l);
        double chi = chi_square(e, prompt, 6, &l);
        engine_get_stats(e, &s);
        assert_int_equal(s.draft_tokens, N_DRAWS);
        assert_true(s.accepted_tokens > N_DRAWS / 50);
        if (i == 2) assert_int_equal(s.accepted_tokens, N_DRAWS);
        assert_true(chi < 44.3); /* 15 degrees of freedom: one in ten thousand */
        assert_true(chi > 1.8);  /* and the draws are independent of one another */
        engine_close(e);
    }
    unlink(cut);
    mem_free(cut);
}

static int setup(void **state) {
    char *path = tiny_model_write("llama");
    run_plain(path, plain);
    *state = path;
    return 0;
}

static int teardown(void **state) {
    forget(plain);
    forget(other);
    unlink(*state);
    mem_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_requests_end_in_every_way),
        cmocka_unit_test(test_ngrams),
        cmocka_unit_test(test_the_model_itself),
        cmocka_unit_test(test_the_model_itself_adaptive),
        cmocka_unit_test(test_its_first_layers),
        cmocka_unit_test(test_right_and_wrong_guesses),
        cmocka_unit_test(test_wrong_guesses),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_what_is_counted),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_the_distribution_is_the_targets),
        cmocka_unit_test(test_every_architecture), /* plain is another's then */
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
