/* text/jinja_repr: values to text: Python's str() and repr(), and json.dumps. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

#define MAX_REPR_DEPTH 200

static bool printable(uint32_t c) {
    if (c < 0x7F) return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void write_escaped(buf *b, uint32_t c) {
    if (c == '\n')
        buf_puts(b, "\\n");
    else if (c == '\r')
        buf_puts(b, "\\r");
    else if (c == '\t')
        buf_puts(b, "\\t");
    else if (c < 0x100)
        buf_printf(b, "\\x%02x", (unsigned)c);
    else if (c < 0x10000)
        buf_printf(b, "\\u%04x", (unsigned)c);
    else
        buf_printf(b, "\\U%08x", (unsigned)c);
}

static void repr_str(buf *b, const jstr *s) {
    bool single = s->len > 0 && memchr(s->p, '\'', s->len) != NULL;
    bool twin = s->len > 0 && memchr(s->p, '"', s->len) != NULL;
    char quote = single && !twin ? '"' : '\'';
    if (s->markup) buf_puts(b, "Markup(");
    buf_putc(b, quote);
    for (size_t i = 0, width; i < s->len; i += width) {
        uint32_t c = utf8_decode(s->p + i, s->len - i, &width);
        if (c == (unsigned char)quote || c == '\\')
            buf_putc(b, '\\'), buf_putc(b, (char)c);
        else if (c != UTF8_INVALID && printable(c))
            buf_append(b, s->p + i, width);
        else
            write_escaped(b, c == UTF8_INVALID ? 0xFFFD : c);
    }
    buf_putc(b, quote);
    if (s->markup) buf_putc(b, ')');
}

static void repr_items(jx *x, buf *b, const jlist *l, const char *open, const char *close,
                       int depth) {
    buf_puts(b, open);
    for (size_t i = 0; i < l->n && !jx_failed(x); i++) {
        if (i > 0) buf_puts(b, ", ");
        jv_write_repr(x, b, l->items[i], depth + 1);
    }
    buf_puts(b, close);
}

static void repr_dict(jx *x, buf *b, const jdict *d, int depth) {
    buf_putc(b, '{');
    for (size_t i = 0; i < d->n && !jx_failed(x); i++) {
        if (i > 0) buf_puts(b, ", ");
        jv_write_repr(x, b, d->entries[i].key, depth + 1);
        buf_puts(b, ": ");
        jv_write_repr(x, b, d->entries[i].value, depth + 1);
    }
    buf_putc(b, '}');
}

static void repr_view(jx *x, buf *b, jv v, int depth) {
    const jview *view = v.as.view;
    buf_printf(b, "%s([", jv_type_name(v));
    for (size_t i = 0; i < view->d->n && !jx_failed(x); i++) {
        const jentry *e = &view->d->entries[i];
        if (i > 0) buf_puts(b, ", ");
        if (view->kind == VIEW_ITEMS) buf_putc(b, '(');
        if (view->kind != VIEW_VALUES) jv_write_repr(x, b, e->key, depth + 1);
        if (view->kind == VIEW_ITEMS) buf_puts(b, ", ");
        if (view->kind != VIEW_KEYS) jv_write_repr(x, b, e->value, depth + 1);
        if (view->kind == VIEW_ITEMS) buf_putc(b, ')');
    }
    buf_puts(b, "])");
}

static void repr_range(buf *b, const jrange *r) {
    buf_printf(b, "range(%" PRId64 ", %" PRId64, r->start, r->stop);
    if (r->step != 1) buf_printf(b, ", %" PRId64, r->step);
    buf_putc(b, ')');
}

/* Values without a text of their own: as Python, without addresses. */
static void repr_object(jx *x, buf *b, jv v, int depth) {
    switch (v.type) {
    case J_NAMESPACE:
        buf_puts(b, "<Namespace ");
        repr_dict(x, b, v.as.d, depth);
        buf_putc(b, '>');
        break;
    case J_MACRO:
        buf_printf(b, "<Macro %s%s%s>", v.as.macro->node->name != NULL ? "'" : "",
                   v.as.macro->node->name != NULL ? v.as.macro->node->name->p : "anonymous",
                   v.as.macro->node->name != NULL ? "'" : "");
        break;
    case J_LOOP: buf_printf(b, "<LoopContext %zu/%zu>", v.as.loop->i + 1, v.as.loop->n); break;
    case J_FUNCTION: buf_printf(b, "<function %s>", v.as.fn->name); break;
    case J_METHOD:
        buf_printf(b, "<built-in method %s of %s object>", v.as.method->def->name,
                   jv_type_name(v.as.method->self));
        break;
    default: buf_printf(b, "<%s object>", jv_type_name(v)); break;
    }
}

