/* text/jinja_format: Python's two ways to format: "%s" % x and "{}".format(x). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

#define MAX_WIDTH 10000

typedef struct {
    char fill[4];
    size_t fill_len;
    char align, sign, type; /* 0: not given */
    bool alternate, zero, comma, underscore;
    int width, precision; /* -1: not given */
} format_spec;

/* Pads text to the width of the spec; `numeric`: default to the right, '=' after the sign. */
static void put_padded(buf *b, const format_spec *f, const char *text, size_t n, size_t chars,
                       bool numeric) {
    size_t pad = f->width > 0 && (size_t)f->width > chars ? (size_t)f->width - chars : 0;
    char align = f->align != 0 ? f->align : numeric ? (f->zero ? '=' : '>') : '<';
    const char *fill = f->fill_len > 0 ? f->fill : f->zero ? "0" : " ";
    size_t fill_len = f->fill_len > 0 ? f->fill_len : 1, left = 0, sign = 0;
    if (align == '>' || align == '=') left = pad;
    if (align == '^') left = pad / 2;
    if (align == '=' && n > 0 && (text[0] == '-' || text[0] == '+' || text[0] == ' ')) sign = 1;
    if (align == '=' && n > sign + 1 && text[sign] == '0' && strchr("xXob", text[sign + 1]) != NULL)
        sign += 2;
    buf_append(b, text, sign);
    for (size_t i = 0; i < left; i++) buf_append(b, fill, fill_len);
    buf_append(b, text + sign, n - sign);
    for (size_t i = left; i < pad; i++) buf_append(b, fill, fill_len);
}

static void group_digits(buf *b, const char *digits, size_t n, char separator, size_t group) {
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    if (memchr(digits, '.', n) != NULL) whole = strcspn(digits, ".");
    if (strchr(digits, 'e') != NULL && group == 3) whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i > 0 && (whole - i) % group == 0) buf_putc(b, separator);
        buf_putc(b, digits[i]);
    }
    buf_append(b, digits + whole, n - whole);
}

static void put_number(buf *b, const format_spec *f, bool negative, const char *prefix,
                       const char *digits) {
    buf t = {0};
    if (negative)
        buf_putc(&t, '-');
    else if (f->sign == '+' || f->sign == ' ')
        buf_putc(&t, f->sign);
    buf_puts(&t, prefix);
    bool hex = f->type != 0 && strchr("xXob", f->type) != NULL;
    if (f->comma || f->underscore)
        group_digits(&t, digits, strlen(digits), f->comma ? ',' : '_', hex ? 4 : 3);
    else
        buf_puts(&t, digits);
    if (t.failed) b->failed = true;
    put_padded(b, f, t.data != NULL ? t.data : "", t.len, t.len, true);
    buf_free(&t);
}

static void format_int(buf *b, const format_spec *f, int64_t i) {
    uint64_t v = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[72];
    size_t at = sizeof digits - 1;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16
                    : f->type == 'o'                 ? 8
                    : f->type == 'b'                 ? 2
                                                     : 10;
    const char *set = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    digits[at] = '\0';
    do {
        digits[--at] = set[v % base];
        v /= base;
    } while (v > 0);
    char prefix[3] = {'0', f->type, '\0'};
    put_number(b, f, i < 0, f->alternate && base != 10 ? prefix : "", digits + at);
}

static void format_double(buf *b, const format_spec *f, double d, bool percent_style) {
    char type = f->type, format[16];
    int precision = f->precision;
    buf t = {0};
    bool negative = signbit(d) && !isnan(d);
    double a = fabs(d);
    bool percent = type == '%';
    if (percent) {
        a *= 100;
        type = 'f';
    }
    if (precision > MAX_WIDTH) precision = MAX_WIDTH;
    if (!isfinite(a)) {
        buf_puts(&t, isnan(a) ? "nan" : "inf");
    } else if (type == 0 && precision < 0 && !percent_style) {
        buf_double(&t, a);
    } else {
        if (type == 0) type = 'g';
        if (type == 'n') type = 'g';
        snprintf(format, sizeof format, "%%%s.*%c", f->alternate ? "#" : "", type);
        int n = snprintf(NULL, 0, format, precision < 0 ? 6 : precision, a);
        char *text = n >= 0 ? mem_alloc((size_t)n + 1) : NULL;
        if (text == NULL) {
            b->failed = true;
        } else {
            snprintf(text, (size_t)n + 1, format, precision < 0 ? 6 : precision, a);
            buf_puts(&t, text);
            mem_free(text);
        }
        bool plain = f->type == 0 && strpbrk(t.data != NULL ? t.data : ".", ".e") == NULL;
        if (plain) buf_puts(&t, ".0");
    }
    if (percent) buf_putc(&t, '%');
    if (t.failed) b->failed = true;
    put_number(b, f, negative, "", t.data != NULL ? t.data : "");
    buf_free(&t);
}

