/* format/slice: pieces of a text that is read line by line, and errors that say where they stand.
 */
#ifndef RIDGE_FORMAT_SLICE_H
#define RIDGE_FORMAT_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* Where a line stands, for its errors. */
typedef struct {
    const char *file;
    size_t line;
    ridge_error *err;
} place;

#define FAIL_AT(at, format, ...)                                                                   \
    RIDGE_FAIL((at)->err, RIDGE_EFORMAT, "%s:%zu: " format, (at)->file, (at)->line, __VA_ARGS__)

typedef struct {
    const char *start;
    size_t len;
} slice;

static inline int shown(slice s) {
    return s.len < 40 ? (int)s.len : 40;
}

static inline bool slice_is(slice s, const char *text) {
    return s.len == strlen(text) && memcmp(s.start, text, s.len) == 0;
}

#endif
