/* kv/cache: the blocks of all KV groups, what sequences hold of them, and what is known by its
 * tokens and can be used again.
 *
 * A sequence's full blocks are entered into the prefix tree as soon as they are computed, its last,
 * partly filled one when its prompt is done and when it leaves. Who comes later with the same
 * tokens holds the same full blocks; of a block that fits only at its beginning he gets a copy, so
 * a match counts to the token. When a group runs dry, what has gone unused for longest is
 * forgotten: of full groups a leaf of the tree, of window groups the block alone. Groups with a
 * window give back what no token to come can see; a cached prefix of t tokens needs [0, t) in full
 * groups and [t - window + 1, t) in window groups.
 *
 * Invariants: a sequence that holds a node's blocks of full groups holds those of all its
 * ancestors; so blocks are let go children first, and the oldest cached one is always a leaf's.
 * Group 0 is treated as full even if it has a window, when no other group is.
 *
 * Pure bookkeeping: the copies it asks for are made by who owns the device, before the next
 * forward, in their order. No allocation after creation. One thread, but for kv_cache_known.
 */
#ifndef RIDGE_KV_CACHE_H
#define RIDGE_KV_CACHE_H

#include <stddef.h>

#include "kv/prefix.h"
#include "kv/table.h"

typedef struct kv_cache kv_cache;

typedef struct {
    uint32_t n_groups, block_size;
    uint32_t n_blocks[KV_MAX_GROUPS], window[KV_MAX_GROUPS]; /* window 0: full */
    bool share;                                              /* prefixes are used again */
    bool summary;                                            /* of those kv_cache_known can tell */
    uint32_t max_copies; /* admissions between two kv_cache_take_copies, times n_groups */
} kv_cache_params;

/* What one sequence holds. Zeroed and with tables made at first; see sequence.h. */
typedef struct {
    kv_node *node;    /* what it has computed is in the tree down to here; NULL: not entered */
    kv_node *tail;    /* its last block's, while that is partly filled and entered */
    uint32_t n_nodes; /* full blocks on the way to node */
    bool apart;       /* set by who makes it: what it computes isn't entered */
    kv_table tables[KV_MAX_GROUPS];
} kv_seq;

/* The longest cached prefix of some tokens. */
typedef struct {
    uint32_t n_tokens;
    kv_node *node;      /* its last full block's, or the root; NULL: unknown tenant */
    uint32_t n_full;    /* full blocks */
    kv_node *partial;   /* begins with the n_tokens % block_size that follow; NULL: none */
    kv_node *left_at;   /* where the tree was left: the last node that fits whole */
    uint32_t n_left_at; /* tokens down to there */
} kv_match;

typedef struct {
    uint32_t group;
    int32_t from, to;
    uint32_t n_tokens; /* the first of the block */
} kv_copy;

ridge_status kv_cache_create(kv_cache **out, const kv_cache_params *p,
                             ridge_error *err) RIDGE_CHECKED;
void kv_cache_destroy(kv_cache *c); /* NULL allowed */

/* Looks up at most n_most of the tokens; changes nothing. */
kv_match kv_cache_find(const kv_cache *c, uint64_t salt, const int32_t *tokens, uint32_t n_most);
/* Any thread: about how many of the tokens a find would give, of a moment ago (summary.h); without
 * params.summary 0. */
uint32_t kv_cache_known(const kv_cache *c, uint64_t salt, const int32_t *tokens, uint32_t n_most);
/* Gives an empty sequence what was found, and blocks for n_tokens in full groups, if after that
 * `spare` more could be had in each of those: else false and no change. (A copy of a partial block
 * needs the room of two: a second try may be a find of at most n_full blocks' tokens.) Between find
 * and take nothing else may happen. */
bool kv_cache_take(kv_cache *c, kv_seq *s, const kv_match *m, uint64_t salt, uint32_t n_tokens,
                   uint32_t spare);
