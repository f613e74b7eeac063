/* format/gguf_internal: what gguf.c and gguf_parse.c share; tests and the fuzz target may include
 * it.
 */
#ifndef RIDGE_FORMAT_GGUF_INTERNAL_H
#define RIDGE_FORMAT_GGUF_INTERNAL_H

#include "base/mapfile.h"
#include "base/mem.h"
#include "format/gguf.h"

/* Far above any real model; they bound what a hostile file can make us allocate. */
#define GGUF_MAX_KEYS 65536
#define GGUF_MAX_KEY_BYTES 65535 /* the specification's own limit */
#define GGUF_MAX_TENSORS 262144
#define GGUF_MAX_PARTS 1024
#define GGUF_MAX_ALIGNMENT (1u << 20)

typedef struct {
    const char *name; /* NUL-terminated, in the part's arena */
    gguf_type type;
    gguf_type element;          /* of an array */
    uint64_t n;                 /* elements of an array, bytes of a string, else 1 */
    const unsigned char *value; /* the scalar, the string's bytes, or the first element */
} gguf_entry;

/* One file of a model. All values lie inside [data, data + size): checked by gguf_parse. */
typedef struct {
    mapfile map; /* empty when the bytes are borrowed (gguf_open_memory) */
    const unsigned char *data;
    size_t size, header_size; /* [data, data + header_size): before the padding and the data */
    gguf_entry *keys;         /* [n_keys] */
    size_t n_keys, keys_capacity;
    gguf_tensor *tensors; /* [n_tensors] */
    size_t n_tensors, tensors_capacity;
    uint64_t split_no, split_count; /* 0 and 1 for a whole model */
    arena names;
} gguf_part;

/* Parses part->data[0, size). On failure the caller frees what was built with gguf_part_free. */
ridge_status gguf_parse(gguf_part *part, ridge_error *err) RIDGE_CHECKED;
void gguf_part_free(gguf_part *part);

/* Like gguf_open, on the bytes of one whole file, which must outlive *out. A part of a split is
 * refused. */
ridge_status gguf_open_memory(gguf **out, const void *data, size_t size,
                              ridge_error *err) RIDGE_CHECKED;

size_t gguf_type_bytes(gguf_type type); /* 0: string, array or no type */

/* Any integer as two's complement; *negative tells -1 from UINT64_MAX. false: not an integer. */
bool gguf_load_integer(gguf_type type, const unsigned char *p, uint64_t *out, bool *negative);
uint64_t gguf_load_u64(const unsigned char *p);

#endif
