/* text/jinja_methods: methods of str, dict, list, tuple, range and float that templates may call.
 *
 * The sandbox is immutable: methods that would change a list or dictionary are not there.
 */
#include <math.h>
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_internal.h"

#define METHOD(name) static jv m_##name(jx *x, jv self, const jv *a, const jargs *raw)
#define UNUSED (void)x, (void)self, (void)a, (void)raw

/* The argument as a string, or fails. */
static const jstr *want_str(jx *x, jv v, const char *method) {
    if (v.type == J_STR) return v.as.s;
    jx_fail(x, "%s() argument must be str, not %s", method, jv_type_name(v));
    return &jstr_empty;
}

static int64_t want_int(jx *x, jv v, int64_t otherwise) {
    int64_t i = otherwise;
    if (v.type != J_MISSING && v.type != J_NONE) op_index(x, v, &i);
    return i;
}

#define CASE_METHOD(name, mode)                                                                    \
    METHOD(name) {                                                                                 \
        UNUSED;                                                                                    \
        return text_to_case(x, self.as.s, mode);                                                   \
    }
CASE_METHOD(upper, CASE_UPPER)
CASE_METHOD(lower, CASE_LOWER)
CASE_METHOD(title, CASE_TITLE)
CASE_METHOD(capitalize, CASE_CAPITAL)
CASE_METHOD(swapcase, CASE_SWAP)
CASE_METHOD(casefold, CASE_FOLD)

METHOD(strip) {
    UNUSED;
    return text_strip(x, self.as.s, &a[0], 3);
}

METHOD(lstrip) {
    UNUSED;
    return text_strip(x, self.as.s, &a[0], 1);
}

METHOD(rstrip) {
    UNUSED;
    return text_strip(x, self.as.s, &a[0], 2);
}

/* The byte range [start:end] that find, count, startswith ... look at; false: empty and past. */
static bool window(jx *x, const jstr *s, const jv *a, size_t *from, size_t *to) {
    int64_t n = (int64_t)s->chars, start = want_int(x, a[0], 0), end = want_int(x, a[1], n);
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (end < 0) end = end + n < 0 ? 0 : end + n;
    if (end > n) end = n;
    *from = text_offset(s, (size_t)start);
    *to = text_offset(s, (size_t)end);
    return start <= end && start <= n;
}

static jv affix(jx *x, const jstr *s, const jv *a, bool suffix) {
    const char *name = suffix ? "endswith" : "startswith";
    jlist one = {.items = (jv *)&a[0], .n = 1, .capacity = 1};
    const jlist *options = a[0].type == J_TUPLE ? a[0].as.l : &one;
    size_t from, to;
    if (!window(x, s, a + 1, &from, &to)) return jv_bool(false);
    for (size_t i = 0; i < options->n && !jx_failed(x); i++) {
        const jstr *o = want_str(x, options->items[i], name);
        const char *at = suffix ? s->p + to - o->len : s->p + from;
        if (to - from >= o->len && memcmp(at, o->p, o->len) == 0) return jv_bool(true);
    }
    return jv_bool(false);
}

METHOD(startswith) {
    UNUSED;
    return affix(x, self.as.s, a, false);
}

METHOD(endswith) {
    UNUSED;
    return affix(x, self.as.s, a, true);
}

static jv find(jx *x, const jstr *s, const jv *a, bool last, bool must) {
    const jstr *o = want_str(x, a[0], "find");
    size_t from, to, at = SIZE_MAX;
    if (window(x, s, a + 1, &from, &to) && jx_step(x, s->len))
        at = last ? text_rfind(s->p + from, to - from, o->p, o->len)
                  : text_find(s->p + from, to - from, o->p, o->len);
    if (at == SIZE_MAX) return must ? jx_fail(x, "substring not found") : jv_int(-1);
    return jv_int((int64_t)jv_slice(x, s, 0, from + at).as.s->chars);
}

METHOD(find) {
    UNUSED;
    return find(x, self.as.s, a, false, false);
}

METHOD(rfind) {
    UNUSED;
    return find(x, self.as.s, a, true, false);
}

METHOD(index) {
    UNUSED;
    return find(x, self.as.s, a, false, true);
}

METHOD(rindex) {
    UNUSED;
    return find(x, self.as.s, a, true, true);
}

METHOD(count) {
    UNUSED;
    const jstr *s = self.as.s, *o = want_str(x, a[0], "count");
    size_t from, to;
    int64_t n = 0;
    if (!window(x, s, a + 1, &from, &to) || !jx_step(x, s->len)) return jv_int(0);
    if (o->len == 0) return jv_int((int64_t)jv_slice(x, s, from, to).as.s->chars + 1);
    while (true) {
        size_t at = text_find(s->p + from, to - from, o->p, o->len);
        if (at == SIZE_MAX) return jv_int(n);
        from += at + o->len;
        n++;
    }
}

