/* ridge: the public C API. So far: version, status codes, the error object.
 *
 * Library functions return a ridge_status and describe a failure in a caller-owned ridge_error.
 * The library never exits, never prints and keeps no global state.
 */
#ifndef RIDGE_H
#define RIDGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, value, text, HTTP status */
#define RIDGE_STATUS_MAP(X)                                                                        \
    X(OK, 0, "ok", 200)                                                                            \
    X(ENOMEM, -1, "out of memory", 503)                                                            \
    X(EINVAL, -2, "invalid argument", 400)                                                         \
    X(EFORMAT, -3, "malformed data", 400)                                                          \
    X(EIO, -4, "input/output error", 500)                                                          \
    X(EFULL, -5, "full", 429)                                                                      \
    X(ECANCEL, -6, "cancelled", 499)                                                               \
    X(ENOTFOUND, -7, "not found", 404)                                                             \
    X(ETIMEOUT, -8, "timed out", 504)                                                              \
    X(EUNSUPPORTED, -9, "not supported", 400)                                                      \
    X(ETOOLARGE, -10, "too large", 413)                                                            \
    X(EBUSY, -11, "too busy", 429)

typedef enum {
#define X(name, value, text, http) RIDGE_##name = value,
    RIDGE_STATUS_MAP(X)
#undef X
} ridge_status;

/* Filled by the function that fails; the first error wins until it is reset. Zero-initialise it. */
typedef struct {
    ridge_status code;
    char where[64];         /* what it concerns: a file, tensor, key, field; may be empty */
    uint64_t offset;        /* byte offset in the input where that makes sense, else 0 */
    char text[512];         /* one line: what was found, what was expected */
    uint32_t retry_after_s; /* with EBUSY: a good time to try again; else 0 */
} ridge_error;

const char *ridge_version(void);
const char *ridge_status_name(ridge_status status); /* "EINVAL" */
const char *ridge_status_text(ridge_status status); /* "invalid argument" */
int ridge_status_http(ridge_status status);

#ifdef __cplusplus
}
#endif
#endif
