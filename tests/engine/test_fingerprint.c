/* engine/fingerprint: whatever it says it covers changes it, and nothing else does. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine_internal.h"
#include "format/gguf_internal.h"
#include "gguf_write.h"

#define BIG_BYTES (40960 * sizeof(float))

static const fingerprint_path numbers = {"1.0", "avx2", DEV_KV_F16, false};

/* A file of one small and one large tensor, whose bytes are then changed one by one. */
typedef struct {
    buf file;
    size_t data; /* where the large tensor begins; the small one lies right before it */
} sample;

static void write_file(sample *s, const char *name) {
    float *values = calloc(1, BIG_BYTES);
    uint64_t small = 3072, big = BIG_BYTES / sizeof(float);
    gguf_writer w = {0};
    gguf_write_string(&w, "general.name", name);
    gguf_write_strings(&w, "words", (const char *const[]){"one", "two"}, 2);
    gguf_write_tensor(&w, "small", QUANT_F32, 1, &small, values, small * sizeof(float));
    gguf_write_tensor(&w, "big", QUANT_F32, 1, &big, values, BIG_BYTES);
    free(values);
    s->file = gguf_write_bytes(&w);
    s->data = s->file.len - BIG_BYTES;
    gguf_write_free(&w);
}

static void make(fingerprint out, const buf *file, const fingerprint_path *path) {
    gguf *g = NULL;
    assert_int_equal(gguf_open_memory(&g, file->data, file->len, NULL), RIDGE_OK);
    fingerprint_make(out, g, path);
    gguf_close(g);
}

static bool changes_with(sample *s, size_t at) {
    fingerprint before, after;
    make(before, &s->file, &numbers);
    s->file.data[at] ^= 1;
    make(after, &s->file, &numbers);
    s->file.data[at] ^= 1;
    return strcmp(before, after) != 0;
}

static void test_the_tensors(void **state) {
    (void)state;
    sample s = {0};
    write_file(&s, "a");
    const size_t middle = (BIG_BYTES - 4096) / 2;
    const size_t in[] = {0, 4095, middle, middle + 4095, BIG_BYTES - 4096, BIG_BYTES - 1};
    const size_t out[] = {4096, middle - 1, middle + 4096, BIG_BYTES - 4097};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        assert_true(changes_with(&s, s.data + in[i]));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        assert_false(changes_with(&s, s.data + out[i])); /* as the header says */
    for (size_t i = 1; i <= 12288; i += 1024) assert_true(changes_with(&s, s.data - i));
    buf_free(&s.file);
}

static void test_the_metadata(void **state) {
    (void)state;
    sample a = {0}, b = {0};
    fingerprint fa, fb, again;
    write_file(&a, "a");
    write_file(&b, "b");
    make(fa, &a.file, &numbers);
    make(fb, &b.file, &numbers);
    make(again, &a.file, &numbers);
    assert_string_not_equal(fa, fb);
    assert_string_equal(fa, again);
    char *word = memmem(a.file.data, a.file.len, "two", 3), *name;
    assert_true(changes_with(&a, (size_t)(word - a.file.data)));
    name = memmem(a.file.data, a.file.len, "small", 5); /* in the table of tensors */
    assert_true(changes_with(&a, (size_t)(name - a.file.data)));
    buf_free(&a.file);
    buf_free(&b.file);
}

static void test_the_path(void **state) {
    (void)state;
    sample s = {0};
    fingerprint base, other;
    write_file(&s, "a");
    make(base, &s.file, &numbers);
    assert_int_equal(strlen(base), 19);
    assert_memory_equal(base, "fp_", 3);
    const fingerprint_path paths[] = {{"1.1", "avx2", DEV_KV_F16, false},
                                      {"1.0", "avx512", DEV_KV_F16, false},
                                      {"1.0", "avx2", DEV_KV_F32, false},
                                      {"1.0", "avx2", DEV_KV_F16, true},
                                      {"1.0a", "vx2", DEV_KV_F16, false}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        make(other, &s.file, &paths[i]);
        assert_string_not_equal(base, other);
    }
    buf_free(&s.file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_tensors),
        cmocka_unit_test(test_the_metadata),
        cmocka_unit_test(test_the_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
