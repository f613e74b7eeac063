/* load/url: where a server is, as the user says it. Pure; any thread. */
#ifndef RIDGE_LOAD_URL_H
#define RIDGE_LOAD_URL_H

#include <stdint.h>

#include "base/error.h"

typedef struct {
    char *host;      /* a name or an address, IPv6 without brackets */
    char *authority; /* as the Host header has it */
    char *prefix;    /* what stands before /v1: "" or "/a/b" */
    uint16_t port;
} load_url;

/* http://HOST[:PORT][/PREFIX][/v1[/chat/completions|/completions|/models]][/]. */
ridge_status url_parse(load_url *out, const char *text, ridge_error *err) RIDGE_CHECKED;
void url_free(load_url *u);

#endif
