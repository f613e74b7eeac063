/* server/prompt_report: see prompt_report.h. */
#include "server/prompt_report.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static bool echoes_logprobs(const prompt_report *p) {
    return p->request->echo && p->request->logprobs >= 0;
}

static void add_text(prompt_report *p, int32_t id, bool first, bool last) {
    buf shown = {0};
    p->backend->detokenize(p->backend->self, &p->pieces, id, true, &shown);
    if (last) p->backend->detokenize_end(p->backend->self, &p->pieces, &shown);
    /* A BOS which the tokenizer put before the client's text is no part of that text. */
    const api_prompt *given = p->prompt;
    bool added = first && given->text != NULL && shown.len > 0 &&
                 (shown.len > given->n_text || memcmp(shown.data, given->text, shown.len) != 0);
    logprob_columns_add_text(&p->echoed, shown.data, added ? 0 : shown.len, &p->n_chars);
    p->echoed.tokens.failed |= shown.failed;
    buf_free(&shown);
}

/* "97,98," */
static size_t ids_bytes(const api_prompt *prompt) {
    size_t n = 0;
    for (size_t i = 0; i < prompt->n_ids; i++)
        n += (size_t)snprintf(NULL, 0, "%d,", prompt->ids[i]);
    return n;
}

void prompt_report_init(prompt_report *p, const api_request *r, const api_prompt *prompt,
                        const server_backend *b) {
    *p = (prompt_report){.request = r, .prompt = prompt, .backend = b, .n_described = 1};
    if (r->return_token_ids) p->ids_bytes = ids_bytes(prompt);
    if (echoes_logprobs(p)) {
        for (size_t i = 0; i < prompt->n_ids; i++)
            add_text(p, prompt->ids[i], i == 0, i + 1 == prompt->n_ids);
        logprob_columns_add_value(&p->echoed, b, NULL);
    } else if (r->kind == API_COMPLETIONS && r->logprobs >= 0) {
        size_t n;
        const char *text = api_prompt_text(prompt, &n);
        p->n_chars = utf8_count(text, n); /* offsets count from the start of the prompt */
    }
}

void prompt_report_free(prompt_report *p) {
    logprob_columns_free(&p->echoed);
    buf_free(&p->ranked);
}

/* Each of two readers may have asked for fewer than the engine was. */
void prompt_report_add(prompt_report *p, const sampler_result *t) {
    const api_request *r = p->request;
    sampler_result echoed = *t;
    if (echoed.n_top > r->logprobs) echoed.n_top = r->logprobs;
    if (echoes_logprobs(p)) logprob_columns_add_value(&p->echoed, p->backend, &echoed);
    if (r->prompt_logprobs >= 0) logprobs_add_ranked(p->backend, t, r->prompt_logprobs, &p->ranked);
    p->n_described++;
}

bool prompt_report_is_whole(const prompt_report *p) {
    return p->request->engine.prompt_logprobs < 0 || p->n_described >= p->prompt->n_ids;
}

size_t prompt_report_bytes(const prompt_report *p) {
    size_t n_text = 0;
    if (p->request->echo) api_prompt_text(p->prompt, &n_text);
    return n_text + p->ids_bytes + logprob_columns_bytes(&p->echoed) + p->ranked.len;
}

void prompt_report_write_ranked(const prompt_report *p, buf *out) {
    if (p->request->prompt_logprobs < 0) return;
    buf_puts(out, ",\"prompt_logprobs\":[null");
    buf_append(out, p->ranked.data, p->ranked.len);
    out->failed |= p->ranked.failed;
    buf_putc(out, ']');
}
