/* sched/: what each step would compute, as text; then random traffic under the invariants. */
#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "sched/scheduler.h"

#define MAX_SEQUENCES 64

typedef struct {
    scheduler *s;
    uint32_t block_size;
    sequence sequences[MAX_SEQUENCES];
    uint32_t n_output[MAX_SEQUENCES]; /* each ends after so many tokens */
    uint32_t n;
    uint64_t n_computed; /* tokens, again and again where preempted */
    uint32_t calm_steps,
        since; /* at least so many from an admission to a preemption; the last one */
    buf trace;
} world;

static world *world_make(uint32_t seqs, uint32_t budget, uint32_t block_size, uint32_t n_blocks) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = seqs,
                      .max_num_batched_tokens = budget,
                      .block_size = block_size,
                      .n_blocks = n_blocks,
                      .n_groups = 2};
    assert_int_equal(sched_create(&w->s, &p, NULL), RIDGE_OK);
    w->block_size = block_size;
    return w;
}

static void world_end(world *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->sequences[i].state != SEQUENCE_DONE) sched_remove(w->s, &w->sequences[i]);
        sequence_deinit(&w->sequences[i]);
    }
    sched_destroy(w->s);
    buf_free(&w->trace);
    free(w);
}

static void arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority) {
    static int32_t prompt[4096];
    sequence *q = &w->sequences[w->n];
    assert_int_equal(
        sequence_init(q, prompt, n_prompt, n_prompt + n_output, w->block_size, 2, NULL), RIDGE_OK);
    q->id = w->n;
    q->priority = priority;
    w->n_output[w->n++] = n_output;
    sched_add(w->s, q);
}

/* One step as the engine does it, as a line: "a:0+4 b:2+1 !1" computes positions 0-3 of a and 2 of
 * b after one preemption; "a." when a ended. */
static bool step(world *w) {
    uint32_t n_running = sched_n_running(w->s);
    sched_plan plan = sched_next(w->s);
    sequence *ended[MAX_SEQUENCES];
    uint32_t n_ended = 0;
    if (plan.n_sequences == 0) return false;
    w->n_computed += plan.n_tokens;
    if (plan.n_preempted > 0) assert_true(w->since >= w->calm_steps);
    w->since = sched_n_running(w->s) + plan.n_preempted > n_running ? 0 : w->since + 1;
    for (uint32_t i = 0; i < plan.n_sequences; i++) {
        const sequence *q = plan.sequences[i];
        buf_printf(&w->trace, "%c:%u+%u ", (char)('a' + q->id), q->n_computed, q->n_scheduled);
    }
    if (plan.n_preempted > 0) buf_printf(&w->trace, "!%u ", plan.n_preempted);
    for (uint32_t i = 0; i < plan.n_sequences; i++) {
        sequence *q = plan.sequences[i];
        if (q->n_computed + q->n_scheduled < q->n_tokens) continue;
        if (q->n_tokens + 1 == q->n_prompt + w->n_output[q->id])
            ended[n_ended++] = q;
        else
            sequence_append(q, 0);
    }
    sched_commit(w->s);
    for (uint32_t i = 0; i < n_ended; i++) {
        buf_printf(&w->trace, "%c. ", (char)('a' + ended[i]->id));
        sched_remove(w->s, ended[i]);
    }
    w->trace.data[w->trace.len - 1] = '\n';
    sched_check(w->s);
    return true;
}

static void expect(world *w, const char *trace) {
    assert_string_equal(w->trace.data, trace);
    world_end(w);
}

static void test_alone(void **state) {
    (void)state;
    world *w = world_make(4, 100, 4, 100);
    arrive(w, 5, 3, 0);
    while (step(w)) continue;
    expect(w, "a:0+5\n"
              "a:5+1\n"
              "a:6+1 a.\n");
}

/* A long prompt is computed in chunks and does not hold up those that decode. */
static void test_chunks_leave_room_for_decoding(void **state) {
    (void)state;
    world *w = world_make(4, 4, 4, 100);
    arrive(w, 2, 4, 0);
    arrive(w, 9, 2, 0);
    while (step(w)) continue;
    expect(w, "a:0+2 b:0+2\n"
              "a:2+1 b:2+3\n"
              "a:3+1 b:5+3\n"
              "a:4+1 b:8+1 a.\n"
              "b:9+1 b.\n");
}

static void test_the_limit_of_sequences_and_order(void **state) {
    (void)state;
    world *w = world_make(2, 100, 4, 100);
    arrive(w, 3, 2, 0);
    arrive(w, 3, 1, 5);
    arrive(w, 3, 1, 0);
    arrive(w, 3, 1, -1);
    while (step(w)) continue;
    expect(w, "d:0+3 a:0+3 d.\n"
              "a:3+1 c:0+3 a. c.\n"
              "b:0+3 b.\n");
}

/* Nobody overtakes: c would fit, but b is before it. */
static void test_first_come_first_served(void **state) {
    (void)state;
    world *w = world_make(8, 100, 4, 4);
    arrive(w, 8, 2, 0);
    arrive(w, 12, 1, 0);
    arrive(w, 1, 1, 0);
    while (step(w)) continue;
    expect(w, "a:0+8\n"
              "a:8+1 a.\n"
              "b:0+12 c:0+1 b. c.\n");
}

/* The pool runs dry: the latest goes, waits, and computes its prompt and its output again. */
static void test_preemption_recomputes(void **state) {
    (void)state;
    world *w = world_make(8, 100, 2, 6);
    arrive(w, 4, 6, 0);
    arrive(w, 4, 5, 0);
    while (step(w)) continue;
    expect(w, "a:0+4 b:0+4\n"
              "a:4+1 b:4+1\n"
              "a:5+1 b:5+1\n"
              "a:6+1 !1\n"
              "a:7+1\n"
              "a:8+1 a.\n"
              "b:0+7\n"
              "b:7+1 b.\n");
}

