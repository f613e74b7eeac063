/* The lower bound of a text's tokens: never above what encoding gives, and of use on long texts. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cached_model.h"
#include "text/tokenizer.h"

static tokenizer *open_file(const char *path) {
    ridge_error err = {0};
    gguf *g = NULL;
    tokenizer *t = NULL;
    if (gguf_open(&g, path, &err) != RIDGE_OK) return NULL;
    assert_int_equal(tokenizer_open(&t, g, NULL, &err), RIDGE_OK);
    gguf_close(g);
    return t;
}

/* A vocabulary of ../shared, or a model of the cache; NULL: absent. */
static tokenizer *open_named(const char *name) {
    char path[512];
    if (strncmp(name, "ggml-", 5) != 0) {
        const char *cached = cached_model(name);
        return cached != NULL ? open_file(cached) : NULL;
    }
    snprintf(path, sizeof path, "../shared/vocab/%s.gguf", name);
    return open_file(path);
}

static size_t n_tokens(const tokenizer *t, const char *s, size_t n) {
    int32_t *ids = NULL;
    size_t n_ids = 0;
    ridge_error err = {0};
    tokenizer_options o = {.parse_special = true};
    assert_int_equal(tokenizer_encode(t, s, n, o, &ids, &n_ids, &err), RIDGE_OK);
    mem_free(ids);
    return n_ids;
}

static void check(const char *name, const tokenizer *t, const char *unit, size_t width) {
    static char text[60000];
    size_t n = sizeof text / width * width;
    for (size_t i = 0; i < n; i += width) memcpy(text + i, unit, width);
    size_t least = tokenizer_min_tokens(t, text, n), got = n_tokens(t, text, n);
    if (least > got) fail_msg("%s, '%s': at least %zu, but %zu", name, unit, least, got);
}

static void check_vocabulary(const char *name, const tokenizer *t) {
    static const char *const units[] = {" ",
                                        "\n",
                                        "a",
                                        "=",
                                        "-",
                                        "  a",
                                        "\t",
                                        "\xE2\x96\x81",
                                        "\xE4\xB8\x96",
                                        "\xFF",
                                        "\x04",
                                        "\xCE\xB9\xCC\x88\xCC\x81",
                                        "\xE1\xBE\xBE\xCC\x88\xCC\x81",
                                        "\xE2\x84\xAA",
                                        "\xE1\xBF\xAF",
                                        "<|end|> \n ",
                                        "</s>  ",
                                        "<|im_end|>   ",
                                        "<unk> "};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        check(name, t, units[i], strlen(units[i]));
    check(name, t, "\0", 1);
    for (int32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t n;
        const char *bytes = tokenizer_token_bytes(t, id, true, &n);
        if (n >= 40) check(name, t, bytes, n); /* the few that come near the bound */
    }
    static char text[1 << 20];
    memset(text, 'x', sizeof text);
    size_t least = tokenizer_min_tokens(t, text, sizeof text);
    if (least < 1000) fail_msg("%s: only %zu tokens of a megabyte", name, least);
}

static void test_never_above_the_truth(void **state) {
    (void)state;
    static const char *const names[] = {
        "ggml-vocab-gpt-2",   "ggml-vocab-llama-bpe", "ggml-vocab-llama-spm",
        "ggml-vocab-phi-3",   "ggml-vocab-command-r", "ggml-vocab-falcon",
        "qwen2.5-coder-0.5b", "smollm2-135m",         "gemma3-270m"};
    size_t n_seen = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tokenizer *t = open_named(names[i]);
        if (t == NULL) continue;
        check_vocabulary(names[i], t);
        tokenizer_close(t);
        n_seen++;
    }
    if (n_seen == 0) skip();
    print_message("%zu vocabularies\n", n_seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_never_above_the_truth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
