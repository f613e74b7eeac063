/* kv/cache and kv/prefix against memory: every slot remembers which prefix wrote it, so whatever a
 * sequence is given must hold what it would have computed itself. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kv/cache.h"

static uint64_t seed = 88172645463325252ull;

static uint32_t below(uint32_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32) % n;
}

#define MAX_TOKENS 64
#define MAX_BLOCKS 80
#define N_SEQS 6

typedef struct {
    kv_seq kv;
    bool live;
    uint64_t salt;
    int32_t tokens[MAX_TOKENS];
    uint32_t n_tokens, n_computed;
} user;

typedef struct {
    kv_cache *c;
    kv_cache_params p;
    uint64_t memory[KV_MAX_GROUPS][MAX_BLOCKS][8]; /* what wrote each slot */
    user users[N_SEQS];
    uint64_t n_hits, n_copies;
    uint64_t n_known, n_findable; /* blocks of prompts: by the summary, by the tree */
} world;

/* Names tokens [0, n] of a user, all that came before included. */
static uint64_t name_of(const user *u, uint32_t n) {
    uint64_t h = 1469598103934665603ull ^ u->salt;
    for (uint32_t i = 0; i <= n; i++) h = (h ^ (uint64_t)u->tokens[i]) * 1099511628211ull;
    return h;
}

static uint64_t *slot_of(world *w, const user *u, uint32_t g, uint32_t position) {
    int32_t block = u->kv.tables[g].blocks[position / w->p.block_size];
    assert_in_range(block, 0, w->p.n_blocks[g] - 1);
    return &w->memory[g][block][position % w->p.block_size];
}

/* Everything that a token at n_computed or later sees must be there. */
static void check_contents(world *w, const user *u) {
    for (uint32_t g = 0; g < w->p.n_groups; g++) {
        uint32_t window = w->p.window[g], begin = 0;
        if (window > 0 && u->n_computed + 1 > window) begin = u->n_computed + 1 - window;
        for (uint32_t i = begin; i < u->n_computed; i++)
            assert_int_equal(*slot_of(w, u, g, i), name_of(u, i));
    }
}

static void check_holders(const world *w) {
    for (uint32_t g = 0; g < w->p.n_groups; g++) {
        uint32_t n[MAX_BLOCKS] = {0};
        for (int i = 0; i < N_SEQS; i++)
            for (uint32_t b = w->users[i].kv.tables[g].first; b < w->users[i].kv.tables[g].n_blocks;
                 b++)
                n[w->users[i].kv.tables[g].blocks[b]]++;
        for (uint32_t b = 0; b < w->p.n_blocks[g]; b++)
            assert_int_equal(kv_pool_holders(kv_cache_pool(w->c, g), (int32_t)b), n[b]);
    }
    kv_cache_check(w->c);
}

/* A text that often begins like others: choices fork late and rarely. */
static void invent(user *u) {
    u->n_tokens = 1 + below(MAX_TOKENS / 2);
    u->salt = below(4) == 0 ? 1 + below(2) : 0;
    for (uint32_t i = 0; i < u->n_tokens; i++) u->tokens[i] = below(8) == 0 ? (int32_t)below(3) : 7;
}

static void make_copies(world *w) {
    uint32_t n;
    const kv_copy *copies = kv_cache_take_copies(w->c, &n);
    for (uint32_t i = 0; i < n; i++) {
        const kv_copy *c = &copies[i];
        assert_in_range(c->n_tokens, 1, w->p.block_size - 1);
        memcpy(w->memory[c->group][c->to], w->memory[c->group][c->from],
               c->n_tokens * sizeof(uint64_t));
    }
    w->n_copies += n;
}

/* What the summary knows is in the tree; what it misses has found no place. */
static void check_summary(world *w, const user *u, const kv_match *m) {
    uint32_t known = kv_cache_known(w->c, u->salt, u->tokens, u->n_tokens - 1);
    assert_int_equal(known % w->p.block_size, 0);
    assert_true(known <= m->n_left_at);
    w->n_known += known / w->p.block_size;
    w->n_findable += m->n_left_at / w->p.block_size;
}

static void begin(world *w, user *u) {
    invent(u);
    kv_match m = kv_cache_find(w->c, u->salt, u->tokens, u->n_tokens - 1);
    assert_true(m.n_tokens < u->n_tokens);
    check_summary(w, u, &m);
    if (!kv_cache_take(w->c, &u->kv, &m, u->salt, u->n_tokens, below(3))) {
        m = kv_cache_find(w->c, u->salt, u->tokens, m.n_full * w->p.block_size);
        assert_null(m.partial);
        if (!kv_cache_take(w->c, &u->kv, &m, u->salt, u->n_tokens, below(3))) return;
    }
    u->live = true;
    u->n_computed = m.n_tokens;
    w->n_hits += m.n_tokens;
    make_copies(w);
    check_contents(w, u);
}

