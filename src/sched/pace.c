/* sched/pace: see pace.h. */
#include "sched/pace.h"

#include <stddef.h>

static bool catches_up(const sequence *q) {
    return q->n_computed + q->n_scheduled >= q->n_tokens;
}

void pace_add(cost_work *w, const cost_shape *shape, const sequence *q) {
    cost_add(shape, w, q->n_computed, q->n_scheduled, catches_up(q));
}

void pace_begin(pace *p, const cost_model *cost, const sequence *running) {
    bool decodes = false;
    p->work = (cost_work){0};
    p->limit_s = 0;
    p->full = false;
    if (p->target_s <= 0) return;
    for (const sequence *q = running; q != NULL; q = q->next) {
        pace_add(&p->work, &cost->shape, q);
        if (catches_up(q)) /* its guesses, each with logits of its own */
            cost_add(&cost->shape, &p->work, q->n_computed + q->n_scheduled, q->n_draft,
                     q->n_draft);
        decodes = decodes || (q->n_tokens > q->n_prompt && q->n_scheduled > 0 && catches_up(q));
    }
    if (!decodes) return;
    double least = (1 + PACE_LEAST_SHARE) * cost_predict(cost, &p->work);
    p->limit_s = p->target_s > least ? p->target_s : least;
}

uint32_t pace_allows(pace *p, const cost_model *cost, const sequence *q) {
    uint32_t first = q->n_computed + q->n_scheduled, lacks = q->n_tokens - first;
    if (p->limit_s <= 0) return lacks;
    uint32_t n = p->full ? 0 : cost_fit(cost, &p->work, first, lacks, p->limit_s);
    if (n < lacks) p->full = true;
    return n;
}

void pace_take(pace *p, const cost_model *cost, const sequence *q, uint32_t n) {
    if (p->limit_s <= 0) return;
    cost_add(&cost->shape, &p->work, q->n_computed + q->n_scheduled - n, n, catches_up(q) && n > 0);
}