static void format_text(buf *b, const format_spec *f, const jstr *s) {
    size_t chars = s->chars, n = s->len;
    if (f->precision >= 0 && (size_t)f->precision < chars) {
        chars = (size_t)f->precision;
        n = text_offset(s, chars);
    }
    put_padded(b, f, s->p, n, chars, false);
}

/* ---- % ---- */

static int read_number(const char *p, size_t n, size_t *i) {
    int v = 0;
    while (*i < n && p[*i] >= '0' && p[*i] <= '9') {
        v = v * 10 + (p[(*i)++] - '0');
        if (v > MAX_WIDTH) v = MAX_WIDTH;
    }
    return v;
}

typedef struct {
    jx *x;
    jv values;
    size_t next; /* of the positional ones */
} percent_args;

static jv next_value(percent_args *a) {
    if (a->values.type == J_TUPLE) {
        if (a->next < a->values.as.l->n) return a->values.as.l->items[a->next++];
    } else if (a->next++ == 0) {
        return a->values;
    }
    return jx_fail(a->x, "not enough arguments for format string");
}

static void percent_number(jx *x, buf *b, format_spec *f, jv v) {
    if (!jv_is_number(v)) {
        jx_fail(x, "%%%c format: a real number is required, not %s", f->type, jv_type_name(v));
        return;
    }
    if (strchr("diuxXo", f->type) == NULL) {
        if (f->precision < 0) f->precision = 6;
        format_double(b, f, jv_to_double(v), true);
        return;
    }
    int64_t i = v.as.i;
    if (v.type == J_FLOAT) {
        if (strchr("diu", f->type) == NULL || !(fabs(v.as.f) < 9.2e18)) {
            jx_fail(x, "%%%c format: an integer is required, not float", f->type);
            return;
        }
        i = (int64_t)v.as.f;
    }
    if (f->type == 'i' || f->type == 'u') f->type = 'd';
    format_int(b, f, i);
}

static void percent_convert(jx *x, buf *b, format_spec *f, jv v) {
    if (jx_failed(x)) return;
    if (f->type == 's' || f->type == 'r' || f->type == 'a') {
        buf t = {.limit = x->max_output};
        if (f->type != 's') jv_write_repr(x, &t, v, 0);
        const jstr *s = f->type == 's' ? jv_to_str(x, v) : jv_from_buf(x, &t).as.s;
        f->zero = false;
        if (f->align == 0) f->align = '>';
        format_text(b, f, s);
    } else if (f->type == 'c') {
        const jstr *s = jv_to_str(x, v);
        if (v.type != J_STR || s->chars != 1)
            jx_fail(x, "%%c requires a single character");
        else
            format_text(b, f, s);
    } else {
        percent_number(x, b, f, v);
    }
}

