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

static bool caching;    /* of the worlds made from now on */
static uint32_t window; /* of their second group; 0: full */

static world *world_make(uint32_t seqs, uint32_t budget, uint32_t block_size, uint32_t n_blocks) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = seqs,
                      .max_num_batched_tokens = budget,
                      .block_size = block_size,
                      .n_blocks = {n_blocks, n_blocks},
                      .n_groups = 2,
                      .window = {0, window},
                      .prefix_caching = caching};
    if (window > 0 && sched_window_blocks(&p, window) < n_blocks)
        p.n_blocks[1] = sched_window_blocks(&p, window);
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

static void arrive_with(world *w, const int32_t *prompt, uint32_t n_prompt, uint32_t n_output,
                        int priority) {
    sequence *q = &w->sequences[w->n];
    assert_int_equal(
        sequence_init(q, prompt, n_prompt, n_prompt + n_output, w->block_size, 2, NULL), RIDGE_OK);
    q->id = w->n;
    q->priority = priority;
    w->n_output[w->n++] = n_output;
    sched_add(w->s, q);
}

static void arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority) {
    static const int32_t prompt[4096];
    arrive_with(w, prompt, n_prompt, n_output, priority);
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
    sched_commit(w->s, true);
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

/* n requests and some cancels at random, until all have ended; their prompts are zeros, or with
 * `text` often begin alike. */
static void run_traffic(world *w, uint32_t n, uint32_t room, bool text) {
    for (int turn = 0; turn < 5000; turn++) {
        if (w->n < n && below(3) == 0) {
            int32_t prompt[200] = {0};
            uint32_t n_prompt = 1 + below(room - 1);
            for (uint32_t i = 0; i < n_prompt && text; i++) prompt[i] = below(20) == 0;
            arrive_with(w, prompt, n_prompt, 1 + below(room - n_prompt), (int)below(3));
        }
        if (below(50) == 0 && w->n > 0) {
            sequence *q = &w->sequences[below(w->n)];
            if (q->state != SEQUENCE_DONE) sched_remove(w->s, q);
        }
        if (!step(w) && w->n == n) break;
        sched_check(w->s);
    }
    for (uint32_t i = 0; i < w->n; i++) assert_int_equal(w->sequences[i].state, SEQUENCE_DONE);
}

/* Whatever comes and goes, every request ends, and the invariants hold after each step. */
static void test_random_traffic_ends(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t block_size = 1 + below(5), n_blocks = 8 + below(30);
        world *w = world_make(1 + below(6), 1 + below(20), block_size, n_blocks);
        run_traffic(w, 1 + below(20), block_size * n_blocks, false);
        assert_int_equal(kv_cache_n_available(sched_cache(w->s), 0), n_blocks);
        assert_int_equal(kv_cache_n_available(sched_cache(w->s), 1), n_blocks);
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

/* The prefix cache. */

/* Every prompt is "t t t ..." of one token; different tokens, nothing in common. */
static void arrive_saying(world *w, int32_t token, uint32_t n_prompt, uint32_t n_output) {
    int32_t prompt[64];
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = token;
    arrive_with(w, prompt, n_prompt, n_output, 0);
}

/* Four choices of one prompt: one computes it, the others take it from there, all but its last
 * token; a stranger behind them waits its turn. */
static void test_one_prefill_for_many(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 100, 4, 100);
    arrive_saying(w, 1, 10, 2);
    arrive_saying(w, 1, 10, 2);
    arrive_saying(w, 1, 10, 2);
    arrive_saying(w, 2, 3, 1);
    while (step(w)) continue;
    expect(w, "a:0+10\n"
              "a:10+1 b:9+1 c:9+1 d:0+3 a. d.\n"
              "b:10+1 c:10+1 b. c.\n");
}

/* It waits as long as what is before it goes on computing what both need. */
static void test_a_prefix_in_chunks(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 6, 2, 100);
    arrive_saying(w, 1, 14, 1);
    arrive_saying(w, 1, 17, 1);
    while (step(w)) continue;
    expect(w, "a:0+6\n"
              "a:6+6\n"
              "a:12+2 a.\n"
              "b:14+3 b.\n");
}

/* Another tenant's is not used, nor by who must see its whole prompt computed. */
static void test_who_shares(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 100, 4, 100);
    arrive_saying(w, 1, 9, 1);
    arrive_saying(w, 1, 9, 1);
    w->sequences[1].salt = 7;
    arrive_saying(w, 1, 9, 1);
    w->sequences[2].no_match = true;
    while (step(w)) continue;
    arrive_saying(w, 1, 9, 1);
    w->sequences[3].salt = 7;
    arrive_saying(w, 1, 9, 1);
    w->sequences[4].salt = 8;
    w->sequences[4].kv.apart = true;
    while (step(w)) continue;
    arrive_saying(w, 1, 9, 1);
    w->sequences[5].salt = 8;
    while (step(w)) continue;
    assert_int_equal(w->sequences[3].n_cached, 8);
    assert_int_equal(sched_get_prefix_stats(w->s).hits, 8);
    assert_int_equal(sched_get_prefix_stats(w->s).queries, 9 * 5);
    expect(w, "a:0+9 b:0+9 c:0+9 a. b. c.\n"
              "d:8+1 e:0+9 d. e.\n"
              "f:0+9 f.\n");
}

