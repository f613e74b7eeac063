/* kv/: the pool and the table against a naive array, random operations, failing allocations. */
#include "unit.h"
#include <string.h>

#include "base/mem.h"
#include "kv/table.h"

static uint64_t seed = 88172645463325252ull;

static uint32_t below(uint32_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32) % n;
}

#define N_BLOCKS 37

/* The model: how many holders each block has, and nothing else. */
static void test_pool_against_an_array(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        kv_pool *p;
        uint32_t holders[N_BLOCKS] = {0}, n_held = 0;
        assert_int_equal(kv_pool_create(&p, N_BLOCKS, NULL), RIDGE_OK);
        for (int step = 0; step < 2000; step++) {
            int32_t b = (int32_t)below(N_BLOCKS);
            switch (below(3)) {
            case 0:
                if (n_held == N_BLOCKS) {
                    assert_int_equal(kv_pool_alloc(p, &b), RIDGE_EFULL);
                } else {
                    assert_int_equal(kv_pool_alloc(p, &b), RIDGE_OK);
                    assert_in_range(b, 0, N_BLOCKS - 1);
                    assert_int_equal(holders[b], 0);
                    holders[b] = 1;
                    n_held++;
                }
                break;
            case 1:
                if (holders[b] == 0) break;
                kv_pool_hold(p, b);
                holders[b]++;
                break;
            default:
                if (holders[b] == 0) break;
                kv_pool_release(p, b);
                if (--holders[b] == 0) n_held--;
            }
            assert_int_equal(kv_pool_n_free(p), N_BLOCKS - n_held);
            for (int32_t i = 0; i < N_BLOCKS; i++)
                assert_int_equal(kv_pool_holders(p, i), holders[i]);
            kv_pool_check(p);
        }
        kv_pool_destroy(p);
    }
}

#define N_TABLES 6

static void test_tables_share_a_pool(void **state) {
    (void)state;
    kv_pool *p;
    kv_table tables[N_TABLES];
    uint32_t lengths[N_TABLES] = {0};
    assert_int_equal(kv_pool_create(&p, N_BLOCKS, NULL), RIDGE_OK);
    for (int i = 0; i < N_TABLES; i++)
        assert_int_equal(kv_table_init(&tables[i], N_BLOCKS, NULL), RIDGE_OK);
    for (int step = 0; step < 5000; step++) {
        uint32_t i = below(N_TABLES), n = 1 + below(N_BLOCKS);
        if (below(4) == 0) {
            kv_table_release(&tables[i], p);
            lengths[i] = 0;
        } else {
            bool fits = n <= lengths[i] || n - lengths[i] <= kv_pool_n_free(p);
            assert_int_equal(kv_table_grow(&tables[i], p, n), fits ? RIDGE_OK : RIDGE_EFULL);
            if (fits && n > lengths[i]) lengths[i] = n;
        }
        bool seen[N_BLOCKS] = {false};
        uint32_t n_held = 0;
        for (int t = 0; t < N_TABLES; t++) {
            assert_int_equal(tables[t].n_blocks, lengths[t]);
            for (uint32_t b = 0; b < lengths[t]; b++) {
                assert_false(seen[tables[t].blocks[b]]);
                seen[tables[t].blocks[b]] = true;
                n_held++;
            }
        }
        assert_int_equal(n_held + kv_pool_n_free(p), N_BLOCKS);
        kv_pool_check(p);
    }
    for (int i = 0; i < N_TABLES; i++) {
        kv_table_release(&tables[i], p);
        kv_table_deinit(&tables[i]);
    }
    kv_pool_destroy(p);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    for (long nth = 1;; nth++) {
        kv_pool *p = NULL;
        kv_table t = {0};
        mem_fail_after(nth);
        ridge_status status = kv_pool_create(&p, N_BLOCKS, NULL);
        if (status == RIDGE_OK) status = kv_table_init(&t, 4, NULL);
        mem_fail_after(0);
        if (status == RIDGE_OK) {
            assert_int_equal(kv_table_grow(&t, p, 3), RIDGE_OK);
            kv_table_release(&t, p);
        }
        kv_table_deinit(&t);
        kv_pool_destroy(p);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
    }
}

static void test_sizes_are_checked(void **state) {
    (void)state;
    kv_pool *p = NULL;
    assert_int_equal(kv_pool_create(&p, 0, NULL), RIDGE_EINVAL);
    assert_int_equal(kv_pool_create(&p, UINT32_MAX, NULL), RIDGE_EINVAL);
    assert_null(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_against_an_array),
        cmocka_unit_test(test_tables_share_a_pool),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_sizes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
