/* format/gguf_parse: the bytes of one GGUF file → checked keys and tensors.
 *
 *  1. "GGUF", version (u32), number of tensors (u64), number of keys (u64)
 *  2. per key: name (string), type (u32), value; an array's value is its element type (u32), its
 *     length (u64) and the elements; a string is its length (u64) and its bytes
 *  3. per tensor: name (string), number of dimensions (u32), dimensions (u64 each), type (u32),
 *     offset in the data (u64)
 *  4. zeros up to a multiple of general.alignment (32 unless given), then the data
 *
 * Invariant: no number from the file is used as a size before it was compared with the bytes that
 * are left, and tables grow with what was read, never with what a header promises. So time and
 * memory are bounded by the file's size. Pure; called by gguf.c while opening.
 */
#include "format/gguf_internal.h"

#include <string.h>

#include "base/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read in place");

#define MIN_KEY_BYTES 14    /* name of one byte, type, value of one byte */
#define MIN_TENSOR_BYTES 33 /* name of one byte, one dimension, type, offset */

typedef struct {
    const unsigned char *data;
    size_t size, at;  /* at <= size */
    const char *part; /* what is being read: "key", ... */
    const char *name; /* and its name; NULL before it is known */
    ridge_error *err;
} reader;

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};
#define N_TYPES (sizeof types / sizeof *types)

size_t gguf_type_bytes(gguf_type type) {
    return (size_t)type < N_TYPES ? types[type].bytes : 0;
}

static uint32_t load_u32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

uint64_t gguf_load_u64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

bool gguf_load_integer(gguf_type type, const unsigned char *p, uint64_t *out, bool *negative) {
    uint16_t u16;
    int64_t v;
    *negative = false;
    switch (type) {
    case GGUF_U8: *out = *p; return true;
    case GGUF_U16:
        memcpy(&u16, p, sizeof u16);
        *out = u16;
        return true;
    case GGUF_U32: *out = load_u32(p); return true;
    case GGUF_U64: *out = gguf_load_u64(p); return true;
    case GGUF_I8: v = (int8_t)*p; break;
    case GGUF_I16:
        memcpy(&u16, p, sizeof u16);
        v = (int16_t)u16;
        break;
    case GGUF_I32: v = (int32_t)load_u32(p); break;
    case GGUF_I64: v = (int64_t)gguf_load_u64(p); break;
    default: return false;
    }
    *negative = v < 0;
    *out = (uint64_t)v;
    return true;
}

/* RIDGE_FAIL that also notes where in the file. */
#define FAIL(r, ...) (note_offset(r), RIDGE_FAIL((r)->err, RIDGE_EFORMAT, __VA_ARGS__))

static void note_offset(const reader *r) {
    if (r->err != NULL && r->err->code == RIDGE_OK) r->err->offset = r->at;
}

static ridge_status need(const reader *r, uint64_t n) {
    if (n <= r->size - r->at) return RIDGE_OK;
    return FAIL(
        r, "the file ends inside the %s%s%.100s%s: %llu byte%s needed at offset %zu, %zu left",
        r->part, r->name != NULL ? " '" : "", r->name != NULL ? r->name : "",
        r->name != NULL ? "'" : "", (unsigned long long)n, plural(n), r->at, r->size - r->at);
}

static ridge_status read_u32(reader *r, uint32_t *out) {
    RIDGE_TRY(need(r, sizeof *out));
    *out = load_u32(r->data + r->at);
    r->at += sizeof *out;
    return RIDGE_OK;
}

static ridge_status read_u64(reader *r, uint64_t *out) {
    RIDGE_TRY(need(r, sizeof *out));
    *out = gguf_load_u64(r->data + r->at);
    r->at += sizeof *out;
    return RIDGE_OK;
}

static ridge_status read_string(reader *r, gguf_string *out) {
    uint64_t n;
    RIDGE_TRY(read_u64(r, &n));
    RIDGE_TRY(need(r, n));
    *out = (gguf_string){(const char *)r->data + r->at, (size_t)n};
    r->at += (size_t)n;
    return RIDGE_OK;
}

