/* text/pretokenize, inside: reading characters, and the scanners that the table of names is made
 * of.
 */
#ifndef RIDGE_TEXT_PRETOKENIZE_INTERNAL_H
#define RIDGE_TEXT_PRETOKENIZE_INTERNAL_H

#include <string.h>

#include "base/utf8.h"
#include "text/pretokenize.h"

/* unicode_tables.inc, in pretokenize.c */
extern const uint8_t unicode_block[4352];
extern const uint16_t unicode_flags[][256];

typedef struct {
    uint32_t code, classes;
    size_t width;
} character;

/* The character at s[i]; past the end, one of CLASS_END and width 0. */
static inline character at(const char *s, size_t n, size_t i) {
    if (i >= n) return (character){UTF8_INVALID, CLASS_END, 0};
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) return (character){c, unicode_flags[0][c], 1};
    size_t width;
    uint32_t code = utf8_decode(s + i, n - i, &width);
    if (code == UTF8_INVALID) return (character){code, 0, 1};
    return (character){code, unicode_flags[unicode_block[code >> 8]][code & 255], width};
}

static inline bool is_newline(uint32_t code) {
    return code == '\n' || code == '\r';
}

/* The end of a run of characters of some of the classes, or of none of them, from i. */
static inline size_t skip(const char *s, size_t n, size_t i, uint32_t classes) {
    for (character c = at(s, n, i); c.classes & classes; c = at(s, n, i)) i += c.width;
    return i;
}

static inline size_t skip_other(const char *s, size_t n, size_t i, uint32_t classes) {
    classes |= CLASS_END;
    for (character c = at(s, n, i); !(c.classes & classes); c = at(s, n, i)) i += c.width;
    return i;
}

static inline size_t skip_at_most(const char *s, size_t n, size_t i, uint32_t classes,
                                  unsigned most) {
    if (most == 0) return skip(s, n, i, classes);
    for (character c = at(s, n, i); most > 0 && (c.classes & classes); c = at(s, n, i), most--)
        i += c.width;
    return i;
}

static inline size_t skip_any(const char *s, size_t n, size_t i, const char *set) {
    while (i < n && s[i] != '\0' && strchr(set, s[i]) != NULL) i++;
    return i;
}

/* 's 't 're 've 'm 'll 'd at i: their width, else 0. Folding case, a long s is an s too. */
static inline size_t contraction(const char *s, size_t n, size_t i, bool fold) {
    if (i + 1 >= n || s[i] != '\'') return 0;
    int bit = fold ? 0x20 : 0;
    char a = (char)(s[i + 1] | bit), b = i + 2 < n ? (char)(s[i + 2] | bit) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' || a == 'v') && b == 'e') return 3;
    if (a == 'l' && b == 'l') return 3;
    if (fold && i + 2 < n && memcmp(s + i + 1, "\xC5\xBF", 2) == 0) return 3;
    return 0;
}

/* A piece of patterns that several share: returns the end of what begins at i. */
size_t cut_symbols(const cut_stage *stage, const char *s, size_t n, size_t i, uint32_t stops);

size_t cut_gpt2(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_words(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_cased(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_deepseek3(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_runs(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_trailing(const cut_stage *stage, const char *s, size_t n, size_t i);

/* pretokenize_rare.c */
size_t cut_phrases(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_bounded_digits(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_threes(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_before_threes(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_blanks(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t cut_matches(const cut_stage *stage, const char *s, size_t n, size_t i);
size_t match_sentinel(const char *s, size_t n, size_t i);
size_t match_image(const char *s, size_t n, size_t i);
size_t match_blanks(const char *s, size_t n, size_t i);

#endif
