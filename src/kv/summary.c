/* kv/summary: see summary.h. */
#include "kv/summary.h"

#include <stdatomic.h>
#include <xxhash.h>

#include "base/mem.h"

#define BUCKET 8      /* places that a hash may have: a line of the processor's cache */
#define PLACES_EACH 4 /* per hash: of buckets as full as that one in a thousand overflows */

struct kv_summary {
    uint64_t mask;            /* of a bucket's first place */
    _Atomic uint64_t *places; /* 0: free */
};

ridge_status kv_summary_create(kv_summary **out, uint32_t n, ridge_error *err) {
    uint64_t n_places = BUCKET;
    while (n_places < (uint64_t)PLACES_EACH * n) n_places *= 2;
    kv_summary *s = mem_zalloc(1, sizeof *s);
    if (s != NULL) s->places = mem_zalloc(n_places, sizeof *s->places);
    if (s == NULL || s->places == NULL) {
        kv_summary_destroy(s);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "a summary of %u prefixes", n);
    }
    s->mask = n_places - BUCKET;
    *out = s;
    return RIDGE_OK;
}

void kv_summary_destroy(kv_summary *s) {
    if (s == NULL) return;
    mem_free((void *)s->places);
    mem_free(s);
}

uint64_t kv_summary_hash(uint64_t before, const int32_t *tokens, uint32_t n) {
    uint64_t hash = XXH3_64bits_withSeed(tokens, n * sizeof *tokens, before);
    return hash != 0 ? hash : 1;
}

/* Where in the bucket of `hash` is `word`? NULL: nowhere. */
static _Atomic uint64_t *find_place(const kv_summary *s, uint64_t hash, uint64_t word) {
    _Atomic uint64_t *bucket = s->places + (hash & s->mask);
    for (int i = 0; i < BUCKET; i++)
        if (atomic_load_explicit(&bucket[i], memory_order_relaxed) == word) return &bucket[i];
    return NULL;
}

void kv_summary_add(kv_summary *s, uint64_t hash) {
    _Atomic uint64_t *place = find_place(s, hash, 0);
    if (place != NULL) atomic_store_explicit(place, hash, memory_order_relaxed);
}

void kv_summary_remove(kv_summary *s, uint64_t hash) {
    _Atomic uint64_t *place = find_place(s, hash, hash);
    if (place != NULL) atomic_store_explicit(place, 0, memory_order_relaxed);
}

uint32_t kv_summary_find(const kv_summary *s, uint64_t salt, const int32_t *tokens, uint32_t n,
                         uint32_t size) {
    uint32_t n_known = 0;
    uint64_t hash = salt;
    for (uint32_t end = size; end <= n && end >= size; end += size) {
        hash = kv_summary_hash(hash, tokens + end - size, size);
        if (find_place(s, hash, hash) != NULL) n_known = end;
    }
    return n_known;
}
