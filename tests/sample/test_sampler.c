/* sample/: truncation edges, penalties, draws, log-probabilities, hostile logits. */
#include "unit.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/philox.h"
#include "sample/sampler_internal.h"

#define KEEP_MAX 4096

static sampler *make(int32_t n) {
    sampler *s;
    assert_int_equal(sampler_create(&s, n, NULL), RIDGE_OK);
    return s;
}

static sampler_params warm(void) {
    sampler_params p = sampler_params_default();
    p.temperature = 1;
    return p;
}

/* "0 1 2": the ids that a draw with p chose among. */
static const char *kept(const float *logits, int32_t n, const sampler_params *p, char *text) {
    int32_t ids[KEEP_MAX];
    sampler_result r;
    sampler *s = make(n);
    sampler_draw(s, p, NULL, logits, 0, &r);
    size_t count = sampler_last_kept(s, ids), at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        at += (size_t)sprintf(text + at, i > 0 ? " %d" : "%d", ids[i]);
    sampler_destroy(s);
    return text;
}

/* bugs.md 065 */
static void test_truncation_edges(void **state) {
    (void)state;
    const float x[] = {logf(.5f), logf(.3f), logf(.15f), logf(.05f)};
    const float tied[] = {logf(.4f), logf(.3f), logf(.3f)};
    char text[64];
    static const struct {
        float top_p;
        const char *kept;
    } by_p[] = {{0, "0"},        {.3f, "0"},        {.51f, "0 1"}, {.79f, "0 1"},
                {.81f, "0 1 2"}, {.96f, "0 1 2 3"}, {1, "0 1 2 3"}};
    for (size_t i = 0; i < sizeof by_p / sizeof *by_p; i++) {
        sampler_params p = warm();
        p.top_p = by_p[i].top_p;
        assert_string_equal(kept(x, 4, &p, text), by_p[i].kept);
    }
    static const struct {
        float min_p;
        const char *kept;
    } by_min[] = {{0, "0 1 2 3"}, {.05f, "0 1 2 3"}, {.11f, "0 1 2"},
                  {.31f, "0 1"},  {.61f, "0"},       {1, "0"}};
    for (size_t i = 0; i < sizeof by_min / sizeof *by_min; i++) {
        sampler_params p = warm();
        p.min_p = by_min[i].min_p;
        assert_string_equal(kept(x, 4, &p, text), by_min[i].kept);
    }
    static const struct {
        int32_t top_k;
        const char *kept;
    } by_k[] = {{-1, "0 1 2 3"}, {0, "0 1 2 3"}, {1, "0"}, {2, "0 1"}, {999, "0 1 2 3"}};
    for (size_t i = 0; i < sizeof by_k / sizeof *by_k; i++) {
        sampler_params p = warm();
        p.top_k = by_k[i].top_k;
        assert_string_equal(kept(x, 4, &p, text), by_k[i].kept);
    }
    sampler_params p = warm();
    p.top_k = 2;
    assert_string_equal(kept(tied, 3, &p, text), "0 1"); /* a tie goes to the lower id */
    p.top_p = .6f;                                       /* of the renormalised .625 and .375 */
    assert_string_equal(kept(x, 4, &p, text), "0");
    p = warm();
    p.temperature = 2; /* min_p looks at the distribution after temperature */
    p.min_p = .4f;
    assert_string_equal(kept(x, 4, &p, text), "0 1 2");
}

typedef struct {
    float x;
    int32_t id;
} naive;

static int naive_order(const void *a, const void *b) {
    const naive *l = a, *r = b;
    if (l->x != r->x) return l->x > r->x ? -1 : 1;
    return l->id < r->id ? -1 : 1;
}

static uint64_t random_state = 1;

static double uniform(void) {
    return philox_uniform(99, 7, random_state++);
}

