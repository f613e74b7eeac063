/* server/choice: what one sequence has said so far, as the pieces of OpenAI's JSON.
 *
 * Pure: fed with the engine's events, written out and cleared once per chunk (streams) or once at
 * the end. choice_init, choice_event*, choice_write*, choice_free.
 */
#ifndef RIDGE_SERVER_CHOICE_H
#define RIDGE_SERVER_CHOICE_H

#include "server/api_request.h"
#include "server/metrics.h"
#include "server/record.h"

typedef struct generation generation;

typedef struct {
    generation *owner;
    const api_request *request;
    const api_prompt *prompt;
    const server_backend *backend;
    uint64_t id; /* the engine's, while live */
    uint32_t index;
    bool describes; /* its events describe the prompt's tokens, too */
    bool live;      /* its last event is still to come */
    bool begun;     /* the role has been sent (streams) */
    uint32_t n_tokens;
    double logprob; /* sum over its tokens, where they have them */
    engine_finish finish;
    engine_usage usage; /* once finished */
    metrics_sequence measured;
    record_entry *recorded; /* NULL: not, or written */
    buf miss;               /* with `explain`, once finished: where it left the prefix cache */

    /* what has come since the last choice_clear */
    buf text;
    buf ids;                           /* "1,2" */
    buf entries;                       /* chat logprobs */
    buf tokens, values, tops, offsets; /* completions logprobs */
    /* for the whole answer */
    buf prompt_logprobs; /* ",{...},{...}": of the prompt's tokens but the first */
    detokenizer pieces;  /* of the tokens in logprobs, which stop strings do not hold back */
    size_t n_chars;      /* before the next token's text */
    int stop_string;     /* which one ended the text; -1: none */
    int32_t last_id;
} choice;

void choice_init(choice *c, generation *owner, const api_request *r, const api_prompt *p,
                 const server_backend *b, uint32_t index);
void choice_free(choice *c);
void choice_event(choice *c, const engine_event *e);
bool choice_has_news(const choice *c); /* something that a chunk should carry */
void choice_clear(choice *c);

/* One element of "choices": a chunk's delta, or the whole. `role`: the delta announces it.
 * described: of the same prompt, a choice that describes it, if one was to. */
void choice_write_chunk(const choice *c, bool role, buf *out);
void choice_write_whole(const choice *c, const choice *described, buf *out);
/* vLLM's member of a completion's choice, or of a chat's answer; nothing where it was not asked. */
void choice_write_prompt_logprobs(const choice *described, buf *out);
/* Per token; what best_of goes by. */
double choice_mean_logprob(const choice *c);
/* Once finished: where its time went, as the members of an object. */
void choice_explain(const choice *c, buf *out);

#endif
