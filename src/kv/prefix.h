/* kv/prefix: a tree over tokens: which prefixes the cache knows, block by block.
 *
 * A node stands for the tokens of one block after all those of its ancestors, and names the block
 * in each group that holds their keys and values (-1: none there any more). Full nodes have
 * block_size tokens; one with fewer is a leaf. Below a node the children stand in the order of
 * their tokens, so that the one which shares most with a given text is found in logarithmic time.
 * Every tenant (cache_salt) has a root of its own, so that nobody sees what others have cached.
 *
 * The radix tree of SGLang's RadixAttention (Zheng et al., 2023), cut at block borders as vLLM's
 * automatic prefix caching cuts its hashes. Pure: it neither holds nor frees blocks, cache.h does.
 * All memory is taken at the start, and touched when it is first used. One thread, but for
 * kv_prefix_known.
 */
#ifndef RIDGE_KV_PREFIX_H
#define RIDGE_KV_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define KV_MAX_GROUPS 4

typedef struct kv_prefix kv_prefix;
typedef struct kv_node kv_node;

/* All but its tokens is in one line of the processor's cache: most nodes are looked at when they
 * have not been for long. */
struct kv_node {
    kv_node *parent; /* of a root: the tree's own top */
    /* the tree's: the children as a treap, left and right among siblings */
    kv_node *children, *left, *right;
    int32_t blocks[KV_MAX_GROUPS]; /* -1: none */
    uint32_t n_tokens;             /* 1 to block_size */
    uint32_t n_users;              /* sequences that stand here; cache.h's */
    uint32_t n_uses;               /* how often a sequence came this way, capped; cache.h's */
    int32_t tokens[];              /* [n_tokens]; of a root: its salt */
};

/* With `summary`, kv_prefix_known can tell. */
ridge_status kv_prefix_create(kv_prefix **out, uint32_t n_nodes, uint32_t block_size, bool summary,
                              ridge_error *err) RIDGE_CHECKED;
void kv_prefix_destroy(kv_prefix *t); /* NULL allowed */

/* A tenant's root, without blocks. NULL: unknown; with `make`, that no node is free. */
kv_node *kv_prefix_root(kv_prefix *t, uint64_t salt, bool make);
/* Whose: the salt of a node's root. */
uint64_t kv_prefix_salt(const kv_node *node);
/* The child that shares the longest beginning with tokens [n]: *common >= 1 of them. NULL: no child
 * begins with the first. */
kv_node *kv_prefix_nearest(const kv_node *parent, const int32_t *tokens, uint32_t n,
                           uint32_t *common);
/* A new child without blocks, for tokens that no child has. NULL: no node is free. */
kv_node *kv_prefix_insert(kv_prefix *t, kv_node *parent, const int32_t *tokens, uint32_t n);
/* More tokens for a leaf: tokens [n] begin with its own, and no sibling has them. */
void kv_prefix_extend(kv_prefix *t, kv_node *node, const int32_t *tokens, uint32_t n);
/* Takes a childless node out; then, upwards, every ancestor that is left with neither children nor
 * blocks nor users. */
void kv_prefix_remove(kv_prefix *t, kv_node *node);
/* The same of a node that may still be of use: only if it has neither children, blocks nor users.
 */
void kv_prefix_prune(kv_prefix *t, kv_node *node);

/* Any thread: about so many of tokens [n] are a known prefix, in whole blocks (summary.h); without
 * a summary 0. */
uint32_t kv_prefix_known(const kv_prefix *t, uint64_t salt, const int32_t *tokens, uint32_t n);

/* A node by its number, which is shorter than its address and never 0. */
uint32_t kv_prefix_number(const kv_prefix *t, const kv_node *node);
kv_node *kv_prefix_node(const kv_prefix *t, uint32_t number);

uint32_t kv_prefix_n_nodes(const kv_prefix *t); /* in use */
/* Calls fn for every node but the roots, parents first. */
void kv_prefix_each(const kv_prefix *t, void (*fn)(void *context, const kv_node *node),
                    void *context);

#endif
