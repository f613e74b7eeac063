/* kv/table: see table.h. */
#include "kv/table.h"

#include "base/mem.h"

ridge_status kv_table_init(kv_table *t, uint32_t max_blocks, ridge_error *err) {
    int32_t *blocks = mem_zalloc(max_blocks, sizeof *blocks);
    if (blocks == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "block table of %u", max_blocks);
    *t = (kv_table){.blocks = blocks, .max_blocks = max_blocks};
    return RIDGE_OK;
}

void kv_table_deinit(kv_table *t) {
    ridge_assert(t->n_blocks == 0);
    mem_free(t->blocks);
    *t = (kv_table){0};
}

ridge_status kv_table_grow(kv_table *t, kv_pool *p, uint32_t n_blocks) {
    if (n_blocks <= t->n_blocks) return RIDGE_OK;
    ridge_assert(n_blocks <= t->max_blocks);
    if (n_blocks - t->n_blocks > kv_pool_n_free(p)) return RIDGE_EFULL;
    while (t->n_blocks < n_blocks) {
        ridge_status status = kv_pool_alloc(p, &t->blocks[t->n_blocks]);
        ridge_assert(status == RIDGE_OK); /* counted above */
        t->n_blocks++;
    }
    return RIDGE_OK;
}

void kv_table_cut(kv_table *t, kv_pool *p, uint32_t n_blocks) {
    uint32_t left = n_blocks > t->first ? n_blocks : t->first;
    if (t->n_blocks <= left) return;
    kv_pool_release_all(p, t->blocks + left, t->n_blocks - left);
    t->n_blocks = left;
}

void kv_table_trim(kv_table *t, kv_pool *p, uint32_t first) {
    for (; t->first < first && t->first < t->n_blocks; t->first++) {
        kv_pool_release(p, t->blocks[t->first]);
        t->blocks[t->first] = -1;
    }
}

void kv_table_skip(kv_table *t, kv_pool *p, uint32_t first) {
    ridge_assert(first <= t->max_blocks);
    kv_table_trim(t, p, first);
    for (; t->n_blocks < first; t->n_blocks++) t->blocks[t->n_blocks] = -1;
    if (t->first < first) t->first = first;
}

void kv_table_release(kv_table *t, kv_pool *p) {
    kv_table_cut(t, p, t->first);
    t->first = t->n_blocks = 0;
}
