/* load/reach: finds the server before anything is measured. Blocks, on the event base's thread. */
#ifndef RIDGE_LOAD_REACH_H
#define RIDGE_LOAD_REACH_H

#include <event2/event.h>
#include <event2/http.h>

#include "load/load.h"
#include "load/url.h"

typedef struct {
    load_url url;
    char address[64]; /* the host's, as a number: nothing is resolved while measuring */
    char *model;
} load_server;

/* Connects, and asks for the models (an answer of 503 is a server not yet ready); again and again
 * for p->wait_s seconds. *out is to be forgotten in any case. */
ridge_status server_reach(load_server *out, struct event_base *base, const load_params *p,
                          ridge_error *err) RIDGE_CHECKED;
void server_forget(load_server *s);

/* A connection to it, not yet open; silence of timeout_s ends it. NULL: no memory. */
struct evhttp_connection *server_connection(const load_server *s, struct event_base *base,
                                            double timeout_s);
/* Host and, with a key, Authorization; false: no memory. */
bool server_add_headers(const load_server *s, const char *api_key, struct evhttp_request *request);

#endif
