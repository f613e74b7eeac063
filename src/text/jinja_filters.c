/* text/jinja_filters: filters on texts and numbers, and the search for filters by name. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

#define FILTER(name) static jv f_##name(jx *x, jv v, const jv *a, const jargs *raw)
#define UNUSED (void)x, (void)v, (void)a, (void)raw

static bool given(jv v) {
    return v.type != J_MISSING && v.type != J_NONE;
}

static int64_t want_int(jx *x, jv v, int64_t otherwise) {
    int64_t i = otherwise;
    if (v.type != J_MISSING) op_index(x, v, &i);
    return i;
}

/* A string that must be one: str methods fail on others. */
static const jstr *want_str(jx *x, jv v) {
    if (v.type == J_STR) return v.as.s;
    jx_fail(x, "expected a str, found %s", jv_type_name(v));
    return &jstr_empty;
}

static jv marked(jv v) {
    if (v.as.s->len > 0) ((jstr *)v.as.s)->markup = true;
    return v;
}

/* A filter that is a method of str(v). */
static jv call_method(jx *x, const char *name, jv v, const jargs *args) {
    for (const jdef *d = jinja_str_methods; d->name != NULL; d++)
        if (strcmp(d->name, name) == 0)
            return jinja_call_def(x, d, jv_from_jstr(jv_to_str(x, v)), args);
    return jx_fail(x, "no method %s", name);
}

FILTER(upper) {
    UNUSED;
    return text_to_case(x, jv_to_str(x, v), CASE_UPPER);
}

FILTER(lower) {
    UNUSED;
    return text_to_case(x, jv_to_str(x, v), CASE_LOWER);
}

FILTER(capitalize) {
    UNUSED;
    return text_to_case(x, jv_to_str(x, v), CASE_CAPITAL);
}

/* Unlike str.title: words begin after white space, '-' and brackets only. */
FILTER(title) {
    UNUSED;
    const jstr *s = jv_to_str(x, v);
    buf b = {.limit = x->max_output};
    for (size_t i = 0; i < s->len && jx_step(x, 0);) {
        size_t begin = i, width;
        bool separator = false;
        for (; i < s->len; i += width) {
            uint32_t c = text_at(s, i, &width);
            separator = text_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) != NULL && c != 0);
            if (separator) break;
        }
        if (i > begin) {
            const jstr *word = text_to_case(x, jv_slice(x, s, begin, i).as.s, CASE_CAPITAL).as.s;
            if (!jx_failed(x)) buf_append(&b, word->p, word->len);
        }
        if (separator) {
            buf_append(&b, s->p + i, width);
            i += width;
        }
    }
    return jv_from_buf(x, &b);
}

FILTER(trim) {
    UNUSED;
    return text_strip(x, jv_to_str(x, v), &a[0], 3);
}

FILTER(string) {
    UNUSED;
    return jv_from_jstr(jv_to_str(x, v));
}

FILTER(safe) {
    UNUSED;
    const jstr *s = jv_to_str(x, v);
    jstr *copy = jm_alloc(&x->mem, 1, sizeof *copy);
    if (copy == NULL) return jv_undefined();
    *copy = *s;
    copy->markup = true;
    return jv_from_jstr(copy);
}

FILTER(escape) {
    UNUSED;
    return text_escape(x, jv_to_str(x, v));
}

FILTER(forceescape) {
    UNUSED;
    jstr plain = *jv_to_str(x, v);
    plain.markup = false;
    return text_escape(x, &plain);
}

FILTER(replace) {
    UNUSED;
    return text_replace(x, jv_to_str(x, v), jv_to_str(x, a[0]), jv_to_str(x, a[1]),
                        given(a[2]) ? want_int(x, a[2], -1) : -1);
}