/* Selection without a sort agrees with a full sort, ties and all. */
static void test_truncation_equals_sorting(void **state) {
    (void)state;
    static float x[KEEP_MAX];
    static naive sorted[KEEP_MAX];
    static int32_t ids[KEEP_MAX];
    for (int round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)(uniform() * (round % 3 == 0 ? 8 : 3000));
        int levels = round % 2 == 0 ? 12 : 1000000; /* many ties in every other round */
        for (int32_t i = 0; i < n; i++) {
            x[i] = 12.0f * floorf((float)uniform() * (float)levels) / (float)levels;
            sorted[i] = (naive){x[i], i};
        }
        qsort(sorted, (size_t)n, sizeof *sorted, naive_order);
        sampler_params p = warm();
        p.top_k = uniform() < .5 ? 0 : 1 + (int32_t)(uniform() * n);
        p.top_p = uniform() < .5 ? 1 : (float)uniform();
        size_t k = p.top_k > 0 && p.top_k < n ? (size_t)p.top_k : (size_t)n;
        double total = 0, sum = 0;
        for (size_t i = 0; i < k; i++) total += (double)expf(sorted[i].x - sorted[0].x);
        size_t expected = 0;
        bool near_edge = false;
        while (expected < k && (expected == 0 || sum < (double)p.top_p * total)) {
            sum += (double)expf(sorted[expected++].x - sorted[0].x);
            near_edge |= fabs(sum - (double)p.top_p * total) < 1e-9 * total;
        }
        if (p.top_p == 1) expected = k;
        sampler *s = make(n);
        sampler_result r;
        sampler_draw(s, &p, NULL, x, 0, &r);
        size_t count = sampler_last_kept(s, ids);
        if (!near_edge || p.top_p == 1) assert_int_equal(count, expected);
        bool in[KEEP_MAX] = {false};
        for (size_t i = 0; i < count; i++) in[sorted[i].id] = true;
        for (size_t i = 0; i < count; i++) assert_true(in[ids[i]]);
        sampler_destroy(s);
    }
}

/* bugs.md 067 */
static void test_penalties(void **state) {
    (void)state;
    const int32_t prompt[] = {0, 0, 0, 1}, output[] = {0, 0, 1};
    sampler_counts *c;
    const float x[] = {2, -1, .5f, 0};
    logit_row row;
    assert_int_equal(row_create(&row, 4, NULL), RIDGE_OK);
    sampler_params p = sampler_params_default();
    assert_false(sampler_needs_counts(&p));
    p.repetition_penalty = 2;
    assert_true(sampler_needs_counts(&p));
    assert_int_equal(sampler_counts_create(&c, 4, NULL), RIDGE_OK);
    for (int i = 0; i < 4; i++) sampler_counts_add(c, prompt[i], false);
    row_set(&row, x, 0);
    sampler_counts_apply(c, &p, &row);
    const float repeated[] = {1, -2, .5f, 0};
    assert_memory_equal(row.spans[0], repeated, sizeof x);
    sampler_counts_destroy(c);

    p = sampler_params_default();
    p.frequency_penalty = .5f;
    p.presence_penalty = .25f;
    assert_int_equal(sampler_counts_create(&c, 7, NULL), RIDGE_OK);
    for (int i = 0; i < 4; i++) sampler_counts_add(c, i, false); /* the prompt doesn't count */
    for (int i = 0; i < 3; i++) sampler_counts_add(c, output[i], true);
    row_set(&row, x, 0);
    sampler_counts_apply(c, &p, &row);
    const float penalised[] = {.75f, -1.75f, .5f, 0};
    assert_memory_equal(row.spans[0], penalised, sizeof x);
    sampler_counts_destroy(c);
    row_destroy(&row);
}

/* Drafted tokens are counted and taken back: what remains is as if they had not been. */
static void test_counts_are_undone(void **state) {
    (void)state;
    enum { N = 40, ROOM = 24 };
    sampler_params p = sampler_params_default();
    p.repetition_penalty = 1.5f;
    p.frequency_penalty = .5f;
    for (int32_t seed = 0; seed < 50; seed++) {
        sampler_counts *c, *expected;
        bool was_new[ROOM];
        float ones[N];
        logit_row x, y;
        assert_int_equal(row_create(&x, N, NULL), RIDGE_OK);
        assert_int_equal(row_create(&y, N, NULL), RIDGE_OK);
        assert_int_equal(sampler_counts_create(&c, ROOM, NULL), RIDGE_OK);
        assert_int_equal(sampler_counts_create(&expected, ROOM, NULL), RIDGE_OK);
        for (int32_t i = 0; i < 8; i++) {
            sampler_counts_add(c, (seed * 7 + i * i) % N, i > 3);
            sampler_counts_add(expected, (seed * 7 + i * i) % N, i > 3);
        }
        for (int32_t i = 0; i < 16; i++) was_new[i] = sampler_counts_add(c, seed * i % N, true);
        for (int32_t i = 16; i-- > 0;) sampler_counts_undo(c, seed * i % N, was_new[i]);
        for (int i = 0; i < N; i++) ones[i] = 1;
        row_set(&x, ones, 0);
        row_set(&y, ones, 0);
        sampler_counts_apply(c, &p, &x);
        sampler_counts_apply(expected, &p, &y);
        assert_memory_equal(x.spans[0], y.spans[0], sizeof ones);
        row_destroy(&x);
        row_destroy(&y);
        for (int32_t i = 0; i < 16; i++) sampler_counts_add(c, seed * i % N, true); /* room again */
        sampler_counts_destroy(c);
        sampler_counts_destroy(expected);
    }
}

