/* SentencePiece-style tokenizers on small vocabularies of our own. */
#include "unit.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unused_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
