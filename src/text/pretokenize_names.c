/* text/pretokenize: the names of pre-tokenizers and what each means.
 *
 * The names are those that llama.cpp's llama-vocab.cpp accepts for byte-level BPE, and the patterns
 * those that it lists; where the published tokenizer says more (NFC, case folding, the script of a
 * character), the published one is followed. Its "whitespace" is missing: that kind writes no
 * bytes.
 */
#include "text/pretokenize_internal.h"

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
static const code_range hangul[] = {{0x3131, 0x318E}, {0xAC00, 0xD7A3}, {0, 0}};
static const code_range bopomofo[] = {{0x3105, 0x312F}, {0, 0}};
static const code_range youtu_marks[] = {
    {0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D}, {0x2026, 0x2026}, {0x3001, 0x303F},
    {0xFE30, 0xFE4F}, {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B}, {0, 0}};
/* Scripts that are written without spaces. llama.cpp's list has U+8C48 for U+F900: the character
 * was normalised on its way there. */
static const code_range afmoe_scripts[] = {{0xE40, 0xEFF},   {0x1000, 0x109F},
                                           {0x1100, 0x11FF}, {0x1780, 0x17FF},
                                           {0x2F00, 0x2FDF}, {0x3040, 0x30FF},
                                           {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},
                                           {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F},
                                           {0xAC00, 0xD7AF}, {0xF900, 0xFAFF},
                                           {0xFF65, 0xFF9F}, {0, 0}};
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
#define CASED(digits, ...)                                                                         \
    { .cut = cut_cased, .max = digits, __VA_ARGS__ }
#define PATHS .tail = "\r\n/"
#define DEEPSEEK3(...)                                                                             \
    { .cut = cut_deepseek3, __VA_ARGS__ }
#define THREES(class)                                                                              \
    { .cut = cut_threes, .classes = class }
#define MATCHES(function)                                                                          \
    { .cut = cut_matches, .match = function }

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
    {.names = " dbrx smaug-bpe glm4 glm5 chatglm-bpe ",
     .stages = {WORDS(3, LETTERS, ENGLISH, LINES)}},
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
    {.names = " laguna ", .stages = {RUNS(.ascii = "\n"), WORDS(1, LETTERS, ENGLISH, LINES)}},
    {.names = " jais-2 ", .stages = {WORDS(3, LETTERS, ENGLISH, LINES), {.cut = cut_blanks}}},
    {.names = " exaone-moe ",
     .stages = {{.cut = cut_phrases, .max = 1, ENGLISH, LINES, .one_tail = true}}},
    {.names = " gpt-4o llama4 kanana2 talkie minimax-m2 ", .stages = {CASED(3, ENGLISH, PATHS)}},
    {.names = " granite-embed-multi-97m ",
     .stages = {CASED(3, ENGLISH, PATHS)},
     .ignore_merges = true},
    {.names = " kimi-k2 ", .stages = {CASED(3, ENGLISH, LINES, .han_apart = true)}},
    {.names = " tiny_aya cohere2moe ",
     .stages = {{.cut = cut_bounded_digits}, THREES(CLASS_DIGIT), CASED(3, ENGLISH, PATHS)}},
    {.names = " youtu ",
     .stages = {RUNS(.ranges = hangul), RUNS(.ranges = youtu_marks), RUNS(.ranges = bopomofo),
                RUNS(.ranges = han_kana), CASED(1, ENGLISH, PATHS)},
     .ignore_merges = true},
    {.names = " tekken ", .stages = {CASED(1, PATHS)}, .ignore_merges = true, .adds_bos = true},
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
    {.names = " deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     .stages = {DIGITS_3, RUNS(.ranges = han_kana), DEEPSEEK3(LINES)}},
    {.names = " spark2_5 ",
     .stages = {DIGITS_3, RUNS(.ranges = han_kana), DEEPSEEK3(.tail = NULL), DIGIT}},
    {.names = " afmoe ",
     .stages = {RUNS(.classes = CLASS_NUMBER), THREES(CLASS_NUMBER), RUNS(.ranges = afmoe_scripts),
                DEEPSEEK3(LINES)}},
    {.names = " superbpe ", .stages = {RUNS(.classes = CLASS_NUMBER), {.cut = cut_before_threes}}},
    {.names = " chameleon ",
     .stages = {MATCHES(match_sentinel), MATCHES(match_image), MATCHES(match_blanks), DIGIT,
                RUNS(.classes = CLASS_PUNCT, .ascii = "$+<=>^`|~", .max = 1), GPT2},
     .adds_bos = true},
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
