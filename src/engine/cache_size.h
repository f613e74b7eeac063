/* engine/cache_size: how many blocks each KV group gets: of the engine, and of who simulates it.
 *
 * Groups without a window get as many blocks as the memory holds. One with a window needs no more
 * than what all running sequences can see at once, and as much again for prefixes that are kept; so
 * in a model of many windows and few full layers the memory goes to the full ones. Pure.
 */
#ifndef RIDGE_ENGINE_CACHE_SIZE_H
#define RIDGE_ENGINE_CACHE_SIZE_H

#include "device/device.h"
#include "model/model.h"
#include "sched/scheduler.h"

/* The model's groups, in both; s has the block size, and l the type. */
void cache_size_groups(dev_kv_layout *l, sched_params *s, const model *m);
uint64_t cache_size_token_bytes(const dev_kv_layout *l); /* of one token in all groups */
/* The most blocks in full groups that `bytes` hold, up to `most`. */
uint64_t cache_size_within(const dev_kv_layout *l, const sched_params *s, uint64_t bytes,
                           uint64_t most);
/* The blocks of every group, in both, where full ones get n_full. */
void cache_size_set(dev_kv_layout *l, sched_params *s, uint64_t n_full);

#endif
