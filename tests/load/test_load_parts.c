/* load: statistics against known values, events split anywhere, answers, URLs, what a run comes to.
 */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "load/answer.h"
#include "load/load.h"
#include "load/sse.h"
#include "load/url.h"

static void assert_close(double x, double expected) {
    if (!(fabs(x - expected) < 1e-9)) fail_msg("%.12g, expected %.12g", x, expected);
}

/* ---- statistics ---- */

/* The expected values are numpy.percentile's. */
static void test_quantiles(void **state) {
    (void)state;
    static const double values[] = {7, 1, 3, 10, 2, 2, 8.5, 4, 6, 5};
    samples s = {0};
    for (size_t i = 0; i < 10; i++) samples_add(&s, values[i]);
    quantiles q = quantiles_of(&s);
    assert_int_equal(q.n, 10);
    assert_close(q.mean, 4.85);
    assert_close(q.min, 1);
    assert_close(q.p50, 4.5);
    assert_close(q.p90, 8.65);
    assert_close(q.p95, 9.325);
    assert_close(q.p99, 9.865);
    assert_close(q.max, 10);
    assert_close(quantile(s.values, 10, 0.25), 2.25);
    assert_close(quantile(s.values, 10, 0), 1);
    assert_close(quantile(s.values, 10, 1), 10);
    samples_free(&s);
    assert_int_equal(quantiles_of(&s).n, 0);
    samples_add(&s, 3);
    q = quantiles_of(&s);
    assert_close(q.p50, 3);
    assert_close(q.p99, 3);
    samples_free(&s);
}

/* ---- events ---- */

static void note_event(void *context, const char *type, const char *data, size_t n) {
    assert_int_equal(data[n], '\0');
    buf_printf(context, "[%s|%.*s]", type, (int)n, data);
}

/* What the parser makes of the text, fed in pieces of n bytes. */
static char *events_of(const char *text, size_t n, size_t piece) {
    sse_parser p = {0};
    buf out = {0};
    ridge_error err = {0};
    for (size_t at = 0; at < n; at += piece)
        assert_int_equal(
            sse_feed(&p, text + at, piece < n - at ? piece : n - at, note_event, &out, &err),
            RIDGE_OK);
    assert_int_equal(sse_end(&p, note_event, &out, &err), RIDGE_OK);
    sse_free(&p);
    return buf_take(&out);
}

