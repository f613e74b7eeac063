/* format/gguf: what a sound file gives, single or split, and that running out of memory anywhere
 * leaves nothing behind. Malformed files are in test_gguf_bad.c. */
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/gguf_internal.h"
#include "gguf_write.h"

/* A small file with a key of every type and three tensors. */
static void write_sample(gguf_writer *w) {
    static const char *const words[] = {"<unk>", "", "a\xC3\xA9"};
    static const float reals[] = {0.5f, -2.0f};
    static const int8_t bytes[] = {-1, 0, 1};
    static const uint64_t large[] = {1, UINT64_MAX};
    static const uint8_t flags[] = {1, 0};
    static const double precise = 0.1;
    static const int64_t negative = -5;
    static const int16_t small = -300;
    gguf_write_string(w, "general.architecture", "llama");
    gguf_write_u32(w, "general.alignment", w->alignment != 0 ? w->alignment : 32);
    gguf_write_u32(w, "u32", 7);
    gguf_write_u64(w, "u64", UINT64_MAX);
    gguf_write_f32(w, "f32", 1e-5f);
    gguf_write_bool(w, "yes", true);
    gguf_write_scalar(w, "f64", GGUF_F64, &precise, sizeof precise);
    gguf_write_scalar(w, "i64", GGUF_I64, &negative, sizeof negative);
    gguf_write_scalar(w, "i16", GGUF_I16, &small, sizeof small);
    gguf_write_strings(w, "words", words, 3);
    gguf_write_array(w, "reals", GGUF_F32, reals, 2);
    gguf_write_array(w, "bytes", GGUF_I8, bytes, 3);
    gguf_write_array(w, "large", GGUF_U64, large, 2);
    gguf_write_array(w, "flags", GGUF_BOOL, flags, 2);
    gguf_write_array(w, "empty", GGUF_U32, NULL, 0);
    gguf_write_random(w, "a", QUANT_F32, 1, (uint64_t[]){3}, 1.0f);
    gguf_write_random(w, "b.weight", QUANT_Q4_K, 2, (uint64_t[]){256, 2}, 1.0f);
    gguf_write_random(w, "c", QUANT_F16, 4, (uint64_t[]){2, 1, 3, 1}, 1.0f);
}

