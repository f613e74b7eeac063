/* server/choice: what one sequence has said so far, as the pieces of OpenAI's JSON.
 *
 * Pure: fed with the engine's events, written out and cleared once per chunk (streams) or once at
 * the end. choice_init, choice_event*, choice_write_chunk* or choice_take_whole, choice_free.
 */
#ifndef RIDGE_SERVER_CHOICE_H
#define RIDGE_SERVER_CHOICE_H

#include "server/metrics.h"
#include "server/prompt_report.h"
#include "server/record.h"

typedef struct generation generation;

#define CHOICE_HIDDEN UINT32_MAX /* the index of a candidate that the answer leaves out */

typedef struct {
    generation *owner;
    const api_request *request;
    prompt_report *report; /* its prompt's */
    const server_backend *backend;
    uint64_t id; /* the engine's, while live */
    uint32_t index;
    bool describes; /* its events fill the report, too */
    bool live;      /* its last event is still to come */
    bool begun;     /* the role has been sent (streams) */
    bool echo_due;  /* the prompt's text is to stand before what comes next */
    bool ended;     /* its last chunk has been written (streams) */
    uint32_t n_tokens;
    double logprob; /* sum over its tokens, where they have them */
    engine_finish finish;
    engine_usage usage; /* once finished */
    metrics_sequence measured;
    record_entry *recorded; /* NULL: not, or written */
    buf miss;               /* with `explain`, once finished: where it left the prefix cache */

    /* what has come since the last choice_clear */
    buf text;
    buf ids;                 /* "1,2" */
    buf entries;             /* chat logprobs */
    logprob_columns columns; /* completions logprobs */
    /* for the whole answer */
    detokenizer pieces; /* of the tokens in logprobs, which stop strings do not hold back */
    size_t n_chars;     /* before the next token's text */
    size_t n_counted;   /* of its bytes, by its owner */
    int stop_string;    /* which one ended the text; -1: none */
    int32_t last_id;
} choice;

void choice_init(choice *c, generation *owner, prompt_report *report, uint32_t index);
void choice_free(choice *c);
/* heard: somebody still waits for what it says. */
void choice_event(choice *c, const engine_event *e, bool heard);
bool choice_waits(const choice *c);    /* until its prompt's report is whole (streams) */
bool choice_has_news(const choice *c); /* something that a chunk should carry */
void choice_clear(choice *c);
size_t choice_bytes(const choice *c); /* kept since the last clear, without the report's */

/* One element of "choices": a chunk's delta, or the whole. The first chunk announces the role
 * (chat), or has the prompt's ids where they were asked for (completions). */
void choice_write_chunk(const choice *c, bool first, buf *out);
void choice_take_whole(choice *c, buf *out); /* frees what it has written */
/* A member with the prompt's ids, where they were asked for: of the choice (completions), or of the
 * answer, and of each choice's first chunk (chat). */
void choice_write_prompt_ids(const choice *c, buf *out);
/* Per token; what best_of goes by. */
double choice_mean_logprob(const choice *c);
/* Once finished: where its time went, as the members of an object. */
void choice_explain(const choice *c, buf *out);

#endif
