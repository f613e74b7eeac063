/* engine/engine: see engine.h. Opening and closing; the crank itself is step.c. */
#include "engine/engine_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define DEFAULT_KV_BYTES ((uint64_t)1 << 30) /* where the free memory is unknown */

engine_params engine_params_default(void) {
    engine_params p = {.max_num_seqs = 16, .max_num_batched_tokens = 512, .block_size = 16};
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
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < 1 || limits[i].value > limits[i].high) {
            error_where(err, limits[i].name);
            return RIDGE_FAIL(err, RIDGE_EINVAL, "%s must be between 1 and %u, found %u",
                              limits[i].name, limits[i].high, limits[i].value);
        }
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

/* The cache. */

static uint64_t blocks_for(const engine *e, uint64_t n_tokens) {
    return (n_tokens + e->params.block_size - 1) / e->params.block_size;
}

/* Every running sequence at its longest, but no more than half of the memory that is free. */
static uint64_t default_kv_bytes(const engine *e, uint64_t block_bytes, uint32_t context) {
    uint64_t available = mem_available_bytes(), most = DEFAULT_KV_BYTES;
    if (available > 0) most = available / 2;
    uint64_t blocks = blocks_for(e, context);
    if (blocks > most / block_bytes / e->params.max_num_seqs) return most;
    return blocks * e->params.max_num_seqs * block_bytes;
}

static ridge_status choose_context(engine *e, uint64_t n_blocks, ridge_error *err) {
    engine_params *p = &e->params;
    uint32_t wanted = p->max_model_len > 0 ? p->max_model_len : e->model->config.n_context;
    uint64_t holds = n_blocks * p->block_size;
    if (wanted > holds && (p->max_model_len > 0 || holds == 0))
        return RIDGE_FAIL(err, RIDGE_ENOMEM,
                          "the KV cache holds %llu tokens (%llu bytes each), fewer than a context "
                          "of %u; give it more memory (--kv-cache-memory-bytes) or shorten the "
                          "context (--max-model-len)",
                          (unsigned long long)holds, (unsigned long long)e->kv_token_bytes, wanted);
    if (wanted > holds) {
        log_printf(p->log, LOG_INFO, "context cut from %u to %llu tokens: all that the cache holds",
                   wanted, (unsigned long long)holds);
        wanted = (uint32_t)holds;
    }
    if (wanted > e->model->config.n_context)
        log_printf(p->log, LOG_WARN, "a context of %u tokens is beyond the model's %u", wanted,
                   e->model->config.n_context);
    p->max_model_len = wanted;
    return RIDGE_OK;
}

/* What was asked for by name must be there, used or not: a size beyond the machine is a slip that
 * is better said at the start. */
static ridge_status check_cache_memory(uint64_t bytes, ridge_error *err) {
    uint64_t available = mem_available_bytes();
    if (available == 0 || bytes <= available) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_ENOMEM,
                      "--kv-cache-memory-bytes: a KV cache of %llu bytes, but %llu bytes of memory "
                      "are free",
                      (unsigned long long)bytes, (unsigned long long)available);
}

static ridge_status open_cache(engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    dev_kv_layout *l = &e->kv_layout;
    *l = (dev_kv_layout){.n_groups = e->model->n_groups,
                         .block_size = p->block_size,
                         .type = p->precise ? DEV_KV_F32 : DEV_KV_F16};
    memcpy(l->groups, e->model->groups, sizeof l->groups);
    uint64_t block_bytes = 0;
    for (uint32_t g = 0; g < l->n_groups; g++) block_bytes += dev_kv_bytes_per_block(l, g);
    e->kv_token_bytes = block_bytes / p->block_size;

    uint32_t context = p->max_model_len > 0 ? p->max_model_len : e->model->config.n_context;
    uint64_t bytes =
        p->kv_cache_bytes > 0 ? p->kv_cache_bytes : default_kv_bytes(e, block_bytes, context);
    if (p->kv_cache_bytes > 0) RIDGE_TRY(check_cache_memory(bytes, err));
    uint64_t n_blocks = bytes / block_bytes, most = blocks_for(e, context) * p->max_num_seqs;
    if (n_blocks > most) n_blocks = most; /* more could never be used */
    if (n_blocks > INT32_MAX) n_blocks = INT32_MAX;
    RIDGE_TRY(choose_context(e, n_blocks, err));
    for (uint32_t g = 0; g < l->n_groups; g++) l->groups[g].n_blocks = (uint32_t)n_blocks;
    RIDGE_TRY(e->dev->vtable->kv_create(e->dev, &e->kv, l, err));
    sched_params s = {.max_num_seqs = p->max_num_seqs,
                      .max_num_batched_tokens = p->max_num_batched_tokens,
                      .block_size = p->block_size,
                      .n_blocks = (uint32_t)n_blocks,
                      .n_groups = l->n_groups};
    return sched_create(&e->sched, &s, err);
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
    return sampler_create(&e->sampler, (int32_t)n_vocab, err);
}

ridge_status engine_open(engine **out, const engine_params *p, ridge_error *err) {
    RIDGE_TRY(check_params(p, err));
    engine *e = mem_zalloc(1, sizeof *e);
    if (e == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the engine");
    e->params = *p;
    ridge_status status = open_model(e, err);
    if (status == RIDGE_OK) status = copy_texts(e, err);
    if (status == RIDGE_OK) status = open_cache(e, err);
    if (status == RIDGE_OK) status = make_scratch(e, err);
    if (status != RIDGE_OK) {
        engine_close(e);
        return status;
    }
    fingerprint_path numbers = {RIDGE_VERSION, engine_isa(e), e->kv_layout.type, e->params.precise};
    fingerprint_make(e->fingerprint, e->file, &numbers);
    if (p->peaks != NULL && !p->peaks(p->peaks_context, engine_isa(e), engine_n_threads(e),
                                      engine_weight_bytes(e), &e->peaks))
        e->peaks = (roof_peaks){0};
    e->params.model_path = e->params.cpu_affinity = NULL; /* the caller's; not needed any more */
    *out = e;
    return RIDGE_OK;
}

static void close_requests(engine *e) {
    while (e->live != NULL) {
        request *q = e->live;
        e->live = q->next;
        if (!q->cancelled) sched_remove(e->sched, &q->seq);
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
    sched_destroy(e->sched);
    sampler_destroy(e->sampler);
    if (e->kv != NULL) e->dev->vtable->kv_free(e->dev, e->kv);
    if (e->program != NULL) e->dev->vtable->compiled_free(e->dev, e->program);
    model_close(e->model);
    if (e->dev != NULL) e->dev->vtable->destroy(e->dev);
    tokenizer_close(e->tokenizer);
    gguf_close(e->file);
    mem_free(e->chat_template);
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
    *out = e->stats;
    out->n_waiting = engine_n_waiting(e);
    out->n_running = engine_n_running(e);
    out->turned_s = clock_now_s();
    out->kv_blocks = out->kv_blocks_used = 0;
    for (uint32_t g = 0; g < e->kv_layout.n_groups; g++) {
        uint32_t n = e->kv_layout.groups[g].n_blocks;
        out->kv_blocks += n;
        out->kv_blocks_used += n - sched_n_blocks_free(e->sched, g);
    }
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
    uint32_t whole = 0;
    for (uint32_t g = 1; g < l->n_groups; g++)
        if (l->groups[g].window == 0) whole = g;
    return (engine_cache_info){.block_size = l->block_size,
                               .n_blocks = l->groups[whole].n_blocks,
                               .type = l->type == DEV_KV_F32 ? "f32" : "f16"};
}
