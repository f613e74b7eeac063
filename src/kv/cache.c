/* kv/cache: see cache.h. */
#include "kv/cache.h"

#include <stdlib.h>

#include "base/mem.h"

#define AT_ONCE 16 /* nodes: more would wait for each other */

struct kv_cache {
    kv_cache_params params;
    kv_pool *pools[KV_MAX_GROUPS];
    kv_prefix *tree; /* NULL: nothing is shared; else kept blocks are named by its nodes */
    kv_copy *copies; /* [n_copies] of [max_copies] */
    uint32_t n_copies;
    uint64_t n_evicted;
};

static ridge_status create(kv_cache *c, ridge_error *err) {
    const kv_cache_params *p = &c->params;
    for (uint32_t g = 0; g < p->n_groups; g++)
        RIDGE_TRY(kv_pool_create(&c->pools[g], p->n_blocks[g], err));
    if (!p->share) return RIDGE_OK;
    /* So many that one is always free. Each node but the roots names a block of a full group that
     * is its alone; each root has such a node below it, or a sequence standing there that holds a
     * block which no node names; one more is made before its block is. */
    RIDGE_TRY(
        kv_prefix_create(&c->tree, 2 * kv_cache_capacity(c) + 1, p->block_size, p->summary, err));
    c->copies = mem_zalloc(p->max_copies, sizeof *c->copies);
    return c->copies != NULL ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "the prefix cache");
}

