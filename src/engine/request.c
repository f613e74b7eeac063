/* engine/request: a request is checked and copied here, with all the room that it will ever need.
 *
 * Runs on the thread that submits. Nothing of the caller's is kept: the copies live in the request.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

#define NEAR_TOKENS 64 /* of the nearest cached prompt, beyond the length of one's own */

engine_request engine_request_default(void) {
    return (engine_request){.sampling = sampler_params_default(), .prompt_logprobs = -1};
}

detokenizer engine_request_detokenizer(const engine_request *r, const tokenizer *t) {
    return r->goes_on ? detokenizer_after(t, r->prompt[r->n_prompt - 1]) : (detokenizer){0};
}

static ridge_status check_ids(const char *what, const int32_t *ids, size_t n, int32_t n_vocab,
                              ridge_error *err) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab) {
            error_where(err, what);
            return RIDGE_FAIL(err, RIDGE_EINVAL, "%s[%zu]: id %d is not in 0..%d", what, i, ids[i],
                              n_vocab - 1);
        }
    return RIDGE_OK;
}

static ridge_status check(const engine *e, const engine_request *r, ridge_error *err) {
    uint32_t limit = e->params.max_model_len;
    if (r->n_prompt == 0) return RIDGE_FAIL(err, RIDGE_EINVAL, "the prompt has no tokens");
    if (r->n_prompt > limit || (r->n_prompt == limit && !r->prompt_only)) {
        error_where(err, "prompt");
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "the prompt has %zu tokens, too many for a context of %u%s", r->n_prompt,
                          limit, r->prompt_only ? "" : ", prompt and answer together");
    }
    size_t room = limit - r->n_prompt;
    if (!r->prompt_only && r->min_tokens > room) {
        error_where(err, "min_tokens");
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "min_tokens %u: a prompt of %zu token%s leaves room for %zu in a context "
                          "of %u",
                          r->min_tokens, r->n_prompt, plural(r->n_prompt), room, limit);
    }
    if (r->prompt_logprobs < -1 || r->prompt_logprobs > SAMPLER_MAX_LOGPROBS)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "prompt_logprobs must be between -1 and %d, found %d",
                          SAMPLER_MAX_LOGPROBS, r->prompt_logprobs);
    if (r->max_tokens > 0 && r->min_tokens > r->max_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "min_tokens %u is above max_tokens %u", r->min_tokens,
                          r->max_tokens);
    int32_t n_vocab = engine_n_vocab(e);
    RIDGE_TRY(check_ids("prompt", r->prompt, r->n_prompt, n_vocab, err));
    RIDGE_TRY(check_ids("stop_token_ids", r->stop_ids, r->n_stop_ids, n_vocab, err));
    return sampler_params_check(&r->sampling, n_vocab, err);
}

/* The most tokens that the sequence can come to hold. */
static uint32_t capacity_of(const engine *e, const engine_request *r) {
    uint32_t n_prompt = (uint32_t)r->n_prompt, room = e->params.max_model_len - n_prompt;
    if (r->prompt_only) return n_prompt;
    return n_prompt + (r->max_tokens > 0 && r->max_tokens < room ? r->max_tokens : room);
}

