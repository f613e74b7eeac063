/* text/jinja_lexer: template source to tokens, one at a time.
 *
 * Whitespace control as Jinja2 does it with trim_blocks and lstrip_blocks: '-' at a tag eats all
 * space on its side; '+' keeps it; else a block tag's newline after it goes, and so does blank
 * space between the line's beginning and a block or comment tag.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

static char at(const jlexer *l, size_t i) {
    return i < l->n ? l->s[i] : '\0';
}

/* Bytes of the white space character at i, 0 if there is none. */
static size_t space_at(const jlexer *l, size_t i) {
    size_t width;
    if (i >= l->n) return 0;
    return text_is_space(utf8_decode(l->s + i, l->n - i, &width)) ? width : 0;
}

static size_t skip_spaces(const jlexer *l, size_t i) {
    for (size_t width; (width = space_at(l, i)) > 0; i += width) {
    }
    return i;
}

static void advance(jlexer *l, size_t to) {
    for (; l->pos < to; l->pos++)
        if (l->s[l->pos] == '\n') l->line++;
}

static bool word_at(const jlexer *l, size_t i, const char *word) {
    size_t n = strlen(word);
    return i + n <= l->n && memcmp(l->s + i, word, n) == 0;
}

/* The data before a tag with its white space taken away: sign is '-', '+' or 0. */
static size_t data_end(const jlexer *l, size_t begin, size_t end, char sign, bool is_variable) {
    if (sign == '-') {
        while (end > begin) {
            size_t i = end - 1;
            while (i > begin && ((unsigned char)l->s[i] & 0xC0) == 0x80) i--;
            if (space_at(l, i) == 0) break;
            end = i;
        }
        return end;
    }
    if (sign == '+' || is_variable) return end;
    size_t line = end;
    while (line > begin && l->s[line - 1] != '\n') line--;
    bool line_starts = line > begin || begin == 0 || l->s[begin - 1] == '\n';
    return line_starts && skip_spaces(l, line) >= end ? line : end;
}

/* The end of a block tag that closes at i: past "%}" and what goes with it; 0: it does not. */
static size_t block_close(const jlexer *l, size_t i) {
    if (at(l, i) == '-' && word_at(l, i + 1, "%}")) return skip_spaces(l, i + 3);
    if (at(l, i) == '+' && word_at(l, i + 1, "%}")) return i + 3;
    if (!word_at(l, i, "%}")) return 0;
    return at(l, i + 2) == '\n' ? i + 3 : i + 2;
}

/* "{%- raw %}" at i: its end, or 0. Unlike other tags it keeps the newline after it. */
static size_t raw_open(const jlexer *l, size_t i) {
    i += 2;
    if (at(l, i) == '-' || at(l, i) == '+') i++;
    i = skip_spaces(l, i);
    if (!word_at(l, i, "raw")) return 0;
    i = skip_spaces(l, i + 3);
    if (at(l, i) == '-' && word_at(l, i + 1, "%}")) return skip_spaces(l, i + 3);
    return word_at(l, i, "%}") ? i + 2 : 0;
}

static size_t raw_close(const jlexer *l, size_t i, char *sign) {
    i += 2;
    *sign = at(l, i);
    if (*sign == '-' || *sign == '+') i++;
    i = skip_spaces(l, i);
    if (!word_at(l, i, "endraw")) return 0;
    return block_close(l, skip_spaces(l, i + 6));
}

/* Past the comment whose text begins at i; 0: it never ends. */
static size_t comment_close(const jlexer *l, size_t i) {
    size_t found = text_find(l->s + i, l->n - i, "#}", 2);
    if (found == SIZE_MAX) return 0;
    size_t end = i + found + 2;
    char before = found > 0 ? l->s[end - 3] : '\0';
    if (before == '-') return skip_spaces(l, end);
    return before != '+' && at(l, end) == '\n' ? end + 1 : end;
}

static bool give_data(jtoken *out, const jlexer *l, size_t begin, size_t end, int line) {
    if (begin == end) return false;
    *out = (jtoken){.type = T_DATA, .p = l->s + begin, .len = end - begin, .line = line};
    return true;
}

static size_t find_tag(const jlexer *l) {
    for (size_t i = l->pos; i + 1 < l->n; i++) {
        const char *brace = memchr(l->s + i, '{', l->n - 1 - i);
        if (brace == NULL) break;
        i = (size_t)(brace - l->s);
        if (l->s[i + 1] == '%' || l->s[i + 1] == '{' || l->s[i + 1] == '#') return i;
    }
    return l->n;
}

/* Text up to the next tag. Returns false when there was none to give (the state has changed). */
static bool lex_root(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    size_t begin = l->pos, tag = find_tag(l);
    int line = l->line;
    if (tag == l->n) {
        advance(l, l->n);
        if (!give_data(out, l, begin, l->n, line)) *out = (jtoken){.type = T_EOF, .line = line};
        return true;
    }
    char kind = l->s[tag + 1], sign = at(l, tag + 2);
    if (sign != '-' && sign != '+') sign = '\0';
    size_t end = data_end(l, begin, tag, sign, kind == '{');
    advance(l, tag);
    size_t raw = kind == '%' ? raw_open(l, tag) : 0, next = tag + 2 + (sign != '\0');
    if (raw != 0) {
        l->state = LEX_RAW;
        next = raw;
    } else if (kind == '#') {
        next = comment_close(l, next);
        if (next == 0) parse_fail(p, l->line, "Missing end of comment tag");
    } else {
        l->begin = kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN;
    }
    if (next != 0) advance(l, next);
    return give_data(out, l, begin, end, line);
}

