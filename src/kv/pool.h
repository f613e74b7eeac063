/* kv/pool: the blocks of one KV group: who holds which, never what is in them.
 *
 * Invariant: free + held = size; a block's reference count equals the number of its holders, and a
 * free block has none. Pure bookkeeping on block ids; owned and called by the scheduler's thread.
 */
#ifndef RIDGE_KV_POOL_H
#define RIDGE_KV_POOL_H

#include <stdint.h>

#include "base/error.h"

typedef struct kv_pool kv_pool;

ridge_status kv_pool_create(kv_pool **out, uint32_t n_blocks, ridge_error *err) RIDGE_CHECKED;
void kv_pool_destroy(kv_pool *p); /* NULL allowed */

/* A free block, held once. RIDGE_EFULL when there is none: not an error, the caller preempts. */
ridge_status kv_pool_alloc(kv_pool *p, int32_t *block) RIDGE_CHECKED;
void kv_pool_hold(kv_pool *p, int32_t block);    /* one holder more of a held block */
void kv_pool_release(kv_pool *p, int32_t block); /* one less; free when it was the last */

uint32_t kv_pool_size(const kv_pool *p);
uint32_t kv_pool_n_free(const kv_pool *p);
uint32_t kv_pool_holders(const kv_pool *p, int32_t block);
void kv_pool_check(const kv_pool *p); /* asserts the invariant; linear in the size */

#endif
