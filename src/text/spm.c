/* text/spm: SentencePiece-style text (spaces as U+2581) for the kinds "llama" and "gemma4".
 *
 * Merging may join any two neighbouring characters, so the whole text is one piece by the rules.
 * But a merge only ever makes a token: where no token holds the characters a and b side by side,
 * nothing joins across a|b. The text is cut there, exactly, and short pieces are merged (and
 * remembered) apart. The pairs lie in a bit set by hash; a collision only cuts less.
 */
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_internal.h"

#define JOINABLE_BITS (1u << 22)

static size_t pair_bit(uint32_t a, uint32_t b) {
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 42); /* 22 bits */
}

static bool is_joinable(const tokenizer *t, uint32_t a, uint32_t b) {
    size_t bit = pair_bit(a, b);
    return t->joinable[bit / 64] >> (bit % 64) & 1;
}

/* A bad byte is a character of its own, apart from all code points. */
static uint32_t character_at(const char *s, size_t n, size_t *width) {
    uint32_t code = (uint8_t)s[0];
    *width = 1;
    if (code < 0x80) return code;
    code = utf8_decode(s, n, width);
    if (code != UTF8_INVALID) return code;
    *width = 1;
    return 0x80000000u | (uint8_t)s[0];
}

static void mark_pairs(tokenizer *t, const char *s, size_t n) {
    size_t width;
    uint32_t before = n > 0 ? character_at(s, n, &width) : 0;
    for (size_t i = n > 0 ? width : 0; i < n; i += width) {
        uint32_t c = character_at(s + i, n - i, &width);
        size_t bit = pair_bit(before, c);
        t->joinable[bit / 64] |= (uint64_t)1 << (bit % 64);
        before = c;
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int spm_byte_of(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

ridge_status spm_load(tokenizer *t, ridge_error *err) {
    t->joinable = mem_zalloc(JOINABLE_BITS / 64, sizeof *t->joinable);
    if (t->joinable == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "tokenizer");
    for (size_t i = 0; i < t->vocab.n; i++) {
        const vocab_token *token = &t->vocab.tokens[i];
        const char *key = t->vocab.text + token->key;
        if (token->type == TOKEN_BYTE) {
            int byte = spm_byte_of(key, token->key_len);
            if (byte >= 0 && t->byte_id[byte] == NO_TOKEN) t->byte_id[byte] = (int32_t)i;
        } else if (token->type != TOKEN_CONTROL && token->type != TOKEN_UNKNOWN) {
            mark_pairs(t, key, token->key_len);
        }
    }
    return RIDGE_OK;
}

static void append_escaped(buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        const char *space = memchr(s + i, ' ', n - i);
        size_t end = space != NULL ? (size_t)(space - s) : n;
        buf_append(out, s + i, end - i);
        if (space != NULL) buf_puts(out, SPM_SPACE);
        i = end + (space != NULL);
    }
}

/* gemma4 keeps runs of line ends apart from the rest, as llama.cpp does. */
static bool must_cut(const tokenizer *t, uint32_t a, uint32_t b) {
    return t->family == KIND_GEMMA4 && (a == '\n') != (b == '\n');
}

bool spm_encode_text(encoder *e, const char *s, size_t n, bool prefix) {
    size_t begin = e->work.len, width;
    if (n == 0) return true;
    if (prefix) buf_puts(&e->work, SPM_SPACE);
    append_escaped(&e->work, s, n);
    if (e->work.failed) return false;
    e->base = e->work.data;
    s = e->base + begin;
    n = e->work.len - begin;
    size_t piece = 0;
    uint32_t before = character_at(s, n, &width);
    for (size_t i = width; i < n; i += width) {
        uint32_t c = character_at(s + i, n - i, &width);
        if (!is_joinable(e->t, before, c) || must_cut(e->t, before, c)) {
            if (!encoder_piece(e, s + piece, i - piece)) return false;
            piece = i;
        }
        before = c;
    }
    return encoder_piece(e, s + piece, n - piece);
}

/* What has no token is written in byte tokens, or is unknown where those are missing. */
static bool put_bytes(encoder *e, const char *s, size_t n) {
    const tokenizer *t = e->t;
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(uint8_t)s[i]] == NO_TOKEN)
            return t->unknown == NO_TOKEN || encoder_put(e, NO_TOKEN);
    for (size_t i = 0; i < n; i++)
        if (!encoder_put(e, t->byte_id[(uint8_t)s[i]])) return false;
    return true;
}

