/* sched/: guesses get what is left, hold nobody up, and leave nothing behind. */
#include "unit.h"
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sched/scheduler.h"

#define MAX_SEQUENCES 24
#define SIZE 4 /* tokens of a block */

typedef struct {
    scheduler *s;
    sequence sequences[MAX_SEQUENCES];
    uint32_t n;
} world;

static world *world_make(uint32_t budget, uint32_t n_blocks) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = 8,
                      .max_num_batched_tokens = budget,
                      .block_size = SIZE,
                      .n_blocks = {n_blocks},
                      .n_groups = 1};
    assert_int_equal(sched_create(&w->s, &p, NULL), RIDGE_OK);
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

static sequence *arrive(world *w, uint32_t n_prompt, uint32_t max_tokens) {
    static int32_t prompt[256];
    sequence *q = &w->sequences[w->n];
    assert_int_equal(sequence_init(q, prompt, n_prompt, max_tokens, SIZE, 1, NULL), RIDGE_OK);
    q->id = w->n++;
    sched_add(w->s, q);
    return q;
}

static uint32_t n_free(const world *w) {
    return kv_cache_n_available(sched_cache(w->s), 0);
}

/* What the engine does of a step: as many guesses as given come true, and a token is drawn. */
static void commit(world *w, const sched_plan *plan, uint32_t n_true) {
    for (uint32_t i = 0; i < plan->n_sequences; i++) {
        sequence *q = plan->sequences[i];
        uint32_t n = n_true < q->n_draft ? n_true : q->n_draft;
        if (q->n_computed + q->n_scheduled - q->n_draft < q->n_tokens) continue;
        q->n_draft -= n;
        for (uint32_t k = 0; k <= n && q->n_tokens < q->max_tokens; k++) sequence_append(q, 0);
    }
    sched_commit(w->s, true);
    sched_check(w->s);
}

static void step(world *w) {
    sched_plan plan = sched_next(w->s);
    commit(w, &plan, 0);
}

static void test_they_are_computed_with_the_tokens(void **state) {
    (void)state;
    world *w = world_make(64, 16);
    sequence *q = arrive(w, 6, 40);
    step(w);
    q->n_draft = 5;
    sched_plan plan = sched_next(w->s);
    assert_int_equal(q->n_computed, 6);
    assert_int_equal(q->n_scheduled, 6); /* the seventh token and five guesses */
    assert_int_equal(plan.n_tokens, 6);
    assert_int_equal(n_free(w), 16 - 3);
    commit(w, &plan, 2);
    assert_int_equal(q->n_computed, 9); /* three tokens that were right */
    assert_int_equal(q->n_tokens, 10);
    assert_int_equal(q->n_draft, 0);
    assert_int_equal(n_free(w), 16 - 3);
    q->n_draft = 5;
    plan = sched_next(w->s);
    assert_int_equal(n_free(w), 16 - 4);
    commit(w, &plan, 0);
    assert_int_equal(n_free(w), 16 - 3); /* the block of the wrong ones is back */
    world_end(w);
}

/* Budget: every running sequence has its token before any guess; guesses come before prompts. */
static void test_the_budget(void **state) {
    (void)state;
    world *w = world_make(8, 64);
    sequence *a = arrive(w, 2, 40), *b = arrive(w, 2, 40);
    step(w);
    sequence *c = arrive(w, 20, 40);
    a->n_draft = 4;
    b->n_draft = 4;
    sched_plan plan = sched_next(w->s);
    assert_int_equal(a->n_scheduled, 5);
    assert_int_equal(b->n_scheduled, 3); /* 8 in all */
    assert_int_equal(b->n_draft, 2);
    assert_int_equal(c->n_scheduled, 0);
    commit(w, &plan, 4);
    a->n_draft = 1;
    plan = sched_next(w->s);
    assert_int_equal(a->n_scheduled, 2);
    assert_int_equal(b->n_scheduled, 1);
    assert_int_equal(c->n_scheduled, 5);
    commit(w, &plan, 0);
    step(w);
    assert_int_equal(c->n_computed, 11);
    world_end(w);
}

/* No block is left: those that its last block has room for, and nobody is preempted. */
static void test_no_guess_preempts(void **state) {
    (void)state;
    world *w = world_make(64, 6);
    sequence *a = arrive(w, 5, 20), *b = arrive(w, 5, 20);
    for (int i = 0; i < 5; i++) step(w);
    assert_int_equal(b->state, SEQUENCE_RUNNING);
    assert_int_equal(n_free(w), 0);
    assert_int_equal(a->n_tokens, 10);
    a->n_draft = 6; /* two more fit into its three blocks */
    sched_plan plan = sched_next(w->s);
    assert_int_equal(plan.n_preempted, 0);
    assert_int_equal(a->n_draft, 2);
    assert_int_equal(a->n_scheduled, 3);
    assert_int_equal(b->n_scheduled, 1);
    commit(w, &plan, 0);
    world_end(w);
}