/* Names are printed in messages and tables, so what a terminal would obey is refused here. */
static ridge_status read_name(reader *r, const char *part, size_t limit, gguf_string *out) {
    size_t begin = r->at;
    r->part = part;
    r->name = NULL;
    RIDGE_TRY(read_string(r, out));
    bool clean = utf8_valid(out->data, out->len);
    for (size_t i = 0; i < out->len && clean; i++)
        clean = (unsigned char)out->data[i] >= 0x20 && out->data[i] != 0x7f;
    if (out->len != 0 && out->len <= limit && clean) return RIDGE_OK;
    r->at = begin;
    if (out->len == 0) return FAIL(r, "the %s's name at offset %zu is empty", part, begin);
    if (!clean)
        return FAIL(r, "the %s's name at offset %zu has a control character or is not UTF-8", part,
                    begin);
    return FAIL(r, "the %s's name at offset %zu has %zu bytes, limit %zu", part, begin, out->len,
                limit);
}

static ridge_status read_header(reader *r, uint64_t *n_tensors, uint64_t *n_keys) {
    uint32_t version;
    if (r->size < 4) return FAIL(r, "not a GGUF file: it has %zu byte%s", r->size, plural(r->size));
    if (memcmp(r->data, "GGUF", 4) != 0)
        return FAIL(r, "not a GGUF file: it begins with bytes %02x %02x %02x %02x, not 'GGUF'",
                    r->data[0], r->data[1], r->data[2], r->data[3]);
    r->at = 4;
    RIDGE_TRY(read_u32(r, &version));
    if (version == 1)
        return RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED,
                          "GGUF version 1; versions 2 and 3 are supported (convert it again)");
    if (version != 2 && version != 3) {
        if ((version & 0xffff) == 0 && version != 0)
            return RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED,
                              "a big-endian GGUF file; only little-endian ones are supported");
        return RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED,
                          "GGUF version %u; versions 2 and 3 are supported", version);
    }
    RIDGE_TRY(read_u64(r, n_tensors));
    RIDGE_TRY(read_u64(r, n_keys));
    size_t left = r->size - r->at;
    if (*n_keys > left / MIN_KEY_BYTES || *n_keys > GGUF_MAX_KEYS)
        return FAIL(r, "the header promises %llu keys; %zu byte%s left, and the limit is %d",
                    (unsigned long long)*n_keys, left, plural(left), GGUF_MAX_KEYS);
    if (*n_tensors > left / MIN_TENSOR_BYTES || *n_tensors > GGUF_MAX_TENSORS)
        return FAIL(r, "the header promises %llu tensors; %zu byte%s left, and the limit is %d",
                    (unsigned long long)*n_tensors, left, plural(left), GGUF_MAX_TENSORS);
    return RIDGE_OK;
}

static ridge_status check_bools(const reader *r, const gguf_entry *e) {
    for (uint64_t i = 0; i < e->n; i++)
        if (e->value[i] > 1)
            return FAIL(r, "key '%.100s': a bool is %d, expected 0 or 1", e->name, e->value[i]);
    return RIDGE_OK;
}

static ridge_status read_array(reader *r, gguf_entry *e) {
    uint32_t element;
    RIDGE_TRY(read_u32(r, &element));
    RIDGE_TRY(read_u64(r, &e->n));
    if (element == GGUF_ARRAY)
        return FAIL(r, "key '%.100s': an array of arrays; no model has one", e->name);
    if (element >= N_TYPES)
        return FAIL(r, "key '%.100s': array element type %u, expected 0 to %zu", e->name, element,
                    N_TYPES - 1);
    e->element = (gguf_type)element;
    e->value = r->data + r->at;
    size_t each = element == GGUF_STRING ? 8 : types[element].bytes, left = r->size - r->at;
    if (e->n > left / each)
        return FAIL(r, "key '%.100s': an array of %llu %s%s, but %zu byte%s left", e->name,
                    (unsigned long long)e->n, types[element].name, plural(e->n), left,
                    plural(left));
    if (element != GGUF_STRING) {
        r->at += (size_t)e->n * each;
        return element == GGUF_BOOL ? check_bools(r, e) : RIDGE_OK;
    }
    gguf_string s;
    for (uint64_t i = 0; i < e->n; i++) RIDGE_TRY(read_string(r, &s));
    return RIDGE_OK;
}

static ridge_status read_value(reader *r, gguf_entry *e) {
    if (e->type == GGUF_ARRAY) return read_array(r, e);
    if (e->type == GGUF_STRING) {
        gguf_string s;
        RIDGE_TRY(read_string(r, &s));
        e->value = (const unsigned char *)s.data;
        e->n = s.len;
        return RIDGE_OK;
    }
    RIDGE_TRY(need(r, types[e->type].bytes));
    e->value = r->data + r->at;
    e->n = 1;
    r->at += types[e->type].bytes;
    return e->type == GGUF_BOOL ? check_bools(r, e) : RIDGE_OK;
}