static bool is_unused(const tokenizer *t, int32_t id) {
    return t->family == KIND_SPM && id != NO_TOKEN && t->vocab.tokens[id].type == TOKEN_UNUSED;
}

/* An unused token is put as the two that make it, and these likewise; one that nothing makes counts
 * as unknown. The heap is the stack of what is still to put: begin << 32 | length. */
static bool put_unused(encoder *e, const char *s, const symbol *made) {
    const vocab *v = &e->t->vocab;
    uint64_t part = (uint64_t)made->begin << 32 | made->len;
    for (e->n_heap = 0;;) {
        const char *at = s + (part >> 32);
        size_t len = (uint32_t)part;
        int32_t id = vocab_find(v, at, len);
        uint32_t left = is_unused(e->t, id) ? v->tokens[id].left : 0;
        if (left > 0) {
            if (!mem_grow((void **)&e->heap, &e->heap_capacity, e->n_heap + 1, sizeof *e->heap))
                return false;
            e->heap[e->n_heap++] = part + ((uint64_t)left << 32) - left;
            part = (part >> 32 << 32) | left;
            continue;
        }
        bool known = id != NO_TOKEN && !is_unused(e->t, id);
        if (!(known ? encoder_put(e, id) : put_bytes(e, at, len))) return false;
        if (e->n_heap == 0) return true;
        part = e->heap[--e->n_heap];
    }
}

/* symbols[0, n): the characters of s. NULL: out of memory. */
static symbol *read_characters(encoder *e, const char *s, size_t n, size_t *n_symbols) {
    symbol *symbols = encoder_symbols(e, n);
    size_t width;
    *n_symbols = 0;
    for (size_t i = 0; i < n && symbols != NULL; i += width) {
        character_at(s + i, n - i, &width);
        int32_t id = vocab_find(&e->t->vocab, s + i, width);
        symbols[(*n_symbols)++] =
            (symbol){(uint32_t)i, (uint32_t)width, id, -1, -1, NO_RANK, NO_TOKEN};
    }
    return symbols;
}

/* What is merged inside a stretch of text depends on that stretch alone, as long as nothing joins
 * across its ends; so the two symbols that an unused token is last made of are the same wherever it
 * is made: those that are left when all but the whole may be made. */
ridge_status spm_split_unused(tokenizer *t, ridge_error *err) {
    encoder e;
    encoder_init(&e, t);
    bool ok = true;
    for (size_t i = 0; i < t->vocab.n && ok; i++) {
        vocab_token *token = &t->vocab.tokens[i];
        const char *key = t->vocab.text + token->key;
        size_t n_symbols;
        if (token->type != TOKEN_UNUSED || token->key_len < 2) continue;
        e.longest = token->key_len - 1;
        const symbol *symbols = read_characters(&e, key, token->key_len, &n_symbols);
        ok = symbols != NULL && encoder_merge(&e, key, n_symbols);
        int32_t second = ok ? symbols[0].next : -1;
        if (second >= 0 && symbols[second].next < 0) token->left = symbols[0].len;
    }
    encoder_deinit(&e);
    return ok ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "unused tokens");
}

bool spm_encode_piece(encoder *e, const char *s, size_t n) {
    const tokenizer *t = e->t;
    if (t->family == KIND_GEMMA4 && s[0] == '\n') {
        int32_t id = vocab_find(&t->vocab, s, n);
        if (id != NO_TOKEN) return encoder_put(e, id);
    }
    size_t n_symbols;
    const symbol *symbols = read_characters(e, s, n, &n_symbols);
    if (symbols == NULL) return false;
    if (!encoder_merge(e, s, n_symbols)) return false;
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        const symbol *made = &symbols[i];
        bool ok = made->id == NO_TOKEN     ? put_bytes(e, s + made->begin, made->len)
                  : is_unused(t, made->id) ? put_unused(e, s, made)
                                           : encoder_put(e, made->id);
        if (!ok) return false;
    }
    return true;
}