/* Nor does one keep another out: whoever waits is let in first. */
static void test_no_guess_keeps_out(void **state) {
    (void)state;
    world *w = world_make(64, 5);
    sequence *a = arrive(w, 4, 12);
    step(w);
    assert_int_equal(n_free(w), 4); /* of the fifth token's block */
    a->n_draft = 6;
    sequence *b = arrive(w, 6, 7); /* two blocks, and one stays free for a */
    sched_plan plan = sched_next(w->s);
    assert_int_equal(b->state, SEQUENCE_RUNNING);
    assert_int_equal(b->n_scheduled, 6);
    assert_int_equal(a->n_scheduled, 7); /* all the same: the last block is left for it */
    commit(w, &plan, 0);
    world_end(w);
}

static void test_a_preempted_sequence_has_none(void **state) {
    (void)state;
    world *w = world_make(64, 6);
    sequence *a = arrive(w, 5, 20), *b = arrive(w, 5, 20);
    for (int i = 0; i < 12 && b->n_preempted == 0; i++) {
        if (i > 0) b->n_draft = 1;
        step(w);
    }
    assert_int_equal(b->n_preempted, 1);
    assert_int_equal(b->n_draft, 0);
    assert_int_equal(b->n_scheduled, 0);
    assert_int_equal(a->n_preempted, 0);
    world_end(w);
}

/* A step that failed computed no guess either. */
static void test_a_failed_step(void **state) {
    (void)state;
    world *w = world_make(64, 8);
    sequence *a = arrive(w, 5, 16);
    step(w);
    a->n_draft = 6;
    sched_next(w->s);
    sched_commit(w->s, false);
    sched_check(w->s);
    assert_int_equal(a->n_computed, 5);
    assert_int_equal(n_free(w), 6);
    world_end(w);
}

/* Random traffic in a tiny pool; a hash of who ran and who was preempted, step by step. */
static uint64_t traffic(bool guesses, uint32_t *n_preempted, uint32_t *n_guesses) {
    world *w = world_make(1024, 20); /* guesses take no room from prompts */
    uint32_t seed = 3;
    uint64_t hash = 1;
    for (uint32_t i = 0; i < 400; i++) {
        seed = seed * 1664525u + 1013904223u;
        if (w->n < MAX_SEQUENCES && seed >> 30 == 0)
            arrive(w, 1 + (seed >> 8) % 20, 22 + (seed >> 16) % 20);
        for (uint32_t k = 0; k < w->n && guesses; k++) {
            sequence *q = &w->sequences[k];
            bool lacks_one = q->state == SEQUENCE_RUNNING && q->n_tokens == q->n_computed + 1;
            if (lacks_one && q->n_tokens + 1 < q->max_tokens)
                q->n_draft = 1 + (seed >> 5) % (q->max_tokens - q->n_tokens - 1);
        }
        sched_plan plan = sched_next(w->s);
        hash = hash * 31 + plan.n_preempted;
        *n_preempted += plan.n_preempted;
        for (uint32_t k = 0; k < plan.n_sequences; k++) {
            hash = hash * 31 + plan.sequences[k]->id;
            *n_guesses += plan.sequences[k]->n_draft;
        }
        commit(w, &plan, 0);
        for (uint32_t k = 0; k < w->n; k++)
            if (w->sequences[k].state == SEQUENCE_RUNNING &&
                w->sequences[k].n_tokens == w->sequences[k].max_tokens)
                sched_remove(w->s, &w->sequences[k]);
    }
    assert_int_equal(w->n, MAX_SEQUENCES);
    world_end(w);
    return hash;
}

static void test_wrong_guesses_change_nothing(void **state) {
    (void)state;
    uint32_t n_preempted = 0, n_guesses = 0, n_none = 0;
    uint64_t without = traffic(false, &n_preempted, &n_none);
    assert_true(n_preempted > 3);
    assert_true(without == traffic(true, &n_preempted, &n_guesses));
    assert_true(n_none == 0 && n_guesses > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_are_computed_with_the_tokens),
        cmocka_unit_test(test_the_budget),
        cmocka_unit_test(test_no_guess_preempts),
        cmocka_unit_test(test_no_guess_keeps_out),
        cmocka_unit_test(test_a_preempted_sequence_has_none),
        cmocka_unit_test(test_a_failed_step),
        cmocka_unit_test(test_wrong_guesses_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
