/* Which path a machine gets, for machines that we don't have. */
#include "unit.h"

#include <string.h>

#include "device/cpu/cpu_internal.h"

static void check(cpu_features f, const char *expected /* "best next ..." */) {
    const cpu_kernels *paths[CPU_MAX_PATHS];
    char got[64] = "";
    int n = cpu_paths(f, paths);
    for (int i = 0; i < n; i++) {
        strcat(got, i > 0 ? " " : "");
        strcat(got, paths[i]->isa);
    }
    assert_string_equal(got, expected);
}

static void test_paths(void **state) {
    (void)state;
    check((cpu_features){0}, "portable");
#if defined(__x86_64__)
    check((cpu_features){.avx2 = true, .avx512 = true, .avx512_vnni = true},
          "avx512 avx2 portable");
    check((cpu_features){.avx2 = true, .avx512 = true, .avx512_vnni = true, .zen = true},
          "avx512 avx2 portable");
    check((cpu_features){.avx2 = true, .zen = true}, "avx2 portable"); /* before Zen 4 */
    const cpu_kernels *paths[CPU_MAX_PATHS]; /* two tables have that name */
    for (int zen = 0; zen < 2; zen++) {
        cpu_paths((cpu_features){.avx2 = true, .avx512 = true, .avx512_vnni = true, .zen = zen},
                  paths);
        assert_ptr_equal(paths[0], zen ? &cpu_kernels_zen : &cpu_kernels_avx512);
    }
    check((cpu_features){.avx2 = true}, "avx2 portable");
    /* Skylake-X: 512 bits, but no vpdpbusd. */
    check((cpu_features){.avx2 = true, .avx512 = true}, "avx2 portable");
    /* A hypervisor that hides a part of what goes together. */
    check((cpu_features){.avx512 = true, .avx512_vnni = true}, "portable");
    check((cpu_features){.avx2 = true, .avx512_vnni = true}, "avx2 portable");
#elif defined(__aarch64__)
    check((cpu_features){.dotprod = true, .i8mm = true}, "i8mm neon portable");
    check((cpu_features){.dotprod = true}, "neon portable"); /* Neoverse N1 */
    check((cpu_features){.i8mm = true}, "portable");
#endif
}

static void test_choice(void **state) {
    (void)state;
    const cpu_kernels *paths[CPU_MAX_PATHS], *k = NULL;
    int n = cpu_paths(cpu_features_here(), paths);
    ridge_error err = {0};
    assert_int_equal(cpu_kernels_choose(&k, NULL, NULL), RIDGE_OK);
    assert_ptr_equal(k, paths[0]);
    for (int i = 0; i < n; i++) {
        assert_int_equal(cpu_kernels_choose(&k, paths[i]->isa, NULL), RIDGE_OK);
        assert_ptr_equal(k, paths[i]);
    }
    k = NULL;
    assert_int_equal(cpu_kernels_choose(&k, "z80", &err), RIDGE_EUNSUPPORTED);
    assert_null(k);
    assert_non_null(strstr(err.text, "'z80'"));
    assert_non_null(strstr(err.text, paths[0]->isa));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
