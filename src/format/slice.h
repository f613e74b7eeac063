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

/* A whole text; a byte-order mark is no part of it. */
slice slice_of_text(const char *text, size_t size);
/* The text's next line, without its end ("\n" or "\r\n"), which *rest moves over. */
slice slice_take_line(slice *rest);
/* Without blanks at either end. */
slice slice_trim(slice s);
/* The fields of a line of CSV without quotes, the first `max` of them to out; how many there are.
 */
size_t slice_split(slice line, slice *out, size_t max);

#endif
