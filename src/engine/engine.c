/* engine/engine: see engine.h. Opening and closing; the crank itself is step.c. */
#include "engine/engine_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/prefix_file.h"
#include "engine/slo.h"

engine_params engine_params_default(void) {
    engine_params p = {.max_num_seqs = 16,
                       .max_num_batched_tokens = 512,
                       .block_size = 16,
                       .prefix_caching = true};
#ifdef RIDGE_CHECKS
    p.checks = true;
#endif
    return p;
}

static ridge_status check_params(const engine_params *p, ridge_error *err) {
    const struct {
        const char *name;
        uint32_t value, high;
    } limits[] = {{"max_num_seqs", p->max_num_seqs, ENGINE_MAX_SEQS},
                  {"max_num_batched_tokens", p->max_num_batched_tokens, ENGINE_MAX_BATCHED_TOKENS},
                  {"block_size", p->block_size, ENGINE_MAX_BLOCK_SIZE}};
    if (p->num_speculative_tokens > ENGINE_MAX_DRAFT)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "num_speculative_tokens must be between 0 and %d, found %u",
                          ENGINE_MAX_DRAFT, p->num_speculative_tokens);
    if (p->speculative_ngram && p->speculative_model != NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "guesses come from n-grams or from a draft model, not from both");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < 1 || limits[i].value > limits[i].high) {
            error_where(err, limits[i].name);
            return RIDGE_FAIL(err, RIDGE_EINVAL, "%s must be between 1 and %u, found %u",
                              limits[i].name, limits[i].high, limits[i].value);
        }
    RIDGE_TRY(slo_check_params(p, err));
    const int threads[] = {p->n_threads, p->n_threads_batch};
    for (int i = 0; i < 2; i++)
        if (threads[i] < 0 || threads[i] > ENGINE_MAX_THREADS)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "threads must be between 0 and %d, found %d",
                              ENGINE_MAX_THREADS, threads[i]);
    return RIDGE_OK;
}

static ridge_status open_model(engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    RIDGE_TRY(gguf_open(&e->file, p->model_path, err));
    RIDGE_TRY(tokenizer_open(&e->tokenizer, e->file, p->log, err));
    device_cpu_params cpu = {.n_threads = p->n_threads,
                             .n_threads_batch = p->n_threads_batch,
                             .cpu_affinity = p->cpu_affinity,
                             .isa = p->isa,
                             .precise = p->precise};
    RIDGE_TRY(device_cpu_create(&e->dev, &cpu, err));
    RIDGE_TRY(model_open(&e->model, e->file, e->dev, p->log, err));
    if (tokenizer_n_vocab(e->tokenizer) > engine_n_vocab(e))
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "tokenizer.ggml.tokens: %d tokens, but token_embd.weight has %d rows",
                          tokenizer_n_vocab(e->tokenizer), engine_n_vocab(e));
    return e->dev->vtable->compile(e->dev, &e->program, &e->model->program,
                                   p->max_num_batched_tokens, err);
}

