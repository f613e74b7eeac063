/* kv/prefix: see prefix.h. Siblings are a treap: a search tree by tokens, a heap by random priority
 * (Seidel and Aragon, 1996), so nothing needs balancing. */
#include "kv/prefix.h"

#include <string.h>

#include "base/mem.h"
#include "kv/summary.h"

#define SALT_TOKENS 2 /* a root's place among its siblings: the salt as two tokens */

struct kv_prefix {
    uint32_t n_nodes, n_made, n_free, block_size, room; /* room: of a node's tokens */
    kv_node *nodes;      /* [n_nodes]; those of [n_made, n_nodes) have never been used */
    kv_node **free;      /* [n_nodes]; free[0, n_free): used before */
    int32_t *tokens;     /* [n_nodes][room] */
    kv_node top;         /* its children are the roots */
    kv_summary *summary; /* NULL: none */
    uint32_t random;
};

ridge_status kv_prefix_create(kv_prefix **out, uint32_t n_nodes, uint32_t block_size, bool summary,
                              ridge_error *err) {
    kv_prefix *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) goto fail;
    t->block_size = block_size;
    t->room = block_size > SALT_TOKENS ? block_size : SALT_TOKENS;
    t->random = 2463534242u;
    t->nodes = mem_zalloc(n_nodes, sizeof *t->nodes);
    t->free = mem_zalloc(n_nodes, sizeof *t->free);
    size_t n_tokens;
    if (mem_mul(n_nodes, t->room, &n_tokens)) t->tokens = mem_zalloc(n_tokens, sizeof *t->tokens);
    if (t->nodes == NULL || t->free == NULL || t->tokens == NULL) goto fail;
    t->n_nodes = n_nodes;
    if (summary && kv_summary_create(&t->summary, n_nodes, NULL) != RIDGE_OK) goto fail;
    *out = t;
    return RIDGE_OK;
fail:
    kv_prefix_destroy(t);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "a prefix tree of %u nodes", n_nodes);
}

void kv_prefix_destroy(kv_prefix *t) {
    if (t == NULL) return;
    kv_summary_destroy(t->summary);
    mem_free(t->nodes);
    mem_free(t->free);
    mem_free(t->tokens);
    mem_free(t);
}

static uint32_t common_of(const kv_node *node, const int32_t *tokens, uint32_t n) {
    uint32_t k = 0, most = node->n_tokens < n ? node->n_tokens : n;
    while (k < most && node->tokens[k] == tokens[k]) k++;
    return k;
}

/* Where a node stands to tokens [n]: < 0 before, 0 the same. A beginning is before what goes on. */
static int compare(const kv_node *node, const int32_t *tokens, uint32_t n) {
    uint32_t k = common_of(node, tokens, n);
    if (k < node->n_tokens && k < n) return node->tokens[k] < tokens[k] ? -1 : 1;
    return (node->n_tokens > n) - (node->n_tokens < n);
}

/* Siblings before tokens [n], and the rest. */
static void split(kv_node *node, const int32_t *tokens, uint32_t n, kv_node **before,
                  kv_node **after) {
    if (node == NULL) {
        *before = *after = NULL;
    } else if (compare(node, tokens, n) < 0) {
        split(node->right, tokens, n, &node->right, after);
        *before = node;
    } else {
        split(node->left, tokens, n, before, &node->left);
        *after = node;
    }
}

static kv_node *merge(kv_node *a, kv_node *b) {
    if (a == NULL || b == NULL) return a != NULL ? a : b;
    if (a->priority > b->priority) {
        a->right = merge(a->right, b);
        return a;
    }
    b->left = merge(a, b->left);
    return b;
}

static void link_in(kv_node *node) {
    kv_node *before, *after;
    split(node->parent->children, node->tokens, node->n_tokens, &before, &after);
    node->left = node->right = NULL;
    node->parent->children = merge(merge(before, node), after);
}

static void link_out(kv_node *node) {
    /* Prefixes are forgotten from their ends: the parent is likely to be next. */
    if (node->parent->parent != NULL) mem_prefetch(&node->parent->parent->children);
    kv_node **at = &node->parent->children;
    while (*at != node) {
        ridge_assert(*at != NULL);
        at = compare(*at, node->tokens, node->n_tokens) < 0 ? &(*at)->right : &(*at)->left;
    }
    *at = merge(node->left, node->right);
}

static kv_node *insert(kv_prefix *t, kv_node *parent, const int32_t *tokens, uint32_t n) {
    if (t->n_free == 0 && t->n_made == t->n_nodes) return NULL;
    kv_node *node = t->n_free > 0 ? t->free[--t->n_free] : &t->nodes[t->n_made++];
    int32_t *room = t->tokens + (size_t)(node - t->nodes) * t->room;
    memcpy(room, tokens, n * sizeof *tokens);
    t->random ^= t->random << 13; /* xorshift32 (Marsaglia, 2003) */
    t->random ^= t->random >> 17;
    t->random ^= t->random << 5;
    *node = (kv_node){.parent = parent, .n_tokens = n, .tokens = room, .priority = t->random};
    for (int g = 0; g < KV_MAX_GROUPS; g++) node->blocks[g] = -1;
    link_in(node);
    return node;
}

