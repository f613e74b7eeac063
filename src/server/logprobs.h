/* server/logprobs: log-probabilities of tokens in the JSON of OpenAI and vLLM. Pure. */
#ifndef RIDGE_SERVER_LOGPROBS_H
#define RIDGE_SERVER_LOGPROBS_H

#include "server/backend.h"

/* The four parallel lists of a completion's `logprobs`, without their brackets. */
typedef struct {
    buf tokens, offsets, values, tops;
} logprob_columns;

/* One more token: what it shows of the text, at *n_chars, which is moved on; */
void logprob_columns_add_text(logprob_columns *c, const char *text, size_t n, size_t *n_chars);
/* and its value and alternatives; t NULL: the first token of a prompt, which nothing predicts. */
void logprob_columns_add_value(logprob_columns *c, const server_backend *b,
                               const sampler_result *t);
size_t logprob_columns_bytes(const logprob_columns *c);
void logprob_columns_clear(logprob_columns *c);
void logprob_columns_free(logprob_columns *c);
/* The object of both together; first NULL: none. */
void logprob_columns_write(const logprob_columns *first, const logprob_columns *rest, buf *out);

/* An element of a chat's `logprobs.content`, after a comma if not the first of `list`. */
void logprobs_add_chat(const server_backend *b, const sampler_result *t, buf *list);
/* `,{...}` of vLLM's prompt_logprobs: the token itself, then the n likeliest. */
void logprobs_add_ranked(const server_backend *b, const sampler_result *t, int n, buf *list);

#endif
