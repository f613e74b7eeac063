/* engine/ngram: see ngram.h. */
#include "engine/ngram.h"

#include <stdbool.h>

#include "base/mem.h"

#define MAX_BITS 15 /* of the hash */
#define MAX_CANDIDATES 16
#define LONG_ENOUGH 4 /* a source that agreed for so long survives an edit */

/* A place is the index of the token that followed; 0: none. */
struct ngram {
    uint32_t max_tokens, shift;
    uint32_t n_indexed;      /* the pairs that end before tokens [0, n_indexed] are in */
    uint32_t *latest;        /* [2^bits] by the hash of two tokens: the latest place after such */
    uint32_t *before;        /* [max_tokens + 1] by place: the one before it of the same hash */
    uint32_t source, length; /* of the last guess; source 0: there was none */
    uint32_t n_then;         /* the tokens that it was made for */
};

ridge_status ngram_create(ngram **out, uint32_t max_tokens, ridge_error *err) {
    uint32_t bits = 4;
    while (bits < MAX_BITS && (1u << bits) < max_tokens) bits++;
    ngram *g = mem_zalloc(1, sizeof *g);
    if (g == NULL) goto fail;
    *g = (ngram){.max_tokens = max_tokens, .shift = 32 - bits, .n_indexed = 1};
    g->latest = mem_zalloc((size_t)1 << bits, sizeof *g->latest);
    g->before = mem_zalloc((size_t)max_tokens + 1, sizeof *g->before);
    if (g->latest == NULL || g->before == NULL) goto fail;
    *out = g;
    return RIDGE_OK;
fail:
    ngram_destroy(g);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "the index of a sequence of %u tokens", max_tokens);
}

void ngram_destroy(ngram *g) {
    if (g == NULL) return;
    mem_free(g->latest);
    mem_free(g->before);
    mem_free(g);
}

/* Of the two tokens before place p. */
static uint32_t *slot(const ngram *g, const int32_t *tokens, uint32_t p) {
    uint32_t h = (uint32_t)tokens[p - 1] * 2654435769u ^ (uint32_t)tokens[p - 2] * 2246822519u;
    return &g->latest[(h * 2654435769u) >> g->shift];
}

/* Every place but the end itself, which nothing has followed yet. */
static void index_places(ngram *g, const int32_t *tokens, uint32_t n) {
    for (uint32_t p = g->n_indexed + 1; p < n; p++) {
        uint32_t *latest = slot(g, tokens, p);
        g->before[p] = *latest;
        *latest = p;
    }
    if (n > 1 && n - 1 > g->n_indexed) g->n_indexed = n - 1;
}

/* How many tokens before place p are those before place n. */
static uint32_t agreement(const int32_t *tokens, uint32_t p, uint32_t n) {
    uint32_t length = 0;
    while (length < p && length < NGRAM_MAX_LENGTH &&
           tokens[p - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

/* The source of the last guess, now that the text is longer: as long as before and what it got
 * right since, or one edit behind it. */
static void follow_source(ngram *g, const int32_t *tokens, uint32_t n) {
    uint32_t old = g->source, length = g->length;
    g->source = g->length = 0;
    if (old == 0) return;
    uint32_t p = old + (n - g->n_then); /* < n, as old < n_then */
    for (uint32_t i = old; i < p; i++) {
        if (tokens[i] == tokens[g->n_then + (i - old)]) {
            length += length < NGRAM_MAX_LENGTH;
        } else if (length >= LONG_ENOUGH) {
            length = NGRAM_EDITED;
        } else {
            return;
        }
    }
    g->source = p;
    g->length = length;
}

/* The place among the latest ones that agrees for longest, if for longer than the source does. */
static void find_source(ngram *g, const int32_t *tokens, uint32_t n) {
    uint32_t p = n >= 2 ? *slot(g, tokens, n) : 0;
    for (int i = 0; i < MAX_CANDIDATES && p != 0; i++, p = g->before[p]) {
        uint32_t length = agreement(tokens, p, n);
        if (length < 2 || length <= g->length) continue;
        g->source = p;
        g->length = length;
    }
}

uint32_t ngram_guess(ngram *g, const int32_t *tokens, uint32_t n, uint32_t max, int32_t *out,
                     uint32_t *length) {
    ridge_assert(n <= g->max_tokens);
    index_places(g, tokens, n);
    follow_source(g, tokens, n);
    find_source(g, tokens, n);
    g->n_then = n;
    *length = g->length;
    if (g->source == 0) return 0;
    for (uint32_t i = 0; i < max; i++) {
        uint32_t p = g->source + i;
        out[i] = p < n ? tokens[p] : out[p - n]; /* a guess goes on in itself */
    }
    return max;
}
