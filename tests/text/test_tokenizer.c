/* text/tokenizer: the goldens of ../shared, published cases, cost, and running out of memory. */
#include "unit.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cached_model.h"
#include "gguf_write.h"
#include "text/tokenizer.h"
#include "text/tokenizer_internal.h"

#define VOCABS "../shared/vocab/ggml-vocab-"

static tokenizer *open_file(const char *path) {
    ridge_error err = {0};
    gguf *g;
    tokenizer *t = NULL;
    struct stat st;
    if (stat(path, &st) != 0) {
        print_message("%s is absent\n", path);
        return NULL;
    }
    if (gguf_open(&g, path, &err) != RIDGE_OK || tokenizer_open(&t, g, NULL, &err) != RIDGE_OK)
        fail_msg("%s: %s", path, err.text);
    gguf_close(g);
    return t;
}

static tokenizer *open_model(const char *name) {
    const char *path = cached_model(name);
    return path != NULL ? open_file(path) : NULL;
}

static json_t *load_json(const char *path) {
    json_error_t e;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (j == NULL) print_message("%s: %s\n", path, e.text);
    return j;
}

static size_t encode(const tokenizer *t, const char *s, size_t n, bool special, int32_t **ids) {
    ridge_error err = {0};
    size_t n_ids;
    tokenizer_options o = {.parse_special = special};
    if (tokenizer_encode(t, s, n, o, ids, &n_ids, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return n_ids;
}

static void expect_ids(const tokenizer *t, const char *s, size_t n, bool special,
                       const int32_t *want, size_t n_want) {
    int32_t *ids;
    size_t n_ids = encode(t, s, n, special, &ids);
    bool same = n_ids == n_want && memcmp(ids, want, n_want * sizeof *ids) == 0;
    if (!same) {
        for (size_t i = 0; i < n_ids; i++) print_message("%d ", ids[i]);
        fail_msg("%s: ids of '%.*s'", tokenizer_kind(t), (int)n, s);
    }
    mem_free(ids);
}

static char *decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, size_t *len) {
    buf b = {0};
    ridge_error err = {0};
    assert_int_equal(tokenizer_decode(t, ids, n, special, &b, &err), RIDGE_OK);
    *len = b.len;
    return buf_take(&b);
}

/* The stream adds up to the whole, with what is not UTF-8 replaced as in the whole. */
static void expect_stream(const tokenizer *t, const int32_t *ids, size_t n) {
    size_t len, width;
    char *whole = decode(t, ids, n, false, &len);
    buf want = {0}, got = {0};
    detokenizer d = {0};
    for (size_t i = 0; i < len; i += width) {
        bool valid = utf8_decode(whole + i, len - i, &width) != UTF8_INVALID;
        buf_append(&want, valid ? whole + i : "\xEF\xBF\xBD", valid ? width : 3);
    }
    for (size_t i = 0; i < n; i++) {
        detokenizer_push(&d, t, ids[i], false, &got);
        assert_true(utf8_valid(got.data != NULL ? got.data : "", got.len));
    }
    detokenizer_finish(&d, &got);
    assert_int_equal(got.len, want.len);
    if (got.len > 0) assert_memory_equal(got.data, want.data, got.len);
    buf_free(&want);
    buf_free(&got);
    mem_free(whole);
}

static size_t json_ids(const json_t *list, int32_t *out, size_t capacity) {
    size_t n = json_array_size(list);
    assert_true(n <= capacity);
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

/* ---- goldens ---- */

static void golden(const char *model) {
    char path[256];
    snprintf(path, sizeof path, "../shared/golden/tokenizer-%s.json", model);
    tokenizer *t = open_model(model);
    json_t *j = t != NULL ? load_json(path) : NULL, *c;
    if (j == NULL) {
        tokenizer_close(t);
        skip();
    }
    size_t i;
    static int32_t want[1 << 16];
    json_array_foreach(json_object_get(j, "cases"), i, c) {
        const json_t *text = json_object_get(c, "text");
        size_t n = json_ids(json_object_get(c, "ids"), want, 1 << 16);
        expect_ids(t, json_string_value(text), json_string_length(text),
                   json_is_true(json_object_get(c, "parse_special")), want, n);
        expect_stream(t, want, n);
    }
    assert_true(i > 400);
    json_decref(j);
    tokenizer_close(t);
}

static void test_golden_smollm2(void **state) {
    (void)state;
    golden("smollm2-135m");
}

static void test_golden_qwen2(void **state) {
    (void)state;
    golden("qwen2.5-coder-0.5b");
}

static void test_golden_gemma3(void **state) {
    (void)state;
    golden("gemma3-270m");
}

static void rows(const tokenizer *t, const json_t *table, const char *key, bool special) {
    size_t i;
    json_t *row;
    int32_t want[256];
    json_array_foreach(table, i, row) {
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, key);
        if (ids == NULL) continue;
        size_t n = json_ids(ids, want, 256);
        expect_ids(t, json_string_value(text), json_string_length(text), special, want, n);
    }
}

static void test_public_cases(void **state) {
    (void)state;
    static const char *const models[][2] = {
        {"qwen2.5-coder-0.5b", "qwen"}, {"smollm2-135m", "smollm2"}, {"gemma3-270m", "gemma"}};
    json_t *j = load_json("../shared/cases/tokenizer.json");
    if (j == NULL) skip();
    for (int i = 0; i < 3; i++) {
        tokenizer *t = open_model(models[i][0]);
        if (t == NULL) continue;
        rows(t, json_object_get(j, "plain"), models[i][1], false);
        rows(t, json_object_get(j, "parse_special_on"), models[i][1], true);
        rows(t, json_object_get(j, "parse_special_off"), models[i][1], false);
        tokenizer_close(t);
    }
    json_decref(j);
}

/* Strings separated by a line __ggml_vocab_test__; as many lines of ids. */
static void vocab_cases(const char *name) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[256];
    char *in, *out;
    size_t n_in, n_out;
    ridge_error err = {0};
    snprintf(path, sizeof path, VOCABS "%s.gguf", name);
    tokenizer *t = open_file(path);
    if (t == NULL) return;
    snprintf(path, sizeof path, VOCABS "%s.gguf.inp", name);
    assert_int_equal(file_read(&in, &n_in, path, 1 << 20, &err), RIDGE_OK);
    snprintf(path, sizeof path, VOCABS "%s.gguf.out", name);
    assert_int_equal(file_read(&out, &n_out, path, 1 << 20, &err), RIDGE_OK);
    char *line = out;
    size_t n_cases = 0;
    for (char *s = in, *end; (end = strstr(s, separator)) != NULL; n_cases++) {
        int32_t want[1024];
        size_t n = 0;
        for (; *line != '\n' && *line != '\0'; line += strspn(line, " "))
            want[n++] = (int32_t)strtol(line, &line, 10);
        line++;
        expect_ids(t, s, (size_t)(end - s), true, want, n);
        size_t len;
        char *text = decode(t, want, n, true, &len);
        assert_int_equal(len, end - s);
        assert_memory_equal(text, s, len);
        mem_free(text);
        expect_stream(t, want, n);
        s = end + sizeof separator - 1;
    }
    assert_true(n_cases > 40);
    mem_free(in);
    mem_free(out);
    tokenizer_close(t);
}

