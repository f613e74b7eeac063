/* text/jinja_text: Python's str on UTF-8: case, white space, search, lines, escapes. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

bool text_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* \w: letters, numbers and underscore; marks too, as identifiers may hold them. */
bool text_is_word(uint32_t c) {
    if (c < 0x80)
        return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
    if (c == UTF8_INVALID) return false;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static bool is_digit(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

/* Decimal digits stand in tens, from the zero up, some tens side by side. */
int text_digit(uint32_t c) {
    if (c == UTF8_INVALID || !is_digit(c)) return -1;
    uint32_t zero = c;
    while (zero > 0 && is_digit(zero - 1)) zero--;
    return (int)((c - zero) % 10);
}

uint32_t text_at(const jstr *s, size_t byte, size_t *width) {
    uint32_t c = utf8_decode(s->p + byte, s->len - byte, width);
    return c == UTF8_INVALID ? 0xFFFD : c;
}

size_t text_offset(const jstr *s, size_t index) {
    if (index >= s->chars) return s->len;
    if (s->chars == s->len) return index;
    size_t i = 0;
    for (; i < s->len; i++)
        if (((unsigned char)s->p[i] & 0xC0) != 0x80 && index-- == 0) break;
    return i;
}

size_t text_find(const char *hay, size_t n, const char *needle, size_t m) {
    if (m == 0) return 0;
    const char *found = n >= m ? memmem(hay, n, needle, m) : NULL;
    return found != NULL ? (size_t)(found - hay) : SIZE_MAX;
}

size_t text_rfind(const char *hay, size_t n, const char *needle, size_t m) {
    for (size_t i = n >= m ? n - m + 1 : 0; i-- > 0;)
        if (m == 0 || memcmp(hay + i, needle, m) == 0) return i;
    return SIZE_MAX;
}

/* ---- case ---- */

static void put(buf *b, uint32_t c) {
    char out[4];
    buf_append(b, out, utf8_encode(c, out));
}

static bool is_cased(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           utf8proc_isupper((utf8proc_int32_t)c) || utf8proc_islower((utf8proc_int32_t)c);
}

/* Characters whose upper or title form is several (Unicode SpecialCasing, the common ones). */
static bool put_special(buf *b, uint32_t c, bool title) {
    static const struct {
        uint32_t c;
        const char *upper, *title;
    } special[] = {{0xDF, "SS", "Ss"},
                   {0x149, "\u02BCN", "\u02BCN"},
                   {0x1F0, "J\u030C", "J\u030C"},
                   {0x587, "\u0535\u0552", "\u0535\u0582"},
                   {0xFB00, "FF", "Ff"},
                   {0xFB01, "FI", "Fi"},
                   {0xFB02, "FL", "Fl"},
                   {0xFB03, "FFI", "Ffi"},
                   {0xFB04, "FFL", "Ffl"},
                   {0xFB05, "ST", "St"},
                   {0xFB06, "ST", "St"}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (special[i].c == c) {
            buf_puts(b, title ? special[i].title : special[i].upper);
            return true;
        }
    return false;
}

static void put_upper(buf *b, uint32_t c, bool title) {
    if (put_special(b, c, title)) return;
    put(b, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c)
                            : utf8proc_toupper((utf8proc_int32_t)c)));
}

/* A capital sigma at the end of a word becomes the final one. */
static bool final_sigma(const jstr *s, size_t at, size_t width, bool after_cased) {
    size_t w;
    if (!after_cased) return false;
    if (at + width >= s->len) return true;
    return !is_cased(text_at(s, at + width, &w));
}

static void put_lower(buf *b, const jstr *s, size_t at, uint32_t c, size_t width,
                      bool after_cased) {
    if (c == 0x130) {
        buf_puts(b, "i\u0307");
        return;
    }
    if (c == 0x3A3) {
        put(b, final_sigma(s, at, width, after_cased) ? 0x3C2 : 0x3C3);
        return;
    }
    put(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static void put_folded(buf *b, uint32_t c) {
    utf8proc_int32_t out[8];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, out, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) put(b, (uint32_t)out[i]);
}

jv text_to_case(jx *x, const jstr *s, text_case mode) {
    buf b = {.limit = x->max_output};
    bool after_cased = false;
    if (!jx_step(x, s->len)) return jv_undefined();
    for (size_t i = 0, width; i < s->len; i += width) {
        uint32_t c = text_at(s, i, &width);
        bool upper = mode == CASE_UPPER || (mode == CASE_TITLE && !after_cased) ||
                     (mode == CASE_CAPITAL && i == 0) ||
                     (mode == CASE_SWAP && utf8proc_islower((utf8proc_int32_t)c));
        bool lower = mode != CASE_SWAP || utf8proc_isupper((utf8proc_int32_t)c);
        if (mode == CASE_FOLD)
            put_folded(&b, c);
        else if (upper)
            put_upper(&b, c, mode == CASE_TITLE || mode == CASE_CAPITAL);
        else if (lower)
            put_lower(&b, s, i, c, width, after_cased);
        else
            put(&b, c);
        after_cased = is_cased(c);
    }
    jv v = jv_from_buf(x, &b);
    if (s->markup && v.as.s->len > 0) ((jstr *)v.as.s)->markup = true;
    return v;
}

/* ---- white space and lines ---- */

static bool strips(const jstr *chars, const jstr *s, size_t at, size_t width) {
    if (chars == NULL) {
        size_t w;
        return text_is_space(text_at(s, at, &w));
    }
    for (size_t i = 0, w; i < chars->len; i += w) {
        text_at(chars, i, &w);
        if (w == width && memcmp(chars->p + i, s->p + at, w) == 0) return true;
    }
    return false;
}

jv text_strip(jx *x, const jstr *s, const jv *chars, int sides) {
    const jstr *set = NULL;
    if (chars->type == J_STR)
        set = chars->as.s;
    else if (chars->type != J_MISSING && chars->type != J_NONE)
        return jx_fail(x, "strip arg must be None or str");
    size_t begin = 0, end = s->len, width;
    while ((sides & 1) && begin < end) {
        text_at(s, begin, &width);
        if (!strips(set, s, begin, width)) break;
        begin += width;
    }
    while ((sides & 2) && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)s->p[at] & 0xC0) == 0x80) at--;
        if (!strips(set, s, at, end - at)) break;
        end = at;
    }
    jx_step(x, s->len - (end - begin));
    return jv_slice(x, s, begin, end);
}

