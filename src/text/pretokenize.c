/* text/pretokenize: see pretokenize.h. The scanners first, then the table of known names.
 *
 * The names and what each means are those of llama.cpp's list; where the published tokenizer says
 * more (NFC, case folding), the published one is followed.
 */
#include "text/pretokenize.h"

#include <string.h>

#include "base/utf8.h"
#include "text/unicode_tables.inc"

typedef struct {
    uint32_t code, classes;
    size_t width;
} character;

static inline uint32_t classes_of(uint32_t code) {
    return unicode_flags[unicode_block[code >> 8]][code & 255];
}

static inline character at(const char *s, size_t n, size_t i) {
    if (i >= n) return (character){UTF8_INVALID, CLASS_END, 0};
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) return (character){c, unicode_flags[0][c], 1};
    size_t width;
    uint32_t code = utf8_decode(s + i, n - i, &width);
    if (code == UTF8_INVALID) return (character){code, 0, 1};
    return (character){code, classes_of(code), width};
}

uint32_t unicode_classes_at(const char *s, size_t n, size_t *width) {
    character c = at(s, n, 0);
    *width = c.width;
    return c.classes;
}

static bool is_newline(uint32_t code) {
    return code == '\n' || code == '\r';
}

/* The end of a run of characters of some of the classes, or of none of them, from i. */
static size_t skip(const char *s, size_t n, size_t i, uint32_t classes) {
    for (character c = at(s, n, i); c.classes & classes; c = at(s, n, i)) i += c.width;
    return i;
}

static size_t skip_other(const char *s, size_t n, size_t i, uint32_t classes) {
    classes |= CLASS_END;
    for (character c = at(s, n, i); !(c.classes & classes); c = at(s, n, i)) i += c.width;
    return i;
}

static size_t skip_at_most(const char *s, size_t n, size_t i, uint32_t classes, unsigned most) {
    if (most == 0) return skip(s, n, i, classes);
    for (character c = at(s, n, i); most > 0 && (c.classes & classes); c = at(s, n, i), most--)
        i += c.width;
    return i;
}

static size_t skip_any(const char *s, size_t n, size_t i, const char *set) {
    while (i < n && s[i] != '\0' && strchr(set, s[i]) != NULL) i++;
    return i;
}

