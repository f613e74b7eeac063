/* format/slice: see slice.h. */
#include "format/slice.h"

#include <ctype.h>

slice slice_of_text(const char *text, size_t size) {
    size_t mark = size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    return (slice){text + mark, size - mark};
}

slice slice_take_line(slice *rest) {
    const char *newline = memchr(rest->start, '\n', rest->len);
    slice line = {rest->start, newline != NULL ? (size_t)(newline - rest->start) : rest->len};
    size_t taken = newline != NULL ? line.len + 1 : line.len;
    *rest = (slice){rest->start + taken, rest->len - taken};
    if (line.len > 0 && line.start[line.len - 1] == '\r') line.len--;
    return line;
}

slice slice_trim(slice s) {
    while (s.len > 0 && isspace((unsigned char)s.start[0])) s.start++, s.len--;
    while (s.len > 0 && isspace((unsigned char)s.start[s.len - 1])) s.len--;
    return s;
}

size_t slice_split(slice line, slice *out, size_t max) {
    size_t n = 0;
    for (;;) {
        const char *comma = memchr(line.start, ',', line.len);
        size_t len = comma != NULL ? (size_t)(comma - line.start) : line.len;
        if (n < max) out[n] = (slice){line.start, len};
        n++;
        if (comma == NULL) return n;
        line = (slice){comma + 1, line.len - len - 1};
    }
}
