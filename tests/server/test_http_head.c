/* The HTTP parser: what it takes, what it refuses, and that no split of the bytes changes either.
 */
#include "unit.h"

#include <string.h>

#include "base/mem.h"
#include "server/http_head.h"

static int parse(http_head *h, char *copy, size_t size, const char *text) {
    const char *why = NULL;
    assert_true(strlen(text) < size);
    strcpy(copy, text);
    int status = http_head_parse(h, copy, strlen(text), &why);
    if (status != 0) assert_non_null(why);
    return status;
}

static void test_good_head(void **state) {
    (void)state;
    http_head h;
    char copy[512];
    assert_int_equal(parse(&h, copy, sizeof copy,
                           "POST /v1/models/a%2Fb?x=1 HTTP/1.1\r\nHost: h\r\n"
                           "content-LENGTH:  12 \r\nExpect: 100-continue\r\n\r\n"),
                     0);
    assert_int_equal(h.method, HTTP_POST);
    assert_string_equal(h.path, "/v1/models/a/b");
    assert_int_equal(h.content_length, 12);
    assert_true(h.keep_alive && h.expects_continue && !h.chunked && !h.http10);
    assert_string_equal(http_head_find(&h, "Content-Length"), "12");
    assert_null(http_head_find(&h, "Content"));
    assert_int_equal(parse(&h, copy, sizeof copy, "GET / HTTP/1.0\r\n\r\n"), 0);
    assert_true(h.http10 && !h.keep_alive);
    assert_int_equal(
        parse(&h, copy, sizeof copy,
              "GET http://h:80/health HTTP/1.1\r\nHost: h\r\nConnection: TE, Close\r\n\r\n"),
        0);
    assert_string_equal(h.path, "/health");
    assert_false(h.keep_alive);
    assert_int_equal(parse(&h, copy, sizeof copy, "GET http://h HTTP/1.1\r\nHost: h\r\n\r\n"), 0);
    assert_string_equal(h.path, "/");
}

static void test_bad_heads(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"G\"T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET health HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
        {"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: h\r\nX: a\nb\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1e3\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 12345678901234567890\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nExpect: miracles\r\n\r\n", 417},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_head h;
        char copy[512];
        int status = parse(&h, copy, sizeof copy, cases[i].text);
        if (status != cases[i].status)
            fail_msg("%s: %d, expected %d", cases[i].text, status, cases[i].status);
    }
}

static void test_too_many_headers(void **state) {
    (void)state;
    buf b = {0};
    http_head h;
    const char *why;
    buf_puts(&b, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < HTTP_MAX_HEADERS; i++) buf_puts(&b, "X: y\r\n");
    buf_puts(&b, "\r\n");
    assert_int_equal(http_head_parse(&h, b.data, b.len, &why), 431);
    buf_free(&b);
}

static void test_head_length(void **state) {
    (void)state;
    const char text[] = "GET / HTTP/1.1\r\n\r\nGET";
    size_t n = sizeof text - 1;
    assert_int_equal(http_head_length(text, n, 0), 18);
    for (size_t i = 0; i < 18; i++) assert_int_equal(http_head_length(text, i, 0), 0);
    for (size_t from = 0; from < 18; from++) assert_int_equal(http_head_length(text, n, from), 18);
}

static void test_chunks(void **state) {
    (void)state;
    const char text[] = "5;name=\"x\"\r\nhello\r\n0a \r\n, wide wor\r\n2\r\nld\r\n0\r\n"
                        "Trailer: y\r\n\r\nGET";
    size_t n = sizeof text - 1;
    for (size_t piece = 1; piece <= n; piece++) {
        http_chunks c = {0};
        buf out = {0};
        size_t at = 0, used;
        http_chunks_status status = HTTP_CHUNKS_MORE;
        while (at < n && status == HTTP_CHUNKS_MORE) {
            size_t m = n - at < piece ? n - at : piece;
            status = http_chunks_feed(&c, text + at, m, &out, &used);
            at += used;
        }
        assert_int_equal(status, HTTP_CHUNKS_DONE);
        assert_int_equal(at, n - 3);
        assert_string_equal(out.data, "hello, wide world");
        buf_free(&out);
    }
}

static void test_bad_chunks(void **state) {
    (void)state;
    static const char *const cases[] = {
        "\r\n",
        "x\r\n",
        "-1\r\n",
        "5\nhello\r\n",
        "5\r\nhello!\r\n",
        ";\r\n",
        "5\r\nhellox",
        "1234567890abcdef0\r\n",
        "0\r\n\rX",
        "0\r\nT: x\n\n",
        "5\r\nhello\r5",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_chunks c = {0};
        buf out = {0};
        size_t used;
        if (http_chunks_feed(&c, cases[i], strlen(cases[i]), &out, &used) != HTTP_CHUNKS_BAD)
            fail_msg("taken: %s", cases[i]);
        buf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_head),        cmocka_unit_test(test_bad_heads),
        cmocka_unit_test(test_too_many_headers), cmocka_unit_test(test_head_length),
        cmocka_unit_test(test_chunks),           cmocka_unit_test(test_bad_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
