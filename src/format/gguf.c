/* format/gguf: opening a model's file or files, and looking up what they hold.
 *
 * The bytes are checked by gguf_parse.c; here the parts of a split are joined, names are indexed
 * and values converted. The keys are those of the first part; tensors come from all parts, in the
 * order of the parts. Keys and tensors of one name are refused.
 */
#include "format/gguf_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_NO_STREAM
#include <xxhash.h>

#include "base/buf.h"

/* Open addressing, at most half full. slots hold the number of an item + 1; 0 is empty. */
typedef struct {
    uint32_t *slots; /* [mask + 1] */
    size_t mask;
} name_index;

struct gguf {
    gguf_part *parts; /* [n_parts] */
    size_t n_parts;
    const gguf_entry *keys; /* [n_keys], the first part's */
    size_t n_keys;
    gguf_tensor *tensors; /* [n_tensors]; the only part's, or joined (then owned here) */
    size_t n_tensors;
    bool joined;
    uint64_t seed; /* of the hashes, so that no file can be made to collide */
    name_index key_index, tensor_index;
};

/* ---- index of names ---- */

static bool index_create(name_index *x, size_t n) {
    size_t size = 8;
    while (size < 2 * n) size *= 2;
    x->slots = mem_zalloc(size, sizeof *x->slots);
    x->mask = size - 1;
    return x->slots != NULL;
}

static const char *key_name(const gguf *g, size_t i) {
    return g->keys[i].name;
}

static const char *tensor_name(const gguf *g, size_t i) {
    return g->tensors[i].name;
}

/* The slot that holds name, or the empty one where it belongs. */
static uint32_t *index_slot(const gguf *g, const name_index *x,
                            const char *(*name_of)(const gguf *, size_t), const char *name) {
    size_t at = (size_t)XXH3_64bits_withSeed(name, strlen(name), g->seed) & x->mask;
    while (x->slots[at] != 0 && strcmp(name_of(g, x->slots[at] - 1), name) != 0)
        at = (at + 1) & x->mask;
    return &x->slots[at];
}

static ridge_status index_names(const gguf *g, name_index *x, size_t n,
                                const char *(*name_of)(const gguf *, size_t), const char *what,
                                ridge_error *err) {
    if (!index_create(x, n)) return RIDGE_FAIL(err, RIDGE_ENOMEM, "index of %zu %ss", n, what);
    for (size_t i = 0; i < n; i++) {
        uint32_t *slot = index_slot(g, x, name_of, name_of(g, i));
        if (*slot != 0)
            return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s '%.100s' occurs twice", what, name_of(g, i));
        *slot = (uint32_t)i + 1;
    }
    return RIDGE_OK;
}

/* ---- opening ---- */

void gguf_close(gguf *g) {
    if (g == NULL) return;
    for (size_t i = 0; i < g->n_parts; i++) gguf_part_free(&g->parts[i]);
    mem_free(g->parts);
    if (g->joined) mem_free(g->tensors);
    mem_free(g->key_index.slots);
    mem_free(g->tensor_index.slots);
    mem_free(g);
}

static ridge_status part_open(gguf_part *part, const char *path, ridge_error *err) {
    ridge_status status = mapfile_open(&part->map, path, err);
    part->data = part->map.data;
    part->size = part->map.size;
    if (status == RIDGE_OK) status = gguf_parse(part, err);
    if (status != RIDGE_OK) {
        error_where(err, path);
        gguf_part_free(part);
    }
    return status;
}

/* "dir/name-00002-of-00003.gguf": the length of "dir/name", or false. */
static bool split_prefix(const char *path, uint64_t no, uint64_t count, size_t *prefix) {
    char suffix[64];
    int n = snprintf(suffix, sizeof suffix, "-%05llu-of-%05llu.gguf", (unsigned long long)no + 1,
                     (unsigned long long)count);
    size_t len = strlen(path);
    if (n < 0 || len < (size_t)n || strcmp(path + len - (size_t)n, suffix) != 0) return false;
    *prefix = len - (size_t)n;
    return true;
}