METHOD(replace) {
    UNUSED;
    return text_replace(x, self.as.s, want_str(x, a[0], "replace"), want_str(x, a[1], "replace"),
                        want_int(x, a[2], -1));
}

/* ---- splitting ---- */

static void split_spaces(jx *x, jlist *l, const jstr *s, int64_t max) {
    size_t i = 0, width;
    while (jx_step(x, 0)) {
        while (i < s->len && text_is_space(text_at(s, i, &width))) i += width;
        if (i >= s->len) return;
        size_t begin = i;
        if (max == 0) {
            jlist_push(&x->mem, l, jv_slice(x, s, begin, s->len));
            return;
        }
        while (i < s->len && !text_is_space(text_at(s, i, &width))) i += width;
        jlist_push(&x->mem, l, jv_slice(x, s, begin, i));
        max--;
    }
}

static void rsplit_spaces(jx *x, jlist *l, const jstr *s, int64_t max) {
    jlist *all = jlist_new(&x->mem, 0);
    split_spaces(x, all, s, -1);
    if (max < 0 || (size_t)max >= all->n) {
        *l = *all;
        return;
    }
    size_t keep = all->n - (size_t)max; /* words that stay together */
    if (keep > 0) {
        const jstr *last = all->items[keep - 1].as.s;
        jlist_push(&x->mem, l, jv_slice(x, s, 0, (size_t)(last->p - s->p) + last->len));
    }
    for (size_t i = keep; i < all->n; i++) jlist_push(&x->mem, l, all->items[i]);
}

static void split_at(jx *x, jlist *l, const jstr *s, const jstr *sep, int64_t max) {
    size_t from = 0;
    for (; max != 0 && jx_step(x, 0); max--) {
        size_t at = text_find(s->p + from, s->len - from, sep->p, sep->len);
        if (at == SIZE_MAX) break;
        jlist_push(&x->mem, l, jv_slice(x, s, from, from + at));
        from += at + sep->len;
    }
    jlist_push(&x->mem, l, jv_slice(x, s, from, s->len));
}

static void reverse_list(jlist *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        jv t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
}

static void rsplit_at(jx *x, jlist *l, const jstr *s, const jstr *sep, int64_t max) {
    size_t to = s->len;
    for (; max != 0 && jx_step(x, 0); max--) {
        size_t at = text_rfind(s->p, to, sep->p, sep->len);
        if (at == SIZE_MAX) break;
        jlist_push(&x->mem, l, jv_slice(x, s, at + sep->len, to));
        to = at;
    }
    jlist_push(&x->mem, l, jv_slice(x, s, 0, to));
    reverse_list(l);
}

static jv split(jx *x, const jstr *s, const jv *a, bool right) {
    jlist *l = jlist_new(&x->mem, 4);
    int64_t max = want_int(x, a[1], -1);
    if (!jx_step(x, s->len)) return jv_undefined();
    if (a[0].type == J_MISSING || a[0].type == J_NONE) {
        if (right)
            rsplit_spaces(x, l, s, max);
        else
            split_spaces(x, l, s, max);
        return jv_list(l);
    }
    const jstr *sep = want_str(x, a[0], "split");
    if (sep->len == 0) return jx_fail(x, "empty separator");
    if (right)
        rsplit_at(x, l, s, sep, max);
    else
        split_at(x, l, s, sep, max);
    return jv_list(l);
}

METHOD(split) {
    UNUSED;
    return split(x, self.as.s, a, false);
}

METHOD(rsplit) {
    UNUSED;
    return split(x, self.as.s, a, true);
}

METHOD(splitlines) {
    UNUSED;
    return jv_list(text_split_lines(x, self.as.s, jv_truth(a[0])));
}

static jv partition(jx *x, jv self, jv separator, bool right) {
    const jstr *s = self.as.s, *sep = want_str(x, separator, "partition");
    if (sep->len == 0) return jx_fail(x, "empty separator");
    size_t at = right ? text_rfind(s->p, s->len, sep->p, sep->len)
                      : text_find(s->p, s->len, sep->p, sep->len);
    jlist *l = jlist_new(&x->mem, 3);
    jv empty = jv_from_jstr(&jstr_empty);
    bool found = at != SIZE_MAX;
    jlist_push(&x->mem, l, found ? jv_slice(x, s, 0, at) : right ? empty : self);
    jlist_push(&x->mem, l, found ? separator : empty);
    jlist_push(&x->mem, l, found ? jv_slice(x, s, at + sep->len, s->len) : right ? self : empty);
    return jv_tuple(l);
}