static gguf *open_bytes(buf *b) {
    gguf *g = NULL;
    ridge_error err = {0};
    if (gguf_open_memory(&g, b->data, b->len, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return g;
}

static void test_scalars(void **state) {
    (void)state;
    gguf_writer w = {0};
    write_sample(&w);
    buf b = gguf_write_bytes(&w);
    gguf *g = open_bytes(&b);
    uint64_t u;
    int64_t i;
    double x;
    bool flag;
    gguf_string s;
    gguf_type type;
    assert_true(gguf_get_u64(g, "u32", &u) && u == 7);
    assert_true(gguf_get_u64(g, "u64", &u) && u == UINT64_MAX);
    assert_false(gguf_get_u64(g, "i64", &u));
    assert_false(gguf_get_u64(g, "f32", &u));
    assert_false(gguf_get_u64(g, "yes", &u));
    assert_false(gguf_get_u64(g, "absent", &u));
    assert_true(gguf_get_i64(g, "i64", &i) && i == -5);
    assert_true(gguf_get_i64(g, "i16", &i) && i == -300);
    assert_false(gguf_get_i64(g, "u64", &i));
    assert_true(gguf_get_f64(g, "f32", &x) && x == (double)1e-5f);
    assert_true(gguf_get_f64(g, "f64", &x) && x == 0.1);
    assert_true(gguf_get_f64(g, "i16", &x) && x == -300.0);
    assert_true(gguf_get_f64(g, "u64", &x) && x == 0x1p64);
    assert_false(gguf_get_f64(g, "yes", &x));
    assert_true(gguf_get_bool(g, "yes", &flag) && flag);
    assert_false(gguf_get_bool(g, "u32", &flag));
    assert_true(gguf_get_string(g, "general.architecture", &s));
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.data, "llama", 5);
    assert_false(gguf_get_string(g, "words", &s));
    assert_true(gguf_has(g, "words", &type) && type == GGUF_ARRAY);
    assert_false(gguf_has(g, "absent", NULL));
    assert_int_equal(gguf_n_keys(g), 15);
    assert_string_equal(gguf_key(g, 2, &type), "u32");
    assert_int_equal(type, GGUF_U32);
    gguf_close(g);
    buf_free(&b);
    gguf_write_free(&w);
}

static void test_arrays(void **state) {
    (void)state;
    gguf_writer w = {0};
    write_sample(&w);
    buf b = gguf_write_bytes(&w);
    gguf *g = open_bytes(&b);
    gguf_type type;
    size_t n;
    gguf_string words[3];
    float reals[3];
    int64_t integers[3];
    assert_true(gguf_get_array(g, "words", &type, &n));
    assert_int_equal(type, GGUF_STRING);
    assert_int_equal(n, 3);
    assert_true(gguf_array_string(g, "words", words, 3));
    assert_int_equal(words[1].len, 0);
    assert_int_equal(words[2].len, 3);
    assert_memory_equal(words[2].data, "a\xC3\xA9", 3);
    assert_false(gguf_array_string(g, "words", words, 2));
    assert_false(gguf_array_string(g, "reals", words, 2));
    assert_true(gguf_array_f32(g, "reals", reals, 2) && reals[1] == -2.0f);
    assert_false(gguf_array_f32(g, "bytes", reals, 3));
    assert_true(gguf_array_i64(g, "bytes", integers, 3) && integers[0] == -1);
    assert_true(gguf_array_i64(g, "flags", integers, 2) && integers[0] == 1 && integers[1] == 0);
    assert_false(gguf_array_i64(g, "large", integers, 2));
    assert_false(gguf_array_i64(g, "reals", integers, 2));
    assert_true(gguf_get_array(g, "empty", &type, &n) && n == 0);
    assert_true(gguf_array_i64(g, "empty", integers, 0));
    assert_false(gguf_get_array(g, "u32", &type, &n));
    gguf_close(g);
    buf_free(&b);
    gguf_write_free(&w);
}

static void check_tensors(const gguf *g) {
    const gguf_tensor *t = gguf_tensor_find(g, "b.weight");
    assert_int_equal(gguf_n_tensors(g), 3);
    assert_non_null(t);
    assert_ptr_equal(t, gguf_tensor_at(g, 1));
    assert_int_equal(t->type, QUANT_Q4_K);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 256);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->size_bytes, 2 * 144);
    assert_null(gguf_tensor_find(g, "b"));
    assert_null(gguf_tensor_find(g, ""));
}

static void test_tensors_in_every_version_and_alignment(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        for (uint32_t alignment = 8; alignment <= 4096; alignment *= 8) {
            gguf_writer w = {.version = version, .alignment = alignment};
            write_sample(&w);
            buf b = gguf_write_bytes(&w);
            gguf *g = open_bytes(&b);
            check_tensors(g);
            for (size_t i = 0; i < 3; i++) {
                const gguf_tensor *t = gguf_tensor_at(g, i);
                size_t at = (size_t)((const char *)t->data - b.data);
                assert_int_equal(at % alignment, 0);
                assert_true(at + t->size_bytes <= b.len);
            }
            const gguf_tensor *t = gguf_tensor_find(g, "b.weight");
            size_t at = alignment * ((12 + alignment - 1) / alignment);
            assert_memory_equal(t->data, w.data.data + at, t->size_bytes);
            gguf_close(g);
            buf_free(&b);
            gguf_write_free(&w);
        }
    }
}

static void test_only_a_vocabulary(void **state) {
    (void)state;
    gguf_writer w = {0};
    gguf_write_strings(&w, "tokenizer.ggml.tokens", (const char *const[]){"a", "b"}, 2);
    buf b = gguf_write_bytes(&w);
    gguf *g = open_bytes(&b);
    assert_int_equal(gguf_n_tensors(g), 0);
    assert_null(gguf_tensor_find(g, "a"));
    assert_int_equal(gguf_file_bytes(g), b.len);
    gguf_close(g);
    buf_free(&b);
    gguf_write_free(&w);
}