static ridge_status split_open_part(gguf *g, size_t i, const char *path, ridge_error *err) {
    gguf_part *part = &g->parts[i];
    ridge_error inner = {0};
    ridge_status status = part_open(part, path, &inner);
    if (status == RIDGE_ENOTFOUND) {
        error_where(err, path);
        return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "part %zu of %zu is missing: '%s'", i + 1,
                          g->n_parts, path);
    }
    if (status != RIDGE_OK) {
        if (err != NULL && err->code == RIDGE_OK) *err = inner;
        return status;
    }
    if (part->split_no == i && part->split_count == g->n_parts) return RIDGE_OK;
    error_where(err, path);
    return RIDGE_FAIL(err, RIDGE_EFORMAT,
                      "the file says it is part %llu of %llu, its name says part %zu of %zu",
                      (unsigned long long)part->split_no + 1, (unsigned long long)part->split_count,
                      i + 1, g->n_parts);
}

/* A name of the form of a split's part, in a file that is none: bytes cut apart without regard for
 * the format, or a part that was renamed. */
static ridge_status refuse_split_name(const char *path, ridge_error *err) {
    size_t len = strlen(path);
    const char *tail = len >= 20 ? path + len - 20 : "";
    static const char form[] = "-00000-of-00000.gguf";
    for (size_t i = 0; i < sizeof form - 1; i++)
        if (form[i] == '0' ? tail[i] < '0' || tail[i] > '9' : tail[i] != form[i]) return RIDGE_OK;
    if (strcmp(tail, "-00001-of-00001.gguf") == 0) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EFORMAT,
                      "its name says it is a part of a split, but it has no key 'split.count'; "
                      "files cut by other tools than gguf-split must be joined first");
}

/* Opens the other parts of the split that g->parts[0] (read from path) belongs to. */
static ridge_status split_open(gguf *g, const char *path, ridge_error *err) {
    gguf_part given = g->parts[0];
    size_t count = (size_t)given.split_count, own = (size_t)given.split_no, prefix;
    if (!split_prefix(path, own, count, &prefix)) {
        error_where(err, path);
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "part %zu of %zu of a split, so its name must end in "
                          "-%05zu-of-%05zu.gguf",
                          own + 1, count, own + 1, count);
    }
    gguf_part *parts = mem_zalloc(count, sizeof *parts);
    if (parts == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "table of %zu parts", count);
    parts[own] = given;
    mem_free(g->parts);
    g->parts = parts;
    g->n_parts = count;
    for (size_t i = 0; i < count; i++) {
        if (i == own) continue;
        buf name = {0};
        buf_append(&name, path, prefix);
        buf_printf(&name, "-%05zu-of-%05zu.gguf", i + 1, count);
        ridge_status status = name.failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "a part's name")
                                          : split_open_part(g, i, name.data, err);
        buf_free(&name);
        if (status != RIDGE_OK) return status;
    }
    return RIDGE_OK;
}

static ridge_status join_tensors(gguf *g, ridge_error *err) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_parts; i++) n += g->parts[i].n_tensors;
    if (n > GGUF_MAX_TENSORS)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%zu tensors, limit %d", n, GGUF_MAX_TENSORS);
    g->n_tensors = n;
    if (g->n_parts == 1) {
        g->tensors = g->parts[0].tensors;
        return RIDGE_OK;
    }
    g->tensors = mem_zalloc(n, sizeof *g->tensors);
    if (g->tensors == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "table of %zu tensors", n);
    g->joined = true;
    size_t at = 0;
    for (size_t i = 0; i < g->n_parts; i++) {
        gguf_part *part = &g->parts[i];
        if (part->n_tensors > 0)
            memcpy(g->tensors + at, part->tensors, part->n_tensors * sizeof *g->tensors);
        at += part->n_tensors;
        mem_free(part->tensors);
        part->tensors = NULL;
    }
    return RIDGE_OK;
}

