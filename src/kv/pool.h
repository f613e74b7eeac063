/* kv/pool: the blocks of one KV group: who holds which, never what is in them.
 *
 * A block is free; or held, as often as sequences have it in their tables; or cached: nobody holds
 * it, but the prefix tree keeps what is in it. Cached blocks stand in the order in which they were
 * let go, the oldest first: that is the order in which they are given up.
 *
 * Invariant: free + held + cached = size; a block's reference count equals the number of its
 * holders. Pure bookkeeping on block ids; owned and called by the scheduler's thread.
 */
#ifndef RIDGE_KV_POOL_H
#define RIDGE_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct kv_pool kv_pool;

ridge_status kv_pool_create(kv_pool **out, uint32_t n_blocks, ridge_error *err) RIDGE_CHECKED;
void kv_pool_destroy(kv_pool *p); /* NULL allowed */

/* A free block, held once. RIDGE_EFULL when there is none: not an error, the caller lets go of what
 * is cached, or preempts. */
ridge_status kv_pool_alloc(kv_pool *p, int32_t *block) RIDGE_CHECKED;
void kv_pool_hold(kv_pool *p, int32_t block); /* one holder more of a held or cached block */
/* One less; when it was the last the block is cached if it is kept, else free. */
void kv_pool_release(kv_pool *p, int32_t block);
void kv_pool_release_all(kv_pool *p, const int32_t *blocks, uint32_t n); /* the last one first */

/* The tree keeps what is in a held block, by a name (not 0) of its own; and lets it go: a cached
 * block is free then. */
void kv_pool_keep(kv_pool *p, int32_t block, uint32_t name);
void kv_pool_forget(kv_pool *p, int32_t block);
int32_t kv_pool_oldest(const kv_pool *p); /* of the cached ones; -1: none */
/* Of the cached ones the newest (block -1), or that which was let go before `block`; -1: none. */
int32_t kv_pool_older(const kv_pool *p, int32_t block);
/* The names of the oldest ones, at most n, the oldest first; how many. */
uint32_t kv_pool_oldest_names(const kv_pool *p, uint32_t *names, uint32_t n);

/* Its state will be looked at soon. */
void kv_pool_fetch(const kv_pool *p, int32_t block);

uint32_t kv_pool_size(const kv_pool *p);
uint32_t kv_pool_n_free(const kv_pool *p);
uint32_t kv_pool_n_cached(const kv_pool *p);
uint32_t kv_pool_holders(const kv_pool *p, int32_t block);
uint32_t kv_pool_name(const kv_pool *p, int32_t block); /* 0: it isn't kept */
void kv_pool_check(const kv_pool *p); /* asserts the invariant; linear in the size */

#endif
