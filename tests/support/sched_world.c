/* tests/support/sched_world: see sched_world.h. */
#include "sched_world.h"

#include "unit.h"
#include <stdlib.h>

#define BLOCK 16

static world *make(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s, bool cached) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = seqs,
                      .max_num_batched_tokens = budget,
                      .block_size = BLOCK,
                      .n_blocks = {n_blocks},
                      .n_groups = 1,
                      .prefix_caching = cached,
                      .cache_summary = true};
    assert_int_equal(sched_create(&w->s, &p, NULL), RIDGE_OK);
    w->shape = (cost_shape){.bytes_per_s = 30e9,
                            .linear_ops_per_s = 1e12,
                            .attention_ops_per_s = 2e11,
                            .weight_bytes = 80e6,
                            .head_bytes = 20e6,
                            .row_ops = 160e6,
                            .head_row_ops = 40e6,
                            .n_groups = 1};
    w->shape.groups[0].attention_ops = 20e3;
    w->shape.groups[0].bytes_per_token = 2e3;
    w->truth = (cost_rates){{2e-4, 1.3, 1.9, 2.2, 1.4}};
    sched_set_cost(w->s, &w->shape, tpot_s);
    return w;
}

world *world_make(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s) {
    return make(seqs, budget, n_blocks, tpot_s, false);
}

world *world_make_cached(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s) {
    return make(seqs, budget, n_blocks, tpot_s, true);
}

void world_end(world *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->sequences[i].state != SEQUENCE_DONE) sched_remove(w->s, &w->sequences[i]);
        sequence_deinit(&w->sequences[i]);
    }
    sched_destroy(w->s);
    free(w);
}

uint32_t world_arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority) {
    sequence *q = &w->sequences[w->n];
    assert_int_equal(sequence_init(q, w->prompt, n_prompt, n_prompt + n_output, BLOCK, 1, NULL),
                     RIDGE_OK);
    q->id = w->n;
    q->priority = priority;
    w->n_output[w->n] = n_output;
    if (!w->blind) q->n_expected = kv_cache_known(sched_cache(w->s), 0, w->prompt, n_prompt - 1);
    sched_add(w->s, q);
    return w->n++;
}

/* 1, or about it: uniform. */
static double off(world *w) {
    w->seed = w->seed * 1664525u + 1013904223u;
    return 1 + w->spread * ((w->seed >> 8) / 8388608.0 - 1);
}

double world_step(world *w) {
    sched_plan plan = sched_next(w->s);
    cost_work work = {0}, least = {0};
    uint32_t n_wanted = 0;
    if (plan.n_sequences == 0) return 0;
    w->n_prompt_tokens = 0;
    w->decodes = false;
    for (uint32_t i = 0; i < plan.n_sequences; i++) {
        const sequence *q = plan.sequences[i];
        pace_add(&work, &w->shape, q);
        cost_add(&w->shape, &least, q->n_computed, 1, 1);
        if (q->n_computed >= q->n_prompt)
            w->decodes = true;
        else
            w->n_prompt_tokens += q->n_scheduled;
        n_wanted += q->n_computed + q->n_scheduled == q->n_tokens;
    }
    double seconds = cost_seconds(&w->shape, &w->truth, &work) * off(w);
    w->now_s += seconds;
    w->least_s = cost_seconds(&w->shape, &w->truth, &least);
    w->n_steps++;
    sequence *ended[WORLD_MAX_SEQUENCES];
    uint32_t n_ended = 0;
    for (uint32_t i = 0; i < plan.n_sequences; i++) {
        sequence *q = plan.sequences[i];
        if (q->n_computed + q->n_scheduled < q->n_tokens) continue;
        if (w->first_s[q->id] == 0) w->first_s[q->id] = w->now_s;
        if (q->n_tokens + 1 == q->n_prompt + w->n_output[q->id])
            ended[n_ended++] = q;
        else
            sequence_append(q, 0);
    }
    sched_learn(w->s, n_wanted, seconds);
    sched_commit(w->s, true);
    for (uint32_t i = 0; i < n_ended; i++) {
        w->ended_s[ended[i]->id] = w->now_s;
        w->ended_step[ended[i]->id] = w->n_steps;
        w->n_ended++;
        sched_remove(w->s, ended[i]);
    }
    sched_check(w->s);
    return seconds;
}