static void test_vocab_files(void **state) {
    (void)state;
    static const char *const names[] = {"command-r", "deepseek-coder", "deepseek-llm",
                                        "falcon",    "gpt-2",          "llama-bpe",
                                        "llama-spm", "phi-3",          "starcoder"};
    struct stat st;
    if (stat("../shared/vocab", &st) != 0) skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) vocab_cases(names[i]);
}

/* ---- pre-tokenizers against Hugging Face's ---- */

typedef struct {
    const json_t *want;
    size_t n;
    bool same;
} lengths;

static bool check_length(void *context, const char *s, size_t n) {
    lengths *l = context;
    (void)s;
    l->same = l->same && (size_t)json_integer_value(json_array_get(l->want, l->n)) == n;
    l->n++;
    return true;
}

static void test_pretokenizers(void **state) {
    (void)state;
    json_t *j = load_json("tests/text/fixtures/pretokenize.json"), *row, *want;
    size_t i;
    const char *name;
    assert_non_null(j);
    json_array_foreach(j, i, row) {
        const json_t *text = json_object_get(row, "text");
        json_object_foreach(json_object_get(row, "bytes"), name, want) {
            const pretokenizer *p = pretokenizer_find(name, strlen(name));
            assert_non_null(p);
            lengths l = {want, 0, true};
            assert_true(pretokenize(p, json_string_value(text), json_string_length(text),
                                    check_length, &l));
            if (!l.same || l.n != json_array_size(want))
                fail_msg("%s cuts '%s' otherwise", name, json_string_value(text));
        }
    }
    json_decref(j);
}

