/* server/miss: where a prompt left the prefixes that the cache knew, and what that cost.
 *
 * The engine says what is cached, of all the tenant's prompts nearest to this one, where the prompt
 * left the cache. Compared token by token it tells what differs, and how much of the prompt behind
 * the difference is the same again: a prefix that didn't change there would have saved computing
 * that. Pure, but for the backend's detokenizer.
 */
#ifndef RIDGE_SERVER_MISS_H
#define RIDGE_SERVER_MISS_H

#include "server/backend.h"

typedef enum {
    MISS_OFF,     /* the cache was not asked */
    MISS_COLD,    /* it knew nothing that begins like this, or is the same later on */
    MISS_NONE,    /* it knew all of the prompt (the last token is computed in any case) */
    MISS_NEW,     /* it knew a beginning, and nothing that goes on from there */
    MISS_DIFFERS, /* it knew something that goes on otherwise */
} miss_kind;

typedef struct {
    miss_kind kind;
    uint32_t at;         /* the first token of the prompt that isn't what the cache knew */
    uint32_t n_saveable; /* MISS_DIFFERS: tokens behind it that are the same again, and would have
                            come from the cache if nothing differed */
} prefix_miss;

/* asked: the cache was on, and the request wanted it. */
prefix_miss miss_find(const int32_t *prompt, uint32_t n_prompt, const engine_usage *u, bool asked);
/* The members of a JSON object, without its braces; with text around the difference. */
void miss_write(const server_backend *b, const int32_t *prompt, uint32_t n_prompt,
                const engine_usage *u, bool asked, buf *out);

#endif
