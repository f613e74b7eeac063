/* sched/static: the trace of batches that run until all of them is done. */
#include "unit.h"
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "sched/scheduler.h"

#define N 8
#define BLOCK 4
#define MODEL_LEN 30 /* 8 blocks */

typedef struct {
    scheduler *s;
    sequence sequences[N];
    uint32_t n_output[N], n;
    buf trace;
} world;

/* window: of the second group; 0: it is full, too. */
static world *world_make(uint32_t seqs, uint32_t budget, uint32_t n_blocks, uint32_t window) {
    world *w = calloc(1, sizeof *w);
    sched_params p = {.max_num_seqs = seqs,
                      .max_num_batched_tokens = budget,
                      .block_size = BLOCK,
                      .n_groups = 2,
                      .n_blocks = {n_blocks, n_blocks},
                      .window = {0, window},
                      .static_batches = true,
                      .max_model_len = MODEL_LEN};
    assert_int_equal(sched_create(&w->s, &p, NULL), RIDGE_OK);
    return w;
}

static void arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority) {
    static const int32_t prompt[MODEL_LEN];
    sequence *q = &w->sequences[w->n];
    assert_int_equal(sequence_init(q, prompt, n_prompt, n_prompt + n_output, BLOCK, 2, NULL),
                     RIDGE_OK);
    q->id = w->n;
    q->priority = priority;
    w->n_output[w->n++] = n_output;
    sched_add(w->s, q);
}

static void end_batch(world *w) {
    if (sched_n_running(w->s) > 0) return;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->sequences[i].padding && w->sequences[i].state == SEQUENCE_RUNNING)
            sched_remove(w->s, &w->sequences[i]);
}

/* "a:0+4 b:2+1 50/64": computes positions 0-3 of a and 2 of b, in capitals where they are padding;
 * 50 of 64 reserved tokens are there. "a." when a ended. */
static bool step(world *w) {
    end_batch(w);
    sched_plan plan = sched_next(w->s);
    sequence *ended[N];
    uint32_t n_ended = 0;
    if (plan.n_sequences == 0) return false;
    for (uint32_t i = 0; i < plan.n_sequences; i++) {
        sequence *q = plan.sequences[i];
        buf_printf(&w->trace, "%c:%u+%u ", (char)((q->padding ? 'A' : 'a') + (int)q->id),
                   q->n_computed, q->n_scheduled);
        if (q->padding || q->n_computed + q->n_scheduled < q->n_tokens) continue;
        sequence_append(q, 0);
        if (q->n_tokens == q->n_prompt + w->n_output[q->id]) ended[n_ended++] = q;
    }
    sched_cache_use use = sched_get_cache_use(w->s);
    buf_printf(&w->trace, "%u/%u", (unsigned)use.used, (unsigned)use.reserved);
    sched_commit(w->s, true);
    for (uint32_t i = 0; i < n_ended; i++) {
        buf_printf(&w->trace, " %c.", (char)('a' + ended[i]->id));
        assert_false(sched_end(w->s, ended[i]));
    }
    buf_putc(&w->trace, '\n');
    sched_check(w->s);
    return true;
}

static void expect(world *w, const char *trace) {
    while (step(w)) continue;
    assert_int_equal(sched_n_running(w->s) + sched_n_waiting(w->s), 0);
    assert_string_equal(w->trace.data, trace);
    for (uint32_t i = 0; i < w->n; i++) sequence_deinit(&w->sequences[i]);
    sched_destroy(w->s);
    buf_free(&w->trace);
    free(w);
}

/* b and c are done before a, and go on costing a row each; d, which has come first of those that
 * did not fit, waits for all. Two groups: what is reserved is 2 * 32 tokens for each. */
static void test_a_batch(void **state) {
    (void)state;
    world *w = world_make(3, 100, 100, 0);
    arrive(w, 3, 4, 0);
    arrive(w, 5, 1, 0);
    arrive(w, 2, 2, 0);
    arrive(w, 4, 2, 0);
    arrive(w, 1, 1, -1);
    expect(w, "e:0+1 a:0+3 b:0+5 18/192 e. b.\n"
              "E:1+1 a:3+1 B:5+1 8/192\n"
              "E:1+1 a:4+1 B:5+1 10/192\n"
              "E:1+1 a:5+1 B:5+1 12/192 a.\n"
              "c:0+2 d:0+4 12/128\n"
              "c:2+1 d:4+1 16/128 c. d.\n");
}

/* Prompts first, all of them, in chunks; nobody decodes meanwhile. */
static void test_prompts_first(void **state) {
    (void)state;
    world *w = world_make(3, 4, 100, 0);
    arrive(w, 3, 2, 0);
    arrive(w, 6, 2, 0);
    expect(w, "a:0+3 b:0+1 8/128\n"
              "b:1+4 16/128\n"
              "b:5+1 18/128\n"
              "a:3+1 b:6+1 22/128 a. b.\n");
}

/* Who is done must not take what the others need to come to their ends. */
static void test_a_budget_of_one(void **state) {
    (void)state;
    world *w = world_make(2, 1, 100, 0);
    arrive(w, 1, 1, 0);
    arrive(w, 1, 3, 0);
    expect(w, "a:0+1 2/128 a.\n"
              "b:0+1 2/128\n"
              "b:1+1 4/128\n"
              "b:2+1 6/128 b.\n");
}

/* The cache holds two of the longest, so no more come in, short as they are; and one at least. */
static void test_the_cache_bounds_the_batch(void **state) {
    (void)state;
    world *w = world_make(8, 100, 23, 0);
    for (int i = 0; i < 3; i++) arrive(w, 1, 1, 0);
    expect(w, "a:0+1 b:0+1 4/128 a. b.\nc:0+1 2/64 c.\n");
    w = world_make(8, 100, 7, 0);
    for (int i = 0; i < 2; i++) arrive(w, 27, 1, 0);
    expect(w, "a:0+27 54/64 a.\nb:0+27 54/64 b.\n");
}

/* Whoever leaves at once, leaves at once; and the batch ends with its last. */
static void test_cancelling(void **state) {
    (void)state;
    world *w = world_make(2, 100, 100, 0);
    arrive(w, 2, 9, 0);
    arrive(w, 2, 1, 0);
    arrive(w, 2, 1, 0);
    assert_true(step(w) && step(w));
    sched_remove(w->s, &w->sequences[0]);
    assert_int_equal(sched_n_running(w->s), 0);
    expect(w, "a:0+2 b:0+2 8/128 b.\n"
              "a:2+1 B:2+1 6/128\n"
              "c:0+2 4/64 c.\n");
}

/* Of a group with a window, what it has: the token at 9 sees 6 to 9, in blocks 1 and 2. */
static void test_a_window_reserves_nothing(void **state) {
    (void)state;
    world *w = world_make(3, 100, 100, 4);
    arrive(w, 9, 2, 0);
    expect(w, "a:0+9 18/44\n"
              "a:9+1 16/40 a.\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_window_reserves_nothing),
        cmocka_unit_test(test_a_batch),
        cmocka_unit_test(test_prompts_first),
        cmocka_unit_test(test_the_cache_bounds_the_batch),
        cmocka_unit_test(test_a_budget_of_one),
        cmocka_unit_test(test_cancelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