/* The parts are read: joins and indexes them. */
static ridge_status assemble(gguf *g, ridge_error *err) {
    uint64_t promised;
    g->keys = g->parts[0].keys;
    g->n_keys = g->parts[0].n_keys;
    g->seed = (uint64_t)(uintptr_t)g;
    RIDGE_TRY(join_tensors(g, err));
    RIDGE_TRY(index_names(g, &g->key_index, g->n_keys, key_name, "key", err));
    RIDGE_TRY(index_names(g, &g->tensor_index, g->n_tensors, tensor_name, "tensor", err));
    if (g->n_parts > 1 && gguf_get_u64(g, "split.tensors.count", &promised) &&
        promised != g->n_tensors)
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "key 'split.tensors.count' says %llu, the parts hold %zu",
                          (unsigned long long)promised, g->n_tensors);
    return RIDGE_OK;
}

static gguf *gguf_new(ridge_error *err) {
    gguf *g = mem_zalloc(1, sizeof *g);
    if (g != NULL) g->parts = mem_zalloc(1, sizeof *g->parts);
    if (g == NULL || g->parts == NULL) {
        (void)RIDGE_FAIL(err, RIDGE_ENOMEM, "opening a model");
        mem_free(g);
        return NULL;
    }
    g->n_parts = 1;
    return g;
}

ridge_status gguf_open(gguf **out, const char *path, ridge_error *err) {
    gguf *g = gguf_new(err);
    if (g == NULL) return RIDGE_ENOMEM;
    ridge_status status = part_open(&g->parts[0], path, err);
    if (status == RIDGE_OK)
        status =
            g->parts[0].split_count > 1 ? split_open(g, path, err) : refuse_split_name(path, err);
    if (status == RIDGE_OK) status = assemble(g, err);
    if (status != RIDGE_OK) {
        error_where(err, path);
        gguf_close(g);
        return status;
    }
    *out = g;
    return RIDGE_OK;
}

ridge_status gguf_open_memory(gguf **out, const void *data, size_t size, ridge_error *err) {
    gguf *g = gguf_new(err);
    if (g == NULL) return RIDGE_ENOMEM;
    g->parts[0].data = data;
    g->parts[0].size = size;
    ridge_status status = gguf_parse(&g->parts[0], err);
    if (status == RIDGE_OK && g->parts[0].split_count > 1)
        status = RIDGE_FAIL(err, RIDGE_EFORMAT, "a part of a split model");
    if (status == RIDGE_OK) status = assemble(g, err);
    if (status != RIDGE_OK) {
        gguf_close(g);
        return status;
    }
    *out = g;
    return RIDGE_OK;
}

/* ---- metadata ---- */

static const gguf_entry *find_key(const gguf *g, const char *key) {
    uint32_t slot = *index_slot(g, &g->key_index, key_name, key);
    return slot != 0 ? &g->keys[slot - 1] : NULL;
}

bool gguf_has(const gguf *g, const char *key, gguf_type *type) {
    const gguf_entry *e = find_key(g, key);
    if (e != NULL && type != NULL) *type = e->type;
    return e != NULL;
}

bool gguf_get_u64(const gguf *g, const char *key, uint64_t *out) {
    const gguf_entry *e = find_key(g, key);
    uint64_t v;
    bool negative;
    if (e == NULL || !gguf_load_integer(e->type, e->value, &v, &negative) || negative) return false;
    *out = v;
    return true;
}

bool gguf_get_i64(const gguf *g, const char *key, int64_t *out) {
    const gguf_entry *e = find_key(g, key);
    uint64_t v;
    bool negative;
    if (e == NULL || !gguf_load_integer(e->type, e->value, &v, &negative)) return false;
    if (!negative && v > INT64_MAX) return false;
    *out = (int64_t)v;
    return true;
}

static bool load_real(gguf_type type, const unsigned char *p, double *out) {
    float f;
    if (type == GGUF_F32) {
        memcpy(&f, p, sizeof f);
        *out = (double)f;
    } else if (type == GGUF_F64) {
        memcpy(out, p, sizeof *out);
    }
    return type == GGUF_F32 || type == GGUF_F64;
}

