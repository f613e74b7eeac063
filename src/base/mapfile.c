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

static ridge_status open_error(ridge_error *err, const char *path) {
    error_where(err, path);
    return error_set_errno(err, errno == ENOENT ? RIDGE_ENOTFOUND : RIDGE_EIO, "cannot open '%s'",
                           path);
}

ridge_status mapfile_open(mapfile *out, const char *path, ridge_error *err) {
    struct stat st;
    /* O_NONBLOCK: opening a FIFO that nobody writes would wait for ever before it is refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return open_error(err, path);
    ridge_status status = RIDGE_OK;
    mapfile m = {0};
    if (fstat(fd, &st) != 0) {
        status = error_set_errno(err, RIDGE_EIO, "cannot read '%s'", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = RIDGE_FAIL(err, RIDGE_EIO, "'%s' is not a regular file", path);
    } else if (st.st_size > 0) {
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

ridge_status file_read(char **out, size_t *size, const char *path, size_t limit, ridge_error *err) {
    int fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return open_error(err, path);
    buf b = {.limit = limit};
    char chunk[65536];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        buf_append(&b, chunk, (size_t)n);
        if (b.failed) break;
    }
    ridge_status status = RIDGE_OK;
    if (n < 0)
        status = error_set_errno(err, RIDGE_EIO, "cannot read '%s'", path);
    else if (b.failed)
        status = RIDGE_FAIL(err, RIDGE_ETOOLARGE, "'%s' is over %zu bytes", path, limit);
    if (fd != STDIN_FILENO) close(fd);
    if (status == RIDGE_OK) {
        *size = b.len;
        *out = buf_take(&b);
        if (*out == NULL) status = RIDGE_FAIL(err, RIDGE_ENOMEM, "reading '%s'", path);
    }
    buf_free(&b);
    return status;
}