FILTER(format) {
    UNUSED;
    if (raw->n_pos > 0 && raw->n_kw > 0)
        return jx_fail(x, "can't handle positional and keyword arguments at the same time");
    const jstr *s = jv_to_str(x, v);
    if (raw->n_kw > 0) {
        jdict *d = jdict_new(&x->mem);
        for (size_t i = 0; i < raw->n_kw; i++)
            jdict_set(&x->mem, d, jv_from_jstr(raw->names[i]), raw->values[i]);
        return text_format_percent(x, s, (jv){.type = J_DICT, .as.d = d});
    }
    jlist *l = jlist_new(&x->mem, raw->n_pos);
    for (size_t i = 0; i < raw->n_pos; i++) jlist_push(&x->mem, l, raw->pos[i]);
    return text_format_percent(x, s, jv_tuple(l));
}

FILTER(center) {
    UNUSED;
    jv width = a[0].type != J_MISSING ? a[0] : jv_int(80);
    jargs args = {.pos = &width, .n_pos = 1};
    return call_method(x, "center", v, &args);
}

FILTER(indent) {
    UNUSED;
    const jstr *s = want_str(x, v);
    bool first = a[1].type != J_MISSING && jv_truth(a[1]);
    bool blank = a[2].type != J_MISSING && jv_truth(a[2]);
    buf by = {.limit = x->max_output}, b = {.limit = x->max_output};
    if (a[0].type == J_STR) {
        buf_append(&by, a[0].as.s->p, a[0].as.s->len);
    } else {
        int64_t width = want_int(x, a[0], 4);
        for (int64_t i = 0; i < width && !by.failed; i++) buf_putc(&by, ' ');
    }
    jlist *lines = text_split_lines(x, s, false);
    const char *end = s->len > 0 ? s->p + s->len - 1 : NULL;
    bool trailing = s->len == 0 || *end == '\n' || *end == '\r';
    if (trailing) jlist_push(&x->mem, lines, jv_from_jstr(&jstr_empty));
    if (trailing && s->len > 0 && *end == '\r') lines->n--; /* "\r" + "\n" is one end of line */
    for (size_t i = 0; i < lines->n && jx_step(x, by.len); i++) {
        const jstr *line = lines->items[i].as.s;
        if (i > 0) buf_putc(&b, '\n');
        if (i == 0 ? first : blank || line->len > 0)
            buf_append(&b, by.data != NULL ? by.data : "", by.len);
        buf_append(&b, line->p, line->len);
    }
    if (by.failed) b.failed = true;
    buf_free(&by);
    return jv_from_buf(x, &b);
}

FILTER(truncate) {
    UNUSED;
    size_t size;
    int64_t length = want_int(x, a[0], 255), leeway = given(a[3]) ? want_int(x, a[3], 5) : 5;
    const jstr *end = a[2].type == J_MISSING ? jv_cstr(x, "...").as.s : want_str(x, a[2]);
    if (jx_failed(x)) return jv_undefined();
    if (length < (int64_t)end->chars)
        return jx_fail(x, "expected length >= %zu, got %lld", end->chars, (long long)length);
    if (leeway < 0) return jx_fail(x, "expected leeway >= 0, got %lld", (long long)leeway);
    bool sized = jv_length(v, &size);
    if (sized && (leeway > INT64_MAX - length || (int64_t)size <= length + leeway)) return v;
    const jstr *s = want_str(x, v);
    if (jx_failed(x)) return jv_undefined();
    size_t cut = text_offset(s, (size_t)length - end->chars);
    bool kill = a[1].type != J_MISSING && jv_truth(a[1]);
    size_t space = kill ? SIZE_MAX : text_rfind(s->p, cut, " ", 1);
    if (space != SIZE_MAX) cut = space;
    return op_binary(x, OP_ADD, jv_slice(x, s, 0, cut), jv_from_jstr(end));
}

FILTER(wordcount) {
    UNUSED;
    const jstr *s = jv_to_str(x, v);
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0, width; i < s->len; i += width) {
        bool word = text_is_word(text_at(s, i, &width));
        n += word && !inside;
        inside = word;
    }
    return jv_int(n);
}

/* ---- numbers ---- */

