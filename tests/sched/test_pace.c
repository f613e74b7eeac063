/* sched/pace, under a virtual clock: a machine whose steps take what a known cost says. With a
 * target, streams that decode keep it while prompts are computed; nothing starves, whatever the
 * target; without one the budget of tokens alone decides. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>

#include "sched/scheduler.h"

#define MAX_SEQUENCES 512
#define BLOCK 16

typedef struct {
    scheduler *s;
    cost_shape shape;
    cost_rates truth;
    sequence sequences[MAX_SEQUENCES];
    uint32_t n_output[MAX_SEQUENCES];                      /* each ends after so many tokens */
    double first_s[MAX_SEQUENCES], ended_s[MAX_SEQUENCES]; /* 0: not yet */
    uint32_t ended_step[MAX_SEQUENCES];
    uint32_t n, n_ended, n_steps, n_prompt_tokens; /* n_prompt_tokens: of the last step */
    double now_s;
    bool decodes;   /* did a stream decode in the last step? */
    double least_s; /* what it would have taken with one token of each sequence */
} world;

static world *world_make(uint32_t seqs, uint32_t budget, double tpot_s) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = seqs,
                      .max_num_batched_tokens = budget,
                      .block_size = BLOCK,
                      .n_blocks = {4096},
                      .n_groups = 1};
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
    w->truth = (cost_rates){{2e-4, 1.3, 2.2, 1.4}};
    sched_set_cost(w->s, &w->shape, tpot_s);
    return w;
}

static void world_end(world *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->sequences[i].state != SEQUENCE_DONE) sched_remove(w->s, &w->sequences[i]);
        sequence_deinit(&w->sequences[i]);
    }
    sched_destroy(w->s);
    free(w);
}

static uint32_t arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority) {
    static int32_t prompt[8192];
    sequence *q = &w->sequences[w->n];
    assert_int_equal(sequence_init(q, prompt, n_prompt, n_prompt + n_output, BLOCK, 1, NULL),
                     RIDGE_OK);
    q->id = w->n;
    q->priority = priority;
    w->n_output[w->n] = n_output;
    sched_add(w->s, q);
    return w->n++;
}

