/* Lists of processors; the control groups' limits, of time and of memory, in made-up trees. */
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cgroup_internal.h"
#include "base/cpus.h"
#include "base/mem.h"

static void test_lists(void **state) {
    (void)state;
    static const struct {
        const char *text, *again; /* NULL: refused */
    } cases[] = {{"0", "0"},
                 {"0-3,8", "0-3,8"},
                 {"8,0-3", "8,0-3"},
                 {"3,2,1,0", "3,2,1,0"},
                 {"0,1,2,5-5", "0-2,5"},
                 {"65535", "65535"},
                 {"", NULL},
                 {"-", NULL},
                 {"0-", NULL},
                 {"-3", NULL},
                 {"3-1", NULL},
                 {"0,,1", NULL},
                 {"0,", NULL},
                 {" 0", NULL},
                 {"0 1", NULL},
                 {"0-3:2", NULL},
                 {"0x3", NULL},
                 {"65536", NULL},
                 {"0-99999999999999999999", NULL},
                 {"1,1", NULL},
                 {"0-3,2", NULL},
                 {"0-65535,7", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpu_list l = {0};
        ridge_error err = {0};
        char text[64];
        ridge_status status = cpu_list_parse(&l, cases[i].text, &err);
        if (cases[i].again == NULL) {
            assert_int_equal(status, RIDGE_EINVAL);
            assert_null(l.ids);
            assert_non_null(strstr(err.text, "processors '"));
        } else {
            assert_int_equal(status, RIDGE_OK);
            assert_string_equal(cpu_list_text(&l, text, sizeof text), cases[i].again);
        }
        cpu_list_free(&l);
    }
}

static void test_long_list_is_cut(void **state) {
    (void)state;
    cpu_list l;
    char text[16];
    assert_int_equal(cpu_list_parse(&l, "0,2,4,6,8,10,12,14", NULL), RIDGE_OK);
    assert_string_equal(cpu_list_text(&l, text, sizeof text), "0,2,4,6,8,...");
    cpu_list_free(&l);
}

/* Trees of files: {"proc/self/cgroup", "..."} below a new folder. */
typedef struct {
    const char *path, *text;
} tree_file;

#define MAX_FILES 12

static void write_file(const char *root, const tree_file *f) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, f->path);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = '\0';
        mkdir(path, 0700);
    }
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(f->text, out);
    fclose(out);
}

static void make_tree(char root[], const tree_file *files) {
    assert_non_null(mkdtemp(root));
    for (; files->path != NULL; files++) write_file(root, files);
}

static void remove_tree(const char *root, const tree_file *files) {
    char path[512];
    for (const tree_file *f = files; f->path != NULL; f++) {
        snprintf(path, sizeof path, "%s/%s", root, f->path);
        unlink(path);
    }
    for (const tree_file *f = files; f->path != NULL; f++) {
        snprintf(path, sizeof path, "%s/%s", root, f->path);
        for (char *p; (p = strrchr(path, '/')) != NULL && p > path + strlen(root); rmdir(path))
            *p = '\0';
    }
    assert_int_equal(rmdir(root), 0);
}

#define V2_MOUNT                                                                                   \
    "24 30 0:22 / /proc rw - proc proc rw\n"                                                       \
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                   \
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"                          \
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                            \
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct\n"
#define V1_CGROUP "5:cpuset:/\n4:cpuacct,cpu:/a/b\n1:name=systemd:/cpu\n0::/\n"
#define V1_DIR "sys/fs/cgroup/cpu,cpuacct/"

