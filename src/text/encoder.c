/* text/encoder: one run of tokenizer_encode: special tokens out of the text first, the rest to the
 * family's encoder, each piece merged once.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

#define CACHE_MAX_PIECE 128 /* bytes; longer pieces hardly come twice */
#define CACHE_MAX 32768
#define CACHE_TEXT_PER_ENTRY 16 /* a text of n bytes is given n/16 entries */

bool encoder_put(encoder *e, int32_t id) {
    if (e->n_ids == e->ids_capacity &&
        !mem_grow((void **)&e->ids, &e->ids_capacity, e->n_ids + 1, sizeof *e->ids))
        return false;
    e->ids[e->n_ids++] = id;
    return true;
}

static bool encode_piece(encoder *e, const char *s, size_t n) {
    return e->t->family == KIND_BPE ? bpe_encode_piece(e, s, n) : spm_encode_piece(e, s, n);
}

/* The same piece always gives the same ids, and both still stand in the text and in the result: the
 * cache only notes where. */
static bool repeat(encoder *e, const cached_piece *c) {
    size_t need = e->n_ids + c->n_ids;
    if (need > e->ids_capacity &&
        !mem_grow((void **)&e->ids, &e->ids_capacity, need, sizeof *e->ids))
        return false;
    for (size_t i = 0; i < c->n_ids; i++) e->ids[e->n_ids + i] = e->ids[c->ids + i];
    e->n_ids = need;
    return true;
}

bool encoder_piece(encoder *e, const char *s, size_t n) {
    if (e->n_cache == 0 || n > CACHE_MAX_PIECE) return encode_piece(e, s, n);
    cached_piece *c = &e->cache[XXH3_64bits(s, n) & (e->n_cache - 1)];
    if (c->text_len == n && memcmp(e->base + c->text, s, n) == 0) return repeat(e, c);
    size_t begin = e->n_ids;
    if (!encode_piece(e, s, n)) return false;
    *c = (cached_piece){(uint32_t)(s - e->base), (uint32_t)n, (uint32_t)begin,
                        (uint32_t)(e->n_ids - begin)};
    return true;
}

static bool encode_text(encoder *e, const char *s, size_t n, bool prefix) {
    if (n == 0) return true;
    if (e->t->family == KIND_BPE) return bpe_encode_text(e, s, n);
    return spm_encode_text(e, s, n, prefix && e->t->space_prefix);
}

static bool is_ascii_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* SentencePiece's dummy space comes before a text at the start and behind a special token. */
static bool encode_all(encoder *e, const char *s, size_t n, bool parse_special) {
    const tokenizer *t = e->t;
    size_t begin = 0, len = 0;
    bool prefix = true;
    for (size_t i = 0; i < n;) {
        int32_t id = t->specials.first[(uint8_t)s[i]] == 0
                         ? NO_TOKEN
                         : special_match(t, parse_special, s + i, n - i, &len);
        if (id == NO_TOKEN) {
            i++;
            continue;
        }
        if (!encode_text(e, s + begin, i - begin, prefix) || !encoder_put(e, id)) return false;
        i += len;
        if (t->vocab.tokens[id].strips_right)
            while (i < n && is_ascii_space(s[i])) i++;
        begin = i;
        prefix = true;
    }
    return encode_text(e, s + begin, n - begin, prefix);
}

void encoder_init(encoder *e, const tokenizer *t) {
    *e = (encoder){.t = t, .longest = t->vocab.longest};
}

static bool prepare(encoder *e, const tokenizer *t, const char *text, size_t n) {
    encoder_init(e, t);
    e->base = text;
    e->rewrites = t->family != KIND_BPE || (t->nfc && !nfc_is_clean(text, n));
    size_t entries = n / CACHE_TEXT_PER_ENTRY;
    if (entries > CACHE_MAX) entries = CACHE_MAX;
    if (entries < 16) return true;
    for (e->n_cache = 16; e->n_cache * 2 <= entries;) e->n_cache *= 2;
    e->cache = mem_zalloc(e->n_cache, sizeof *e->cache);
    return e->cache != NULL;
}

void encoder_deinit(encoder *e) {
    buf_free(&e->work);
    mem_free(e->cache);
    mem_free(e->symbols);
    mem_free(e->heap);
    mem_free(e->ids);
}

/* BOS stands in front already; one that the text brought along makes it superfluous. */
static void drop_second_bos(encoder *e) {
    if (e->n_ids < 2 || e->ids[1] != e->t->bos) return;
    memmove(e->ids + 1, e->ids + 2, (e->n_ids - 2) * sizeof *e->ids);
    e->n_ids--;
}

/* A run of what has no token is one unknown token, as SentencePiece has it. */
static void fuse_unknown(encoder *e) {
    size_t n = 0;
    for (size_t i = 0; i < e->n_ids; i++) {
        if (e->ids[i] == NO_TOKEN && i + 1 < e->n_ids && e->ids[i + 1] == NO_TOKEN) continue;
        e->ids[n++] = e->ids[i] == NO_TOKEN ? e->t->unknown : e->ids[i];
    }
    e->n_ids = n;
}

ridge_status tokenizer_encode(const tokenizer *t, const char *text, size_t n,
                              tokenizer_options options, int32_t **ids, size_t *n_ids,
                              ridge_error *err) {
    encoder e;
    if (n > INT32_MAX / 4)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "text of %zu bytes, limit %d", n, INT32_MAX / 4);
    bool bos = options.add_bos && t->adds_bos, eos = options.add_bos && t->adds_eos;
    bool ok = prepare(&e, t, text, n) && (!bos || encoder_put(&e, t->bos)) &&
              encode_all(&e, text, n, options.parse_special);
    if (ok) fuse_unknown(&e);
    if (ok && bos) drop_second_bos(&e);
    if (ok && eos && (e.n_ids == 0 || e.ids[e.n_ids - 1] != t->eos)) ok = encoder_put(&e, t->eos);
    if (ok && e.ids == NULL) ok = (e.ids = mem_alloc(sizeof *e.ids)) != NULL;
    if (ok) {
        *ids = e.ids;
        *n_ids = e.n_ids;
        e.ids = NULL;
    }
    encoder_deinit(&e);
    return ok ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "tokens of a text of %zu bytes", n);
}
