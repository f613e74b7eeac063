/* tests/support/gguf_write: a small GGUF writer, so that tests build the models they need.
 *
 *     gguf_writer w = {0};
 *     gguf_write_string(&w, "general.architecture", "llama");
 *     gguf_write_random(&w, "output.weight", QUANT_Q4_0, 2, (uint64_t[]){64, 32}, 0.1f);
 *     char *path = gguf_write_temp(&w);     ... gguf_open(&g, path, &err) ...
 *     unlink(path); mem_free(path); gguf_write_free(&w);
 *
 * Nothing is checked: malformed files can be written too. Out of memory fails the running test.
 */
#ifndef RIDGE_TESTS_GGUF_WRITE_H
#define RIDGE_TESTS_GGUF_WRITE_H

#include "base/buf.h"
#include "format/gguf.h"

typedef struct {
    buf keys, tensors, data; /* the three sections so far */
    uint64_t n_keys, n_tensors;
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32; write the key general.alignment yourself */
    uint64_t seed;      /* state of gguf_write_random; any value */
} gguf_writer;

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_write_u64(gguf_writer *w, const char *key, uint64_t v);
void gguf_write_f32(gguf_writer *w, const char *key, float v);
void gguf_write_bool(gguf_writer *w, const char *key, bool v);
void gguf_write_string(gguf_writer *w, const char *key, const char *v);
/* Any scalar, or an array of n elements of a fixed size, from its little-endian bytes. */
void gguf_write_scalar(gguf_writer *w, const char *key, gguf_type type, const void *v, size_t size);
void gguf_write_array(gguf_writer *w, const char *key, gguf_type element, const void *v, size_t n);
void gguf_write_strings(gguf_writer *w, const char *key, const char *const *v, size_t n);

/* dims[0] is contiguous. size is that of data. */
void gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, int n_dims,
                       const uint64_t *dims, const void *data, size_t size);
/* Random values of about ±scale, of any supported type; the same for the same seed. */
void gguf_write_random(gguf_writer *w, const char *name, quant_type type, int n_dims,
                       const uint64_t *dims, float scale);

/* The whole file; owned by the caller (buf_free). */
buf gguf_write_bytes(const gguf_writer *w);
/* The whole file under a new name in the temporary folder; owned (unlink, mem_free). */
char *gguf_write_temp(const gguf_writer *w);
void gguf_write_file(const gguf_writer *w, const char *path);
void gguf_write_free(gguf_writer *w);

#endif
