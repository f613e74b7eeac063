/* text/pretokenize: the scanners of patterns that few models use; see pretokenize.h.
 *
 * A pattern that looks ahead over a whole run (of digits, of spaces) is two stages here: the first
 * cuts the run out, the second cuts the run, so that no run is read once per piece.
 */
#include "text/pretokenize_internal.h"

/* \p{L}\p{M}*(?: ?\p{L}\p{M}*)* at i, a letter: words with single spaces between them. */
static size_t phrase(const char *s, size_t n, size_t i) {
    for (;;) {
        i = skip(s, n, skip(s, n, i, CLASS_LETTER), CLASS_MARK);
        size_t j = i < n && s[i] == ' ' ? i + 1 : i;
        if (!(at(s, n, j).classes & CLASS_LETTER)) return i;
        i = j;
    }
}

/* As cut_words, with phrases for words. */
size_t cut_phrases(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t width = stage->contractions ? contraction(s, n, i, true) : 0;
    if (width > 0) return i + width;
    character c = at(s, n, i);
    if (c.classes & CLASS_LETTER) return phrase(s, n, i);
    if (c.classes & CLASS_NUMBER) return skip_at_most(s, n, i, CLASS_NUMBER, stage->max);
    if (!is_newline(c.code) && (at(s, n, i + c.width).classes & CLASS_LETTER))
        return phrase(s, n, i + c.width);
    return cut_symbols(stage, s, n, i, CLASS_LETTER);
}

/* The end of the run of digits at i, where no word goes on behind it; else 0. */
static size_t bounded_digits(const char *s, size_t n, size_t i, size_t *end) {
    *end = skip(s, n, i, CLASS_DIGIT);
    return *end > i && !(at(s, n, *end).classes & CLASS_WORD) ? *end : 0;
}

/* \d+\b : such runs are pieces, and what lies between. */
size_t cut_bounded_digits(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    size_t end;
    if (bounded_digits(s, n, i, &end) > 0) return end;
    for (i = end; i < n; i = end) {
        i = skip_other(s, n, i, CLASS_DIGIT);
        if (bounded_digits(s, n, i, &end) > 0) return i;
    }
    return n;
}

static bool ends_in(const char *s, size_t n, uint32_t classes) {
    size_t i = n;
    while (i > 0 && n - i < 4 && ((unsigned char)s[i - 1] & 0xC0) == 0x80) i--;
    return i > 0 && (at(s, n, i - 1).classes & classes) != 0;
}

/* A piece that is a run of the class (the stage before left no other that ends in it): threes from
 * its end. */
size_t cut_threes(const cut_stage *stage, const char *s, size_t n, size_t i) {
    if (!ends_in(s, n, stage->classes)) return n;
    unsigned mod = 0;
    if (i == 0)
        for (size_t j = 0; j < n; j += at(s, n, j).width) mod = (mod + 1) % 3;
    return skip_at_most(s, n, i, stage->classes, mod > 0 ? mod : 3);
}

/* (?=(\d{3})+(?!\d)) : a cut before every three digits, counted from the end of their run. A piece
 * that begins with a digit behind the start is such a cut's. */
size_t cut_before_threes(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    const size_t begin = i;
    if (i > 0 && (at(s, n, i).classes & CLASS_DIGIT)) {
        i = skip_at_most(s, n, i, CLASS_DIGIT, 3);
        if (at(s, n, i).classes & CLASS_DIGIT) return i;
    }
    for (size_t end; (i = skip_other(s, n, i, CLASS_DIGIT)) < n; i = end) {
        unsigned mod = 0;
        for (end = i; at(s, n, end).classes & CLASS_DIGIT; end += at(s, n, end).width)
            mod = (mod + 1) % 3;
        if (mod == 0 && i > begin) return i;
        size_t cut = skip_at_most(s, n, i, CLASS_DIGIT, mod > 0 ? mod : 3);
        if (cut < end) return cut;
    }
    return n;
}

/* \s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s : a piece that is a run of blanks in
 * lengths of powers of two, the largest first. */
size_t cut_blanks(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    if (n == 0 || is_newline((unsigned char)s[n - 1]) || !ends_in(s, n, CLASS_SPACE)) return n;
    unsigned count = 0, power = 512;
    for (size_t j = i; j < n && count < power; j += at(s, n, j).width) count++;
    while (power > count) power /= 2;
    return skip_at_most(s, n, i, CLASS_SPACE, power);
}

/* Each match is a piece, and what lies between. */
size_t cut_matches(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t end = stage->match(s, n, i);
    if (end > 0) return end;
    do i += at(s, n, i).width;
    while (i < n && stage->match(s, n, i) == 0);
    return i;
}

/* <sentinel:[0-9]+> */
size_t match_sentinel(const char *s, size_t n, size_t i) {
    if (n - i < 12 || memcmp(s + i, "<sentinel:", 10) != 0) return 0;
    size_t digits = i + 10, j = digits;
    while (j < n && s[j] >= '0' && s[j] <= '9') j++;
    return j > digits && j < n && s[j] == '>' ? j + 1 : 0;
}

/* IMGIMG[A-I]{1,4}Z */
size_t match_image(const char *s, size_t n, size_t i) {
    if (n - i < 8 || memcmp(s + i, "IMGIMG", 6) != 0) return 0;
    size_t letters = i + 6, j = letters;
    while (j < n && j < letters + 4 && s[j] >= 'A' && s[j] <= 'I') j++;
    return j > letters && j < n && s[j] == 'Z' ? j + 1 : 0;
}

/* [\t\n]|    |   : four spaces or two */
size_t match_blanks(const char *s, size_t n, size_t i) {
    if (s[i] == '\t' || s[i] == '\n') return i + 1;
    if (n - i >= 4 && memcmp(s + i, "    ", 4) == 0) return i + 4;
    return n - i >= 2 && memcmp(s + i, "  ", 2) == 0 ? i + 2 : 0;
}
