/* engine/ngram: guesses are what followed a place that agrees with the end, of known texts and of
 * random ones; nothing is read beyond the tokens given. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/ngram.h"

#define MAX 16

/* A copy of exactly n tokens: a sanitizer sees what is read beyond. */
static uint32_t guess(ngram *g, const int32_t *tokens, uint32_t n, int32_t *out, uint32_t *length) {
    int32_t *exact = malloc(n * sizeof *exact);
    memcpy(exact, tokens, n * sizeof *exact);
    uint32_t n_out = ngram_guess(g, exact, n, MAX, out, length);
    free(exact);
    return n_out;
}

static ngram *make(uint32_t max_tokens) {
    ngram *g = NULL;
    assert_int_equal(ngram_create(&g, max_tokens, NULL), RIDGE_OK);
    return g;
}

static void test_nothing_is_known_of_a_short_text(void **state) {
    (void)state;
    static const int32_t tokens[] = {5, 6, 7};
    int32_t out[MAX];
    uint32_t length;
    for (uint32_t n = 1; n <= 3; n++) {
        ngram *at_once = make(n), *one_by_one = make(n);
        assert_int_equal(guess(at_once, tokens, n, out, &length), 0);
        for (uint32_t k = 1; k <= n; k++)
            assert_int_equal(guess(one_by_one, tokens, k, out, &length), 0);
        ngram_destroy(at_once);
        ngram_destroy(one_by_one);
    }
}

static void test_what_followed_before(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 9, 1, 2, 3};
    int32_t out[MAX];
    uint32_t length;
    ngram *g = make(64);
    assert_int_equal(guess(g, tokens, 9, out, &length), MAX);
    assert_int_equal(length, 3);
    static const int32_t expected[] = {4, 5, 9, 1, 2, 3, 4, 5, 9}; /* goes on in itself */
    assert_memory_equal(out, expected, sizeof expected);
    ngram_destroy(g);
}

/* Of two places the one that agrees for longer, though the other is later. */
static void test_the_longest_agreement(void **state) {
    (void)state;
    static const int32_t tokens[] = {7, 8, 1, 2, 50, 3, 1, 2, 60, 7, 8, 1, 2};
    int32_t out[MAX];
    uint32_t length;
    ngram *g = make(64);
    assert_true(guess(g, tokens, 13, out, &length) > 0);
    assert_int_equal(length, 4);
    assert_int_equal(out[0], 50);
    ngram_destroy(g);
}

static void test_one_token_repeated(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 1, 1};
    int32_t out[MAX];
    uint32_t length;
    ngram *g = make(3);
    assert_int_equal(guess(g, tokens, 3, out, &length), MAX);
    for (int i = 0; i < MAX; i++) assert_int_equal(out[i], 1);
    ngram_destroy(g);
}

/* One token changed: what stood behind it is still the guess, if nothing agrees better. */
static void test_an_edit_keeps_the_source(void **state) {
    (void)state;
    static const int32_t tokens[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 11, 12, 13, 14, 15, 99};
    int32_t out[MAX];
    uint32_t length;
    ngram *g = make(64);
    for (uint32_t n = 9; n < 15; n++) guess(g, tokens, n, out, &length);
    assert_int_equal(guess(g, tokens, 15, out, &length), MAX);
    assert_int_equal(length, NGRAM_EDITED);
    assert_int_equal(out[0], 17);
    ngram_destroy(g);
    g = make(64); /* a source that hardly agreed is dropped */
    for (uint32_t n = 9; n < 12; n++) guess(g, tokens, n, out, &length);
    static const int32_t other[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 11, 12, 99};
    assert_int_equal(guess(g, other, 12, out, &length), 0);
    ngram_destroy(g);
}

/* Is `out` what stands behind some place before which `length` tokens agree with the end? */
static bool is_from_a_place(const int32_t *tokens, uint32_t n, const int32_t *out, uint32_t n_out,
                            uint32_t length) {
    for (uint32_t p = length; p < n; p++) {
        bool same = memcmp(tokens + p - length, tokens + n - length, length * sizeof *tokens) == 0;
        for (uint32_t i = 0; i < n_out && same; i++)
            same = out[i] == (p + i < n ? tokens[p + i] : out[p + i - n]);
        if (same) return true;
    }
    return false;
}

static uint32_t random_below(uint32_t *state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static void test_random_texts(void **state) {
    (void)state;
    static int32_t tokens[600];
    int32_t out[MAX];
    uint32_t seed = 1, n_edited = 0, n_long = 0;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n_max = 1 + random_below(&seed, 600), alphabet = 2 + round % 30, length;
        for (uint32_t i = 0; i < n_max; i++) { /* runs copied from before, with noise between */
            tokens[i] = (int32_t)random_below(&seed, alphabet);
            if (i > 40 && random_below(&seed, 12) > 0) tokens[i] = tokens[i - 17];
        }
        ngram *g = make(n_max);
        for (uint32_t n = 1; n <= n_max; n += 1 + random_below(&seed, 3)) {
            uint32_t n_out = guess(g, tokens, n, out, &length);
            if (n_out == 0) continue;
            assert_int_equal(n_out, MAX);
            assert_true(length >= 1 && length <= NGRAM_MAX_LENGTH);
            n_edited += length == NGRAM_EDITED;
            n_long += length > 8;
            /* an edit counts as one token that agrees */
            assert_true(is_from_a_place(tokens, n, out, n_out, length - 1));
        }
        ngram_destroy(g);
    }
    assert_true(n_edited > 50 && n_long > 50);
}

static void test_without_memory(void **state) {
    (void)state;
    for (long n = 1; n <= 3; n++) {
        ngram *g = NULL;
        ridge_error err = {0};
        mem_fail_after(n);
        assert_int_equal(ngram_create(&g, 100, &err), RIDGE_ENOMEM);
        mem_fail_after(0);
        assert_null(g);
        assert_non_null(strstr(err.text, "100 tokens"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known_of_a_short_text),
        cmocka_unit_test(test_what_followed_before),
        cmocka_unit_test(test_the_longest_agreement),
        cmocka_unit_test(test_one_token_repeated),
        cmocka_unit_test(test_an_edit_keeps_the_source),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
