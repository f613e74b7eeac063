/* sched/backlog, under a virtual clock: when a request's first token is predicted to come, and when
 * it does. */
#include "unit.h"
#include <math.h>
#include <stdlib.h>

#include "sched_world.h"

static backlog_machine machine_of(const world *w, uint32_t budget, double tpot_s) {
    return (backlog_machine){&w->shape, budget, tpot_s};
}

/* Comes while a step is planned but not over, as on a server; returns predicted / taken. */
static double ratio(world *w, uint32_t budget, double tpot_s, uint32_t n_prompt, int priority) {
    backlog b;
    backlog_machine m = machine_of(w, budget, tpot_s);
    sched_get_backlog(w->s, &b);
    double predicted = backlog_first_token_s(&b, &m, priority, n_prompt, 0), start = w->now_s;
    assert_true(isfinite(predicted) && predicted > 0);
    uint32_t id = world_arrive(w, n_prompt, 3, priority);
    while (w->first_s[id] == 0) world_step(w);
    return predicted / (w->first_s[id] - start);
}

/* The machine is known by then, and that answers have so many tokens. */
static world *taught_by(uint32_t n_output, uint32_t seqs, uint32_t budget, uint32_t n_blocks,
                        double tpot_s) {
    world *w = world_make(seqs, budget, n_blocks, tpot_s);
    for (uint32_t i = 0; i < 20; i++) world_arrive(w, 20 + 40 * i, n_output, 0);
    while (world_step(w) > 0) continue;
    return w;
}

static world *taught(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s) {
    return taught_by(12, seqs, budget, n_blocks, tpot_s);
}

static void assert_near(double ratio, double low, double high) {
    if (!(ratio >= low && ratio <= high)) fail_msg("%g is not in %g..%g", ratio, low, high);
}

static void test_alone(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 4000; n = n * 3 + 7) {
        world *w = taught(16, 512, 4096, 0);
        assert_near(ratio(w, 512, 0, n, 0), .9, 1.15);
        world_end(w);
    }
}

/* Six streams decode, and up to nine prompts come before. Answers are as long as those before were:
 * where a target makes the way many steps long, most end on it. Taken for streams that all go on,
 * with the contexts that they have, these make predictions up to seven times too long (12 ms, nine
 * prompts, 20 tokens). */
static void test_behind_other_prompts(void **state) {
    (void)state;
    const double targets[] = {0, 12e-3, 30e-3, 1e-6};
    const uint32_t answers[] = {20, 60, 200};
    for (int t = 0; t < 4; t++)
        for (uint32_t k = 0; k < 30; k++) {
            uint32_t n = k / 3, n_output = answers[k % 3];
            world *w = taught_by(n_output, 32, 512, 1024, targets[t]);
            for (uint32_t i = 0; i < 6; i++) world_arrive(w, 50, n_output, 0);
            for (int i = 0; i < 5; i++) world_step(w);
            for (uint32_t i = 0; i < n; i++) world_arrive(w, 100 + 150 * i, n_output, 0);
            if (n % 2 == 1) world_step(w); /* the first of them is half done */
            assert_near(ratio(w, 512, targets[t], 700, 0), .65, 1.4);
            world_end(w);
        }
}

/* Nobody decodes yet: the first of the prompts before will soon, and hold up the rest. */
static void test_behind_prompts_alone(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 12; n += 5) {
        world *w = taught_by(200, 32, 512, 2048, 12e-3);
        for (uint32_t i = 0; i < n; i++) world_arrive(w, 900, 200, 0);
        world_step(w);
        assert_near(ratio(w, 512, 12e-3, 700, 0), .65, 1.4);
        world_end(w);
    }
}

/* Who is more important waits for fewer. */
static void test_priorities(void **state) {
    (void)state;
    world *w = taught(32, 512, 4096, 0);
    backlog b;
    backlog_machine m = machine_of(w, 512, 0);
    for (int i = 0; i < 30; i++) world_arrive(w, 300, 5, i % 3 * 5 - 5);
    sched_get_backlog(w->s, &b);
    double before = 0;
    for (int priority = -20; priority <= 20; priority++) {
        double predicted = backlog_first_token_s(&b, &m, priority, 100, 0);
        assert_true(predicted >= before);
        if (priority == -5 || priority == 0 || priority == 5) assert_true(predicted > 1.3 * before);
        before = predicted;
    }
    assert_near(ratio(w, 512, 0, 100, 0), .7, 1.4);
    world_end(w);
}

/* All places are taken: somebody has to end first. */
static void test_behind_a_full_house(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 30; n += 7) {
        world *w = taught(8, 512, 4096, 0);
        for (uint32_t i = 0; i < 40; i++) world_arrive(w, 30, 60 + 20 * (i % 5), 0);
        while (w->n_ended < 40) world_step(w);
        for (uint32_t i = 0; i < 8 + n; i++) world_arrive(w, 30, 60 + 20 * (i * 3 % 5), 0);
        for (int i = 0; i < 20; i++) world_step(w);
        assert_near(ratio(w, 512, 0, 30, 0), .4, 2.5);
        world_end(w);
    }
}