/* A chunk of what is left; or one token more. */
static void compute(world *w, user *u) {
    if (u->n_computed == u->n_tokens) {
        if (u->n_tokens == MAX_TOKENS || !kv_cache_grow(w->c, &u->kv, u->n_tokens + 1)) return;
        u->tokens[u->n_tokens++] = (int32_t)below(2);
    }
    uint32_t n = 1 + below(u->n_tokens - u->n_computed), to = u->n_computed + n;
    if (n > 16) to = u->n_computed + 16;
    kv_cache_grow_windows(w->c, &u->kv, to);
    for (uint32_t g = 0; g < w->p.n_groups; g++)
        for (uint32_t i = u->n_computed; i < to; i++) *slot_of(w, u, g, i) = name_of(u, i);
    u->n_computed = to;
    kv_cache_commit(w->c, &u->kv, u->tokens, to, below(2) == 0);
    check_contents(w, u);
}

static void end(world *w, user *u) {
    kv_cache_release(w->c, &u->kv, u->tokens, u->n_computed);
    u->live = false;
}

static void run_world(uint32_t block_size, const uint32_t *window, uint32_t n_groups,
                      uint32_t n_blocks, bool share) {
    world *w = calloc(1, sizeof *w);
    w->p = (kv_cache_params){.n_groups = n_groups,
                             .block_size = block_size,
                             .share = share,
                             .summary = true,
                             .max_copies = n_groups};
    bool any_full = false;
    for (uint32_t g = 0; g < n_groups; g++) any_full = any_full || window[g] == 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t least = kv_cache_window_blocks(window[g], block_size, N_SEQS, N_SEQS * 16);
        w->p.window[g] = window[g];
        w->p.n_blocks[g] =
            window[g] > 0 && (any_full || g > 0) && least < n_blocks ? least : n_blocks;
    }
    assert_int_equal(kv_cache_create(&w->c, &w->p, NULL), RIDGE_OK);
    for (int i = 0; i < N_SEQS; i++)
        for (uint32_t g = 0; g < n_groups; g++)
            assert_int_equal(
                kv_table_init(&w->users[i].kv.tables[g], MAX_TOKENS / block_size + 1, NULL),
                RIDGE_OK);
    for (int step = 0; step < 3000; step++) {
        user *u = &w->users[below(N_SEQS)];
        if (!u->live)
            begin(w, u);
        else if (below(12) == 0)
            end(w, u);
        else
            compute(w, u);
        check_holders(w);
    }
    for (int i = 0; i < N_SEQS; i++) {
        if (w->users[i].live) end(w, &w->users[i]);
        for (uint32_t g = 0; g < n_groups; g++) kv_table_deinit(&w->users[i].kv.tables[g]);
    }
    check_holders(w);
    for (uint32_t g = 0; g < n_groups; g++)
        assert_int_equal(kv_cache_n_available(w->c, g), w->p.n_blocks[g]);
    if (share) {
        assert_true(w->n_hits > 500);
        assert_true(block_size == 1 || w->n_copies > 20);
        if ((double)w->n_known < .98 * (double)w->n_findable)
            fail_msg("%d of %d blocks known", (int)w->n_known, (int)w->n_findable);
    } else {
        assert_int_equal(w->n_hits + w->n_copies + w->n_known, 0);
    }
    kv_cache_destroy(w->c);
    free(w);
}

static void test_what_is_given_is_what_was_computed(void **state) {
    (void)state;
    const uint32_t windows[][3] = {{0, 0, 0}, {0, 5, 0}, {0, 1, 17}, {6, 3, 9}, {4, 0, 30}};
    for (uint32_t size = 1; size <= 8; size++)
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
            for (uint32_t n_groups = 1; n_groups <= 3; n_groups++)
                run_world(size, windows[i], n_groups,
                          MAX_BLOCKS - below(3) * 6 - (size > 3 ? 40 : 0), true);
}

static void test_without_sharing(void **state) {
    (void)state;
    run_world(4, (const uint32_t[]){0, 6}, 2, 40, false);
}

/* Alone with a cache: what each look-up finds, in numbers. */

