/* server/api_request: see api_request.h. */
#include "server/api_request.h"

#include <string.h>

#include "base/mem.h"
#include "server/json_field.h"

bool api_check_model(const json_t *root, const api_names *names, api_error *e) {
    const char *name = NULL;
    size_t n = 0;
    if (!field_string(root, "model", &name, &n, e)) return false;
    if (name == NULL) return true;
    if (strlen(name) != n)
        return api_fail(e, 404, "model", "'model' holds the character U+0000: no model has that");
    if (strcmp(name, names->model_id) == 0 || strcmp(name, names->model_root) == 0) return true;
    return api_fail(e, 404, "model", "The model `%.200s` does not exist; this server has `%.200s`.",
                    name, names->model_id);
}

const char *api_prompt_text(const api_prompt *p, size_t *n) {
    *n = p->text != NULL ? p->n_text : p->decoded.len;
    return *n == 0 ? "" : p->text != NULL ? p->text : p->decoded.data;
}

static bool is_ids(const json_t *v) {
    return json_is_array(v) && !json_is_string(json_array_get(v, 0)) &&
           !json_is_array(json_array_get(v, 0));
}

static bool read_prompt(api_prompt *p, const json_t *v, int32_t n_vocab, api_error *e) {
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->n_text = json_string_length(v);
        return true;
    }
    if (!json_is_array(v))
        return field_type_error(e, "prompt", "a string, token ids, or a list of one of them", v);
    return json_token_ids(v, "prompt", n_vocab, &p->ids, &p->n_ids, e);
}

/* They come in together: more than there is ever room for would be told to try later for ever. */
static bool check_sequences(const api_request *r, size_t n_prompts, const server_backend *b,
                            api_error *e) {
    size_t at_once = b->info(b->self).max_sequences, n = n_prompts * r->best_of;
    size_t most = at_once < API_MAX_SEQUENCES ? at_once : API_MAX_SEQUENCES;
    if (n <= most) return true;
    return api_fail(e, 400,
                    n_prompts > 1       ? "prompt"
                    : r->best_of > r->n ? "best_of"
                                        : "n",
                    "%zu prompt%s times %u choice%s make %zu sequences, more than the %zu that %s",
                    n_prompts, plural(n_prompts), r->best_of, plural(r->best_of), n, most,
                    most == at_once ? "may run and wait (--max-num-seqs, --max-waiting)"
                                    : "one request may have");
}

/* "text" | [ids] | ["text", ...] | [[ids], ...] */
static bool read_prompts(api_request *r, const server_backend *b, api_error *e) {
    const json_t *given = field_get(r->root, "prompt");
    if (given == NULL) return api_fail(e, 400, "prompt", "'prompt' is required");
    if (json_is_array(given) && json_array_size(given) == 0)
        return api_fail(e, 400, "prompt", "'prompt' is empty");
    bool single = !json_is_array(given) || is_ids(given);
    size_t n = single ? 1 : json_array_size(given);
    if (!check_sequences(r, n, b, e)) return false;
    r->prompts = mem_zalloc(n, sizeof *r->prompts);
    if (r->prompts == NULL) return api_fail(e, 503, "prompt", "out of memory");
    r->n_prompts = n;
    int32_t n_vocab = b->info(b->self).n_vocab;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = single ? given : json_array_get(given, i);
        if (!read_prompt(&r->prompts[i], one, n_vocab, e)) return false;
    }
    return true;
}

/* A prompt needs room for one token of its answer, unless none is asked for. */
static bool fits(const api_request *r, size_t n_ids, uint32_t limit) {
    return n_ids < (size_t)limit + (r->engine.prompt_only ? 1 : 0);
}

static bool fail_length(const api_request *r, size_t n_ids, bool at_least, uint32_t limit,
                        const char *param, api_error *e) {
    return api_fail(e, 400, param,
                    "This model's maximum context length is %u token%s. However, your request has "
                    "%s%zu input token%s%s. Please reduce the length of the input.",
                    limit, plural(limit), at_least ? "at least " : "", n_ids, plural(n_ids),
                    r->engine.prompt_only ? "" : " and needs room for an answer");
}

/* What cannot fit is refused by its bytes: megabytes of text take seconds to encode. */
static bool encode_prompt(const api_request *r, api_prompt *p, const char *text, size_t n,
                          const server_backend *b, const char *param, api_error *e) {
    ridge_error err = {0};
    uint32_t limit = b->info(b->self).max_model_len;
    size_t least = b->min_tokens(b->self, text, n);
    if (!fits(r, least, limit)) return fail_length(r, least, true, limit, param, e);
    if (b->encode(b->self, text, n, r->add_special, &p->ids, &p->n_ids, &err) != RIDGE_OK)
        return api_fail_from(e, param, &err);
    return true;
}

static bool check_length(const api_request *r, const api_prompt *p, uint32_t limit,
                         const char *param, api_error *e) {
    if (p->n_ids == 0) return api_fail(e, 400, param, "the prompt is empty: it has no tokens");
    return fits(r, p->n_ids, limit) || fail_length(r, p->n_ids, false, limit, param, e);
}

