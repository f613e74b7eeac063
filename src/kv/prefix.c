/* kv/prefix: see prefix.h. Siblings are a treap: a search tree by tokens, a heap by random priority
 * (Seidel and Aragon, 1996), so nothing needs balancing. A node's priority is a hash of its number:
 * which node stands for which tokens is chance enough. */
#include "kv/prefix.h"

#include <string.h>

#include "base/mem.h"
#include "kv/summary.h"

#define SALT_TOKENS 2 /* a root's place among its siblings: the salt as two tokens */

/* Nodes begin at whole lines, and are numbered by them. */
struct kv_prefix {
    uint32_t n_places, n_made, n_used, block_size;
    size_t node_bytes;
    char *nodes;         /* [n_places] of node_bytes: the first is the top, whose children are the
                            roots; those of [n_made, n_places) have never been used */
    kv_node *free;       /* used before; linked by their parents */
    kv_summary *summary; /* NULL: none; else */
    uint64_t *hashes;    /* [n_places] of full nodes, summary.h's; of a root: the salt */
};

static bool make_places(kv_prefix *t, uint32_t n) {
    size_t room = t->block_size > SALT_TOKENS ? t->block_size : SALT_TOKENS, bytes;
    t->node_bytes =
        (offsetof(kv_node, tokens) + room * sizeof(int32_t) + MEM_LINE - 1) / MEM_LINE * MEM_LINE;
    if (!mem_mul(n, t->node_bytes, &bytes) || bytes / MEM_LINE >= UINT32_MAX) return false;
    t->nodes = mem_aligned(MEM_LINE, bytes);
    if (t->nodes == NULL) return false;
    *(kv_node *)(void *)t->nodes = (kv_node){0};
    t->n_places = n;
    t->n_made = 1;
    return true;
}

ridge_status kv_prefix_create(kv_prefix **out, uint32_t n_nodes, uint32_t block_size, bool summary,
                              ridge_error *err) {
    kv_prefix *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) goto fail;
    t->block_size = block_size;
    if (n_nodes == UINT32_MAX || !make_places(t, n_nodes + 1)) goto fail;
    if (summary) {
        t->hashes = mem_zalloc(t->n_places, sizeof *t->hashes);
        if (t->hashes == NULL || kv_summary_create(&t->summary, n_nodes, NULL) != RIDGE_OK)
            goto fail;
    }
    *out = t;
    return RIDGE_OK;
fail:
    kv_prefix_destroy(t);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "a prefix tree of %u nodes", n_nodes);
}

void kv_prefix_destroy(kv_prefix *t) {
    if (t == NULL) return;
    kv_summary_destroy(t->summary);
    mem_free(t->hashes);
    mem_free(t->nodes);
    mem_free(t);
}

uint32_t kv_prefix_number(const kv_prefix *t, const kv_node *node) {
    return (uint32_t)((size_t)((const char *)node - t->nodes) / MEM_LINE);
}

kv_node *kv_prefix_node(const kv_prefix *t, uint32_t number) {
    return (kv_node *)(void *)(t->nodes + (size_t)number * MEM_LINE);
}

static uint64_t *hash_of(const kv_prefix *t, const kv_node *node) {
    return &t->hashes[(size_t)((const char *)node - t->nodes) / t->node_bytes];
}

/* As xxHash32 ends. */
static uint32_t priority_of(const kv_prefix *t, const kv_node *node) {
    uint32_t x = kv_prefix_number(t, node);
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return x ^ x >> 16;
}

static kv_node *top_of(const kv_prefix *t) {
    return kv_prefix_node(t, 0);
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

static kv_node *merge(const kv_prefix *t, kv_node *a, kv_node *b) {
    if (a == NULL || b == NULL) return a != NULL ? a : b;
    if (priority_of(t, a) > priority_of(t, b)) {
        a->right = merge(t, a->right, b);
        return a;
    }
    b->left = merge(t, a, b->left);
    return b;
}

static void link_in(const kv_prefix *t, kv_node *node) {
    kv_node *before, *after, **siblings = &node->parent->children;
    node->left = node->right = NULL;
    if (*siblings == NULL) { /* as nearly always */
        *siblings = node;
        return;
    }
    split(*siblings, node->tokens, node->n_tokens, &before, &after);
    *siblings = merge(t, merge(t, before, node), after);
}

static void link_out(const kv_prefix *t, kv_node *node) {
    kv_node **at = &node->parent->children;
    while (*at != node) {
        ridge_assert(*at != NULL);
        at = compare(*at, node->tokens, node->n_tokens) < 0 ? &(*at)->right : &(*at)->left;
    }
    *at = merge(t, node->left, node->right);
}

static kv_node *insert(kv_prefix *t, kv_node *parent, const int32_t *tokens, uint32_t n) {
    kv_node *node = t->free;
    if (node == NULL && t->n_made == t->n_places) return NULL;
    if (node != NULL)
        t->free = node->parent;
    else
        node = (kv_node *)(void *)(t->nodes + t->n_made++ * t->node_bytes);
    t->n_used++;
    *node = (kv_node){.parent = parent, .n_tokens = n};
    for (int g = 0; g < KV_MAX_GROUPS; g++) node->blocks[g] = -1;
    memcpy(node->tokens, tokens, n * sizeof *tokens);
    link_in(t, node);
    return node;
}

/* A node that has become full. */
static void enter_summary(kv_prefix *t, kv_node *node) {
    if (t->summary == NULL || node->n_tokens < t->block_size) return;
    uint64_t hash = kv_summary_hash(*hash_of(t, node->parent), node->tokens, node->n_tokens);
    *hash_of(t, node) = hash;
    kv_summary_add(t->summary, hash);
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
    kv_node *root = kv_prefix_nearest(top_of(t), key, SALT_TOKENS, &common);
    if (root != NULL && common == SALT_TOKENS) return root;
    root = make ? insert(t, top_of(t), key, SALT_TOKENS) : NULL;
    if (root != NULL && t->summary != NULL) *hash_of(t, root) = salt;
    return root;
}

uint64_t kv_prefix_salt(const kv_node *node) {
    while (node->parent->parent != NULL) node = node->parent;
    return (uint32_t)node->tokens[0] | (uint64_t)(uint32_t)node->tokens[1] << 32;
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
    link_out(t, node);
    memcpy(node->tokens, tokens, n * sizeof *tokens);
    node->n_tokens = n;
    link_in(t, node);
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
    link_out(t, node);
    if (t->summary != NULL && node->n_tokens == t->block_size && parent != top_of(t))
        kv_summary_remove(t->summary, *hash_of(t, node));
    node->parent = t->free;
    t->free = node;
    mem_prefetch(node->tokens + 1); /* it will be used again at once, and filled */
    t->n_used--;
    if (parent != top_of(t)) kv_prefix_prune(t, parent);
}

void kv_prefix_prune(kv_prefix *t, kv_node *node) {
    if (is_hollow(node)) kv_prefix_remove(t, node);
}

uint32_t kv_prefix_known(const kv_prefix *t, uint64_t salt, const int32_t *tokens, uint32_t n) {
    return t->summary != NULL ? kv_summary_find(t->summary, salt, tokens, n, t->block_size) : 0;
}

uint32_t kv_prefix_n_nodes(const kv_prefix *t) {
    return t->n_used;
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
    walk(top_of(t)->children, true, fn, context);
}
