/* text/pretokenize: see pretokenize.h. The scanners of the common patterns, and the walk over the
 * stages. Rarer scanners are pretokenize_rare.c, the names pretokenize_names.c.
 */
#include <string.h>

#include "text/pretokenize_internal.h"
#include "text/unicode_tables.inc"

uint32_t unicode_classes_at(const char *s, size_t n, size_t *width) {
    character c = at(s, n, 0);
    *width = c.width;
    return c.classes;
}

/* \s+(?!\S)|\s+ at i: the last whitespace before a word stays with the word. */
static size_t cut_space(const char *s, size_t n, size_t i) {
    size_t last = i, end = i;
    for (character c = at(s, n, i); c.classes & CLASS_SPACE; c = at(s, n, end)) {
        last = end;
        end += c.width;
    }
    return end < n && last > i ? last : end;
}

/* \s*[\r\n]+ before that: whitespace up to its last line end. */
static size_t cut_lines(const char *s, size_t n, size_t i) {
    size_t line = i;
    for (size_t end = i;;) {
        character c = at(s, n, end);
        if (!(c.classes & CLASS_SPACE)) break;
        end += c.width;
        if (is_newline(c.code)) line = end;
    }
    return line > i ? line : cut_space(s, n, i);
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t cut_gpt2(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    size_t width = contraction(s, n, i, false);
    if (width > 0) return i + width;
    size_t j = s[i] == ' ' ? i + 1 : i;
    uint32_t classes = at(s, n, j).classes;
    if (classes & CLASS_LETTER) return skip(s, n, j, CLASS_LETTER);
    if (classes & CLASS_NUMBER) return skip(s, n, j, CLASS_NUMBER);
    if (!(classes & (CLASS_SPACE | CLASS_END)))
        return skip_other(s, n, j, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER);
    return cut_space(s, n, i);
}

/*  ?[^\s\p{L}\p{N}]+[tail]* at i, else whitespace. `stops` are the classes of words and numbers. */
size_t cut_symbols(const cut_stage *stage, const char *s, size_t n, size_t i, uint32_t stops) {
    size_t j = s[i] == ' ' ? i + 1 : i;
    stops |= CLASS_SPACE | CLASS_NUMBER;
    if (at(s, n, j).classes & (stops | CLASS_END)) return cut_lines(s, n, i);
    j = skip_other(s, n, j, stops);
    if (stage->tail == NULL) return j;
    size_t end = skip_any(s, n, j, stage->tail);
    return stage->one_tail && end > j ? j + 1 : end;
}

/* (?i:'s|…)|[^\r\n\p{L}\p{N}]?WORD+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+… */
size_t cut_words(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t width = stage->contractions ? contraction(s, n, i, true) : 0;
    if (width > 0) return i + width;
    character c = at(s, n, i);
    if (c.classes & stage->classes) return skip(s, n, i, stage->classes);
    if (c.classes & CLASS_NUMBER) return skip_at_most(s, n, i, CLASS_NUMBER, stage->max);
    if (!is_newline(c.code) && (at(s, n, i + c.width).classes & stage->classes))
        return skip(s, n, i + c.width, stage->classes);
    return cut_symbols(stage, s, n, i, stage->classes);
}

/* Letters without case and marks count as upper and as lower case; those of a class in `apart` as
 * neither. */
static bool is_upper(uint32_t classes, uint32_t apart) {
    if (classes & apart) return false;
    return (classes & CLASS_MARK) || (classes & (CLASS_LETTER | CLASS_LOWER)) == CLASS_LETTER;
}

static bool is_lower(uint32_t classes, uint32_t apart) {
    if (classes & apart) return false;
    return (classes & CLASS_MARK) || (classes & (CLASS_LETTER | CLASS_UPPER)) == CLASS_LETTER;
}

/* UPPER*LOWER+ at i: its end, else 0. Then the upper-case run, which is UPPER+LOWER* there, ends at
 * *upper. Without lower-case letters behind it, the run gives back down to its last letter that
 * counts as both. */
static size_t capitalised(const char *s, size_t n, size_t i, uint32_t apart, size_t *upper) {
    size_t j = i, both = 0;
    character c = at(s, n, j);
    for (; is_upper(c.classes, apart); c = at(s, n, j)) {
        j += c.width;
        if (is_lower(c.classes, apart)) both = j;
    }
    *upper = j;
    if (!is_lower(c.classes, apart)) return both;
    for (; is_lower(c.classes, apart); c = at(s, n, j)) j += c.width;
    return j;
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER* at i: its end, else 0. A mark may
 * be the optional character or the word's first. */
static size_t cased_word(const char *s, size_t n, size_t i, uint32_t apart) {
    character c = at(s, n, i);
    bool may_lead = !(c.classes & (CLASS_LETTER | CLASS_NUMBER)) && !is_newline(c.code);
    size_t after = i + c.width, upper_after = after, upper, end;
    if (may_lead && (end = capitalised(s, n, after, apart, &upper_after)) > 0) return end;
    if ((end = capitalised(s, n, i, apart, &upper)) > 0) return end;
    if (may_lead && upper_after > after) return upper_after;
    return upper > i ? upper : 0;
}

size_t cut_cased(const cut_stage *stage, const char *s, size_t n, size_t i) {
    uint32_t apart = stage->han_apart ? CLASS_HAN : 0;
    if (at(s, n, i).classes & apart) return skip(s, n, i, apart);
    size_t end = cased_word(s, n, i, apart);
    if (end > 0) return stage->contractions ? end + contraction(s, n, end, true) : end;
    if (at(s, n, i).classes & CLASS_NUMBER) return skip_at_most(s, n, i, CLASS_NUMBER, stage->max);
    return cut_symbols(stage, s, n, i, CLASS_LETTER);
}

static bool ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* [ascii punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s…
 * at i (without a tail, a line end is a piece of its own): its end; 0 where nothing matches
 * (numbers and controls without a letter behind them). */
static size_t deepseek3_match(const cut_stage *stage, const char *s, size_t n, size_t i) {
    const uint32_t word = CLASS_LETTER | CLASS_MARK, symbol = CLASS_PUNCT | CLASS_SYMBOL;
    character c = at(s, n, i);
    if (c.code < 0x80 && (c.classes & symbol) && i + 1 < n && ascii_letter(s[i + 1])) {
        do i++;
        while (i < n && ascii_letter(s[i]));
        return i;
    }
    if (c.classes & word) return skip(s, n, i, word);
    if (!(c.classes & symbol) && !is_newline(c.code) && (at(s, n, i + c.width).classes & word))
        return skip(s, n, i + c.width, word);
    size_t j = c.code == ' ' ? i + 1 : i;
    if (at(s, n, j).classes & symbol) {
        j = skip(s, n, j, symbol);
        return stage->tail != NULL ? skip_any(s, n, j, stage->tail) : j;
    }
    if (!(c.classes & CLASS_SPACE)) return 0;
    if (stage->tail != NULL) return cut_lines(s, n, i);
    return is_newline(c.code) ? i + 1 : cut_space(s, n, i);
}

size_t cut_deepseek3(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t end = deepseek3_match(stage, s, n, i);
    if (end > 0) return end;
    /* The gap: it ends where something matches. Only its first step past a gap can be a space, so
     * no run of spaces is read twice. */
    const uint32_t starts = CLASS_LETTER | CLASS_MARK | CLASS_PUNCT | CLASS_SYMBOL | CLASS_SPACE;
    for (;;) {
        character c = at(s, n, i), next = at(s, n, i + c.width);
        i += c.width;
        if (next.classes & (starts | CLASS_END)) return i;
        if (at(s, n, i + next.width).classes & (CLASS_LETTER | CLASS_MARK)) return i;
    }
}

static bool in_set(const cut_stage *stage, character c) {
    bool in = (c.classes & stage->classes) != 0;
    if (!in && stage->ascii != NULL && c.code < 0x80 && c.code != 0)
        in = strchr(stage->ascii, (int)c.code) != NULL;
    if (!in && stage->ranges != NULL && c.code != UTF8_INVALID)
        for (const code_range *r = stage->ranges; r->last != 0 && !in && r->first <= c.code; r++)
            in = c.code <= r->last;
    return in != stage->negated && !(c.classes & CLASS_END);
}

static size_t runs_match(const cut_stage *stage, const char *s, size_t n, size_t i) {
    character c = at(s, n, i), next = at(s, n, i + c.width);
    bool leads = (stage->lead == LEAD_BLANK && c.code == ' ') ||
                 (stage->lead == LEAD_SPACE && (c.classes & CLASS_SPACE));
    if (leads && in_set(stage, next)) {
        i += c.width;
        c = next;
    }
    unsigned count = 0;
    for (; in_set(stage, c) && (stage->max == 0 || count < stage->max); c = at(s, n, i), count++)
        i += c.width;
    return count >= (stage->min > 0 ? stage->min : 1) ? i : 0;
}

/* [set]{min,max} with an optional space before: each match is a piece, and what lies between. */
size_t cut_runs(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t end = runs_match(stage, s, n, i);
    if (end > 0) return end;
    do i += at(s, n, i).width;
    while (i < n && runs_match(stage, s, n, i) == 0);
    return i;
}

/* \s+$ : whitespace at the very end is a piece. */
size_t cut_trailing(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    size_t space = i;
    bool inside = false;
    for (size_t j = i; j < n;) {
        character c = at(s, n, j);
        bool is_space = (c.classes & CLASS_SPACE) != 0;
        if (is_space && !inside) space = j;
        inside = is_space;
        j += c.width;
    }
    return inside && space > i ? space : n;
}

typedef struct {
    const cut_stage *end; /* behind the last stage */
    piece_fn piece;
    void *context;
} cutting;

static bool cut(const cutting *c, const cut_stage *stage, const char *s, size_t n) {
    if (stage == c->end || stage->cut == NULL) return c->piece(c->context, s, n);
    for (size_t i = 0, end; i < n; i = end) {
        end = stage->cut(stage, s, n, i);
        if (!cut(c, stage + 1, s + i, end - i)) return false;
    }
    return true;
}

bool pretokenize(const pretokenizer *p, const char *s, size_t n, piece_fn piece, void *context) {
    const cutting c = {p->stages + PRETOKENIZER_MAX_STAGES, piece, context};
    return n == 0 || cut(&c, p->stages, s, n);
}
