/* Files that are none: directories, pipes that nobody writes, devices that never end. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mapfile.h"
#include "base/mem.h"

static void check(const char *path, ridge_status status, const char *part) {
    ridge_error err = {0};
    mapfile m = {0};
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(mapfile_open(&m, path, &err), status);
    if (strstr(err.text, part) == NULL || strstr(err.text, path) == NULL) fail_msg("%s", err.text);
    err = (ridge_error){0};
    assert_int_equal(file_read(&text, &n, path, 1000, &err), status);
    if (strstr(err.text, part) == NULL || strstr(err.text, path) == NULL) fail_msg("%s", err.text);
    assert_null(text);
    assert_null(m.data);
}

static void test_what_is_no_file(void **state) {
    (void)state;
    char dir[] = "/tmp/ridge-test-XXXXXX", fifo[64];
    assert_non_null(mkdtemp(dir));
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(20); /* the fault waits for ever */
    check(fifo, RIDGE_EIO, "a pipe");
    check(dir, RIDGE_EIO, "a directory");
    check("/dev/zero", RIDGE_EIO, "a device");
    alarm(0);
    unlink(fifo);
    check(fifo, RIDGE_ENOTFOUND, "cannot open");
    rmdir(dir);
}

static void test_of_a_long_path_the_end_is_named(void **state) {
    (void)state;
    char path[300];
    ridge_error err = {0};
    memset(path, 'a', sizeof path);
    memcpy(path + sizeof path - 9, "b/c.gguf", 9);
    error_where(&err, path);
    assert_int_equal(strlen(err.where), sizeof err.where - 1);
    assert_int_equal(strncmp(err.where, "...aaa", 6), 0);
    assert_string_equal(err.where + sizeof err.where - 9, "b/c.gguf");
    err = (ridge_error){0};
    error_where(&err, "short");
    assert_string_equal(err.where, "short");
}

static void test_files(void **state) {
    (void)state;
    char path[] = "/tmp/ridge-test-XXXXXX";
    int fd = mkstemp(path);
    ridge_error err = {0};
    mapfile m = {0};
    char *text = NULL;
    size_t n = 1;
    assert_true(fd >= 0);
    assert_int_equal(mapfile_open(&m, path, &err), RIDGE_OK);
    assert_true(m.size == 0 && m.data == NULL);
    mapfile_close(&m);
    assert_int_equal(file_read(&text, &n, path, 10, &err), RIDGE_OK);
    assert_true(n == 0 && text[0] == '\0');
    mem_free(text);
    assert_int_equal(write(fd, "0123456789", 10), 10);
    assert_int_equal(file_read(&text, &n, path, 10, &err), RIDGE_OK);
    assert_true(n == 10);
    assert_string_equal(text, "0123456789");
    mem_free(text);
    assert_int_equal(file_read(&text, &n, path, 9, &err), RIDGE_ETOOLARGE);
    assert_non_null(strstr(err.text, "over 9 bytes"));
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_no_file),
                                       cmocka_unit_test(test_of_a_long_path_the_end_is_named),
                                       cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
