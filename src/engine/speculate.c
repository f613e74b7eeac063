/* engine/speculate: see speculate.h. */
#include "engine/speculate.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

_Static_assert(DRAFT_MAX == ENGINE_MAX_DRAFT, "what is counted apart is what can be verified");

#define OWN_FADE 24.0f
#define ALL_FADE 512.0f
#define ASSUMED_WEIGHT 8.0f
#define LOOK_AGAIN 64    /* steps in which guesses were declined, before their cost is tried */
#define TRIAL_SHARE 0.01 /* of the time, for trials of a draft model that does not pay */
#define TRIAL_LENGTH 2u  /* guesses of a trial */
#define LEAST_REMAINING                                                                            \
    32u                /* tokens that an answer is expected to go on for, or as long as it is */
#define FAR_BEHIND 32u /* tokens: catching up is no part of the next round any more */

struct speculation {
    draft_model *model;   /* NULL: n-grams */
    uint32_t n_fixed;     /* guesses of each step; 0: chosen */
    draft_record all;     /* of all sequences */
    step_time time;       /* of the target's steps */
    step_time draft_time; /* of the draft model's rounds, by their rows */
    double weight_share; /* of the draft model's weights in the target's: of the time, until seen */
    draft_costs costs;   /* of this step */
    draft_work work;     /* of the draft model in this step */
    double work_s;
    speculation_fn source; /* NULL: n-grams */
    void *source_context;
    /* scratch */
    uint32_t max_candidates, n_candidates;
    request **candidates;     /* [max_candidates] sequences that the step will give one token */
    float (*used)[DRAFT_MAX]; /* [max_candidates] chances, see draft_length.h */
    uint32_t *lengths;        /* [max_candidates] */
    draft_job *jobs;          /* [max_candidates] */
};

/* What is assumed of guesses by class until they are seen. n-grams: measured on answers of two
 * models; class 0 is a source kept after an edit. */
static const float assumed_ngram[DRAFT_CLASSES] = {.25f, .45f, .55f, .7f,  .8f,
                                                   .8f,  .88f, .93f, .93f, .98f};
#define ASSUMED_MODEL 0.6f

static uint8_t class_of(uint32_t length) {
    static const uint8_t first[DRAFT_CLASSES] = {0, 2, 3, 4, 5, 7, 10, 16, 24, 32};
    uint8_t class = DRAFT_CLASSES - 1;
    while (length < first[class]) class --;
    return class;
}

/* Opening. */

/* As many as all running sequences could use, but no more than the target's cache has. */
static uint32_t blocks_for_all(const engine *e) {
    const engine_params *p = &e->params;
    uint64_t n = (uint64_t)kv_blocks_for(p->max_model_len, p->block_size) * p->max_num_seqs;
    uint32_t most = kv_cache_capacity(sched_cache(e->sched));
    return n < most ? (uint32_t)n : most;
}

static ridge_status open_draft_model(speculation *s, const engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    draft_model_params d = {.path = p->speculative_model,
                            .dev = e->dev,
                            .target = e->tokenizer,
                            .n_vocab = e->model->config.n_vocab,
                            .kv_type = e->kv_layout.type,
                            .block_size = p->block_size,
                            .n_blocks = blocks_for_all(e),
                            .max_num_seqs = p->max_num_seqs,
                            .max_num_batched_tokens = p->max_num_batched_tokens,
                            .log = p->log};
    RIDGE_TRY(draft_model_open(&s->model, &d, err));
    s->weight_share = (double)draft_model_step_bytes(s->model) / (double)engine_weight_bytes(e);
    return RIDGE_OK;
}

static ridge_status fill(speculation *s, const engine *e, ridge_error *err) {
    s->n_fixed = e->params.num_speculative_tokens;
    s->max_candidates = e->params.max_num_seqs;
    s->candidates = mem_zalloc(s->max_candidates, sizeof *s->candidates);
    s->used = mem_zalloc(s->max_candidates, sizeof *s->used);
    s->lengths = mem_zalloc(s->max_candidates, sizeof *s->lengths);
    s->jobs = mem_zalloc(s->max_candidates, sizeof *s->jobs);
    if (s->candidates == NULL || s->used == NULL || s->lengths == NULL || s->jobs == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the buffers of speculative decoding");
    if (e->params.speculative_model != NULL) RIDGE_TRY(open_draft_model(s, e, err));
    for (uint32_t c = 0; c < DRAFT_CLASSES; c++) {
        float chance = s->model != NULL ? ASSUMED_MODEL : assumed_ngram[c];
        s->all.classes[c].n = ASSUMED_WEIGHT;
        s->all.classes[c].hits = ASSUMED_WEIGHT * chance;
    }
    return RIDGE_OK;
}

ridge_status speculation_open(speculation **out, const engine *e, ridge_error *err) {
    const engine_params *p = &e->params;
    *out = NULL;
    if (!p->speculative_ngram && p->speculative_model == NULL) return RIDGE_OK;
    speculation *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "speculative decoding");
    ridge_status status = fill(s, e, err);
    if (status != RIDGE_OK) {
        speculation_close(s);
        return status;
    }
    *out = s;
    return RIDGE_OK;
}