/* What `echo` shows and text offsets count from, for a prompt that came as ids. */
static bool decode_prompt(api_prompt *p, const server_backend *b, api_error *e) {
    detokenizer d = {0};
    for (size_t i = 0; i < p->n_ids; i++) b->detokenize(b->self, &d, p->ids[i], true, &p->decoded);
    b->detokenize_end(b->self, &d, &p->decoded);
    return !p->decoded.failed || api_fail(e, 503, "prompt", "out of memory");
}

/* Each sequence has a copy of its prompt. */
static bool check_copies(const api_request *r, size_t n_tokens, const char *param, api_error *e) {
    if (n_tokens * r->best_of <= API_MAX_PROMPT_TOKENS) return true; /* a body's are few enough */
    return api_fail(e, 400, param,
                    "prompts of %zu tokens times %u choices make more than %u tokens", n_tokens,
                    r->best_of, API_MAX_PROMPT_TOKENS);
}

/* Log-probabilities that the answer shows of its prompts' tokens: in every choice, but for those of
 * a chat. */
static uint64_t n_prompt_logprobs(const api_request *r, size_t n_tokens) {
    uint64_t echoed = r->echo && r->logprobs >= 0 ? (uint64_t)r->logprobs + 1 : 0;
    uint64_t own = r->prompt_logprobs >= 0 ? (uint64_t)r->prompt_logprobs + 1 : 0;
    return n_tokens * (echoed + own) * (r->kind == API_CHAT ? 1 : r->n);
}

/* Those that all candidates are asked to keep of their tokens. A stream sends them as they come;
 * without a max_tokens there is no knowing. */
static uint64_t n_answer_logprobs(const api_request *r, uint32_t context) {
    uint64_t n = r->engine.max_tokens < context ? r->engine.max_tokens : context;
    if (r->stream || r->logprobs < 0) return 0;
    return r->n_prompts * r->best_of * n * ((uint64_t)r->logprobs + 1);
}

static bool check_logprobs(const api_request *r, size_t n_tokens, uint32_t context, api_error *e) {
    uint64_t of_prompts = n_prompt_logprobs(r, n_tokens);
    uint64_t of_answers = n_answer_logprobs(r, context);
    if (of_prompts + of_answers <= API_MAX_LOGPROBS) return true;
    const char *param = r->logprobs < 0       ? "prompt_logprobs"
                        : r->kind == API_CHAT ? "top_logprobs"
                                              : "logprobs";
    return api_fail(e, 400, param,
                    "the answer would have to keep up to %llu log-probabilities, %llu of prompts' "
                    "tokens and %llu of its own (%u choices times %zu prompts), at most %u are "
                    "taken: ask for fewer of them, of choices or of tokens",
                    (unsigned long long)(of_prompts + of_answers), (unsigned long long)of_prompts,
                    (unsigned long long)of_answers, r->best_of, r->n_prompts, API_MAX_LOGPROBS);
}

static bool read_chat(api_request *r, const server_backend *b, api_error *e) {
    buf text = {0};
    if (!check_sequences(r, 1, b, e)) return false;
    r->prompts = mem_zalloc(1, sizeof *r->prompts);
    if (r->prompts == NULL) return api_fail(e, 503, "messages", "out of memory");
    r->n_prompts = 1;
    bool ok = api_chat_render(r->root, b, &text, e) &&
              encode_prompt(r, r->prompts, text.data != NULL ? text.data : "", text.len, b,
                            "messages", e);
    buf_free(&text);
    return ok;
}

bool api_request_read(api_request *r, api_kind kind, const char *body, size_t n,
                      const server_backend *b, const api_names *names, api_error *e) {
    backend_info info = b->info(b->self);
    r->kind = kind;
    r->root = json_parse_object(body, n, e);
    if (r->root == NULL || !api_check_model(r->root, names, e) ||
        !api_sampling_read(r, info.n_vocab, e) || !api_extras_read(r, e))
        return false;
    const char *param = kind == API_CHAT ? "messages" : "prompt";
    if (kind == API_CHAT ? !read_chat(r, b, e) : !read_prompts(r, b, e)) return false;
    size_t n_tokens = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        api_prompt *p = &r->prompts[i];
        if (p->text != NULL && !encode_prompt(r, p, p->text, p->n_text, b, param, e)) return false;
        if (!check_length(r, p, info.max_model_len, param, e)) return false;
        n_tokens += p->n_ids;
        if (!check_copies(r, n_tokens, param, e)) return false;
        bool counted = kind == API_COMPLETIONS && (r->echo || r->logprobs >= 0);
        if (counted && p->text == NULL && !decode_prompt(p, b, e)) return false;
    }
    return check_logprobs(r, n_tokens, info.max_model_len, e);
}

void api_request_free(api_request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) {
        mem_free(r->prompts[i].ids);
        buf_free(&r->prompts[i].decoded);
    }
    mem_free(r->prompts);
    json_decref(r->root);
    arena_free(&r->memory);
    *r = (api_request){0};
}
