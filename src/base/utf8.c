/* base/utf8: see utf8.h. */
#include "base/utf8.h"

#include <string.h>

/* Length of the sequence that a lead byte starts, 0 if it starts none; the bounds of the second
 * byte exclude overlong forms, surrogates and values over U+10FFFF (Unicode table 3-7). */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xBF;
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return 2;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0) *low = 0xA0;
        if (c == 0xED) *high = 0x9F;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0) *low = 0x90;
        if (c == 0xF4) *high = 0x8F;
        return 4;
    }
    return 0;
}

/* Reads one sequence: *have = bytes that fit it, *want = its full length (0: a bad lead byte). */
static uint32_t scan(const char *s, size_t n, size_t *have, size_t *want) {
    unsigned char low, high, c = (unsigned char)s[0];
    *want = lead(c, &low, &high);
    *have = 1;
    if (*want <= 1) return c;
    uint32_t code = c & (0xFFu >> (*want + 1));
    while (*have < *want && *have < n) {
        c = (unsigned char)s[*have];
        if (c < low || c > high) break;
        code = code << 6 | (c & 0x3F);
        low = 0x80;
        high = 0xBF;
        ++*have;
    }
    return code;
}

uint32_t utf8_decode(const char *s, size_t n, size_t *width) {
    size_t want;
    uint32_t code = scan(s, n, width, &want);
    return *width == want ? code : UTF8_INVALID;
}

size_t utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | c);
    return n;
}

bool utf8_valid(const char *s, size_t n) {
    size_t width;
    for (size_t i = 0; i < n; i += width)
        if (utf8_decode(s + i, n - i, &width) == UTF8_INVALID) return false;
    return true;
}

void utf8_make_printable(char *s) {
    size_t n = strlen(s), width;
    for (size_t i = 0; i < n; i += width) {
        uint32_t c = utf8_decode(s + i, n - i, &width);
        if (c == UTF8_INVALID) memset(s + i, '?', width);
        if (c < 0x20 || (c >= 0x7F && c < 0xA0)) memset(s + i, ' ', width);
    }
}

size_t utf8_incomplete_tail(const char *s, size_t n) {
    size_t have, want;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80) continue;
        scan(s + n - back, back, &have, &want);
        return have == back && want > back ? back : 0;
    }
    return 0;
}

size_t utf8_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}
