/* server/http_head: see http_head.h. Follows RFC 9112 where it demands, and its stricter option
 * where it allows. */
#include "server/http_head.h"

#include <string.h>
#include <strings.h>

size_t http_head_length(const char *text, size_t n, size_t from) {
    size_t start = from > 3 ? from - 3 : 0;
    const char *end = n > start ? memmem(text + start, n - start, "\r\n\r\n", 4) : NULL;
    return end != NULL ? (size_t)(end - text) + 4 : 0;
}

bool http_head_has_bare_lf(const char *text, size_t n, size_t from) {
    for (size_t i = from; i < n; i++)
        if (text[i] == '\n' && (i == 0 || text[i - 1] != '\r')) return true;
    return false;
}

const char *http_head_find(const http_head *h, const char *name) {
    for (size_t i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0) return h->headers[i].value;
    return NULL;
}

static bool is_token_char(char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place; false on a broken escape or an escaped NUL. */
static bool percent_decode(char *s) {
    char *out = s;
    for (; *s != '\0'; s++) {
        if (*s != '%') {
            *out++ = *s;
            continue;
        }
        int high = hex_digit(s[1]), low = high >= 0 ? hex_digit(s[2]) : -1;
        if (low < 0 || (high | low) == 0) return false;
        *out++ = (char)(high << 4 | low);
        s += 2;
    }
    *out = '\0';
    return true;
}

static http_method method_of(const char *name) {
    static const char *const names[] = {"GET", "HEAD", "POST", "OPTIONS"};
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return (http_method)i;
    return HTTP_OTHER;
}

static int parse_request_line(http_head *h, char *line, const char **why) {
    char *target = strchr(line, ' '), *version = target != NULL ? strchr(target + 1, ' ') : NULL;
    *why = "the request line is not METHOD TARGET HTTP/1.1";
    if (version == NULL || target == line || version == target + 1) return 400;
    *target++ = '\0';
    *version++ = '\0';
    for (const char *c = line; *c != '\0'; c++)
        if (!is_token_char(*c)) return 400;
    for (const char *c = target; *c != '\0'; c++)
        if ((unsigned char)*c < 0x21 || *c == 0x7F) return 400;
    if (strncmp(version, "HTTP/", 5) != 0) return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        *why = "only HTTP/1.0 and HTTP/1.1 are spoken here";
        return 505;
    }
    h->http10 = version[7] == '0';
    h->method = method_of(line);
    if (strncasecmp(target, "http://", 7) == 0) { /* the absolute form, as sent to proxies */
        char *slash = strchr(target + 7, '/');
        target = slash != NULL ? slash : (char *)"/";
    }
    if (*target != '/' && strcmp(target, "*") != 0) return 400;
    if (strcmp(target, "/") != 0) target[strcspn(target, "?#")] = '\0';
    h->path = target;
    *why = "the target has a broken percent escape";
    return strchr(target, '%') == NULL || percent_decode(target) ? 0 : 400;
}

static int parse_header(http_head *h, char *line, const char **why) {
    char *colon = strchr(line, ':');
    *why = "a header line is malformed";
    if (colon == NULL || colon == line) return 400;
    for (const char *c = line; c < colon; c++)
        if (!is_token_char(*c)) return 400; /* a folded line or a blank before the colon too */
    *colon = '\0';
    char *value = colon + 1, *end = value + strlen(value);
    while (*value == ' ' || *value == '\t') value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) *--end = '\0';
    for (const char *c = value; *c != '\0'; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7F) return 400;
    if (h->n_headers == HTTP_MAX_HEADERS) {
        *why = "too many header lines";
        return 431;
    }
    h->headers[h->n_headers].name = line;
    h->headers[h->n_headers++].value = value;
    return 0;
}

/* Whether a comma-separated list holds the token. */
static bool list_has(const char *list, const char *token) {
    size_t n = strlen(token);
    while (*list != '\0') {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, " \t,");
        if (len == n && strncasecmp(list, token, n) == 0) return true;
        list += len;
    }
    return false;
}

static bool parse_length(const char *text, uint64_t *out) {
    uint64_t v = 0;
    if (*text == '\0' || strlen(text) > 18) return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') return false;
        v = v * 10 + (uint64_t)(*text - '0');
    }
    *out = v;
    return true;
}