static void test_many_names(void **state) {
    (void)state;
    gguf_writer w = {0};
    char name[32];
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "blk.%u.x", i);
        gguf_write_u32(&w, name, i);
        gguf_write_tensor(&w, name, QUANT_F32, 1, (uint64_t[]){1}, &i, sizeof i);
    }
    buf b = gguf_write_bytes(&w);
    gguf *g = open_bytes(&b);
    for (uint32_t i = 0; i < 5000; i++) {
        uint64_t v;
        snprintf(name, sizeof name, "blk.%u.x", i);
        assert_true(gguf_get_u64(g, name, &v) && v == i);
        assert_memory_equal(gguf_tensor_find(g, name)->data, &i, sizeof i);
    }
    gguf_close(g);
    buf_free(&b);
    gguf_write_free(&w);
}

static void test_dropped_pages_come_back(void **state) {
    (void)state;
    gguf_writer w = {0};
    gguf_write_random(&w, "t", QUANT_F32, 1, (uint64_t[]){65536}, 1.0f);
    char *path = gguf_write_temp(&w);
    gguf *g = NULL;
    assert_int_equal(gguf_open(&g, path, NULL), RIDGE_OK);
    const gguf_tensor *t = gguf_tensor_find(g, "t");
    assert_memory_equal(t->data, w.data.data, w.data.len);
    gguf_drop(g, t->data, t->size_bytes);
    assert_memory_equal(t->data, w.data.data, w.data.len);
    gguf_close(g);
    unlink(path);
    mem_free(path);
    gguf_write_free(&w);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    gguf_writer w = {0};
    write_sample(&w);
    char *path = gguf_write_temp(&w);
    for (long n = 1;; n++) {
        gguf *g = NULL;
        ridge_error err = {0};
        mem_fail_after(n);
        ridge_status status = gguf_open(&g, path, &err);
        mem_fail_after(0);
        if (status == RIDGE_OK) {
            assert_true(n > 5);
            check_tensors(g);
            gguf_close(g);
            break;
        }
        assert_int_equal(status, RIDGE_ENOMEM);
        assert_int_equal(err.code, RIDGE_ENOMEM);
        assert_null(g);
    }
    unlink(path);
    mem_free(path);
    gguf_write_free(&w);
}

/* ---- splits ---- */

enum { N_PARTS = 3 };

typedef struct {
    char folder[64];
    char paths[N_PARTS][128];
} split;

static void write_part(const split *s, int i, uint16_t no, uint16_t count, const char *tensor) {
    static const int32_t n_tensors = 2;
    gguf_writer w = {.seed = (uint64_t)i};
    if (i == 0) gguf_write_string(&w, "general.architecture", "llama");
    gguf_write_scalar(&w, "split.no", GGUF_U16, &no, sizeof no);
    gguf_write_scalar(&w, "split.count", GGUF_U16, &count, sizeof count);
    gguf_write_scalar(&w, "split.tensors.count", GGUF_I32, &n_tensors, sizeof n_tensors);
    /* as with gguf-split --no-tensor-first-split */
    if (i > 0) gguf_write_random(&w, tensor, QUANT_Q8_0, 1, (uint64_t[]){64}, 1.0f);
    gguf_write_file(&w, s->paths[i]);
    gguf_write_free(&w);
}

static void split_create(split *s) {
    char folder[] = "/tmp/ridge-split-XXXXXX";
    assert_non_null(mkdtemp(folder));
    memcpy(s->folder, folder, sizeof folder);
    for (int i = 0; i < N_PARTS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/m-%05d-of-%05d.gguf", folder, i + 1, N_PARTS);
        write_part(s, i, (uint16_t)i, N_PARTS, i == 1 ? "first" : "second");
    }
}

static void split_remove(const split *s) {
    for (int i = 0; i < N_PARTS; i++) unlink(s->paths[i]);
    rmdir(s->folder);
}

static void refused(const char *path, ridge_status expected, const char *text) {
    gguf *g = NULL;
    ridge_error err = {0};
    assert_int_equal(gguf_open(&g, path, &err), expected);
    assert_int_equal(err.code, expected);
    assert_null(g);
    if (strstr(err.text, text) == NULL) fail_msg("'%s', expected '%s'", err.text, text);
}

