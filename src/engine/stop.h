/* engine/stop: holds back text that may become a stop string, and cuts where one is complete.
 *
 * Works byte by byte, so the outcome doesn't depend on where tokens end: the text stops at the
 * first byte that completes any stop string, and of those completed there the longest is cut off.
 * Linear in the text: each string keeps how much of it the text's end matches (Knuth, Morris,
 * Pratt, 1977). One per request.
 */
#ifndef RIDGE_ENGINE_STOP_H
#define RIDGE_ENGINE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define STOP_MAX_STRINGS 64
#define STOP_MAX_BYTES 65536 /* of all strings together */

typedef struct {
    char *bytes;      /* [len] */
    uint32_t *border; /* [len + 1] border[k]: the longest proper border of the first k bytes */
    size_t len, matched;
} stop_string;

typedef struct {
    stop_string *strings; /* [n] */
    size_t n;
    buf held; /* the text's end, while it could begin a stop string */
    bool stopped;
    size_t found; /* when stopped: the index of the string that was cut off */
} stop_filter;

/* strings [n], none empty: RIDGE_EINVAL else, and past the limits. Copied. */
ridge_status stop_filter_init(stop_filter *f, const char *const *strings, size_t n,
                              ridge_error *err) RIDGE_CHECKED;
void stop_filter_deinit(stop_filter *f); /* zeroed allowed */

/* Appends to out what can no longer be part of a stop string. True once a string is complete: what
 * came before it has been appended, nothing after it ever will be. */
bool stop_filter_push(stop_filter *f, const char *text, size_t n, buf *out);
/* The text has ended, or stop strings don't count yet: lets go what is held. */
void stop_filter_flush(stop_filter *f, buf *out);

#endif
