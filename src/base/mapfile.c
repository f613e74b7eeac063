/* base/mapfile: see mapfile.h. */
#include "base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

/* O_NONBLOCK: opening a FIFO that nobody writes would wait for ever before it is refused. */
static ridge_status open_regular(int *out, struct stat *st, const char *path, ridge_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ridge_status status = RIDGE_OK;
    if (fd < 0)
        status = error_set_errno(err, errno == ENOENT ? RIDGE_ENOTFOUND : RIDGE_EIO,
                                 "cannot open '%s'", path);
    else if (fstat(fd, st) != 0)
        status = error_set_errno(err, RIDGE_EIO, "cannot read '%s'", path);
    else if (!S_ISREG(st->st_mode))
        status = RIDGE_FAIL(err, RIDGE_EIO, "'%s' is %s, not a regular file", path,
                            S_ISDIR(st->st_mode)    ? "a directory"
                            : S_ISFIFO(st->st_mode) ? "a pipe"
                                                    : "a device");
    if (status == RIDGE_OK) {
        *out = fd;
        return status;
    }
    error_where(err, path);
    if (fd >= 0) close(fd);
    return status;
}

ridge_status mapfile_open(mapfile *out, const char *path, ridge_error *err) {
    struct stat st;
    int fd;
    RIDGE_TRY(open_regular(&fd, &st, path, err));
    ridge_status status = RIDGE_OK;
    mapfile m = {0};
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = error_set_errno(err, RIDGE_EIO, "cannot map '%s'", path);
        else
            m = (mapfile){.data = p, .size = (size_t)st.st_size};
    }
    close(fd);
    if (status == RIDGE_OK)
        *out = m;
    else
        error_where(err, path);
    return status;
}

void mapfile_close(mapfile *m) {
    if (m->data != NULL) munmap((void *)m->data, m->size);
    *m = (mapfile){0};
}

void mapfile_drop(const mapfile *m, size_t offset, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    if (begin < end) madvise((void *)(m->data + begin), end - begin, MADV_DONTNEED);
}

/* Appends what fd has until its end, at most b->limit bytes; name is for messages. */
static ridge_status read_all(int fd, buf *b, const char *name, ridge_error *err) {
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0) return RIDGE_OK;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set_errno(err, RIDGE_EIO, "cannot read %s", name);
        if (b->len + (size_t)n > b->limit)
            return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%s is over %zu bytes", name, b->limit);
        buf_append(b, chunk, (size_t)n);
        if (b->failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", name);
    }
}

ridge_status file_read(char **out, size_t *size, const char *path, size_t limit, ridge_error *err) {
    bool is_input = strcmp(path, "-") == 0;
    struct stat st;
    buf b = {.limit = limit}, name = {0};
    int fd = STDIN_FILENO;
    if (!is_input) RIDGE_TRY(open_regular(&fd, &st, path, err));
    buf_printf(&name, is_input ? "standard input" : "'%s'", path);
    ridge_status status = read_all(fd, &b, name.data != NULL ? name.data : "the input", err);
    if (!is_input) close(fd);
    size_t len = b.len;
    char *text = status == RIDGE_OK ? buf_take(&b) : NULL;
    if (text != NULL) {
        *out = text;
        *size = len;
    } else if (status == RIDGE_OK) {
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "reading '%s'", path);
    }
    buf_free(&name);
    buf_free(&b);
    return status;
}