/* bugs.md 068 */
static void test_logprobs_are_of_the_raw_logits(void **state) {
    (void)state;
    const float x[] = {2, -1, .5f, 0};
    const double expected[] = {-.34235, -3.34235, -1.84235, -2.34235};
    sampler *s = make(4);
    sampler_bias bias = {.id = 3, .bias = 100};
    for (int variant = 0; variant < 4; variant++) {
        sampler_params p = warm();
        p.n_logprobs = 3;
        p.temperature = variant == 0 ? 0 : .3f;
        p.top_k = variant == 1 ? 1 : 0;
        if (variant == 2) {
            p.bias = &bias;
            p.n_bias = 1;
        }
        sampler_result r;
        sampler_draw(s, &p, NULL, x, 5, &r);
        assert_true(fabs((double)r.logprob - expected[r.id]) < 1e-5);
        assert_int_equal(r.n_top, 3);
        static const int order[] = {0, 2, 3};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.top[i].id, order[i]);
            assert_true(fabs((double)r.top[i].logprob - expected[order[i]]) < 1e-5);
        }
        if (variant == 2) assert_int_equal(r.id, 3);
    }
    sampler_destroy(s);
}

static void test_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

/* bugs.md 071: no two seeds, choices or positions share their draws. */
static void test_draws_follow_seed_choice_position(void **state) {
    (void)state;
    double a = philox_uniform(1, 0, 10);
    assert_true(a == philox_uniform(1, 0, 10));
    assert_true(a != philox_uniform((1ull << 32) + 1, 0, 10));
    assert_true(a != philox_uniform(1, 1, 10));
    assert_true(a != philox_uniform(1, 0, 11));
    assert_true(a != philox_uniform(1, 0, 10 + (1ull << 32)));
}

static void test_draw_follows_the_distribution(void **state) {
    (void)state;
    const float x[] = {logf(.5f), logf(.3f), logf(.15f), logf(.05f)};
    const double expected[] = {.5, .3, .15, .05};
    int counts[4] = {0}, n = 20000;
    sampler *s = make(4);
    sampler_params p = warm();
    for (int i = 0; i < n; i++) {
        sampler_result r;
        sampler_draw(s, &p, NULL, x, (uint64_t)i, &r);
        counts[r.id]++;
    }
    for (int i = 0; i < 4; i++) {
        double sigma = sqrt(n * expected[i] * (1 - expected[i]));
        assert_true(fabs(counts[i] - n * expected[i]) < 4 * sigma);
    }
    sampler_destroy(s);
}