/* One conversion after its '%'; returns where it ends. */
static size_t percent_one(percent_args *a, buf *b, const jstr *s, size_t i) {
    format_spec f = {.width = -1, .precision = -1};
    jv v = {.type = J_MISSING};
    if (i < s->len && s->p[i] == '(') {
        size_t close = i;
        while (close < s->len && s->p[close] != ')') close++;
        if (close >= s->len || a->values.type != J_DICT) {
            jx_fail(a->x, "format requires a mapping");
            return s->len;
        }
        jv key = jv_str(a->x, s->p + i + 1, close - i - 1);
        const jv *found = jdict_get(a->values.as.d, key);
        if (found == NULL) jx_fail(a->x, "KeyError: '%.*s'", (int)key.as.s->len, key.as.s->p);
        v = found != NULL ? *found : jv_none();
        i = close + 1;
    }
    for (; i < s->len && s->p[i] != '\0' && strchr("-+ #0", s->p[i]) != NULL; i++) {
        if (s->p[i] == '-') f.align = '<';
        if (s->p[i] == '+' || (s->p[i] == ' ' && f.sign == 0)) f.sign = s->p[i];
        if (s->p[i] == '#') f.alternate = true;
        if (s->p[i] == '0') f.zero = true;
    }
    if (f.align == '<') f.zero = false;
    if (i < s->len && s->p[i] == '*') {
        int64_t w = 0;
        op_index(a->x, next_value(a), &w);
        f.width = w > MAX_WIDTH ? MAX_WIDTH : w < 0 ? 0 : (int)w;
        i++;
    } else {
        f.width = read_number(s->p, s->len, &i);
    }
    if (i < s->len && s->p[i] == '.') {
        i++;
        f.precision = read_number(s->p, s->len, &i);
    }
    f.type = i < s->len ? s->p[i] : '\0';
    if (f.type == '%') {
        buf_putc(b, '%');
        return i + 1;
    }
    if (f.type == '\0' || strchr("diuoxXeEfFgGcrsa", f.type) == NULL) {
        jx_fail(a->x, "unsupported or incomplete format character");
        return s->len;
    }
    percent_convert(a->x, b, &f, v.type == J_MISSING ? next_value(a) : v);
    return i + 1;
}

jv text_format_percent(jx *x, const jstr *format, jv values) {
    buf b = {.limit = x->max_output};
    percent_args a = {x, values, 0};
    for (size_t i = 0; i < format->len && !jx_failed(x);) {
        if (format->p[i] != '%') {
            buf_putc(&b, format->p[i++]);
            continue;
        }
        i = percent_one(&a, &b, format, i + 1);
    }
    bool all = values.type == J_TUPLE ? a.next >= values.as.l->n
                                      : a.next > 0 || values.type == J_DICT ||
                                            values.type == J_LIST || values.type == J_UNDEFINED;
    if (!all) jx_fail(x, "not all arguments converted during string formatting");
    return jv_from_buf(x, &b);
}

/* ---- str.format ---- */

static bool is_align(char c) {
    return c != '\0' && strchr("<>=^", c) != NULL;
}

static bool parse_spec(jx *x, const jstr *s, format_spec *f) {
    size_t i = 0, width = 0;
    *f = (format_spec){.width = -1, .precision = -1};
    if (s->len > 0) text_at(s, 0, &width);
    if (s->len > width && width > 0 && is_align(s->p[width])) {
        memcpy(f->fill, s->p, width);
        f->fill_len = width;
        f->align = s->p[width];
        i = width + 1;
    } else if (s->len > 0 && is_align(s->p[0])) {
        f->align = s->p[i++];
    }
    if (i < s->len && (s->p[i] == '+' || s->p[i] == '-' || s->p[i] == ' ')) f->sign = s->p[i++];
    if (i < s->len && s->p[i] == '#') f->alternate = true, i++;
    if (i < s->len && s->p[i] == '0') f->zero = true, i++;
    f->width = read_number(s->p, s->len, &i);
    if (i < s->len && s->p[i] == ',') f->comma = true, i++;
    if (i < s->len && s->p[i] == '_') f->underscore = true, i++;
    if (i < s->len && s->p[i] == '.') {
        i++;
        f->precision = read_number(s->p, s->len, &i);
    }
    if (i < s->len) f->type = s->p[i++];
    if (i == s->len) return true;
    jx_fail(x, "Invalid format specifier");
    return false;
}

static void format_value(jx *x, buf *b, jv v, const jstr *spec) {
    format_spec f;
    if (spec->len == 0) {
        jv_write(x, b, v);
        return;
    }
    if (!parse_spec(x, spec, &f)) return;
    bool integer = v.type == J_INT || (v.type == J_BOOL && f.type != 0 && f.type != 's');
    if (v.type == J_STR && (f.type == 0 || f.type == 's')) {
        format_text(b, &f, v.as.s);
    } else if (integer && (f.type == 0 || strchr("dxXobn", f.type) != NULL)) {
        if (f.type == 'n') f.type = 'd';
        format_int(b, &f, v.as.i);
    } else if (jv_is_number(v) && (v.type == J_FLOAT || integer) &&
               (f.type == 0 || strchr("eEfFgGn%", f.type) != NULL)) {
        format_double(b, &f, jv_to_double(v), false);
    } else if (v.type == J_BOOL) {
        format_int(b, &f, v.as.i);
    } else {
        jx_fail(x, "Unknown or unsupported format code for object of type '%s'", jv_type_name(v));
    }
}