/* Python's int(text, base) and float(text) take surrounding space and underscores. */
static bool number_text(jx *x, const jstr *s, char *out, size_t size) {
    jv none = {.type = J_MISSING};
    const jstr *t = text_strip(x, s, &none, 3).as.s;
    size_t len = 0;
    if (jx_failed(x) || t->len == 0 || t->len + 1 > size) return false;
    for (size_t i = 0; i < t->len; i++) {
        char c = t->p[i];
        if (c == '_') {
            bool between = i > 0 && i + 1 < t->len && t->p[i - 1] != '_' && t->p[i + 1] != '_';
            if (!between) return false;
            continue;
        }
        if ((unsigned char)c >= 0x80) {
            size_t width;
            int digit = text_digit(text_at(t, i, &width));
            if (digit < 0) return false;
            c = (char)('0' + digit);
            i += width - 1;
        }
        if (c == '\0' || c == ' ') return false;
        out[len++] = c;
    }
    out[len] = '\0';
    return true;
}

static bool parse_int(jx *x, const jstr *s, int64_t base, int64_t *out) {
    char text[512], *end, digits[512];
    if (base == 1 || base < 0 || base > 36 || !number_text(x, s, text, sizeof text)) return false;
    const char *p = text;
    bool minus = *p == '-';
    if (*p == '-' || *p == '+') p++;
    char kind = p[0] == '0' ? (char)(p[1] | 0x20) : '\0';
    int prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
        base = prefix;
        p += 2;
    } else if (base == 0) {
        base = 10;
    }
    if (*p == '\0' || *p == '-' || *p == '+') return false;
    digits[0] = minus ? '-' : '+';
    memcpy(digits + 1, p, strlen(p) + 1 < sizeof digits - 1 ? strlen(p) + 1 : sizeof digits - 1);
    digits[sizeof digits - 1] = '\0';
    errno = 0;
    *out = strtoll(digits, &end, (int)base);
    if (*end != '\0') return false;
    if (errno == ERANGE) jx_fail(x, "int: '%s' does not fit 64 bits", text);
    return true;
}

static bool parse_float(jx *x, const jstr *s, double *out) {
    char text[512], *end;
    if (!number_text(x, s, text, sizeof text) || strpbrk(text, "xXpP(") != NULL) return false;
    *out = strtod(text, &end);
    return *end == '\0' && end != text;
}

static jv float_to_int(jx *x, double d, jv otherwise) {
    if (!isfinite(d)) return otherwise;
    if (fabs(d) >= 9223372036854775808.0) return jx_fail(x, "int: %g does not fit 64 bits", d);
    return jv_int((int64_t)d);
}

static jv undefined_number(jx *x, jv v) {
    if (v.as.s != NULL) return jx_fail(x, "%.*s", (int)v.as.s->len, v.as.s->p);
    return jx_fail(x, "undefined value is no number");
}

FILTER(int) {
    UNUSED;
    jv otherwise = a[0].type != J_MISSING ? a[0] : jv_int(0);
    int64_t i;
    double d;
    if (v.type == J_UNDEFINED) return undefined_number(x, v);
    if (v.type == J_INT || v.type == J_BOOL) return jv_int(v.as.i);
    if (v.type == J_BIG) return v;
    if (v.type == J_FLOAT) return isinf(v.as.f) ? otherwise : float_to_int(x, v.as.f, otherwise);
    if (v.type != J_STR) return otherwise;
    if (parse_int(x, v.as.s, want_int(x, a[1], 10), &i)) return jv_int(i);
    return parse_float(x, v.as.s, &d) ? float_to_int(x, d, otherwise) : otherwise;
}

/* Python's float(v): false where that raises. */
static bool to_float(jx *x, jv v, double *out) {
    if (v.type == J_STR) return parse_float(x, v.as.s, out);
    if (v.type == J_BIG) {
        if (!parse_float(x, v.as.s, out) || isinf(*out))
            jx_fail(x, "int too large to convert to float");
        return true;
    }
    *out = jv_is_number(v) ? jv_to_double(v) : 0;
    return jv_is_number(v);
}

