/* sched/backlog: see backlog.h. */
#include "sched/backlog.h"

#include <math.h>

#include "sched/pace.h"

#define USUAL_STEPS_PER_ANSWER 128

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

/* What decodes in the mean of those steps: of those whose prompts come first, half. */
static cost_work decodes_of(const backlog *b, const cost_shape *shape, const backlog_class *first) {
    cost_work w = b->decodes, one = {0};
    double n = first->n / 2.0, most = (double)b->n_places - b->n_decoding;
    if (n > most) n = fmax(most, 0);
    if (n == 0) return w;
    cost_add(shape, &one, (uint32_t)fmin(first->n_tokens / first->n, UINT32_MAX / 2), 1, 1);
    w.n_rows += n;
    w.n_wanted += n;
    w.attention_ops += n * one.attention_ops;
    w.cache_bytes += n * one.cache_bytes;
    return w;
}

/* Steps that n_tokens of prompts take, token_s each, when a step of step_s may take tpot_s
 * (pace.h): on average half a token of what fits is lost, as chunks are whole. */
static double steps_within(double tpot_s, double step_s, double n_tokens, double token_s) {
    if (token_s <= 0) return 0;
    double fits = (tpot_s - step_s) / token_s;
    double least = 1 + PACE_LEAST_SHARE * (step_s + token_s) / token_s;
    return n_tokens / (fmax(fits, least) - .5);
}

double backlog_first_token_s(const backlog *b, const backlog_machine *m, int priority,
                             uint32_t n_prompt, uint32_t n_cached) {
    uint32_t n_waiting;
    backlog_class prompts = prompts_before(b, priority, &n_waiting), own = {0};
    cost_work decodes = decodes_of(b, m->shape, &prompts), all = decodes;
    backlog_class_add(&own, m->shape, n_cached, n_prompt - n_cached);
    add(&prompts, &own, b->computed_share);
    prompts.n_tokens = fmax(prompts.n_tokens, 1); /* its last one is never cached */
    all.n_rows += prompts.n_tokens;
    all.n_wanted += 1; /* its own last row */
    all.attention_ops += prompts.attention_ops;
    double step_s = cost_seconds(m->shape, &b->rates, &decodes);
    double prompts_s = cost_seconds(m->shape, &b->rates, &all) - step_s;

    double n_steps = ceil(prompts.n_tokens / fmax(m->max_num_batched_tokens - decodes.n_rows, 1));
    if (m->tpot_s > 0 && b->n_decoding > 0)
        n_steps = fmax(n_steps, steps_within(m->tpot_s, step_s, prompts.n_tokens,
                                             prompts_s / prompts.n_tokens));
    double n_over = (double)b->n_running + n_waiting + 1 - b->n_places;
    if (n_over > 0 && b->n_places > 0) {
        double answer = b->steps_per_answer > 0 ? b->steps_per_answer : USUAL_STEPS_PER_ANSWER;
        n_steps = fmax(n_steps, n_over * answer / b->n_places);
    }
    return fmax(n_steps, 1) * step_s + prompts_s;
}
