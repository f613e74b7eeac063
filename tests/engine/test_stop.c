/* engine/stop: the same text leaves whatever the tokens' borders are. */
#include "unit.h"
#include <string.h>

#include "base/mem.h"
#include "engine/stop.h"

static const struct {
    const char *stops[3]; /* NULL-terminated */
    const char *text, *out;
    int found; /* the index of the stop string that is cut off; -1: none */
} cases[] = {
    /* bugs.md 055: what was held back belongs to the text when it ends */
    {{"TRE\nAAAA"}, "UNO DUE TRE", "UNO DUE TRE", -1},
    {{"\n\n\n"}, "x = 1\n\n", "x = 1\n\n", -1},
    /* bugs.md 056 */
    {{"five"}, "one, two, three, four, five, six", "one, two, three, four, ", 0},
    {{"X"}, "abXcXd", "ab", 0},
    {{"cX", "X"}, "abXcXd", "ab", 1},
    {{NULL}, "abXcXd", "abXcXd", -1},
    /* of those complete at the same byte the longest is cut */
    {{"cX", "X"}, "abcX", "ab", 0},
    {{"X", "cX"}, "abcX", "ab", 1},
    /* the first to be complete wins, though another began earlier */
    {{"bcde", "cd"}, "abcdef", "ab", 1},
    /* overlapping beginnings */
    {{"aab"}, "aaaab", "aa", 0},
    {{"abab"}, "abaabab!", "aba", 0},
    {{"aaaa"}, "aaabaaab", "aaabaaab", -1},
    {{"\xF0\x9F\x91\x8B"}, "A\xF0\x9F\x91\x8C\xF0\x9F\x91\x8Bz", "A\xF0\x9F\x91\x8C", 0},
    {{"a"}, "a", "", 0},
};

static size_t count(const char *const *stops) {
    size_t n = 0;
    while (n < 3 && stops[n] != NULL) n++;
    return n;
}

static void test_every_way_of_cutting_the_text(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n = strlen(cases[c].text);
        for (size_t piece = 1; piece <= n; piece++) {
            stop_filter f;
            buf out = {0};
            assert_int_equal(stop_filter_init(&f, cases[c].stops, count(cases[c].stops), NULL),
                             RIDGE_OK);
            bool stopped = false;
            for (size_t at = 0; at < n; at += piece) {
                size_t len = piece < n - at ? piece : n - at;
                stopped = stop_filter_push(&f, cases[c].text + at, len, &out);
            }
            if (!stopped) stop_filter_flush(&f, &out);
            assert_int_equal(stopped ? (int)f.found : -1, cases[c].found);
            assert_string_equal(out.data != NULL ? out.data : "", cases[c].out);
            stop_filter_deinit(&f);
            buf_free(&out);
        }
    }
}

/* Only what could still become a stop string is held back. */
static void test_no_more_is_held_than_needed(void **state) {
    (void)state;
    const char *stops[] = {"hello"};
    stop_filter f;
    buf out = {0};
    assert_int_equal(stop_filter_init(&f, stops, 1, NULL), RIDGE_OK);
    stop_filter_push(&f, "say hel", 7, &out);
    assert_string_equal(out.data, "say ");
    stop_filter_push(&f, "p", 1, &out);
    assert_string_equal(out.data, "say help");
    stop_filter_deinit(&f);
    buf_free(&out);
}

static void test_bad_strings(void **state) {
    (void)state;
    const char *empty[] = {"a", ""}, *many[STOP_MAX_STRINGS + 1];
    stop_filter f;
    ridge_error err = {0};
    assert_int_equal(stop_filter_init(&f, empty, 2, &err), RIDGE_EINVAL);
    assert_non_null(strstr(err.text, "empty"));
    for (size_t i = 0; i <= STOP_MAX_STRINGS; i++) many[i] = "x";
    assert_int_equal(stop_filter_init(&f, many, STOP_MAX_STRINGS + 1, NULL), RIDGE_EINVAL);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    const char *stops[] = {"ab", "cd"};
    for (long nth = 1;; nth++) {
        stop_filter f;
        buf out = {0};
        mem_fail_after(nth);
        ridge_status status = stop_filter_init(&f, stops, 2, NULL);
        if (status == RIDGE_OK) stop_filter_push(&f, "xa", 2, &out);
        mem_fail_after(0);
        bool failed = status != RIDGE_OK || out.failed;
        if (status == RIDGE_OK) stop_filter_deinit(&f);
        buf_free(&out);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way_of_cutting_the_text),
        cmocka_unit_test(test_no_more_is_held_than_needed),
        cmocka_unit_test(test_bad_strings),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
