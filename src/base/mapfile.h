/* base/mapfile: a file mapped read-only. The mapping lives until mapfile_close. */
#ifndef RIDGE_BASE_MAPFILE_H
#define RIDGE_BASE_MAPFILE_H

#include <stddef.h>

#include "base/error.h"

typedef struct {
    const unsigned char *data; /* [size]; NULL when size is 0 */
    size_t size;
} mapfile;

/* RIDGE_ENOTFOUND or RIDGE_EIO, named by path; a directory or a special file is refused. */
ridge_status mapfile_open(mapfile *out, const char *path, ridge_error *err) RIDGE_CHECKED;
void mapfile_close(mapfile *m);
/* Gives back the pages of [offset, offset+size): they come from the file again when touched. */
void mapfile_drop(const mapfile *m, size_t offset, size_t size);

/* A whole file as an owned string, NUL-terminated; refuses over limit bytes, and like mapfile_open
 * what is no regular file (it might never end). "-": standard input, whatever that is. */
ridge_status file_read(char **out, size_t *size, const char *path, size_t limit,
                       ridge_error *err) RIDGE_CHECKED;

#endif