static ridge_status copy_array(const void *from, size_t n, size_t size, void *out,
                               ridge_error *err) {
    void *copy = n > 0 ? mem_dup(from, n * size) : NULL;
    if (n > 0 && copy == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the request");
    *(void **)out = copy;
    return RIDGE_OK;
}

/* While fewer than min_tokens are out, what would end the text must not be drawn. */
static ridge_status ban_ends(const engine *e, request *q, ridge_error *err) {
    size_t n_end = q->given.ignore_eos ? 0 : e->n_end_ids, n = n_end + q->given.n_stop_ids;
    if (q->given.min_tokens == 0 || n == 0) return RIDGE_OK;
    int32_t *banned = mem_zalloc(n, sizeof *banned);
    if (banned == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the request");
    for (size_t i = 0; i < n; i++)
        banned[i] = i < n_end ? e->end_ids[i] : q->given.stop_ids[i - n_end];
    q->sampling.banned = banned;
    q->sampling.n_banned = n;
    return RIDGE_OK;
}

static ridge_status count_prompt(const engine *e, request *q, ridge_error *err) {
    size_t n_vocab = (size_t)engine_n_vocab(e), n = q->seq.max_tokens;
    if (!sampler_needs_counts(&q->sampling)) return RIDGE_OK;
    RIDGE_TRY(sampler_counts_create(&q->counts, n < n_vocab ? n : n_vocab, err));
    for (uint32_t i = 0; i < q->seq.n_prompt; i++)
        sampler_counts_add(q->counts, q->seq.tokens[i], false);
    return RIDGE_OK;
}

static ridge_status fill(request *q, const engine *e, const engine_request *r, ridge_error *err) {
    q->given = *r;
    q->given.prompt = NULL;
    q->given.stop = NULL;
    q->given.stop_ids = NULL;
    q->sampling = r->sampling;
    q->sampling.bias = NULL;
    q->sampling.banned = NULL;
    q->sampling.n_banned = 0;
    RIDGE_TRY(sequence_init(&q->seq, r->prompt, (uint32_t)r->n_prompt, capacity_of(e, r),
                            e->params.block_size, e->model->n_groups, err));
    q->detok = engine_request_detokenizer(r, e->tokenizer);
    q->seq.priority = r->priority;
    q->seq.salt = r->cache_salt;
    /* Logits of the prompt come only of what is computed. */
    q->seq.kv.apart = r->no_cache;
    q->seq.no_match = r->no_cache || r->prompt_logprobs >= 0 || r->prompt_logits;
    if (r->explain) {
        q->seq.max_near = q->seq.n_prompt + NEAR_TOKENS;
        q->seq.near = mem_zalloc(q->seq.max_near, sizeof *q->seq.near);
        if (q->seq.near == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the request");
    }
    RIDGE_TRY(copy_array(r->sampling.bias, r->sampling.n_bias, sizeof *r->sampling.bias,
                         &q->sampling.bias, err));
    RIDGE_TRY(copy_array(r->stop_ids, r->n_stop_ids, sizeof *r->stop_ids, &q->given.stop_ids, err));
    RIDGE_TRY(speculation_attach(e, q, err));
    RIDGE_TRY(stop_filter_init(&q->stop, r->stop, r->n_stop, err));
    RIDGE_TRY(ban_ends(e, q, err));
    return count_prompt(e, q, err);
}

ridge_status request_create(request **out, engine *e, const engine_request *r, ridge_error *err) {
    RIDGE_TRY(check(e, r, err));
    request *q = mem_zalloc(1, sizeof *q);
    if (q == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the request");
    ridge_status status = fill(q, e, r, err);
    if (status != RIDGE_OK) {
        request_destroy(q);
        return status;
    }
    q->seq.id = atomic_fetch_add(&e->next_id, 1);
    q->arrived_s = clock_now_s();
    *out = q;
    return RIDGE_OK;
}

void request_destroy(request *q) {
    if (q == NULL) return;
    sequence_deinit(&q->seq);
    speculation_detach(q);
    sampler_counts_destroy(q->counts);
    stop_filter_deinit(&q->stop);
    mem_free((void *)q->sampling.bias);
    mem_free((void *)q->sampling.banned);
    mem_free((void *)q->given.stop_ids);
    buf_free(&q->said);
    mem_free(q);
}

bool request_is_end(const engine *e, const request *q, int32_t id) {
    for (size_t i = 0; i < q->given.n_stop_ids; i++)
        if (q->given.stop_ids[i] == id) return true;
    return !q->given.ignore_eos && tokenizer_is_eog(e->tokenizer, id);
}