/* A node that has become full. */
static void enter_summary(kv_prefix *t, kv_node *node) {
    if (t->summary == NULL || node->n_tokens < t->block_size) return;
    node->hash = kv_summary_hash(node->parent->hash, node->tokens, node->n_tokens);
    kv_summary_add(t->summary, node->hash);
}

kv_node *kv_prefix_insert(kv_prefix *t, kv_node *parent, const int32_t *tokens, uint32_t n) {
    ridge_assert(n >= 1 && n <= t->block_size);
    kv_node *node = insert(t, parent, tokens, n);
    if (node != NULL) enter_summary(t, node);
    return node;
}

kv_node *kv_prefix_root(kv_prefix *t, uint64_t salt, bool make) {
    const int32_t key[SALT_TOKENS] = {(int32_t)(uint32_t)salt, (int32_t)(uint32_t)(salt >> 32)};
    uint32_t common;
    kv_node *root = kv_prefix_nearest(&t->top, key, SALT_TOKENS, &common);
    if (root != NULL && common == SALT_TOKENS) return root;
    root = make ? insert(t, &t->top, key, SALT_TOKENS) : NULL;
    if (root != NULL) root->hash = salt;
    return root;
}

uint64_t kv_prefix_salt(const kv_node *node) {
    while (node->parent->parent != NULL) node = node->parent;
    return node->hash;
}

/* It is next to the place where the tokens themselves would stand, before or after. */
kv_node *kv_prefix_nearest(const kv_node *parent, const int32_t *tokens, uint32_t n,
                           uint32_t *common) {
    kv_node *before = NULL, *after = NULL;
    for (kv_node *node = parent->children; node != NULL;) {
        if (compare(node, tokens, n) < 0) {
            before = node;
            node = node->right;
        } else {
            after = node;
            node = node->left;
        }
    }
    uint32_t k_before = before != NULL ? common_of(before, tokens, n) : 0;
    uint32_t k_after = after != NULL ? common_of(after, tokens, n) : 0;
    *common = k_after >= k_before ? k_after : k_before;
    if (*common == 0) return NULL;
    return k_after >= k_before ? after : before;
}

void kv_prefix_extend(kv_prefix *t, kv_node *node, const int32_t *tokens, uint32_t n) {
    ridge_assert(node->children == NULL && n > node->n_tokens && n <= t->block_size);
    ridge_assert(common_of(node, tokens, n) == node->n_tokens);
    link_out(node);
    memcpy(t->tokens + (size_t)(node - t->nodes) * t->room, tokens, n * sizeof *tokens);
    node->n_tokens = n;
    link_in(node);
    enter_summary(t, node);
}

static bool is_hollow(const kv_node *node) {
    if (node->children != NULL || node->n_users > 0) return false;
    for (int g = 0; g < KV_MAX_GROUPS; g++)
        if (node->blocks[g] >= 0) return false;
    return true;
}

void kv_prefix_remove(kv_prefix *t, kv_node *node) {
    ridge_assert(node->children == NULL && node->n_users == 0);
    kv_node *parent = node->parent;
    link_out(node);
    if (t->summary != NULL && node->n_tokens == t->block_size && parent != &t->top)
        kv_summary_remove(t->summary, node->hash);
    t->free[t->n_free++] = node;
    if (parent != &t->top) kv_prefix_prune(t, parent);
}

void kv_prefix_prune(kv_prefix *t, kv_node *node) {
    if (is_hollow(node)) kv_prefix_remove(t, node);
}

uint32_t kv_prefix_known(const kv_prefix *t, uint64_t salt, const int32_t *tokens, uint32_t n) {
    return t->summary != NULL ? kv_summary_find(t->summary, salt, tokens, n, t->block_size) : 0;
}

uint32_t kv_prefix_n_nodes(const kv_prefix *t) {
    return t->n_made - t->n_free;
}

/* Of the siblings below `node` and all their descendants; recursive by siblings and by depth: a
 * chain of full nodes is walked in the loop. */
static void walk(const kv_node *node, bool roots, void (*fn)(void *, const kv_node *),
                 void *context) {
    while (node != NULL) {
        if (!roots) fn(context, node);
        walk(node->left, roots, fn, context);
        walk(node->right, roots, fn, context);
        node = node->children;
        roots = false;
    }
}

void kv_prefix_each(const kv_prefix *t, void (*fn)(void *context, const kv_node *node),
                    void *context) {
    walk(t->top.children, true, fn, context);
}