static void test_events(void **state) {
    (void)state;
    static const struct {
        const char *text, *events;
    } cases[] = {
        {"data: a\n\ndata: b\n\n", "[|a][|b]"},
        {"data:a\r\n\r\ndata:  b\r\n\r\n", "[|a][| b]"},
        {"data: a\r\rdata: b\r\r", "[|a][|b]"},
        {": comment\n\n:\n\ndata: a\n: between\n\n", "[|a]"},
        {"data: a\ndata: b\ndata\n\n", "[|a\nb\n]"},
        {"event: error\ndata: x\n\ndata: y\n\n", "[error|x][|y]"},
        {"event: ping\n\ndata: y\n\n", "[|y]"},
        {"id: 1\nretry: 5\nnonsense\ndata: {\"a\":\"b: c\"}\n\n", "[|{\"a\":\"b: c\"}]"},
        {"\xEF\xBB\xBF"
         "data: a\n\n",
         "[|a]"},
        {"data:\n\n", "[|]"},
        {"\n\n\n", ""},
        {"data: cut off", "[|cut off]"},
        {"data: cut off\n", "[|cut off]"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece <= 20; piece++) {
            char *got = events_of(cases[i].text, strlen(cases[i].text), piece);
            assert_string_equal(got, cases[i].events);
            mem_free(got);
        }
}

static void test_an_endless_line_is_refused(void **state) {
    (void)state;
    sse_parser p = {0};
    ridge_error err = {0};
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    ridge_status status = RIDGE_OK;
    for (int i = 0; i < 20 && status == RIDGE_OK; i++)
        status = sse_feed(&p, block, sizeof block, note_event, NULL, &err);
    assert_int_equal(status, RIDGE_ETOOLARGE);
    sse_free(&p);
}

/* ---- answers ---- */

static ridge_status take(load_record *r, const char *json, bool *has_text, ridge_error *err) {
    XXH64_state_t *hash = XXH64_createState();
    XXH64_reset(hash, 0);
    ridge_status status = answer_take(r, hash, json, strlen(json), has_text, err);
    r->text_hash = XXH64_digest(hash);
    XXH64_freeState(hash);
    return status;
}

static void test_answers(void **state) {
    (void)state;
    static const struct {
        const char *json;
        bool has_text;
    } cases[] = {
        {"{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
         false},
        {"{\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}", true},
        {"{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"Hi\"}}]}", true},
        {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}",
         true},
        {"{\"choices\":[{\"text\":\"Hi\",\"finish_reason\":null}]}", true},
        {"{\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}", true},
        {"{\"choices\":[{\"delta\":null}]}", false},
        {"{\"choices\":[],\"usage\":{}}", false},
        {"{\"choices\":[{\"text\":\"\"}],\"error\":null}", false},
        {"{\"usage\":{\"prompt_tokens\":1}}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load_record r = {0};
        bool has_text;
        ridge_error err = {0};
        if (take(&r, cases[i].json, &has_text, &err) != RIDGE_OK) fail_msg("%s", err.text);
        if (has_text != cases[i].has_text) fail_msg("%s", cases[i].json);
    }
}

static void test_what_an_answer_counts(void **state) {
    (void)state;
    load_record r = {.prompt_tokens = -1, .cached_tokens = -1, .output_tokens = -1};
    bool has_text;
    assert_int_equal(take(&r,
                          "{\"choices\":[{\"text\":\"x\",\"finish_reason\":\"length\"}],\"usage\":{"
                          "\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{"
                          "\"cached_tokens\":8}}}",
                          &has_text, NULL),
                     RIDGE_OK);
    assert_int_equal(r.prompt_tokens, 9);
    assert_int_equal(r.output_tokens, 2);
    assert_int_equal(r.cached_tokens, 8);
    assert_string_equal(r.finish_reason, "length");
    /* Nothing later takes back what was said; nonsense is no count. */
    assert_int_equal(take(&r, "{\"choices\":[],\"usage\":null}", &has_text, NULL), RIDGE_OK);
    assert_int_equal(take(&r, "{\"choices\":[],\"usage\":{\"prompt_tokens\":-4}}", &has_text, NULL),
                     RIDGE_OK);
    assert_int_equal(
        take(&r, "{\"usage\":{\"prompt_tokens\":4611686018427387904}}", &has_text, NULL), RIDGE_OK);
    assert_int_equal(r.prompt_tokens, 9);
    assert_string_equal(r.finish_reason, "length");
}

static void test_bad_answers(void **state) {
    (void)state;
    load_record r = {0};
    bool has_text;
    ridge_error err = {0};
    assert_int_equal(take(&r, "{\"choices\":[", &has_text, &err), RIDGE_EFORMAT);
    assert_int_equal(take(&r, "7", &has_text, NULL), RIDGE_EFORMAT);
    assert_int_equal(take(&r, "{}", &has_text, NULL), RIDGE_EFORMAT);
    assert_int_equal(take(&r, "", &has_text, NULL), RIDGE_EFORMAT);
    err = (ridge_error){0};
    assert_int_equal(take(&r, "{\"error\":{\"message\":\"no room\"}}", &has_text, &err), RIDGE_EIO);
    assert_string_equal(err.text, "no room");
    err = (ridge_error){0};
    assert_int_equal(take(&r, "{\"choices\":[],\"error\":\"no room\"}", &has_text, &err),
                     RIDGE_EIO);
    assert_string_equal(err.text, "no room");
}

static void test_messages(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"error\":{\"message\":\"full\",\"code\":429}}", "full"},
        {"{\"error\":\"full\"}", "full"},
        {"{\"message\":\"full\"}", "full"},
        {"{\"detail\":\"full\"}", "full"},
        {"<html>", "<html>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = answer_error_message(cases[i][0], strlen(cases[i][0]));
        assert_string_equal(text, cases[i][1]);
        mem_free(text);
    }
    assert_null(answer_error_message("", 0));
    static const char list[] = "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}";
    char *model = answer_first_model(list, strlen(list));
    assert_string_equal(model, "a");
    mem_free(model);
    assert_null(answer_first_model("{\"data\":[]}", 11));
    assert_null(answer_first_model("", 0));
}

/* ---- URLs ---- */

static void test_urls(void **state) {
    (void)state;
    static const struct {
        const char *text, *host, *authority, *prefix;
        uint16_t port;
    } cases[] = {
        {"http://localhost", "localhost", "localhost", "", 80},
        {"http://localhost:8080/", "localhost", "localhost:8080", "", 8080},
        {"HTTP://h:1/v1", "h", "h:1", "", 1},
        {"http://h:1/v1/", "h", "h:1", "", 1},
        {"http://h:1/v1/chat/completions", "h", "h:1", "", 1},
        {"http://h:1/a/b/v1/completions", "h", "h:1", "/a/b", 1},
        {"http://h:1/a/b//?x=1", "h", "h:1", "/a/b", 1},
        {"http://h/xv1", "h", "h", "/xv1", 80},
        {"http://[::1]:8080/v1/models", "::1", "[::1]:8080", "", 8080},
        {"http://[::1]", "::1", "[::1]", "", 80},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        load_url u;
        ridge_error err = {0};
        if (url_parse(&u, cases[i].text, &err) != RIDGE_OK) fail_msg("%s", err.text);
        assert_string_equal(u.host, cases[i].host);
        assert_string_equal(u.authority, cases[i].authority);
        assert_string_equal(u.prefix, cases[i].prefix);
        assert_int_equal(u.port, cases[i].port);
        url_free(&u);
    }
}