/* 's 't 're 've 'm 'll 'd at i: their width, else 0. Folding case, a long s is an s too. */
static size_t contraction(const char *s, size_t n, size_t i, bool fold) {
    if (i + 1 >= n || s[i] != '\'') return 0;
    int bit = fold ? 0x20 : 0;
    char a = (char)(s[i + 1] | bit), b = i + 2 < n ? (char)(s[i + 2] | bit) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' || a == 'v') && b == 'e') return 3;
    if (a == 'l' && b == 'l') return 3;
    if (fold && i + 2 < n && memcmp(s + i + 1, "\xC5\xBF", 2) == 0) return 3;
    return 0;
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
static size_t cut_gpt2(const cut_stage *stage, const char *s, size_t n, size_t i) {
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
static size_t cut_symbols(const cut_stage *stage, const char *s, size_t n, size_t i,
                          uint32_t stops) {
    size_t j = s[i] == ' ' ? i + 1 : i;
    stops |= CLASS_SPACE | CLASS_NUMBER;
    if (at(s, n, j).classes & (stops | CLASS_END)) return cut_lines(s, n, i);
    j = skip_other(s, n, j, stops);
    return stage->tail != NULL ? skip_any(s, n, j, stage->tail) : j;
}

/* (?i:'s|…)|[^\r\n\p{L}\p{N}]?WORD+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+… */
static size_t cut_words(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t width = stage->contractions ? contraction(s, n, i, true) : 0;
    if (width > 0) return i + width;
    character c = at(s, n, i);
    if (c.classes & stage->classes) return skip(s, n, i, stage->classes);
    if (c.classes & CLASS_NUMBER) return skip_at_most(s, n, i, CLASS_NUMBER, stage->max);
    if (!is_newline(c.code) && (at(s, n, i + c.width).classes & stage->classes))
        return skip(s, n, i + c.width, stage->classes);
    return cut_symbols(stage, s, n, i, stage->classes);
}

/* Letters without case and marks count as upper and as lower case. */
static bool is_upper(uint32_t classes) {
    return (classes & CLASS_MARK) || (classes & (CLASS_LETTER | CLASS_LOWER)) == CLASS_LETTER;
}

static bool is_lower(uint32_t classes) {
    return (classes & CLASS_MARK) || (classes & (CLASS_LETTER | CLASS_UPPER)) == CLASS_LETTER;
}

/* UPPER*LOWER+ at i: its end, else 0. Then the upper-case run, which is UPPER+LOWER* there, ends at
 * *upper. Without lower-case letters behind it, the run gives back down to its last letter that
 * counts as both. */
static size_t capitalised(const char *s, size_t n, size_t i, size_t *upper) {
    size_t j = i, both = 0;
    character c = at(s, n, j);
    for (; is_upper(c.classes); c = at(s, n, j)) {
        j += c.width;
        if (is_lower(c.classes)) both = j;
    }
    *upper = j;
    if (!is_lower(c.classes)) return both;
    for (; is_lower(c.classes); c = at(s, n, j)) j += c.width;
    return j;
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER* at i: its end, else 0. A mark may
 * be the optional character or the word's first. */
static size_t cased_word(const char *s, size_t n, size_t i) {
    character c = at(s, n, i);
    bool may_lead = !(c.classes & (CLASS_LETTER | CLASS_NUMBER)) && !is_newline(c.code);
    size_t after = i + c.width, upper_after = after, upper, end;
    if (may_lead && (end = capitalised(s, n, after, &upper_after)) > 0) return end;
    if ((end = capitalised(s, n, i, &upper)) > 0) return end;
    if (may_lead && upper_after > after) return upper_after;
    return upper > i ? upper : 0;
}

static size_t cut_cased(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t end = cased_word(s, n, i);
    if (end > 0) return stage->contractions ? end + contraction(s, n, end, true) : end;
    if (at(s, n, i).classes & CLASS_NUMBER) return skip_at_most(s, n, i, CLASS_NUMBER, stage->max);
    return cut_symbols(stage, s, n, i, CLASS_LETTER);
}

static bool ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* [ascii punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s…
 * at i: its end; 0 where nothing matches (numbers and controls without a letter behind them). */
static size_t deepseek3_match(const char *s, size_t n, size_t i) {
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
    if (at(s, n, j).classes & symbol) return skip_any(s, n, skip(s, n, j, symbol), "\r\n");
    return c.classes & CLASS_SPACE ? cut_lines(s, n, i) : 0;
}

static size_t cut_deepseek3(const cut_stage *stage, const char *s, size_t n, size_t i) {
    (void)stage;
    size_t end = deepseek3_match(s, n, i);
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
static size_t cut_runs(const cut_stage *stage, const char *s, size_t n, size_t i) {
    size_t end = runs_match(stage, s, n, i);
    if (end > 0) return end;
    do i += at(s, n, i).width;
    while (i < n && runs_match(stage, s, n, i) == 0);
    return i;
}

/* \s+$ : whitespace at the very end is a piece. */
static size_t cut_trailing(const cut_stage *stage, const char *s, size_t n, size_t i) {
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

/* The letters with case of the DeepSeek LLM pattern, as it spells them out. */
static const code_range cased_letters[] = {{'A', 'Z'},
                                           {'a', 'z'},
                                           {0xB5, 0xB5},
                                           {0xC0, 0xD6},
                                           {0xD8, 0xF6},
                                           {0xF8, 0x1BA},
                                           {0x1BC, 0x1BF},
                                           {0x1C4, 0x293},
                                           {0x295, 0x2AF},
                                           {0x370, 0x373},
                                           {0x376, 0x377},
                                           {0x37B, 0x37D},
                                           {0x37F, 0x37F},
                                           {0x386, 0x386},
                                           {0x388, 0x38A},
                                           {0x38C, 0x38C},
                                           {0x38E, 0x3A1},
                                           {0x3A3, 0x3F5},
                                           {0x3F7, 0x481},
                                           {0x48A, 0x52F},
                                           {0x531, 0x556},
                                           {0x10A0, 0x10C5},
                                           {0x13A0, 0x13F5},
                                           {0x13F8, 0x13FD},
                                           {0x1C90, 0x1CBA},
                                           {0x1CBD, 0x1CBF},
                                           {0x1D00, 0x1D2B},
                                           {0x1D6B, 0x1D77},
                                           {0x1D79, 0x1D9A},
                                           {0x1E00, 0x1F15},
                                           {0x1F18, 0x1F1D},
                                           {0x1F20, 0x1F45},
                                           {0x1F48, 0x1F4D},
                                           {0x1F50, 0x1F57},
                                           {0x1F59, 0x1F59},
                                           {0x1F5B, 0x1F5B},
                                           {0x1F5D, 0x1F5D},
                                           {0x1F5F, 0x1F7D},
                                           {0x1F80, 0x1FB4},
                                           {0x1FB6, 0x1FBC},
                                           {0x1FBE, 0x1FBE},
                                           {0x1FC2, 0x1FC4},
                                           {0x1FC6, 0x1FCC},
                                           {0x1FD0, 0x1FD3},
                                           {0x1FD6, 0x1FDB},
                                           {0x1FE0, 0x1FEC},
                                           {0x1FF2, 0x1FF4},
                                           {0x1FF6, 0x1FFC},
                                           {0x2102, 0x2102},
                                           {0x2107, 0x2107},
                                           {0x210A, 0x2113},
                                           {0x2115, 0x2115},
                                           {0x2119, 0x211D},
                                           {0x2124, 0x2124},
                                           {0x2126, 0x2126},
                                           {0x2128, 0x2128},
                                           {0x212A, 0x212D},
                                           {0x212F, 0x2134},
                                           {0x2139, 0x2139},
                                           {0x213C, 0x213F},
                                           {0x2145, 0x2149},
                                           {0x214E, 0x214E},
                                           {0x2183, 0x2184},
                                           {0x2C00, 0x2C7B},
                                           {0x2C7E, 0x2CE4},
                                           {0x2CEB, 0x2CEE},
                                           {0x2CF2, 0x2CF3},
                                           {0xA640, 0xA66D},
                                           {0xA680, 0xA69B},
                                           {0xA722, 0xA76F},
                                           {0xA771, 0xA787},
                                           {0xA78B, 0xA78E},
                                           {0xAB70, 0xABBF},
                                           {0xFB00, 0xFB06},
                                           {0xFB13, 0xFB17},
                                           {0xFF21, 0xFF3A},
                                           {0xFF41, 0xFF5A},
                                           {0x10400, 0x1044F},
                                           {0x104B0, 0x104D3},
                                           {0x104D8, 0x104FB},
                                           {0x10C80, 0x10CB2},
                                           {0x10CC0, 0x10CF2},
                                           {0x118A0, 0x118DF},
                                           {0x1E900, 0x1E943},
                                           {0, 0}};
static const code_range deepseek_marks[] = {
    {'!', '/'},       {':', '~'}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F},
    {0xFF1A, 0xFF5E}, {0, 0}};
static const code_range deepseek_cjk[] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}, {0, 0}};
static const code_range han_kana[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}, {0, 0}};
static const code_range bloom_stops[] = {
    {0x60C, 0x60C},   {0x6D4, 0x6D4},   {0x964, 0x964}, {0x2026, 0x2026},
    {0x3001, 0x3002}, {0xFF0C, 0xFF0C}, {0, 0}};
#define GPT2                                                                                       \
    { .cut = cut_gpt2 }
#define RUNS(...)                                                                                  \
    { .cut = cut_runs, __VA_ARGS__ }
#define DIGIT RUNS(.classes = CLASS_NUMBER, .max = 1)
#define DIGITS_3 RUNS(.classes = CLASS_NUMBER, .max = 3)
#define ASCII_DIGITS_3 RUNS(.ascii = "0123456789", .min = 3, .max = 3)
#define WORDS(digits, ...)                                                                         \
    { .cut = cut_words, .max = digits, __VA_ARGS__ }
#define LETTERS .classes = CLASS_LETTER
#define ENGLISH .contractions = true
#define LINES .tail = "\r\n"
#define DEEPSEEK3                                                                                  \
    DIGITS_3, RUNS(.ranges = han_kana), {                                                          \
        .cut = cut_deepseek3                                                                       \
    }

static const pretokenizer known[] = {
    {.names = " default ",
     .stages = {RUNS(.classes = CLASS_PUNCT, .ascii = "$+<=>^~|"), GPT2,
                RUNS(.classes = CLASS_NUMBER), ASCII_DIGITS_3}},
    {.names = " gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code gigachat "
              "a.x-4.0 mellum roberta-bpe jais exaone4 trillion granite-docling ",
     .stages = {GPT2}},
    {.names = " mpt olmo modern-bert gpt-neox ", .stages = {GPT2}, .nfc = true},
    {.names = " starcoder refact smollm codeshell exaone minerva-7b mellum2 ",
     .stages = {DIGIT, GPT2}},
    {.names = " command-r ", .stages = {DIGIT, GPT2}, .nfc = true},
    {.names = " falcon ",
     .stages = {RUNS(.classes = CLASS_PUNCT, .ascii = "$+<=>^~|`"), GPT2, ASCII_DIGITS_3}},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     .stages = {WORDS(3, LETTERS, ENGLISH, LINES)},
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .stages = {WORDS(3, LETTERS, ENGLISH, LINES)}},
    {.names = " qwen2 kormo f2llmv2 megrez ",
     .stages = {WORDS(1, LETTERS, ENGLISH, LINES)},
     .nfc = true},
    {.names = " stablelm2 deepseek-r1-qwen hunyuan solar-open grok-2 bailingmoe bailingmoe2 "
              "llada-moe ",
     .stages = {WORDS(1, LETTERS, ENGLISH, LINES)}},
    {.names = " qwen35 ",
     .stages = {WORDS(1, .classes = CLASS_LETTER | CLASS_MARK, ENGLISH, LINES)},
     .nfc = true},
    {.names = " seed-coder ", .stages = {WORDS(1, LETTERS, ENGLISH)}},
    {.names = " ufakzeka ", .stages = {WORDS(1, LETTERS, LINES)}},
    {.names = " minicpm5 ",
     .stages = {DIGITS_3, WORDS(0, LETTERS, ENGLISH, LINES)},
     .ignore_merges = true},
    {.names = " gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m ",
     .stages = {{.cut = cut_cased, .contractions = true, .max = 3, .tail = "\r\n/"}}},
    {.names = " tekken ",
     .stages = {{.cut = cut_cased, .max = 1, .tail = "\r\n/"}},
     .ignore_merges = true,
     .adds_bos = true},
    {.names = " deepseek-llm ",
     .stages = {RUNS(.ascii = "\r\n", .max = 1),
                RUNS(.ranges = cased_letters, .lead = LEAD_SPACE),
                RUNS(.ranges = deepseek_marks, .lead = LEAD_SPACE),
                {.cut = cut_trailing},
                RUNS(.ranges = deepseek_cjk),
                RUNS(.classes = CLASS_NUMBER)}},
    {.names = " deepseek-coder ",
     .stages = {RUNS(.ascii = "\r\n", .max = 1), RUNS(.classes = CLASS_LETTER, .lead = LEAD_SPACE),
                RUNS(.classes = CLASS_PUNCT, .lead = LEAD_SPACE), RUNS(.ranges = deepseek_cjk),
                DIGIT}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", .stages = {DEEPSEEK3}},
    {.names = " poro-chat bloom gpt3-finnish ",
     .stages = {RUNS(.negated = true, .ascii = "(|.,!?)", .ranges = bloom_stops,
                     .classes = CLASS_SPACE, .lead = LEAD_BLANK)}},
    {.names = " viking ",
     .stages = {RUNS(.negated = true, .ascii = "(|.,!?)", .ranges = bloom_stops,
                     .classes = CLASS_SPACE, .lead = LEAD_BLANK),
                DIGIT}},
};

const pretokenizer *pretokenizer_find(const char *name, size_t n) {
    char padded[64];
    if (n == 0 || n + 3 > sizeof padded || memchr(name, ' ', n) != NULL) return NULL;
    padded[0] = ' ';
    memcpy(padded + 1, name, n);
    memcpy(padded + 1 + n, " ", 2);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(known[i].names, padded) != NULL) return &known[i];
    return NULL;
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
