/* text/jinja_value: memory, failure, and the values of templates with Python's equality and order.
 *
 * Constructors never return NULL: when memory is out they return an empty object that nobody may
 * write to, and jmem.failed says so.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

#define MAX_DATA_DEPTH 128 /* of values inside values, from JSON or compared */

const jstr jstr_empty = {"", 0, 0, false};

void *jm_alloc(jmem *m, size_t count, size_t size) {
    size_t bytes;
    void *p = !m->failed && mem_mul(count, size, &bytes) ? arena_alloc(&m->a, bytes) : NULL;
    if (p == NULL) m->failed = true;
    return p;
}

bool jm_grow(jmem *m, void **items, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return true;
    size_t grown = *capacity < 8 ? 8 : *capacity;
    while (grown < need && grown <= SIZE_MAX / 4) grown *= 2;
    void *p = grown >= need ? jm_alloc(m, grown, size) : NULL;
    if (p == NULL) {
        m->failed = true;
        return false;
    }
    if (*capacity > 0) memcpy(p, *items, *capacity * size);
    *items = p;
    *capacity = grown;
    return true;
}

bool jx_failed(jx *x) {
    if (x->status != RIDGE_OK) return true;
    if (x->mem.failed) {
        bool limit = x->mem.a.limit_bytes != 0 && x->mem.a.used_bytes > x->mem.a.limit_bytes / 2;
        if (limit)
            x->status = RIDGE_FAIL(x->err, RIDGE_EINVAL,
                                   "%s:%d: the template needs more memory "
                                   "than its limit of %zu bytes",
                                   x->t->name, x->line, x->mem.a.limit_bytes);
        else
            x->status = RIDGE_FAIL(x->err, RIDGE_ENOMEM,
                                   "%s:%d: not enough memory, or the "
                                   "template asks for too much at once",
                                   x->t->name, x->line);
    } else if (x->out->failed || x->out->len > x->max_output) {
        x->status = RIDGE_FAIL(x->err, RIDGE_EINVAL, "%s:%d: output over the limit of %zu bytes",
                               x->t->name, x->line, x->max_output);
    }
    return x->status != RIDGE_OK;
}

jv jx_fail(jx *x, const char *format, ...) {
    char text[400];
    if (jx_failed(x)) return jv_undefined();
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    x->status = RIDGE_FAIL(x->err, RIDGE_EINVAL, "%s:%d: %s", x->t->name, x->line, text);
    return jv_undefined();
}

bool jx_step(jx *x, size_t work) {
    uint64_t cost = 1 + work / 64;
    if (jx_failed(x)) return false;
    if (cost > x->steps_left) {
        jx_fail(x, "the template runs over its limit of steps");
        return false;
    }
    x->steps_left -= cost;
    return true;
}

jv jv_none(void) {
    return (jv){.type = J_NONE};
}

jv jv_bool(bool b) {
    return (jv){.type = J_BOOL, .as.i = b};
}

jv jv_int(int64_t i) {
    return (jv){.type = J_INT, .as.i = i};
}

jv jv_float(double f) {
    return (jv){.type = J_FLOAT, .as.f = f};
}

jv jv_undefined(void) {
    return (jv){.type = J_UNDEFINED};
}

jv jv_undefined_name(jx *x, const char *format, ...) {
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return (jv){.type = J_UNDEFINED, .as.s = jstr_make(&x->mem, text, strlen(text))};
}

const jstr *jstr_borrow(jmem *m, const char *p, size_t n) {
    if (n == 0) return &jstr_empty;
    jstr *s = jm_alloc(m, 1, sizeof *s);
    if (s == NULL) return &jstr_empty;
    *s = (jstr){p, n, utf8_count(p, n), false};
    return s;
}

const jstr *jstr_make(jmem *m, const char *p, size_t n) {
    char *copy = n > 0 ? jm_alloc(m, n, 1) : NULL;
    if (copy == NULL) return &jstr_empty;
    memcpy(copy, p, n);
    return jstr_borrow(m, copy, n);
}

jv jv_from_jstr(const jstr *s) {
    return (jv){.type = J_STR, .as.s = s};
}

jv jv_str(jx *x, const char *p, size_t n) {
    return jv_from_jstr(jstr_make(&x->mem, p, n));
}

jv jv_cstr(jx *x, const char *s) {
    return jv_str(x, s, strlen(s));
}

jv jv_slice(jx *x, const jstr *of, size_t begin, size_t end) {
    if (begin == 0 && end == of->len) return jv_from_jstr(of);
    const jstr *s = jstr_borrow(&x->mem, of->p + begin, end - begin);
    if (of->markup && s->len > 0) ((jstr *)s)->markup = true;
    return jv_from_jstr(s);
}