bool gguf_get_f64(const gguf *g, const char *key, double *out) {
    const gguf_entry *e = find_key(g, key);
    uint64_t v;
    bool negative;
    if (e == NULL) return false;
    if (load_real(e->type, e->value, out)) return true;
    if (!gguf_load_integer(e->type, e->value, &v, &negative)) return false;
    *out = negative ? (double)(int64_t)v : (double)v;
    return true;
}

bool gguf_get_bool(const gguf *g, const char *key, bool *out) {
    const gguf_entry *e = find_key(g, key);
    if (e == NULL || e->type != GGUF_BOOL) return false;
    *out = e->value[0] != 0;
    return true;
}

bool gguf_get_string(const gguf *g, const char *key, gguf_string *out) {
    const gguf_entry *e = find_key(g, key);
    if (e == NULL || e->type != GGUF_STRING) return false;
    *out = (gguf_string){(const char *)e->value, (size_t)e->n};
    return true;
}

bool gguf_get_array(const gguf *g, const char *key, gguf_type *type, size_t *n) {
    const gguf_entry *e = find_key(g, key);
    if (e == NULL || e->type != GGUF_ARRAY) return false;
    *type = e->element;
    *n = (size_t)e->n;
    return true;
}

static const gguf_entry *find_array(const gguf *g, const char *key, size_t n) {
    const gguf_entry *e = find_key(g, key);
    return e != NULL && e->type == GGUF_ARRAY && e->n == n ? e : NULL;
}

bool gguf_array_string(const gguf *g, const char *key, gguf_string *out, size_t n) {
    const gguf_entry *e = find_array(g, key, n);
    if (e == NULL || e->element != GGUF_STRING) return false;
    const unsigned char *p = e->value;
    for (size_t i = 0; i < n; i++) {
        size_t len = (size_t)gguf_load_u64(p);
        out[i] = (gguf_string){(const char *)p + 8, len};
        p += 8 + len;
    }
    return true;
}

bool gguf_array_f32(const gguf *g, const char *key, float *out, size_t n) {
    const gguf_entry *e = find_array(g, key, n);
    double v;
    if (e == NULL || (e->element != GGUF_F32 && e->element != GGUF_F64)) return false;
    for (size_t i = 0; i < n; i++) {
        load_real(e->element, e->value + i * gguf_type_bytes(e->element), &v);
        out[i] = (float)v;
    }
    return true;
}

bool gguf_array_i64(const gguf *g, const char *key, int64_t *out, size_t n) {
    const gguf_entry *e = find_array(g, key, n);
    if (e == NULL) return false;
    gguf_type type = e->element == GGUF_BOOL ? GGUF_U8 : e->element;
    for (size_t i = 0; i < n; i++) {
        uint64_t v;
        bool negative;
        if (!gguf_load_integer(type, e->value + i * gguf_type_bytes(type), &v, &negative))
            return false;
        if (!negative && v > INT64_MAX) return false;
        out[i] = (int64_t)v;
    }
    return true;
}

size_t gguf_n_keys(const gguf *g) {
    return g->n_keys;
}

const char *gguf_key(const gguf *g, size_t i, gguf_type *type) {
    if (type != NULL) *type = g->keys[i].type;
    return g->keys[i].name;
}

/* ---- tensors ---- */

size_t gguf_n_tensors(const gguf *g) {
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i) {
    return &g->tensors[i];
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name) {
    uint32_t slot = *index_slot(g, &g->tensor_index, tensor_name, name);
    return slot != 0 ? &g->tensors[slot - 1] : NULL;
}

uint64_t gguf_file_bytes(const gguf *g) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->n_parts; i++) bytes += g->parts[i].size;
    return bytes;
}

const void *gguf_header(const gguf *g, size_t part, size_t *size) {
    if (part >= g->n_parts) return NULL;
    *size = g->parts[part].header_size;
    return g->parts[part].data;
}

void gguf_drop(const gguf *g, const void *data, size_t size) {
    const unsigned char *p = data;
    for (size_t i = 0; i < g->n_parts; i++) {
        const mapfile *map = &g->parts[i].map;
        if (map->data != NULL && p >= map->data && p < map->data + map->size)
            mapfile_drop(map, (size_t)(p - map->data), size);
    }
}
