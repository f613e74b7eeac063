/* text/pretokenize: cuts a text into the pieces that byte-level BPE merges within.
 *
 * A pre-tokenizer is a list of stages, as in Hugging Face's Sequence: each stage cuts every piece
 * of the stage before. The published regular expressions are scanners here: one pass, no
 * backtracking over what was read, so the cost is linear in the text whatever it holds. Bytes that
 * are not UTF-8 belong to no class. Pure; any thread.
 */
#ifndef RIDGE_TEXT_PRETOKENIZE_H
#define RIDGE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The order is that of scripts/make_unicode_tables.py. */
enum {
    CLASS_LETTER = 1,
    CLASS_NUMBER = 2,
    CLASS_PUNCT = 4,
    CLASS_SYMBOL = 8,
    CLASS_MARK = 16,
    CLASS_SPACE = 32,
    CLASS_UPPER = 64, /* Lu and Lt */
    CLASS_LOWER = 128,
    CLASS_DIGIT = 256, /* \d: decimal digits; numbers are more */
    CLASS_HAN = 512,
    CLASS_WORD = 1024,       /* \w: what \b sees a border of */
    CLASS_NFC_UNSAFE = 2048, /* may change under NFC, alone or after what stands before it */
    CLASS_END = 4096         /* past the end of the text */
};

typedef struct cut_stage cut_stage;
/* Where the piece that begins at i < n ends; i < result <= n. */
typedef size_t (*cut_fn)(const cut_stage *stage, const char *s, size_t n, size_t i);
typedef size_t (*match_fn)(const char *s, size_t n, size_t i); /* the end of a match at i, or 0 */

typedef struct {
    uint32_t first, last;
} code_range;

typedef enum { LEAD_NONE, LEAD_BLANK, LEAD_SPACE } cut_lead; /* nothing, " ?", "\s?" */

/* One stage: the scanner and what it scans for; each scanner reads its own fields. */
struct cut_stage {
    cut_fn cut;
    match_fn match; /* cut_matches */
    /* cut_runs: characters of a set, `min` to `max` (0: any number) at once */
    const char *ascii;        /* these, */
    const code_range *ranges; /* these (ended by {0, 0}), */
    uint32_t classes;         /* and these classes; cut_words: the classes of a word */
    bool negated;
    cut_lead lead;
    uint8_t min, max; /* cut_words, cut_cased: max digits in a piece */
    /* cut_words, cut_cased, cut_phrases */
    bool contractions;
    const char *tail; /* characters taken along after symbols; cut_deepseek3 too */
    bool one_tail;    /* at most one of them */
    bool han_apart;   /* cut_cased: Han characters stand apart from the other letters */
};

#define PRETOKENIZER_MAX_STAGES 6

typedef struct {
    const char *names; /* space-separated, with a space at both ends */
    cut_stage stages[PRETOKENIZER_MAX_STAGES];
    bool nfc;           /* the model's tokenizer normalises to NFC first */
    bool ignore_merges; /* a piece that is a token as a whole is that token */
    bool adds_bos;      /* unless the metadata says otherwise */
} pretokenizer;

/* NULL: unknown. "default" is always known. */
const pretokenizer *pretokenizer_find(const char *name, size_t n);

/* Calls piece for each piece of s in order, until it returns false: then false. */
typedef bool (*piece_fn)(void *context, const char *s, size_t n);
bool pretokenize(const pretokenizer *p, const char *s, size_t n, piece_fn piece, void *context);

/* The classes of the character at s (n > 0 bytes left) and its width; 0 and 1 for a bad byte. */
uint32_t unicode_classes_at(const char *s, size_t n, size_t *width);

#endif
