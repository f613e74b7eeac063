/* SentencePiece-style tokenizers on small vocabularies of our own. */
#include "unit.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gguf_write.h"
#include "text/tokenizer_internal.h"

typedef struct {
    const char *text;
    float score;
    int32_t type;
} piece;

static tokenizer *open_written(gguf_writer *w) {
    char *path = gguf_write_temp(w);
    gguf *g;
    tokenizer *t = NULL;
    ridge_error err = {0};
    assert_int_equal(gguf_open(&g, path, &err), RIDGE_OK);
    if (tokenizer_open(&t, g, NULL, &err) != RIDGE_OK) fail_msg("%s", err.text);
    gguf_close(g);
    remove(path);
    mem_free(path);
    gguf_write_free(w);
    return t;
}

static tokenizer *open_pieces(const piece *pieces, size_t n) {
    const char *texts[64];
    float scores[64];
    int32_t types[64];
    gguf_writer w = {0};
    for (size_t i = 0; i < n; i++) {
        texts[i] = pieces[i].text;
        scores[i] = pieces[i].score;
        types[i] = pieces[i].type;
    }
    gguf_write_string(&w, "general.architecture", "llama");
    gguf_write_string(&w, "tokenizer.ggml.model", "llama");
    gguf_write_strings(&w, "tokenizer.ggml.tokens", texts, n);
    gguf_write_array(&w, "tokenizer.ggml.scores", GGUF_F32, scores, n);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    gguf_write_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    return open_written(&w);
}

static void expect(const tokenizer *t, const char *text, const int32_t *want, size_t n) {
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(
        tokenizer_encode(t, text, strlen(text), (tokenizer_options){0}, &ids, &n_ids, NULL),
        RIDGE_OK);
    bool same = n == n_ids;
    for (size_t i = 0; i < n && same; i++) same = ids[i] == want[i];
    if (!same) fail_msg("'%s' has other ids", text);
    mem_free(ids);
}

/* The ids are those of the sentencepiece package 0.2.3 for a model of these pieces. */
static void test_unused_pieces(void **state) {
    (void)state;
    static const piece pieces[] = {
        {"<unk>", 0, TOKEN_UNKNOWN}, {"<s>", 0, TOKEN_CONTROL},   {"</s>", 0, TOKEN_CONTROL},
        {"ab", -1, TOKEN_NORMAL},    {"cd", -2, TOKEN_UNUSED},    {"abcd", -3, TOKEN_UNUSED},
        {"abcde", -4, TOKEN_UNUSED}, {"the", -5, TOKEN_NORMAL},   {"th", -6, TOKEN_UNUSED},
        {"r", -7, TOKEN_UNUSED},     {"a", -8, TOKEN_NORMAL},     {"b", -8, TOKEN_NORMAL},
        {"c", -8, TOKEN_NORMAL},     {"d", -8, TOKEN_NORMAL},     {"e", -8, TOKEN_NORMAL},
        {"t", -8, TOKEN_NORMAL},     {"h", -8, TOKEN_NORMAL},     {"<x>", 0, TOKEN_USER},
        {"zz", -9, TOKEN_UNUSED},    {"aa", -3.5f, TOKEN_UNUSED},
    };
    static const struct {
        const char *text;
        int32_t ids[9];
        size_t n;
    } cases[] = {
        {"abcd", {3, 12, 13}, 3},
        {"abcde", {3, 12, 13, 14}, 4},
        {"ab<x>cde", {3, 17, 12, 13, 14}, 5},
        {"th", {15, 16}, 2},
        {"the", {7}, 1},
        {"rr", {0}, 1}, /* an unused character is unknown, and a run of them one token */
        {"arzzb", {10, 0, 11}, 3},
        {"aaa", {10, 10, 10}, 3},
        {"aaaa", {10, 10, 10, 10}, 4},
        {"xyzab", {0, 3}, 2},
        {"abcdabcdeth", {3, 12, 13, 3, 12, 13, 14, 15, 16}, 9},
    };
    tokenizer *t = open_pieces(pieces, sizeof pieces / sizeof *pieces);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(t, cases[i].text, cases[i].ids, cases[i].n);
    tokenizer_close(t);
}

static int32_t gemma4_type(size_t id, const char *text) {
    if (strcmp(text, "<start>") == 0 || strcmp(text, "<tool|>") == 0) return TOKEN_USER;
    if (strcmp(text, "<unk>") == 0) return TOKEN_UNKNOWN;
    return id < 5 ? TOKEN_CONTROL : id < 5 + 256 ? TOKEN_BYTE : TOKEN_NORMAL;
}

static size_t json_texts(const json_t *array, const char **texts) {
    for (size_t i = 0; i < json_array_size(array); i++)
        texts[i] = json_string_value(json_array_get(array, i));
    return json_array_size(array);
}

static tokenizer *open_gemma4(const json_t *j, const char *model, const char *pre) {
    const char *tokens[1024], *merges[1024];
    int32_t types[1024];
    gguf_writer w = {0};
    size_t n = json_texts(json_object_get(j, "tokens"), tokens);
    size_t n_merges = json_texts(json_object_get(j, "merges"), merges);
    for (size_t i = 0; i < n; i++) types[i] = gemma4_type(i, tokens[i]);
    gguf_write_string(&w, "general.architecture", "llama");
    gguf_write_string(&w, "tokenizer.ggml.model", model);
    if (pre != NULL) gguf_write_string(&w, "tokenizer.ggml.pre", pre);
    gguf_write_strings(&w, "tokenizer.ggml.tokens", tokens, n);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    gguf_write_strings(&w, "tokenizer.ggml.merges", merges, n_merges);
    gguf_write_u32(&w, "tokenizer.ggml.bos_token_id", 2);
    gguf_write_u32(&w, "tokenizer.ggml.unknown_token_id", 3);
    gguf_write_bool(&w, "tokenizer.ggml.add_bos_token", false);
    return open_written(&w);
}

/* Checked against Hugging Face tokenizers with a vocabulary of our own: see
 * scripts/make_gemma4_fixture.py. A literal U+2581 comes back as a space. */
static void test_gemma4(void **state) {
    (void)state;
    json_t *j = json_load_file("tests/text/fixtures/gemma4.json", JSON_ALLOW_NUL, NULL), *row, *id;
    assert_non_null(j);
    tokenizer *t = open_gemma4(j, "gemma4", NULL);
    assert_true(tokenizer_adds_bos(t)); /* whatever the file says */
    size_t i, k;
    json_array_foreach(json_object_get(j, "cases"), i, row) {
        int32_t want[512];
        json_array_foreach(json_array_get(row, 1), k, id) want[k] = (int32_t)json_integer_value(id);
        expect(t, json_string_value(json_array_get(row, 0)), want, k);
    }
    assert_true(i >= 150);
    tokenizer_close(t);
    /* Byte-level in name only: the same text, and a BOS as the file says. */
    t = open_gemma4(j, "gpt2", "sarvam-moe");
    assert_string_equal(tokenizer_kind(t), "gemma4");
    assert_false(tokenizer_adds_bos(t));
    tokenizer_close(t);
    t = open_gemma4(j, "gpt2", "granite-embed-multi-311m");
    assert_true(tokenizer_adds_bos(t));
    tokenizer_close(t);
    json_decref(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unused_pieces),
        cmocka_unit_test(test_gemma4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
