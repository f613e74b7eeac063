/* load/url: see url.h. */
#include "load/url.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static ridge_status refuse(const char *text, const char *why, ridge_error *err) {
    return RIDGE_FAIL(err, RIDGE_EINVAL, "'%s': %s; expected http://HOST[:PORT][/PREFIX]", text,
                      why);
}

static bool is_printable(const char *text) {
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text == 0x7F) return false;
    return true;
}

static bool cut_end(const char *path, size_t *n, const char *end) {
    size_t m = strlen(end);
    if (*n < m || memcmp(path + *n - m, end, m) != 0) return false;
    *n -= m;
    return true;
}

/* The path without the API's own part, so that any URL a user has at hand will do. */
static char *prefix_of(const char *path) {
    size_t n = strcspn(path, "?#");
    while (cut_end(path, &n, "/")) {
    }
    if (!cut_end(path, &n, "/v1/chat/completions") && !cut_end(path, &n, "/v1/completions") &&
        !cut_end(path, &n, "/v1/models"))
        cut_end(path, &n, "/v1");
    while (cut_end(path, &n, "/")) {
    }
    return mem_strndup(path, n);
}

static bool parse_port(uint16_t *port, const char *text, size_t n) {
    uint32_t value = 0;
    if (n == 0 || n > 5) return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (uint32_t)(text[i] - '0');
    }
    *port = (uint16_t)value;
    return value > 0 && value <= UINT16_MAX;
}

/* HOST[:PORT] or [IPV6][:PORT]; NULL, or why it is neither. */
static const char *split_authority(const char *text, size_t n, const char **host, size_t *host_len,
                                   uint16_t *port) {
    const char *end = text + n, *host_end;
    if (memchr(text, '@', n) != NULL) return "a user name";
    *host = text[0] == '[' ? text + 1 : text;
    host_end = memchr(text, text[0] == '[' ? ']' : ':', n);
    if (host_end == NULL && text[0] == '[') return "'[' without ']'";
    if (host_end == NULL) host_end = end;
    *host_len = (size_t)(host_end - *host);
    if (*host_len == 0) return "no host";
    const char *colon = *host_end == ']' ? host_end + 1 : host_end;
    if (colon == end) return NULL;
    if (*colon != ':' || !parse_port(port, colon + 1, (size_t)(end - colon - 1)))
        return "a port is 1 to 65535";
    return NULL;
}

ridge_status url_parse(load_url *out, const char *text, ridge_error *err) {
    static const char scheme[] = "http://";
    *out = (load_url){.port = 80};
    if (strncasecmp(text, "https://", 8) == 0) return refuse(text, "TLS is not supported", err);
    if (strncasecmp(text, scheme, sizeof scheme - 1) != 0) return refuse(text, "no http URL", err);
    if (!is_printable(text)) return refuse(text, "a blank or a control character", err);
    const char *authority = text + sizeof scheme - 1;
    size_t n = strcspn(authority, "/?#"), host_len = 0;
    const char *host = NULL, *why = split_authority(authority, n, &host, &host_len, &out->port);
    if (why != NULL) return refuse(text, why, err);
    out->host = mem_strndup(host, host_len);
    out->authority = mem_strndup(authority, n);
    out->prefix = prefix_of(authority + n);
    if (out->host != NULL && out->authority != NULL && out->prefix != NULL) return RIDGE_OK;
    url_free(out);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "the URL");
}

void url_free(load_url *u) {
    mem_free(u->host);
    mem_free(u->authority);
    mem_free(u->prefix);
    *u = (load_url){0};
}
