/* engine/draft_model: see draft_model.h. */
#include "engine/draft_model.h"

#include <string.h>

#include "base/mem.h"

/* A job as it goes through the rounds. */
typedef struct {
    draft_job *job;
    bool active;
    bool was_new[DRAFT_MAX]; /* of each guess: whether counts had never seen it */
    uint32_t row;            /* of this round, whose logits give the next guess */
} runner;

struct draft_model {
    device *dev;
    gguf *file;
    model *model;
    dev_compiled *program;
    dev_kv *kv;
    dev_kv_layout layout;
    kv_pool *pools[DEV_MAX_GROUPS]; /* [layout.n_groups] */
    uint32_t max_rows, n_vocab;
    const log_sink *log;
    bool failed;
    /* scratch */
    int32_t *tokens, *positions; /* [max_rows] */
    dev_seq *seqs;               /* [max_num_seqs] */
    runner *runners;             /* [max_num_seqs] */
    float *logits;               /* [DEV_HEAD_ROWS, n_vocab] */
};

/* Opening. */

static ridge_status check_vocabulary(const tokenizer *a, const tokenizer *b, ridge_error *err) {
    int32_t n = tokenizer_n_vocab(a);
    error_where(err, "--speculative-model");
    if (tokenizer_n_vocab(b) != n)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "the draft model has %d tokens and the model %d: they must have the same "
                          "vocabulary",
                          tokenizer_n_vocab(b), n);
    for (int32_t id = 0; id < n; id++) {
        size_t n_a, n_b;
        const char *text_a = tokenizer_token_bytes(a, id, true, &n_a);
        const char *text_b = tokenizer_token_bytes(b, id, true, &n_b);
        if (n_a != n_b || memcmp(text_a, text_b, n_a) != 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "token %d is '%.*s' in the draft model and '%.*s' in the model: they "
                              "must have the same vocabulary",
                              id, (int)(n_b < 32 ? n_b : 32), text_b, (int)(n_a < 32 ? n_a : 32),
                              text_a);
    }
    return RIDGE_OK;
}

static ridge_status open_model(draft_model *d, const draft_model_params *p, ridge_error *err) {
    tokenizer *vocabulary = NULL;
    RIDGE_TRY(gguf_open(&d->file, p->path, err));
    RIDGE_TRY(tokenizer_open(&vocabulary, d->file, p->log, err));
    ridge_status status = check_vocabulary(p->target, vocabulary, err);
    tokenizer_close(vocabulary);
    RIDGE_TRY(status);
    RIDGE_TRY(model_open(&d->model, d->file, d->dev, p->log, err));
    d->n_vocab = d->model->config.n_vocab;
    if (d->n_vocab != p->n_vocab) {
        error_where(err, "--speculative-model");
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "the draft model has logits of %u tokens, the model %u", d->n_vocab,
                          p->n_vocab);
    }
    return d->dev->vtable->compile(d->dev, &d->program, &d->model->program, d->max_rows, err);
}

static ridge_status open_cache(draft_model *d, const draft_model_params *p, ridge_error *err) {
    d->layout = (dev_kv_layout){
        .n_groups = d->model->n_groups, .block_size = p->block_size, .type = p->kv_type};
    memcpy(d->layout.groups, d->model->groups, sizeof d->layout.groups);
    uint64_t available = mem_available_bytes(), bytes = 0, n_blocks = p->n_blocks;
    for (uint32_t g = 0; g < d->layout.n_groups; g++)
        bytes += dev_kv_bytes_per_block(&d->layout, g);
    if (available > 0 && n_blocks > available / 2 / bytes) n_blocks = available / 2 / bytes;
    if (n_blocks == 0) n_blocks = 1;
    for (uint32_t g = 0; g < d->layout.n_groups; g++) {
        d->layout.groups[g].n_blocks = (uint32_t)n_blocks;
        RIDGE_TRY(kv_pool_create(&d->pools[g], (uint32_t)n_blocks, err));
    }
    return d->dev->vtable->kv_create(d->dev, &d->kv, &d->layout, err);
}