FILTER(float) {
    UNUSED;
    double d;
    if (v.type == J_UNDEFINED) return undefined_number(x, v);
    if (to_float(x, v, &d)) return jv_float(d);
    return a[0].type != J_MISSING ? a[0] : jv_float(0);
}

FILTER(abs) {
    UNUSED;
    if (v.type == J_FLOAT) return jv_float(fabs(v.as.f));
    if (v.type == J_BIG) return v.as.s->p[0] == '-' ? op_negate(x, v, true) : v;
    if (!jv_is_number(v)) return jx_fail(x, "bad operand type for abs(): '%s'", jv_type_name(v));
    return v.as.i < 0 ? op_negate(x, v, true) : jv_int(v.as.i);
}

/* Python's round(): half to even, exact in decimal; printf rounds the same way. */
static double round_decimal(double d, int digits) {
    char text[400];
    if (!isfinite(d) || digits > 300) return d;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", digits, d);
        return strtod(text, NULL);
    }
    double unit = pow(10, -digits);
    return nearbyint(d / unit) * unit;
}

FILTER(round) {
    UNUSED;
    int64_t digits = want_int(x, a[0], 0);
    jv method = a[1].type != J_MISSING ? a[1] : jv_cstr(x, "common");
    bool ceil_it = jv_is_str(method, "ceil"), floor_it = jv_is_str(method, "floor");
    if (!ceil_it && !floor_it && !jv_is_str(method, "common"))
        return jx_fail(x, "method must be common, ceil or floor");
    if (!jv_is_number(v)) {
        if (v.type == J_UNDEFINED) return undefined_number(x, v);
        return jx_fail(x, "type %s doesn't define __round__ method", jv_type_name(v));
    }
    if (digits > 300 || digits < -300) return jx_fail(x, "round: precision out of range");
    if (!ceil_it && !floor_it) {
        if (v.type == J_FLOAT) return jv_float(round_decimal(v.as.f, (int)digits));
        if (digits >= 0) return jv_int(v.as.i);
        if (digits < -18) return jv_int(0);
        int64_t unit = 1;
        for (int64_t i = 0; i < -digits; i++) unit *= 10;
        int64_t rest = op_binary(x, OP_MOD, v, jv_int(unit)).as.i, low = v.as.i - rest;
        bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
        return op_binary(x, OP_ADD, jv_int(low), jv_int(up ? unit : 0));
    }
    double unit = pow(10, (double)(digits < 0 ? -digits : digits)), d = jv_to_double(v);
    double scaled = digits < 0 ? d / unit : d * unit;
    scaled = ceil_it ? ceil(scaled) : floor(scaled);
    if (!isfinite(scaled)) return jx_fail(x, "cannot convert float infinity or NaN to integer");
    return jv_float(digits < 0 ? scaled * unit : scaled / unit);
}

FILTER(filesizeformat) {
    UNUSED;
    static const char *const units[] = {"B",  "B",   "kB", "KiB", "MB", "MiB",
                                        "GB", "GiB", "TB", "TiB", "PB", "PiB",
                                        "EB", "EiB", "ZB", "ZiB", "YB", "YiB"};
    double bytes;
    bool binary = a[0].type != J_MISSING && jv_truth(a[0]);
    if (v.type == J_UNDEFINED) return undefined_number(x, v);
    if (!to_float(x, v, &bytes)) return jx_fail(x, "filesizeformat of a %s", jv_type_name(v));
    if (!isfinite(bytes)) return jx_fail(x, "filesizeformat of an infinite number or NaN");
    double base = binary ? 1024 : 1000;
    buf b = {0};
    if (bytes == 1) {
        buf_puts(&b, "1 Byte");
    } else if (bytes < base) {
        buf_printf(&b, "%.0f Bytes", trunc(bytes) + 0.0); /* -0.0 is 0 */
    } else {
        double unit = base;
        size_t i = 1;
        for (; i < 8 && bytes >= unit * base; i++) unit *= base;
        buf_printf(&b, "%.1f %s", bytes / unit, units[2 * i + binary]);
    }
    return jv_from_buf(x, &b);
}