static ridge_status read_key(reader *r, gguf_part *part) {
    gguf_string name;
    gguf_entry e = {0};
    uint32_t type;
    RIDGE_TRY(read_name(r, "key", GGUF_MAX_KEY_BYTES, &name));
    e.name = arena_strndup(&part->names, name.data, name.len);
    if (e.name == NULL ||
        !mem_grow((void **)&part->keys, &part->keys_capacity, part->n_keys + 1, sizeof *part->keys))
        return RIDGE_FAIL(r->err, RIDGE_ENOMEM, "table of %zu keys", part->n_keys + 1);
    r->name = e.name;
    RIDGE_TRY(read_u32(r, &type));
    if (type >= N_TYPES)
        return FAIL(r, "key '%.100s': type %u, expected 0 to %zu", e.name, type, N_TYPES - 1);
    e.type = (gguf_type)type;
    RIDGE_TRY(read_value(r, &e));
    part->keys[part->n_keys++] = e;
    return RIDGE_OK;
}

/* The shape's bytes, and the claim of the element count against what 64 bits can hold. */
static ridge_status size_tensor(const reader *r, gguf_tensor *t) {
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0) return FAIL(r, "tensor '%s': dimension %d is 0", t->name, i);
        if (!mem_mul(n, t->dims[i], &n) || n > INT64_MAX)
            return FAIL(r, "tensor '%s': the product of its dimensions passes 2^63", t->name);
    }
    uint32_t block = quant_block_values(t->type);
    if (t->dims[0] % block != 0)
        return FAIL(r, "tensor '%s': rows of %llu values, not a multiple of the %u of a %s block",
                    t->name, (unsigned long long)t->dims[0], block, quant_name(t->type));
    if (!mem_mul(n / block, quant_block_bytes(t->type), &t->size_bytes))
        return FAIL(r, "tensor '%s': its size passes 2^64 bytes", t->name);
    return RIDGE_OK;
}

static ridge_status read_type(reader *r, gguf_tensor *t) {
    uint32_t type;
    RIDGE_TRY(read_u32(r, &type));
    t->type = (quant_type)type;
    if (quant_name(t->type) != NULL) return RIDGE_OK;
    const char *name = quant_known_name(type);
    note_offset(r);
    if (name != NULL)
        return RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED, "tensor '%s': type %s; supported: %s",
                          t->name, name, quant_supported());
    return RIDGE_FAIL(r->err, RIDGE_EUNSUPPORTED, "tensor '%s': unknown type %u; supported: %s",
                      t->name, type, quant_supported());
}

/* Leaves t->data at the tensor's offset in the file until place_tensor can follow it. */
static ridge_status read_tensor(reader *r, gguf_tensor *t) {
    gguf_string name;
    uint32_t n_dims;
    uint64_t offset;
    RIDGE_TRY(read_name(r, "tensor", sizeof t->name - 1, &name));
    memcpy(t->name, name.data, name.len);
    r->name = t->name;
    RIDGE_TRY(read_u32(r, &n_dims));
    if (n_dims == 0 || n_dims > GGUF_MAX_DIMS)
        return FAIL(r, "tensor '%s': %u dimensions, expected 1 to %d", t->name, n_dims,
                    GGUF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i < t->n_dims) RIDGE_TRY(read_u64(r, &t->dims[i]));
    }
    RIDGE_TRY(read_type(r, t));
    RIDGE_TRY(size_tensor(r, t));
    t->data = r->data + r->at;
    return read_u64(r, &offset);
}

static const gguf_entry *find_key(const gguf_part *part, const char *name) {
    for (size_t i = 0; i < part->n_keys; i++)
        if (strcmp(part->keys[i].name, name) == 0) return &part->keys[i];
    return NULL;
}

static ridge_status read_alignment(const reader *r, const gguf_part *part, size_t *out) {
    const gguf_entry *e = find_key(part, "general.alignment");
    *out = 32;
    if (e == NULL) return RIDGE_OK;
    if (e->type != GGUF_U32)
        return FAIL(r, "key 'general.alignment': type %s, expected u32", types[e->type].name);
    uint32_t v = load_u32(e->value);
    if (v < 8 || v > GGUF_MAX_ALIGNMENT || (v & (v - 1)) != 0)
        return FAIL(r, "key 'general.alignment': %u, expected a power of two from 8 to %u", v,
                    GGUF_MAX_ALIGNMENT);
    *out = v;
    return RIDGE_OK;
}

