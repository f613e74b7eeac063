/* kv/pool: see pool.h. The free list is a stack in an array, so that hot blocks are used again. */
#include "kv/pool.h"

#include "base/mem.h"

struct kv_pool {
    uint32_t n_blocks, n_free;
    int32_t *free;     /* [n_blocks]; the free blocks are free[0, n_free) */
    uint32_t *holders; /* [n_blocks] reference counts */
};

ridge_status kv_pool_create(kv_pool **out, uint32_t n_blocks, ridge_error *err) {
    if (n_blocks == 0 || n_blocks > INT32_MAX)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u blocks", n_blocks);
    kv_pool *p = mem_zalloc(1, sizeof *p);
    if (p == NULL) goto fail;
    p->free = mem_zalloc(n_blocks, sizeof *p->free);
    p->holders = mem_zalloc(n_blocks, sizeof *p->holders);
    if (p->free == NULL || p->holders == NULL) goto fail;
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++) p->free[i] = (int32_t)(n_blocks - 1 - i);
    *out = p;
    return RIDGE_OK;
fail:
    kv_pool_destroy(p);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool of %u blocks", n_blocks);
}

void kv_pool_destroy(kv_pool *p) {
    if (p == NULL) return;
    mem_free(p->free);
    mem_free(p->holders);
    mem_free(p);
}

ridge_status kv_pool_alloc(kv_pool *p, int32_t *block) {
    if (p->n_free == 0) return RIDGE_EFULL;
    int32_t b = p->free[--p->n_free];
    ridge_assert(p->holders[b] == 0);
    p->holders[b] = 1;
    *block = b;
    return RIDGE_OK;
}

static void assert_held(const kv_pool *p, int32_t block) {
    ridge_assert(block >= 0 && (uint32_t)block < p->n_blocks && p->holders[block] > 0);
}

void kv_pool_hold(kv_pool *p, int32_t block) {
    assert_held(p, block);
    p->holders[block]++;
}

void kv_pool_release(kv_pool *p, int32_t block) {
    assert_held(p, block);
    if (--p->holders[block] == 0) p->free[p->n_free++] = block;
}

uint32_t kv_pool_size(const kv_pool *p) {
    return p->n_blocks;
}

uint32_t kv_pool_n_free(const kv_pool *p) {
    return p->n_free;
}

uint32_t kv_pool_holders(const kv_pool *p, int32_t block) {
    ridge_assert(block >= 0 && (uint32_t)block < p->n_blocks);
    return p->holders[block];
}

void kv_pool_check(const kv_pool *p) {
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++) n_held += p->holders[i] > 0;
    ridge_assert(n_held + p->n_free == p->n_blocks);
    for (uint32_t i = 0; i < p->n_free; i++) ridge_assert(p->holders[p->free[i]] == 0);
}
