/* format/gguf: malformed files, each refused with its own message, without crash or growth.
 *
 * Files are written byte by byte by a small language (see put): the cases come from public reports
 * of loaders that crashed, hung or allocated without bound. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/gguf_internal.h"
#include "gguf_write.h"

#define S(text) ((uint64_t)(uintptr_t)(text))

static void put_number(buf *b, uint64_t v, size_t size) {
    buf_append(b, &v, size); /* little-endian */
}

static void put_text(buf *b, uint64_t text) {
    const char *s = (const char *)(uintptr_t)text;
    put_number(b, strlen(s), 8);
    buf_puts(b, s);
}

/* Each letter of spec takes its values from v:
 *   h  header: tensors, keys           1 4 8  a number of so many bytes
 *   s  a string                        k      a key: name, type
 *   u  a whole u32 key: name, value    t      a tensor: name, one dimension, type, offset
 *   z  zeros to a multiple of 32, then so many more
 */
static void put(buf *b, const char *spec, const uint64_t *v) {
    for (; *spec != '\0'; spec++) {
        switch (*spec) {
        case 'h':
            buf_puts(b, "GGUF");
            put_number(b, 3, 4);
            put_number(b, *v++, 8);
            put_number(b, *v++, 8);
            break;
        case '1':
        case '4':
        case '8': put_number(b, *v++, (size_t)(*spec - '0')); break;
        case 's': put_text(b, *v++); break;
        case 'k':
            put_text(b, *v++);
            put_number(b, *v++, 4);
            break;
        case 'u':
            put_text(b, *v++);
            put_number(b, GGUF_U32, 4);
            put_number(b, *v++, 4);
            break;
        case 't':
            put_text(b, *v++);
            put_number(b, 1, 4);
            put_number(b, *v++, 8);
            put_number(b, *v++, 4);
            put_number(b, *v++, 8);
            break;
        case 'z':
            while (b->len % 32 != 0) buf_putc(b, '\0');
            for (uint64_t i = *v++; i > 0; i--) buf_putc(b, '\0');
            break;
        default: fail();
        }
    }
}

static void check_refused(const char *data, size_t size, ridge_status expected, const char *text) {
    gguf *g = NULL;
    ridge_error err = {0};
    char *copy = mem_dup(data, size); /* of the exact size, so that ASan sees reads past it */
    assert_non_null(copy);
    ridge_status status = gguf_open_memory(&g, copy, size, &err);
    mem_free(copy);
    assert_null(g);
    if (strstr(err.text, text) == NULL) fail_msg("'%s', expected '%s'", err.text, text);
    assert_int_equal(status, expected);
    assert_int_equal(err.code, expected);
}

static void refused(ridge_status expected, const char *text, const char *spec, const uint64_t *v) {
    buf b = {0};
    put(&b, spec, v);
    assert_false(b.failed);
    check_refused(b.data, b.len, expected, text);
    buf_free(&b);
}

#define BAD(text, spec, ...) refused(RIDGE_EFORMAT, text, spec, (const uint64_t[]){__VA_ARGS__})
#define UNSUPPORTED(text, spec, ...)                                                               \
    refused(RIDGE_EUNSUPPORTED, text, spec, (const uint64_t[]){__VA_ARGS__})

static void test_header(void **state) {
    (void)state;
    static const char big[] = "GGUF\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    static const char one[] = "GGUF\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0";
    check_refused("", 0, RIDGE_EFORMAT, "not a GGUF file: it has 0 bytes");
    check_refused("GGU", 3, RIDGE_EFORMAT, "not a GGUF file: it has 3 bytes");
    check_refused("GGML\3\0\0\0", 8, RIDGE_EFORMAT, "it begins with bytes 47 47 4d 4c, not 'GGUF'");
    check_refused("GGUF\3\0", 6, RIDGE_EFORMAT, "ends inside the header");
    check_refused("GGUF\3\0\0\0\0", 9, RIDGE_EFORMAT, "ends inside the header");
    check_refused(big, sizeof big - 1, RIDGE_EUNSUPPORTED, "big-endian");
    check_refused(one, sizeof one - 1, RIDGE_EUNSUPPORTED, "version 1; versions 2 and 3");
    check_refused("GGUF\143\0\0\0", 8, RIDGE_EUNSUPPORTED, "version 99; versions 2 and 3");
    check_refused("GGUF\0\0\0\0", 8, RIDGE_EUNSUPPORTED, "version 0; versions 2 and 3");
    BAD("promises 9223372036854775808 keys", "h", 0, UINT64_C(1) << 63);
    BAD("promises 18446744073709551615 tensors", "h", UINT64_MAX, 0);
    BAD("promises 70000 keys; 8 bytes left", "h8", 0, 70000, 0);
}

