/* engine/prefix_file: what one engine has cached another finds, on every kind of model; and no
 * damaged or foreign file ever is. */
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "engine/prefix_file.h"
#include "tiny_engine.h"

static char *path, *file;
static char said[4096]; /* the log of the last engine */

static void note(void *context, log_level level, const char *text) {
    (void)context;
    (void)level;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static const log_sink sink = {.write = note};

static engine_params params(void) {
    engine_params p = tiny_engine_params(path);
    p.kv_cache_bytes = 8 << 20;
    p.block_size = 4;
    p.prefix_cache_file = file;
    p.log = &sink;
    return p;
}

static engine *open_with(const engine_params *p) {
    said[0] = '\0';
    return tiny_engine_open(p);
}

/* Asks; 8 tokens come back in ids. Returns cached_tokens. */
static uint32_t ask(engine *e, uint32_t seed, uint32_t n_prompt, uint64_t salt, int32_t ids[8]) {
    int32_t prompt[100];
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = (int32_t)(3 + (seed * 7 + i * i) % 250);
    engine_request r = engine_request_default();
    const engine_event *events;
    size_t n;
    uint64_t id;
    uint32_t cached = 0, n_ids = 0;
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = 8;
    r.ignore_eos = true;
    r.cache_salt = salt;
    r.sampling.temperature = 1;
    assert_int_equal(engine_submit(e, &r, &id, NULL), RIDGE_OK);
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) {
            if (events[i].has_token) ids[n_ids++] = events[i].token.id;
            cached = events[i].usage.cached_tokens;
        }
    assert_int_equal(n_ids, 8);
    return cached;
}

static void test_from_one_run_to_the_next(void **state) {
    (void)state;
    for (int kind = 0; tiny_kinds[kind] != NULL; kind++) {
        int32_t first[3][8], second[8];
        path = tiny_model_write(tiny_kinds[kind]);
        unlink(file);
        engine_params p = params();
        engine *e = open_with(&p);
        assert_string_equal(said, "");
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(ask(e, i, 50 + i, i / 2, first[i]), 0);
        engine_close(e);
        assert_non_null(strstr(said, "into"));
        struct stat st;
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        for (int run = 0; run < 2; run++) { /* what was restored is kept again */
            e = open_with(&p);
            assert_non_null(strstr(said, "out of"));
            for (uint32_t i = 0; i < 3; i++) {
                assert_int_equal(ask(e, i, 50 + i, i / 2, second), 49 + i);
                assert_memory_equal(first[i], second, sizeof second);
            }
            assert_int_equal(ask(e, 0, 50, 5 + (uint64_t)run, second), 0); /* another tenant */
            engine_close(e);
        }
        unlink(path);
        mem_free(path);
    }
}

static char *read_file(size_t *n) {
    char *data = NULL;
    assert_int_equal(file_read(&data, n, file, 1 << 30, NULL), RIDGE_OK);
    return data;
}

static void write_file(const char *data, size_t n) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void make_file(const engine_params *p) {
    int32_t ids[8];
    unlink(file);
    engine *e = open_with(p);
    ask(e, 1, 60, 0, ids);
    ask(e, 2, 60, 0, ids);
    engine_close(e);
}

/* Opens with the file as it is: refused with these words, and cold. */
static void expect_refusal(const engine_params *p, const char *words) {
    int32_t ids[8];
    engine *e = open_with(p);
    if (strstr(said, words) == NULL) fail_msg("'%s' is not in '%s'", words, said);
    assert_int_equal(ask(e, 1, 60, 0, ids), 0);
    mem_free(e->prefix_cache_file); /* this test's file stays as it is */
    e->prefix_cache_file = NULL;
    engine_close(e);
}

static void sum_again(char *data, size_t n) {
    uint64_t sum = XXH3_64bits(data, n - sizeof sum);
    memcpy(data + n - sizeof sum, &sum, sizeof sum);
}

static void test_damage_is_seen(void **state) {
    (void)state;
    engine_params p = params();
    size_t n;
    p.model_path = path = tiny_model_write("gemma3");
    make_file(&p);
    char *data = read_file(&n);
    for (size_t i = 8; i < n; i += 1 + n / 61) {
        data[i] ^= 0x40;
        write_file(data, n);
        expect_refusal(&p, "checksum");
        data[i] ^= 0x40;
    }
    const size_t lengths[] = {n - 1, n / 2, 200, 20, 5};
    for (size_t i = 0; i < 5; i++) {
        write_file(data, lengths[i]);
        expect_refusal(&p, "damaged");
    }
    const int32_t begins[] = {10, 11, 14, 19}; /* as ask's first prompt does */
    const int32_t no_tokens[] = {-1, 1 << 20};
    char *token = memmem(data, n, begins, sizeof begins);
    assert_non_null(token);
    for (int i = 0; i < 2; i++) {
        memcpy(token, &no_tokens[i], sizeof no_tokens[i]);
        sum_again(data, n);
        write_file(data, n);
        expect_refusal(&p, "a record is out of place");
    }
    write_file("hello, world", 12);
    expect_refusal(&p, "left as it is");
    engine_close(open_with(&p));
    mem_free(data);
    data = read_file(&n);
    assert_string_equal(data, "hello, world");
    mem_free(data);
    unlink(path);
    mem_free(path);
}