void jv_write_repr(jx *x, buf *b, jv v, int depth) {
    if (depth > MAX_REPR_DEPTH) {
        jx_fail(x, "a value nested deeper than %d cannot be printed", MAX_REPR_DEPTH);
        return;
    }
    if (b->len > x->max_output) b->failed = true;
    if (b->failed) {
        jx_fail(x, "text over the limit of %zu bytes", x->max_output);
        return;
    }
    switch (v.type) {
    case J_MISSING:
    case J_UNDEFINED: buf_puts(b, "Undefined"); break;
    case J_NONE: buf_puts(b, "None"); break;
    case J_BOOL: buf_puts(b, v.as.i ? "True" : "False"); break;
    case J_INT: buf_printf(b, "%" PRId64, v.as.i); break;
    case J_FLOAT: buf_double(b, v.as.f); break;
    case J_BIG: buf_append(b, v.as.s->p, v.as.s->len); break;
    case J_STR: repr_str(b, v.as.s); break;
    case J_LIST: repr_items(x, b, v.as.l, "[", "]", depth); break;
    case J_TUPLE: repr_items(x, b, v.as.l, "(", v.as.l->n == 1 ? ",)" : ")", depth); break;
    case J_DICT: repr_dict(x, b, v.as.d, depth); break;
    case J_VIEW: repr_view(x, b, v, depth); break;
    case J_RANGE: repr_range(b, v.as.range); break;
    default: repr_object(x, b, v, depth); break;
    }
}

void jv_write(jx *x, buf *b, jv v) {
    if (v.type == J_STR)
        buf_append(b, v.as.s->p, v.as.s->len);
    else if (v.type != J_UNDEFINED)
        jv_write_repr(x, b, v, 0);
}

const jstr *jv_to_str(jx *x, jv v) {
    if (v.type == J_STR) return v.as.s;
    if (v.type == J_UNDEFINED) return &jstr_empty;
    buf b = {.limit = x->max_output};
    jv_write_repr(x, &b, v, 0);
    return jv_from_buf(x, &b).as.s;
}

/* ---- json.dumps ---- */

typedef struct {
    jx *x;
    buf *b;
    bool ascii, sort_keys, pretty;
    const jstr *indent; /* one level of it, when pretty */
    const jstr *comma, *colon;
} dumper;

static void dump_newline(dumper *d, int level) {
    if (!d->pretty) return;
    buf_putc(d->b, '\n');
    for (int i = 0; i < level; i++) buf_append(d->b, d->indent->p, d->indent->len);
}

static void dump_ascii(buf *b, const jstr *s) {
    buf plain = {0};
    buf_json_string(&plain, s->p, s->len);
    for (size_t i = 0, width; i < plain.len; i += width) {
        uint32_t c = utf8_decode(plain.data + i, plain.len - i, &width);
        if (c < 0x80)
            buf_putc(b, (char)c);
        else if (c < 0x10000)
            buf_printf(b, "\\u%04x", (unsigned)c);
        else
            buf_printf(b, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (c >> 10)),
                       (unsigned)(0xDC00 + (c & 0x3FF)));
    }
    if (plain.failed) b->failed = true;
    buf_free(&plain);
}

static void dump_str(dumper *d, const jstr *s) {
    if (d->ascii)
        dump_ascii(d->b, s);
    else
        buf_json_string(d->b, s->p, s->len);
}

static void dump_float(buf *b, double f) {
    if (isnan(f))
        buf_puts(b, "NaN");
    else if (isinf(f))
        buf_puts(b, f > 0 ? "Infinity" : "-Infinity");
    else
        buf_double(b, f);
}

static void dump(dumper *d, jv v, int level);

static void dump_list(dumper *d, const jlist *l, int level) {
    if (l->n == 0) {
        buf_puts(d->b, "[]");
        return;
    }
    buf_putc(d->b, '[');
    for (size_t i = 0; i < l->n && !jx_failed(d->x); i++) {
        if (i > 0) buf_append(d->b, d->comma->p, d->comma->len);
        dump_newline(d, level + 1);
        dump(d, l->items[i], level + 1);
    }
    dump_newline(d, level);
    buf_putc(d->b, ']');
}

