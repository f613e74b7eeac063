/* load/answer: what a server's JSON says: the events of a streamed answer, a whole answer, an
 * error.
 *
 * Both APIs at once (choices[].text, .delta, .message); of what it does not know nothing is asked.
 * Pure; any thread.
 */
#ifndef RIDGE_LOAD_ANSWER_H
#define RIDGE_LOAD_ANSWER_H

#include <xxhash.h>

#include "load/load.h"

/* Takes one document into the record: finish reason, usage, and the text into the hash. *has_text:
 * it brought some (of reasoning and tool calls too). RIDGE_EFORMAT: not JSON, or no such document;
 * RIDGE_EIO: the server says that it failed, err what it said. */
ridge_status answer_take(load_record *r, XXH64_state_t *hash, const char *json, size_t n,
                         bool *has_text, ridge_error *err) RIDGE_CHECKED;

/* The message of an error's body, or the beginning of the body, as it can be printed. Owned; NULL:
 * there is none. */
char *answer_error_message(const char *body, size_t n);
/* The id of the first of /v1/models; NULL: there is none. Owned. */
char *answer_first_model(const char *body, size_t n);

#endif
