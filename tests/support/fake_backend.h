/* tests/support/fake_backend: a server_backend that says what it is told, on a thread of its own.
 *
 * Tokens are bytes (ids 0-255), 256 is <eos>, 257 <bos>. Every request is answered with `script`,
 * then <eos>; one token per live request and step, those of a described prompt too. Chats render as
 * "role:content\n" per message. A text has a space before it, which is not shown, unless it goes on
 * behind a byte. Encoding a text that begins with '~' takes half a second.
 */
#ifndef RIDGE_TESTS_FAKE_BACKEND_H
#define RIDGE_TESTS_FAKE_BACKEND_H

#include "server/backend.h"

typedef struct fake_backend fake_backend;

enum { FAKE_EOS = 256, FAKE_BOS = 257, FAKE_N_VOCAB = 258 };

/* step_us: the pause between steps. max_live: EFULL past it. */
fake_backend *fake_backend_create(server_backend *table, const char *script, int step_us,
                                  size_t max_live, uint32_t max_model_len);
void fake_backend_destroy(fake_backend *f);
void fake_backend_set_state(fake_backend *f, engine_loop_state state);
void fake_backend_set_stuck(fake_backend *f, bool stuck); /* makes no step */
/* From now on submit fails with RIDGE_EBUSY and this advice; 0: not any more. */
void fake_backend_set_busy(fake_backend *f, uint32_t retry_after_s);
size_t fake_backend_n_live(fake_backend *f);
size_t fake_backend_n_cancelled(fake_backend *f);

#endif