static jv field_value(jx *x, const jstr *name, const jargs *args, int64_t *automatic) {
    size_t head = 0;
    while (head < name->len && name->p[head] != '.' && name->p[head] != '[') head++;
    size_t digits = 0;
    jv v = jv_none();
    int64_t at = -1;
    if (head == 0) {
        at = (*automatic)++;
    } else if (name->p[0] >= '0' && name->p[0] <= '9') {
        at = read_number(name->p, head, &digits);
    }
    if (at >= 0) {
        if ((size_t)at >= args->n_pos)
            return jx_fail(x, "Replacement index %d out of range for positional args tuple",
                           (int)at);
        v = args->pos[at];
    } else {
        jv key = jv_slice(x, name, 0, head);
        bool found = false;
        for (size_t i = 0; i < args->n_kw && !found; i++) {
            found = jv_equal(NULL, key, jv_from_jstr(args->names[i]));
            if (found) v = args->values[i];
        }
        if (!found) return jx_fail(x, "KeyError: '%.*s'", (int)head, name->p);
    }
    while (head < name->len && !jx_failed(x)) {
        bool bracket = name->p[head++] == '[';
        size_t end = head;
        while (end < name->len &&
               (bracket ? name->p[end] != ']' : name->p[end] != '.' && name->p[end] != '['))
            end++;
        jv key = jv_slice(x, name, head, end);
        size_t used = 0;
        if (bracket && end > head && name->p[head] >= '0' && name->p[head] <= '9')
            key = jv_int(read_number(name->p + head, end - head, &used));
        v = bracket ? op_getitem(x, v, key) : op_getattr(x, v, key.as.s);
        head = end + bracket;
    }
    return v;
}

/* "{name!conversion:spec}" between its braces. */
static void format_field(jx *x, buf *b, const jstr *field, const jargs *args, int64_t *automatic) {
    size_t colon = 0, bang;
    while (colon < field->len && field->p[colon] != ':' && field->p[colon] != '!') colon++;
    bang = colon;
    char conversion = 0;
    if (bang < field->len && field->p[bang] == '!') {
        conversion = bang + 1 < field->len ? field->p[bang + 1] : '\0';
        colon = bang + 2;
    }
    jv v = field_value(x, jv_slice(x, field, 0, bang).as.s, args, automatic);
    if (jx_failed(x)) return;
    if (conversion == 'r' || conversion == 'a') {
        buf t = {.limit = x->max_output};
        jv_write_repr(x, &t, v, 0);
        v = jv_from_buf(x, &t);
    } else if (conversion == 's') {
        v = jv_from_jstr(jv_to_str(x, v));
    }
    const jstr *spec = &jstr_empty;
    if (colon + 1 < field->len) spec = jv_slice(x, field, colon + 1, field->len).as.s;
    if (spec->len > 0 && memchr(spec->p, '{', spec->len) != NULL) {
        jx_fail(x, "nested fields in a format specification are not supported");
        return;
    }
    format_value(x, b, v, spec);
}

jv text_format_braces(jx *x, const jstr *s, const jargs *args) {
    buf b = {.limit = x->max_output};
    int64_t automatic = 0;
    for (size_t i = 0; i < s->len && !jx_failed(x);) {
        char c = s->p[i];
        if (c != '{' && c != '}') {
            buf_putc(&b, c);
            i++;
        } else if (i + 1 < s->len && s->p[i + 1] == c) {
            buf_putc(&b, c);
            i += 2;
        } else {
            size_t end = i + 1;
            while (end < s->len && s->p[end] != '}') end++;
            if (c == '}' || end >= s->len)
                jx_fail(x, "Single '%c' encountered in format string", c);
            else
                format_field(x, &b, jv_slice(x, s, i + 1, end).as.s, args, &automatic);
            i = end + 1;
        }
    }
    return jv_from_buf(x, &b);
}
