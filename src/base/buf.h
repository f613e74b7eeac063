/* base/buf: a growing byte string, always followed by a NUL that is not counted.
 *
 *     buf b = {0};  buf_printf(&b, "%d", 1);  ... b.data, b.len ...  buf_free(&b);
 *
 * When memory runs out (or limit is passed) `failed` is set, later writes do nothing, and the
 * owner checks it once at the end. JSON writers: strings are written as UTF-8, escaped as Python's
 * json.dumps(ensure_ascii=False); numbers as Python's repr.
 */
#ifndef RIDGE_BASE_BUF_H
#define RIDGE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    char *data; /* NULL while empty */
    size_t len, capacity;
    size_t limit; /* 0: none; len never passes it */
    bool failed;
} buf;

void buf_append(buf *b, const void *data, size_t n);
void buf_puts(buf *b, const char *s);
void buf_putc(buf *b, char c);
void buf_printf(buf *b, const char *format, ...) RIDGE_PRINTF(2, 3);
void buf_clear(buf *b); /* keeps the memory and clears failed */
void buf_free(buf *b);
char *buf_take(buf *b); /* the owned string (never NULL unless failed); *b is empty afterwards */

void buf_json_string(buf *b, const char *s,
                     size_t n);         /* with the quotes; bytes not UTF-8: U+FFFD */
void buf_json_double(buf *b, double x); /* shortest that reads back; 1.0, 1e+20; non-finite: null */
void buf_json_field(buf *b, const char *name, double x); /* "name":x, after a comma if not first */
void buf_double(buf *b, double x);                       /* Python's repr: 1.0, 1e+20, inf, nan */

#endif