static void test_bad_urls(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "localhost:8080",
                                      "https://h",
                                      "ftp://h",
                                      "http://",
                                      "http:///v1",
                                      "http://h:0",
                                      "http://h:65536",
                                      "http://h:",
                                      "http://h:x",
                                      "http://[::1",
                                      "http://[]",
                                      "http://[::1]x:1",
                                      "http://u@h/",
                                      "http://h/a b",
                                      "http://:80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        load_url u;
        ridge_error err = {0};
        if (url_parse(&u, bad[i], &err) != RIDGE_EINVAL) fail_msg("'%s' is accepted", bad[i]);
        assert_non_null(strstr(err.text, "expected http://HOST"));
    }
}

/* ---- what a run comes to ---- */

static void test_summary(void **state) {
    (void)state;
    uint32_t gaps[] = {10000, 20000, 30000};
    char refused[] = "full";
    load_record records[] = {
        {.end = LOAD_OK,
         .due_us = 1000,
         .sent_us = 2000,
         .first_us = 101000,
         .last_us = 161000,
         .end_us = 171000,
         .n_texts = 4,
         .gaps_us = gaps,
         .prompt_tokens = 50,
         .cached_tokens = 16,
         .output_tokens = 7},
        /* By its pieces of text and planned input: the server says nothing. */
        {.end = LOAD_OK,
         .due_us = 0,
         .sent_us = 0,
         .first_us = 300000,
         .last_us = 310000,
         .end_us = 310000,
         .n_texts = 2,
         .gaps_us = gaps,
         .n_input = 5,
         .prompt_tokens = -1,
         .cached_tokens = -1,
         .output_tokens = -1},
        /* One token: no time per further token. */
        {.end = LOAD_OK,
         .first_us = 100000,
         .last_us = 100000,
         .end_us = 100000,
         .n_texts = 1,
         .prompt_tokens = 1,
         .output_tokens = 1},
        {.end = LOAD_HTTP, .http_status = 429, .message = NULL},
        {.end = LOAD_HTTP, .http_status = 429, .message = refused},
        {.end = LOAD_TIMEOUT},
    };
    load_result result = {.records = records, .n = 6, .seconds = 2};
    load_summary s;
    assert_int_equal(load_summarize(&s, &result, 150, 10, NULL), RIDGE_OK);
    assert_int_equal(s.n_ok, 3);
    assert_int_equal(s.n_failed, 3);
    assert_close(s.ttft_ms.max, 300);
    assert_close(s.ttft_ms.p50, 100);
    assert_int_equal(s.tpot_ms.n, 2);
    assert_close(s.tpot_ms.mean, 10); /* 60 ms over 6, and 10 over 1 */
    assert_int_equal(s.itl_ms.n, 4);
    assert_close(s.itl_ms.mean, (10 + 20 + 30 + 10) / 4.0);
    assert_close(s.e2e_ms.max, 310);
    assert_int_equal(s.late_ms.n, 6);
    assert_close(s.late_ms.max, 1);
    assert_false(s.late);
    assert_int_equal(s.input_tokens, 56);
    assert_int_equal(s.cached_tokens, 16);
    assert_int_equal(s.output_tokens, 10);
    assert_int_equal(s.n_good, 2); /* the second is late to its first token */
    assert_int_equal(s.n_errors, 2);
    assert_string_equal(s.errors[0].name, "http_429");
    assert_int_equal(s.errors[0].count, 2);
    assert_string_equal(s.errors[0].first, "full");
    assert_string_equal(s.errors[1].name, "timeout");

    assert_int_equal(load_summarize(&s, &result, 0, 9, NULL), RIDGE_OK);
    assert_int_equal(s.n_good, 1);
    for (size_t i = 0; i < 6; i++) records[i].sent_us = records[i].due_us + 20000;
    assert_int_equal(load_summarize(&s, &result, 0, 0, NULL), RIDGE_OK);
    assert_true(s.late);
    assert_int_equal(s.n_good, 3);
}

static void test_more_kinds_of_errors_than_there_are(void **state) {
    (void)state;
    enum { N = LOAD_MAX_ERROR_KINDS + 5 };
    static load_record records[N];
    for (int i = 0; i < N; i++)
        records[i] = (load_record){.end = LOAD_HTTP, .http_status = 400 + i};
    load_result result = {.records = records, .n = N};
    load_summary s;
    assert_int_equal(load_summarize(&s, &result, 0, 0, NULL), RIDGE_OK);
    assert_int_equal(s.n_errors, LOAD_MAX_ERROR_KINDS);
    assert_int_equal(s.errors[LOAD_MAX_ERROR_KINDS - 1].count, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_an_endless_line_is_refused),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_what_an_answer_counts),
        cmocka_unit_test(test_bad_answers),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_bad_urls),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_more_kinds_of_errors_than_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