ridge_status kv_cache_create(kv_cache **out, const kv_cache_params *p, ridge_error *err) {
    ridge_assert(p->n_groups >= 1 && p->n_groups <= KV_MAX_GROUPS && p->block_size >= 1);
    kv_cache *c = mem_zalloc(1, sizeof *c);
    if (c == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the KV cache");
    c->params = *p;
    bool any_full = false;
    for (uint32_t g = 0; g < p->n_groups; g++) any_full = any_full || p->window[g] == 0;
    if (!any_full) c->params.window[0] = 0;
    ridge_status status = create(c, err);
    if (status != RIDGE_OK) {
        kv_cache_destroy(c);
        return status;
    }
    *out = c;
    return RIDGE_OK;
}

void kv_cache_destroy(kv_cache *c) {
    if (c == NULL) return;
    for (uint32_t g = 0; g < KV_MAX_GROUPS; g++) kv_pool_destroy(c->pools[g]);
    kv_prefix_destroy(c->tree);
    mem_free(c->copies);
    mem_free(c);
}

static bool is_full(const kv_cache *c, uint32_t g) {
    return c->params.window[g] == 0;
}

static uint32_t blocks_for(const kv_cache *c, uint32_t n_tokens) {
    return kv_blocks_for(n_tokens, c->params.block_size);
}

/* Of group g, the first block that a token at `position` or later sees. */
static uint32_t first_seen(const kv_cache *c, uint32_t g, uint32_t position) {
    uint32_t window = c->params.window[g];
    return is_full(c, g) || position + 1 <= window ? 0
                                                   : (position + 1 - window) / c->params.block_size;
}

/* What the tree names. */

static void name_block(kv_cache *c, kv_node *node, uint32_t g, int32_t block) {
    node->blocks[g] = block;
    kv_pool_keep(c->pools[g], block, kv_prefix_number(c->tree, node));
}

/* That names a kept block. */
static kv_node *owner(const kv_cache *c, uint32_t g, int32_t block) {
    return kv_prefix_node(c->tree, kv_pool_name(c->pools[g], block));
}

static void forget_block(kv_cache *c, kv_node *node, uint32_t g) {
    if (node->blocks[g] < 0) return;
    kv_pool_forget(c->pools[g], node->blocks[g]);
    node->blocks[g] = -1;
}

static void forget_node(kv_cache *c, kv_node *node) {
    for (uint32_t g = 0; g < c->params.n_groups; g++) forget_block(c, node, g);
    kv_prefix_remove(c->tree, node);
}

/* The n oldest will go. Nobody has looked at their nodes for long, and each would be waited for, as
 * would its parent, which mostly goes next. So many are fetched at once, with two more for the next
 * time. */
static void fetch_oldest(const kv_cache *c, uint32_t g, uint32_t n) {
    uint32_t names[AT_ONCE + 2];
    n = kv_pool_oldest_names(c->pools[g], names, (n < AT_ONCE ? n : AT_ONCE) + 2);
    for (uint32_t i = 0; i < n; i++) mem_prefetch(kv_prefix_node(c->tree, names[i]));
}

static void evict(kv_cache *c, uint32_t g) {
    int32_t block = kv_pool_oldest(c->pools[g]);
    ridge_assert(block >= 0);
    kv_node *node = owner(c, g, block);
    if (is_full(c, g)) {
        c->n_evicted++;
        forget_node(c, node);
    } else {
        forget_block(c, node, g);
        kv_prefix_prune(c->tree, node);
    }
}

uint32_t kv_cache_n_available(const kv_cache *c, uint32_t g) {
    return kv_pool_n_free(c->pools[g]) + kv_pool_n_cached(c->pools[g]);
}

static void grow(kv_cache *c, kv_table *t, uint32_t g, uint32_t n_blocks) {
    if (n_blocks <= t->n_blocks) return;
    uint32_t n = n_blocks - t->n_blocks, n_free = kv_pool_n_free(c->pools[g]);
    for (uint32_t i = 0; n_free + i < n; i++) {
        if (i % AT_ONCE == 0) fetch_oldest(c, g, n - n_free - i);
        evict(c, g);
    }
    ridge_status status = kv_table_grow(t, c->pools[g], n_blocks);
    ridge_assert(status == RIDGE_OK);
}

/* Finding. */

typedef struct {
    uint32_t run[KV_MAX_GROUPS]; /* blocks in a row that the path has, up to its end */
} presence;

/* The path goes on by `node`, of whose tokens `common` are used, n in all: does that prefix do? */
static bool is_usable(const kv_cache *c, presence *p, const kv_node *node, uint32_t common,
                      uint32_t n) {
    bool usable = true;
    for (uint32_t g = 0; g < c->params.n_groups; g++) {
        p->run[g] = node->blocks[g] >= 0 ? p->run[g] + 1 : 0;
        uint32_t has = p->run[g] > 0 ? (p->run[g] - 1) * c->params.block_size + common : 0;
        uint32_t seen = is_full(c, g) || n < c->params.window[g] ? n : c->params.window[g] - 1;
        usable = usable && has >= seen;
    }
    return usable;
}

kv_match kv_cache_find(const kv_cache *c, uint64_t salt, const int32_t *tokens, uint32_t n_most) {
    kv_match m = {0};
    if (c->tree == NULL) return m;
    uint32_t size = c->params.block_size, n = 0;
    kv_node *node = m.node = m.left_at = kv_prefix_root(c->tree, salt, false);
    presence present = {0};
    while (node != NULL && n < n_most) {
        uint32_t common, wanted = n_most - n < size ? n_most - n : size;
        kv_node *child = kv_prefix_nearest(node, tokens + n, wanted, &common);
        if (child == NULL) break;
        if (is_usable(c, &present, child, common, n + common)) {
            m.n_tokens = n + common;
            m.n_full = m.n_tokens / size;
            m.node = common == size ? child : node;
            m.partial = common == size ? NULL : child;
        }
        if (common < size) break;
        node = m.left_at = child;
        m.n_left_at = n += common;
    }
    return m;
}

uint32_t kv_cache_known(const kv_cache *c, uint64_t salt, const int32_t *tokens, uint32_t n_most) {
    return c->tree != NULL ? kv_prefix_known(c->tree, salt, tokens, n_most) : 0;
}

uint32_t kv_cache_nearest(const kv_match *m, const int32_t *tokens, uint32_t n, int32_t *out,
                          uint32_t max) {
    uint32_t n_out = 0, common;
    const kv_node *node = m->left_at;
    if (node == NULL || n == 0) return 0;
    node = kv_prefix_nearest(node, tokens, n, &common);
    if (node == NULL) node = m->left_at->children;
    for (; node != NULL && n_out < max; node = node->children)
        for (uint32_t i = 0; i < node->n_tokens && n_out < max; i++) out[n_out++] = node->tokens[i];
    return n_out;
}

/* Holding. */

/* Could group g give what the sequence lacks beside the match, and `spare`? What the match holds
 * can't be given any more; nor may what is to be copied be evicted for its copy. */
static bool has_room(const kv_cache *c, const kv_match *m, uint32_t g, uint32_t n_blocks,
                     uint32_t spare) {
    uint64_t need = (uint64_t)n_blocks - m->n_full + spare;
    uint32_t first = first_seen(c, g, m->n_tokens);
    const kv_node *node = m->node;
    for (uint32_t i = m->n_full; i > first; i--, node = node->parent)
        need += kv_pool_holders(c->pools[g], node->blocks[g]) == 0;
    if (m->partial != NULL && m->partial->blocks[g] >= 0)
        need += kv_pool_holders(c->pools[g], m->partial->blocks[g]) == 0;
    return need <= kv_cache_n_available(c, g);
}

/* Blocks that the sequence gets at once in group g: in a window only what the match needs. */
static uint32_t blocks_at_once(const kv_cache *c, const kv_match *m, uint32_t g,
                               uint32_t n_tokens) {
    return blocks_for(c, is_full(c, g) ? n_tokens : m->n_tokens);
}

static bool have_room(const kv_cache *c, const kv_match *m, uint32_t n_tokens, uint32_t spare) {
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (!has_room(c, m, g, blocks_at_once(c, m, g, n_tokens), is_full(c, g) ? spare : 0))
            return false;
    return true;
}

static void hold_path(kv_cache *c, kv_table *t, const kv_match *m, uint32_t g) {
    kv_node *node = m->node;
    uint32_t first = first_seen(c, g, m->n_tokens);
    t->n_blocks = m->n_full;
    t->first = first < m->n_full ? first : m->n_full;
    for (uint32_t i = m->n_full; i > 0; i--, node = node->parent) {
        t->blocks[i - 1] = i > t->first ? node->blocks[g] : -1;
        if (i > t->first) kv_pool_hold(c->pools[g], node->blocks[g]);
        if (g == 0 && node->n_uses < UINT32_MAX) node->n_uses++;
    }
}

static void copy_partial(kv_cache *c, const kv_table *t, const kv_match *m, uint32_t g,
                         int32_t from) {
    ridge_assert(c->n_copies < c->params.max_copies);
    c->copies[c->n_copies++] = (kv_copy){.group = g,
                                         .from = from,
                                         .to = t->blocks[m->n_full],
                                         .n_tokens = m->n_tokens % c->params.block_size};
}

static void take_in_group(kv_cache *c, kv_table *t, const kv_match *m, uint32_t g,
                          uint32_t n_blocks) {
    int32_t from = m->partial != NULL ? m->partial->blocks[g] : -1;
    if (from >= 0) kv_pool_hold(c->pools[g], from); /* not evicted meanwhile */
    grow(c, t, g, n_blocks);
    if (from < 0) return; /* nothing to copy, or nothing that is seen again */
    copy_partial(c, t, m, g, from);
    kv_pool_release(c->pools[g], from);
}

bool kv_cache_take(kv_cache *c, kv_seq *s, const kv_match *m, uint64_t salt, uint32_t n_tokens,
                   uint32_t spare) {
    ridge_assert(n_tokens >= m->n_tokens && s->node == NULL);
    if (!have_room(c, m, n_tokens, spare)) return false;
    if (c->tree != NULL && !s->apart)
        s->node = m->node != NULL ? m->node : kv_prefix_root(c->tree, salt, true);
    if (s->node != NULL) s->node->n_users++;
    s->n_nodes = m->n_full;
    if (m->partial != NULL) m->partial->n_users++;
    for (uint32_t g = 0; g < c->params.n_groups; g++) hold_path(c, &s->tables[g], m, g);
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        take_in_group(c, &s->tables[g], m, g, blocks_at_once(c, m, g, n_tokens));
    if (m->partial != NULL) m->partial->n_users--;
    return true;
}

void kv_cache_skip(kv_cache *c, kv_seq *s, uint32_t n_tokens) {
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        kv_table_skip(&s->tables[g], c->pools[g], first_seen(c, g, n_tokens));
}

bool kv_cache_grow(kv_cache *c, kv_seq *s, uint32_t n_tokens) {
    uint32_t n_blocks = blocks_for(c, n_tokens);
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (is_full(c, g) && n_blocks > s->tables[g].n_blocks &&
            n_blocks - s->tables[g].n_blocks > kv_cache_n_available(c, g))
            return false;
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (is_full(c, g)) grow(c, &s->tables[g], g, n_blocks);
    return true;
}

bool kv_cache_has_windows(const kv_cache *c) {
    bool any = false;
    for (uint32_t g = 0; g < c->params.n_groups; g++) any = any || !is_full(c, g);
    return any;
}

void kv_cache_grow_windows(kv_cache *c, kv_seq *s, uint32_t n_tokens) {
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (!is_full(c, g)) grow(c, &s->tables[g], g, blocks_for(c, n_tokens));
}

void kv_cache_shrink(kv_cache *c, kv_seq *s, uint32_t n_tokens) {
    uint32_t n_blocks = blocks_for(c, n_tokens);
    ridge_assert(n_blocks >= s->n_nodes);
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        kv_table_cut(&s->tables[g], c->pools[g], n_blocks);
}

/* Entering what has been computed. */

/* NULL: nowhere; a tenant's root that nobody needs any more goes then. */
static void stand_at(kv_cache *c, kv_seq *s, kv_node *node) {
    kv_node *before = s->node;
    before->n_users--;
    if (node != NULL) node->n_users++;
    s->node = node;
    if (node == NULL) kv_prefix_prune(c->tree, before);
}

/* The tree knows a block of these tokens: the sequence goes on with that one, whose contents are
 * the same bit for bit; where the tree's has gone the sequence's takes its place. */
static void adopt(kv_cache *c, kv_seq *s, kv_node *node) {
    for (uint32_t g = 0; g < c->params.n_groups; g++) {
        kv_table *t = &s->tables[g];
        if (s->n_nodes < t->first) continue;
        int32_t own = t->blocks[s->n_nodes], known = node->blocks[g];
        if (known == own) continue;
        if (known < 0) {
            name_block(c, node, g, own);
            continue;
        }
        kv_pool_hold(c->pools[g], known);
        t->blocks[s->n_nodes] = known;
        kv_pool_release(c->pools[g], own);
    }
}

/* A new node for tokens [n] at the sequence's end, of its own blocks. NULL: no room in the tree. */
static kv_node *enter(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n) {
    kv_node *node = kv_prefix_insert(c->tree, s->node, tokens, n);
    if (node == NULL) return NULL;
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (s->n_nodes >= s->tables[g].first)
            name_block(c, node, g, s->tables[g].blocks[s->n_nodes]);
    return node;
}

/* A cached node whose tokens the new ones begin with says nothing more than they will. */
static void forget_shorter(kv_cache *c, kv_node *node, uint32_t common) {
    if (node == NULL || common < node->n_tokens || node->n_users > 0) return;
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (node->blocks[g] >= 0 && kv_pool_holders(c->pools[g], node->blocks[g]) > 0) return;
    forget_node(c, node);
}

/* Enters the next full block. Where the tree has no room the sequence goes on without it. */
static void enter_full(kv_cache *c, kv_seq *s, const int32_t *tokens) {
    uint32_t size = c->params.block_size, common;
    kv_node *node = kv_prefix_nearest(s->node, tokens, size, &common);
    if (common == size) {
        if (s->tail != NULL) forget_node(c, s->tail);
        adopt(c, s, node);
    } else if (s->tail != NULL) {
        kv_prefix_extend(c->tree, s->tail, tokens, size);
        node = s->tail;
    } else {
        forget_shorter(c, node, common);
        node = enter(c, s, tokens, size);
    }
    s->tail = NULL;
    s->n_nodes++;
    stand_at(c, s, node);
}

static void enter_tail(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n) {
    uint32_t common;
    kv_node *node = kv_prefix_nearest(s->node, tokens, n, &common);
    if (common == n) return; /* known, perhaps by the tail itself */
    if (s->tail != NULL) {
        kv_prefix_extend(c->tree, s->tail, tokens, n);
        return;
    }
    forget_shorter(c, node, common);
    s->tail = enter(c, s, tokens, n);
}

void kv_cache_fetch(const kv_cache *c, const kv_seq *s, const int32_t *tokens, uint32_t n) {
    if (s->node == NULL) return;
    mem_prefetch(s->node);
    mem_prefetch(tokens + n - 1);
    mem_prefetch(tokens + (size_t)s->n_nodes * c->params.block_size);
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (is_full(c, g)) kv_pool_fetch(c->pools[g], s->tables[g].blocks[s->n_nodes]);
}

static void enter_computed(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n, bool tail) {
    uint32_t size = c->params.block_size;
    while (kv_seq_fills(s, size, n)) enter_full(c, s, tokens + (size_t)s->n_nodes * size);
    uint32_t entered = s->n_nodes * size;
    if (tail && s->node != NULL && n > entered) enter_tail(c, s, tokens + entered, n - entered);
}

void kv_cache_commit(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n, bool tail) {
    enter_computed(c, s, tokens, n, tail);
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (!is_full(c, g)) kv_table_trim(&s->tables[g], c->pools[g], first_seen(c, g, n));
}

void kv_cache_release(kv_cache *c, kv_seq *s, const int32_t *tokens, uint32_t n) {
    enter_computed(c, s, tokens, n, true);
    for (uint32_t g = 0; g < c->params.n_groups; g++) kv_table_release(&s->tables[g], c->pools[g]);
    if (s->node != NULL) stand_at(c, s, NULL);
    s->tail = NULL;
    s->n_nodes = 0;
}

const kv_copy *kv_cache_take_copies(kv_cache *c, uint32_t *n) {
    *n = c->n_copies;
    c->n_copies = 0;
    return c->copies;
}

uint32_t kv_cache_window_blocks(uint32_t window, uint32_t block_size, uint32_t n_seqs,
                                uint32_t n_tokens) {
    uint64_t each = ((uint64_t)window + block_size - 1) / block_size + 3;
    uint64_t n = n_seqs * each + n_tokens / block_size + 1;
    return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

uint32_t kv_cache_capacity(const kv_cache *c) {
    uint32_t least = UINT32_MAX;
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if (is_full(c, g) && c->params.n_blocks[g] < least) least = c->params.n_blocks[g];
    return least;
}

const kv_pool *kv_cache_pool(const kv_cache *c, uint32_t g) {
    return c->pools[g];
}

uint64_t kv_cache_n_evicted(const kv_cache *c) {
    return c->n_evicted;
}

/* Keeping. */

uint32_t kv_cache_full_mask(const kv_cache *c) {
    uint32_t mask = 0;
    for (uint32_t g = 0; g < c->params.n_groups; g++) mask |= (uint32_t)is_full(c, g) << g;
    return mask;
}

uint32_t kv_cache_full_group(const kv_cache *c) {
    uint32_t g = 0;
    while (!is_full(c, g)) g++;
    return g;
}

typedef struct {
    const kv_node *node;
    size_t order;
} ranked;

static int more_used(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->node->n_uses != y->node->n_uses) return x->node->n_uses > y->node->n_uses ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* By uses, then the latest first: a parent was let go after its children, and used as often. */
ridge_status kv_cache_ranked(const kv_cache *c, const kv_node ***out, size_t *n, ridge_error *err) {
    uint32_t g = kv_cache_full_group(c);
    const kv_pool *pool = c->pools[g];
    size_t most = c->tree != NULL ? kv_pool_n_cached(pool) : 0;
    ranked *all = mem_zalloc(most + 1, sizeof *all);
    const kv_node **nodes = mem_zalloc(most + 1, sizeof *nodes);
    if (all == NULL || nodes == NULL) {
        mem_free(all);
        mem_free(nodes);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the prefixes to keep");
    }
    *n = 0;
    for (int32_t b = kv_pool_older(pool, -1); b >= 0; b = kv_pool_older(pool, b), (*n)++)
        all[*n] = (ranked){owner(c, g, b), *n};
    qsort(all, *n, sizeof *all, more_used);
    for (size_t i = 0; i < *n; i++) nodes[i] = all[i].node;
    mem_free(all);
    *out = nodes;
    return RIDGE_OK;
}

kv_node *kv_cache_restore(kv_cache *c, kv_node *parent, uint64_t salt, const int32_t *tokens,
                          uint32_t n, uint32_t mask) {
    uint32_t common;
    ridge_assert((mask & kv_cache_full_mask(c)) == kv_cache_full_mask(c));
    for (uint32_t g = 0; g < c->params.n_groups; g++)
        if ((mask >> g & 1) != 0 && kv_pool_n_free(c->pools[g]) == 0) return NULL;
    if (parent == NULL) parent = kv_prefix_root(c->tree, salt, true);
    if (parent == NULL) return NULL;
    kv_node *node = NULL;
    if (kv_prefix_nearest(parent, tokens, n, &common) == NULL || common < n)
        node = kv_prefix_insert(c->tree, parent, tokens, n);
    if (node == NULL) {
        kv_prefix_prune(c->tree, parent);
        return NULL;
    }
    for (uint32_t g = 0; g < c->params.n_groups; g++) {
        int32_t block;
        if ((mask >> g & 1) == 0) continue;
        ridge_status status = kv_pool_alloc(c->pools[g], &block);
        ridge_assert(status == RIDGE_OK); /* seen above */
        name_block(c, node, g, block);
    }
    return node;
}

void kv_cache_settle(kv_cache *c, kv_node *const *nodes, size_t n) {
    while (n-- > 0)
        for (uint32_t g = 0; g < c->params.n_groups && nodes[n] != NULL; g++)
            if (nodes[n]->blocks[g] >= 0) kv_pool_release(c->pools[g], nodes[n]->blocks[g]);
}

/* Checking. */

typedef struct {
    const kv_cache *c;
    uint32_t n_named[KV_MAX_GROUPS];
} census;

static void count(void *context, const kv_node *node) {
    census *n = context;
    const kv_cache *c = n->c;
    ridge_assert(node->n_tokens == c->params.block_size || node->children == NULL);
    for (uint32_t g = 0; g < c->params.n_groups; g++) {
        int32_t block = node->blocks[g];
        ridge_assert(block >= 0 || !is_full(c, g));
        if (block < 0) continue;
        ridge_assert(kv_pool_name(c->pools[g], block) == kv_prefix_number(c->tree, node));
        n->n_named[g]++;
        int32_t above = node->parent->blocks[g];
        if (is_full(c, g) && above >= 0 && kv_pool_holders(c->pools[g], block) > 0 &&
            node->n_tokens == c->params.block_size)
            ridge_assert(kv_pool_holders(c->pools[g], above) > 0);
    }
}

void kv_cache_check(const kv_cache *c) {
    census n = {.c = c};
    for (uint32_t g = 0; g < c->params.n_groups; g++) kv_pool_check(c->pools[g]);
    if (c->tree == NULL) return;
    kv_prefix_each(c->tree, count, &n);
    for (uint32_t g = 0; g < c->params.n_groups; g++) {
        uint32_t n_kept = 0;
        for (uint32_t b = 0; b < c->params.n_blocks[g]; b++)
            n_kept += kv_pool_name(c->pools[g], (int32_t)b) != 0;
        ridge_assert(n_kept == n.n_named[g]);
    }
}
