/* base/newfile: a file that takes another's place at once, when all of it is written.
 *
 * It is made beside its place, as PATH.new, by one process at a time: whoever writes it holds a
 * lock (flock), which ends with the process; what a killed one has left behind is thrown away by
 * the next. So readers see the old file or the new one, and nothing piles up. Where the file system
 * knows no locks, two that write at once may spoil each other's file: check what you read.
 */
#ifndef RIDGE_BASE_NEWFILE_H
#define RIDGE_BASE_NEWFILE_H

#include <stdio.h>

#include "base/error.h"

typedef struct {
    FILE *file;             /* to write to */
    char *path, *temporary; /* private */
} newfile;

/* mode: who may read it, less the process's umask. Follows no link at PATH.new: it is removed, as
 * is any file there that the process may write and nobody is writing. RIDGE_EIO: it cannot be made,
 * another process is just writing it, or what stands at PATH is no regular file (a device, a
 * folder, a link). */
ridge_status newfile_open(newfile *out, const char *path, unsigned mode,
                          ridge_error *err) RIDGE_CHECKED;
/* On disk, then in its place; on failure what stood there stays. It is closed in both cases. */
ridge_status newfile_commit(newfile *f, ridge_error *err) RIDGE_CHECKED;
/* Closed, and nothing has happened; allowed after a commit, and of a zeroed one. */
void newfile_abandon(newfile *f);

#endif
