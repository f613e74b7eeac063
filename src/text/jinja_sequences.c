/* text/jinja_sequences: filters on sequences and mappings. Where Jinja2 gives a generator, so do
 * these: it is always true, has no length, and its items are consumed once. */
#include <string.h>

#include "text/jinja_internal.h"

#define FILTER(name) static jv f_##name(jx *x, jv v, const jv *a, const jargs *raw)
#define UNUSED (void)x, (void)v, (void)a, (void)raw

static bool flag(jv v, bool otherwise) {
    return v.type == J_MISSING ? otherwise : jv_truth(v);
}

static int64_t want_int(jx *x, jv v, int64_t otherwise) {
    int64_t i = otherwise;
    if (v.type != J_MISSING) op_index(x, v, &i);
    return i;
}

/* One part of an attribute path: digits are an index. */
static jv path_part(jx *x, const jstr *path, size_t begin, size_t end) {
    int64_t i = 0;
    bool digits = end > begin && end - begin < 18;
    for (size_t k = begin; k < end && digits; k++) {
        digits = path->p[k] >= '0' && path->p[k] <= '9';
        i = i * 10 + (path->p[k] - '0');
    }
    return digits ? jv_int(i) : jv_slice(x, path, begin, end);
}

static jv attr_path(jx *x, jv of, jv path, jv otherwise) {
    if (path.type == J_MISSING || path.type == J_NONE) return of;
    if (path.type != J_STR) {
        jv v = op_getitem(x, of, path);
        return v.type == J_UNDEFINED && otherwise.type != J_MISSING ? otherwise : v;
    }
    const jstr *s = path.as.s;
    for (size_t begin = 0; begin <= s->len && !jx_failed(x);) {
        size_t end = begin;
        while (end < s->len && s->p[end] != '.') end++;
        of = op_getitem(x, of, path_part(x, s, begin, end));
        if (of.type == J_UNDEFINED && otherwise.type != J_MISSING) of = otherwise;
        begin = end + 1;
    }
    return of;
}

/* "a.b.0" as map(attribute=) takes it. */
static jv jinja_attr_path(jx *x, jv of, jv path) {
    return attr_path(x, of, path, (jv){.type = J_MISSING});
}

static jv fold_case(jx *x, jv v) {
    return v.type == J_STR ? text_to_case(x, v.as.s, CASE_LOWER) : v;
}

FILTER(default) {
    UNUSED;
    bool falsy = flag(a[1], false) && !jv_truth(v);
    if (v.type != J_UNDEFINED && !falsy) return v;
    return a[0].type != J_MISSING ? a[0] : jv_from_jstr(&jstr_empty);
}

FILTER(length) {
    UNUSED;
    size_t n;
    if (jv_length(v, &n)) return jv_int((int64_t)n);
    return jx_fail(x, "object of type '%s' has no len()", jv_type_name(v));
}

FILTER(list) {
    UNUSED;
    jv *items;
    size_t n;
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    jlist *l = jlist_new(&x->mem, n);
    for (size_t i = 0; i < n; i++) jlist_push(&x->mem, l, items[i]);
    return jv_list(l);
}

FILTER(first) {
    UNUSED;
    jv *items;
    size_t n;
    if (v.type == J_ITER) {
        jiter *it = v.as.iter;
        if (it->pos < it->n) return it->items[it->pos++];
    } else if (jv_items(x, v, &items, &n) && n > 0) {
        return items[0];
    }
    return jx_failed(x) ? jv_undefined()
                        : jv_undefined_name(x, "No first item, sequence was empty.");
}

static bool reversible(jv v) {
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT ||
           v.type == J_VIEW || v.type == J_RANGE || v.type == J_UNDEFINED;
}

FILTER(last) {
    UNUSED;
    jv *items;
    size_t n;
    if (!reversible(v)) return jx_fail(x, "'%s' object is not reversible", jv_type_name(v));
    if (jv_items(x, v, &items, &n) && n > 0) return items[n - 1];
    return jv_undefined_name(x, "No last item, sequence was empty.");
}

FILTER(reverse) {
    UNUSED;
    jv *items;
    size_t n;
    if (v.type == J_STR) return op_slice(x, v, jv_none(), jv_none(), jv_int(-1));
    if (!jv_items(x, v, &items, &n)) return jx_fail(x, "argument must be iterable");
    jlist *l = jlist_new(&x->mem, n);
    for (size_t i = n; i-- > 0;) jlist_push(&x->mem, l, items[i]);
    return reversible(v) ? jv_iter(x, l) : jv_list(l);
}

FILTER(join) {
    UNUSED;
    jv *items;
    size_t n;
    buf b = {.limit = x->max_output};
    const jstr *d = a[0].type != J_MISSING ? jv_to_str(x, a[0]) : &jstr_empty;
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, d->len); i++) {
        if (i > 0) buf_append(&b, d->p, d->len);
        jv_write(x, &b, jinja_attr_path(x, items[i], a[1]));
    }
    return jv_from_buf(x, &b);
}