/* The largest priority goes first, though it came earlier; and nobody else does. */
static void test_preemption_takes_the_least_important(void **state) {
    (void)state;
    world *w = world_make(8, 100, 2, 9);
    arrive(w, 4, 5, 1);
    arrive(w, 4, 5, 0);
    arrive(w, 4, 5, 0);
    while (step(w)) continue;
    expect(w, "b:0+4 c:0+4 a:0+4\n"
              "b:4+1 c:4+1 a:4+1\n"
              "b:5+1 c:5+1 a:5+1\n"
              "b:6+1 c:6+1 !1\n"
              "b:7+1 c:7+1 b. c.\n"
              "a:0+7\n"
              "a:7+1 a.\n");
}

/* A block for each that will grow stays free: b waits rather than be thrown out two steps later. */
static void test_room_to_grow(void **state) {
    (void)state;
    world *w = world_make(8, 100, 2, 5);
    arrive(w, 4, 4, 0);
    arrive(w, 4, 3, 0);
    arrive(w, 2, 1, 1);
    while (step(w)) continue;
    expect(w, "a:0+4\n"
              "a:4+1\n"
              "a:5+1\n"
              "a:6+1 a.\n"
              "b:0+4 c:0+2 c.\n"
              "b:4+1\n"
              "b:5+1 b.\n");
}

/* A budget smaller than the running set serves the first ones; all end in the end. */
static void test_a_budget_of_one(void **state) {
    (void)state;
    world *w = world_make(4, 1, 4, 100);
    arrive(w, 2, 2, 0);
    arrive(w, 1, 2, 0);
    while (step(w)) continue;
    expect(w, "a:0+1\n"
              "a:1+1\n"
              "a:2+1 a.\n"
              "b:0+1\n"
              "b:1+1 b.\n");
}

static uint64_t seed = 1234567;

static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

/* Whatever comes and goes, every request ends, and the invariants hold after each step. */
static void test_random_traffic_ends(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t block_size = 1 + below(5), n_blocks = 8 + below(30);
        world *w = world_make(1 + below(6), 1 + below(20), block_size, n_blocks);
        uint32_t n = 1 + below(20);
        for (int turn = 0; turn < 5000; turn++) {
            if (w->n < n && below(3) == 0) {
                uint32_t room = block_size * n_blocks, prompt = 1 + below(room - 1);
                arrive(w, prompt, 1 + below(room - prompt), (int)below(3));
            }
            if (below(50) == 0 && w->n > 0) {
                sequence *q = &w->sequences[below(w->n)];
                if (q->state != SEQUENCE_DONE) sched_remove(w->s, q);
            }
            if (!step(w) && w->n == n) break;
            sched_check(w->s);
        }
        for (uint32_t i = 0; i < w->n; i++) assert_int_equal(w->sequences[i].state, SEQUENCE_DONE);
        assert_int_equal(sched_n_blocks_free(w->s, 0), n_blocks);
        assert_int_equal(sched_n_blocks_free(w->s, 1), n_blocks);
        world_end(w);
    }
}

/* Near a dry pool: all that fits alone ends, and nobody is let in who is thrown out at once:
 * between the last admission and a preemption every running sequence has filled a block. So less is
 * computed twice than where whatever just fits is let in: that computes 80836 tokens again, this
 * 65434. */
static void test_a_dry_pool_computes_less_twice(void **state) {
    (void)state;
    uint64_t computed = 0, needed = 0;
    seed = 42;
    for (int round = 0; round < 100; round++) {
        uint32_t block_size = 1 + below(4), n_blocks = 12 + below(30), n = 12 + below(40);
        world *w = world_make(2 + below(12), 64, block_size, n_blocks);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t room = block_size * n_blocks, prompt = 1 + below(room / 4);
            arrive(w, prompt, 1 + below(room - prompt), (int)below(2));
            needed += prompt + w->n_output[i] - 1;
        }
        w->calm_steps = block_size;
        while (step(w)) continue;
        for (uint32_t i = 0; i < w->n; i++) assert_int_equal(w->sequences[i].state, SEQUENCE_DONE);
        computed += w->n_computed;
        world_end(w);
    }
    assert_true(computed > needed);
    assert_in_range(computed - needed, 1, 66000);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    const sched_params p = {4, 16, 4, 8, 2};
    const int32_t prompt[] = {1, 2, 3};
    for (long nth = 1;; nth++) {
        scheduler *s = NULL;
        sequence q = {0};
        mem_fail_after(nth);
        ridge_status status = sched_create(&s, &p, NULL);
        if (status == RIDGE_OK) status = sequence_init(&q, prompt, 3, 10, 4, 2, NULL);
        mem_fail_after(0);
        sequence_deinit(&q);
        sched_destroy(s);
        if (status == RIDGE_OK) break;
        assert_int_equal(status, RIDGE_ENOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_chunks_leave_room_for_decoding),
        cmocka_unit_test(test_the_limit_of_sequences_and_order),
        cmocka_unit_test(test_first_come_first_served),
        cmocka_unit_test(test_preemption_recomputes),
        cmocka_unit_test(test_preemption_takes_the_least_important),
        cmocka_unit_test(test_room_to_grow),
        cmocka_unit_test(test_a_budget_of_one),
        cmocka_unit_test(test_random_traffic_ends),
        cmocka_unit_test(test_a_dry_pool_computes_less_twice),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