void speculation_close(speculation *s) {
    if (s == NULL) return;
    draft_model_close(s->model);
    mem_free(s->candidates);
    mem_free(s->used);
    mem_free(s->lengths);
    mem_free(s->jobs);
    mem_free(s);
}

ridge_status speculation_attach(const engine *e, request *q, ridge_error *err) {
    const speculation *s = e->speculation;
    if (s == NULL || q->given.prompt_only) return RIDGE_OK;
    uint32_t max_tokens = q->seq.max_tokens;
    if (s->model != NULL) return draft_cache_init(&q->drafts.cache, s->model, max_tokens, err);
    return ngram_create(&q->drafts.ngram, max_tokens, err);
}

void speculation_detach(request *q) {
    ngram_destroy(q->drafts.ngram);
    draft_cache_deinit(&q->drafts.cache);
}

void speculation_release(engine *e, request *q) {
    speculation *s = e->speculation;
    if (s != NULL && s->model != NULL) draft_cache_release(&q->drafts.cache, s->model);
}

void speculation_set_source(speculation *s, speculation_fn fn, void *context) {
    s->source = fn;
    s->source_context = context;
}

/* What came of the last guesses. */

/* Compares them with the tokens that have come since, verified or not, as far as they were right.
 */
static void learn(speculation *s, request *q) {
    request_drafts *d = &q->drafts;
    uint32_t n_right = 0, n_new = q->seq.n_tokens - d->n_then;
    bool right = true;
    for (uint32_t i = 0; i < d->n_guesses && i < n_new && right; i++) {
        right = d->guesses[i] == q->seq.tokens[d->n_then + i];
        n_right += right;
        draft_record_add(&d->record, d->classes[i], right, OWN_FADE);
        draft_record_add(&s->all, d->classes[i], right, ALL_FADE);
    }
    if (s->model != NULL && d->n_guesses > 0) draft_cache_keep(&d->cache, d->n_then + n_right);
    d->n_guesses = 0;
}

/* Who may be guessed for. */

/* Guesses that could be used: the last token of an answer needs no row of its own. */
static uint32_t room_of(const request *q) {
    uint32_t n = q->seq.max_tokens - q->seq.n_tokens - 1;
    return n < DRAFT_MAX ? n : DRAFT_MAX;
}

/* Those that lack one token; *n_prompt_rows: of running ones that lack more. */
static uint32_t gather(engine *e, uint32_t *n_prompt_rows) {
    speculation *s = e->speculation;
    s->n_candidates = *n_prompt_rows = 0;
    for (request *q = e->live; q != NULL; q = q->next) {
        learn(s, q);
        if (q->seq.state != SEQUENCE_RUNNING) speculation_release(e, q);
        if (q->seq.state != SEQUENCE_RUNNING) continue;
        uint32_t lacks = q->seq.n_tokens - q->seq.n_computed;
        if (lacks > 1) *n_prompt_rows += lacks;
        if (lacks == 1 && !q->given.prompt_only) s->candidates[s->n_candidates++] = q;
    }
    return s->n_candidates;
}

/* Their chances. */

static void guess_alone(speculation *s, request *q) {
    request_drafts *d = &q->drafts;
    uint32_t n = q->seq.n_tokens, length = 2;
    if (s->source != NULL)
        d->n_guesses = s->source(s->source_context, q->seq.tokens, n, DRAFT_MAX, d->guesses);
    else
        d->n_guesses = ngram_guess(d->ngram, q->seq.tokens, n, DRAFT_MAX, d->guesses, &length);
    d->n_then = n;
    for (uint32_t i = 0; i < d->n_guesses; i++) d->classes[i] = class_of(length + i);
}

/* The chances of its guesses, as many as it may have; a draft model's are not made yet. */
static void reckon(const speculation *s, const request *q, float used[DRAFT_MAX]) {
    const request_drafts *d = &q->drafts;
    double chance = 1;
    uint32_t n = s->model != NULL ? DRAFT_MAX : d->n_guesses;
    uint32_t most = draft_allowance_length(d->allowance, &s->costs);
    if (most > room_of(q)) most = room_of(q);
    memset(used, 0, DRAFT_MAX * sizeof *used);
    for (uint32_t i = 0; i < n && i < most; i++) {
        chance *= draft_record_chance(&d->record, &s->all, s->model != NULL ? 0 : d->classes[i]);
        used[i] = (float)chance;
    }
}

/* Their number. */