/* ---- markup ---- */

static void put_url(buf *b, const jstr *s, const char *safe) {
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = c < 0x80 && (text_is_word(c) || (c != 0 && strchr(safe, c) != NULL));
        if (plain)
            buf_putc(b, (char)c);
        else
            buf_printf(b, "%%%02X", c);
    }
}

/* Pairs are form data: a space is '+' there. */
static void put_form(jx *x, buf *b, jv v) {
    buf t = {.limit = x->max_output};
    put_url(&t, jv_to_str(x, v), "-._~");
    const jstr *s = jv_from_buf(x, &t).as.s;
    for (size_t i = 0; i < s->len; i++) {
        bool space = i + 2 < s->len && memcmp(s->p + i, "%20", 3) == 0;
        buf_putc(b, space ? '+' : s->p[i]);
        if (space) i += 2;
    }
}

static bool is_iterable(jv v) {
    return v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE || v.type == J_ITER ||
           v.type == J_VIEW || v.type == J_UNDEFINED;
}

FILTER(urlencode) {
    UNUSED;
    buf b = {.limit = x->max_output};
    jv *items, *pair;
    size_t n, two;
    if (v.type == J_STR || (v.type != J_DICT && !is_iterable(v))) {
        put_url(&b, jv_to_str(x, v), "-._~/");
        return jv_from_buf(x, &b);
    }
    if (v.type == J_DICT) {
        for (size_t i = 0; i < v.as.d->n; i++) {
            if (i > 0) buf_putc(&b, '&');
            put_form(x, &b, v.as.d->entries[i].key);
            buf_putc(&b, '=');
            put_form(x, &b, v.as.d->entries[i].value);
        }
        return jv_from_buf(x, &b);
    }
    jv_items(x, v, &items, &n);
    for (size_t i = 0; i < n && jv_items(x, items[i], &pair, &two); i++) {
        if (two != 2) jx_fail(x, "urlencode needs pairs");
        if (jx_failed(x)) break;
        if (i > 0) buf_putc(&b, '&');
        put_form(x, &b, pair[0]);
        buf_putc(&b, '=');
        put_form(x, &b, pair[1]);
    }
    return jv_from_buf(x, &b);
}