static user one(const int32_t *tokens, uint32_t n, uint64_t salt) {
    user u = {.n_tokens = n, .salt = salt};
    memcpy(u.tokens, tokens, n * sizeof *tokens);
    assert_int_equal(kv_table_init(&u.kv.tables[0], 16, NULL), RIDGE_OK);
    return u;
}

/* Computes all of it and leaves: what it found. */
static uint32_t visit(kv_cache *c, const int32_t *tokens, uint32_t n, uint64_t salt) {
    user u = one(tokens, n, salt);
    uint32_t n_copies;
    kv_match m = kv_cache_find(c, salt, tokens, n - 1);
    assert_true(kv_cache_take(c, &u.kv, &m, salt, n, 0));
    kv_cache_take_copies(c, &n_copies);
    kv_cache_commit(c, &u.kv, tokens, n, true);
    kv_cache_release(c, &u.kv, tokens, n);
    kv_table_deinit(&u.kv.tables[0]);
    kv_cache_check(c);
    return m.n_tokens;
}

static kv_cache *plain_cache(uint32_t n_blocks) {
    kv_cache *c;
    kv_cache_params p = {.n_groups = 1,
                         .block_size = 4,
                         .n_blocks = {n_blocks},
                         .share = true,
                         .summary = true,
                         .max_copies = 1};
    assert_int_equal(kv_cache_create(&c, &p, NULL), RIDGE_OK);
    return c;
}

static void test_matches_count_to_the_token(void **state) {
    (void)state;
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b[] = {1, 2, 3, 4, 5, 6, 9, 9, 9, 9},
                  x[] = {2, 2, 3};
    kv_cache *c = plain_cache(16);
    assert_int_equal(visit(c, a, 10, 0), 0);
    assert_int_equal(visit(c, a, 10, 0), 9); /* all but the last, which must be computed */
    assert_int_equal(visit(c, a, 8, 0), 7);
    assert_int_equal(visit(c, b, 10, 0), 6);
    assert_int_equal(visit(c, b, 10, 0), 9);
    assert_int_equal(visit(c, a, 10, 0), 9);
    assert_int_equal(visit(c, x, 3, 0), 0);
    assert_int_equal(visit(c, a, 10, 77), 0); /* another tenant */
    assert_int_equal(visit(c, a, 10, 77), 9);
    kv_cache_destroy(c);
}

/* As many tenants as there are blocks, each with a prompt of its own in one: each has its root. */
static void test_as_many_tenants_as_blocks(void **state) {
    (void)state;
    enum { N = 300 };
    kv_cache *c = plain_cache(N + 1);
    for (uint64_t round = 0; round < 2; round++)
        for (uint64_t salt = 1; salt <= N; salt++) {
            const int32_t text[] = {(int32_t)salt, 2, 3};
            assert_int_equal(visit(c, text, 3, salt), round == 0 ? 0 : 2);
        }
    kv_cache_destroy(c);
}

/* The pool holds three blocks: what was used last stays, and of a prefix its beginning. */
static void test_the_oldest_leaf_goes_first(void **state) {
    (void)state;
    const int32_t a[] = {1, 1, 1, 1, 2, 2, 2, 2, 3}, b[] = {9, 9, 9, 9};
    kv_cache *c = plain_cache(3);
    assert_int_equal(visit(c, a, 9, 0), 0);
    assert_int_equal(visit(c, b, 4, 0), 0); /* in place of a's last block */
    assert_int_equal(kv_cache_n_evicted(c), 1);
    assert_int_equal(visit(c, a, 8, 0), 7); /* needs a block for the copy of its second: b's */
    assert_int_equal(visit(c, b, 4, 0), 0);
    assert_int_equal(visit(c, a, 5, 0), 4);
    kv_cache_destroy(c);
}

