/* server/prompt_report: what an answer shows of one prompt: its text and the log-probabilities of
 * its tokens. All choices of the prompt share it; the first candidate's sequence fills it.
 *
 * Pure. prompt_report_init on a worker, the rest on the loop.
 */
#ifndef RIDGE_SERVER_PROMPT_REPORT_H
#define RIDGE_SERVER_PROMPT_REPORT_H

#include "server/api_request.h"
#include "server/logprobs.h"

typedef struct {
    const api_request *request;
    const api_prompt *prompt;
    const server_backend *backend;
    logprob_columns echoed; /* with echo and logprobs; texts are there from the start */
    buf ranked;             /* with prompt_logprobs: ",{...},{...}" of all tokens but the first */
    size_t ids_bytes;       /* with return_token_ids: of the prompt's, written */
    size_t n_described;     /* tokens that the columns and `ranked` describe, the first included */
    detokenizer pieces;     /* of the echoed tokens */
    size_t n_chars;         /* where the offsets of an answer's tokens go on */
    size_t n_counted;       /* of its bytes, by its owner */
} prompt_report;

void prompt_report_init(prompt_report *p, const api_request *r, const api_prompt *prompt,
                        const server_backend *b);
void prompt_report_free(prompt_report *p); /* zeroed allowed */
void prompt_report_add(prompt_report *p, const sampler_result *t);
/* Has all that was asked for come? */
bool prompt_report_is_whole(const prompt_report *p);
/* What it adds, about, to each choice that is written with it. */
size_t prompt_report_bytes(const prompt_report *p);
/* vLLM's member of a completion's choice, or of a chat's answer; nothing where it was not asked. */
void prompt_report_write_ranked(const prompt_report *p, buf *out);

#endif