static void dump_key(dumper *d, jv key) {
    buf b = {0};
    switch (key.type) {
    case J_STR: dump_str(d, key.as.s); return;
    case J_NONE: buf_puts(d->b, "\"null\""); return;
    case J_BOOL: buf_puts(d->b, key.as.i ? "\"true\"" : "\"false\""); return;
    case J_FLOAT: dump_float(&b, key.as.f); break;
    case J_INT:
    case J_BIG: jv_write_repr(d->x, &b, key, 0); break;
    default:
        jx_fail(d->x, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
        return;
    }
    buf_json_string(d->b, b.data != NULL ? b.data : "", b.len);
    buf_free(&b);
}

/* Stable insertion into order: keys of one dictionary are few. */
static jentry *sorted_entries(jx *x, const jdict *d) {
    jentry *e = jm_alloc(&x->mem, d->n, sizeof *e);
    for (size_t i = 0; e != NULL && i < d->n; i++) {
        size_t at = i;
        while (at > 0 && jv_compare(x, d->entries[i].key, e[at - 1].key, "<") < 0) at--;
        memmove(e + at + 1, e + at, (i - at) * sizeof *e);
        e[at] = d->entries[i];
    }
    return e != NULL ? e : d->entries;
}

static void dump_dict(dumper *d, const jdict *dict, int level) {
    if (dict->n == 0) {
        buf_puts(d->b, "{}");
        return;
    }
    const jentry *entries = d->sort_keys ? sorted_entries(d->x, dict) : dict->entries;
    buf_putc(d->b, '{');
    for (size_t i = 0; i < dict->n && !jx_failed(d->x); i++) {
        if (i > 0) buf_append(d->b, d->comma->p, d->comma->len);
        dump_newline(d, level + 1);
        dump_key(d, entries[i].key);
        buf_append(d->b, d->colon->p, d->colon->len);
        dump(d, entries[i].value, level + 1);
    }
    dump_newline(d, level);
    buf_putc(d->b, '}');
}

static void dump(dumper *d, jv v, int level) {
    if (level > MAX_REPR_DEPTH || d->b->failed) {
        jx_fail(d->x, "the value is too deep or too large for tojson");
        return;
    }
    switch (v.type) {
    case J_NONE: buf_puts(d->b, "null"); break;
    case J_BOOL: buf_puts(d->b, v.as.i ? "true" : "false"); break;
    case J_INT:
    case J_BIG: jv_write_repr(d->x, d->b, v, 0); break;
    case J_FLOAT: dump_float(d->b, v.as.f); break;
    case J_STR: dump_str(d, v.as.s); break;
    case J_LIST:
    case J_TUPLE: dump_list(d, v.as.l, level); break;
    case J_DICT: dump_dict(d, v.as.d, level); break;
    default: jx_fail(d->x, "Object of type %s is not JSON serializable", jv_type_name(v)); break;
    }
}

static const jstr *spaces(jx *x, int64_t n) {
    char text[64];
    if (n <= 0) return &jstr_empty;
    if (n > (int64_t)sizeof text) {
        jx_fail(x, "tojson: an indent over %zu", sizeof text);
        return &jstr_empty;
    }
    memset(text, ' ', sizeof text);
    return jstr_make(&x->mem, text, (size_t)n);
}

/* a: ensure_ascii, indent, separators, sort_keys */
jv jv_tojson(jx *x, jv v, const jv *a) {
    static const jstr comma = {",", 1, 1, false}, comma_space = {", ", 2, 2, false},
                      colon = {": ", 2, 2, false};
    buf b = {.limit = x->max_output};
    dumper d = {.x = x, .b = &b, .comma = &comma_space, .colon = &colon};
    d.ascii = jv_truth(a[0]);
    d.sort_keys = jv_truth(a[3]);
    d.pretty = a[1].type != J_MISSING && a[1].type != J_NONE;
    if (d.pretty) {
        int64_t n = 0;
        d.comma = &comma;
        if (a[1].type == J_STR)
            d.indent = a[1].as.s;
        else if (op_index(x, a[1], &n))
            d.indent = spaces(x, n);
        else
            return jv_undefined();
    }
    if (a[2].type != J_MISSING && a[2].type != J_NONE) {
        bool two = (a[2].type == J_LIST || a[2].type == J_TUPLE) && a[2].as.l->n == 2 &&
                   a[2].as.l->items[0].type == J_STR && a[2].as.l->items[1].type == J_STR;
        if (!two) return jx_fail(x, "tojson: separators must be two strings");
        d.comma = a[2].as.l->items[0].as.s;
        d.colon = a[2].as.l->items[1].as.s;
    }
    dump(&d, v, 0);
    return jv_from_buf(x, &b);
}
