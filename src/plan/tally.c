/* plan/tally: what a simulation has seen. Times of requests go into sketches, all else into sums.
 */
#include "plan/sim_internal.h"

void tally_start(tally *t, const sim_request *q, double now_s) {
    sketch_add(&t->queue_s, now_s - q->arrived_s, 1);
}

/* Tokens of one step have mostly come after the same time. */
static void end_run(tally *t) {
    if (t->n_run > 0) sketch_add(&t->itl_s, t->run_s, t->n_run);
    t->n_run = 0;
}

void tally_first_or_run(tally *t, sim_request *q, double now_s) {
    if (q->answered) {
        end_run(t);
        t->run_s = now_s - q->last_s;
        t->n_run = 1;
    } else {
        q->answered = true;
        q->first_s = now_s;
        sketch_add(&t->ttft_s, now_s - q->arrived_s, 1);
    }
}

/* Per token after the first; an answer of one token has none, and so keeps every target for it. */
static double tpot_of(const sim_request *q) {
    return q->n_output > 1 ? (q->last_s - q->first_s) / (q->n_output - 1) : 0;
}

static bool is_good(const sim_params *p, const sim_request *q) {
    if (p->slo_ttft_s > 0 && q->first_s - q->arrived_s > p->slo_ttft_s) return false;
    return p->slo_tpot_s <= 0 || tpot_of(q) <= p->slo_tpot_s;
}

void tally_end(tally *t, const sim_params *p, const sim_request *q) {
    t->sums.n_requests++;
    t->sums.n_good += is_good(p, q);
    t->sums.input_tokens += q->seq.n_prompt;
    t->sums.output_tokens += q->n_output;
    t->sums.seconds = q->last_s;
    sketch_add(&t->e2e_s, q->last_s - q->arrived_s, 1);
    if (q->n_output > 1) sketch_add(&t->tpot_s, tpot_of(q), 1);
}

static double in_stages(const sim_step *step) {
    double seconds = 0;
    for (uint32_t i = 0; i < step->n_parts; i += 2) seconds += step->parts_s[i];
    return step->n_parts > 0 ? seconds : step->seconds;
}

/* Tokens' places. What sequences share is held once. */
static double held_places(const lane *l, const sched_params *p, const sched_cache_use *use) {
    const kv_cache *c = sched_cache(l->sched);
    double n = 0;
    if (p->static_batches) return (double)use->reserved;
    for (uint32_t g = 0; g < p->n_groups; g++)
        n += (double)(p->n_blocks[g] - kv_cache_n_available(c, g)) * p->block_size;
    return n;
}

static void add_lane(tally *t, const lane *l, const sched_params *p, double seconds) {
    sched_cache_use use = sched_get_cache_use(l->sched);
    t->sums.n_steps += l->plan.n_sequences > 0;
    t->sums.n_preempted += l->plan.n_preempted;
    for (uint32_t g = 0; g < p->n_groups; g++)
        t->kv_pool += (double)p->n_blocks[g] * p->block_size * seconds;
    if (l->plan.n_sequences == 0) return; /* nor does it hold any */
    t->kv_held += held_places(l, p, &use) * seconds;
    t->kv_reserved += (double)use.reserved * seconds;
    t->kv_used += (double)use.used * seconds;
}

void tally_step(tally *t, const team *m) {
    double n_gpus = (double)m->n_lanes * (m->pool->n_tensor > 1 ? m->pool->n_tensor : 1);
    t->sums.busy_s += n_gpus * in_stages(&m->step);
    for (int i = 0; i < ROOF_N_BOUNDS; i++) t->sums.bounds_s[i] += n_gpus * m->step.bounds_s[i];
    dev_account_add(&t->sums.account, &m->step.account);
    for (uint32_t i = 0; i < m->n_lanes; i++)
        add_lane(t, &m->lanes[i], &m->pool->sched, m->step.seconds);
}

sim_result tally_result(tally *t) {
    sim_result r = t->sums;
    end_run(t);
    r.ttft_s = sketch_quantiles(&t->ttft_s);
    r.tpot_s = sketch_quantiles(&t->tpot_s);
    r.itl_s = sketch_quantiles(&t->itl_s);
    r.e2e_s = sketch_quantiles(&t->e2e_s);
    r.queue_s = sketch_quantiles(&t->queue_s);
    r.kv_held = t->kv_pool > 0 ? t->kv_held / t->kv_pool : 0;
    r.kv_used = t->kv_reserved > 0 ? t->kv_used / t->kv_reserved : 0;
    return r;
}
