/* base/newfile: see newfile.h. */
#include "base/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

/* Takes the lock of an open file, and sees that it is still the one that has this name: who had the
 * lock may have renamed or removed it. True where there are no locks. */
static bool take_lock(int fd, const char *name) {
    struct stat open, named;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return fstat(fd, &open) == 0 && lstat(name, &named) == 0 && open.st_ino == named.st_ino &&
           open.st_dev == named.st_dev;
}

/* Removes what lies there, unless someone is writing it; the lock is held until it is gone. What
 * cannot be opened stays (by now it may be another process's), but for a link. NFS has exclusive
 * locks only for who may write. */
static void clear(const char *name) {
    int fd = open(name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 ? take_lock(fd, name) : errno == ELOOP) unlink(name);
    if (fd >= 0) close(fd);
}

static int create(const char *name, unsigned mode) {
    return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
}

/* A new file of our own, under lock; -1 with errno, EEXIST: it is another's. */
static int create_locked(const char *name, unsigned mode) {
    int fd = create(name, mode);
    if (fd < 0 && errno == EEXIST) {
        clear(name);
        fd = create(name, mode);
    }
    if (fd < 0 || take_lock(fd, name)) return fd;
    close(fd); /* taken for one that a killed process has left */
    errno = EEXIST;
    return -1;
}

/* A device or a folder would be gone once the new file has its name; so would a link, in place of
 * what it names. */
static ridge_status check_place(const char *path, ridge_error *err) {
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISREG(st.st_mode)) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EIO, "%s: is %s, which no file shall replace", path,
                      S_ISDIR(st.st_mode)    ? "a directory"
                      : S_ISLNK(st.st_mode)  ? "a link"
                      : S_ISFIFO(st.st_mode) ? "a pipe"
                                             : "a device");
}

ridge_status newfile_open(newfile *out, const char *path, unsigned mode, ridge_error *err) {
    RIDGE_TRY(check_place(path, err));
    newfile f = {.path = mem_strdup(path)};
    buf name = {0};
    buf_printf(&name, "%s.new", path);
    f.temporary = buf_take(&name);
    ridge_status status = RIDGE_OK;
    if (f.path == NULL || f.temporary == NULL) {
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", path);
    } else {
        int fd = create_locked(f.temporary, mode);
        if (fd < 0 && errno == EEXIST)
            status =
                RIDGE_FAIL(err, RIDGE_EIO, "%s: another process is writing it, or %s is in the way",
                           path, f.temporary);
        else if (fd < 0)
            status = error_set_errno(err, RIDGE_EIO, "%s: cannot be written", path);
        else if ((f.file = fdopen(fd, "wb")) == NULL) {
            status = error_set_errno(err, RIDGE_EIO, "%s: cannot be written", path);
            unlink(f.temporary);
            close(fd);
        }
    }
    if (status == RIDGE_OK) {
        *out = f;
        return RIDGE_OK;
    }
    mem_free(f.path);
    mem_free(f.temporary);
    return status;
}

/* The lock goes last: with the file's closing. */
static void finish(newfile *f) {
    fclose(f->file);
    mem_free(f->path);
    mem_free(f->temporary);
    *f = (newfile){0};
}

ridge_status newfile_commit(newfile *f, ridge_error *err) {
    ridge_status status = RIDGE_OK;
    if (ferror(f->file) || fflush(f->file) != 0 || fsync(fileno(f->file)) != 0)
        status = error_set_errno(err, RIDGE_EIO, "%s: cannot be written", f->path);
    else if (rename(f->temporary, f->path) != 0)
        status = error_set_errno(err, RIDGE_EIO, "%s: cannot be replaced", f->path);
    if (status != RIDGE_OK) unlink(f->temporary);
    finish(f);
    return status;
}

void newfile_abandon(newfile *f) {
    if (f->file == NULL) return;
    unlink(f->temporary);
    finish(f);
}
