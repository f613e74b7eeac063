/* base/error: see error.h. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

const char *ridge_version(void) {
    return RIDGE_VERSION;
}

const char *ridge_status_name(ridge_status status) {
    switch (status) {
#define X(name, value, text, http)                                                                 \
    case RIDGE_##name: return #name;
        RIDGE_STATUS_MAP(X)
#undef X
    }
    return "UNKNOWN";
}

const char *ridge_status_text(ridge_status status) {
    switch (status) {
#define X(name, value, text, http)                                                                 \
    case RIDGE_##name: return text;
        RIDGE_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

int ridge_status_http(ridge_status status) {
    switch (status) {
#define X(name, value, text, http)                                                                 \
    case RIDGE_##name: return http;
        RIDGE_STATUS_MAP(X)
#undef X
    }
    return 500;
}

static ridge_status error_fill(ridge_error *err, ridge_status code, const char *suffix,
                               const char *format, va_list args) {
    if (err == NULL || err->code != RIDGE_OK) return code;
    err->code = code;
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (suffix != NULL && used < sizeof err->text - 1)
        snprintf(err->text + used, sizeof err->text - used, ": %s", suffix);
    size_t len = strlen(err->text);
    if (len == sizeof err->text - 1) /* cut, but not within a character */
        err->text[len - utf8_incomplete_tail(err->text, len)] = '\0';
    return code;
}

ridge_status error_set(ridge_error *err, ridge_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_fill(err, code, code == RIDGE_ENOMEM ? ridge_status_text(code) : NULL, format, args);
    va_end(args);
    return code;
}

ridge_status error_set_errno(ridge_error *err, ridge_status code, const char *format, ...) {
    char text[128];
    const char *reason = strerror_r(errno, text, sizeof text);
    va_list args;
    va_start(args, format);
    error_fill(err, code, reason, format, args);
    va_end(args);
    return code;
}

void error_where(ridge_error *err, const char *where) {
    if (err == NULL || err->where[0] != '\0') return;
    size_t n = strlen(where), room = sizeof err->where - 1;
    if (n <= room) {
        memcpy(err->where, where, n + 1);
        return;
    }
    where += n - (room - 3); /* of a long path the end says most */
    while ((*where & 0xC0) == 0x80) where++;
    snprintf(err->where, sizeof err->where, "...%s", where);
}

void error_reset(ridge_error *err) {
    if (err != NULL) memset(err, 0, sizeof *err);
}

_Noreturn void assert_fail(const char *condition, const char *file, int line) {
    fprintf(stderr, "ridge: broken invariant: %s (%s:%d)\n", condition, file, line);
    abort();
}
