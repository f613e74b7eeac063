/* server/api_error: an error as a client sees it: an HTTP status and OpenAI's body. */
#ifndef RIDGE_SERVER_API_ERROR_H
#define RIDGE_SERVER_API_ERROR_H

#include "base/buf.h"

typedef struct {
    int status;             /* 0: no error */
    uint32_t retry_after_s; /* of a 429 or 503; 0: 1 */
    char param[64];         /* the field concerned; "": none */
    char message[640];
} api_error;

/* Sets *e and returns false, so that a failing reader says and returns in one line. */
bool api_fail(api_error *e, int status, const char *param, const char *format, ...)
    RIDGE_PRINTF(4, 5);
/* From an inner error; what the client sent is never the server's fault (413 becomes 400). */
bool api_fail_from(api_error *e, const char *param, const ridge_error *err);

/* {"error":{"message","type","param","code"}} */
void api_error_write(const api_error *e, buf *out);
const char *http_status_text(int status);

#endif