jv jv_from_buf(jx *x, buf *b) {
    if (b->failed) x->mem.failed = true;
    jv v = jv_str(x, b->data != NULL ? b->data : "", b->len);
    buf_free(b);
    return v;
}

jlist *jlist_new(jmem *m, size_t capacity) {
    jlist *l = jm_alloc(m, 1, sizeof *l);
    static const jlist none;
    if (l == NULL) return (jlist *)&none; /* never written: see jlist_push */
    if (capacity > 0) jm_grow(m, (void **)&l->items, &l->capacity, capacity, sizeof(jv));
    return l;
}

void jlist_push(jmem *m, jlist *l, jv v) {
    if (m->failed || !jm_grow(m, (void **)&l->items, &l->capacity, l->n + 1, sizeof v)) return;
    l->items[l->n++] = v;
}

jv jv_list(jlist *l) {
    return (jv){.type = J_LIST, .as.l = l};
}

jv jv_tuple(jlist *l) {
    return (jv){.type = J_TUPLE, .as.l = l};
}

jv jv_pair(jx *x, jv a, jv b) {
    jlist *l = jlist_new(&x->mem, 2);
    jlist_push(&x->mem, l, a);
    jlist_push(&x->mem, l, b);
    return jv_tuple(l);
}

jv jv_iter(jx *x, jlist *l) {
    jiter *it = jm_alloc(&x->mem, 1, sizeof *it);
    if (it == NULL) return jv_undefined();
    *it = (jiter){l->items, l->n, 0};
    return (jv){.type = J_ITER, .as.iter = it};
}

/* ---- dictionaries ---- */

static uint64_t hash_bytes(const char *p, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

bool jv_hashable(jv v) {
    if (v.type == J_LIST || v.type == J_DICT || v.type == J_VIEW) return false;
    for (size_t i = 0; v.type == J_TUPLE && i < v.as.l->n; i++)
        if (!jv_hashable(v.as.l->items[i])) return false;
    return true;
}

/* Equal values hash alike: 1, 1.0 and True; -0.0 is 0.0. */
static uint64_t hash_value(jv v) {
    switch (v.type) {
    case J_STR: return hash_bytes(v.as.s->p, v.as.s->len);
    case J_BIG:
    case J_BOOL:
    case J_INT:
    case J_FLOAT: {
        double d = v.type == J_BIG ? jv_big_to_double(v) : jv_to_double(v) + 0.0;
        return hash_bytes((const char *)&d, sizeof d);
    }
    case J_TUPLE: {
        uint64_t h = 17;
        for (size_t i = 0; i < v.as.l->n; i++) h = h * 31 + hash_value(v.as.l->items[i]);
        return h;
    }
    default: return (uint64_t)v.type;
    }
}

jdict *jdict_new(jmem *m) {
    static const jdict none;
    jdict *d = jm_alloc(m, 1, sizeof *d);
    return d != NULL ? d : (jdict *)&none; /* never written: see jdict_set */
}

static jentry *dict_find(const jdict *d, jv key, uint64_t hash) {
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && jv_equal(NULL, d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    for (size_t at = hash & (d->index_size - 1); d->index[at] != 0;
         at = (at + 1) & (d->index_size - 1)) {
        jentry *e = &d->entries[d->index[at] - 1];
        if (e->hash == hash && jv_equal(NULL, e->key, key)) return e;
    }
    return NULL;
}

static void dict_index_add(jdict *d, size_t i) {
    size_t at = d->entries[i].hash & (d->index_size - 1);
    while (d->index[at] != 0) at = (at + 1) & (d->index_size - 1);
    d->index[at] = (uint32_t)(i + 1);
}

/* Keeps the index at most half full; small dictionaries have none. */
static bool dict_reindex(jmem *m, jdict *d) {
    if (d->n < 8 || (d->n + 1) * 2 <= d->index_size) return true;
    size_t size = d->index_size > 0 ? d->index_size * 2 : 32;
    uint32_t *index = d->n < UINT32_MAX / 4 ? jm_alloc(m, size, sizeof *index) : NULL;
    if (index == NULL) return false;
    d->index = index;
    d->index_size = size;
    for (size_t i = 0; i < d->n; i++) dict_index_add(d, i);
    return true;
}

bool jdict_set(jmem *m, jdict *d, jv key, jv value) {
    if (!jv_hashable(key)) return false;
    if (m->failed) return true;
    uint64_t hash = hash_value(key);
    jentry *e = dict_find(d, key, hash);
    if (e != NULL) {
        e->value = value;
        return true;
    }
    if (!jm_grow(m, (void **)&d->entries, &d->capacity, d->n + 1, sizeof *e) || !dict_reindex(m, d))
        return true;
    d->entries[d->n++] = (jentry){key, value, hash};
    if (d->index != NULL) dict_index_add(d, d->n - 1);
    return true;
}

const jv *jdict_get(const jdict *d, jv key) {
    if (d->n == 0 || !jv_hashable(key)) return NULL;
    jentry *e = dict_find(d, key, hash_value(key));
    return e != NULL ? &e->value : NULL;
}

/* ---- questions ---- */

bool jv_is_number(jv v) {
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

double jv_to_double(jv v) {
    return v.type == J_FLOAT ? v.as.f : (double)v.as.i;
}

bool jv_length(jv v, size_t *n) {
    switch (v.type) {
    case J_UNDEFINED: *n = 0; return true;
    case J_STR: *n = v.as.s->chars; return true;
    case J_LIST:
    case J_TUPLE: *n = v.as.l->n; return true;
    case J_DICT: *n = v.as.d->n; return true;
    case J_VIEW: *n = v.as.view->d->n; return true;
    case J_RANGE: *n = v.as.range->n; return true;
    case J_LOOP: *n = v.as.loop->n; return true;
    default: return false;
    }
}

bool jv_truth(jv v) {
    size_t n;
    switch (v.type) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL:
    case J_INT: return v.as.i != 0;
    case J_FLOAT: return v.as.f != 0;
    default: return !jv_length(v, &n) || n > 0;
    }
}

bool jv_is_str(jv v, const char *s) {
    return v.type == J_STR && strlen(s) == v.as.s->len && memcmp(s, v.as.s->p, v.as.s->len) == 0;
}

const char *jv_type_name(jv v) {
    static const char *const names[] = {"missing",
                                        "Undefined",
                                        "NoneType",
                                        "bool",
                                        "int",
                                        "float",
                                        "int over 64 bits",
                                        "str",
                                        "list",
                                        "tuple",
                                        "dict",
                                        "dict_view",
                                        "generator",
                                        "range",
                                        "Namespace",
                                        "function",
                                        "builtin_function_or_method",
                                        "Macro",
                                        "LoopContext",
                                        "Cycler",
                                        "Joiner"};
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.type == J_VIEW) return views[v.as.view->kind];
    return names[v.type];
}

static bool str_equal(const jstr *a, const jstr *b) {
    return a == b || (a->len == b->len && memcmp(a->p, b->p, a->len) == 0);
}

static bool dict_equal(jx *x, const jdict *a, const jdict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const jv *other = jdict_get(b, a->entries[i].key);
        if (other == NULL || !jv_equal(x, a->entries[i].value, *other)) return false;
    }
    return true;
}

