/* text/vocab: the tokens of a vocabulary, and the hash table from their keys to their ids. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

bool vocab_add_text(vocab *v, const char *s, size_t n, uint32_t *offset) {
    size_t need;
    if (!mem_add(v->text_len, n, &need) || need > UINT32_MAX ||
        !mem_grow((void **)&v->text, &v->text_capacity, need, 1))
        return false;
    if (n > 0) memcpy(v->text + v->text_len, s, n);
    *offset = (uint32_t)v->text_len;
    v->text_len = need;
    return true;
}

static vocab_slot *probe(const vocab *v, const char *s, size_t n) {
    uint64_t hash = XXH3_64bits(s, n);
    size_t mask = v->n_slots - 1;
    for (size_t i = (hash >> 32) & mask;; i = (i + 1) & mask) {
        vocab_slot *slot = &v->slots[i];
        if (slot->id == NO_TOKEN) {
            return slot;
        }
        const vocab_token *t = &v->tokens[slot->id];
        if (slot->hash == (uint32_t)hash && t->key_len == n && memcmp(v->text + t->key, s, n) == 0)
            return slot;
    }
}

static void insert(vocab *v, int32_t id) {
    const vocab_token *t = &v->tokens[id];
    vocab_slot *slot = probe(v, v->text + t->key, t->key_len);
    if (slot->id != NO_TOKEN) return; /* of two alike the first is it */
    slot->id = id;
    slot->hash = (uint32_t)XXH3_64bits(v->text + t->key, t->key_len);
    if (t->key_len > v->longest) v->longest = t->key_len;
}

bool vocab_index(vocab *v) {
    size_t n_slots = 16;
    while (n_slots < v->n * 2) n_slots *= 2;
    v->slots = mem_alloc(n_slots * sizeof *v->slots);
    if (v->slots == NULL) return false;
    v->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) v->slots[i] = (vocab_slot){0, NO_TOKEN};
    for (size_t i = 0; i < v->n; i++)
        if (v->tokens[i].is_piece) insert(v, (int32_t)i);
    /* Merges may be written with other tokens too, but never lead to a control token. */
    for (size_t i = 0; i < v->n; i++) {
        uint8_t type = v->tokens[i].type;
        if (type == TOKEN_USER || type == TOKEN_NORMAL || type == TOKEN_UNUSED)
            insert(v, (int32_t)i);
    }
    return true;
}

int32_t vocab_find(const vocab *v, const char *s, size_t n) {
    if (n == 0 || n > v->longest) return NO_TOKEN;
    return probe(v, s, n)->id;
}

void vocab_free(vocab *v) {
    mem_free(v->tokens);
    mem_free(v->text);
    mem_free(v->slots);
}