static bool line_break(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

jlist *text_split_lines(jx *x, const jstr *s, bool keep_ends) {
    jlist *l = jlist_new(&x->mem, 0);
    size_t begin = 0, width;
    for (size_t i = 0; i < s->len; i += width) {
        uint32_t c = text_at(s, i, &width);
        if (!line_break(c)) continue;
        if (c == '\r' && i + 1 < s->len && s->p[i + 1] == '\n') width = 2;
        if (!jx_step(x, i - begin)) break;
        jlist_push(&x->mem, l, jv_slice(x, s, begin, keep_ends ? i + width : i));
        begin = i + width;
    }
    if (begin < s->len) jlist_push(&x->mem, l, jv_slice(x, s, begin, s->len));
    return l;
}

jv text_replace(jx *x, const jstr *s, const jstr *old, const jstr *with, int64_t count) {
    buf b = {.limit = x->max_output};
    size_t i = 0;
    if (!jx_step(x, s->len)) return jv_undefined();
    for (; count != 0; count--) {
        size_t found = text_find(s->p + i, s->len - i, old->p, old->len);
        if (found == SIZE_MAX || b.failed) break;
        if (old->len == 0) { /* between all characters, at both ends too */
            size_t width = 0;
            buf_append(&b, with->p, with->len);
            if (i >= s->len) return jv_from_buf(x, &b);
            text_at(s, i, &width);
            buf_append(&b, s->p + i, width);
            i += width;
            continue;
        }
        buf_append(&b, s->p + i, found);
        buf_append(&b, with->p, with->len);
        i += found + old->len;
    }
    buf_append(&b, s->p + i, s->len - i);
    return jv_from_buf(x, &b);
}

jv text_escape(jx *x, const jstr *s) {
    if (s->markup) return jv_from_jstr(s);
    buf b = {.limit = x->max_output};
    for (size_t i = 0; i < s->len; i++) {
        switch (s->p[i]) {
        case '&': buf_puts(&b, "&amp;"); break;
        case '<': buf_puts(&b, "&lt;"); break;
        case '>': buf_puts(&b, "&gt;"); break;
        case '"': buf_puts(&b, "&#34;"); break;
        case '\'': buf_puts(&b, "&#39;"); break;
        default: buf_putc(&b, s->p[i]);
        }
    }
    jv v = jv_from_buf(x, &b);
    if (v.as.s->len > 0) ((jstr *)v.as.s)->markup = true;
    return v;
}
