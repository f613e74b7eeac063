/* load/sse: see sse.h. */
#include "load/sse.h"

#include <string.h>

static ridge_status check(const buf *b, const char *what, ridge_error *err) {
    if (!b->failed) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%s of a stream is longer than %zu bytes", what,
                      SSE_MAX_BYTES);
}

static void dispatch(sse_parser *p, sse_event_fn fn, void *context) {
    bool whole = p->has_data;
    p->has_data = false;
    if (whole)
        fn(context, p->type.data != NULL ? p->type.data : "",
           p->data.data != NULL ? p->data.data : "", p->data.len);
    buf_clear(&p->data);
    buf_clear(&p->type);
}

static bool field_is(const char *line, size_t n, const char *name) {
    return n == strlen(name) && memcmp(line, name, n) == 0;
}

static ridge_status take_field(sse_parser *p, const char *line, size_t n, ridge_error *err) {
    const char *colon = memchr(line, ':', n);
    size_t name = colon != NULL ? (size_t)(colon - line) : n;
    const char *value = colon != NULL ? colon + 1 : line + n;
    size_t rest = n - (size_t)(value - line);
    if (rest > 0 && value[0] == ' ') value++, rest--;
    if (field_is(line, name, "event")) {
        buf_clear(&p->type);
        buf_append(&p->type, value, rest);
    } else if (field_is(line, name, "data")) {
        if (p->has_data) buf_putc(&p->data, '\n');
        buf_append(&p->data, value, rest);
        p->has_data = true;
    }
    RIDGE_TRY(check(&p->type, "an event's type", err));
    return check(&p->data, "an event", err);
}

static ridge_status take_line(sse_parser *p, sse_event_fn fn, void *context, ridge_error *err) {
    RIDGE_TRY(check(&p->line, "a line", err));
    const char *line = p->line.data != NULL ? p->line.data : "";
    size_t n = p->line.len;
    if (!p->begun && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) line += 3, n -= 3;
    p->begun = true;
    ridge_status status = RIDGE_OK;
    if (n == 0)
        dispatch(p, fn, context);
    else
        status = take_field(p, line, n, err);
    buf_clear(&p->line);
    return status;
}

/* How many of n bytes stand before the end of a line. */
static size_t line_length(const char *bytes, size_t n) {
    size_t i = 0;
    while (i < n && bytes[i] != '\n' && bytes[i] != '\r') i++;
    return i;
}

ridge_status sse_feed(sse_parser *p, const char *bytes, size_t n, sse_event_fn fn, void *context,
                      ridge_error *err) {
    p->line.limit = p->data.limit = p->type.limit = SSE_MAX_BYTES;
    for (size_t i = 0; i < n;) {
        if (p->after_cr && bytes[i] == '\n') {
            p->after_cr = false;
            i++;
            continue;
        }
        p->after_cr = false;
        size_t len = line_length(bytes + i, n - i);
        buf_append(&p->line, bytes + i, len);
        i += len;
        if (i == n) return check(&p->line, "a line", err);
        p->after_cr = bytes[i++] == '\r';
        RIDGE_TRY(take_line(p, fn, context, err));
    }
    return RIDGE_OK;
}

ridge_status sse_end(sse_parser *p, sse_event_fn fn, void *context, ridge_error *err) {
    if (p->line.len > 0) RIDGE_TRY(take_line(p, fn, context, err));
    dispatch(p, fn, context);
    return RIDGE_OK;
}

void sse_free(sse_parser *p) {
    buf_free(&p->line);
    buf_free(&p->data);
    buf_free(&p->type);
}