/* Of a window's blocks only the last ones are needed; without them the prefix is of no use. */
static void test_windows(void **state) {
    (void)state;
    int32_t text[12];
    for (int32_t i = 0; i < 12; i++) text[i] = i;
    kv_cache *c;
    kv_cache_params p = {.n_groups = 2,
                         .block_size = 2,
                         .n_blocks = {20, 20},
                         .window = {0, 3},
                         .share = true,
                         .summary = true,
                         .max_copies = 2};
    assert_int_equal(kv_cache_create(&c, &p, NULL), RIDGE_OK);
    for (int round = 0; round < 2; round++) {
        user u = one(text, 12, 0);
        uint32_t n_copies;
        assert_int_equal(kv_table_init(&u.kv.tables[1], 16, NULL), RIDGE_OK);
        kv_match m = kv_cache_find(c, 0, text, 11);
        assert_int_equal(m.n_tokens, round == 0 ? 0 : 11);
        assert_true(kv_cache_take(c, &u.kv, &m, 0, 12, 0));
        if (round == 1) { /* it holds what position 11 sees: 9 and 10, in blocks 4 and 5 */
            assert_int_equal(u.kv.tables[0].first, 0);
            assert_int_equal(u.kv.tables[1].first, 4);
            assert_int_equal(u.kv.tables[1].blocks[3], -1);
            assert_int_equal(u.kv.tables[1].n_blocks, 6);
        }
        kv_cache_take_copies(c, &n_copies);
        assert_int_equal(n_copies, round == 0 ? 0 : 2);
        kv_cache_grow_windows(c, &u.kv, 12);
        kv_cache_commit(c, &u.kv, text, 12, true);
        assert_int_equal(u.kv.tables[1].first, 5);
        kv_cache_release(c, &u.kv, text, 12);
        kv_table_deinit(&u.kv.tables[0]);
        kv_table_deinit(&u.kv.tables[1]);
        kv_cache_check(c);
    }
    kv_cache_destroy(c);
}

static void test_the_nearest_text(void **state) {
    (void)state;
    const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, q[] = {1, 2, 3, 4, 5, 9, 9, 9};
    int32_t near[8];
    kv_cache *c = plain_cache(8);
    visit(c, a, 8, 0);
    kv_match m = kv_cache_find(c, 0, q, 7);
    assert_int_equal(m.n_tokens, 5);
    assert_int_equal(m.n_left_at, 4);
    assert_int_equal(kv_cache_nearest(&m, q + 4, 4, near, 8), 4);
    assert_memory_equal(near, a + 4, 4 * sizeof *near);
    m = kv_cache_find(c, 1, q, 7);
    assert_int_equal(kv_cache_nearest(&m, q, 8, near, 8), 0);
    kv_cache_destroy(c);
}

/* Ten thousand prompts that begin alike within one block: looking one up stays cheap because
 * siblings are ordered; here, that the right one is found among them. */
static void test_many_siblings(void **state) {
    (void)state;
    kv_prefix *t;
    enum { N = 10000 };
    assert_int_equal(kv_prefix_create(&t, N + 1, 4, false, NULL), RIDGE_OK);
    kv_node *root = kv_prefix_root(t, 0, true), *nodes[N];
    assert_ptr_equal(kv_prefix_root(t, 0, false), root);
    for (int32_t i = 0; i < N; i++) {
        int32_t tokens[] = {5, i % 100, i / 100, i};
        uint32_t common;
        nodes[i] = kv_prefix_insert(t, root, tokens, 4);
        assert_non_null(nodes[i]);
        nodes[i]->blocks[0] = i;
        assert_ptr_equal(kv_prefix_nearest(root, tokens, 4, &common), nodes[i]);
    }
    assert_null(kv_prefix_insert(t, root, (const int32_t[]){1}, 1));
    for (int32_t i = 0; i < N; i++) {
        uint32_t common;
        const int32_t tokens[] = {5, i % 100, i / 100, N};
        kv_node *found = kv_prefix_nearest(root, tokens, 4, &common);
        assert_int_equal(common, 3);
        assert_ptr_equal(found, nodes[i]);
        if (i % 2 == 0) continue;
        nodes[i]->blocks[0] = -1;
        kv_prefix_remove(t, nodes[i]);
    }
    assert_int_equal(kv_prefix_n_nodes(t), N / 2 + 1);
    for (int32_t i = 0; i < N; i += 2) {
        nodes[i]->blocks[0] = -1;
        kv_prefix_remove(t, nodes[i]);
    }
    assert_int_equal(kv_prefix_n_nodes(t), 0); /* the root went with its last child */
    kv_prefix_destroy(t);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    for (long nth = 1;; nth++) {
        kv_cache *c = NULL;
        kv_cache_params p = {.n_groups = 2,
                             .block_size = 4,
                             .n_blocks = {8, 8},
                             .window = {0, 3},
                             .share = true,
                             .summary = true,
                             .max_copies = 2};
        mem_fail_after(nth);
        ridge_status status = kv_cache_create(&c, &p, NULL);
        mem_fail_after(0);
        kv_cache_destroy(c);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_given_is_what_was_computed),
        cmocka_unit_test(test_without_sharing),
        cmocka_unit_test(test_matches_count_to_the_token),
        cmocka_unit_test(test_as_many_tenants_as_blocks),
        cmocka_unit_test(test_the_oldest_leaf_goes_first),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_the_nearest_text),
        cmocka_unit_test(test_many_siblings),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
