/* text/bpe: byte-level BPE, and gemma4, which merges the characters of SentencePiece's text.
 *
 * Merging works on ids: the table of merges maps a pair of ids to its rank and what it makes. A
 * byte without a token is dropped before merging, so its neighbours may join across it.
 */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_internal.h"

/* GPT-2's characters for bytes: printable Latin-1 stands for itself; the other 68 bytes, in order,
 * are U+0100 and up: 0x00-0x20, 0x7F-0xA0, 0xAD. */
static int byte_of(uint32_t code) {
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    if (code >= 0x100 && code <= 0x120) return (int)code - 0x100;
    if (code >= 0x121 && code <= 0x142) return (int)code - 0x121 + 0x7F;
    return code == 0x143 ? 0xAD : -1;
}

bool bpe_token_bytes(const char *s, size_t n, char *out, size_t *n_out) {
    size_t width, len = 0;
    for (size_t i = 0; i < n; i += width) {
        uint32_t code = utf8_decode(s + i, n - i, &width);
        int byte = code == UTF8_INVALID ? -1 : byte_of(code);
        if (byte < 0) return false;
        out[len++] = (char)byte;
    }
    *n_out = len;
    return true;
}

static size_t merge_home(const merge_table *m, uint64_t pair) {
    return (size_t)((pair * 0x9E3779B97F4A7C15u) >> 32) & (m->n_slots - 1);
}

const merge_slot *merge_find(const merge_table *m, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = merge_home(m, pair);; i = (i + 1) & (m->n_slots - 1)) {
        const merge_slot *slot = &m->slots[i];
        if (slot->rank == NO_RANK) return NULL;
        if (slot->pair == pair) return slot;
    }
}

static void merge_add(merge_table *m, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = merge_home(m, pair);
    for (; m->slots[i].rank != NO_RANK; i = (i + 1) & (m->n_slots - 1))
        if (m->slots[i].pair == pair) return; /* the first rule of a pair is it */
    m->slots[i] = (merge_slot){pair, rank, id};
}

/* One half of a merge, or both together, as the key that the vocabulary knows. */
static int32_t find_text(const tokenizer *t, const char *s, size_t n, char *scratch) {
    size_t len;
    if (t->family != KIND_BPE) return vocab_find(&t->vocab, s, n);
    if (!bpe_token_bytes(s, n, scratch, &len)) return vocab_find(&t->vocab, s, n);
    return vocab_find(&t->vocab, scratch, len);
}

static ridge_status load_merge(tokenizer *t, gguf_string merge, uint32_t rank, buf *scratch,
                               ridge_error *err) {
    const char *key = "tokenizer.ggml.merges";
    const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
    if (space == NULL || space + 1 == merge.data + merge.len)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s[%" PRIu32 "]: '%.*s' is not two parts", key, rank,
                          (int)(merge.len < 80 ? merge.len : 80), merge.data);
    size_t left = (size_t)(space - merge.data), right = merge.len - left - 1;
    buf_clear(scratch);
    buf_append(scratch, merge.data, left);
    buf_append(scratch, space + 1, right);
    buf_append(scratch, merge.data, merge.len); /* room for the bytes */
    if (scratch->failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", key);
    char *room = scratch->data + left + right;
    int32_t whole = find_text(t, scratch->data, left + right, room);
    int32_t l = find_text(t, merge.data, left, room), r = find_text(t, space + 1, right, room);
    if (l == NO_TOKEN || r == NO_TOKEN || whole == NO_TOKEN)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s[%" PRIu32 "]: '%.*s' has a part that is no token",
                          key, rank, (int)(merge.len < 80 ? merge.len : 80), merge.data);
    merge_add(&t->merges, l, r, rank, whole);
    return RIDGE_OK;
}

static ridge_status load_merges(tokenizer *t, gguf_string *merges, size_t n, ridge_error *err) {
    buf scratch = {0};
    ridge_status status = RIDGE_OK;
    size_t n_slots = 16;
    while (n_slots < n + n / 2) n_slots *= 2;
    t->merges.slots = mem_alloc(n_slots * sizeof *t->merges.slots);
    if (t->merges.slots == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "merges");
    t->merges.n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) t->merges.slots[i].rank = NO_RANK;
    for (size_t i = 0; i < n && status == RIDGE_OK; i++)
        status = load_merge(t, merges[i], (uint32_t)i, &scratch, err);
    buf_free(&scratch);
    return status;
}

ridge_status bpe_load(tokenizer *t, const gguf *g, ridge_error *err) {
    const char *key = "tokenizer.ggml.merges";
    gguf_type type;
    size_t n;
    if (!gguf_get_array(g, key, &type, &n))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s is missing; byte-pair encoding needs it", key);
    if (type != GGUF_STRING || n > INT32_MAX)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: expected an array of strings", key);
    gguf_string *merges = mem_zalloc(n, sizeof *merges);
    if (merges == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", key);
    ridge_status status = gguf_array_string(g, key, merges, n)
                              ? load_merges(t, merges, n, err)
                              : RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: unreadable", key);
    mem_free(merges);
    if (status != RIDGE_OK || t->family != KIND_BPE) return status;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        int32_t id = vocab_find(&t->vocab, &byte, 1);
        if (id != NO_TOKEN && t->vocab.tokens[id].is_piece) t->byte_id[b] = id;
    }
    return RIDGE_OK;
}

static bool put_symbols(encoder *e) {
    for (int32_t i = 0; i >= 0; i = e->symbols[i].next)
        if (!encoder_put(e, e->symbols[i].id)) return false;
    return true;
}

bool bpe_encode_piece(encoder *e, const char *s, size_t n) {
    const tokenizer *t = e->t;
    if (t->ignore_merges) {
        int32_t id = vocab_find(&t->vocab, s, n);
        if (id != NO_TOKEN && t->vocab.tokens[id].is_piece) return encoder_put(e, id);
    }
    symbol *symbols = encoder_symbols(e, n);
    if (symbols == NULL) return false;
    size_t n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)s[i]];
        if (id == NO_TOKEN) continue;
        symbols[n_symbols++] = (symbol){(uint32_t)i, 1, id, -1, -1, NO_RANK, NO_TOKEN};
    }
    if (n_symbols == 0) return true;
    return encoder_merge(e, s, n_symbols) && put_symbols(e);
}

static bool encode_cut(void *context, const char *s, size_t n) {
    return encoder_piece(context, s, n);
}

bool bpe_encode_text(encoder *e, const char *s, size_t n) {
    if (e->rewrites) {
        size_t begin = e->work.len;
        if (!nfc_append(&e->work, s, n)) return false;
        e->base = e->work.data;
        s = e->base + begin;
        n = e->work.len - begin;
    }
    return pretokenize(e->t->pre, s, n, encode_cut, e);
}