static const struct {
    const char *name;
    int cpus;
    tree_file files[MAX_FILES];
} quotas[] = {
    {"nothing there", 0, {{0}}},
    {"no limit",
     0,
     {{"proc/self/cgroup", "0::/\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/cpu.max", "max 100000\n"}}},
    {"version 2, in the mounted root, as in a container",
     2,
     {{"proc/self/cgroup", "0::/\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/cpu.max", "200000 100000\n"}}},
    {"version 2, rounded up",
     3,
     {{"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "250000 100000\n"}}},
    {"version 2, less than one",
     1,
     {{"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "1000 100000\n"}}},
    {"the least of all levels: in the middle",
     3,
     {{"proc/self/cgroup", "0::/kube/pod/app\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/kube/cpu.max", "1600000 100000\n"},
      {"sys/fs/cgroup/kube/pod/cpu.max", "300000 100000\n"},
      {"sys/fs/cgroup/kube/pod/app/cpu.max", "max 100000\n"}}},
    {"a sibling's limit is none of ours",
     0,
     {{"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/c/cpu.max", "100000 100000\n"},
      {"sys/fs/cgroup/b/cpu.max", "100000 100000\n"}}},
    {"version 1, own group",
     4,
     {{"proc/self/cgroup", V1_CGROUP},
      {"proc/self/mountinfo", V1_MOUNT},
      {V1_DIR "a/b/cpu.cfs_quota_us", "350000\n"},
      {V1_DIR "a/b/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, the group above",
     2,
     {{"proc/self/cgroup", V1_CGROUP},
      {"proc/self/mountinfo", V1_MOUNT},
      {V1_DIR "a/b/cpu.cfs_quota_us", "-1\n"},
      {V1_DIR "a/b/cpu.cfs_period_us", "100000\n"},
      {V1_DIR "a/cpu.cfs_quota_us", "100000\n"},
      {V1_DIR "a/cpu.cfs_period_us", "50000\n"}}},
    {"version 1, a container's part of the tree is mounted",
     3,
     {{"proc/self/cgroup", "4:cpu,cpuacct:/docker/12ab\n"},
      {"proc/self/mountinfo",
       "33 31 0:30 /docker/12ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
    {"the namespace hides where we are",
     5,
     {{"proc/self/cgroup", "0::/../other\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/cpu.max", "500000 100000\n"}}},
    {"both versions: the least",
     2,
     {{"proc/self/cgroup", "4:cpu:/\n0::/a\n"},
      {"proc/self/mountinfo",
       V2_MOUNT "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"},
      {"sys/fs/cgroup/a/cpu.max", "800000 100000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
      {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
    {"nonsense",
     0,
     {{"proc/self/cgroup", "0::/a\n0:\n:\n\n4:cpu\n"},
      {"proc/self/mountinfo", "- \n - cgroup2\n 1 2 - cgroup2 x y\n" V2_MOUNT},
      {"sys/fs/cgroup/a/cpu.max", "100000 0\n"},
      {"sys/fs/cgroup/cpu.max", "-5 many\n"}}},
};

static void test_quotas(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++) {
        char root[] = "/tmp/ridge-test-XXXXXX";
        make_tree(root, quotas[i].files);
        int n = cpus_quota(root);
        if (n != quotas[i].cpus)
            fail_msg("%s: %d processors, expected %d", quotas[i].name, n, quotas[i].cpus);
        remove_tree(root, quotas[i].files);
    }
}

static const struct {
    const char *name;
    uint64_t left;
    tree_file files[MAX_FILES];
} memories[] = {
    {"no limit", UINT64_MAX, {{"proc/self/cgroup", "0::/\n"}, {"proc/self/mountinfo", V2_MOUNT}}},
    {"version 2: the group above leaves less; pages of files can be had back",
     600,
     {{"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/memory.max", "1000\n"},
      {"sys/fs/cgroup/a/memory.current", "700\n"},
      {"sys/fs/cgroup/a/memory.stat", "anon 400\ninactive_file 100\nactive_file 200\n"},
      {"sys/fs/cgroup/a/b/memory.max", "max\n"},
      {"sys/fs/cgroup/a/b/memory.current", "10\n"}}},
    {"version 1: the process's own group",
     50,
     {{"proc/self/cgroup", "7:memory:/a\n"},
      {"proc/self/mountinfo", "3 4 0:5 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
      {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "100\n"},
      {"sys/fs/cgroup/memory/a/memory.usage_in_bytes", "90\n"},
      {"sys/fs/cgroup/memory/a/memory.stat",
       "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 10\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n"}}},
};

static void test_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        char root[] = "/tmp/ridge-test-XXXXXX";
        make_tree(root, memories[i].files);
        uint64_t left = mem_cgroup_bytes(root);
        if (left != memories[i].left)
            fail_msg("%s: %llu bytes", memories[i].name, (unsigned long long)left);
        remove_tree(root, memories[i].files);
    }
}

static void test_mount_lines(void **state) {
    (void)state;
    cgroup_mount m;
    assert_true(cgroup_line_mount(
        "1 2 0:3 /a\\134x2d\\040b /cg\\011x rw - cgroup cgroup rw,memory,cpu", "cpu", &m));
    assert_string_equal(m.root, "/a\\x2d b");
    assert_string_equal(m.point, "/cg\tx");
    assert_string_equal(cgroup_path_below(&m, "/a\\x2d b/c"), "/c");
    assert_string_equal(cgroup_path_below(&m, "/a\\x2d b"), "");
    assert_string_equal(cgroup_path_below(&m, "/a\\x2d bc"), "");
    assert_string_equal(cgroup_path_below(&m, "/"), "");
    assert_false(cgroup_line_mount("1 2 0:3 / /c rw - cgroup cgroup rw,cpuset", "cpu", &m));
    assert_false(cgroup_line_mount("1 2 0:3 / /c rw - cgroup cgroup rw,cpu", NULL, &m));
    assert_null(cgroup_line_path("4:cpuset,cpuacct:/a", "cpu"));
    assert_null(cgroup_line_path("4:cpu:/a", NULL));
    assert_string_equal(cgroup_line_path("0::/a:b", NULL), "/a:b");
}

static void check_choice(const char *root, const char *text, const char *expected) {
    cpu_list l = {0};
    ridge_error err = {0};
    if (cpus_choose(&l, root, text, &err) == RIDGE_OK) fail_msg("'%s' was taken", text);
    if (strstr(err.text, expected) == NULL) fail_msg("'%s': %s", text, err.text);
    assert_null(l.ids);
}

static void test_choice(void **state) {
    (void)state;
    static const tree_file files[] = {{"sys/devices/system/cpu/online", "0-70000\n"}, {0}};
    static const tree_file few[] = {{"sys/devices/system/cpu/online", "0-3,6\n"}, {0}};
    char root[] = "/tmp/ridge-test-XXXXXX", other[] = "/tmp/ridge-test-XXXXXX", text[64];
    make_tree(root, files);
    make_tree(other, few);
    cpu_list own, l;
    assert_int_equal(cpus_allowed(&own, NULL), RIDGE_OK);
    assert_int_equal(cpus_choose(&l, "", "auto", NULL), RIDGE_OK);
    assert_int_equal(l.n, own.n);
    assert_memory_equal(l.ids, own.ids, (size_t)own.n * sizeof *own.ids);
    cpu_list_free(&l);
    snprintf(text, sizeof text, "%d", own.ids[own.n - 1]);
    assert_int_equal(cpus_choose(&l, "", text, NULL), RIDGE_OK);
    assert_int_equal(l.n, 1);
    cpu_list_free(&l);
    cpu_list_free(&own);
    check_choice(root, "65530", "processors '65530': this process may not run on 65530, only on ");
    check_choice(other, "65530", "processors '65530': there is no 65530, only 0-3,6");
    check_choice("", "all", "expected a list such as 0-3,8");
    remove_tree(root, files);
    remove_tree(other, few);
}

/* The mask bounds it, whatever the groups say. */
static void test_usable(void **state) {
    (void)state;
    cpu_list own;
    cpu_mask all, one;
    assert_int_equal(cpus_allowed(&own, NULL), RIDGE_OK);
    assert_in_range(cpus_usable(), 1, own.n);
    assert_int_equal(cpu_mask_make(&all, own.ids, own.n, NULL), RIDGE_OK);
    assert_int_equal(cpu_mask_make(&one, own.ids, 1, NULL), RIDGE_OK);
    assert_true(cpu_mask_set(&one, 0));
    assert_int_equal(cpus_usable(), 1);
    assert_true(cpu_mask_set(&all, 0));
    cpu_mask_free(&all);
    cpu_mask_free(&one);
    cpu_list_free(&own);
}

/* Two that want one processor take turns; the system counts who had to wait. */
static void test_put_aside(void **state) {
    (void)state;
    cpu_list own;
    cpu_mask all, one;
    assert_int_equal(cpus_allowed(&own, NULL), RIDGE_OK);
    assert_int_equal(cpu_mask_make(&all, own.ids, own.n, NULL), RIDGE_OK);
    assert_int_equal(cpu_mask_make(&one, own.ids, 1, NULL), RIDGE_OK);
    assert_true(cpu_mask_set(&one, 0));
    uint64_t before = cpus_times_put_aside();
    pid_t other = fork(); /* with this one's mask */
    if (other == 0) {
        alarm(30); /* ends it, whatever becomes of the test */
        for (;;) {
        }
    }
    assert_true(other > 0);
    const time_t end = time(NULL) + 20;
    while (cpus_times_put_aside() < before + 3 && time(NULL) < end) {
    }
    assert_true(cpus_times_put_aside() >= before + 3);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    assert_true(cpu_mask_set(&all, 0));
    cpu_mask_free(&all);
    cpu_mask_free(&one);
    cpu_list_free(&own);
}

static void expect_name(const char *cpuinfo, const char *expected) {
    char root[] = "/tmp/ridge-cpus-XXXXXX", path[64], name[64];
    assert_non_null(mkdtemp(root));
    assert_string_equal(cpus_name(root, name, sizeof name), "unknown");
    snprintf(path, sizeof path, "%s/proc", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(cpuinfo, f);
    fclose(f);
    assert_string_equal(cpus_name(root, name, sizeof name), expected);
    unlink(path);
    snprintf(path, sizeof path, "%s/proc", root);
    rmdir(path);
    rmdir(root);
}

static void test_names(void **state) {
    (void)state;
    expect_name("processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some CPU @ 2 GHz\nflags\t: x\n",
                "Some CPU @ 2 GHz");
    expect_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n",
                "Arm implementer 0x41 part 0xd40");
    expect_name("processor\t: 0\n", "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),       cmocka_unit_test(test_long_list_is_cut),
        cmocka_unit_test(test_quotas),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_mount_lines), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_usable),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_put_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
