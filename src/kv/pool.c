/* kv/pool: see pool.h. The free list is a stack in an array, so that hot blocks are used again; the
 * cached blocks are a ring of indices through one more entry, which is its head. The way along it
 * has an array of its own, so that it stays near: each step of it waits for the one before. */
#include "kv/pool.h"

#include "base/mem.h"

#define AHEAD 8 /* blocks: their states lie anywhere, and have not been looked at for long */

typedef struct {
    uint32_t holders;
    uint32_t name;     /* 0: not kept */
    uint32_t previous; /* among the cached; of the entry n_blocks: the newest */
} block_state;

struct kv_pool {
    uint32_t n_blocks, n_free, n_cached;
    int32_t *free;       /* [n_blocks]; the free blocks are free[0, n_free) */
    block_state *blocks; /* [n_blocks + 1] */
    uint32_t *next;      /* [n_blocks + 1] among the cached; of the entry n_blocks: the oldest */
};

ridge_status kv_pool_create(kv_pool **out, uint32_t n_blocks, ridge_error *err) {
    if (n_blocks == 0 || n_blocks > INT32_MAX)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u blocks", n_blocks);
    kv_pool *p = mem_zalloc(1, sizeof *p);
    if (p == NULL) goto fail;
    p->free = mem_zalloc(n_blocks, sizeof *p->free);
    p->blocks = mem_zalloc((size_t)n_blocks + 1, sizeof *p->blocks);
    p->next = mem_zalloc((size_t)n_blocks + 1, sizeof *p->next);
    if (p->free == NULL || p->blocks == NULL || p->next == NULL) goto fail;
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++) p->free[i] = (int32_t)(n_blocks - 1 - i);
    p->blocks[n_blocks].previous = p->next[n_blocks] = n_blocks;
    *out = p;
    return RIDGE_OK;
fail:
    kv_pool_destroy(p);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool of %u blocks", n_blocks);
}

void kv_pool_destroy(kv_pool *p) {
    if (p == NULL) return;
    mem_free(p->free);
    mem_free(p->blocks);
    mem_free(p->next);
    mem_free(p);
}

static block_state *state_of(const kv_pool *p, int32_t block) {
    ridge_assert(block >= 0 && (uint32_t)block < p->n_blocks);
    return &p->blocks[block];
}

static bool is_cached(const block_state *b) {
    return b->name != 0 && b->holders == 0;
}

static void ring_add(kv_pool *p, int32_t block) {
    block_state *b = &p->blocks[block], *head = &p->blocks[p->n_blocks];
    b->previous = head->previous;
    p->next[block] = p->n_blocks;
    p->next[b->previous] = head->previous = (uint32_t)block;
    p->n_cached++;
}

static void ring_remove(kv_pool *p, int32_t block) {
    uint32_t previous = p->blocks[block].previous, next = p->next[block];
    p->next[previous] = next;
    p->blocks[next].previous = previous;
    p->n_cached--;
}

ridge_status kv_pool_alloc(kv_pool *p, int32_t *block) {
    if (p->n_free == 0) return RIDGE_EFULL;
    int32_t b = p->free[--p->n_free];
    if (p->n_free > 0) mem_prefetch(&p->blocks[p->free[p->n_free - 1]]);
    ridge_assert(p->blocks[b].holders == 0 && p->blocks[b].name == 0);
    p->blocks[b].holders = 1;
    *block = b;
    return RIDGE_OK;
}

void kv_pool_hold(kv_pool *p, int32_t block) {
    block_state *b = state_of(p, block);
    ridge_assert(b->holders > 0 || b->name != 0);
    if (is_cached(b)) ring_remove(p, block);
    b->holders++;
}

void kv_pool_release(kv_pool *p, int32_t block) {
    block_state *b = state_of(p, block);
    ridge_assert(b->holders > 0);
    if (--b->holders > 0) return;
    if (b->name != 0)
        ring_add(p, block);
    else
        p->free[p->n_free++] = block;
}

void kv_pool_release_all(kv_pool *p, const int32_t *blocks, uint32_t n) {
    while (n-- > 0) {
        if (n >= AHEAD) mem_prefetch(&p->blocks[blocks[n - AHEAD]]);
        kv_pool_release(p, blocks[n]);
    }
}

void kv_pool_keep(kv_pool *p, int32_t block, uint32_t name) {
    block_state *b = state_of(p, block);
    ridge_assert(b->holders > 0 && b->name == 0 && name != 0);
    b->name = name;
}

void kv_pool_forget(kv_pool *p, int32_t block) {
    block_state *b = state_of(p, block);
    ridge_assert(b->name != 0);
    if (is_cached(b)) {
        ring_remove(p, block);
        p->free[p->n_free++] = block;
    }
    b->name = 0;
}

int32_t kv_pool_oldest(const kv_pool *p) {
    return p->n_cached > 0 ? (int32_t)p->next[p->n_blocks] : -1;
}

uint32_t kv_pool_oldest_names(const kv_pool *p, uint32_t *names, uint32_t n) {
    uint32_t i = 0, at = p->next[p->n_blocks];
    for (; i < n && at != p->n_blocks; i++, at = p->next[at]) names[i] = p->blocks[at].name;
    mem_prefetch(&p->blocks[at]); /* for the next time */
    return i;
}

int32_t kv_pool_older(const kv_pool *p, int32_t block) {
    uint32_t at = block < 0 ? p->n_blocks : (uint32_t)block;
    ridge_assert(block < 0 || is_cached(state_of(p, block)));
    return p->blocks[at].previous == p->n_blocks ? -1 : (int32_t)p->blocks[at].previous;
}

void kv_pool_fetch(const kv_pool *p, int32_t block) {
    mem_prefetch(state_of(p, block));
}

uint32_t kv_pool_size(const kv_pool *p) {
    return p->n_blocks;
}

uint32_t kv_pool_n_free(const kv_pool *p) {
    return p->n_free;
}

uint32_t kv_pool_n_cached(const kv_pool *p) {
    return p->n_cached;
}

uint32_t kv_pool_holders(const kv_pool *p, int32_t block) {
    return state_of(p, block)->holders;
}

uint32_t kv_pool_name(const kv_pool *p, int32_t block) {
    return state_of(p, block)->name;
}

void kv_pool_check(const kv_pool *p) {
    uint32_t n_held = 0, n_cached = 0, n_ring = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        n_held += p->blocks[i].holders > 0;
        n_cached += is_cached(&p->blocks[i]);
    }
    for (uint32_t i = p->next[p->n_blocks]; i != p->n_blocks; i = p->next[i]) {
        ridge_assert(is_cached(&p->blocks[i]) && p->blocks[p->next[i]].previous == i);
        n_ring++;
    }
    ridge_assert(n_cached == p->n_cached && n_ring == p->n_cached);
    ridge_assert(p->n_free + n_held + n_cached == p->n_blocks);
    for (uint32_t i = 0; i < p->n_free; i++) {
        const block_state *b = &p->blocks[p->free[i]];
        ridge_assert(b->holders == 0 && b->name == 0);
    }
}