static void test_any_part_opens_all(void **state) {
    (void)state;
    split s;
    split_create(&s);
    for (int i = 0; i < N_PARTS; i++) {
        gguf *g = NULL;
        gguf_string arch;
        assert_int_equal(gguf_open(&g, s.paths[i], NULL), RIDGE_OK);
        assert_true(gguf_get_string(g, "general.architecture", &arch));
        assert_int_equal(gguf_n_tensors(g), 2);
        assert_non_null(gguf_tensor_find(g, "first"));
        assert_string_equal(gguf_tensor_at(g, 1)->name, "second");
        assert_int_equal(gguf_tensor_at(g, 1)->size_bytes, 68);
        gguf_drop(g, gguf_tensor_at(g, 1)->data, 68);
        gguf_close(g);
    }
    split_remove(&s);
}

static void test_faulty_splits(void **state) {
    (void)state;
    split s;
    split_create(&s);
    write_part(&s, 1, 2, N_PARTS, "first");
    refused(s.paths[0], RIDGE_EFORMAT, "says it is part 3 of 3, its name says part 2 of 3");
    write_part(&s, 1, 1, N_PARTS + 1, "first");
    refused(s.paths[0], RIDGE_EFORMAT, "says it is part 2 of 4");
    refused(s.paths[1], RIDGE_EFORMAT, "must end in -00002-of-00004.gguf");
    write_part(&s, 1, N_PARTS, N_PARTS, "first");
    refused(s.paths[0], RIDGE_EFORMAT, "split.no");
    write_part(&s, 1, 1, N_PARTS, "second");
    refused(s.paths[0], RIDGE_EFORMAT, "tensor 'second' occurs twice");
    write_part(&s, 1, 0, 1, "first");
    refused(s.paths[1], RIDGE_EFORMAT, "its name says it is a part");
    write_part(&s, 1, 1, 65535, "first");
    refused(s.paths[1], RIDGE_EFORMAT, "limit");
    unlink(s.paths[1]);
    refused(s.paths[2], RIDGE_ENOTFOUND, "part 2 of 3 is missing: '");
    refused(s.paths[2], RIDGE_ENOTFOUND, "m-00002-of-00003.gguf");
    split_remove(&s);
}

static void test_split_allocations_may_fail(void **state) {
    (void)state;
    split s;
    split_create(&s);
    ridge_status status;
    long n = 0;
    do {
        gguf *g = NULL;
        mem_fail_after(++n);
        status = gguf_open(&g, s.paths[1], NULL);
        mem_fail_after(0);
        assert_true(status == RIDGE_OK || status == RIDGE_ENOMEM);
        assert_int_equal(status == RIDGE_OK, g != NULL);
        gguf_close(g);
    } while (status != RIDGE_OK);
    assert_true(n > 10);
    split_remove(&s);
}

/* ---- real files ---- */

static void test_shared_vocabularies(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t n_tokens;
    } files[] = {{"llama-bpe", 128256}, {"llama-spm", 32000}, {"command-r", 256000}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        gguf *g = NULL;
        gguf_type type;
        size_t n;
        snprintf(path, sizeof path, "../shared/vocab/ggml-vocab-%s.gguf", files[i].name);
        if (access(path, R_OK) != 0) {
            print_message("skipped: no %s\n", path);
            skip();
        }
        assert_int_equal(gguf_open(&g, path, NULL), RIDGE_OK);
        assert_true(gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n));
        assert_int_equal(n, files[i].n_tokens);
        gguf_string *tokens = mem_zalloc(n, sizeof *tokens);
        assert_true(gguf_array_string(g, "tokenizer.ggml.tokens", tokens, n));
        mem_free(tokens);
        gguf_close(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors_in_every_version_and_alignment),
        cmocka_unit_test(test_only_a_vocabulary),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_dropped_pages_come_back),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_any_part_opens_all),
        cmocka_unit_test(test_faulty_splits),
        cmocka_unit_test(test_split_allocations_may_fail),
        cmocka_unit_test(test_shared_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
