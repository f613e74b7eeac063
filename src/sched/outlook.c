/* sched/outlook: what the scheduler can say of the step it has planned and of those to come. */
#include <math.h>

#include "sched/scheduler_internal.h"

#define MEAN_RATE 0.05     /* of means of recent requests */
#define FIRST_EXPECTED 256 /* tokens of a prompt, before any */

void outlook_init(scheduler *s) {
    cost_init(&s->cost, &(cost_shape){0});
    s->mean_computed = s->mean_expected = FIRST_EXPECTED;
}

void sched_set_cost(scheduler *s, const cost_shape *shape, double tpot_s) {
    cost_init(&s->cost, shape);
    s->pace.target_s = tpot_s;
    s->weighs = true;
}

const cost_model *sched_cost(const scheduler *s) {
    return &s->cost;
}

/* Of the blocks of a group, and the tokens that are in them after the step. A static batch's full
 * groups are held for the longest context there is. */
static void add_use(sched_cache_use *use, const scheduler *s, uint32_t g) {
    uint64_t size = s->params.block_size, n_blocks = 0;
    for (const sequence *q = s->running.first; q != NULL; q = q->next) {
        const kv_table *t = &q->kv.tables[g];
        uint64_t n = q->n_computed + q->n_scheduled - q->n_draft, given_back = t->first * size;
        n_blocks += t->n_blocks - t->first;
        if (!q->padding && n > given_back) use->used += n - given_back;
    }
    bool whole = s->params.static_batches && s->params.window[g] == 0;
    use->reserved += whole ? (uint64_t)s->running.n * static_room(s) : n_blocks * size;
}

sched_cache_use sched_get_cache_use(const scheduler *s) {
    sched_cache_use use = {0};
    for (uint32_t g = 0; g < s->params.n_groups; g++) add_use(&use, s, g);
    return use;
}

void outlook_begin(scheduler *s) {
    s->work = (cost_work){0};
    s->prompts = false;
}

void outlook_weigh(scheduler *s, const sequence *q) {
    if (q->n_scheduled == 0) return;
    pace_add(&s->work, &s->cost.shape, q);
    s->prompts = s->prompts || q->n_computed + 1 < q->n_tokens;
}

void sched_learn(scheduler *s, uint32_t n_wanted, double seconds) {
    s->work.n_wanted = n_wanted;
    if (s->n_planned == 0) return;
    if (s->prompts) pace_learn(&s->pace, cost_predict(&s->cost, &s->work), seconds);
    cost_learn(&s->cost, &s->work, s->prompts, seconds);
}

void outlook_note_answer(scheduler *s, const sequence *q) {
    double n = q->n_tokens - q->n_prompt, mean = s->steps_per_answer;
    s->steps_per_answer = mean > 0 ? mean + MEAN_RATE * (n - mean) : n;
}

void outlook_note_prompt(scheduler *s, const sequence *q) {
    s->mean_computed += MEAN_RATE * ((double)q->n_tokens - q->n_cached - s->mean_computed);
    s->mean_expected += MEAN_RATE * ((double)q->n_tokens - q->n_expected - s->mean_expected);
}

static void add_running(const scheduler *s, const sequence *q, backlog *out) {
    uint32_t known = q->n_computed + q->n_scheduled - q->n_draft, lacks = q->n_tokens - known;
    if (lacks == 0 || (lacks == 1 && q->n_tokens > q->n_prompt)) {
        out->n_decoding++;
        out->decoding_tokens += known;
    } else {
        backlog_class_add(&out->running, &s->cost.shape, known, lacks);
    }
}

void sched_get_backlog(const scheduler *s, backlog *out) {
    *out = (backlog){.rates = s->cost.rates,
                     .n_running = s->running.n,
                     .n_places = s->short_of_blocks ? s->running.n : s->params.max_num_seqs,
                     .steps_per_answer = s->steps_per_answer,
                     .margin = s->pace.margin,
                     .computed_share = fmin(s->mean_computed / s->mean_expected, 1)};
    if (s->n_planned > 0) out->step_s = cost_predict(&s->cost, &s->work);
    for (const sequence *q = s->running.first; q != NULL; q = q->next) add_running(s, q, out);
    for (const sequence *q = s->waiting.first; q != NULL; q = q->next)
        backlog_class_add(&out->waiting[backlog_class_of(q->priority)], &s->cost.shape,
                          q->n_expected, q->n_tokens - q->n_expected);
}