static const struct {
    const char *name;
    bool ignore_merges, adds_bos;
} rare[] = {{"kimi-k2", false, false},    {"chameleon", false, true},
            {"tiny_aya", false, false},   {"cohere2moe", false, false},
            {"superbpe", false, false},   {"afmoe", false, false},
            {"jais-2", false, false},     {"youtu", true, false},
            {"exaone-moe", false, false}, {"laguna", false, false},
            {"spark2_5", false, false},   {"glm5", false, false},
            {"minicpm5", true, false},    {"granite-embed-multi-97m", true, false},
            {"tekken", true, true},       {"llama-bpe", true, true},
            {"gpt-4o", false, false},     {"deepseek-v3", false, false}};

static void test_pretokenizer_names(void **state) {
    (void)state;
    static const char *const known[] = {
        "gpt-2",  "llama-bpe", "qwen2",     "qwen35", "smollm",  "deepseek-llm", "deepseek-coder",
        "falcon", "starcoder", "command-r", "mpt",    "default", "refact",       "llama3"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_non_null(pretokenizer_find(known[i], strlen(known[i])));
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++) {
        const pretokenizer *p = pretokenizer_find(rare[i].name, strlen(rare[i].name));
        if (p == NULL) fail_msg("%s is unknown", rare[i].name);
        assert_int_equal(p->ignore_merges, rare[i].ignore_merges);
        assert_int_equal(p->adds_bos, rare[i].adds_bos);
    }
    assert_null(pretokenizer_find("", 0));
    assert_null(pretokenizer_find("gpt", 3));
    assert_null(pretokenizer_find("gpt-2 phi-2", 11));
}

/* ---- a small vocabulary of our own ---- */

static void count_warning(void *context, log_level level, const char *line) {
    assert_non_null(strstr(line, "no-such"));
    if (level == LOG_WARN) ++*(int *)context;
}

/* Every byte but 0x04, and merges that make "ab", "abab", "th", "the". */
static char *write_small(const char *pre) {
    static const char *const merges[] = {"a b", "ab ab", "t h", "th e"};
    const char *tokens[270];
    char text[256][8];
    int32_t types[270];
    size_t n = 0;
    gguf_writer w = {0};
    for (uint32_t code = 0x21; code < 0x144; code++) {
        size_t len;
        char bytes[4], byte;
        size_t width = utf8_encode(code, bytes);
        if (!bpe_token_bytes(bytes, width, &byte, &len) || byte == 0x04) continue;
        memcpy(text[n], bytes, width);
        text[n][width] = '\0';
        tokens[n] = text[n];
        types[n++] = TOKEN_NORMAL;
    }
    static const char *const more[] = {"ab", "abab", "th", "the", "<|end|>", "  "};
    for (int i = 0; i < 6; i++) {
        tokens[n] = more[i];
        types[n++] = i < 4 ? TOKEN_NORMAL : i == 4 ? TOKEN_CONTROL : TOKEN_USER;
    }
    gguf_write_string(&w, "general.architecture", "llama");
    gguf_write_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_write_string(&w, "tokenizer.ggml.pre", pre);
    gguf_write_strings(&w, "tokenizer.ggml.tokens", tokens, n);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    gguf_write_strings(&w, "tokenizer.ggml.merges", merges, 4);
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)n - 2);
    char *path = gguf_write_temp(&w);
    gguf_write_free(&w);
    return path;
}

static void test_unknown_pretokenizer_warns_once(void **state) {
    (void)state;
    char *path = write_small("no-such");
    int warnings = 0;
    log_sink log = {.write = count_warning, .context = &warnings};
    gguf *g;
    tokenizer *t;
    assert_int_equal(gguf_open(&g, path, NULL), RIDGE_OK);
    assert_int_equal(tokenizer_open(&t, g, &log, NULL), RIDGE_OK);
    assert_int_equal(warnings, 1);
    assert_string_equal(tokenizer_kind(t), "bpe (default)");
    assert_true(tokenizer_is_eog(t, tokenizer_eos(t)));
    tokenizer_close(t);
    gguf_close(g);
    remove(path);
    mem_free(path);
}

