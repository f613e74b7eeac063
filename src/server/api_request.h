/* server/api_request: a body of /v1/chat/completions or /v1/completions, read, checked and
 * tokenized: everything between the socket and the engine's queue.
 *
 * Pure but for the backend's encode and render; runs on a worker of the pool. Unknown fields are
 * ignored, null is absent; what ridge has not got and would change the answer is a 400 that names
 * the field.
 */
#ifndef RIDGE_SERVER_API_REQUEST_H
#define RIDGE_SERVER_API_REQUEST_H

#include "base/mem.h"
#include "server/api_error.h"
#include "server/backend.h"

#define API_MAX_CHOICES 128    /* n, best_of */
#define API_MAX_SEQUENCES 2048 /* prompts times best_of */
#define API_MAX_STOPS 64
#define API_MAX_STOP_BYTES 65536 /* of all together, as the engine takes them */
#define API_MAX_BIASES 1024
#define API_MAX_SALT_CHARS 128
#define API_MAX_PROMPT_TOKENS (1u << 24) /* of all sequences, as each keeps its prompt */
#define API_MAX_LOGPROBS (1u << 21)      /* that one answer may have to keep */
#define API_MAX_TOKENIZE_BYTES (16u << 20)

typedef enum { API_CHAT, API_COMPLETIONS } api_kind;

typedef struct {
    const char *text; /* [n_text] borrowed from root; NULL for a prompt of ids or a chat */
    size_t n_text;
    int32_t *ids; /* [n_ids] owned */
    size_t n_ids;
    buf decoded; /* the text of ids, where it is shown or its length counts; else empty */
} api_prompt;

/* What `echo` shows. */
const char *api_prompt_text(const api_prompt *p, size_t *n);

typedef struct {
    api_kind kind;
    json_t *root; /* the body; the strings below borrow from it */
    bool stream, include_usage, continuous_usage;
    bool echo;
    bool add_special;
    bool return_token_ids;
    bool explain;        /* the answer says where its time went */
    uint32_t n;          /* choices per prompt, ... */
    uint32_t best_of;    /* ... the likeliest of so many candidates; not of a stream unless n */
    int logprobs;        /* that the answer reports of each token; -1: none */
    int prompt_logprobs; /* the same of the prompt's tokens, in a list of their own (vLLM's) */
    api_prompt *prompts; /* [n_prompts] owned */
    size_t n_prompts;
    engine_request engine; /* all but prompt, choice and user; its arrays live in `memory` */
    arena memory;
} api_request;

typedef struct {
    const char *model_id, *model_root; /* other names are 404 */
} api_names;

/* Fills *out (zeroed by the caller, but for `explain`) or sets *e; api_request_free in both cases.
 */
bool api_request_read(api_request *out, api_kind kind, const char *body, size_t n,
                      const server_backend *backend, const api_names *names, api_error *e);
void api_request_free(api_request *r); /* may be called again */

/* 404 unless root's model is absent or one of the names. */
bool api_check_model(const json_t *root, const api_names *names, api_error *e);

/* 400, naming the field, for what ridge has not got and would change the answer. */
bool api_check_features(const json_t *root, api_error *e);

/* Parts of the above, in api_sampling.c, api_extras.c and api_chat.c. */
bool api_sampling_read(api_request *r, int32_t n_vocab, api_error *e);
bool api_extras_read(api_request *r, api_error *e);
/* The messages as a prompt's text, appended to out; also for /tokenize. */
bool api_chat_render(const json_t *root, const server_backend *backend, buf *out, api_error *e);

#endif