static void test_keys(void **state) {
    (void)state;
    BAD("ends inside the key: 18446744073709551615 bytes", "h84444", 0, 1, UINT64_MAX, 0, 0, 0, 0);
    BAD("name at offset 24 is empty", "hu", 0, 1, S(""), 1);
    BAD("control character", "h844444", 0, 1, 8, 0x006e6567, 0x6c617265, 4, 1, 0);
    BAD("control character", "hu", 0, 1, S("a\x1b[31m"), 1);
    BAD("not UTF-8", "hu", 0, 1, S("a\xFF"), 1);
    BAD("key 'k': type 13, expected 0 to 12", "hk8", 0, 1, S("k"), 13, 0);
    BAD("key 'k': a bool is 2", "hk1", 0, 1, S("k"), GGUF_BOOL, 2);
    BAD("ends inside the key 'k': 8 bytes", "hk4", 0, 1, S("k"), GGUF_F64, 0);
    BAD("key 'k' occurs twice", "huu", 0, 2, S("k"), 1, S("k"), 1);
    BAD("ends inside the key: 100 bytes", "hu88", 0, 2, S("k"), 1, 100, 0);
}

static void test_key_too_long(void **state) {
    (void)state;
    char *name = mem_alloc(70001);
    memset(name, 'k', 70000);
    name[70000] = '\0';
    BAD("has 70000 bytes, limit 65535", "hu", 0, 1, S(name), 1);
    mem_free(name);
}

static void test_strings_and_arrays(void **state) {
    (void)state;
    BAD("ends inside the key 'k': 9223372036854775808 bytes", "hk8", 0, 1, S("k"), GGUF_STRING,
        UINT64_C(1) << 63);
    BAD("ends inside the key 'k': 1073741824 bytes", "hk88", 0, 1, S("k"), GGUF_STRING,
        UINT64_C(1) << 30, 0);
    BAD("key 'k': an array of 9223372036854775808 u32s, but 0 bytes", "hk48", 0, 1, S("k"),
        GGUF_ARRAY, GGUF_U32, UINT64_C(1) << 63);
    BAD("key 'k': an array of 4611686018427387904 strings", "hk48", 0, 1, S("k"), GGUF_ARRAY,
        GGUF_STRING, UINT64_C(1) << 62);
    BAD("key 'k': an array of 2305843009213693953 f64s", "hk488", 0, 1, S("k"), GGUF_ARRAY,
        GGUF_F64, (UINT64_C(1) << 61) + 1, 0); /* × 8 wraps to 8 */
    BAD("ends inside the key 'k': 5 bytes needed", "hk4888", 0, 1, S("k"), GGUF_ARRAY, GGUF_STRING,
        2, 0, 5);
    BAD("key 'k': array element type 13", "hk48", 0, 1, S("k"), GGUF_ARRAY, 13, 0);
    BAD("key 'k': a bool is 7", "hk4811", 0, 1, S("k"), GGUF_ARRAY, GGUF_BOOL, 2, 1, 7);
}

static void test_nested_arrays(void **state) {
    (void)state;
    buf b = {0};
    put(&b, "hk", (const uint64_t[]){0, 1, S("k"), GGUF_ARRAY});
    for (int i = 0; i < 100000; i++) put(&b, "48", (const uint64_t[]){GGUF_ARRAY, 1});
    check_refused(b.data, b.len, RIDGE_EFORMAT, "key 'k': an array of arrays");
    buf_free(&b);
}

