/* text/jinja_number: numbers of all kinds compared exactly, none rounded to the kind of another. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

double jv_big_to_double(jv v) {
    char text[520] = ""; /* a literal has 511 digits at most */
    memcpy(text, v.as.s->p, v.as.s->len < sizeof text ? v.as.s->len : sizeof text - 1);
    return strtod(text, NULL);
}

static int int_compare(int64_t i, double d) {
    if (isnan(d)) return 2;
    if (d >= 0x1p63) return -1;
    if (d < -0x1p63) return 1;
    int64_t whole = (int64_t)d;
    double rest = d - (double)whole;
    return i != whole ? (i > whole) - (i < whole) : (rest < 0) - (rest > 0);
}

typedef struct {
    const char *p;
    size_t len;
    char room[320]; /* of the largest double */
} decimal;

static void write_decimal(decimal *d, jv v) {
    d->p = d->room;
    if (v.type == J_BIG)
        d->p = v.as.s->p;
    else if (v.type == J_FLOAT)
        snprintf(d->room, sizeof d->room, "%.0f", trunc(v.as.f));
    else
        snprintf(d->room, sizeof d->room, "%" PRId64, v.as.i);
    d->len = v.type == J_BIG ? v.as.s->len : strlen(d->room);
}

/* One of them is over 64 bits, so a fraction of the other does not matter. */
static int big_compare(jv a, jv b) {
    decimal p, q;
    if (a.type == J_FLOAT && !isfinite(a.as.f)) return isnan(a.as.f) ? 2 : a.as.f > 0 ? 1 : -1;
    if (b.type == J_FLOAT && !isfinite(b.as.f)) return isnan(b.as.f) ? 2 : b.as.f > 0 ? -1 : 1;
    write_decimal(&p, a);
    write_decimal(&q, b);
    bool minus = p.p[0] == '-';
    if (minus != (q.p[0] == '-')) return minus ? -1 : 1;
    int c = p.len != q.len ? (p.len > q.len) - (p.len < q.len) : memcmp(p.p, q.p, p.len);
    c = (c > 0) - (c < 0);
    return minus ? -c : c;
}

bool jv_is_real(jv v) {
    return jv_is_number(v) || v.type == J_BIG;
}

int jv_number_compare(jv a, jv b) {
    if (a.type == J_BIG || b.type == J_BIG) return big_compare(a, b);
    if (a.type == J_FLOAT && b.type == J_FLOAT) {
        double p = a.as.f, q = b.as.f;
        return isnan(p) || isnan(q) ? 2 : (p > q) - (p < q);
    }
    if (b.type == J_FLOAT) return int_compare(a.as.i, b.as.f);
    if (a.type != J_FLOAT) return (a.as.i > b.as.i) - (a.as.i < b.as.i);
    int c = int_compare(b.as.i, a.as.f);
    return c == 2 ? c : -c;
}