/* One step of the engine, as long as the truth says; its seconds, or 0: nothing to do. */
static double step(world *w) {
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
    double seconds = cost_seconds(&w->shape, &w->truth, &work);
    w->now_s += seconds;
    w->least_s = cost_seconds(&w->shape, &w->truth, &least);
    w->n_steps++;
    sequence *ended[MAX_SEQUENCES];
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

static double warm_up(world *w, uint32_t n_streams, uint32_t n_output) {
    double last = 0;
    for (uint32_t i = 0; i < n_streams; i++) arrive(w, 100 + 10 * i, n_output, 0);
    for (int i = 0; i < 40; i++) last = step(w);
    return last;
}

/* A prompt of 4,000 tokens comes while eight streams decode: no step is past the target, though
 * the later chunks are dearer; and the target is used: the prompt is not computed slower than that
 * asks for. */
static void test_the_target_is_kept(void **state) {
    (void)state;
    world *w = world_make(16, 512, 0);
    double decode_s = warm_up(w, 8, 2000), target = 2 * decode_s, worst = 0, sum = 0;
    world_end(w);

    w = world_make(16, 512, target);
    warm_up(w, 8, 2000);
    uint32_t id = arrive(w, 4000, 10, 0), n = 0, first_chunk = 0, last_chunk = 0;
    while (w->first_s[id] == 0) {
        double seconds = step(w);
        if (n == 1) first_chunk = w->n_prompt_tokens;
        if (w->first_s[id] == 0) last_chunk = w->n_prompt_tokens;
        if (n++ > 0 && seconds > worst) worst = seconds; /* the first is a guess */
        sum += seconds;
    }
    assert_true(w->decodes && n > 10);
    assert_true(worst < 1.05 * target);
    assert_true(sum / n > .9 * target);
    assert_true(last_chunk < first_chunk && last_chunk > 0);
    world_end(w);

    w = world_make(16, 512, 0); /* without one, chunks are as large as the budget */
    warm_up(w, 8, 2000);
    id = arrive(w, 4000, 10, 0);
    while (w->first_s[id] == 0) {
        double seconds = step(w);
        if (seconds > worst) worst = seconds;
    }
    assert_true(worst > 10 * target);
    world_end(w);
}

/* Nobody decodes: the target holds nothing up. */
static void test_alone_the_budget_decides(void **state) {
    (void)state;
    world *w = world_make(16, 512, 1e-6);
    uint32_t id = arrive(w, 4000, 1, 0);
    while (w->first_s[id] == 0) step(w);
    assert_int_equal(w->n_steps, 8);
    world_end(w);
}

/* A target that decoding alone is past: prompts still get a tenth of the time, and in any case a
 * token per step. */
static void test_nothing_starves(void **state) {
    (void)state;
    world *w = world_make(16, 512, 0);
    double decode_s = warm_up(w, 8, 6000);
    world_end(w);
    const double targets[] = {1e-9, .5 * decode_s, 1.0001 * decode_s};
    for (int i = 0; i < 3; i++) {
        w = world_make(16, 512, targets[i]);
        warm_up(w, 8, 6000);
        uint32_t id = arrive(w, 4000, 2, 0), other = arrive(w, 50, 2, 0), n = 0;
        double start = w->now_s, before = 0;
        while (w->ended_s[other] == 0) {
            double seconds = step(w);
            if (w->first_s[id] > 0 && before == 0) before = w->now_s;
            assert_true(w->decodes && (seconds < 1.15 * w->least_s || seconds < targets[i]));
            assert_in_range(++n, 1, 4000 + 50 + 10);
        }
        /* a tenth of what the rest takes, but chunks are of whole tokens */
        cost_work alone = {0};
        cost_add(&w->shape, &alone, 0, 4000, 1);
        double prompt_s = cost_seconds(&w->shape, &w->truth, &alone);
        assert_true(w->first_s[id] - start < 20 * prompt_s);
        assert_true(w->first_s[other] > w->first_s[id]); /* first come, first served */
        world_end(w);
    }
}

/* Steady overload of equal priority: more comes than can be served, for ever. The k-th to come has
 * ended after no more steps than if all before it and itself were served one after the other, each
 * token a step of its own: what comes later never delays it past that. Those of equal lengths end
 * in the order in which they came. */
static void overload(double tpot_s, bool equal, uint32_t budget) {
    world *w = world_make(4, budget, tpot_s);
    uint64_t bound = 0, bounds[MAX_SEQUENCES];
    uint32_t n_checked = 0, state = 12345;
    while (w->n < MAX_SEQUENCES) {
        for (int i = 0; i < 2 && w->n < MAX_SEQUENCES; i++) {
            state = state * 1664525u + 1013904223u;
            uint32_t prompt = equal ? 60 : 1 + (state >> 16) % 200;
            uint32_t output = equal ? 7 : 1 + (state >> 8) % 20;
            bound += prompt + output;
            bounds[w->n] = bound;
            arrive(w, prompt, output, 0);
        }
        step(w);
        assert_true(w->n < 16 || sched_n_waiting(w->s) > 0); /* overload it is */
        for (; n_checked < w->n && w->n_steps >= bounds[n_checked]; n_checked++)
            assert_true(w->ended_step[n_checked] > 0);
    }
    while (step(w) > 0) continue;
    assert_int_equal(w->n_ended, w->n);
    for (uint32_t k = 0; k < w->n; k++) {
        assert_in_range(w->ended_step[k], 1, bounds[k]);
        if (equal && k > 0) assert_true(w->ended_step[k] >= w->ended_step[k - 1]);
    }
    world_end(w);
}

static void test_overload_in_the_order_of_arrival(void **state) {
    (void)state;
    const double targets[] = {0, 1e-9, 8e-3};
    for (int i = 0; i < 3; i++)
        for (int equal = 0; equal < 2; equal++) {
            overload(targets[i], equal, 512);
            overload(targets[i], equal, 16);
            overload(targets[i], equal, 2); /* fewer tokens than sequences */
        }
}

/* What is more important goes first, and what is not waits no longer than until that is done. */
static void test_priorities(void **state) {
    (void)state;
    const double targets[] = {0, 6e-3};
    for (int i = 0; i < 2; i++) {
        world *w = world_make(2, 512, targets[i]);
        for (int k = 0; k < 30; k++) arrive(w, 100, 5, k % 3);
        while (step(w) > 0) continue;
        for (uint32_t a = 0; a < w->n; a++)
            for (uint32_t b = 0; b < w->n; b++)
                if (sequence_before(&w->sequences[a], &w->sequences[b]))
                    assert_true(w->first_s[a] <= w->first_s[b]);
        assert_int_equal(w->n_ended, 30);
        world_end(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_target_is_kept),
        cmocka_unit_test(test_alone_the_budget_decides),
        cmocka_unit_test(test_nothing_starves),
        cmocka_unit_test(test_overload_in_the_order_of_arrival),
        cmocka_unit_test(test_priorities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
