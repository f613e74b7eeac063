/* base/newfile: readers see the old file or the new one, whoever writes, fails or dies meanwhile.
 */
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "base/newfile.h"

static char folder[] = "/tmp/ridge-newfile-XXXXXX", path[64], beside[64];

static int setup(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(beside, sizeof beside, "%s/file.new", folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(path);
    unlink(beside);
    return rmdir(folder); /* fails if something has been left */
}

static newfile open_new(void) {
    newfile f = {0};
    ridge_error err = {0};
    if (newfile_open(&f, path, 0600, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return f;
}

static void expect(const char *text) {
    char *found = NULL;
    size_t n;
    assert_int_equal(file_read(&found, &n, path, 1 << 20, NULL), RIDGE_OK);
    assert_string_equal(found, text);
    mem_free(found);
    assert_int_equal(access(beside, F_OK), -1);
}

static void write_new(const char *text) {
    newfile f = open_new();
    fputs(text, f.file);
    assert_int_equal(newfile_commit(&f, NULL), RIDGE_OK);
    newfile_abandon(&f);
    expect(text);
}

static void test_in_place_at_once(void **state) {
    (void)state;
    struct stat st;
    write_new("one");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    newfile f = open_new();
    fputs("two", f.file);
    fflush(f.file);
    char *found = NULL;
    size_t n;
    assert_int_equal(file_read(&found, &n, path, 1 << 20, NULL), RIDGE_OK);
    assert_string_equal(found, "one");
    mem_free(found);
    newfile_abandon(&f);
    expect("one");
}

static void expect_refusal(const char *where, const char *words) {
    newfile f = {0};
    ridge_error err = {0};
    assert_int_equal(newfile_open(&f, where, 0600, &err), RIDGE_EIO);
    if (strstr(err.text, where) == NULL || strstr(err.text, words) == NULL)
        fail_msg("'%s'", err.text);
    newfile_abandon(&f);
}

static void test_one_writer_at_a_time(void **state) {
    (void)state;
    newfile f = open_new();
    expect_refusal(path, "another process");
    fputs("first", f.file);
    assert_int_equal(newfile_commit(&f, NULL), RIDGE_OK);
    expect("first");
    write_new("second");
}

static void test_what_lies_there(void **state) {
    (void)state;
    write_new("old");
    FILE *left = fopen(beside, "wb"); /* by a process that was killed */
    fputs("half of", left);
    fclose(left);
    write_new("whole");
    assert_int_equal(symlink("/nowhere/at/all", beside), 0);
    write_new("past a link");
    assert_int_equal(mkfifo(beside, 0600), 0);
    alarm(20); /* the fault waits for a reader */
    write_new("past a pipe");
    alarm(0);
    assert_int_equal(mkdir(beside, 0700), 0);
    expect_refusal(path, "in the way");
    assert_int_equal(rmdir(beside), 0);
    expect("past a pipe");
    expect_refusal("/nowhere/at/all", "No such file");
}

static void expect_mode(mode_t type) {
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true((st.st_mode & S_IFMT) == type);
    assert_int_equal(access(beside, F_OK), -1);
}

/* Whoever names a device (/dev/null) or a link (/dev/stdout) still has it afterwards. */
static void test_what_is_no_file_stays(void **state) {
    (void)state;
    unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    expect_refusal(path, "a link");
    expect_mode(S_IFLNK);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(path, "a pipe");
    expect_mode(S_IFIFO);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal(path, "a directory");
    expect_mode(S_IFDIR);
    assert_int_equal(rmdir(path), 0);
    expect_refusal("/dev/null", "a device");
}

/* To a device that is full; what stood there stays. */
static void test_a_full_disk(void **state) {
    (void)state;
    write_new("old");
    newfile f = open_new();
    FILE *full = fopen("/dev/full", "wb"), *own = f.file;
    if (full == NULL) skip();
    f.file = full;
    fputs("new", f.file);
    ridge_error err = {0};
    assert_int_equal(newfile_commit(&f, &err), RIDGE_EIO);
    assert_non_null(strstr(err.text, "No space left"));
    fclose(own);
    expect("old");
}

static void test_out_of_memory(void **state) {
    (void)state;
    for (long nth = 1;; nth++) {
        newfile f = {0};
        ridge_error err = {0};
        mem_fail_after(nth);
        ridge_status status = newfile_open(&f, path, 0600, &err);
        mem_fail_after(0);
        newfile_abandon(&f);
        assert_int_equal(access(beside, F_OK), -1);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
        assert_true(nth < 10);
    }
}

/* Many processes write files of one letter each and are killed at any time. */
static void write_for_ever(char letter) {
    alarm(20); /* if the test itself has failed by then */
    for (;;) {
        newfile f = {0};
        if (newfile_open(&f, path, 0600, NULL) != RIDGE_OK) continue;
        for (int i = 0; i < 50000; i++) fputc(letter, f.file);
        if (newfile_commit(&f, NULL) != RIDGE_OK) newfile_abandon(&f);
    }
}

static void check_whole(int *n_seen) {
    char *found = NULL;
    size_t n;
    if (file_read(&found, &n, path, 1 << 20, NULL) != RIDGE_OK) return;
    assert_int_equal(n, 50000);
    for (size_t i = 0; i < n; i++) assert_int_equal(found[i], found[0]);
    mem_free(found);
    (*n_seen)++;
}

static void test_a_crowd(void **state) {
    (void)state;
    enum { N = 4 };
    pid_t writers[N] = {0};
    int n_seen = 0;
    int64_t end = clock_now_us() + 500000;
    unlink(path);
    for (int round = 0; clock_now_us() < end || n_seen == 0; round++) {
        pid_t *w = &writers[round % N];
        if (*w > 0) {
            kill(*w, SIGKILL);
            waitpid(*w, NULL, 0);
        }
        *w = fork();
        assert_true(*w >= 0);
        if (*w == 0) write_for_ever((char)('a' + round % 26));
        for (int i = 0; i < 5; i++) {
            usleep(1000);
            check_whole(&n_seen);
        }
    }
    for (int i = 0; i < N; i++) {
        if (writers[i] <= 0) continue;
        kill(writers[i], SIGKILL);
        waitpid(writers[i], NULL, 0);
    }
    check_whole(&n_seen);
    write_new("the last"); /* whatever they have left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_place_at_once),      cmocka_unit_test(test_one_writer_at_a_time),
        cmocka_unit_test(test_what_lies_there),       cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_out_of_memory),         cmocka_unit_test(test_a_crowd),
        cmocka_unit_test(test_what_is_no_file_stays),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