static void test_hostile_logits_have_defined_outcomes(void **state) {
    (void)state;
    static const struct {
        float x[4];
        int id;
    } cases[] = {
        {{NAN, 1, 2, NAN}, 2},
        {{NAN, NAN, NAN, NAN}, 0},
        {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
        {{1, INFINITY, 3, 2}, 1},
        {{1, INFINITY, INFINITY, 2}, 1},
        {{NAN, -INFINITY, -FLT_MAX, NAN}, 2},
        {{FLT_MAX, -FLT_MAX, 0, NAN}, 0},
    };
    sampler *s = make(4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int variant = 0; variant < 4; variant++) {
            sampler_params p = sampler_params_default();
            p.n_logprobs = 4;
            p.temperature = variant == 0 ? 0 : variant == 1 ? 1e-30f : 1;
            if (variant == 3) p.top_p = .5f;
            sampler_result r;
            sampler_draw(s, &p, NULL, cases[i].x, 0, &r);
            if (i != 4 || variant == 0) assert_int_equal(r.id, cases[i].id);
            assert_true(r.logprob <= 0 && r.logprob >= SAMPLER_LOGPROB_FLOOR);
            for (int k = 0; k < r.n_top; k++)
                assert_true(r.top[k].logprob <= 0 && r.top[k].logprob >= SAMPLER_LOGPROB_FLOOR);
        }
    sampler_destroy(s);
}

static void test_banned_and_biased(void **state) {
    (void)state;
    const float x[] = {1, 5, 3, 2};
    const int32_t banned[] = {1, 0}, all[] = {0, 1, 2, 3};
    const sampler_bias bias[] = {{3, 2}, {2, -100}, {3, .5f}};
    sampler *s = make(4);
    sampler_result r;
    sampler_params p = sampler_params_default();
    p.banned = banned;
    p.n_banned = 2;
    sampler_draw(s, &p, NULL, x, 0, &r);
    assert_int_equal(r.id, 2);
    p.bias = bias; /* repeated ids add up */
    p.n_bias = 3;
    sampler_draw(s, &p, NULL, x, 0, &r);
    assert_int_equal(r.id, 3);
    const float nothing[] = {NAN, NAN, NAN, NAN};
    p.n_bias = 0;
    sampler_draw(s, &p, NULL, nothing, 0, &r);
    assert_int_equal(r.id, 2); /* the lowest that isn't banned */
    p.banned = all;
    p.n_banned = 4;
    sampler_draw(s, &p, NULL, x, 0, &r);
    assert_int_equal(r.id, 0);
    sampler_destroy(s);
}

static void test_large_vocabulary(void **state) {
    (void)state;
    int32_t n = 262144;
    float *x = malloc((size_t)n * sizeof *x);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    sampler *s = make(n);
    for (int32_t i = 0; i < n; i++) x[i] = (float)uniform() * 10;
    sampler_params p = warm();
    p.top_k = 50;
    p.top_p = .9f;
    sampler_result r;
    sampler_draw(s, &p, NULL, x, 0, &r);
    assert_true(sampler_last_kept(s, ids) <= 50);
    for (int32_t i = 0; i < n; i++) x[i] = 1;
    p.top_k = 0; /* all tied: the lower ids make up the mass */
    sampler_draw(s, &p, NULL, x, 0, &r);
    size_t count = sampler_last_kept(s, ids);
    assert_in_range(count, 235929, 235931);
    assert_int_equal(ids[count - 1], count - 1);
    sampler_destroy(s);
    free(ids);
    free(x);
}

static void test_params_are_checked_by_name(void **state) {
    (void)state;
    ridge_error err = {0};
    sampler_bias bias = {.id = 4, .bias = 0};
    static const struct {
        size_t offset;
        float value;
        const char *name;
    } bad[] = {
        {offsetof(sampler_params, temperature), -1, "temperature"},
        {offsetof(sampler_params, temperature), NAN, "temperature"},
        {offsetof(sampler_params, temperature), INFINITY, "temperature"},
        {offsetof(sampler_params, top_p), 1.5f, "top_p"},
        {offsetof(sampler_params, top_p), -.1f, "top_p"},
        {offsetof(sampler_params, min_p), 2, "min_p"},
        {offsetof(sampler_params, repetition_penalty), 0, "repetition_penalty"},
        {offsetof(sampler_params, presence_penalty), 3, "presence_penalty"},
        {offsetof(sampler_params, frequency_penalty), NAN, "frequency_penalty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sampler_params p = sampler_params_default();
        memcpy((char *)&p + bad[i].offset, &bad[i].value, sizeof(float));
        err = (ridge_error){0};
        assert_int_equal(sampler_params_check(&p, 4, &err), RIDGE_EINVAL);
        assert_non_null(strstr(err.text, bad[i].name));
    }
    sampler_params p = sampler_params_default();
    assert_int_equal(sampler_params_check(&p, 4, NULL), RIDGE_OK);
    p.n_logprobs = 21;
    assert_int_equal(sampler_params_check(&p, 4, NULL), RIDGE_EINVAL);
    p = sampler_params_default();
    p.bias = &bias;
    p.n_bias = 1;
    assert_int_equal(sampler_params_check(&p, 4, NULL), RIDGE_EINVAL);
    bias = (sampler_bias){.id = 1, .bias = NAN};
    assert_int_equal(sampler_params_check(&p, 4, NULL), RIDGE_EINVAL);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    for (long nth = 1;; nth++) {
        sampler *s = NULL;
        sampler_counts *c = NULL;
        mem_fail_after(nth);
        ridge_status status = sampler_create(&s, 100, NULL);
        if (status == RIDGE_OK) status = sampler_counts_create(&c, 100, NULL);
        mem_fail_after(0);
        sampler_destroy(s);
        sampler_counts_destroy(c);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncation_edges),
        cmocka_unit_test(test_truncation_equals_sorting),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_counts_are_undone),
        cmocka_unit_test(test_logprobs_are_of_the_raw_logits),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_draws_follow_seed_choice_position),
        cmocka_unit_test(test_draw_follows_the_distribution),
        cmocka_unit_test(test_hostile_logits_have_defined_outcomes),
        cmocka_unit_test(test_banned_and_biased),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_params_are_checked_by_name),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