/* The first n_tokens are filled from elsewhere, in blocks that the sequence has in full groups: of
 * window groups it will only need those that tokens to come can see. Before the first commit. */
void kv_cache_skip(kv_cache *c, kv_seq *s, uint32_t n_tokens);
/* Blocks for n_tokens in the full groups: all, or false and no change. (All of those have as many.)
 */
bool kv_cache_grow(kv_cache *c, kv_seq *s, uint32_t n_tokens);
bool kv_cache_has_windows(const kv_cache *c); /* any group that isn't full */
/* The same in the window groups, which must have the room (kv_cache_window_blocks). */
void kv_cache_grow_windows(kv_cache *c, kv_seq *s, uint32_t n_tokens);
/* Gives back, in all groups, what n_tokens don't need: blocks that hold nothing that is entered. */
void kv_cache_shrink(kv_cache *c, kv_seq *s, uint32_t n_tokens);
/* tokens [0, n) of s will soon be committed, which fills a block: fetches what that reads. */
void kv_cache_fetch(const kv_cache *c, const kv_seq *s, const int32_t *tokens, uint32_t n);
/* Will a commit of n tokens enter a full block? */
static inline bool kv_seq_fills(const kv_seq *s, uint32_t block_size, uint32_t n) {
    return s->node != NULL && (s->n_nodes + 1) * (uint64_t)block_size <= n;
}
/* tokens [0, n) of s are computed: enters them into the tree (with `tail` the last block too), and
 * gives back what its windows have passed. */
void kv_cache_commit(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n, bool tail);
/* The sequence leaves: the same, then gives everything back. */
void kv_cache_release(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n);

/* Since the last call; borrowed until the next find. */
const kv_copy *kv_cache_take_copies(kv_cache *c, uint32_t *n);

/* Blocks that a window group needs so that growing never fails: for n_seqs sequences which together
 * compute n_tokens in a step. */
uint32_t kv_cache_window_blocks(uint32_t window, uint32_t block_size, uint32_t n_seqs,
                                uint32_t n_tokens);
/* Writes up to `max` cached tokens that follow the place where the tree was left by a match, along
 * the child that comes nearest to tokens [n] (those of the sequence from n_left_at on). */
uint32_t kv_cache_nearest(const kv_match *m, const int32_t *tokens, uint32_t n, int32_t *out,
                          uint32_t max);

/* Keeping prefixes beyond the process (engine/prefix_file.h). */

/* The nodes that nobody holds, the most used first, among equals the latest; a node comes after its
 * parent, unless that is a root. *out: [*n], owned (mem_free). */
ridge_status kv_cache_ranked(const kv_cache *c, const kv_node ***out, size_t *n,
                             ridge_error *err) RIDGE_CHECKED;
/* A node for tokens [n] below `parent` (NULL: the root of `salt`), with a new block in the groups
 * of the mask, all full ones among them, held until kv_cache_settle: to be filled by the caller.
 * NULL: no room, or they are known. */
kv_node *kv_cache_restore(kv_cache *c, kv_node *parent, uint64_t salt, const int32_t *tokens,
                          uint32_t n, uint32_t mask);
/* Lets go of what was restored, in reverse: the first was the most used. NULLs are passed over. */
void kv_cache_settle(kv_cache *c, kv_node *const *nodes, size_t n);
uint32_t kv_cache_full_mask(const kv_cache *c);  /* of groups: bit g */
uint32_t kv_cache_full_group(const kv_cache *c); /* the first of those */

uint32_t kv_cache_capacity(const kv_cache *c);                    /* blocks of a full group */
uint32_t kv_cache_n_available(const kv_cache *c, uint32_t group); /* free or cached */
const kv_pool *kv_cache_pool(const kv_cache *c, uint32_t group);
uint64_t kv_cache_n_evicted(const kv_cache *c); /* blocks of full groups forgotten, so far */
/* Asserts the invariants but those of holders: every kept block is named by one node. Slow. */
void kv_cache_check(const kv_cache *c);

#endif
