/* server/block_ids and server/record: names of blocks, the lines and their order, and a file that
 * cannot take them. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "format/trace.h"
#include "server/block_ids.h"
#include "server/record.h"

static int32_t tokens[4096];

static void fill_tokens(void) {
    for (int i = 0; i < 4096; i++) tokens[i] = i;
}

static void test_names(void **state) {
    (void)state;
    block_ids *b = NULL;
    uint64_t a[3], same[3], other[3];
    fill_tokens();
    assert_int_equal(block_ids_create(&b, 64, NULL), RIDGE_OK);
    assert_int_equal(block_ids_count(0), 0);
    assert_int_equal(block_ids_count(1), 1);
    assert_int_equal(block_ids_count(512), 1);
    assert_int_equal(block_ids_count(513), 2);
    block_ids_name(b, 0, tokens, 1100, a);
    assert_true(a[0] == 0 && a[1] == 1 && a[2] == 2);
    block_ids_name(b, 0, tokens, 1100, same);
    assert_memory_equal(a, same, sizeof a);
    /* Another second block: the third, though equal, has another past. */
    tokens[600] = -1;
    block_ids_name(b, 0, tokens, 1100, other);
    assert_true(other[0] == 0 && other[1] == 3 && other[2] == 4);
    tokens[600] = 600;
    /* A shorter last block is another block; another tenant shares nothing. */
    block_ids_name(b, 0, tokens, 1099, other);
    assert_true(other[1] == 1 && other[2] == 5);
    block_ids_name(b, 7, tokens, 1100, other);
    assert_true(other[0] == 6 && other[1] == 7 && other[2] == 8);
    block_ids_destroy(b);
}

/* What is used now and then keeps its name; what isn't is forgotten, and its name not used again.
 */
static void test_names_are_bounded(void **state) {
    (void)state;
    block_ids *b = NULL;
    uint64_t id, kept, lost, most = 0;
    int32_t t;
    assert_int_equal(block_ids_create(&b, 16, NULL), RIDGE_OK);
    block_ids_name(b, 0, (t = -1, &t), 1, &kept);
    block_ids_name(b, 0, (t = -2, &t), 1, &lost);
    for (int32_t i = 0; i < 1000; i++) {
        block_ids_name(b, 0, &i, 1, &id);
        assert_true(id > most);
        most = id;
        if (i % 8 != 0) continue;
        block_ids_name(b, 0, (t = -1, &t), 1, &id);
        assert_true(id == kept);
    }
    block_ids_name(b, 0, (t = -2, &t), 1, &id);
    assert_true(id > most);
    block_ids_destroy(b);
}

typedef struct {
    char path[64];
    record *r;
    char logged[512];
    int n_logged;
    log_sink log;
} fixture;

static void write_log(void *context, log_level level, const char *line) {
    fixture *f = context;
    (void)level;
    snprintf(f->logged, sizeof f->logged, "%s", line);
    f->n_logged++;
}

static void begin(fixture *f) {
    *f = (fixture){.log = {.write = write_log, .context = f}};
    strcpy(f->path, "/tmp/ridge-record-XXXXXX");
    int fd = mkstemp(f->path);
    assert_int_equal(write(fd, "old", 3), 3);
    close(fd);
    assert_int_equal(record_open(&f->r, f->path, &f->log, NULL), RIDGE_OK);
    record_begin(f->r, 100);
    fill_tokens();
}

static record_entry *arrive(fixture *f, double at_s, size_t n_prompt) {
    record_arrival a = {
        .request = 9, .arrived_s = at_s, .prompt = tokens, .n_prompt = n_prompt, .priority = -3};
    record_entry *e = record_arrived(f->r, &a);
    assert_non_null(e);
    return e;
}

static void finish(fixture *f, record_entry *e, uint32_t n_output) {
    engine_usage u = {.cached_tokens = 5, .queue_s = .25, .prefill = {.n_steps = 1}};
    record_outcome o = {
        .ttft_s = .5, .e2e_s = 1.5, .n_output = n_output, .finish = ENGINE_LENGTH, .usage = &u};
    record_finished(f->r, e, &o);
}

