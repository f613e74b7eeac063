/* load/sse: server-sent events out of bytes that may be split anywhere.
 *
 * As the WHATWG's page on them says: lines end in LF, CR LF or CR; "data:" with or without a blank
 * after it, several joined by LF; comments and unknown fields are skipped; an empty line ends an
 * event. More lenient in one point: what the end of the stream cuts off after its last line is an
 * event too. Pure; one thread.
 */
#ifndef RIDGE_LOAD_SSE_H
#define RIDGE_LOAD_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define SSE_MAX_BYTES ((size_t)16 << 20) /* of a line, and of an event's data */

/* One event: its data, which ends with a NUL that is not counted, and its type ("" unless named).
 */
typedef void (*sse_event_fn)(void *context, const char *type, const char *data, size_t n);

/* Zero-initialise. */
typedef struct {
    buf line, data, type;
    bool has_data; /* an event without data is none */
    bool after_cr; /* an LF that comes now belongs to it */
    bool begun;    /* past the place of a byte-order mark */
} sse_parser;

/* RIDGE_ETOOLARGE or RIDGE_ENOMEM: the stream is lost. */
ridge_status sse_feed(sse_parser *p, const char *bytes, size_t n, sse_event_fn fn, void *context,
                      ridge_error *err) RIDGE_CHECKED;
/* The stream is over. */
ridge_status sse_end(sse_parser *p, sse_event_fn fn, void *context, ridge_error *err) RIDGE_CHECKED;
void sse_free(sse_parser *p);

#endif