METHOD(partition) {
    UNUSED;
    return partition(x, self, a[0], false);
}

METHOD(rpartition) {
    UNUSED;
    return partition(x, self, a[0], true);
}

METHOD(join) {
    UNUSED;
    jv *items;
    size_t n;
    buf b = {.limit = x->max_output};
    if (!jv_items(x, a[0], &items, &n)) return jv_undefined();
    for (size_t i = 0; i < n && jx_step(x, 0); i++) {
        if (items[i].type != J_STR)
            jx_fail(x, "sequence item %zu: expected str instance, %s found", i,
                    jv_type_name(items[i]));
        if (i > 0) buf_append(&b, self.as.s->p, self.as.s->len);
        if (items[i].type == J_STR) buf_append(&b, items[i].as.s->p, items[i].as.s->len);
    }
    return jv_from_buf(x, &b);
}

METHOD(removeprefix) {
    UNUSED;
    const jstr *s = self.as.s, *o = want_str(x, a[0], "removeprefix");
    bool has = s->len >= o->len && memcmp(s->p, o->p, o->len) == 0;
    return has ? jv_slice(x, s, o->len, s->len) : self;
}

METHOD(removesuffix) {
    UNUSED;
    const jstr *s = self.as.s, *o = want_str(x, a[0], "removesuffix");
    bool has = s->len >= o->len && memcmp(s->p + s->len - o->len, o->p, o->len) == 0;
    return has ? jv_slice(x, s, 0, s->len - o->len) : self;
}

/* ---- padding ---- */

static jv pad(jx *x, const jstr *s, const jv *a, int left_of_two) {
    int64_t width = want_int(x, a[0], 0), missing = width - (int64_t)s->chars;
    const jstr *fill = a[1].type == J_STR ? a[1].as.s : NULL;
    buf b = {.limit = x->max_output};
    if (fill != NULL && fill->chars != 1)
        return jx_fail(x, "The fill character must be exactly one character long");
    if (missing <= 0) return jv_from_jstr(s);
    if ((uint64_t)missing > x->max_output) return jx_fail(x, "a padded text is too large");
    int64_t left = left_of_two == 2   ? missing
                   : left_of_two == 0 ? 0
                                      : missing / 2 + (missing & width & 1);
    for (int64_t i = 0; i < left; i++) buf_append(&b, fill ? fill->p : " ", fill ? fill->len : 1);
    buf_append(&b, s->p, s->len);
    for (int64_t i = left; i < missing; i++)
        buf_append(&b, fill ? fill->p : " ", fill ? fill->len : 1);
    return jv_from_buf(x, &b);
}

METHOD(ljust) {
    UNUSED;
    return pad(x, self.as.s, a, 0);
}

METHOD(center) {
    UNUSED;
    return pad(x, self.as.s, a, 1);
}

METHOD(rjust) {
    UNUSED;
    return pad(x, self.as.s, a, 2);
}

METHOD(zfill) {
    UNUSED;
    const jstr *s = self.as.s;
    bool sign = s->len > 0 && (s->p[0] == '-' || s->p[0] == '+');
    jv args[2] = {jv_int(want_int(x, a[0], 0) - sign), jv_cstr(x, "0")};
    jv digits = pad(x, jv_slice(x, s, sign, s->len).as.s, args, 2);
    return sign && !jx_failed(x) ? op_binary(x, OP_ADD, jv_slice(x, s, 0, 1), digits) : digits;
}

METHOD(expandtabs) {
    UNUSED;
    int64_t size = want_int(x, a[0], 8), column = 0;
    buf b = {.limit = x->max_output};
    if (size > 1000) return jx_fail(x, "expandtabs: a tab size over 1000");
    for (size_t i = 0, w; i < self.as.s->len; i += w) {
        uint32_t c = text_at(self.as.s, i, &w);
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            for (int64_t k = 0; k < n; k++) buf_putc(&b, ' ');
            column += n;
        } else {
            buf_append(&b, self.as.s->p + i, w);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
    }
    return jv_from_buf(x, &b);
}

METHOD(format) {
    UNUSED;
    return text_format_braces(x, self.as.s, raw);
}

/* ---- questions about all characters ---- */

typedef bool (*char_test)(uint32_t c);

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

static bool is_alpha(uint32_t c) {
    return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

/* Superscripts and circled digits are digits too. */
static bool is_digit(uint32_t c) {
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468);
}

static bool is_numeric(uint32_t c) {
    return category(c) >= UTF8PROC_CATEGORY_ND && category(c) <= UTF8PROC_CATEGORY_NO;
}

static bool is_alnum(uint32_t c) {
    return is_alpha(c) || is_numeric(c);
}