FILTER(sum) {
    UNUSED;
    jv *items;
    size_t n;
    jv total = a[1].type != J_MISSING ? a[1] : jv_int(0);
    if (total.type == J_STR) return jx_fail(x, "sum() can't sum strings");
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, 0); i++)
        total = op_binary(x, OP_ADD, total, jinja_attr_path(x, items[i], a[0]));
    return total;
}

static jv extreme(jx *x, jv v, const jv *a, bool largest) {
    jv *items;
    size_t n, best = 0;
    bool fold = !flag(a[0], false);
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    if (n == 0) return jv_undefined_name(x, "No aggregated item, sequence was empty.");
    jv best_key = jv_none();
    for (size_t i = 0; i < n && jx_step(x, 0); i++) {
        jv key = jinja_attr_path(x, items[i], a[1]);
        if (fold) key = fold_case(x, key);
        if (i > 0) {
            int c = jv_compare(x, key, best_key, largest ? ">" : "<");
            if (c == 2 || (largest ? c <= 0 : c >= 0)) continue;
        }
        best = i;
        best_key = key;
    }
    return items[best];
}

FILTER(min) {
    UNUSED;
    return extreme(x, v, a, false);
}

FILTER(max) {
    UNUSED;
    return extreme(x, v, a, true);
}

/* ---- sorting ---- */

typedef struct {
    jv key, item;
} sort_entry;

/* Stable merge sort: [begin, end) of e through t; reverse keeps equal items in their order. */
static void merge_sort(jx *x, sort_entry *e, sort_entry *t, size_t begin, size_t end,
                       bool reverse) {
    if (end - begin < 2 || jx_failed(x)) return;
    size_t middle = begin + (end - begin) / 2;
    merge_sort(x, e, t, begin, middle, reverse);
    merge_sort(x, e, t, middle, end, reverse);
    size_t i = begin, j = middle, k = begin;
    while (i < middle && j < end && !jx_failed(x)) {
        int c = jv_compare(x, e[j].key, e[i].key, "<");
        bool take_right = reverse ? c > 0 && c != 2 : c < 0;
        t[k++] = take_right ? e[j++] : e[i++];
    }
    while (i < middle) t[k++] = e[i++];
    while (j < end && k < end) t[k++] = e[j++];
    memcpy(e + begin, t + begin, (end - begin) * sizeof *e);
}

/* The key of sort, dictsort ...: several attributes "a,b" make a list. */
static jv sort_key(jx *x, jv item, jv attribute, bool fold) {
    const jstr *s = attribute.type == J_STR ? attribute.as.s : &jstr_empty;
    if (s->len == 0 || memchr(s->p, ',', s->len) == NULL) {
        jv key = jinja_attr_path(x, item, attribute);
        return fold ? fold_case(x, key) : key;
    }
    jlist *keys = jlist_new(&x->mem, 2);
    for (size_t begin = 0; begin <= s->len && !jx_failed(x);) {
        size_t end = begin;
        while (end < s->len && s->p[end] != ',') end++;
        jv key = jinja_attr_path(x, item, jv_slice(x, s, begin, end));
        jlist_push(&x->mem, keys, fold ? fold_case(x, key) : key);
        begin = end + 1;
    }
    return jv_list(keys);
}

static jv sorted(jx *x, jv *items, size_t n, jv attribute, bool fold, bool reverse) {
    jlist *l = jlist_new(&x->mem, n);
    sort_entry *e = jm_alloc(&x->mem, n + 1, sizeof *e), *t = jm_alloc(&x->mem, n + 1, sizeof *t);
    if (e == NULL || t == NULL) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, 0); i++)
        e[i] = (sort_entry){sort_key(x, items[i], attribute, fold), items[i]};
    merge_sort(x, e, t, 0, n, reverse);
    for (size_t i = 0; i < n && !jx_failed(x); i++) jlist_push(&x->mem, l, e[i].item);
    return jv_list(l);
}

FILTER(sort) {
    UNUSED;
    jv *items;
    size_t n;
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    return sorted(x, items, n, a[2], !flag(a[1], false), flag(a[0], false));
}

static jlist *pairs_of(jx *x, const jdict *d) {
    jlist *l = jlist_new(&x->mem, d->n);
    for (size_t i = 0; i < d->n; i++)
        jlist_push(&x->mem, l, jv_pair(x, d->entries[i].key, d->entries[i].value));
    return l;
}

