/* sched/pace: see pace.h. */
#include "sched/pace.h"

#include <math.h>
#include <stddef.h>

#define MARGIN_RATE 0.02
#define MOST_MARGIN 0.3 /* what takes longer was held up, and would be with any margin */

void pace_add(cost_work *w, const cost_shape *shape, const sequence *q) {
    cost_add(shape, w, q->n_computed, q->n_scheduled, sequence_catches_up(q));
}

/* The step's work without what q does by now, which are n_rows of a prompt: together with more rows
 * of it they read what is cached once, not twice. */
static cost_work without(const pace *p, const cost_shape *shape, const sequence *q,
                         uint32_t n_rows) {
    cost_work w = p->work, own = {0};
    cost_add(shape, &own, q->n_computed, n_rows, 0);
    w.n_rows -= own.n_rows;
    w.attention_ops -= own.attention_ops;
    w.cache_bytes -= own.cache_bytes;
    return w;
}

double pace_within(double target_s, double margin, double own_s) {
    return fmax(target_s / (1 + margin), (target_s + own_s) / 2);
}

void pace_begin(pace *p, const cost_model *cost, const sequence *running) {
    bool decodes = false;
    p->work = (cost_work){0};
    p->limit_s = 0;
    p->full = false;
    if (p->target_s <= 0) return;
    for (const sequence *q = running; q != NULL; q = q->next) {
        bool logits = sequence_catches_up(q); /* of its guesses too, each */
        uint32_t n_guesses = logits ? q->n_draft : 0;
        cost_add(&cost->shape, &p->work, q->n_computed, q->n_scheduled + n_guesses,
                 logits + n_guesses);
        decodes = decodes || (q->n_tokens > q->n_prompt && q->n_scheduled > 0 && logits);
    }
    if (!decodes) return;
    double own_s = cost_predict(cost, &p->work), least = (1 + PACE_LEAST_SHARE) * own_s;
    p->limit_s = fmax(pace_within(p->target_s, p->margin, own_s), least);
}

uint32_t pace_allows(pace *p, const cost_model *cost, const sequence *q) {
    uint32_t has = q->n_scheduled, lacks = q->n_tokens - q->n_computed - has;
    if (p->limit_s <= 0 || lacks == 0) return lacks;
    if (p->full) return 0;
    cost_work others = without(p, &cost->shape, q, has);
    uint32_t n = cost_fit(cost, &others, q->n_computed, has + lacks, p->limit_s);
    p->full = n < has + lacks;
    return n > has ? n - has : has == 0; /* who is let in has its one token, too */
}

void pace_take(pace *p, const cost_model *cost, const sequence *q, uint32_t n) {
    if (p->limit_s <= 0 || n == 0) return;
    p->work = without(p, &cost->shape, q, q->n_scheduled - n);
    pace_add(&p->work, &cost->shape, q);
}

void pace_learn(pace *p, double predicted_s, double seconds) {
    bool late = seconds > (1 + p->margin) * predicted_s;
    if (p->limit_s <= 0) return; /* nobody decodes, or there is no target */
    p->margin += MARGIN_RATE * (late - PACE_LATE);
    p->margin = fmin(fmax(p->margin, 0), MOST_MARGIN);
}