static uint32_t lag_of(const request *q) {
    return q->seq.n_tokens - q->drafts.cache.n_computed;
}

/* Of one round of the draft model with a row of each candidate. */
static double round_seconds(const speculation *s) {
    if (s->draft_time.level > 0) return step_time_of(&s->draft_time, s->n_candidates);
    return s->weight_share * step_time_of(&s->time, s->n_candidates);
}

static double catch_up_seconds(const speculation *s, uint32_t n_tokens) {
    if (s->draft_time.row_s > 0) return n_tokens * s->draft_time.row_s;
    return n_tokens * s->weight_share * step_time_of_row(&s->time);
}

/* Does the time that guesses would save of what is left of the answer pay for computing all of the
 * text so far in the draft model first, twice over? */
static bool pays_to_catch_up(const draft_costs *c, const speculation *s, const request *q,
                             const float used[DRAFT_MAX]) {
    uint32_t left = q->seq.max_tokens - q->seq.n_tokens, length;
    uint32_t remaining = q->n_output > LEAST_REMAINING ? q->n_output : LEAST_REMAINING;
    if (remaining > left) remaining = left;
    draft_costs alone = *c;
    alone.n_sequences = 1;
    double rate = draft_length_choose(&alone, (const float(*)[DRAFT_MAX])used, 1, &length);
    double saved = remaining * step_time_of(&s->time, c->n_sequences) * (1 - 1 / rate);
    return saved > 2 * catch_up_seconds(s, lag_of(q));
}

/* Is it time to try a draft model again that did not pay? */
static bool trial_is_due(const draft_costs *c, const speculation *s, const request *q) {
    double cost = TRIAL_LENGTH * c->round_s + catch_up_seconds(s, lag_of(q));
    double share = step_time_of(&s->time, c->n_sequences) / c->n_sequences;
    return q->drafts.n_declined * share * TRIAL_SHARE > cost;
}

static void choose_for_model(speculation *s) {
    const draft_costs *c = &s->costs;
    uint32_t n = s->n_candidates;
    for (uint32_t i = 0; i < n; i++)
        if (lag_of(s->candidates[i]) > FAR_BEHIND &&
            !pays_to_catch_up(c, s, s->candidates[i], s->used[i]))
            s->used[i][0] = 0;
    draft_length_choose(c, (const float(*)[DRAFT_MAX])s->used, n, s->lengths);
    for (uint32_t i = 0; i < n; i++) {
        request *q = s->candidates[i];
        if (s->lengths[i] > 0 || !trial_is_due(c, s, q)) continue;
        s->lengths[i] = room_of(q) < TRIAL_LENGTH ? room_of(q) : TRIAL_LENGTH;
    }
}

/* Have n-grams' guesses been declined for so long that it is time to try what they cost? */
static bool is_hopeful(const speculation *s) {
    if (s->model != NULL) return false;
    for (uint32_t i = 0; i < s->n_candidates; i++)
        if (s->candidates[i]->drafts.n_declined >= LOOK_AGAIN) return true;
    return false;
}

static void choose_for_ngrams(speculation *s) {
    uint32_t n = s->n_candidates;
    draft_length_choose(&s->costs, (const float(*)[DRAFT_MAX])s->used, n, s->lengths);
    for (uint32_t i = 0; i < n && s->costs.hopeful; i++) s->candidates[i]->drafts.n_declined = 0;
}

static void choose(engine *e, uint32_t n_prompt_rows) {
    speculation *s = e->speculation;
    uint32_t n = s->n_candidates, room = e->params.max_num_batched_tokens;
    s->costs = (draft_costs){.time = &s->time,
                             .n_sequences = n,
                             .n_prompt_rows = n_prompt_rows,
                             .round_s = s->model != NULL ? round_seconds(s) : 0,
                             .max_rows = room > n ? room - n : 0,
                             .hopeful = is_hopeful(s)};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = room_of(s->candidates[i]);
        reckon(s, s->candidates[i], s->used[i]);
        s->lengths[i] = s->n_fixed < most ? s->n_fixed : most;
    }
    if (s->n_fixed > 0) return;
    if (s->model != NULL)
        choose_for_model(s);
    else
        choose_for_ngrams(s);
}

/* The guesses themselves. */