static void test_what_is_anothers(void **state) {
    (void)state;
    engine_params p = params();
    size_t n;
    p.model_path = path = tiny_model_write("llama");
    make_file(&p);
    char *data = read_file(&n);
    data[7] = '0'; /* an earlier version's is refused, and replaced as any of ours */
    sum_again(data, n);
    write_file(data, n);
    mem_free(data);
    expect_refusal(&p, "another version of the format");
    int32_t ids[8];
    for (int i = 0; i < 2; i++) { /* by who has nothing to keep it is not replaced */
        engine *e = open_with(&p);
        assert_non_null(strstr(said, "another version of the format"));
        if (i > 0) ask(e, 1, 60, 0, ids);
        engine_close(e);
    }
    engine_close(open_with(&p));
    assert_non_null(strstr(said, "out of"));
    p.block_size = 8;
    expect_refusal(&p, "blocks of 4 tokens, these have 8");
    p = params();
    p.precise = true;
    expect_refusal(&p, "fingerprint");
    p = params();
    char *other = tiny_model_write("qwen2");
    p.model_path = other;
    expect_refusal(&p, "fingerprint");
    unlink(other);
    mem_free(other);
    unlink(path);
    mem_free(path);
}

/* A smaller pool, or a smaller file, takes the most used ones. */
static void test_what_is_used_most_stays(void **state) {
    (void)state;
    int32_t ids[8];
    engine_params p = params();
    p.model_path = path = tiny_model_write("llama");
    unlink(file);
    engine *e = open_with(&p);
    uint64_t token_bytes = engine_kv_bytes_per_token(e);
    for (int i = 0; i < 3; i++) ask(e, 1, 80, 0, ids);
    ask(e, 2, 80, 0, ids);
    engine_close(e);
    p.kv_cache_bytes = 100 * token_bytes;
    p.max_model_len = 100;
    e = open_with(&p);
    assert_int_equal(ask(e, 1, 80, 0, ids), 76); /* no room to copy a block */
    assert_true(ask(e, 2, 80, 0, ids) < 30);
    engine_close(e);
    p = params();
    unlink(file);
    p.prefix_cache_file_bytes = 100 * token_bytes;
    e = open_with(&p);
    for (int i = 0; i < 3; i++) ask(e, 1, 80, 0, ids);
    ask(e, 2, 80, 0, ids);
    engine_close(e);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_true((uint64_t)st.st_size <= p.prefix_cache_file_bytes);
    e = open_with(&p);
    assert_in_range(ask(e, 1, 80, 0, ids), 60, 79);
    engine_close(e);
    unlink(path);
    mem_free(path);
}

static void test_where_it_cannot_be_written(void **state) {
    (void)state;
    engine_params p = params();
    int32_t ids[8];
    p.model_path = path = tiny_model_write("llama");
    p.prefix_cache_file = "/nowhere/at/all";
    engine *e = open_with(&p);
    ask(e, 1, 20, 0, ids);
    engine_close(e);
    assert_non_null(strstr(said, "not kept: /nowhere/at/all"));
    unlink(path);
    mem_free(path);
}

/* What is no file of ours stays as it is; an empty one is taken for none. */
static void test_what_stands_there(void **state) {
    (void)state;
    engine_params p = params();
    int32_t ids[8];
    struct stat st;
    char target[64], laid[80];
    p.model_path = path = tiny_model_write("llama");
    for (int i = 0; i < 2; i++) {
        unlink(file);
        assert_int_equal(i == 0 ? mkfifo(file, 0600) : mkdir(file, 0700), 0);
        engine *e = open_with(&p);
        assert_non_null(strstr(said, "it will be left as it is"));
        ask(e, 1, 20, 0, ids);
        engine_close(e);
        assert_null(strstr(said, "into"));
        assert_int_equal(stat(file, &st), 0);
        assert_true(i == 0 ? S_ISFIFO(st.st_mode) : S_ISDIR(st.st_mode));
        assert_int_equal(i == 0 ? unlink(file) : rmdir(file), 0);
    }
    write_file("", 0);
    assert_int_equal(chmod(file, 0644), 0);
    engine *e = open_with(&p);
    assert_string_equal(said, "");
    ask(e, 1, 20, 0, ids);
    engine_close(e);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size > 0 && (st.st_mode & 0777) == 0600);
    /* Through a link; and past what someone has laid where the new file is made. */
    snprintf(target, sizeof target, "%s-target", file);
    snprintf(laid, sizeof laid, "%s.new", target);
    assert_int_equal(rename(file, target), 0);
    assert_int_equal(symlink(target, file), 0);
    assert_int_equal(symlink("/nowhere/at/all", laid), 0);
    for (int i = 0; i < 2; i++) {
        e = open_with(&p);
        assert_non_null(strstr(said, "out of"));
        assert_int_equal(ask(e, 1 + i, 20, 0, ids), i == 0 ? 19 : 0);
        engine_close(e);
    }
    assert_int_equal(lstat(file, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    e = open_with(&p);
    assert_int_equal(ask(e, 2, 20, 0, ids), 19);
    engine_close(e);
    unlink(target);
    unlink(path);
    mem_free(path);
}

static int setup(void **state) {
    (void)state;
    static char name[] = "/tmp/ridge-prefixes-XXXXXX";
    int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    file = name;
    return fd < 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(file);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_one_run_to_the_next),
        cmocka_unit_test(test_damage_is_seen),
        cmocka_unit_test(test_what_is_anothers),
        cmocka_unit_test(test_what_is_used_most_stays),
        cmocka_unit_test(test_where_it_cannot_be_written),
        cmocka_unit_test(test_what_stands_there),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
