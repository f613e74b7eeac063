/* fuzz: any text through a small byte-level BPE and a small SentencePiece vocabulary, built here.
 *
 * Properties: byte-level, decoding gives the text back; the stream adds up to the whole (with what
 * is not UTF-8 replaced); the ids of a text are those of the vocabulary.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/gguf_internal.h"
#include "text/tokenizer_internal.h"

static void put(buf *b, const void *v, size_t n) {
    buf_append(b, v, n);
}

static void put_u32(buf *b, uint32_t v) {
    put(b, &v, 4);
}

static void put_text(buf *b, const char *s) {
    uint64_t n = strlen(s);
    put(b, &n, 8);
    put(b, s, n);
}

static void put_key(buf *b, const char *key, uint32_t type) {
    put_text(b, key);
    put_u32(b, type);
}

static void put_array(buf *b, const char *key, uint32_t element, uint64_t n) {
    put_key(b, key, GGUF_ARRAY);
    put_u32(b, element);
    put(b, &n, 8);
}

static void put_string(buf *b, const char *key, const char *value) {
    put_key(b, key, GGUF_STRING);
    put_text(b, value);
}

static tokenizer *open_bytes(buf *keys, uint64_t n_keys) {
    buf file = {0};
    uint64_t none = 0;
    gguf *g;
    tokenizer *t = NULL;
    put(&file, "GGUF\3\0\0\0", 8);
    put(&file, &none, 8);
    put(&file, &n_keys, 8);
    put(&file, keys->data, keys->len);
    while (file.len % 32 != 0) buf_putc(&file, 0);
    ridge_error err = {0};
    bool ok = gguf_open_memory(&g, file.data, file.len, &err) == RIDGE_OK;
    if (!ok || tokenizer_open(&t, g, NULL, &err) != RIDGE_OK) {
        fprintf(stderr, "%s\n", err.text);
        __builtin_trap();
    }
    gguf_close(g);
    buf_free(&file);
    buf_free(keys);
    return t;
}

static tokenizer *make_bpe(const char *pre) {
    static const char *const merges[] = {"a b",  "ab ab",      "t h",
                                         "th e", "\xC4\xA0 t", "\xC4\xA0 \xC4\xA0"};
    static const char *const more[] = {
        "ab", "abab", "th", "the", "\xC4\xA0t", "\xC4\xA0\xC4\xA0", "<|end|>", "<tool>"};
    buf k = {0};
    put_string(&k, "tokenizer.ggml.model", "gpt2");
    put_string(&k, "tokenizer.ggml.pre", pre);
    put_array(&k, "tokenizer.ggml.tokens", GGUF_STRING, 256 + 8);
    for (uint32_t code = 0x21; code < 0x144; code++) {
        char c[5] = {0}, byte;
        size_t n, width = utf8_encode(code, c);
        if (bpe_token_bytes(c, width, &byte, &n)) put_text(&k, c);
    }
    for (int i = 0; i < 8; i++) put_text(&k, more[i]);
    put_array(&k, "tokenizer.ggml.token_type", GGUF_I32, 264);
    for (uint32_t i = 0; i < 264; i++)
        put_u32(&k, i == 262 ? TOKEN_CONTROL : i == 263 ? TOKEN_USER : TOKEN_NORMAL);
    put_array(&k, "tokenizer.ggml.merges", GGUF_STRING, 6);
    for (int i = 0; i < 6; i++) put_text(&k, merges[i]);
    return open_bytes(&k, 5);
}

#define A_WORD SPM_SPACE "a"
#define TWO_SPACES SPM_SPACE SPM_SPACE

static tokenizer *make_spm(void) {
    static const char *const pieces[] = {"<unk>", "<s>",      "</s>",     "a",
                                         "b",     "ab",       SPM_SPACE,  A_WORD,
                                         "aba",   "\xC3\xA9", TWO_SPACES, "<tag>"};
    buf k = {0};
    char byte[8];
    put_string(&k, "tokenizer.ggml.model", "llama");
    put_array(&k, "tokenizer.ggml.tokens", GGUF_STRING, 12 + 256);
    for (int i = 0; i < 12; i++) put_text(&k, pieces[i]);
    for (int i = 0; i < 256; i++) {
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)i);
        put_text(&k, byte);
    }
    put_array(&k, "tokenizer.ggml.token_type", GGUF_I32, 268);
    for (uint32_t i = 0; i < 268; i++)
        put_u32(&k, i == 0    ? TOKEN_UNKNOWN
                    : i < 3   ? TOKEN_CONTROL
                    : i == 11 ? TOKEN_USER
                    : i < 12  ? TOKEN_NORMAL
                              : TOKEN_BYTE);
    put_array(&k, "tokenizer.ggml.scores", GGUF_F32, 268);
    for (int i = 0; i < 268; i++) {
        float score = (float)(-i % 7);
        put(&k, &score, 4);
    }
    return open_bytes(&k, 4);
}

static void require(bool ok) {
    if (!ok) __builtin_trap();
}

static void check(const tokenizer *t, const char *s, size_t n, bool special, bool lossless) {
    int32_t *ids;
    size_t n_ids, width;
    buf whole = {0}, stream = {0}, replaced = {0};
    detokenizer d = {0};
    tokenizer_options o = {.parse_special = special, .add_bos = special};
    require(tokenizer_encode(t, s, n, o, &ids, &n_ids, NULL) == RIDGE_OK);
    require(tokenizer_decode(t, ids, n_ids, true, &whole, NULL) == RIDGE_OK);
    if (lossless) require(whole.len == n && (n == 0 || memcmp(whole.data, s, n) == 0));
    for (size_t i = 0; i < n_ids; i++) detokenizer_push(&d, t, ids[i], true, &stream);
    detokenizer_finish(&d, &stream);
    for (size_t i = 0; i < whole.len; i += width) {
        bool valid = utf8_decode(whole.data + i, whole.len - i, &width) != UTF8_INVALID;
        buf_append(&replaced, valid ? whole.data + i : "\xEF\xBF\xBD", valid ? width : 3);
    }
    require(stream.len == replaced.len &&
            (stream.len == 0 || memcmp(stream.data, replaced.data, stream.len) == 0));
    buf_free(&whole);
    buf_free(&stream);
    buf_free(&replaced);
    mem_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"gpt-2",  "llama-bpe",    "qwen2",          "qwen35",
                                        "smollm", "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                        "falcon", "tekken",       "gpt-4o",         "default",
                                        "bloom",  "viking",       "seed-coder"};
    static tokenizer *bpe[sizeof names / sizeof *names], *spm;
    if (size == 0) return 0;
    size_t i = data[0] % (sizeof names / sizeof *names);
    const char *s = (const char *)data + 1;
    if (bpe[i] == NULL) bpe[i] = make_bpe(names[i]);
    if (spm == NULL) spm = make_spm();
    bool lossless = !pretokenizer_find(names[i], strlen(names[i]))->nfc;
    check(bpe[i], s, size - 1, (data[0] & 128) != 0, lossless);
    check(spm, s, size - 1, (data[0] & 128) != 0, false);
    return 0;
}