static bool list_equal(jx *x, const jlist *a, const jlist *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jv_equal(x, a->items[i], b->items[i])) return false;
    return true;
}

/* x, where there is one, is charged: deep or long comparisons end at its limits. */
bool jv_equal(jx *x, jv a, jv b) {
    if (x != NULL) {
        if (x->depth > MAX_DATA_DEPTH * 10 || !jx_step(x, 0)) {
            jx_fail(x, "compared values are nested too deeply");
            return false;
        }
    }
    if (jv_is_real(a) && jv_is_real(b)) return jv_number_compare(a, b) == 0;
    if (a.type != b.type) return false;
    if (x != NULL) x->depth++;
    bool equal = false;
    switch (a.type) {
    case J_UNDEFINED:
    case J_NONE: equal = true; break;
    case J_STR: equal = str_equal(a.as.s, b.as.s); break;
    case J_LIST:
    case J_TUPLE: equal = a.as.l == b.as.l || list_equal(x, a.as.l, b.as.l); break;
    case J_DICT: equal = a.as.d == b.as.d || dict_equal(x, a.as.d, b.as.d); break;
    case J_RANGE:
        equal =
            a.as.range->n == b.as.range->n &&
            (a.as.range->n == 0 || (a.as.range->start == b.as.range->start &&
                                    (a.as.range->n == 1 || a.as.range->step == b.as.range->step)));
        break;
    default: equal = a.as.s == b.as.s; break;
    }
    if (x != NULL) x->depth--;
    return equal;
}

static int str_compare(const jstr *a, const jstr *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n > 0 ? memcmp(a->p, b->p, n) : 0; /* UTF-8 orders as code points do */
    return c != 0 ? (c > 0) - (c < 0) : (a->len > b->len) - (a->len < b->len);
}

