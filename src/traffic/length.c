/* traffic/length: see length.h. */
#include "traffic/length.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846

static const struct {
    const char *prefix;
    length_kind kind;
    int least, most; /* how many numbers it takes */
} kinds[] = {
    {"", LENGTH_FIXED, 1, 1},
    {"uniform:", LENGTH_UNIFORM, 2, 2},
    {"exp:", LENGTH_EXPONENTIAL, 1, 2},
    {"normal:", LENGTH_NORMAL, 2, 2},
};

/* Up to two numbers with a colon between them and nothing after; how many, or -1. */
static int parse_numbers(const char *text, double out[2]) {
    for (int n = 0; n < 2; n++) {
        char *end;
        if (*text < '0' || *text > '9') return -1;
        out[n] = strtod(text, &end);
        if (*end == '\0') return n + 1;
        if (*end != ':') return -1;
        text = end + 1;
    }
    return -1;
}

static bool is_possible(const length_spec *s, int n) {
    bool whole = s->kind != LENGTH_FIXED && s->kind != LENGTH_UNIFORM;
    if (!(s->a >= 1 && s->a <= LENGTH_MAX && s->b >= 0 && s->b <= LENGTH_MAX)) return false;
    if (!whole && (s->a != floor(s->a) || s->b != floor(s->b))) return false;
    if (s->kind == LENGTH_UNIFORM && s->b < s->a) return false;
    return s->kind != LENGTH_EXPONENTIAL || n == 1 || s->b >= 1;
}

ridge_status length_parse(length_spec *out, const char *text, ridge_error *err) {
    for (size_t i = sizeof kinds / sizeof *kinds; i-- > 0;) {
        size_t skip = strlen(kinds[i].prefix);
        if (strncmp(text, kinds[i].prefix, skip) != 0) continue;
        double numbers[2] = {0, 0};
        int n = parse_numbers(text + skip, numbers);
        length_spec s = {kinds[i].kind, numbers[0], numbers[1]};
        if (n < kinds[i].least || n > kinds[i].most || !is_possible(&s, n)) break;
        *out = s;
        return RIDGE_OK;
    }
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "expected a length in tokens, 1 to %u: N, uniform:A:B, exp:MEAN[:MAX] or "
                      "normal:MEAN:SD, found '%s'",
                      LENGTH_MAX, text);
}

/* By the inverse of its distribution function; truncated at b, of what that leaves of it. */
static double exponential(const length_spec *s, double u) {
    double share = s->b > 0 ? -expm1(-s->b / s->a) : 1;
    return -s->a * log1p(-u * share);
}

/* Box and Muller's way; 1 - u is never 0. */
static double normal(const length_spec *s, double u, double v) {
    return s->a + s->b * sqrt(-2 * log1p(-u)) * cos(2 * PI * v);
}

uint32_t length_draw(const length_spec *s, double u, double v) {
    double x = s->a;
    switch (s->kind) {
    case LENGTH_FIXED: break;
    case LENGTH_UNIFORM: x = s->a + floor(u * (s->b - s->a + 1)); break;
    case LENGTH_EXPONENTIAL: x = ceil(exponential(s, u)); break;
    case LENGTH_NORMAL: x = floor(normal(s, u, v) + 0.5); break;
    }
    return x < 1 ? 1 : x > LENGTH_MAX ? LENGTH_MAX : (uint32_t)x;
}