static void test_alignment(void **state) {
    (void)state;
    static const uint64_t bad[] = {0, 1, 4, 33, 24, 48, 1u << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        BAD("key 'general.alignment': ", "hutz", 1, 1, S("general.alignment"), bad[i], S("t"), 1,
            QUANT_F32, 0, 32);
    BAD("key 'general.alignment': type string, expected u32", "hkst", 1, 1, S("general.alignment"),
        GGUF_STRING, S("32"), S("t"), 1, QUANT_F32, 0);
    BAD("key 'general.alignment' occurs twice", "huu", 0, 2, S("general.alignment"), 32,
        S("general.alignment"), 64);
}

static void test_shapes(void **state) {
    (void)state;
    BAD("tensor 't': 1000000 dimensions, expected 1 to 4", "hs4848z", 1, 0, S("t"), 1000000, 1, 0,
        0, 32);
    BAD("tensor 't': 5 dimensions", "hs48888848z", 1, 0, S("t"), 5, 1, 1, 1, 1, 1, 0, 0, 32);
    BAD("tensor 't': 0 dimensions, expected 1 to 4", "hs448z", 1, 0, S("t"), 0, 0, 0, 32);
    BAD("tensor 't': dimension 1 is 0", "hs48848z", 1, 0, S("t"), 2, 4, 0, 0, 0, 32);
    BAD("product of its dimensions", "hs4888848z", 1, 0, S("t"), 4, UINT64_MAX, 2, 1, 1, 0, 0, 32);
    BAD("product of its dimensions", "hs4888848z", 1, 0, S("t"), 4, UINT64_C(1) << 32,
        UINT64_C(1) << 32, UINT64_C(1) << 32, 1, 0, 0, 32);
    BAD("product of its dimensions", "htz", 1, 0, S("t"), UINT64_C(1) << 63, QUANT_F32, 0, 32);
    BAD("its size passes 2^64", "htz", 1, 0, S("t"), UINT64_C(1) << 62, QUANT_F32, 0, 32);
    BAD("rows of 31 values, not a multiple of the 32 of a Q4_0 block", "htz", 1, 0, S("t"), 31,
        QUANT_Q4_0, 0, 64);
    BAD("rows of 128 values, not a multiple of the 256 of a Q6_K block", "htz", 1, 0, S("t"), 128,
        QUANT_Q6_K, 0, 512);
    BAD("ends inside the tensor 'u': 8 bytes needed", "hts4888", 2, 0, S("t"), 8, QUANT_F32, 0,
        S("u"), 4, 1, 1, 1);
}

static void test_types(void **state) {
    (void)state;
    UNSUPPORTED("tensor 't': unknown type 200; supported: F32, F16", "htz", 1, 0, S("t"), 32, 200,
                0, 256);
    UNSUPPORTED("tensor 't': type Q4_2; supported: ", "htz", 1, 0, S("t"), 32, 4, 0, 256);
    UNSUPPORTED("tensor 't': type IQ2_XXS; supported: ", "htz", 1, 0, S("t"), 256, 16, 0, 256);
    UNSUPPORTED("tensor 't': type MXFP4; supported: ", "htz", 1, 0, S("t"), 32, 39, 0, 256);
    UNSUPPORTED("unknown type 4294967295", "htz", 1, 0, S("t"), 32, UINT32_MAX, 0, 256);
}

static void test_places(void **state) {
    (void)state;
    BAD("tensor 't': 32 bytes at offset 1099511627776", "htz", 1, 0, S("t"), 8, QUANT_F32,
        UINT64_C(1) << 40, 32);
    BAD("tensor 't': 32 bytes at offset 18446744073709551584", "htz", 1, 0, S("t"), 8, QUANT_F32,
        UINT64_MAX - 31, 64);
    BAD("tensor 't': offset 4, not a multiple of the alignment 32", "htz", 1, 0, S("t"), 8,
        QUANT_F32, 4, 64);
    BAD("tensor 't': 4096 bytes at offset 0 of the data, which begins at 64; the file has 80",
        "htz", 1, 0, S("t"), 1024, QUANT_F32, 0, 16);
    BAD("tensor 't': 4 bytes at offset 0", "ht", 1, 0, S("t"), 1, QUANT_F32, 0);
    BAD("tensor 't' occurs twice", "httz", 2, 0, S("t"), 8, QUANT_F32, 0, S("t"), 8, QUANT_F32, 32,
        64);
    BAD("tensor 'u': offset 32 lies inside or before the tensor before it", "httz", 2, 0, S("t"),
        16, QUANT_F32, 0, S("u"), 8, QUANT_F32, 32, 96);
    BAD("tensor 'u': offset 0 lies inside or before", "httz", 2, 0, S("t"), 8, QUANT_F32, 32,
        S("u"), 8, QUANT_F32, 0, 96);
}

static void test_tensor_name_too_long(void **state) {
    (void)state;
    char name[129];
    memset(name, 'n', 128);
    name[128] = '\0';
    BAD("has 128 bytes, limit 127", "htz", 1, 0, S(name), 1, QUANT_F32, 0, 32);
}

static void test_splits(void **state) {
    (void)state;
    BAD("part 3 of 3", "huu", 0, 2, S("split.count"), 3, S("split.no"), 3);
    BAD("limit is 1024 parts", "hu", 0, 1, S("split.count"), 100000);
    BAD("key 'split.count': not a count", "hks", 0, 1, S("split.count"), GGUF_STRING, S("2"));
}

/* ---- a sound file, damaged ---- */

static buf sample(void) {
    gguf_writer w = {0};
    gguf_write_string(&w, "general.architecture", "llama");
    gguf_write_u32(&w, "general.alignment", 32);
    gguf_write_strings(&w, "tokens", (const char *const[]){"a", "", "bc"}, 3);
    gguf_write_array(&w, "flags", GGUF_BOOL, "\1\0", 2);
    gguf_write_random(&w, "t", QUANT_Q8_0, 2, (uint64_t[]){32, 3}, 1.0f);
    gguf_write_random(&w, "u", QUANT_F32, 1, (uint64_t[]){5}, 1.0f);
    buf b = gguf_write_bytes(&w);
    gguf_write_free(&w);
    return b;
}

static void test_every_truncation(void **state) {
    (void)state;
    buf b = sample();
    for (size_t n = 0; n < b.len; n++) check_refused(b.data, n, RIDGE_EFORMAT, "");
    buf_free(&b);
}

/* Opens or refuses; what opens lies inside the file. */
static void test_every_byte_changed(void **state) {
    (void)state;
    static const unsigned char changes[] = {0x01, 0x80, 0xFF, 0x7F};
    buf b = sample();
    for (size_t i = 0; i < b.len * sizeof changes; i++) {
        gguf *g = NULL;
        char *copy = mem_dup(b.data, b.len);
        copy[i / sizeof changes] = (char)(copy[i / sizeof changes] ^ changes[i % sizeof changes]);
        if (gguf_open_memory(&g, copy, b.len, NULL) == RIDGE_OK) {
            for (size_t k = 0; k < gguf_n_tensors(g); k++) {
                const gguf_tensor *t = gguf_tensor_at(g, k);
                const char *p = t->data;
                assert_true(p >= copy && p + t->size_bytes <= copy + b.len);
            }
            gguf_close(g);
        }
        mem_free(copy);
    }
    buf_free(&b);
}

/* No header may cost more than the file: 1 MB of promises stays far under 100 MB. */
static void test_memory_is_bounded(void **state) {
    (void)state;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    buf b = {0};
    put(&b, "h", (const uint64_t[]){30000, 0});
    for (int i = 0; i < 30000; i++)
        put(&b, "t", (const uint64_t[]){S("t"), 32, QUANT_F32, 1u << 31});
    check_refused(b.data, b.len, RIDGE_EFORMAT, "tensor 't'");
    buf_free(&b);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 100 * 1024);
}

static void test_files_that_cannot_be_read(void **state) {
    (void)state;
    gguf *g = NULL;
    ridge_error err = {0};
    assert_int_equal(gguf_open(&g, "/nonexistent/m.gguf", &err), RIDGE_ENOTFOUND);
    assert_non_null(strstr(err.text, "/nonexistent/m.gguf"));
    error_reset(&err);
    assert_int_equal(gguf_open(&g, "/tmp", &err), RIDGE_EIO);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(gguf_open(&g, "/dev/null", NULL), RIDGE_EIO);
    assert_null(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_key_too_long),
        cmocka_unit_test(test_strings_and_arrays),
        cmocka_unit_test(test_nested_arrays),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_tensor_name_too_long),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_files_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