static bool skip_entity(buf *b, const jstr *s, size_t *i) {
    static const struct {
        const char *name, *text;
    } known[] = {{"&amp;", "&"}, {"&lt;", "<"},    {"&gt;", ">"},   {"&#34;", "\""},
                 {"&#39;", "'"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\u00A0"}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        size_t n = strlen(known[k].name);
        if (s->len - *i < n || memcmp(s->p + *i, known[k].name, n) != 0) continue;
        buf_puts(b, known[k].text);
        *i += n;
        return true;
    }
    return false;
}

/* Tags and comments out, white space to single spaces, entities to characters. */
FILTER(striptags) {
    UNUSED;
    const jstr *s = jv_to_str(x, v);
    buf plain = {.limit = x->max_output}, b = {.limit = x->max_output};
    for (size_t i = 0; i < s->len;) {
        bool comment = s->len - i >= 4 && memcmp(s->p + i, "<!--", 4) == 0;
        size_t close = SIZE_MAX;
        if (s->p[i] == '<')
            close = comment ? text_find(s->p + i, s->len - i, "-->", 3)
                            : text_find(s->p + i, s->len - i, ">", 1);
        if (close != SIZE_MAX)
            i += close + (comment ? 3 : 1);
        else
            buf_putc(&plain, s->p[i++]);
    }
    jv none = {.type = J_MISSING};
    jargs args = {.pos = &none};
    jv words = call_method(x, "split", jv_from_buf(x, &plain), &args);
    for (size_t i = 0; words.type == J_LIST && i < words.as.l->n; i++) {
        const jstr *w = words.as.l->items[i].as.s;
        if (i > 0) buf_putc(&b, ' ');
        for (size_t k = 0; k < w->len;)
            if (w->p[k] != '&' || !skip_entity(&b, w, &k)) buf_putc(&b, w->p[k++]);
    }
    return jv_from_buf(x, &b);
}

FILTER(xmlattr) {
    UNUSED;
    buf b = {.limit = x->max_output};
    bool autospace = a[0].type == J_MISSING || jv_truth(a[0]);
    if (v.type != J_DICT) return jx_fail(x, "xmlattr needs a mapping");
    for (size_t i = 0; i < v.as.d->n && !jx_failed(x); i++) {
        const jentry *e = &v.as.d->entries[i];
        if (e->value.type == J_NONE || e->value.type == J_UNDEFINED) continue;
        const jstr *key = want_str(x, e->key);
        for (size_t k = 0; k < key->len; k++)
            if (strchr(" \t\n\r\f/>=", key->p[k]) != NULL)
                jx_fail(x, "Invalid character in attribute name");
        const jstr *name = text_escape(x, key).as.s;
        const jstr *value = text_escape(x, jv_to_str(x, e->value)).as.s;
        if (b.len > 0 || autospace) buf_putc(&b, ' ');
        buf_append(&b, name->p, name->len);
        buf_puts(&b, "=\"");
        buf_append(&b, value->p, value->len);
        buf_putc(&b, '"');
    }
    return marked(jv_from_buf(x, &b));
}

FILTER(tojson) {
    UNUSED;
    return jv_tojson(x, v, a);
}

FILTER(pprint) {
    UNUSED;
    buf b = {.limit = x->max_output};
    jv_write_repr(x, &b, v, 0);
    if (b.len > 80) {
        buf_free(&b);
        return jx_fail(x, "pprint of values over 80 characters is not supported");
    }
    return jv_from_buf(x, &b);
}

/* random: an answer that no seed fixes cannot be repeated. The others lay out HTML and mail. */
#define UNSUPPORTED(name)                                                                          \
    FILTER(name) {                                                                                 \
        UNUSED;                                                                                    \
        return jx_fail(x, "the filter '" #name "' is not supported");                              \
    }
UNSUPPORTED(random)
UNSUPPORTED(urlize)
UNSUPPORTED(wordwrap)

const jdef jinja_text_filters[] = {
    {"upper", "", f_upper},
    {"lower", "", f_lower},
    {"capitalize", "", f_capitalize},
    {"title", "", f_title},
    {"trim", "chars?", f_trim},
    {"string", "", f_string},
    {"safe", "", f_safe},
    {"escape", "", f_escape},
    {"e", "", f_escape},
    {"forceescape", "", f_forceescape},
    {"replace", "old new count?", f_replace},
    {"format", "*", f_format},
    {"center", "width?", f_center},
    {"indent", "width? first? blank?", f_indent},
    {"truncate", "length? killwords? end? leeway?", f_truncate},
    {"wordcount", "", f_wordcount},
    {"int", "default? base?", f_int},
    {"float", "default?", f_float},
    {"abs", "", f_abs},
    {"round", "precision? method?", f_round},
    {"filesizeformat", "binary?", f_filesizeformat},
    {"urlencode", "", f_urlencode},
    {"striptags", "", f_striptags},
    {"xmlattr", "autospace?", f_xmlattr},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", f_tojson},
    {"pprint", "", f_pprint},
    {"random", "", f_random},
    {"urlize", "*", f_urlize},
    {"wordwrap", "*", f_wordwrap},
    {NULL, NULL, NULL},
};

const jdef *jinja_filter_find(const char *name) {
    const jdef *const tables[] = {jinja_text_filters, jinja_sequence_filters};
    for (size_t t = 0; t < 2; t++)
        for (const jdef *d = tables[t]; d->name != NULL; d++)
            if (strcmp(d->name, name) == 0) return d;
    return NULL;
}