static bool lex_raw(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    size_t begin = l->pos;
    for (size_t i = begin; i + 1 < l->n; i++) {
        size_t close;
        char sign;
        if (!word_at(l, i, "{%") || (close = raw_close(l, i, &sign)) == 0) continue;
        bool given = give_data(out, l, begin, data_end(l, begin, i, sign, false), l->line);
        advance(l, close);
        l->state = LEX_ROOT;
        return given;
    }
    parse_fail(p, l->line, "Missing end of raw directive");
    return false;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them, from i on. */
static size_t skip_digits(const jlexer *l, size_t i, int base) {
    size_t end = i;
    for (;; i++) {
        char c = at(l, i), low = (char)(c | 0x20);
        bool digit = base == 16 ? is_digit(c) || (low >= 'a' && low <= 'f')
                                : c >= '0' && c < '0' + (base < 10 ? base : 10);
        if (digit)
            end = i + 1;
        else if (c != '_' || i != end)
            return end;
    }
}

static size_t copy_digits(char *to, size_t size, const char *p, size_t n) {
    size_t len = 0;
    for (size_t i = 0; i < n && len + 1 < size; i++)
        if (p[i] != '_') to[len++] = p[i];
    to[len] = '\0';
    return len;
}

static void lex_integer(jparser *p, jtoken *out, int base) {
    char digits[512];
    size_t skip = base == 10 ? 0 : 2;
    size_t n = copy_digits(digits, sizeof digits, out->p + skip, out->len - skip);
    errno = 0;
    out->type = T_INT;
    out->value = jv_int(strtoll(digits, NULL, base));
    if (errno == 0) return;
    if (base != 10 || n + 1 >= sizeof digits) parse_fail(p, out->line, "integer literal too large");
    out->value.type = J_BIG;
    out->value.as.s = jstr_make(&p->t->mem, digits, n);
}

static void lex_number(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    size_t begin = l->pos, end = skip_digits(l, begin, 10), whole = end;
    bool after_dot = begin > 0 && l->s[begin - 1] == '.', is_float = false;
    if (!after_dot) {
        if (at(l, end) == '.' && is_digit(at(l, end + 1))) {
            end = skip_digits(l, end + 1, 10);
            is_float = true;
        }
        if ((at(l, end) | 0x20) == 'e') {
            size_t i = end + 1;
            if (at(l, i) == '+' || at(l, i) == '-') i++;
            if (is_digit(at(l, i))) {
                end = skip_digits(l, i, 10);
                is_float = true;
            }
        }
    }
    *out = (jtoken){.line = l->line, .p = l->s + begin, .len = end - begin};
    if (is_float) {
        char digits[512];
        copy_digits(digits, sizeof digits, out->p, out->len);
        out->type = T_FLOAT;
        out->value = jv_float(strtod(digits, NULL));
        l->pos = end;
        return;
    }
    char kind = (char)(at(l, begin + 1) | 0x20);
    int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    size_t first = begin + 2 + (at(l, begin + 2) == '_');
    size_t other = l->s[begin] == '0' && base != 10 ? skip_digits(l, first, base) : first;
    if (other > first)
        whole = other;
    else
        base = 10;
    out->len = whole - begin;
    l->pos = whole;
    lex_integer(p, out, base);
}

static void lex_quoted(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    char quote = l->s[l->pos];
    size_t i = l->pos + 1;
    while (i < l->n && l->s[i] != quote) i += l->s[i] == '\\' ? 2 : 1;
    if (i >= l->n) {
        parse_fail(p, l->line, "unexpected char '%c' at %zu: the string never ends", quote, l->pos);
        return;
    }
    *out = (jtoken){.type = T_STRING, .line = l->line, .p = l->s + l->pos, .len = i + 1 - l->pos};
    advance(l, i + 1);
}

/* Keeps the stack of open brackets: inside them "}}" and "%}" do not close the tag. */
static void lex_balance(jparser *p, char c) {
    jlexer *l = &p->lex;
    if (strchr("([{", c) != NULL) {
        if (jm_grow(&p->t->mem, (void **)&l->balance, &l->balance_capacity, l->n_balance + 1, 1))
            l->balance[l->n_balance++] = c;
    } else if (strchr(")]}", c) != NULL) {
        char open = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (l->n_balance == 0)
            parse_fail(p, l->line, "unexpected '%c'", c);
        else if (l->balance[--l->n_balance] != open)
            parse_fail(p, l->line, "unexpected '%c', expected the end of '%c'", c,
                       l->balance[l->n_balance]);
    }
}

static void lex_operator(jparser *p, jtoken *out) {
    static const char pairs[][3] = {"//", "**", "==", "!=", ">=", "<="};
    jlexer *l = &p->lex;
    *out = (jtoken){.type = T_OP, .line = l->line, .p = l->s + l->pos, .len = 1};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!word_at(l, l->pos, pairs[i])) continue;
        out->op = OP2(pairs[i][0], pairs[i][1]);
        out->len = 2;
        l->pos += 2;
        return;
    }
    char c = l->s[l->pos];
    if (c == '\0' || strchr("+-/*%~[](){}><=.:|,;", c) == NULL) {
        parse_fail(p, l->line, "unexpected char '%c' at %zu", c, l->pos);
        return;
    }
    out->op = c;
    l->pos++;
    lex_balance(p, c);
}

