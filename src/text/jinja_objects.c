/* text/jinja_objects: methods of dict, list, tuple, range, float and int; the global functions.
 *
 * The sandbox is immutable: methods that would change a list or dictionary are refused.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "text/jinja_internal.h"

#define METHOD(name) static jv m_##name(jx *x, jv self, const jv *a, const jargs *raw)
#define UNUSED (void)x, (void)self, (void)a, (void)raw
#define MAX_RANGE 100000 /* of the sandbox */

METHOD(get) {
    UNUSED;
    if (!jv_hashable(a[0])) return jx_fail(x, "unhashable type: '%s'", jv_type_name(a[0]));
    const jv *v = jdict_get(self.as.d, a[0]);
    if (v != NULL) return *v;
    return a[1].type != J_MISSING ? a[1] : jv_none();
}

static jv view(jx *x, jv self, int kind) {
    jview *v = jm_alloc(&x->mem, 1, sizeof *v);
    if (v == NULL) return jv_undefined();
    v->d = self.as.d;
    v->kind = kind;
    return (jv){.type = J_VIEW, .as.view = v};
}

METHOD(keys) {
    UNUSED;
    return view(x, self, VIEW_KEYS);
}

METHOD(values) {
    UNUSED;
    return view(x, self, VIEW_VALUES);
}

METHOD(items) {
    UNUSED;
    return view(x, self, VIEW_ITEMS);
}

METHOD(copy) {
    UNUSED;
    return self; /* immutable: a copy cannot be told from it */
}