FILTER(dictsort) {
    UNUSED;
    bool by_value = a[1].type != J_MISSING && jv_is_str(a[1], "value");
    if (a[1].type != J_MISSING && !by_value && !jv_is_str(a[1], "key"))
        return jx_fail(x, "You can only sort by either \"key\" or \"value\"");
    if (v.type != J_DICT)
        return jx_fail(x, "'%s' object has no attribute 'items'", jv_type_name(v));
    jlist *pairs = pairs_of(x, v.as.d);
    return sorted(x, pairs->items, pairs->n, jv_int(by_value), !flag(a[0], false),
                  flag(a[2], false));
}

FILTER(items) {
    UNUSED;
    if (v.type == J_UNDEFINED) return jv_iter(x, jlist_new(&x->mem, 0));
    if (v.type != J_DICT) return jx_fail(x, "Can only get item pairs from a mapping.");
    return jv_iter(x, pairs_of(x, v.as.d));
}

FILTER(unique) {
    UNUSED;
    jv *items;
    size_t n;
    bool fold = !flag(a[0], false);
    jlist *l = jlist_new(&x->mem, 0);
    jdict *seen = jdict_new(&x->mem);
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, 0); i++) {
        jv key = jinja_attr_path(x, items[i], a[1]);
        if (fold) key = fold_case(x, key);
        if (jdict_get(seen, key) != NULL) continue;
        if (!jdict_set(&x->mem, seen, key, jv_none()))
            jx_fail(x, "unhashable type: '%s'", jv_type_name(key));
        jlist_push(&x->mem, l, items[i]);
    }
    return jv_iter(x, l);
}

FILTER(groupby) {
    UNUSED;
    jv *items;
    size_t n;
    bool fold = !flag(a[2], false);
    jlist *groups = jlist_new(&x->mem, 0), *group = NULL;
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    jlist *keyed = jlist_new(&x->mem, n);
    for (size_t i = 0; i < n && jx_step(x, 0); i++)
        jlist_push(&x->mem, keyed, jv_pair(x, attr_path(x, items[i], a[0], a[1]), items[i]));
    jv order = sorted(x, keyed->items, keyed->n, jv_int(0), fold, false);
    jv last = jv_none();
    for (size_t i = 0; order.type == J_LIST && i < order.as.l->n && !jx_failed(x); i++) {
        const jv *pair = order.as.l->items[i].as.l->items;
        jv key = fold ? fold_case(x, pair[0]) : pair[0];
        if (group == NULL || !jv_equal(x, key, last)) {
            group = jlist_new(&x->mem, 1);
            jv entry = jv_pair(x, pair[0], jv_list(group));
            if (!jx_failed(x)) entry.as.l->is_group = true;
            jlist_push(&x->mem, groups, entry);
        }
        jlist_push(&x->mem, group, pair[1]);
        last = key;
    }
    return jv_list(groups);
}

/* ---- pieces ---- */

static bool fills(jv fill) {
    return fill.type != J_MISSING && fill.type != J_NONE;
}

FILTER(batch) {
    UNUSED;
    jv *items;
    size_t n;
    int64_t size = want_int(x, a[0], 1);
    jlist *all = jlist_new(&x->mem, 0), *row = NULL;
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, 0); i++) {
        if (row == NULL || (int64_t)row->n == size) {
            row = jlist_new(&x->mem, 0);
            jlist_push(&x->mem, all, jv_list(row));
        }
        jlist_push(&x->mem, row, items[i]);
    }
    while (row != NULL && fills(a[1]) && (int64_t)row->n < size && jx_step(x, 0))
        jlist_push(&x->mem, row, a[1]);
    return jv_iter(x, all);
}

FILTER(slice) {
    UNUSED;
    jv *items;
    size_t n;
    int64_t slices = want_int(x, a[0], 1);
    jlist *all = jlist_new(&x->mem, 0);
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    if (slices == 0) return jx_fail(x, "integer division or modulo by zero");
    size_t count = slices > 0 ? (size_t)slices : 0, per = slices > 0 ? n / count : 0,
           extra = slices > 0 ? n % count : 0, at = 0;
    for (size_t s = 0; s < count && jx_step(x, 0); s++) {
        jlist *part = jlist_new(&x->mem, per + 1);
        size_t end = at + per + (s < extra);
        for (; at < end; at++) jlist_push(&x->mem, part, items[at]);
        if (fills(a[1]) && s >= extra) jlist_push(&x->mem, part, a[1]);
        jlist_push(&x->mem, all, jv_list(part));
    }
    return jv_iter(x, all);
}

/* ---- map and select ---- */

static const jdef *find_def(jx *x, jv name, bool filter) {
    const jstr *s = jv_to_str(x, name);
    const char *text = arena_strndup(&x->mem.a, s->p, s->len);
    if (text == NULL) return NULL;
    const jdef *d = filter ? jinja_filter_find(text) : jinja_test_find(text);
    if (d == NULL) jx_fail(x, "No %s named '%s'", filter ? "filter" : "test", text);
    return d;
}