static ridge_status make_scratch(draft_model *d, const draft_model_params *p, ridge_error *err) {
    d->tokens = mem_zalloc(d->max_rows, sizeof *d->tokens);
    d->positions = mem_zalloc(d->max_rows, sizeof *d->positions);
    d->seqs = mem_zalloc(p->max_num_seqs, sizeof *d->seqs);
    d->runners = mem_zalloc(p->max_num_seqs, sizeof *d->runners);
    d->logits = mem_zalloc((size_t)DEV_HEAD_ROWS * d->n_vocab, sizeof *d->logits);
    if (d->tokens == NULL || d->positions == NULL || d->seqs == NULL || d->runners == NULL ||
        d->logits == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the draft model's buffers");
    return RIDGE_OK;
}

ridge_status draft_model_open(draft_model **out, const draft_model_params *p, ridge_error *err) {
    draft_model *d = mem_zalloc(1, sizeof *d);
    if (d == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the draft model");
    d->dev = p->dev;
    d->log = p->log;
    d->max_rows =
        p->max_num_batched_tokens > p->max_num_seqs ? p->max_num_batched_tokens : p->max_num_seqs;
    ridge_status status = open_model(d, p, err);
    if (status == RIDGE_OK) status = open_cache(d, p, err);
    if (status == RIDGE_OK) status = make_scratch(d, p, err);
    if (status != RIDGE_OK) {
        draft_model_close(d);
        return status;
    }
    *out = d;
    return RIDGE_OK;
}

void draft_model_close(draft_model *d) {
    if (d == NULL) return;
    for (uint32_t g = 0; g < DEV_MAX_GROUPS; g++) kv_pool_destroy(d->pools[g]);
    if (d->kv != NULL) d->dev->vtable->kv_free(d->dev, d->kv);
    if (d->program != NULL) d->dev->vtable->compiled_free(d->dev, d->program);
    model_close(d->model);
    gguf_close(d->file);
    mem_free(d->tokens);
    mem_free(d->positions);
    mem_free(d->seqs);
    mem_free(d->runners);
    mem_free(d->logits);
    mem_free(d);
}

uint64_t draft_model_step_bytes(const draft_model *d) {
    return d->model->step_bytes;
}

/* The cache of a sequence. */

static uint32_t blocks_for(const draft_model *d, uint32_t n_tokens) {
    return kv_blocks_for(n_tokens, d->layout.block_size);
}

ridge_status draft_cache_init(draft_cache *c, const draft_model *d, uint32_t max_tokens,
                              ridge_error *err) {
    *c = (draft_cache){0};
    for (uint32_t g = 0; g < d->layout.n_groups; g++)
        RIDGE_TRY(kv_table_init(&c->tables[g], blocks_for(d, max_tokens), err));
    return RIDGE_OK;
}

void draft_cache_deinit(draft_cache *c) {
    for (uint32_t g = 0; g < DEV_MAX_GROUPS; g++) kv_table_deinit(&c->tables[g]);
}

void draft_cache_release(draft_cache *c, draft_model *d) {
    for (uint32_t g = 0; g < d->layout.n_groups; g++) kv_table_release(&c->tables[g], d->pools[g]);
    c->n_computed = 0;
}

void draft_cache_keep(draft_cache *c, uint32_t n_tokens) {
    if (c->n_computed > n_tokens) c->n_computed = n_tokens;
}

/* Blocks for n_tokens in every group, or for none. */
static bool cache_grow(draft_cache *c, draft_model *d, uint32_t n_tokens) {
    uint32_t need = blocks_for(d, n_tokens);
    for (uint32_t g = 0; g < d->layout.n_groups; g++)
        if (need > c->tables[g].n_blocks &&
            need - c->tables[g].n_blocks > kv_pool_n_free(d->pools[g]))
            return false;
    for (uint32_t g = 0; g < d->layout.n_groups; g++) {
        ridge_status status = kv_table_grow(&c->tables[g], d->pools[g], need);
        ridge_assert(status == RIDGE_OK); /* counted above */
    }
    return true;
}

/* Guessing. */

static void start(draft_model *d, runner *r, draft_job *job) {
    uint32_t n_guesses = job->n_wanted > 0 ? job->n_wanted - 1 : 0; /* the last is not computed */
    *r = (runner){.job = job};
    job->n = 0;
    r->active = job->cache->n_computed < job->seq->n_tokens &&
                cache_grow(job->cache, d, job->seq->n_tokens + n_guesses);
}

/* Adds what the cache lacks, as much as fits into the batch, and asks for the logits of the last.
 */
static void add_rows(draft_model *d, runner *r, dev_batch *batch) {
    const sequence *s = r->job->seq;
    draft_cache *c = r->job->cache;
    uint32_t end = s->n_tokens + r->job->n, room = d->max_rows - batch->n_tokens;
    uint32_t n = end - c->n_computed < room ? end - c->n_computed : room;
    if (n == 0) {
        r->active = false;
        return;
    }
    dev_seq *q = &d->seqs[batch->n_seqs++];
    *q = (dev_seq){.first_row = batch->n_tokens, .n_rows = n, .n_context = c->n_computed + n};
    for (uint32_t g = 0; g < d->layout.n_groups; g++) q->blocks[g] = c->tables[g].blocks;
    for (uint32_t p = c->n_computed; p < q->n_context; p++) {
        d->tokens[batch->n_tokens] =
            p < s->n_tokens ? s->tokens[p] : r->job->guesses[p - s->n_tokens];
        d->positions[batch->n_tokens++] = (int32_t)p;
    }
    c->n_computed += n;
    r->row = batch->n_tokens - 1;
    r->active = c->n_computed == end && r->job->n < r->job->n_wanted;
}

static void draw(sampler *s, runner *r, const float *logits) {
    draft_job *job = r->job;
    sampler_params p = *job->sampling;
    sampler_result drawn;
    p.n_logprobs = -1;
    if (job->n >= job->n_free) p.n_banned = 0;
    sampler_draw(s, &p, job->counts, logits, (uint64_t)job->seq->n_tokens + job->n, &drawn);
    if (job->counts != NULL) r->was_new[job->n] = sampler_counts_add(job->counts, drawn.id, true);
    job->guesses[job->n++] = drawn.id;
    r->active = job->n < job->n_wanted;
}

static void forget_guesses(runner *r) {
    draft_job *job = r->job;
    for (uint32_t i = job->n; job->counts != NULL && i-- > 0;)
        sampler_counts_undo(job->counts, job->guesses[i], r->was_new[i]);
}

static void add_account(draft_model *d, draft_work *work) {
    dev_account a = {0};
    d->dev->vtable->account(d->dev, &a);
    dev_account_add(&work->account, &a);
}

static ridge_status draw_all(draft_model *d, sampler *s, uint32_t n, ridge_error *err) {
    const device_vtable *dev = d->dev->vtable;
    for (uint32_t i = 0; i < n;) {
        uint32_t rows[DEV_HEAD_ROWS], of[DEV_HEAD_ROWS], n_rows = 0;
        for (; i < n && n_rows < DEV_HEAD_ROWS; i++) {
            if (!d->runners[i].active) continue;
            of[n_rows] = i;
            rows[n_rows++] = d->runners[i].row;
        }
        if (n_rows == 0) break;
        RIDGE_TRY(dev->head(d->dev, d->program, rows, n_rows, d->logits, err));
        for (uint32_t k = 0; k < n_rows; k++)
            draw(s, &d->runners[of[k]], d->logits + (size_t)k * d->n_vocab);
    }
    return RIDGE_OK;
}

/* One forward, and a guess for each that it brought up to its end; false when nobody needs one. */
static bool run_round(draft_model *d, sampler *s, uint32_t n, draft_work *work) {
    const device_vtable *dev = d->dev->vtable;
    dev_batch batch = {.tokens = d->tokens, .positions = d->positions, .seqs = d->seqs};
    ridge_error err = {0};
    for (uint32_t i = 0; i < n; i++)
        if (d->runners[i].active) add_rows(d, &d->runners[i], &batch);
    if (batch.n_tokens == 0) return false;
    ridge_status status = dev->submit(d->dev, d->program, d->kv, &batch, &err);
    if (status == RIDGE_OK) status = dev->wait(d->dev, &err);
    if (status == RIDGE_OK) status = draw_all(d, s, n, &err);
    add_account(d, work);
    work->n_rounds++;
    work->n_rows += batch.n_tokens;
    if (status == RIDGE_OK) return true;
    log_printf(d->log, LOG_WARN, "the draft model is off from now on: %s", err.text);
    d->failed = true;
    return false;
}

draft_work draft_model_guess(draft_model *d, sampler *s, draft_job *jobs, uint32_t n) {
    draft_work work = {0};
    if (d->failed) n = 0;
    for (uint32_t i = 0; i < n; i++) start(d, &d->runners[i], &jobs[i]);
    for (bool more = n > 0; more;) more = run_round(d, s, n, &work);
    for (uint32_t i = 0; i < n; i++) {
        forget_guesses(&d->runners[i]);
        if (d->failed) jobs[i].n = 0;
    }
    return work;
}