static char *contents(const fixture *f) {
    static char text[8192];
    FILE *file = fopen(f->path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void end(fixture *f) {
    record_close(f->r);
    unlink(f->path);
}

static void test_lines(void **state) {
    (void)state;
    fixture f;
    begin(&f);
    assert_string_equal(contents(&f), ""); /* what was there is gone */
    finish(&f, arrive(&f, 100.0304, 1100), 7);
    assert_string_equal(contents(&f), ""); /* not yet */
    assert_false(record_is_flushed(f.r));
    record_flush(f.r);
    assert_true(record_is_flushed(f.r));
    assert_string_equal(contents(&f),
                        "{\"timestamp\": 30, \"input_length\": 1100, \"output_length\": 7, "
                        "\"hash_ids\": [0, 1, 2], \"queue_ms\": 250.000, \"ttft_ms\": 500.000, "
                        "\"e2e_ms\": 1500.000, \"cached_tokens\": 5, \"finish_reason\": "
                        "\"length\", \"priority\": -3, \"request\": 9}\n");
    /* One that never ran. */
    engine_usage u = {0};
    record_outcome o = {.e2e_s = .5, .finish = ENGINE_CANCELLED, .usage = &u};
    record_finished(f.r, arrive(&f, 100.05, 3), &o);
    record_finished(f.r, NULL, &o);
    record_flush(f.r);
    const char *line = strchr(contents(&f), '\n') + 1;
    json_t *root = json_loads(line, 0, NULL);
    assert_non_null(root);
    assert_true(json_is_null(json_object_get(root, "queue_ms")));
    assert_true(json_is_null(json_object_get(root, "ttft_ms")));
    assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "abort");
    json_decref(root);
    assert_int_equal(record_n_lines(f.r), 2);
    assert_int_equal(record_n_lost(f.r), 0);
    end(&f);
    assert_int_equal(f.n_logged, 0);
}

static ridge_status read_trace(trace *out, const char *path, ridge_error *err) {
    char *text;
    size_t size;
    RIDGE_TRY(file_read(&text, &size, path, TRACE_MAX_BYTES, err));
    ridge_status status = trace_parse(out, path, text, size, 0, err);
    mem_free(text);
    return status;
}

/* As who replays it reads it: in order of arrival, whatever ends first. */
static void test_read_again(void **state) {
    (void)state;
    fixture f;
    trace t = {0};
    begin(&f);
    record_entry *first = arrive(&f, 101, 600), *second = arrive(&f, 102, 1100);
    record_entry *early = arrive(&f, 101.5, 100); /* it was being read for so long */
    record_entry *never = arrive(&f, 103, 1);
    finish(&f, second, 20);
    finish(&f, early, 30);
    record_flush(f.r);
    assert_string_equal(contents(&f), "");
    finish(&f, first, 10);
    record_flush(f.r);
    (void)never; /* the server ends before it does */
    ridge_error err = {0};
    record_close(f.r);
    if (read_trace(&t, f.path, &err) != RIDGE_OK) fail_msg("%s: %s", err.where, err.text);
    assert_int_equal(t.n, 3);
    static const struct {
        int64_t at_us;
        uint32_t n_input, n_output, n_blocks;
        int64_t blocks[3];
    } expected[] = {
        {0, 600, 10, 2, {0, 1}}, {500000, 100, 30, 1, {4}}, {1000000, 1100, 20, 3, {0, 2, 3}}};
    for (int i = 0; i < 3; i++) {
        const trace_request *r = &t.requests[i];
        assert_int_equal(r->at_us, expected[i].at_us);
        assert_int_equal(r->n_input, expected[i].n_input);
        assert_int_equal(r->n_output, expected[i].n_output);
        assert_int_equal(r->n_blocks, expected[i].n_blocks);
        for (uint32_t k = 0; k < r->n_blocks; k++)
            assert_int_equal(t.blocks[r->first_block + k], expected[i].blocks[k]);
    }
    trace_free(&t);
    unlink(f.path);
}

static int count_lines(const char *path) {
    int n = 0, c;
    FILE *file = fopen(path, "r");
    while ((c = fgetc(file)) != EOF) n += c == '\n';
    fclose(file);
    return n;
}

/* One that goes on for very long doesn't hold the others back for ever. */
static void test_held_lines(void **state) {
    (void)state;
    fixture f;
    begin(&f);
    record_entry *slow = arrive(&f, 101, 1);
    for (int i = 0; i < RECORD_MAX_HELD; i++) finish(&f, arrive(&f, 102, 1), 1);
    record_flush(f.r);
    assert_int_equal(count_lines(f.path), 0);
    finish(&f, arrive(&f, 102, 1), 1);
    record_flush(f.r);
    assert_int_equal(count_lines(f.path), RECORD_MAX_HELD + 1);
    finish(&f, slow, 1);
    finish(&f, arrive(&f, 103, 1), 1);
    record_flush(f.r);
    assert_int_equal(count_lines(f.path), RECORD_MAX_HELD + 3);
    end(&f);
}

/* A full disk: said once; what is lost is counted; nothing else happens. */
static void test_a_full_disk(void **state) {
    (void)state;
    fixture f = {.log = {.write = write_log, .context = &f}};
    assert_int_equal(record_open(&f.r, "/dev/full", &f.log, NULL), RIDGE_OK);
    fill_tokens();
    uint64_t n = 0;
    while (record_n_lost(f.r) == 0) {
        finish(&f, arrive(&f, 1, 1), 1);
        if (n++ % 1000 == 0) record_flush(f.r);
    }
    assert_true(n > RECORD_MAX_BYTES / 400);
    assert_int_equal(f.n_logged, 1);
    assert_non_null(strstr(f.logged, "No space left on device"));
    finish(&f, arrive(&f, 1, 1), 1);
    assert_int_equal(record_n_lost(f.r), 2);
    record_close(f.r);
    assert_int_equal(f.n_logged, 2);
    char said[64]; /* the one above is in n */
    snprintf(said, sizeof said, ": %llu lines are lost", (unsigned long long)n + 1);
    assert_non_null(strstr(f.logged, said));
}

/* A reader that is slow gets every line whole, later. */
static void test_a_slow_reader(void **state) {
    (void)state;
    fixture f = {.log = {.write = write_log, .context = &f}};
    char path[] = "/tmp/ridge-record-fifo-XXXXXX";
    int fd = mkstemp(path), n = 0;
    close(fd);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    ridge_error err = {0};
    assert_int_equal(record_open(&f.r, path, &f.log, &err), RIDGE_EIO); /* no reader */
    assert_non_null(strstr(err.text, path));
    fd = open(path, O_RDONLY | O_NONBLOCK);
    assert_int_equal(record_open(&f.r, path, &f.log, NULL), RIDGE_OK);
    fill_tokens();
    for (int i = 0; i < 1000; i++) finish(&f, arrive(&f, 1, 1), 1);
    record_flush(f.r);
    assert_false(record_is_flushed(f.r)); /* a pipe holds 64 KiB */
    char piece[4096];
    for (int i = 0; i < 1000 && n < 1000; i++) {
        ssize_t got = read(fd, piece, sizeof piece);
        for (ssize_t k = 0; k < got; k++) n += piece[k] == '\n';
        record_flush(f.r);
    }
    assert_int_equal(n, 1000);
    assert_true(record_is_flushed(f.r));
    record_close(f.r);
    assert_int_equal(f.n_logged, 0);
    close(fd);
    unlink(path);
}

static void test_no_memory(void **state) {
    (void)state;
    fixture f;
    record *r = NULL;
    begin(&f);
    bool opened = false;
    for (long n = 1; !opened && n < 20; n++) {
        mem_fail_after(n);
        opened = record_open(&r, "/dev/null", NULL, NULL) == RIDGE_OK;
        mem_fail_after(0);
    }
    assert_true(opened);
    record_close(r);
    record_arrival a = {.prompt = tokens, .n_prompt = 1};
    mem_fail_after(1);
    assert_null(record_arrived(f.r, &a));
    mem_fail_after(0);
    assert_int_equal(record_n_lost(f.r), 1);
    for (long n = 1; n < 10; n++) { /* a line that cannot be written is lost, whole */
        record_entry *e = arrive(&f, 101, 1100);
        mem_fail_after(n);
        finish(&f, e, 1);
        mem_fail_after(0);
    }
    record_flush(f.r);
    assert_true(record_n_lost(f.r) > 1);
    assert_int_equal(count_lines(f.path), record_n_lines(f.r));
    trace t = {0};
    assert_int_equal(read_trace(&t, f.path, NULL), RIDGE_OK);
    trace_free(&t);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_names_are_bounded),
        cmocka_unit_test(test_lines),         cmocka_unit_test(test_read_again),
        cmocka_unit_test(test_held_lines),    cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_a_slow_reader), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