static void guess_by_model(engine *e) {
    speculation *s = e->speculation;
    uint32_t n_jobs = 0;
    for (uint32_t i = 0; i < s->n_candidates; i++) {
        request *q = s->candidates[i];
        uint32_t min_tokens = q->given.min_tokens;
        if (s->lengths[i] == 0) continue;
        q->drafts.n_then = q->seq.n_tokens;
        s->jobs[n_jobs++] =
            (draft_job){.seq = &q->seq,
                        .cache = &q->drafts.cache,
                        .sampling = &q->sampling,
                        .counts = q->counts,
                        .n_free = min_tokens > q->n_output ? min_tokens - q->n_output : 0,
                        .n_wanted = s->lengths[i],
                        .guesses = q->drafts.guesses};
    }
    if (n_jobs == 0) return;
    double start = clock_now_s();
    s->work = draft_model_guess(s->model, e->samplers[0], s->jobs, n_jobs);
    s->work_s = clock_now_s() - start;
    for (uint32_t i = 0, k = 0; i < s->n_candidates; i++)
        if (s->lengths[i] > 0) s->candidates[i]->drafts.n_guesses = s->jobs[k++].n;
    if (s->work.n_rounds == 0) return;
    uint32_t rows = s->work.n_rows / s->work.n_rounds;
    if (rows <= 2 * n_jobs)
        step_time_add(&s->draft_time, rows, s->work_s / s->work.n_rounds);
    else
        step_time_add_prompt(&s->draft_time, s->work.n_rows, s->work_s);
}

/* Puts them after the tokens; nothing is worth verifying after a token that ends the text. */
static void put_guesses(engine *e, request *q, uint32_t length) {
    request_drafts *d = &q->drafts;
    uint32_t n = length < d->n_guesses ? length : d->n_guesses;
    for (uint32_t i = 0; i < n; i++) {
        q->seq.tokens[q->seq.n_tokens + i] = d->guesses[i];
        if (request_is_end(e, q, d->guesses[i])) n = i + 1;
    }
    q->seq.n_draft = n;
    if (n > 0)
        d->n_declined = 0;
    else if (d->n_guesses > 0 || e->speculation->model != NULL)
        d->n_declined++;
}

void speculation_guess(engine *e) {
    speculation *s = e->speculation;
    uint32_t n_prompt_rows;
    if (s == NULL) return;
    s->work = (draft_work){0};
    s->work_s = 0;
    if (gather(e, &n_prompt_rows) == 0) return;
    for (uint32_t i = 0; i < s->n_candidates && s->model == NULL; i++)
        guess_alone(s, s->candidates[i]);
    choose(e, n_prompt_rows);
    if (s->model != NULL) guess_by_model(e);
    for (uint32_t i = 0; i < s->n_candidates; i++) put_guesses(e, s->candidates[i], s->lengths[i]);
}

bool speculation_came_true(request *q, int32_t id) {
    if (q->seq.n_draft == 0 || q->seq.tokens[q->seq.n_tokens] != id) return false;
    q->seq.n_draft--;
    return true;
}

/* What came of it. */

/* Guesses of q in this step. */
static uint32_t n_verified(const request *q) {
    return q->drafts.n_guesses > 0 && q->drafts.n_then == q->seq.n_computed + 1
               ? q->seq.n_scheduled - 1
               : 0;
}

static void count_guesses(engine_stats *stats, request *q, uint32_t n_drafted) {
    uint32_t n_accepted = n_drafted - q->seq.n_draft;
    if (n_drafted == 0) return;
    q->drafts.n_drafted += n_drafted;
    q->drafts.n_accepted += n_accepted;
    stats->drafts++;
    stats->draft_tokens += n_drafted;
    stats->accepted_tokens += n_accepted;
    for (uint32_t i = 0; i < n_accepted; i++) stats->accepted_at[i]++;
}

/* By what steps of so many rows take, known to be a little better now. */
static void settle_allowances(speculation *s, uint32_t n_drafted) {
    for (uint32_t i = 0; i < s->n_candidates; i++) {
        request *q = s->candidates[i];
        if (q->seq.n_scheduled == 0) continue;
        uint32_t n = n_verified(q);
        draft_allowance_settle(&q->drafts.allowance, &s->costs, n_drafted, n, n - q->seq.n_draft);
    }
}

void speculation_note(engine *e, const sched_plan *plan, dev_account *account, double *seconds) {
    speculation *s = e->speculation;
    uint32_t n_prompt = 0, n_drafted = 0, n_drawn = 0;
    if (s == NULL) return;
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        request *q = (request *)plan->sequences[i];
        uint32_t n = n_verified(q);
        count_guesses(&e->stats, q, n);
        n_prompt += q->seq.n_scheduled - n > 1;
        n_drafted += n;
        n_drawn += 1 + n - q->seq.n_draft;
    }
    if (n_prompt == 0 && (n_drafted > 0 || s->work_s > 0)) {
        double plain_s = step_time_of(&s->time, plan->n_sequences) * n_drawn / plan->n_sequences;
        e->stats.draft_saved_s += plain_s - *seconds - s->work_s;
    }
    if (n_prompt > 0)
        step_time_add_prompt(&s->time, plan->n_tokens, *seconds);
    else
        step_time_add(&s->time, plan->n_tokens, *seconds);
    settle_allowances(s, n_drafted);
    dev_account_add(account, &s->work.account);
    *seconds += s->work_s;
}
