/* load/client: requests to one server over kept connections, each measured into its record.
 *
 * HTTP is libevent's (evhttp), one request at a time on a connection. Lives on the thread of its
 * event base. Hands back a record when its request has ended, however it did; never calls back
 * within client_send.
 */
#ifndef RIDGE_LOAD_CLIENT_H
#define RIDGE_LOAD_CLIENT_H

#include <event2/event.h>

#include "load/load.h"

typedef struct client client;
typedef void (*client_done_fn)(void *context, load_record *r);

/* Reaches the server and asks for its models: blocks. p and base are borrowed. */
ridge_status client_open(client **out, struct event_base *base, const load_params *p,
                         client_done_fn done, void *context, ridge_error *err) RIDGE_CHECKED;
void client_close(client *c); /* NULL allowed; done is not called */

const char *client_model(const client *c);
const char *client_url(const client *c); /* what requests go to */
/* Times in records count from here. */
void client_start(client *c, int64_t start_us);

bool client_has_room(const client *c);
/* Sends a body; c has room. The record is written to until done is called with it. */
ridge_status client_send(client *c, load_record *r, const buf *body,
                         ridge_error *err) RIDGE_CHECKED;
/* Ends all that runs, each as `end`. */
void client_end_all(client *c, load_end end);

#endif