int jv_compare(jx *x, jv a, jv b, const char *op) {
    if (!jx_step(x, 0)) return 0;
    if (jv_is_real(a) && jv_is_real(b)) return jv_number_compare(a, b);
    if (a.type == J_STR && b.type == J_STR) return str_compare(a.as.s, b.as.s);
    if (a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE)) {
        const jlist *p = a.as.l, *q = b.as.l;
        for (size_t i = 0; i < p->n && i < q->n; i++) {
            if (jv_equal(x, p->items[i], q->items[i])) continue;
            if (++x->depth > MAX_DATA_DEPTH * 10)
                jx_fail(x, "compared values are nested too deeply");
            int c = jv_compare(x, p->items[i], q->items[i], op);
            x->depth--;
            return c;
        }
        return (p->n > q->n) - (p->n < q->n);
    }
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED)
        jx_fail(x, "'%s' with an undefined value", op);
    else
        jx_fail(x, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
                jv_type_name(b));
    return 0;
}

/* ---- iteration ---- */

jv jv_range_at(const jrange *r, size_t i) {
    return jv_int(r->start + (int64_t)i * r->step);
}

static jlist *chars_of(jx *x, const jstr *s) {
    jlist *l = jlist_new(&x->mem, s->chars);
    for (size_t i = 0, width; i < s->len && jx_step(x, 0); i += width) {
        utf8_decode(s->p + i, s->len - i, &width);
        jlist_push(&x->mem, l, jv_slice(x, s, i, i + width));
    }
    return l;
}

static jlist *entries_of(jx *x, const jdict *d, int kind) {
    jlist *l = jlist_new(&x->mem, d->n);
    for (size_t i = 0; i < d->n && jx_step(x, 0); i++) {
        jentry *e = &d->entries[i];
        jlist_push(&x->mem, l,
                   kind == VIEW_ITEMS    ? jv_pair(x, e->key, e->value)
                   : kind == VIEW_VALUES ? e->value
                                         : e->key);
    }
    return l;
}

static jlist *range_items(jx *x, const jrange *r) {
    jlist *l = jlist_new(&x->mem, r->n);
    for (size_t i = 0; i < r->n && jx_step(x, 0); i++) jlist_push(&x->mem, l, jv_range_at(r, i));
    return l;
}

bool jv_items(jx *x, jv v, jv **items, size_t *n) {
    const jlist *l = NULL;
    *n = 0;
    switch (v.type) {
    case J_UNDEFINED: return !jx_failed(x);
    case J_LIST:
    case J_TUPLE: l = v.as.l; break;
    case J_STR: l = chars_of(x, v.as.s); break;
    case J_DICT: l = entries_of(x, v.as.d, VIEW_KEYS); break;
    case J_VIEW: l = entries_of(x, v.as.view->d, v.as.view->kind); break;
    case J_RANGE: l = range_items(x, v.as.range); break;
    case J_ITER:
        *items = v.as.iter->n > 0 ? v.as.iter->items + v.as.iter->pos : NULL;
        *n = v.as.iter->n - v.as.iter->pos;
        v.as.iter->pos = v.as.iter->n;
        return !jx_failed(x);
    default: jx_fail(x, "'%s' object is not iterable", jv_type_name(v)); return false;
    }
    *items = l->items;
    *n = l->n;
    return !jx_failed(x);
}

/* ---- from JSON ---- */

static jv from_object(jx *x, const json_t *j, int depth) {
    jdict *d = jdict_new(&x->mem);
    const char *key;
    size_t key_len;
    json_t *value;
    json_object_keylen_foreach((json_t *)j, key, key_len, value) {
        if (!jx_step(x, 0)) break;
        jv k = jv_from_jstr(jstr_borrow(&x->mem, key, key_len));
        jdict_set(&x->mem, d, k, jv_from_json(x, value, depth + 1));
    }
    return (jv){.type = J_DICT, .as.d = d};
}

static jv from_array(jx *x, const json_t *j, int depth) {
    jlist *l = jlist_new(&x->mem, json_array_size(j));
    for (size_t i = 0; i < json_array_size(j) && jx_step(x, 0); i++)
        jlist_push(&x->mem, l, jv_from_json(x, json_array_get(j, i), depth + 1));
    return jv_list(l);
}

jv jv_from_json(jx *x, const json_t *j, int depth) {
    if (depth > MAX_DATA_DEPTH) return jx_fail(x, "values nested deeper than %d", MAX_DATA_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT: return from_object(x, j, depth);
    case JSON_ARRAY: return from_array(x, j, depth);
    case JSON_STRING:
        return jv_from_jstr(jstr_borrow(&x->mem, json_string_value(j), json_string_length(j)));
    case JSON_INTEGER: return jv_int(json_integer_value(j));
    case JSON_REAL: return jv_float(json_real_value(j));
    case JSON_TRUE: return jv_bool(true);
    case JSON_FALSE: return jv_bool(false);
    case JSON_NULL: break;
    }
    return jv_none();
}