METHOD(list_count) {
    UNUSED;
    jv *items;
    size_t n;
    int64_t count = 0;
    if (!jv_items(x, self, &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n; i++) count += jv_equal(x, items[i], a[0]);
    return jv_int(count);
}

METHOD(list_index) {
    UNUSED;
    jv *items;
    size_t n;
    int64_t from = 0, to = INT64_MAX;
    if (!jv_items(x, self, &items, &n)) return jv_undefined();
    if (a[1].type != J_MISSING && !op_index(x, a[1], &from)) return jv_undefined();
    if (a[2].type != J_MISSING && !op_index(x, a[2], &to)) return jv_undefined();
    if (from < 0) from = from + (int64_t)n < 0 ? 0 : from + (int64_t)n;
    if (to < 0) to += (int64_t)n;
    for (int64_t i = from; i < (int64_t)n && i < to; i++)
        if (jv_equal(x, items[i], a[0])) return jv_int(i);
    return jx_fail(x, "the value is not in %s", jv_type_name(self));
}

METHOD(is_integer) {
    UNUSED;
    return jv_bool(isfinite(self.as.f) && floor(self.as.f) == self.as.f);
}

METHOD(bit_length) {
    UNUSED;
    uint64_t v = self.as.i < 0 ? 0 - (uint64_t)self.as.i : (uint64_t)self.as.i;
    int64_t bits = 0;
    for (; v > 0; v >>= 1) bits++;
    return jv_int(bits);
}

METHOD(cycle_next) {
    UNUSED;
    jcycle *c = self.as.cycle;
    jv v = c->items[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return v;
}

METHOD(cycle_reset) {
    UNUSED;
    self.as.cycle->pos = 0;
    return jv_none();
}

METHOD(cycle_current) {
    UNUSED;
    return self.as.cycle->items[self.as.cycle->pos];
}

static const jdef dict_methods[] = {{"get", "key default?", m_get}, {"keys", "", m_keys},
                                    {"values", "", m_values},       {"items", "", m_items},
                                    {"copy", "", m_copy},           {NULL, NULL, NULL}};
static const jdef list_methods[] = {{"index", "value start? stop?", m_list_index},
                                    {"count", "value", m_list_count},
                                    {"copy", "", m_copy},
                                    {NULL, NULL, NULL}};
static const jdef tuple_methods[] = {{"index", "value start? stop?", m_list_index},
                                     {"count", "value", m_list_count},
                                     {NULL, NULL, NULL}};
static const jdef float_methods[] = {{"is_integer", "", m_is_integer}, {NULL, NULL, NULL}};
static const jdef int_methods[] = {{"bit_length", "", m_bit_length}, {NULL, NULL, NULL}};
static const jdef cycler_methods[] = {{"next", "", m_cycle_next},
                                      {"reset", "", m_cycle_reset},
                                      {"current", "", m_cycle_current},
                                      {NULL, NULL, NULL}};

const jdef *jinja_method_find(jv self, const jstr *name) {
    const jdef *d = NULL;
    switch (self.type) {
    case J_STR: d = jinja_str_methods; break;
    case J_DICT: d = dict_methods; break;
    case J_LIST: d = list_methods; break;
    case J_TUPLE:
    case J_RANGE: d = tuple_methods; break;
    case J_FLOAT: d = float_methods; break;
    case J_BOOL:
    case J_INT: d = int_methods; break;
    case J_CYCLER: d = cycler_methods; break;
    default: return NULL;
    }
    for (; d->name != NULL; d++)
        if (d->name[0] == (name->len > 0 ? name->p[0] : '\0') &&
            jv_is_str(jv_from_jstr(name), d->name))
            return d;
    return NULL;
}

bool jinja_method_mutates(jv self, const jstr *name) {
    static const char *const of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *s = self.type == J_LIST ? of_list : self.type == J_DICT ? of_dict : NULL;
    for (; s != NULL && *s != NULL; s++)
        if (jv_is_str(jv_from_jstr(name), *s)) return true;
    return false;
}

/* ---- global functions ---- */

METHOD(range) {
    UNUSED;
    int64_t v[3] = {0, 0, 1};
    if (raw->n_pos < 1 || raw->n_pos > 3 || raw->n_kw > 0)
        return jx_fail(x, "range expected 1 to 3 arguments, got %zu", raw->n_pos);
    for (size_t i = 0; i < raw->n_pos; i++)
        if (!op_index(x, raw->pos[i], &v[raw->n_pos == 1 ? 1 : i])) return jv_undefined();
    if (v[2] == 0) return jx_fail(x, "range() arg 3 must not be zero");
    uint64_t span = 0, step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    if (v[2] > 0 && v[1] > v[0]) span = (uint64_t)v[1] - (uint64_t)v[0];
    if (v[2] < 0 && v[1] < v[0]) span = (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t n = span == 0 ? 0 : (span - 1) / step + 1;
    if (n > MAX_RANGE)
        return jx_fail(x, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                       MAX_RANGE);
    jrange *r = jm_alloc(&x->mem, 1, sizeof *r);
    if (r == NULL) return jv_undefined();
    *r = (jrange){v[0], v[1], v[2], (size_t)n};
    return (jv){.type = J_RANGE, .as.range = r};
}

/* Adds one positional argument of dict(): a dictionary or pairs. */
static void dict_update(jx *x, jdict *d, jv from) {
    jv *items, *pair;
    size_t n, two;
    if (from.type == J_DICT || from.type == J_NAMESPACE) {
        for (size_t i = 0; i < from.as.d->n; i++)
            jdict_set(&x->mem, d, from.as.d->entries[i].key, from.as.d->entries[i].value);
        return;
    }
    if (!jv_items(x, from, &items, &n)) return;
    for (size_t i = 0; i < n && jv_items(x, items[i], &pair, &two); i++) {
        if (two != 2)
            jx_fail(x, "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                    two);
        else if (!jdict_set(&x->mem, d, pair[0], pair[1]))
            jx_fail(x, "unhashable type: '%s'", jv_type_name(pair[0]));
    }
}

static jdict *dict_from(jx *x, const jargs *raw) {
    jdict *d = jdict_new(&x->mem);
    if (raw->n_pos > 1) jx_fail(x, "dict expected at most 1 argument, got %zu", raw->n_pos);
    if (raw->n_pos == 1) dict_update(x, d, raw->pos[0]);
    for (size_t i = 0; i < raw->n_kw; i++)
        jdict_set(&x->mem, d, jv_from_jstr(raw->names[i]), raw->values[i]);
    return d;
}

METHOD(dict) {
    UNUSED;
    return (jv){.type = J_DICT, .as.d = dict_from(x, raw)};
}

METHOD(namespace) {
    UNUSED;
    return (jv){.type = J_NAMESPACE, .as.d = dict_from(x, raw)};
}

METHOD(cycler) {
    UNUSED;
    jcycle *c = jm_alloc(&x->mem, 1, sizeof *c);
    if (raw->n_pos == 0) return jx_fail(x, "at least one item has to be provided");
    if (c == NULL) return jv_undefined();
    *c = (jcycle){(jv *)raw->pos, raw->n_pos, 0};
    return (jv){.type = J_CYCLER, .as.cycle = c};
}

METHOD(joiner) {
    UNUSED;
    jcycle *c = jm_alloc(&x->mem, 1, sizeof *c);
    jv *sep = jm_alloc(&x->mem, 1, sizeof *sep);
    if (c == NULL || sep == NULL) return jv_undefined();
    *sep = a[0].type != J_MISSING ? a[0] : jv_cstr(x, ", ");
    *c = (jcycle){sep, 1, 0};
    return (jv){.type = J_JOINER, .as.cycle = c};
}

METHOD(raise_exception) {
    UNUSED;
    const jstr *s = jv_to_str(x, a[0]);
    if (jx_failed(x)) return jv_undefined();
    x->status = RIDGE_FAIL(x->err, RIDGE_EINVAL, "%.*s", (int)s->len, s->p);
    error_where(x->err, "raise_exception");
    return jv_undefined();
}

METHOD(strftime_now) {
    UNUSED;
    if (a[0].type != J_STR) return jx_fail(x, "strftime_now() needs a format");
    struct tm tm;
    time_t now = (time_t)x->now;
    if (gmtime_r(&now, &tm) == NULL) return jx_fail(x, "strftime_now(): the time is out of range");
    const jstr *f = a[0].as.s;
    if (f->len > 4096) return jx_fail(x, "strftime_now(): the format is too long");
    buf b = {0}, format = {0};
    buf_append(&format, f->p, f->len);
    buf_putc(&format, '.'); /* so that an empty result is told from a failure */
    size_t room = f->len * 32 + 64;
    char *text = jm_alloc(&x->mem, room, 1);
    size_t n = text != NULL && !format.failed ? strftime(text, room, format.data, &tm) : 0;
    if (n > 0) buf_append(&b, text, n - 1);
    buf_free(&format);
    return jv_from_buf(x, &b);
}

METHOD(lipsum) {
    UNUSED;
    return jx_fail(x, "lipsum(), a random text, is not supported");
}

static const jdef globals[] = {
    {"lipsum", "*", m_lipsum},
    {"range", "*", m_range},
    {"dict", "*", m_dict},
    {"namespace", "*", m_namespace},
    {"cycler", "*", m_cycler},
    {"joiner", "sep?", m_joiner},
    {"raise_exception", "message", m_raise_exception},
    {"strftime_now", "format", m_strftime_now},
};

const jdef *jinja_global_find(const char *name) {
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (strcmp(globals[i].name, name) == 0) return &globals[i];
    return NULL;
}
