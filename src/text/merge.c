/* text/merge: joins the symbols of a piece, always the pair of lowest rank first, the leftmost of
 * equals: what BPE and SentencePiece do alike. Short pieces are searched, long ones keep a heap, so
 * that n symbols cost O(n log n).
 */
#include "base/mem.h"
#include "text/tokenizer_internal.h"

#define SHORT_PIECE 24 /* symbols up to which looking at all of them beats a heap */

symbol *encoder_symbols(encoder *e, size_t n) {
    if (n > INT32_MAX ||
        !mem_grow((void **)&e->symbols, &e->symbols_capacity, n, sizeof *e->symbols))
        return NULL;
    return e->symbols;
}

/* Fills in what merging symbol i with the next would make. */
static void rate(encoder *e, const char *s, symbol *left) {
    const tokenizer *t = e->t;
    left->rank = NO_RANK;
    if (left->next < 0) return;
    const symbol *right = &e->symbols[left->next];
    if (t->family == KIND_SPM) {
        size_t n = left->len + right->len;
        int32_t id = n <= e->longest ? vocab_find(&t->vocab, s + left->begin, n) : NO_TOKEN;
        if (id == NO_TOKEN) return;
        left->merged = id;
        left->rank = t->vocab.tokens[id].rank;
    } else {
        const merge_slot *m = merge_find(&t->merges, left->id, right->id);
        if (m == NULL) return;
        left->merged = m->id;
        left->rank = m->rank;
    }
}

/* Joins symbol i with its next one and rates the two pairs that are new. */
static void join(encoder *e, const char *s, symbol *left) {
    symbol *right = &e->symbols[left->next];
    left->id = left->merged;
    left->len += right->len;
    left->next = right->next;
    right->rank = NO_RANK;
    if (left->next >= 0) e->symbols[left->next].prev = (int32_t)(left - e->symbols);
    rate(e, s, left);
    if (left->prev >= 0) rate(e, s, &e->symbols[left->prev]);
}

static void merge_short(encoder *e, const char *s) {
    for (;;) {
        symbol *best = &e->symbols[0];
        for (int32_t i = best->next; i >= 0; i = e->symbols[i].next)
            if (e->symbols[i].rank < best->rank) best = &e->symbols[i];
        if (best->rank == NO_RANK) return;
        join(e, s, best);
    }
}

static bool heap_push(encoder *e, size_t i) {
    if (!mem_grow((void **)&e->heap, &e->heap_capacity, e->n_heap + 1, sizeof *e->heap))
        return false;
    uint64_t key = (uint64_t)e->symbols[i].rank << 32 | i;
    size_t at = e->n_heap++;
    for (; at > 0 && e->heap[(at - 1) / 4] > key; at = (at - 1) / 4)
        e->heap[at] = e->heap[(at - 1) / 4];
    e->heap[at] = key;
    return true;
}

static uint64_t heap_pop(encoder *e) {
    uint64_t top = e->heap[0], last = e->heap[--e->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = at * 4 + 1, end = child + 4 < e->n_heap ? child + 4 : e->n_heap;
        if (child >= e->n_heap) break;
        for (size_t i = child + 1; i < end; i++)
            if (e->heap[i] < e->heap[child]) child = i;
        if (e->heap[child] >= last) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = last;
    return top;
}

/* The heap may hold pairs that are no more; a pair counts while the symbol still has that rank. */
static bool merge_long(encoder *e, const char *s, size_t n) {
    e->n_heap = 0;
    for (size_t i = 0; i < n; i++)
        if (e->symbols[i].rank != NO_RANK && !heap_push(e, i)) return false;
    while (e->n_heap > 0) {
        uint64_t key = heap_pop(e);
        size_t i = (uint32_t)key;
        symbol *left = &e->symbols[i];
        if (left->rank != key >> 32) continue;
        join(e, s, left);
        if (left->rank != NO_RANK && !heap_push(e, i)) return false;
        if (left->prev >= 0 && e->symbols[left->prev].rank != NO_RANK &&
            !heap_push(e, (size_t)left->prev))
            return false;
    }
    return true;
}

bool encoder_merge(encoder *e, const char *s, size_t n) {
    if (n < 2) return true;
    for (size_t i = 0; i < n; i++) {
        e->symbols[i].prev = (int32_t)i - 1;
        e->symbols[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < n; i++) rate(e, s, &e->symbols[i]);
    if (n > SHORT_PIECE) return merge_long(e, s, n);
    merge_short(e, s);
    return true;
}
