/* server/http_head: the head of an HTTP/1.1 request and its chunked body, parsed strictly.
 *
 * Whatever two servers could read differently (both framings, two lengths, folded lines, blanks
 * before a colon) is refused, so that body bytes never become a request. Pure; any thread.
 */
#ifndef RIDGE_SERVER_HTTP_HEAD_H
#define RIDGE_SERVER_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define HTTP_MAX_HEADERS 100

typedef enum { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_OPTIONS, HTTP_OTHER } http_method;

typedef struct {
    http_method method;
    const char *path; /* percent-decoded, without the query */
    struct {
        const char *name, *value; /* borrowed from the parsed text */
    } headers[HTTP_MAX_HEADERS];
    size_t n_headers;
    bool http10;     /* no chunked answers */
    bool keep_alive; /* what the client wants */
    bool chunked;    /* the body is chunked; else it has content_length bytes */
    bool expects_continue;
    uint64_t content_length;
} http_head;

/* Parses a whole head, its empty line included. Writes into text, which *out then borrows. Returns
 * 0, or the HTTP status of the refusal with *why set; *out is then unspecified. */
int http_head_parse(http_head *out, char *text, size_t n, const char **why);
const char *http_head_find(const http_head *h, const char *name); /* NULL: absent */

/* How many bytes of text make a whole head; 0: not yet. `from`: where the last search ended. */
size_t http_head_length(const char *text, size_t n, size_t from);
/* Whether a line of a head that is not yet whole ends in LF alone: then it will never be. */
bool http_head_has_bare_lf(const char *text, size_t n, size_t from);

typedef enum { HTTP_CHUNKS_MORE, HTTP_CHUNKS_DONE, HTTP_CHUNKS_BAD } http_chunks_status;

/* The decoder of a chunked body; zero-initialise. */
typedef struct {
    int state;
    uint64_t left;
    size_t line; /* bytes of the current size line, or of all trailers */
} http_chunks;

/* Takes up to n bytes, appends their data to out; *used says how many were taken. */
http_chunks_status http_chunks_feed(http_chunks *c, const char *data, size_t n, buf *out,
                                    size_t *used);

#endif
