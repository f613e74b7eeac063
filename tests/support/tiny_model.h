/* tests/support/tiny_model: small random models of every architecture, with a byte vocabulary. */
#ifndef RIDGE_TESTS_TINY_MODEL_H
#define RIDGE_TESTS_TINY_MODEL_H

#include <stdint.h>

#define TINY_N_VOCAB 272
#define TINY_N_CONTEXT 128
#define TINY_BOS 1
#define TINY_EOS 2
#define TINY_SPACE_T 266 /* " t" */

/* The kinds: an architecture, or one of its variants. */
extern const char *const tiny_kinds[]; /* NULL-terminated */

/* A new file of that kind in the temporary folder; owned (unlink, mem_free). */
char *tiny_model_write(const char *kind);
/* The same model with its first layers alone: a draft model. */
char *tiny_model_write_cut(const char *kind, uint32_t max_layers);

/* Set-up and teardown of a group of tests that share one of kind "llama". */
extern char *tiny_llama_path;
int tiny_llama_setup(void **state);
int tiny_llama_teardown(void **state);

#endif
