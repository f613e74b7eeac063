/* trace: both formats, what is tolerated, and what is refused with its line. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/trace.h"

static ridge_error err;

static ridge_status parse(trace *t, const char *text, size_t limit) {
    err = (ridge_error){0};
    return trace_parse(t, "t.txt", text, strlen(text), limit, &err);
}

static void test_mooncake(void **state) {
    (void)state;
    trace t;
    static const char text[] =
        "{\"timestamp\": 2000, \"input_length\": 1025, \"output_length\": 5, \"hash_ids\": [7, 8, "
        "9]}\r\n"
        "\n"
        "{\"timestamp\": 2500.5, \"input_length\": 10, \"output_length\": 0, \"user\": \"x\"}\n"
        "{\"timestamp\": 3000, \"input_length\": 512, \"output_length\": 2, \"hash_ids\": [7]}";
    assert_int_equal(parse(&t, text, 0), RIDGE_OK);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.requests[0].at_us, 0);
    assert_int_equal(t.requests[0].n_input, 1025);
    assert_int_equal(t.requests[0].n_output, 5);
    assert_int_equal(t.requests[0].n_blocks, 3);
    assert_int_equal(t.blocks[t.requests[0].first_block + 2], 9);
    assert_int_equal(t.requests[1].at_us, 500500);
    assert_int_equal(t.requests[1].n_output, 1);
    assert_int_equal(t.requests[1].n_blocks, 0);
    assert_int_equal(t.requests[2].at_us, 1000000);
    assert_int_equal(t.blocks[t.requests[2].first_block], 7);
    trace_free(&t);
    assert_int_equal(parse(&t, text, 2), RIDGE_OK);
    assert_int_equal(t.n, 2);
    trace_free(&t);
}

static void test_arrivals_are_put_in_order(void **state) {
    (void)state;
    trace t;
    assert_int_equal(
        parse(&t,
              "{\"timestamp\":30,\"input_length\":3,\"output_length\":1,\"hash_ids\":[3]}\n"
              "{\"timestamp\":10,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
              "{\"timestamp\":10,\"input_length\":2,\"output_length\":1,\"hash_ids\":[2]}\n",
              0),
        RIDGE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t.requests[i].n_input, i + 1);
        assert_int_equal(t.blocks[t.requests[i].first_block], i + 1);
    }
    assert_int_equal(t.requests[2].at_us, 20000);
    trace_free(&t);
}

static void test_azure(void **state) {
    (void)state;
    trace t;
    assert_int_equal(parse(&t,
                           "\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                           "2023-12-31 23:59:59.6805900,374,44\r\n"
                           "2024-01-01T00:00:00.1805901Z,396,0\r\n"
                           "2024-02-29 12:00:00+00:00, 5 ,6\n"
                           "2024-03-01 12:00:00,1,1",
                           0),
                     RIDGE_OK);
    assert_int_equal(t.n, 4);
    assert_int_equal(t.requests[0].n_input, 374);
    assert_int_equal(t.requests[0].n_output, 44);
    assert_int_equal(t.requests[1].at_us, 500000);
    assert_int_equal(t.requests[1].n_output, 1);
    assert_int_equal(t.requests[2].n_input, 5);
    assert_int_equal(t.requests[3].at_us - t.requests[2].at_us, 86400000000);
    trace_free(&t);
    /* Columns by name, whatever else there is. */
    assert_int_equal(
        parse(&t, "Id,GeneratedTokens,TIMESTAMP,ContextTokens\n9,2,2024-01-01 0:0:0,3\n", 0),
        RIDGE_EFORMAT);
    assert_int_equal(
        parse(&t, "Id,GeneratedTokens,TIMESTAMP,ContextTokens\n9,2,2024-01-01 00:00:00,3\n", 0),
        RIDGE_OK);
    assert_int_equal(t.requests[0].n_input, 3);
    assert_int_equal(t.requests[0].n_output, 2);
    trace_free(&t);
}

