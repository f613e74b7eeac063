/* server/api_error: see api_error.h. */
#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *text, *type;
} statuses[] = {
    {200, "OK", ""},
    {204, "No Content", ""},
    {400, "Bad Request", "BadRequestError"},
    {401, "Unauthorized", "AuthenticationError"},
    {404, "Not Found", "NotFoundError"},
    {405, "Method Not Allowed", "MethodNotAllowedError"},
    {408, "Request Timeout", "RequestTimeoutError"},
    {413, "Content Too Large", "RequestTooLargeError"},
    {415, "Unsupported Media Type", "UnsupportedMediaTypeError"},
    {417, "Expectation Failed", "BadRequestError"},
    {429, "Too Many Requests", "RateLimitError"},
    {431, "Request Header Fields Too Large", "RequestTooLargeError"},
    {500, "Internal Server Error", "InternalServerError"},
    {501, "Not Implemented", "NotImplementedError"},
    {503, "Service Unavailable", "ServiceUnavailableError"},
    {504, "Gateway Timeout", "TimeoutError"},
    {505, "HTTP Version Not Supported", "BadRequestError"},
};

static size_t status_index(int status) {
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].status == status) return i;
    return status_index(500);
}

const char *http_status_text(int status) {
    return statuses[status_index(status)].text;
}

bool api_fail(api_error *e, int status, const char *param, const char *format, ...) {
    va_list args;
    e->status = status;
    snprintf(e->param, sizeof e->param, "%s", param != NULL ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

bool api_fail_from(api_error *e, const char *param, const ridge_error *err) {
    int status = ridge_status_http(err->code);
    if (status == 413) status = 400;
    if (status == 499) status = 503;
    const char *text = err->text[0] != '\0' ? err->text : ridge_status_text(err->code);
    e->retry_after_s = err->retry_after_s;
    return api_fail(e, status, param, "%s", text);
}

void api_error_write(const api_error *e, buf *out) {
    buf_puts(out, "{\"error\":{\"message\":");
    buf_json_string(out, e->message, strlen(e->message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", statuses[status_index(e->status)].type);
    if (e->param[0] != '\0')
        buf_json_string(out, e->param, strlen(e->param));
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"code\":%d}}", e->status);
}
