/* server/block_ids: names for the blocks of prompts, as Mooncake's traces have them: equal prefixes
 * have equal names, and a name says nothing of the text.
 *
 * A block's hash is chained to the one before it, the first to the tenant's salt; hashes are named
 * 0, 1, 2 ... in the order of their first coming. Memory is bounded: what hasn't come for a long
 * time (in `capacity` other blocks at least, in twice as many surely) is forgotten, and gets a new
 * name when it comes again: a trace then shows less sharing than there was, never more. Pure.
 */
#ifndef RIDGE_SERVER_BLOCK_IDS_H
#define RIDGE_SERVER_BLOCK_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define BLOCK_IDS_TOKENS 512

typedef struct block_ids block_ids;

/* capacity: a power of two. */
ridge_status block_ids_create(block_ids **out, size_t capacity, ridge_error *err) RIDGE_CHECKED;
void block_ids_destroy(block_ids *b); /* NULL allowed */

/* How many names a prompt has: the last block may be short. */
size_t block_ids_count(size_t n_tokens);
void block_ids_name(block_ids *b, uint64_t salt, const int32_t *tokens, size_t n_tokens,
                    uint64_t *ids /* [block_ids_count(n_tokens)] */);

#endif