static void test_dropped_byte(void **state) {
    (void)state;
    char *path = write_small("gpt-2");
    tokenizer *t = open_file(path);
    int32_t *ids;
    assert_int_equal(encode(t, "\x04", 1, false, &ids), 0);
    mem_free(ids);
    assert_int_equal(encode(t, "abababab\x04", 9, false, &ids), 2);
    mem_free(ids);
    assert_int_equal(encode(t, "  <|end|>", 9, true, &ids), 2);
    mem_free(ids);
    assert_int_equal(encode(t, "  <|end|>", 9, false, &ids), 8);
    mem_free(ids);
    tokenizer_close(t);
    remove(path);
    mem_free(path);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    static const char text[] = "the abab  <|end|> abababababababababababababababababababab!";
    char *path = write_small("qwen2");
    gguf *g;
    assert_int_equal(gguf_open(&g, path, NULL), RIDGE_OK);
    for (long n = 1;; n++) {
        ridge_error err = {0};
        tokenizer *t = NULL;
        int32_t *ids = NULL;
        size_t n_ids;
        mem_fail_after(n);
        ridge_status status = tokenizer_open(&t, g, NULL, &err);
        if (status == RIDGE_OK)
            status =
                tokenizer_encode(t, text, sizeof text - 1,
                                 (tokenizer_options){.parse_special = true}, &ids, &n_ids, &err);
        mem_fail_after(0);
        mem_free(ids);
        tokenizer_close(t);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
        assert_true(n < 1000);
    }
    gguf_close(g);
    remove(path);
    mem_free(path);
}

/* ---- single reports ---- */