/* Nobody waits for what will never be found: one that keeps away from the cache enters nothing. */
static void test_who_is_not_waited_for(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 100, 4, 100);
    arrive_saying(w, 1, 9, 4);
    w->sequences[0].kv.apart = w->sequences[0].no_match = true;
    arrive_saying(w, 1, 9, 1);
    arrive_saying(w, 2, 3, 1);
    while (step(w)) continue;
    expect(w, "a:0+9 b:0+9 c:0+3 b. c.\n"
              "a:9+1\n"
              "a:10+1\n"
              "a:11+1 a.\n");
}

/* A prompt that goes on with the answer which a stream is just giving, token by token, waits for
 * the stream's prompt, not for its answer. */
static void test_no_answer_is_waited_for(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 100, 1, 100);
    arrive_saying(w, 0, 3, 5);
    arrive_saying(w, 0, 30, 1);
    while (step(w)) continue;
    expect(w, "a:0+3\n"
              "a:3+1 b:3+27 b.\n"
              "a:4+1\n"
              "a:5+1\n"
              "a:6+1 a.\n");
}

/* What the preempted one had computed is still there when it comes back, but for what the other
 * took of it. */
static void test_preemption_keeps_what_it_can(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 100, 2, 6);
    arrive_saying(w, 1, 4, 6);
    arrive_saying(w, 2, 4, 5);
    while (step(w)) continue;
    expect(w, "a:0+4 b:0+4\n"
              "a:4+1 b:4+1\n"
              "a:5+1 b:5+1\n"
              "a:6+1 !1\n"
              "a:7+1\n"
              "a:8+1 a.\n"
              "b:2+5\n"
              "b:7+1 b.\n");
}

/* A step that failed leaves nothing behind that another one could find. */
static void test_a_failed_step_is_not_cached(void **state) {
    (void)state;
    caching = true;
    world *w = world_make(8, 6, 2, 100);
    arrive_saying(w, 1, 10, 1);
    step(w);
    sched_plan plan = sched_next(w->s);
    assert_int_equal(plan.n_tokens, 4);
    sched_commit(w->s, false);
    assert_int_equal(w->sequences[0].n_computed, 6);
    sched_remove(w->s, &w->sequences[0]);
    sched_check(w->s);
    arrive_saying(w, 1, 10, 1);
    while (step(w)) continue;
    assert_int_equal(w->sequences[1].n_cached, 6);
    world_end(w);
}

/* What comes with a sequence is not computed, and others find it; of the window's group it holds
 * what tokens to come can see. */
static void test_what_was_computed_elsewhere(void **state) {
    (void)state;
    caching = true;
    window = 4;
    world *w = world_make(8, 100, 2, 20);
    arrive_saying(w, 1, 10, 3);
    w->sequences[0].n_received = 9;
    step(w);
    assert_int_equal(w->sequences[0].kv.tables[0].n_blocks, 5);
    assert_int_equal(w->sequences[0].kv.tables[1].first, 3); /* position 9 sees 6 to 9 */
    while (step(w)) continue;
    arrive_saying(w, 1, 10, 1);
    while (step(w)) continue;
    assert_int_equal(w->sequences[1].n_cached, 9);
    expect(w, "a:9+1\n"
              "a:10+1\n"
              "a:11+1 a.\n"
              "b:9+1 b.\n");
}

/* Preempted, it computes that, too. */
static void test_what_came_is_lost(void **state) {
    (void)state;
    world *w = world_make(8, 100, 2, 6);
    arrive(w, 4, 6, 0);
    arrive(w, 4, 5, 0);
    w->sequences[1].n_received = 3;
    while (step(w)) continue;
    expect(w, "a:0+4 b:3+1\n"
              "a:4+1 b:4+1\n"
              "a:5+1 b:5+1\n"
              "a:6+1 !1\n"
              "a:7+1\n"
              "a:8+1 a.\n"
              "b:0+7\n"
              "b:7+1 b.\n");
}

static void test_random_traffic_with_a_cache(void **state) {
    (void)state;
    uint64_t hits = 0;
    caching = true;
    for (int round = 0; round < 200; round++) {
        uint32_t block_size = 1 + below(5), n_blocks = 8 + below(30);
        window = below(2) * (1 + below(20));
        world *w = world_make(1 + below(6), 1 + below(20), block_size, n_blocks);
        run_traffic(w, 1 + below(40), block_size * n_blocks, true);
        hits += sched_get_prefix_stats(w->s).hits;
        world_end(w);
    }
    assert_true(hits > 1000);
}

static int no_caching(void **state) {
    (void)state;
    caching = false;
    window = 0;
    return 0;
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    const sched_params p = {.max_num_seqs = 4,
                            .max_num_batched_tokens = 16,
                            .block_size = 4,
                            .n_groups = 2,
                            .n_blocks = {8, 8},
                            .prefix_caching = true};
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
        cmocka_unit_test_teardown(test_one_prefill_for_many, no_caching),
        cmocka_unit_test_teardown(test_a_prefix_in_chunks, no_caching),
        cmocka_unit_test_teardown(test_who_shares, no_caching),
        cmocka_unit_test_teardown(test_who_is_not_waited_for, no_caching),
        cmocka_unit_test_teardown(test_no_answer_is_waited_for, no_caching),
        cmocka_unit_test_teardown(test_preemption_keeps_what_it_can, no_caching),
        cmocka_unit_test_teardown(test_a_failed_step_is_not_cached, no_caching),
        cmocka_unit_test_teardown(test_what_was_computed_elsewhere, no_caching),
        cmocka_unit_test(test_what_came_is_lost),
        cmocka_unit_test_teardown(test_random_traffic_with_a_cache, no_caching),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
