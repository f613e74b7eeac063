/* kv/table: the block table of one sequence in one KV group: position p lies in
 * blocks[p / block_size].
 *
 * Embedded in the sequence; the room for its longest context is made once, so that growing inside a
 * step cannot fail but for want of blocks. Every entry of [first, n_blocks) is held once by the
 * table; those before were given back because no token to come can see them, and are -1.
 */
#ifndef RIDGE_KV_TABLE_H
#define RIDGE_KV_TABLE_H

#include "kv/pool.h"

typedef struct {
    int32_t *blocks; /* [n_blocks] of [max_blocks] */
    uint32_t first, n_blocks, max_blocks;
} kv_table;

/* Blocks that hold n_tokens from position 0 on. */
static inline uint32_t kv_blocks_for(uint32_t n_tokens, uint32_t block_size) {
    return n_tokens / block_size + (n_tokens % block_size != 0);
}

ridge_status kv_table_init(kv_table *t, uint32_t max_blocks, ridge_error *err) RIDGE_CHECKED;
/* Frees the room; the blocks must have been released. Zeroed tables are allowed. */
void kv_table_deinit(kv_table *t);

/* Makes the table at least n_blocks long: all that is missing, or RIDGE_EFULL and no change. */
ridge_status kv_table_grow(kv_table *t, kv_pool *p, uint32_t n_blocks) RIDGE_CHECKED;
/* Gives back the blocks from n_blocks on. */
void kv_table_cut(kv_table *t, kv_pool *p, uint32_t n_blocks);
/* Gives back the blocks before `first`. */
void kv_table_trim(kv_table *t, kv_pool *p, uint32_t first);
/* The same, but the table begins there even if it does not reach so far. */
void kv_table_skip(kv_table *t, kv_pool *p, uint32_t first);
/* Gives every block back, the last first; the table is empty then. */
void kv_table_release(kv_table *t, kv_pool *p);

#endif
