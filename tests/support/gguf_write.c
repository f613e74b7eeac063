/* tests/support/gguf_write: see gguf_write.h. */
#include "gguf_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/gguf_internal.h"
#include "unit.h"

static void put_u32(buf *b, uint32_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_u64(buf *b, uint64_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_string(buf *b, const char *s) {
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void put_key(gguf_writer *w, const char *key, gguf_type type) {
    put_string(&w->keys, key);
    put_u32(&w->keys, type);
    w->n_keys++;
}

void gguf_write_scalar(gguf_writer *w, const char *key, gguf_type type, const void *v,
                       size_t size) {
    put_key(w, key, type);
    buf_append(&w->keys, v, size);
}

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v) {
    gguf_write_scalar(w, key, GGUF_U32, &v, sizeof v);
}

void gguf_write_u64(gguf_writer *w, const char *key, uint64_t v) {
    gguf_write_scalar(w, key, GGUF_U64, &v, sizeof v);
}

void gguf_write_f32(gguf_writer *w, const char *key, float v) {
    gguf_write_scalar(w, key, GGUF_F32, &v, sizeof v);
}

void gguf_write_bool(gguf_writer *w, const char *key, bool v) {
    uint8_t byte = v;
    gguf_write_scalar(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_write_string(gguf_writer *w, const char *key, const char *v) {
    put_key(w, key, GGUF_STRING);
    put_string(&w->keys, v);
}

void gguf_write_array(gguf_writer *w, const char *key, gguf_type element, const void *v, size_t n) {
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, element);
    put_u64(&w->keys, n);
    buf_append(&w->keys, v, n * gguf_type_bytes(element));
}

void gguf_write_strings(gguf_writer *w, const char *key, const char *const *v, size_t n) {
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, GGUF_STRING);
    put_u64(&w->keys, n);
    for (size_t i = 0; i < n; i++) put_string(&w->keys, v[i]);
}

static void pad(buf *b, uint32_t alignment) {
    while (b->len % (alignment != 0 ? alignment : 32) != 0) buf_putc(b, '\0');
}

void gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, int n_dims,
                       const uint64_t *dims, const void *data, size_t size) {
    pad(&w->data, w->alignment);
    put_string(&w->tensors, name);
    put_u32(&w->tensors, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) put_u64(&w->tensors, dims[i]);
    put_u32(&w->tensors, (uint32_t)type);
    put_u64(&w->tensors, w->data.len);
    buf_append(&w->data, data, size);
    w->n_tensors++;
}

static uint64_t random_u64(gguf_writer *w) { /* splitmix64 */
    uint64_t z = w->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void random_plain(gguf_writer *w, quant_type type, unsigned char *p, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) {
        float x = scale * ((float)(random_u64(w) >> 40) * 0x1p-23f - 1.0f);
        uint16_t h = quant_f32_to_f16(x);
        if (type == QUANT_BF16) memcpy(&h, (unsigned char *)&x + 2, sizeof h);
        if (type == QUANT_F32)
            memcpy(p + 4 * i, &x, sizeof x);
        else
            memcpy(p + 2 * i, &h, sizeof h);
    }
}

/* Where a block's f16 scale and minimum lie, and what they are for values of ±1. */
static const struct {
    quant_type type;
    int scale_at, min_at; /* min_at: 0 for none */
    float scale, min;
} layouts[] = {
    {QUANT_Q4_0, 0, 0, 1.0f / 8, 0},
    {QUANT_Q4_1, 0, 2, 2.0f / 15, -1},
    {QUANT_Q5_0, 0, 0, 1.0f / 16, 0},
    {QUANT_Q5_1, 0, 2, 2.0f / 31, -1},
    {QUANT_Q8_0, 0, 0, 1.0f / 128, 0},
    {QUANT_IQ4_NL, 0, 0, 1.0f / 127, 0},
    {QUANT_Q2_K, 80, 82, 2.0f / 45, 1.0f / 15},
    {QUANT_Q3_K, 108, 0, 1.0f / 128, 0},
    {QUANT_Q4_K, 0, 2, 2.0f / 945, 1.0f / 63},
    {QUANT_Q5_K, 0, 2, 2.0f / 1953, 1.0f / 63},
    {QUANT_Q6_K, 208, 0, 1.0f / 4096, 0},
};

static void random_blocks(gguf_writer *w, quant_type type, unsigned char *p, size_t size,
                          float scale) {
    for (size_t i = 0; i < size; i++) p[i] = (unsigned char)random_u64(w);
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        if (layouts[k].type != type) continue;
        uint16_t d = quant_f32_to_f16(scale * layouts[k].scale);
        uint16_t m = quant_f32_to_f16(scale * layouts[k].min);
        for (unsigned char *b = p; b < p + size; b += quant_block_bytes(type)) {
            memcpy(b + layouts[k].scale_at, &d, sizeof d);
            if (layouts[k].min_at != 0) memcpy(b + layouts[k].min_at, &m, sizeof m);
        }
    }
}

void gguf_write_random(gguf_writer *w, const char *name, quant_type type, int n_dims,
                       const uint64_t *dims, float scale) {
    size_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    size_t size = n / quant_block_values(type) * quant_block_bytes(type);
    unsigned char *p = mem_alloc(size);
    assert_non_null(p);
    if (quant_block_values(type) == 1)
        random_plain(w, type, p, n, scale);
    else
        random_blocks(w, type, p, size, scale);
    gguf_write_tensor(w, name, type, n_dims, dims, p, size);
    mem_free(p);
}

buf gguf_write_bytes(const gguf_writer *w) {
    buf b = {0};
    buf_puts(&b, "GGUF");
    put_u32(&b, w->version != 0 ? w->version : 3);
    put_u64(&b, w->n_tensors);
    put_u64(&b, w->n_keys);
    buf_append(&b, w->keys.data, w->keys.len);
    buf_append(&b, w->tensors.data, w->tensors.len);
    if (w->n_tensors > 0) pad(&b, w->alignment);
    buf_append(&b, w->data.data, w->data.len);
    assert_false(b.failed || w->keys.failed || w->tensors.failed || w->data.failed);
    return b;
}

static void write_all(const gguf_writer *w, FILE *f) {
    buf b = gguf_write_bytes(w);
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    assert_int_equal(fclose(f), 0);
    buf_free(&b);
}

void gguf_write_file(const gguf_writer *w, const char *path) {
    write_all(w, fopen(path, "wb"));
}

char *gguf_write_temp(const gguf_writer *w) {
    const char *folder = getenv("TMPDIR");
    buf path = {0};
    buf_printf(&path, "%s/ridge-test-XXXXXX", folder != NULL ? folder : "/tmp");
    assert_false(path.failed);
    int fd = mkstemp(path.data);
    assert_true(fd >= 0);
    write_all(w, fdopen(fd, "wb"));
    return buf_take(&path);
}

void gguf_write_free(gguf_writer *w) {
    buf_free(&w->keys);
    buf_free(&w->tensors);
    buf_free(&w->data);
    *w = (gguf_writer){0};
}