/* Fewer blocks than places. */
static void test_short_of_blocks(void **state) {
    (void)state;
    world *w = taught(32, 512, 60, 0);
    for (uint32_t i = 0; i < 40; i++) world_arrive(w, 100, 60, 0);
    for (int i = 0; i < 100; i++) world_step(w);
    backlog b;
    sched_get_backlog(w->s, &b);
    assert_in_range(b.n_places, 1, 9);
    assert_near(ratio(w, 512, 0, 100, 0), .4, 2.5);
    world_end(w);
}

/* Prompt `number` of so many: all its tokens are its own. */
static uint32_t set_prompt(world *w, uint32_t number) {
    uint32_t n = 1 + 16 * (20 + number * 37 % 50 * 3); /* in whole blocks all but the last */
    for (uint32_t i = 0; i < n; i++) w->prompt[i] = (int32_t)(number * 100000 + i);
    return n;
}

/* Every other prompt is one of five that come again and again, the rest are new; each comes behind
 * up to three others. The mean error of predictions. */
static double error_of_mixed(bool blind) {
    world *w = world_make_cached(32, 512, 16384, 0);
    uint32_t n = 0, fresh = 100;
    double sum = 0;
    w->blind = blind;
    for (uint32_t k = 0; k < 120; k++) {
        uint32_t id = 0, n_before = k * 7 % 4;
        double predicted = 0, start = w->now_s;
        for (uint32_t i = 0; i <= n_before; i++) {
            uint32_t n_prompt = set_prompt(w, (k + i) % 2 == 0 ? (k + i) / 2 % 5 : fresh++);
            uint32_t n_cached =
                blind ? 0 : kv_cache_known(sched_cache(w->s), 0, w->prompt, n_prompt - 1);
            backlog b;
            backlog_machine m = machine_of(w, 512, 0);
            sched_get_backlog(w->s, &b);
            predicted = backlog_first_token_s(&b, &m, 0, n_prompt, n_cached);
            id = world_arrive(w, n_prompt, 3, 0);
        }
        while (w->first_s[id] == 0) world_step(w);
        double taken = w->first_s[id] - start;
        if (k >= 20) sum += fabs(predicted - taken) / taken;
        if (k >= 20) n++;
        while (world_step(w) > 0) continue;
    }
    world_end(w);
    return sum / n;
}

/* What of a prompt is cached is looked up when it comes. */
static void test_what_is_cached_is_known(void **state) {
    (void)state;
    double knowing = error_of_mixed(false), blind = error_of_mixed(true);
    assert_near(knowing, 0, .1);
    assert_near(blind, 3 * knowing, 1e3);
}

/* Nothing is learned yet, nothing is there, everything is huge. */
static void test_edges(void **state) {
    (void)state;
    world *w = world_make(1, 1, 4096, 0);
    backlog b;
    backlog_machine m = machine_of(w, 1, 1e-9);
    sched_get_backlog(w->s, &b);
    assert_true(b.n_running == 0 && b.step_s == 0);
    double one = backlog_first_token_s(&b, &m, 0, 1, 0);
    assert_true(one > 0 && isfinite(one));
    assert_true(backlog_first_token_s(&b, &m, INT32_MIN, UINT32_MAX, 0) > 1000 * one);
    for (int i = 0; i < BACKLOG_CLASSES; i++) b.waiting[i] = (backlog_class){1 << 20, 1e12, 1e30};
    b.n_running = b.n_decoding = 1;
    assert_true(isfinite(backlog_first_token_s(&b, &m, INT32_MAX, UINT32_MAX, 0)));
    b.n_places = 0;
    b.computed_share = 0;
    assert_true(isfinite(backlog_first_token_s(&b, &m, 0, 1, 0)));
    cost_shape nothing = {0};
    m.shape = &nothing;
    b.rates = (cost_rates){{0}};
    assert_true(isfinite(backlog_first_token_s(&b, &m, 0, 1, 0)));
    assert_int_equal(backlog_class_of(INT32_MIN), 0);
    assert_int_equal(backlog_class_of(INT32_MAX), BACKLOG_CLASSES - 1);
    assert_int_equal(backlog_class_of(0) + 1, backlog_class_of(1));
    world_end(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_behind_other_prompts),
        cmocka_unit_test(test_behind_prompts_alone),
        cmocka_unit_test(test_priorities),
        cmocka_unit_test(test_behind_a_full_house),
        cmocka_unit_test(test_short_of_blocks),
        cmocka_unit_test(test_what_is_cached_is_known),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