static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

static bool is_printable(uint32_t c) {
    utf8proc_category_t k = category(c);
    return c == ' ' || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS);
}

static jv all_chars(const jstr *s, char_test test, bool when_empty) {
    for (size_t i = 0, width; i < s->len; i += width)
        if (!test(text_at(s, i, &width))) return jv_bool(false);
    return jv_bool(s->len > 0 || when_empty);
}

#define CHAR_METHOD(name, test, when_empty)                                                        \
    METHOD(name) {                                                                                 \
        UNUSED;                                                                                    \
        return all_chars(self.as.s, test, when_empty);                                             \
    }
CHAR_METHOD(isalpha, is_alpha, false)
CHAR_METHOD(isdecimal, is_decimal, false)
CHAR_METHOD(isdigit, is_digit, false)
CHAR_METHOD(isnumeric, is_numeric, false)
CHAR_METHOD(isalnum, is_alnum, false)
CHAR_METHOD(isspace, text_is_space, false)
CHAR_METHOD(isascii, is_ascii, true)
CHAR_METHOD(isprintable, is_printable, true)

METHOD(islower) {
    UNUSED;
    return jinja_test_find("lower")->fn(x, self, a, raw);
}

METHOD(isupper) {
    UNUSED;
    return jinja_test_find("upper")->fn(x, self, a, raw);
}

METHOD(istitle) {
    UNUSED;
    bool cased = false, any = false;
    for (size_t i = 0, width; i < self.as.s->len; i += width) {
        utf8proc_int32_t c = (utf8proc_int32_t)text_at(self.as.s, i, &width);
        bool title = utf8proc_category(c) == UTF8PROC_CATEGORY_LT;
        bool upper = title || utf8proc_isupper(c) != 0, lower = !upper && utf8proc_islower(c) != 0;
        if ((upper && cased) || (lower && !cased)) return jv_bool(false);
        cased = upper || lower;
        any = any || cased;
    }
    return jv_bool(any);
}

METHOD(isidentifier) {
    UNUSED;
    const jstr *s = self.as.s;
    size_t width;
    bool digit = s->len > 0 && text_digit(text_at(s, 0, &width)) >= 0;
    return jv_bool(!digit && all_chars(s, text_is_word, false).as.i != 0);
}

METHOD(unsupported) {
    UNUSED;
    return jx_fail(x, "this method of str is not supported in templates");
}

const jdef jinja_str_methods[] = {
    {"upper", "", m_upper},
    {"lower", "", m_lower},
    {"title", "", m_title},
    {"capitalize", "", m_capitalize},
    {"swapcase", "", m_swapcase},
    {"casefold", "", m_casefold},
    {"strip", "chars?", m_strip},
    {"lstrip", "chars?", m_lstrip},
    {"rstrip", "chars?", m_rstrip},
    {"startswith", "prefix start? end?", m_startswith},
    {"endswith", "suffix start? end?", m_endswith},
    {"find", "sub start? end?", m_find},
    {"rfind", "sub start? end?", m_rfind},
    {"index", "sub start? end?", m_index},
    {"rindex", "sub start? end?", m_rindex},
    {"count", "sub start? end?", m_count},
    {"replace", "old new count?", m_replace},
    {"split", "sep? maxsplit?", m_split},
    {"rsplit", "sep? maxsplit?", m_rsplit},
    {"splitlines", "keepends?", m_splitlines},
    {"partition", "sep", m_partition},
    {"rpartition", "sep", m_rpartition},
    {"join", "iterable", m_join},
    {"removeprefix", "prefix", m_removeprefix},
    {"removesuffix", "suffix", m_removesuffix},
    {"ljust", "width fillchar?", m_ljust},
    {"center", "width fillchar?", m_center},
    {"rjust", "width fillchar?", m_rjust},
    {"zfill", "width", m_zfill},
    {"expandtabs", "tabsize?", m_expandtabs},
    {"format", "*", m_format},
    {"isalpha", "", m_isalpha},
    {"isdecimal", "", m_isdecimal},
    {"isdigit", "", m_isdigit},
    {"isnumeric", "", m_isnumeric},
    {"isalnum", "", m_isalnum},
    {"isspace", "", m_isspace},
    {"isascii", "", m_isascii},
    {"isprintable", "", m_isprintable},
    {"islower", "", m_islower},
    {"isupper", "", m_isupper},
    {"istitle", "", m_istitle},
    {"isidentifier", "", m_isidentifier},
    {"encode", "*", m_unsupported},
    {"format_map", "*", m_unsupported},
    {"maketrans", "*", m_unsupported},
    {"translate", "*", m_unsupported},
    {NULL, NULL, NULL},
};
