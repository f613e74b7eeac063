/* engine/admission: see admission.h. */
#include "engine/admission.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

#define LONGEST_RETRY_S 3600

_Static_assert(sizeof(admission_view) % sizeof(uint64_t) == 0, "a view is published as words");

void admission_init(admission *a, const engine *e) {
    const engine_params *p = &e->params;
    a->target_s = p->slo_ttft_s;
    a->shed = p->shed;
    a->cache = sched_cache(e->sched);
    a->machine = (backlog_machine){.shape = &sched_cost(e->sched)->shape,
                                   .max_num_batched_tokens = p->max_num_batched_tokens,
                                   .tpot_s = p->slo_tpot_s};
}

/* The further choices of a prompt find it cached by the first. */
static uint32_t n_cached(const admission *a, const request *q) {
    uint32_t most = q->seq.n_prompt - 1;
    if (q->seq.no_match) return 0;
    return q->given.sampling.choice > 0
               ? most
               : kv_cache_known(a->cache, q->seq.salt, q->seq.tokens, most);
}

static admission_sum sum_of(const admission *a, const request *q) {
    backlog_class c = {0};
    uint32_t first = q->seq.n_expected;
    backlog_class_add(&c, a->machine.shape, first, q->seq.n_prompt - first);
    return (admission_sum){1, (uint64_t)c.n_tokens, (uint64_t)c.attention_ops};
}

void admission_take(admission *a, const request *q) {
    if (a->target_s == 0) return;
    admission_sum *to = &a->taken[backlog_class_of(q->seq.priority)], s = sum_of(a, q);
    to->n += s.n;
    to->n_tokens += s.n_tokens;
    to->attention_ops += s.attention_ops;
}

void admission_accept(admission *a, const request *q) {
    if (a->target_s == 0) return;
    uint32_t c = backlog_class_of(q->seq.priority);
    admission_sum s = sum_of(a, q);
    atomic_fetch_add(&a->accepted[c].n, s.n);
    atomic_fetch_add(&a->accepted[c].n_tokens, s.n_tokens);
    atomic_fetch_add(&a->accepted[c].attention_ops, s.attention_ops);
}

void admission_publish(admission *a, const engine *e, double now_s) {
    if (a->target_s == 0) return;
    admission_view view;
    uint64_t words[sizeof view / sizeof(uint64_t)];
    sched_get_backlog(e->sched, &view.backlog);
    view.free_s = now_s + view.backlog.step_s;
    memcpy(view.taken, a->taken, sizeof view.taken);
    memcpy(words, &view, sizeof view);
    atomic_fetch_add(&a->turn, 1);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) atomic_store(&a->view[i], words[i]);
    atomic_fetch_add(&a->turn, 1);
}

static void read_view(admission *a, admission_view *out) {
    uint64_t words[sizeof *out / sizeof(uint64_t)], turn;
    do {
        turn = atomic_load(&a->turn);
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            words[i] = atomic_load(&a->view[i]);
    } while (turn % 2 != 0 || turn != atomic_load(&a->turn));
    memcpy(out, words, sizeof *out);
}

/* What was accepted since waits too. */
static void add_accepted(admission *a, admission_view *v) {
    for (uint32_t c = 0; c < BACKLOG_CLASSES; c++) {
        backlog_class *w = &v->backlog.waiting[c];
        w->n += (uint32_t)(atomic_load(&a->accepted[c].n) - v->taken[c].n);
        w->n_tokens += (double)(atomic_load(&a->accepted[c].n_tokens) - v->taken[c].n_tokens);
        w->attention_ops +=
            (double)(atomic_load(&a->accepted[c].attention_ops) - v->taken[c].attention_ops);
    }
}

static void count_before(const backlog *b, int priority, double *n_tokens, uint32_t *n_waiting) {
    *n_tokens = b->running.n_tokens;
    *n_waiting = 0;
    for (uint32_t c = 0; c < BACKLOG_CLASSES; c++) {
        *n_waiting += b->waiting[c].n;
        if (c <= backlog_class_of(priority)) *n_tokens += b->waiting[c].n_tokens;
    }
}

/* Behind n_tokens of other prompts. */
static ridge_status refuse(admission *a, const request *q, double n_tokens, uint32_t n_running,
                           uint32_t n_waiting, ridge_error *err) {
    double late_s = q->predicted_ttft_s - a->target_s;
    atomic_fetch_add(&a->n_shed, 1);
    if (err != NULL && err->code == RIDGE_OK)
        err->retry_after_s = (uint32_t)fmin(fmax(ceil(late_s), 1), LONGEST_RETRY_S);
    return RIDGE_FAIL(err, RIDGE_EBUSY,
                      "the first token would come after about %.4g s, the target is %.4g s: "
                      "%.0f tokens of other prompts are to be computed before the %u of this one "
                      "(%u more are cached); sequences: %u running, %u waiting",
                      q->predicted_ttft_s, a->target_s, n_tokens,
                      q->seq.n_prompt - q->seq.n_expected, q->seq.n_expected, n_running, n_waiting);
}

ridge_status admission_check(admission *a, request *q, double now_s, ridge_error *err) {
    if (a->target_s == 0) return RIDGE_OK;
    admission_view v;
    q->seq.n_expected = n_cached(a, q);
    read_view(a, &v);
    add_accepted(a, &v);
    double predicted = backlog_first_token_s(&v.backlog, &a->machine, q->seq.priority,
                                             q->seq.n_prompt, q->seq.n_expected);
    double n_tokens;
    uint32_t n_waiting;
    count_before(&v.backlog, q->seq.priority, &n_tokens, &n_waiting);
    bool idle = v.backlog.n_running == 0 && n_waiting == 0;
    q->predicted_ttft_s = predicted += fmax(v.free_s - now_s, 0);
    if (!a->shed || idle || q->given.follows || predicted <= a->target_s) return RIDGE_OK;
    return refuse(a, q, n_tokens, v.backlog.n_running, n_waiting, err);
}
