/* cli/answer: one answer from an engine, streamed to stdout; used by `run` for one prompt and for
 * chat. */
#ifndef RIDGE_CLI_ANSWER_H
#define RIDGE_CLI_ANSWER_H

#include <jansson.h>

#include "cli/cli.h"
#include "cli/machine.h"
#include "engine/engine.h"
#include "text/template.h"

typedef struct {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;
    uint64_t seed, max_tokens, min_tokens;
    const char *stop;         /* NULL: none */
    bool ignore_eos, goes_on; /* engine_request's */
} answer_options;

answer_options answer_options_default(void);
/* RIDGE_EINVAL names what no engine would take. */
ridge_status answer_options_check(const answer_options *o, ridge_error *err) RIDGE_CHECKED;

#define ANSWER_OPTIONS(a)                                                                          \
    {"max-tokens", CLI_UINT, &(a)->max_tokens,                                                     \
     "most tokens of an answer (0: until the context is full)"},                                   \
        {"min-tokens", CLI_UINT, &(a)->min_tokens, "no end before so many tokens"},                \
        {"temperature", CLI_DOUBLE, &(a)->temperature, "0: greedy (default)"},                     \
        {"top-k", CLI_INT, &(a)->top_k, "0: off (default)"},                                       \
        {"top-p", CLI_DOUBLE, &(a)->top_p, "1: off (default)"},                                    \
        {"min-p", CLI_DOUBLE, &(a)->min_p, "0: off (default)"},                                    \
        {"repetition-penalty", CLI_DOUBLE, &(a)->repetition_penalty, "1: off (default)"},          \
        {"presence-penalty", CLI_DOUBLE, &(a)->presence_penalty, "0: off (default)"},              \
        {"frequency-penalty", CLI_DOUBLE, &(a)->frequency_penalty, "0: off (default)"},            \
        {"seed", CLI_UINT, &(a)->seed, "the draws' seed (default 0)"},                             \
        {"stop", CLI_STRING, &(a)->stop, "a string that ends the answer"}, {                       \
        "ignore-eos", CLI_FLAG, &(a)->ignore_eos, "go on past the model's end of text"             \
    }

typedef struct {
    buf text;
    int32_t *ids; /* [n_ids] */
    size_t n_ids, ids_capacity;
    engine_finish finish;
    engine_usage usage;
    double decode_bytes_per_s; /* weights and KV read per second of decode steps; 0 if none */
} answer;

/* Runs one prompt to its end. stream: the text goes to stdout as it comes. *stop (may be NULL) set
 * to nonzero by a signal handler cancels the answer. */
ridge_status answer_run(engine *e, const int32_t *prompt, size_t n_prompt, const answer_options *o,
                        bool stream, const volatile int *stop, answer *out,
                        ridge_error *err) RIDGE_CHECKED;
void answer_free(answer *a);
const char *answer_finish_name(engine_finish finish); /* "stop", "length", "cancelled", "error" */
/* TTFT, TPOT, tokens/s, % of the memory-bandwidth roof: one line on stderr. peaks NULL: without. */
void answer_print_timing(const answer *a, const machine_peaks *peaks);

/* The template to use: --chat-template FILE or NAME, else the model's own; an error that says the
 * choice where there is none. */
ridge_status answer_template(engine *e, const char *chosen, chat_template **out,
                             ridge_error *err) RIDGE_CHECKED;
/* Messages (a JSON list of {role, content}) to prompt ids. *ids is owned (mem_free). */
ridge_status answer_render(engine *e, const chat_template *t, json_t *messages, int32_t **ids,
                           size_t *n_ids, ridge_error *err) RIDGE_CHECKED;

/* The chat on a terminal (or lines of standard input); returns the exit status. */
int chat_run(engine *e, const chat_template *t, const char *system, const answer_options *o);

#endif