static jv keyword(const jargs *raw, const char *name) {
    for (size_t i = 0; i < raw->n_kw; i++)
        if (jv_is_str(jv_from_jstr(raw->names[i]), name)) return raw->values[i];
    return (jv){.type = J_MISSING};
}

FILTER(map) {
    UNUSED;
    jv *items;
    size_t n;
    jv attribute = keyword(raw, "attribute"), otherwise = keyword(raw, "default");
    bool by_attribute = raw->n_pos == 0 && attribute.type != J_MISSING;
    const jdef *d = NULL;
    jargs rest = *raw;
    jlist *l = jlist_new(&x->mem, 0);
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    if (n == 0) return jv_iter(x, l);
    if (by_attribute) {
        if (raw->n_kw > 1u + (otherwise.type != J_MISSING))
            return jx_fail(x, "Unexpected keyword argument");
        if (otherwise.type == J_NONE) otherwise.type = J_MISSING;
    } else {
        if (raw->n_pos == 0) return jx_fail(x, "map requires a filter argument");
        d = find_def(x, raw->pos[0], true);
        rest.pos++;
        rest.n_pos--;
    }
    for (size_t i = 0; i < n && jx_step(x, 0); i++)
        jlist_push(&x->mem, l,
                   by_attribute ? attr_path(x, items[i], attribute, otherwise)
                                : jinja_call_def(x, d, items[i], &rest));
    return jv_iter(x, l);
}

static jv choose(jx *x, jv v, const jargs *raw, bool by_attribute, bool keep) {
    jv *items;
    size_t n, skip = by_attribute ? 1 : 0;
    const jdef *test = NULL;
    jlist *l = jlist_new(&x->mem, 0);
    if (!jv_truth(v)) return jv_iter(x, l);
    if (!jv_items(x, v, &items, &n)) return jv_undefined();
    if (raw->n_pos < skip) return jx_fail(x, "Missing parameter for attribute name");
    jargs rest = {skip > 0 ? raw->pos + skip : raw->pos, raw->n_pos - skip, raw->names, raw->values,
                  raw->n_kw};
    if (rest.n_pos > 0 && n > 0) {
        test = find_def(x, rest.pos[0], false);
        rest.pos++;
        rest.n_pos--;
    }
    for (size_t i = 0; i < n && jx_step(x, 0); i++) {
        jv subject = by_attribute ? jinja_attr_path(x, items[i], raw->pos[0]) : items[i];
        bool passes = jv_truth(test != NULL ? jinja_call_def(x, test, subject, &rest) : subject);
        if (passes == keep) jlist_push(&x->mem, l, items[i]);
    }
    return jv_iter(x, l);
}

FILTER(select) {
    UNUSED;
    return choose(x, v, raw, false, true);
}

FILTER(reject) {
    UNUSED;
    return choose(x, v, raw, false, false);
}

FILTER(selectattr) {
    UNUSED;
    return choose(x, v, raw, true, true);
}

FILTER(rejectattr) {
    UNUSED;
    return choose(x, v, raw, true, false);
}

/* x|attr("name"): the attribute only, never the item. */
FILTER(attr) {
    UNUSED;
    if (v.type == J_UNDEFINED) return jv_undefined();
    if (v.type == J_DICT) {
        jdict empty = {0};
        v = (jv){.type = J_DICT, .as.d = jm_alloc(&x->mem, 1, sizeof empty)};
        if (v.as.d == NULL) return jv_undefined();
    }
    return op_getattr(x, v, jv_to_str(x, a[0]));
}

const jdef jinja_sequence_filters[] = {
    {"default", "default_value? boolean?", f_default},
    {"d", "default_value? boolean?", f_default},
    {"length", "", f_length},
    {"count", "", f_length},
    {"list", "", f_list},
    {"first", "", f_first},
    {"last", "", f_last},
    {"reverse", "", f_reverse},
    {"join", "d? attribute?", f_join},
    {"sum", "attribute? start?", f_sum},
    {"min", "case_sensitive? attribute?", f_min},
    {"max", "case_sensitive? attribute?", f_max},
    {"sort", "reverse? case_sensitive? attribute?", f_sort},
    {"dictsort", "case_sensitive? by? reverse?", f_dictsort},
    {"items", "", f_items},
    {"unique", "case_sensitive? attribute?", f_unique},
    {"groupby", "attribute default? case_sensitive?", f_groupby},
    {"batch", "linecount fill_with?", f_batch},
    {"slice", "slices fill_with?", f_slice},
    {"map", "*", f_map},
    {"select", "*", f_select},
    {"reject", "*", f_reject},
    {"selectattr", "*", f_selectattr},
    {"rejectattr", "*", f_rejectattr},
    {"attr", "name", f_attr},
    {NULL, NULL, NULL},
};