static void test_what_is_wrong_is_said_with_its_line(void **state) {
    (void)state;
#define GOOD "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n"
#define CSV "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"", "t.txt: no requests"},
        {CSV, "t.txt: no requests"},
        {GOOD "{\"timestamp\":", "t.txt:2: not a JSON object"},
        {GOOD "\n[1]", "t.txt:3: expected a JSON object"},
        {GOOD "nonsense", "t.txt:2: not a JSON object"},
        {"{\"input_length\":1,\"output_length\":1}", "t.txt:1: no \"timestamp\""},
        {"{\"timestamp\":0,\"input_length\":\"1\",\"output_length\":1}",
         "\"input_length\" is not a number"},
        {"{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}", "\"timestamp\" is -1"},
        {"{\"timestamp\":0,\"input_length\":1.5,\"output_length\":1}", "a whole number"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":99999999}", "is 1e+08"},
        {"{\"timestamp\":0,\"input_length\":1e300,\"output_length\":1}", "1e+300"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":1}", "not a list"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[\"a\"]}",
         "hash_ids[0]"},
        {"{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}",
         "2 hash_ids for 512 tokens, expected at most 1"},
        {"hello\n", "t.txt:1: expected JSON lines, or CSV"},
        {"TIMESTAMP,ContextTokens\n", "t.txt:1: expected JSON lines, or CSV"},
        {CSV "2024-01-01 00:00:00,1\n", "t.txt:2: 2 columns, expected at least 3"},
        {CSV "2024-13-01 00:00:00,1,1\n", "t.txt:2: TIMESTAMP"},
        {CSV "2023-02-29 00:00:00,1,1\n", "t.txt:2: TIMESTAMP"},
        {CSV "2024-04-31 00:00:00,1,1\n", "t.txt:2: TIMESTAMP"},
        {CSV "2024-01-01 00:00:00x,1,1\n", "found '2024-01-01 00:00:00x'"},
        {CSV "2024-01-01 00:00:00+02:00,1,1\n", "TIMESTAMP"},
        {CSV "2024-01-01 00:00:00,-1,1\n", "ContextTokens: expected 0 to 16777216, found '-1'"},
        {CSV "2024-01-01 00:00:00,1,\n", "GeneratedTokens"},
        {CSV "2024-01-01 00:00:00,1,99999999999999999999\n", "GeneratedTokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trace t;
        assert_int_equal(parse(&t, cases[i].text, 0), RIDGE_EFORMAT);
        if (strstr(err.text, cases[i].said) == NULL)
            fail_msg("case %zu: '%s' says not '%s'", i, err.text, cases[i].said);
        trace_free(&t);
    }
}

/* A NUL within a line is no end of anything. */
static void test_zero_bytes(void **state) {
    (void)state;
    static const char text[] = CSV "2024-01-01 00:00:00\0,1,1\n";
    trace t;
    err = (ridge_error){0};
    assert_int_equal(trace_parse(&t, "t.txt", text, sizeof text - 1, 0, &err), RIDGE_EFORMAT);
    trace_free(&t);
}

static void test_no_memory(void **state) {
    (void)state;
    static const char text[] =
        "{\"timestamp\":1,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1,2]}\n";
    for (long n = 1;; n++) {
        trace t;
        mem_fail_after(n);
        ridge_status status = parse(&t, text, 0);
        mem_fail_after(0);
        trace_free(&t);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
        assert_true(n < 100);
    }
}

static ridge_status open_reader(trace_reader **out, const char *text, size_t limit) {
    char path[] = "/tmp/ridge-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    ridge_status status = trace_reader_open(out, path, limit, &err);
    unlink(path);
    return status;
}

/* "0:600[7 8] 500:1[]": times in ms, input tokens and names of blocks. */
static void expect_read(trace_reader *r, const char *expected) {
    buf out = {0};
    trace_request q;
    const int64_t *blocks;
    bool more = true;
    while (trace_reader_next(r, &q, &blocks, &more, &err) == RIDGE_OK && more) {
        buf_printf(&out, "%s%lld:%u[", out.len > 0 ? " " : "", (long long)q.at_us / 1000,
                   q.n_input);
        for (uint32_t i = 0; i < q.n_blocks; i++)
            buf_printf(&out, "%s%lld", i > 0 ? " " : "", (long long)blocks[i]);
        buf_putc(&out, ']');
    }
    assert_false(more);
    assert_string_equal(out.data, expected);
    buf_free(&out);
}

#define LINE(at, n, ids)                                                                           \
    "{\"timestamp\":" #at ",\"input_length\":" #n ",\"output_length\":1,\"hash_ids\":" ids "}\n"

/* One after the other, in order and not, as often as wanted, and no more than asked for. */
static void test_one_after_the_other(void **state) {
    (void)state;
    static const char *const texts[] = {
        LINE(10, 600, "[7,8]") "\n" LINE(10, 5, "[9]") LINE(510, 1, "[]"),
        LINE(510, 1, "[]") LINE(10, 600, "[7,8]") LINE(10, 5, "[9]"),
    };
    trace_reader *r;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(open_reader(&r, texts[i], 0), RIDGE_OK);
        for (int times = 0; times < 2; times++, trace_reader_rewind(r))
            expect_read(r, "0:600[7 8] 0:5[9] 500:1[]");
        trace_reader_close(r);
    }
    assert_int_equal(open_reader(&r, texts[0], 2), RIDGE_OK);
    expect_read(r, "0:600[7 8] 0:5[9]");
    trace_reader_close(r);
    for (long n = 1;; n++) {
        err = (ridge_error){0};
        mem_fail_after(n);
        ridge_status status = open_reader(&r, texts[1], 0);
        mem_fail_after(0);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
    }
    trace_reader_close(r);
}

static void test_a_file(void **state) {
    (void)state;
    trace_reader *r;
    err = (ridge_error){0};
    assert_int_equal(trace_reader_open(&r, "/nonexistent/trace", 0, &err), RIDGE_ENOTFOUND);
    err = (ridge_error){0};
    assert_int_equal(open_reader(&r, "{\"timestamp\":1}\n", 0), RIDGE_EFORMAT);
    assert_non_null(strstr(err.text, ":1: no \"input_length\""));
    err = (ridge_error){0};
    assert_int_equal(open_reader(&r, "\n", 0), RIDGE_EFORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mooncake),
        cmocka_unit_test(test_arrivals_are_put_in_order),
        cmocka_unit_test(test_azure),
        cmocka_unit_test(test_what_is_wrong_is_said_with_its_line),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
