/* base/: buffers, UTF-8, sizes. */
#include "unit.h"
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"

static void test_double_is_pythons_repr(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = {{1, "1.0"},
                 {0, "0.0"},
                 {-0.0, "-0.0"},
                 {0.1, "0.1"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {1e20, "1e+20"},
                 {1e16, "1e+16"},
                 {123456789012345680.0, "1.2345678901234568e+17"},
                 {1e15, "1000000000000000.0"},
                 {0.0001, "0.0001"},
                 {0.00001, "1e-05"},
                 {-2.5, "-2.5"},
                 {1234.5, "1234.5"},
                 {5e-324, "5e-324"},
                 {0.00123, "0.00123"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf b = {0};
        buf_double(&b, cases[i].x);
        assert_string_equal(b.data, cases[i].text);
        buf_free(&b);
    }
}

static void test_json_string(void **state) {
    (void)state;
    buf b = {0};
    static const char text[] = "a\"\\\n\x01\0\xC3\xA9\xF0\x9F\x91\x8B\xFF\xE4\xB8";
    buf_json_string(&b, text, sizeof text - 1);
    assert_string_equal(
        b.data, "\"a\\\"\\\\\\n\\u0001\\u0000\xC3\xA9\xF0\x9F\x91\x8B\xEF\xBF\xBD\xEF\xBF\xBD\"");
    buf_free(&b);
}

static void test_buf_limit(void **state) {
    (void)state;
    buf b = {.limit = 4};
    buf_puts(&b, "abc");
    buf_puts(&b, "de");
    assert_true(b.failed);
    assert_string_equal(b.data, "abc");
    buf_free(&b);
}

static void test_utf8(void **state) {
    (void)state;
    size_t width;
    char out[4];
    static const uint32_t points[] = {0,      0x7F,   0x80,   0x7FF,   0x800,
                                      0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        size_t n = utf8_encode(points[i], out);
        assert_int_equal(utf8_decode(out, n, &width), points[i]);
        assert_int_equal(width, n);
    }
    static const struct {
        const char *s;
        size_t width;
    } bad[] = {{"\x80", 1},
               {"\xC0\xAF", 1},
               {"\xE0\x80\x80", 1},
               {"\xED\xA0\x80", 1},
               {"\xF4\x90\x80\x80", 1},
               {"\xE4\xB8", 2},
               {"\xF0\x9F\x91", 3},
               {"\xF0\x9F"
                "a",
                2},
               {"\xFF", 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(utf8_decode(bad[i].s, strlen(bad[i].s), &width), UTF8_INVALID);
        assert_int_equal(width, bad[i].width);
    }
    char bytes[] = "a\xE4\xB8\x96\n\x1B[1m\xFF\xC3\xA9\xC2\x9B\x7F\xE4\xB8";
    utf8_make_printable(bytes);
    assert_string_equal(bytes, "a\xE4\xB8\x96  [1m?\xC3\xA9   ??");
    assert_int_equal(utf8_incomplete_tail("a\xE4\xB8", 3), 2);
    assert_int_equal(utf8_incomplete_tail("a\xE4\xB8\x96", 4), 0);
    assert_int_equal(utf8_incomplete_tail("\xFF", 1), 0);
    assert_int_equal(utf8_incomplete_tail("\xF0", 1), 1);
}

static void test_errors_are_cut_between_characters(void **state) {
    (void)state;
    for (int at = 0; at < 3; at++) {
        ridge_error err = {0};
        char text[2 * sizeof err.text];
        size_t n = 0;
        for (; n < (size_t)at; n++) text[n] = 'a';
        for (; n + 4 < sizeof text; n += 3) memcpy(text + n, "\xE4\xB8\x96", 3);
        text[n] = '\0';
        error_set(&err, RIDGE_EINVAL, "%s", text);
        size_t len = strlen(err.text);
        assert_true(len > sizeof err.text - 4 && utf8_valid(err.text, len));
    }
}

static void test_sizes_do_not_wrap(void **state) {
    (void)state;
    size_t out = 7;
    assert_false(mem_mul(SIZE_MAX / 2, 3, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 7);
    assert_null(mem_realloc(NULL, SIZE_MAX / 2, 4));
}

static void test_arena_limit(void **state) {
    (void)state;
    arena a = {.limit_bytes = 100};
    assert_non_null(arena_alloc(&a, 60));
    assert_null(arena_alloc(&a, 60));
    arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double_is_pythons_repr),
        cmocka_unit_test(test_json_string),
        cmocka_unit_test(test_buf_limit),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_errors_are_cut_between_characters),
        cmocka_unit_test(test_sizes_do_not_wrap),
        cmocka_unit_test(test_arena_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