static void lex_tag(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    bool block = l->state == LEX_BLOCK;
    for (;;) {
        size_t close = 0;
        if (l->n_balance == 0) {
            if (block)
                close = block_close(l, l->pos);
            else if (word_at(l, l->pos, "}}"))
                close = l->pos + 2;
            else if (word_at(l, l->pos, "-}}"))
                close = skip_spaces(l, l->pos + 3);
        }
        if (close != 0) {
            *out = (jtoken){.type = block ? T_BLOCK_END : T_VAR_END, .line = l->line};
            advance(l, close);
            l->state = LEX_ROOT;
            return;
        }
        size_t next = skip_spaces(l, l->pos);
        if (next == l->pos) break;
        advance(l, next);
    }
    if (l->pos >= l->n) {
        *out = (jtoken){.type = T_EOF, .line = l->line};
        return;
    }
    size_t width, end = l->pos;
    while (end < l->n && text_is_word(utf8_decode(l->s + end, l->n - end, &width))) end += width;
    char c = l->s[l->pos];
    if (is_digit(c)) {
        lex_number(p, out);
    } else if (end > l->pos) {
        *out = (jtoken){T_NAME, 0, l->line, l->s + l->pos, end - l->pos, jv_none()};
        l->pos = end;
    } else if (c == '\'' || c == '"') {
        lex_quoted(p, out);
    } else {
        lex_operator(p, out);
    }
}

void lex_next(jparser *p, jtoken *out) {
    jlexer *l = &p->lex;
    while (p->status == RIDGE_OK && !p->t->mem.failed) {
        if (l->begin != T_EOF) {
            *out = (jtoken){.type = l->begin, .line = l->line};
            l->state = l->begin == T_BLOCK_BEGIN ? LEX_BLOCK : LEX_VAR;
            l->begin = T_EOF;
            return;
        }
        if (l->state == LEX_BLOCK || l->state == LEX_VAR) {
            lex_tag(p, out);
            return;
        }
        if (l->state == LEX_RAW ? lex_raw(p, out) : lex_root(p, out)) return;
    }
    *out = (jtoken){.type = T_EOF, .line = l->line};
}

static uint32_t hex_value(const char *p, size_t n, bool *ok) {
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = (char)(p[i] | 0x20);
        bool letter = c >= 'a' && c <= 'f';
        if (!is_digit(p[i]) && !letter) *ok = false;
        v = v << 4 | (uint32_t)(letter ? c - 'a' + 10 : (p[i] - '0') & 15);
    }
    return v;
}

static void put_code(buf *b, uint32_t c) {
    char out[4];
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
    buf_append(b, out, utf8_encode(c, out));
}

/* One escape after its backslash, as Python's unicode-escape; returns how much was read. */
static size_t unescape(jparser *p, buf *b, const char *s, size_t n) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s[0];
    const char *simple = c != '\0' ? strchr(from, c) : NULL;
    if (simple != NULL) {
        buf_putc(b, to[simple - from]);
        return 1;
    }
    if (c == '\n') return 1;
    if (c >= '0' && c <= '7') {
        uint32_t v = 0;
        size_t i = 0;
        for (; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            v = v * 8 + (uint32_t)(s[i] - '0');
        put_code(b, v);
        return i;
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
        buf_putc(b, '\\');
        return 0;
    }
    bool ok = n > digits;
    uint32_t v = ok ? hex_value(s + 1, digits, &ok) : 0;
    if (!ok) parse_fail(p, p->cur.line, "truncated \\%c escape in a string", c);
    put_code(b, v);
    return ok ? digits + 1 : n;
}

jv lex_string_value(jparser *p, const jtoken *t) {
    const char *s = t->p + 1;
    size_t n = t->len - 2;
    if (memchr(s, '\\', n) == NULL) return jv_from_jstr(jstr_borrow(&p->t->mem, s, n));
    buf b = {0};
    for (size_t i = 0; i < n;) {
        if (s[i] == '\\' && i + 1 < n) {
            i += 1 + unescape(p, &b, s + i + 1, n - i - 1);
        } else {
            buf_putc(&b, s[i++]);
        }
    }
    if (b.failed) p->t->mem.failed = true;
    const jstr *made = jstr_make(&p->t->mem, b.data != NULL ? b.data : "", b.len);
    buf_free(&b);
    return jv_from_jstr(made);
}