static ridge_status copy_texts(engine *e, ridge_error *err) {
    gguf_string s;
    if (gguf_get_string(e->file, "tokenizer.chat_template", &s)) {
        e->chat_template = mem_strndup(s.data, s.len);
        if (e->chat_template == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the chat template");
    }
    int32_t n = tokenizer_n_vocab(e->tokenizer);
    for (int32_t id = 0; id < n; id++) e->n_end_ids += tokenizer_is_eog(e->tokenizer, id);
    e->end_ids = mem_zalloc(e->n_end_ids, sizeof *e->end_ids);
    if (e->end_ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the end tokens");
    for (int32_t id = 0, i = 0; id < n; id++)
        if (tokenizer_is_eog(e->tokenizer, id)) e->end_ids[i++] = id;
    return RIDGE_OK;
}

static ridge_status make_scratch(engine *e, ridge_error *err) {
    size_t n_tokens = e->params.max_num_batched_tokens, n_seqs = e->params.max_num_seqs;
    size_t n_vocab = (size_t)engine_n_vocab(e);
    e->max_events = 2 * (n_tokens + n_seqs) + 64; /* half of it for those cancelled */
    e->tokens = mem_zalloc(n_tokens, sizeof *e->tokens);
    e->positions = mem_zalloc(n_tokens, sizeof *e->positions);
    e->dev_seqs = mem_zalloc(n_seqs, sizeof *e->dev_seqs);
    e->wanted = mem_zalloc(n_tokens, sizeof *e->wanted);
    e->finished = mem_zalloc(n_seqs, sizeof *e->finished);
    e->logits = mem_zalloc(DEV_HEAD_ROWS * n_vocab, sizeof *e->logits);
    e->events = mem_zalloc(e->max_events, sizeof *e->events);
    e->event_text = mem_zalloc(e->max_events, sizeof *e->event_text);
    if (e->tokens == NULL || e->positions == NULL || e->dev_seqs == NULL || e->wanted == NULL ||
        e->finished == NULL || e->logits == NULL || e->events == NULL || e->event_text == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine's buffers");
    return draw_open(e, err);
}

#define PREFIX_FILE_BYTES ((uint64_t)1 << 30)

/* What cannot be read is said, and the cache starts cold. */
static ridge_status read_prefixes(engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    uint64_t n_tokens;
    ridge_error why = {0};
    if (p->prefix_cache_file == NULL || !p->prefix_caching) return RIDGE_OK;
    e->prefix_cache_file = mem_strdup(p->prefix_cache_file);
    if (e->prefix_cache_file == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine");
    ridge_status status = prefix_file_read(e, p->prefix_cache_file, &n_tokens, &why);
    if (status == RIDGE_OK)
        log_printf(p->log, LOG_INFO, "prefix cache: %llu tokens out of %s",
                   (unsigned long long)n_tokens, p->prefix_cache_file);
    bool ours = status == RIDGE_OK || status == RIDGE_ENOTFOUND || status == RIDGE_EFORMAT;
    if (status != RIDGE_OK && status != RIDGE_ENOTFOUND)
        log_printf(p->log, LOG_WARN, "the prefix cache starts empty: %s%s", why.text,
                   ours ? "" : "; it will be left as it is");
    if (!ours) { /* a pipe, a device, another kind of file, one of someone else */
        mem_free(e->prefix_cache_file);
        e->prefix_cache_file = NULL;
    }
    return RIDGE_OK;
}

static void write_prefixes(engine *e) {
    uint64_t n_tokens, max_bytes = e->params.prefix_cache_file_bytes;
    ridge_error err = {0};
    if (e->prefix_cache_file == NULL) return;
    if (max_bytes == 0) max_bytes = PREFIX_FILE_BYTES;
    if (prefix_file_write(e, e->prefix_cache_file, max_bytes, &n_tokens, &err) != RIDGE_OK)
        log_printf(e->params.log, LOG_WARN, "the prefix cache is not kept: %s", err.text);
    else if (n_tokens > 0)
        log_printf(e->params.log, LOG_INFO, "prefix cache: %llu tokens into %s",
                   (unsigned long long)n_tokens, e->prefix_cache_file);
}

ridge_status engine_open(engine **out, const engine_params *p, ridge_error *err) {
    RIDGE_TRY(check_params(p, err));
    engine *e = mem_zalloc(1, sizeof *e);
    if (e == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine");
    e->params = *p;
    if (p->static_batches) e->params.prefix_caching = false;
    ridge_status status = open_model(e, err);
    if (status == RIDGE_OK) status = copy_texts(e, err);
    if (status == RIDGE_OK) status = engine_open_cache(e, err);
    if (status == RIDGE_OK) status = make_scratch(e, err);
    if (status == RIDGE_OK) status = speculation_open(&e->speculation, e, err);
    if (status != RIDGE_OK) {
        engine_close(e);
        return status;
    }
    fingerprint_path numbers = {RIDGE_VERSION, engine_isa(e), e->kv_layout.type, e->params.precise};
    fingerprint_make(e->fingerprint, e->file, &numbers);
    status = read_prefixes(e, err);
    if (status != RIDGE_OK) {
        engine_close(e);
        return status;
    }
    if (p->peaks != NULL && !p->peaks(p->peaks_context, engine_isa(e), engine_n_threads(e),
                                      engine_weight_bytes(e), &e->peaks))
        e->peaks = (roof_peaks){0};
    cost_shape shape = slo_cost_shape(e);
    sched_set_cost(e->sched, &shape, p->slo_tpot_s);
    e->params.model_path = e->params.cpu_affinity = e->params.prefix_cache_file =
        e->params.speculative_model = NULL; /* the caller's; not needed any more */
    *out = e;
    return RIDGE_OK;
}

static void close_requests(engine *e) {
    while (e->live != NULL) {
        request *q = e->live;
        e->live = q->next;
        if (!q->cancelled) sched_remove(e->sched, &q->seq);
        speculation_release(e, q);
        request_destroy(q);
    }
    while (e->padding != NULL) {
        request *q = e->padding;
        e->padding = q->next;
        sched_remove(e->sched, &q->seq);
        request_destroy(q);
    }
    while (e->done != NULL) {
        request *q = e->done;
        e->done = q->next;
        request_destroy(q);
    }
}

void engine_close(engine *e) {
    if (e == NULL) return;
    close_requests(e);
    write_prefixes(e);
    speculation_close(e->speculation);
    sched_destroy(e->sched);
    draw_close(e);
    if (e->kv != NULL) e->dev->vtable->kv_free(e->dev, e->kv);
    if (e->program != NULL) e->dev->vtable->compiled_free(e->dev, e->program);
    model_close(e->model);
    if (e->dev != NULL) e->dev->vtable->destroy(e->dev);
    tokenizer_close(e->tokenizer);
    gguf_close(e->file);
    mem_free(e->chat_template);
    mem_free(e->prefix_cache_file);
    mem_free(e->end_ids);
    mem_free(e->tokens);
    mem_free(e->positions);
    mem_free(e->dev_seqs);
    mem_free(e->wanted);
    mem_free(e->finished);
    mem_free(e->logits);
    mem_free(e->events);
    mem_free(e->event_text);
    buf_free(&e->text);
    buf_free(&e->piece);
    mem_free(e);
}

ridge_status engine_submit(engine *e, const engine_request *r, uint64_t *id, ridge_error *err) {
    request *q;
    RIDGE_TRY(request_create(&q, e, r, err));
    *id = q->seq.id;
    engine_enqueue(e, q);
    return RIDGE_OK;
}

void engine_get_stats(const engine *e, engine_stats *out) {
    *out = e->stats; /* what is counted below is 0 there */
    out->n_waiting = engine_n_waiting(e);
    out->n_running = engine_n_running(e);
    out->turned_s = clock_now_s();
    const kv_cache *cache = sched_cache(e->sched);
    sched_cache_use use = sched_get_cache_use(e->sched);
    out->kv_tokens_reserved = use.reserved;
    out->kv_tokens_used = use.used;
    out->step_predictions = sched_cost(e->sched)->n_steps;
    out->step_error_sum = sched_cost(e->sched)->error_sum;
    for (uint32_t g = 0; g < e->kv_layout.n_groups; g++) {
        out->kv_blocks += e->kv_layout.groups[g].n_blocks;
        out->kv_blocks_used += e->kv_layout.groups[g].n_blocks - kv_cache_n_available(cache, g);
        uint32_t n_cached = kv_pool_n_cached(kv_cache_pool(cache, g));
        out->kv_blocks_cached += n_cached;
        out->kv_bytes_cached += n_cached * dev_kv_bytes_per_block(&e->kv_layout, g);
    }
    sched_prefix_stats prefix = sched_get_prefix_stats(e->sched);
    out->prefix_queries = prefix.queries;
    out->prefix_hits = prefix.hits;
    out->kv_blocks_evicted = kv_cache_n_evicted(cache);
}

size_t engine_profile_take(engine *e, dev_profile_row *out, size_t max) {
    return e->dev->vtable->profile(e->dev, e->program, out, max);
}

void engine_account_take(engine *e, engine_account *out) {
    *out = e->account;
    e->account = (engine_account){0};
}

void engine_on_logits(engine *e, engine_logits_fn fn, void *context) {
    e->on_logits = fn;
    e->on_logits_context = context;
}

size_t engine_n_waiting(const engine *e) {
    return sched_n_waiting(e->sched);
}

size_t engine_n_running(const engine *e) {
    return sched_n_running(e->sched);
}

const tokenizer *engine_tokenizer(const engine *e) {
    return e->tokenizer;
}

const char *engine_chat_template(const engine *e) {
    return e->chat_template;
}

int32_t engine_n_vocab(const engine *e) {
    return (int32_t)e->model->config.n_vocab;
}

uint32_t engine_max_model_len(const engine *e) {
    return e->params.max_model_len;
}

const char *engine_fingerprint(const engine *e) {
    return e->fingerprint;
}

const char *engine_isa(const engine *e) {
    return device_cpu_isa(e->dev);
}

device *engine_device(const engine *e) {
    return e->dev;
}

int engine_n_threads(const engine *e) {
    return device_cpu_threads(e->dev);
}

uint64_t engine_n_parameters(const engine *e) {
    return e->model->n_parameters;
}

uint64_t engine_weight_bytes(const engine *e) {
    return e->model->step_bytes;
}

uint64_t engine_kv_bytes_per_token(const engine *e) {
    return e->kv_token_bytes;
}

void engine_peaks(const engine *e, double *bytes_per_s, double *flops_per_s) {
    *bytes_per_s = e->peaks.read_bytes_per_s;
    *flops_per_s = e->params.precise ? e->peaks.f32_flops_per_s : e->peaks.int8_ops_per_s;
}

engine_cache_info engine_get_cache_info(const engine *e) {
    const dev_kv_layout *l = &e->kv_layout;
    return (engine_cache_info){.block_size = l->block_size,
                               .n_blocks = kv_cache_capacity(sched_cache(e->sched)),
                               .type = dev_kv_type_name(l->type),
                               .prefix_caching = e->params.prefix_caching};
}