static int parse_framing(http_head *h, const char **why) {
    int n_length = 0, n_encoding = 0, n_host = 0;
    h->keep_alive = !h->http10;
    for (size_t i = 0; i < h->n_headers; i++) {
        const char *name = h->headers[i].name, *value = h->headers[i].value;
        if (strcasecmp(name, "Content-Length") == 0) {
            *why = "Content-Length is not a length";
            if (!parse_length(value, &h->content_length)) return 400;
            n_length++;
        } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
            *why = "the only transfer coding understood is chunked";
            if (strcasecmp(value, "chunked") != 0) return 501;
            n_encoding++;
        } else if (strcasecmp(name, "Content-Encoding") == 0) {
            *why = "bodies are taken as they are, without a content coding";
            if (strcasecmp(value, "identity") != 0) return 415;
        } else if (strcasecmp(name, "Host") == 0) {
            n_host++;
        } else if (strcasecmp(name, "Connection") == 0) {
            if (list_has(value, "close")) h->keep_alive = false;
            if (h->http10 && list_has(value, "keep-alive")) h->keep_alive = true;
        } else if (strcasecmp(name, "Expect") == 0) {
            *why = "the only expectation understood is 100-continue";
            if (strcasecmp(value, "100-continue") != 0) return 417;
            h->expects_continue = !h->http10;
        }
    }
    *why = "the length of the body is ambiguous";
    if (n_length + n_encoding > 1 || (n_encoding > 0 && h->http10)) return 400;
    *why = "an HTTP/1.1 request has exactly one Host header";
    if (n_host > 1 || (n_host == 0 && !h->http10)) return 400;
    h->chunked = n_encoding > 0;
    return 0;
}

int http_head_parse(http_head *out, char *text, size_t n, const char **why) {
    memset(out, 0, sizeof *out);
    *why = "the head holds a NUL byte";
    if (memchr(text, '\0', n) != NULL) return 400;
    char *line = text, *end = text + n;
    for (bool first = true; line < end; first = false) {
        char *next = memmem(line, (size_t)(end - line), "\r\n", 2);
        if (next == NULL || next == line) break;
        *next = '\0';
        int status = first ? parse_request_line(out, line, why) : parse_header(out, line, why);
        if (status != 0) return status;
        line = next + 2;
    }
    if (out->path == NULL) {
        *why = "the request line is missing";
        return 400;
    }
    return parse_framing(out, why);
}

/* ---- chunked bodies ---- */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_CR, CHUNK_LF, TRAILER };
#define MAX_CHUNK_LINE 4096

static http_chunks_status size_byte(http_chunks *c, char byte) {
    int digit = hex_digit(byte);
    if (++c->line > MAX_CHUNK_LINE) return HTTP_CHUNKS_BAD;
    if (c->state == CHUNK_SIZE && digit >= 0 && c->line <= 15) {
        c->left = c->left << 4 | (uint64_t)digit;
    } else if (byte == '\r' && c->line > 1) {
        c->state = CHUNK_SIZE_LF;
    } else if (c->state == CHUNK_EXTENSION || (c->line > 1 && (byte == ';' || byte == ' '))) {
        if (byte == '\n' || byte == '\0') return HTTP_CHUNKS_BAD;
        c->state = CHUNK_EXTENSION;
    } else {
        return HTTP_CHUNKS_BAD;
    }
    return HTTP_CHUNKS_MORE;
}

/* Trailers are read over. They end with an empty line: `left` counts the bytes of this line. */
static http_chunks_status trailer_byte(http_chunks *c, char byte) {
    if (++c->line > MAX_CHUNK_LINE) return HTTP_CHUNKS_BAD;
    if (byte == '\n') {
        if (c->left <= 1) return c->left == 1 ? HTTP_CHUNKS_DONE : HTTP_CHUNKS_BAD;
        c->left = 0;
    } else if (byte == '\r' && c->left == 0) {
        c->left = 1;
    } else {
        if (c->left == 1) return HTTP_CHUNKS_BAD;
        c->left = 2;
    }
    return HTTP_CHUNKS_MORE;
}

static http_chunks_status frame_byte(http_chunks *c, char byte) {
    switch (c->state) {
    case CHUNK_SIZE:
    case CHUNK_EXTENSION: return size_byte(c, byte);
    case CHUNK_SIZE_LF:
        if (byte != '\n') return HTTP_CHUNKS_BAD;
        c->state = c->left > 0 ? CHUNK_DATA : TRAILER;
        c->line = 0;
        return HTTP_CHUNKS_MORE;
    case CHUNK_CR: c->state = CHUNK_LF; return byte == '\r' ? HTTP_CHUNKS_MORE : HTTP_CHUNKS_BAD;
    case CHUNK_LF: c->state = CHUNK_SIZE; return byte == '\n' ? HTTP_CHUNKS_MORE : HTTP_CHUNKS_BAD;
    default: return trailer_byte(c, byte);
    }
}

http_chunks_status http_chunks_feed(http_chunks *c, const char *data, size_t n, buf *out,
                                    size_t *used) {
    http_chunks_status status = HTTP_CHUNKS_MORE;
    size_t i = 0;
    while (i < n && status == HTTP_CHUNKS_MORE) {
        if (c->state != CHUNK_DATA) {
            status = frame_byte(c, data[i++]);
            continue;
        }
        size_t take = n - i < c->left ? n - i : (size_t)c->left;
        buf_append(out, data + i, take);
        i += take;
        c->left -= take;
        if (c->left == 0) c->state = CHUNK_CR;
    }
    *used = i;
    return status;
}