#define IDS(...)                                                                                   \
    (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(s) s, sizeof(s) - 1

static void test_reports_gemma3(void **state) {
    (void)state;
    tokenizer *t = open_model("gemma3-270m");
    if (t == NULL) skip();
    expect_ids(t, TEXT("<start_of_turn> hi"), true, IDS(105, 5631));
    expect_ids(t, TEXT("\xF1\x80\x80\x80"), false, IDS(479, 366, 366, 366));
    expect_ids(t,
               TEXT("a\xE2\x96\x81"
                    "b"),
               false, IDS(236746, 518));
    int32_t *ids;
    size_t n;
    for (int i = 0; i < 2; i++) {
        const char *s = i == 0 ? "<bos>Hello world" : "Hello world";
        tokenizer_options o = {.parse_special = true, .add_bos = true};
        assert_int_equal(tokenizer_encode(t, s, strlen(s), o, &ids, &n, NULL), RIDGE_OK);
        assert_int_equal(n, 3);
        assert_memory_equal(ids, ((int32_t[]){2, 9259, 1902}), sizeof(int32_t[3]));
        mem_free(ids);
    }
    size_t len;
    char *text = decode(t, IDS(1594), true, &len);
    assert_string_equal(text, " test");
    mem_free(text);
    assert_true(tokenizer_is_eog(t, 1));
    assert_true(tokenizer_is_eog(t, 106));
    assert_false(tokenizer_is_eog(t, 212)); /* </s>, here a tag of HTML */
    tokenizer_close(t);
}

static void test_reports_bpe(void **state) {
    (void)state;
    tokenizer *qwen = open_model("qwen2.5-coder-0.5b"), *smol = open_model("smollm2-135m");
    if (qwen != NULL) {
        expect_ids(qwen, TEXT("Hi <|im_end|> there"), true, IDS(13048, 220, 151645, 1052));
        expect_ids(qwen, TEXT(" \n \n"), true, IDS(31906));
        for (int32_t id = 0; id < 151643; id++) { /* no token decodes to nothing */
            size_t n;
            tokenizer_token_bytes(qwen, id, false, &n);
            assert_true(n > 0);
        }
    }
    if (smol != NULL) {
        expect_ids(smol,
                   TEXT("a\x04"
                        "b"),
                   false, IDS(81, 82));
        expect_ids(smol,
                   TEXT("a\xF1\x80\x80\x80"
                        "b"),
                   false, IDS(81, 218, 218, 218, 82));
        /* A character over three tokens: nothing leaves before the last. */
        detokenizer d = {0};
        buf out = {0};
        static const int32_t hand[] = {10813, 235, 229, 7906};
        static const size_t lengths_after[] = {0, 0, 4, 4};
        for (int i = 0; i < 4; i++) {
            detokenizer_push(&d, smol, hand[i], false, &out);
            assert_int_equal(out.len, lengths_after[i]);
        }
        detokenizer_finish(&d, &out);
        assert_string_equal(out.data, "\xF0\x9F\x91\x8B\xEF\xBF\xBD");
        buf_free(&out);
    }
    tokenizer_close(qwen);
    tokenizer_close(smol);
}

/* ---- cost ---- */

/* Seconds of the processor for n bytes of a text. */
typedef double (*cost_fn)(const void *context, const char *s, size_t n);

/* n bytes of the unit over and over, and twice as many. A busy machine may spoil a measurement, but
 * not eight in a row. */
static void assert_linear(const char *name, const char *unit, size_t n, cost_fn seconds,
                          const void *context) {
    size_t width = strlen(unit);
    char *s = mem_alloc(2 * n);
    for (size_t i = 0; i < 2 * n; i++) s[i] = unit[i % width];
    for (int attempt = 1;; attempt++) {
        double one = seconds(context, s, n), two = seconds(context, s, 2 * n);
        if (two <= 3 * one + 0.02) break;
        if (attempt == 8) fail_msg("%s, '%s': %.3f s, twice as much %.3f s", name, unit, one, two);
    }
    mem_free(s);
}

static double seconds_of_encoding(const void *context, const char *s, size_t n) {
    int32_t *ids;
    clock_t start = clock();
    encode(context, s, n, true, &ids);
    clock_t end = clock();
    mem_free(ids);
    return (double)(end - start) / CLOCKS_PER_SEC;
}

static void test_cost_is_linear(void **state) {
    (void)state;
    static const char *const units[] = {"a",
                                        "ab",
                                        " ",
                                        "\n",
                                        "-",
                                        "_",
                                        "\xE4\xB8\x96",
                                        "1",
                                        "\t ",
                                        "'",
                                        "a\xCC\x81",
                                        "\xCC\x81\xCC\xA3",
                                        "\xFF",
                                        " a"};
    static const char *const names[] = {"gpt-2", "deepseek-llm", "llama-spm", "llama-bpe",
                                        "command-r"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[256];
        snprintf(path, sizeof path, VOCABS "%s.gguf", names[k]);
        tokenizer *t = open_file(path);
        if (t == NULL) skip();
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            assert_linear(names[k], units[i], 150000, seconds_of_encoding, t);
        tokenizer_close(t);
    }
}

static bool count_piece(void *context, const char *s, size_t n) {
    (void)s;
    *(size_t *)context += n;
    return true;
}

static double seconds_of_cutting(const void *context, const char *s, size_t n) {
    size_t sum = 0;
    clock_t start = clock();
    assert_true(pretokenize(context, s, n, count_piece, &sum));
    clock_t end = clock();
    assert_int_equal(sum, n);
    return (double)(end - start) / CLOCKS_PER_SEC;
}

/* The patterns that look ahead over a run of digits or spaces read it a bounded number of times. */
static void test_rare_patterns_are_linear(void **state) {
    (void)state;
    static const char *const units[] = {
        "1",          " ",      "\n", "a ",     "1a",      "12 ", "<sentinel:", "12\n",
        "IMGIMGAAAA", "\u0661", "!",  "\u4e16", "a\u0301", " \n", "\u00bd1",    "\xFE"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        for (size_t i = 0; i < sizeof rare / sizeof *rare; i++)
            assert_linear(rare[i].name, units[u], 240000, seconds_of_cutting,
                          pretokenizer_find(rare[i].name, strlen(rare[i].name)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rare_patterns_are_linear),
        cmocka_unit_test(test_golden_smollm2),
        cmocka_unit_test(test_golden_qwen2),
        cmocka_unit_test(test_golden_gemma3),
        cmocka_unit_test(test_public_cases),
        cmocka_unit_test(test_vocab_files),
        cmocka_unit_test(test_pretokenizers),
        cmocka_unit_test(test_pretokenizer_names),
        cmocka_unit_test(test_unknown_pretokenizer_warns_once),
        cmocka_unit_test(test_dropped_byte),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_reports_gemma3),
        cmocka_unit_test(test_reports_bpe),
        cmocka_unit_test(test_cost_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