static ridge_status read_split_number(const reader *r, const gguf_part *part, const char *name,
                                      uint64_t *out) {
    const gguf_entry *e = find_key(part, name);
    bool negative;
    if (e == NULL) return RIDGE_OK;
    if (!gguf_load_integer(e->type, e->value, out, &negative) || negative)
        return FAIL(r, "key '%s': not a count", name);
    return RIDGE_OK;
}

static ridge_status read_split(const reader *r, gguf_part *part) {
    part->split_no = 0;
    part->split_count = 1;
    RIDGE_TRY(read_split_number(r, part, "split.no", &part->split_no));
    RIDGE_TRY(read_split_number(r, part, "split.count", &part->split_count));
    if (part->split_count == 0) part->split_count = 1; /* some writers say 0 for a whole model */
    if (part->split_count > GGUF_MAX_PARTS || part->split_no >= part->split_count)
        return FAIL(r, "part %llu of %llu (split.no, split.count); the limit is %d parts",
                    (unsigned long long)part->split_no, (unsigned long long)part->split_count,
                    GGUF_MAX_PARTS);
    return RIDGE_OK;
}

/* Gives a tensor its bytes [data + offset, + size). Tensors come in the order of their data and
 * don't overlap (as every writer does): so their sizes sum to at most the file's. */
static ridge_status place_tensor(const reader *r, gguf_tensor *t, size_t alignment,
                                 size_t data_begin, size_t *data_end) {
    uint64_t offset = gguf_load_u64(t->data);
    size_t begin, end;
    if (offset % alignment != 0)
        return FAIL(r, "tensor '%s': offset %llu, not a multiple of the alignment %zu", t->name,
                    (unsigned long long)offset, alignment);
    if (!mem_add(data_begin, offset, &begin) || !mem_add(begin, t->size_bytes, &end) ||
        end > r->size)
        return FAIL(r,
                    "tensor '%s': %zu bytes at offset %llu of the data, which begins at %zu; the "
                    "file has %zu bytes",
                    t->name, t->size_bytes, (unsigned long long)offset, data_begin, r->size);
    if (begin < *data_end)
        return FAIL(r, "tensor '%s': offset %llu lies inside or before the tensor before it",
                    t->name, (unsigned long long)offset);
    t->data = r->data + begin;
    *data_end = end;
    return RIDGE_OK;
}

static ridge_status read_tensors(reader *r, gguf_part *part, uint64_t n, size_t alignment) {
    size_t data_begin;
    for (uint64_t i = 0; i < n; i++) {
        if (!mem_grow((void **)&part->tensors, &part->tensors_capacity, part->n_tensors + 1,
                      sizeof *part->tensors))
            return RIDGE_FAIL(r->err, RIDGE_ENOMEM, "table of %zu tensors", part->n_tensors + 1);
        gguf_tensor *t = &part->tensors[part->n_tensors];
        *t = (gguf_tensor){0};
        RIDGE_TRY(read_tensor(r, t));
        part->n_tensors++;
    }
    /* Offsets count from the end of this table, which is known only now. */
    part->header_size = r->at;
    if (!mem_add(r->at, alignment - 1, &data_begin)) return FAIL(r, "the file is too large");
    data_begin &= ~(alignment - 1);
    size_t data_end = data_begin;
    for (size_t i = 0; i < part->n_tensors; i++)
        RIDGE_TRY(place_tensor(r, &part->tensors[i], alignment, data_begin, &data_end));
    return RIDGE_OK;
}

ridge_status gguf_parse(gguf_part *part, ridge_error *err) {
    reader r = {.data = part->data, .size = part->size, .part = "header", .err = err};
    uint64_t n_tensors = 0, n_keys = 0;
    size_t alignment;
    RIDGE_TRY(read_header(&r, &n_tensors, &n_keys));
    for (uint64_t i = 0; i < n_keys; i++) RIDGE_TRY(read_key(&r, part));
    RIDGE_TRY(read_alignment(&r, part, &alignment));
    RIDGE_TRY(read_split(&r, part));
    return read_tensors(&r, part, n_tensors, alignment);
}

void gguf_part_free(gguf_part *part) {
    mem_free(part->keys);
    mem_free(part->tensors);
    arena_free(&part->names);
    mapfile_close(&part->map);
    *part = (gguf_part){0};
}
