/* base/buf: see buf.h. */
#include "base/buf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static bool buf_reserve(buf *b, size_t extra) {
    size_t need;
    if (b->failed) return false;
    if (!mem_add(b->len, extra, &need) || (b->limit != 0 && need > b->limit) ||
        !mem_add(need, 1, &need) || !mem_grow((void **)&b->data, &b->capacity, need, 1))
        b->failed = true;
    return !b->failed;
}

void buf_append(buf *b, const void *data, size_t n) {
    if (!buf_reserve(b, n)) return;
    if (n > 0) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_puts(buf *b, const char *s) {
    buf_append(b, s, strlen(s));
}

void buf_putc(buf *b, char c) {
    buf_append(b, &c, 1);
}

void buf_printf(buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !buf_reserve(b, (size_t)n)) return;
    va_start(args, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
}

void buf_clear(buf *b) {
    b->len = 0;
    b->failed = false;
    if (b->data != NULL) b->data[0] = '\0';
}

void buf_free(buf *b) {
    mem_free(b->data);
    *b = (buf){.limit = b->limit};
}

char *buf_take(buf *b) {
    if (b->data == NULL) buf_append(b, "", 0);
    char *data = b->failed ? NULL : b->data;
    if (b->failed) mem_free(b->data);
    *b = (buf){.limit = b->limit};
    return data;
}

static void json_escape(buf *b, unsigned char c) {
    switch (c) {
    case '"': buf_puts(b, "\\\""); break;
    case '\\': buf_puts(b, "\\\\"); break;
    case '\n': buf_puts(b, "\\n"); break;
    case '\r': buf_puts(b, "\\r"); break;
    case '\t': buf_puts(b, "\\t"); break;
    case '\b': buf_puts(b, "\\b"); break;
    case '\f': buf_puts(b, "\\f"); break;
    default: buf_printf(b, "\\u%04x", c);
    }
}

void buf_json_string(buf *b, const char *s, size_t n) {
    size_t plain = 0; /* start of the run that needs no escape */
    buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t width = 1;
        bool valid = true;
        if (c >= 0x80) valid = utf8_decode(s + i, n - i, &width) != UTF8_INVALID;
        if (valid && (c >= 0x80 || (c >= 0x20 && c != '"' && c != '\\'))) {
            i += width;
            continue;
        }
        buf_append(b, s + plain, i - plain);
        if (valid)
            json_escape(b, c);
        else
            buf_puts(b, "\xEF\xBF\xBD");
        i += width;
        plain = i;
    }
    buf_append(b, s + plain, n - plain);
    buf_putc(b, '"');
}

/* Shortest decimal digits that read back as x, then Python's choice of notation: fixed for
 * exponents in [-4, 16), else d.ddde+XX. */
void buf_double(buf *b, double x) {
    if (isnan(x)) {
        buf_puts(b, "nan");
        return;
    }
    if (isinf(x)) {
        buf_puts(b, x < 0 ? "-inf" : "inf");
        return;
    }
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x) break;
    }
    char digits[24];
    int n_digits = 0;
    const char *p = text;
    if (*p == '-') buf_putc(b, *p++);
    for (; *p != '\0' && *p != 'e'; p++)
        if (*p != '.') digits[n_digits++] = *p;
    int exponent = *p == 'e' ? atoi(p + 1) : 0;
    while (n_digits > 1 && digits[n_digits - 1] == '0') n_digits--;
    digits[n_digits] = '\0';
    if (exponent < -4 || exponent >= 16) {
        buf_putc(b, digits[0]);
        if (n_digits > 1) buf_printf(b, ".%s", digits + 1);
        buf_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        buf_printf(b, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else {
        for (int i = 0; i <= exponent || i < n_digits; i++) {
            if (i == exponent + 1) buf_putc(b, '.');
            buf_putc(b, i < n_digits ? digits[i] : '0');
        }
        if (n_digits <= exponent + 1) buf_puts(b, ".0");
    }
}

void buf_json_double(buf *b, double x) {
    if (isfinite(x))
        buf_double(b, x);
    else
        buf_puts(b, "null");
}

void buf_json_field(buf *b, const char *name, double x) {
    bool first = b->len > 0 && b->data[b->len - 1] == '{';
    buf_printf(b, "%s\"%s\":", first ? "" : ",", name);
    buf_json_double(b, x);
}
