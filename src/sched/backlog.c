/* sched/backlog: see backlog.h. */
#include "sched/backlog.h"

#include <math.h>

#include "sched/pace.h"

#define USUAL_STEPS_PER_ANSWER 128
#define MOST_HALVINGS 64

uint32_t backlog_class_of(int priority) {
    const int half = BACKLOG_CLASSES / 2;
    if (priority < -half) return 0;
    if (priority >= half) return BACKLOG_CLASSES - 1;
    return (uint32_t)(priority + half);
}

void backlog_class_add(backlog_class *c, const cost_shape *shape, uint32_t first, uint32_t n) {
    cost_work w = {0};
    cost_add(shape, &w, first, n, 0);
    c->n++;
    c->n_tokens += n;
    c->attention_ops += w.attention_ops;
}

static void add(backlog_class *to, const backlog_class *c, double share) {
    to->n += c->n;
    to->n_tokens += share * c->n_tokens;
    to->attention_ops += share * c->attention_ops;
}

/* The prompts that are computed before a new one of this priority; n_waiting of them wait. */
static backlog_class prompts_before(const backlog *b, int priority, uint32_t *n_waiting) {
    backlog_class sum = b->running; /* not cached, as is known of them */
    for (uint32_t c = 0; c <= backlog_class_of(priority); c++)
        add(&sum, &b->waiting[c], b->computed_share);
    *n_waiting = sum.n - b->running.n;
    return sum;
}

/* The way to the first token: what is known of it before its length is. */
typedef struct {
    const backlog *b;
    const backlog_machine *m;
    backlog_class first;   /* prompts of others before it */
    backlog_class prompts; /* with its own */
    double answer;         /* steps of one */
    double least_steps;
} way;

static void add_decodes(cost_work *w, const cost_shape *shape, double n, double context) {
    cost_work one = {0};
    if (!(n > 0)) return;
    cost_add(shape, &one, (uint32_t)fmin(context, UINT32_MAX / 2), 1, 1);
    w->n_rows += n;
    w->n_wanted += n;
    w->attention_ops += n * one.attention_ops;
    w->cache_bytes += n * one.cache_bytes;
}

/* Of streams that all decode at the beginning, the part that does in the mean of n_steps: answers
 * end at any time. */
static double part_left(double answer, double n_steps) {
    return answer / n_steps * -expm1(-n_steps / answer);
}

/* Of n prompts that are done one by one over n_steps, so many decode in their mean (Little's law):
 * each until its answer or the way ends. */
static double mean_begun(double n, double answer, double n_steps) {
    if (answer >= n_steps) return n / 2;
    return n * answer / n_steps * (1 - answer / (2 * n_steps));
}

/* What decodes in the mean of n_steps. Contexts grow. */
static cost_work mean_decodes(const way *y, double n_steps) {
    const backlog *b = y->b;
    const backlog_class *first = &y->first;
    cost_work w = {0};
    double grown = fmin(n_steps, y->answer) / 2;
    double n_left = b->n_decoding * part_left(y->answer, n_steps);
    double n_begun = mean_begun(first->n, y->answer, n_steps);
    add_decodes(&w, y->m->shape, n_left, b->decoding_tokens / b->n_decoding + grown);
    n_begun = fmin(n_begun, b->n_places - n_left);
    add_decodes(&w, y->m->shape, n_begun, first->n_tokens / first->n + grown);
    return w;
}

/* Tokens of prompts, token_s each, in a step that takes step_s without and may take within_s
 * (pace.h): on average half a token of what fits is lost, as chunks are whole. */
static double tokens_within(double within_s, double step_s, double token_s) {
    double fits = (within_s - step_s) / token_s;
    double least = 1 + PACE_LEAST_SHARE * (step_s + token_s) / token_s;
    return fmax(fits, least) - .5;
}

/* A target holds prompts up while anybody decodes: the streams that do, and then each answer that
 * begins, one after the other. The part of n_steps. */
static double part_paced(const way *y, double n_steps) {
    if (y->m->tpot_s <= 0) return 0;
    return fmin(((y->b->n_decoding > 0) + y->first.n) * y->answer / n_steps, 1);
}

/* How many are needed if what decodes is that of n_steps; and the seconds of so many. */
static double steps_needed(const way *y, double n_steps, double *seconds) {
    const backlog *b = y->b;
    const backlog_machine *m = y->m;
    cost_work decodes = mean_decodes(y, n_steps), all = decodes;
    double n_tokens = y->prompts.n_tokens, paced = part_paced(y, n_steps);
    all.n_rows += n_tokens;
    all.n_wanted += 1; /* its own last row */
    all.attention_ops += y->prompts.attention_ops;
    double step_s = cost_seconds(m->shape, &b->rates, &decodes);
    double prompts_s = cost_seconds(m->shape, &b->rates, &all) - step_s;
    double most = fmax(m->max_num_batched_tokens - decodes.n_rows, 1), mean = most;
    if (paced > 0 && prompts_s > 0) {
        double within = pace_within(m->tpot_s, b->margin, step_s);
        double least = fmin(tokens_within(within, step_s, prompts_s / n_tokens), most);
        mean = paced * least + (1 - paced) * most;
    }
    double n = fmax(ceil(n_tokens / mean), y->least_steps);
    *seconds = n * step_s + prompts_s;
    return n;
}

double backlog_first_token_s(const backlog *b, const backlog_machine *m, int priority,
                             uint32_t n_prompt, uint32_t n_cached) {
    uint32_t n_waiting;
    backlog_class own = {0};
    way y = {.b = b, .m = m, .least_steps = 1, .first = prompts_before(b, priority, &n_waiting)};
    y.prompts = y.first;
    backlog_class_add(&own, m->shape, n_cached, n_prompt - n_cached);
    add(&y.prompts, &own, b->computed_share);
    y.prompts.n_tokens = fmax(y.prompts.n_tokens, 1); /* its last one is never cached */
    y.answer = b->steps_per_answer > 0 ? b->steps_per_answer : USUAL_STEPS_PER_ANSWER;
    double n_over = (double)b->n_running + n_waiting + 1 - b->n_places;
    if (n_over > 0 && b->n_places > 0) y.least_steps = fmax(1, n_over * y.answer / b->n_places);

    /* The shortest that suffices. Half a token a step is the least (tokens_within). */
    double low = 0, high = 2 * y.prompts.n_tokens + y.least_steps, seconds;
    for (int i = 0; i < MOST_HALVINGS && high - low > .5; i++) {
        double middle = (low + high) / 2;
        *(steps_needed(&y, middle, &seconds) > middle ? &low : &high) = middle;
    }
    steps_needed(&y, high, &seconds);
    return seconds;
}
