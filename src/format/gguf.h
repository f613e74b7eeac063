/* format/gguf: GGUF v2/v3 files, little-endian, memory-mapped, split files joined.
 *
 * Every count, length, offset, dimension, type and alignment is checked against the file before
 * use; what has no use in a model is refused: duplicate names, arrays of arrays, tensors without
 * dimensions, with a dimension of 0, out of order or overlapping. A file without tensors (only a
 * vocabulary) is fine. Owns the mapping; all pointers and strings borrow from it until gguf_close.
 * Read-only after open, so any thread may read. Knows nothing of models. Spec: ggml docs/gguf.md.
 */
#ifndef RIDGE_FORMAT_GGUF_H
#define RIDGE_FORMAT_GGUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "format/quant.h"

#define GGUF_MAX_DIMS 4

typedef struct gguf gguf;

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_type;

typedef struct {
    const char *data; /* not NUL-terminated */
    size_t len;
} gguf_string;

typedef struct {
    char name[128]; /* NUL-terminated copy */
    quant_type type;
    int n_dims;
    uint64_t dims[GGUF_MAX_DIMS]; /* dims[0] is contiguous: a matrix [rows=dims[1], cols=dims[0]];
                                     none is 0, those from n_dims on are 1 */
    const void *data;             /* [size_bytes] in the mapping */
    size_t size_bytes;
} gguf_tensor;

/* path: a .gguf file; the first (or any) part of a split opens all parts. *out untouched on error.
 * RIDGE_ENOTFOUND: a file or part is missing; RIDGE_EUNSUPPORTED: sound, but a version, byte order
 * or tensor type that we don't have; RIDGE_EFORMAT: malformed or truncated. */
ridge_status gguf_open(gguf **out, const char *path, ridge_error *err) RIDGE_CHECKED;
void gguf_close(gguf *g); /* NULL allowed */

/* Metadata. A getter returns false when the key is absent or of an unfitting type (integers of any
 * width convert when the value fits). */
bool gguf_has(const gguf *g, const char *key, gguf_type *type); /* type: NULL allowed */
bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out);
bool gguf_get_i64(const gguf *g, const char *key, int64_t *out);
bool gguf_get_f64(const gguf *g, const char *key, double *out); /* any number */
bool gguf_get_bool(const gguf *g, const char *key, bool *out);
bool gguf_get_string(const gguf *g, const char *key, gguf_string *out);
/* Arrays: the element type and count; then all n elements. */
bool gguf_get_array(const gguf *g, const char *key, gguf_type *type, size_t *n);
bool gguf_array_string(const gguf *g, const char *key, gguf_string *out /* [n] */, size_t n);
bool gguf_array_f32(const gguf *g, const char *key, float *out /* [n]; f32 and f64 */, size_t n);
bool gguf_array_i64(const gguf *g, const char *key, int64_t *out /* [n]; integers and bools */,
                    size_t n);
size_t gguf_n_keys(const gguf *g);
const char *gguf_key(const gguf *g, size_t i, gguf_type *type); /* for listing */

size_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name); /* NULL: absent */
uint64_t gguf_file_bytes(const gguf *g);
/* What stands before the data in the file (of a split: each has its own): every key and value and
 * the table of tensors, [*size] bytes. NULL: no such part. */
const void *gguf_header(const gguf *g, size_t part, size_t *size);
/* Gives back the file pages under bytes of a tensor: they come from the file again when read. */
void gguf_drop(const gguf *g, const void *data, size_t size);

#endif
