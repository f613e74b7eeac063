/* engine/draft_length and engine/step_time: how many guesses pay, for costs and chances that are
 * known; what is learned of steps. */
#include "unit.h"
#include <math.h>
#include <string.h>

#include "device/device.h"
#include "engine/draft_length.h"

static void learn(step_time *t, uint32_t n_rows, double seconds) {
    for (int i = 0; i < 40; i++) step_time_add(t, n_rows, seconds);
}

static void assert_near(double x, double expected, double part) {
    if (!(fabs(x - expected) <= part * expected)) fail_msg("%g, expected %g", x, expected);
}

static void test_what_was_seen(void **state) {
    (void)state;
    step_time t = {0};
    assert_true(step_time_of(&t, 1) == 1); /* nothing yet */
    for (uint32_t n = 1; n <= 64; n *= 2) learn(&t, n, 0.010 + 0.001 * n);
    for (uint32_t n = 1; n <= 16; n *= 2) assert_near(step_time_of(&t, n), 0.010 + 0.001 * n, .02);
    assert_true(step_time_of(&t, 3) > step_time_of(&t, 2)); /* between those seen */
    assert_true(step_time_of(&t, 3) < step_time_of(&t, 4));
    assert_true(step_time_of(&t, 1000) > step_time_of(&t, 64)); /* beyond them */
    assert_true(step_time_of(&t, UINT32_MAX) > step_time_of(&t, 1000));
}

/* A neighbour comes: everything takes twice as long, and after a few steps all counts say so. */
static void test_the_level_follows(void **state) {
    (void)state;
    step_time t = {0};
    for (int i = 0; i < 200; i++) step_time_add(&t, i % 2 ? 1 : 5, i % 2 ? 0.010 : 0.012);
    for (int i = 0; i < 40; i++) step_time_add(&t, 1, 0.020);
    assert_near(step_time_of(&t, 1), 0.020, .05);
    assert_near(step_time_of(&t, 5) / step_time_of(&t, 1), 1.2, .35);
    for (int i = 0; i < 200; i++) step_time_add(&t, i % 2 ? 1 : 5, i % 2 ? 0.020 : 0.024);
    assert_near(step_time_of(&t, 5), 0.024, .05);
    step_time_add(&t, 1, 1.0); /* a single step that was held up says little */
    assert_near(step_time_of(&t, 5), 0.024, .2);
}

static void test_rows_of_prompts(void **state) {
    (void)state;
    step_time t = {0};
    learn(&t, 1, 0.010);
    step_time_add_prompt(&t, 8, 0.011); /* too few to say */
    assert_near(step_time_of_row(&t), 0.001, .1);
    for (int i = 0; i < 20; i++) step_time_add_prompt(&t, 100, 0.2);
    assert_near(step_time_of_row(&t), 0.002, .01);
    /* what was not seen: a wall of memory, then rows that cost what a prompt's do */
    assert_near(step_time_of(&t, DEV_FEW_TOKENS), 0.017, .05);
    assert_near(step_time_of(&t, 100), 0.210, .05);
    learn(&t, DEV_FEW_TOKENS, 0.030);
    assert_near(step_time_guess(&t, DEV_FEW_TOKENS), 0.017, .05); /* as if it had not been */
}

static void fill(float used[DRAFT_MAX], float chance, uint32_t n) {
    memset(used, 0, DRAFT_MAX * sizeof *used);
    float all = 1;
    for (uint32_t j = 0; j < n; j++) used[j] = all *= chance;
}

/* A step of n rows takes 10 ms and, beyond a few, 1 ms a row. */
static step_time machine(void) {
    step_time t = {0};
    for (uint32_t n = 1; n <= 32; n++)
        learn(&t, n, n <= 8 ? 0.010 + 0.0002 * n : 0.010 + 0.001 * n);
    for (uint32_t n = 64; n <= 2048; n *= 2) learn(&t, n, 0.010 + 0.001 * n);
    return t;
}

static draft_costs costs(const step_time *t, uint32_t n_sequences) {
    return (draft_costs){.time = t, .n_sequences = n_sequences, .max_rows = 512};
}

static void test_good_guesses_fill_what_memory_leaves(void **state) {
    (void)state;
    step_time t = machine();
    draft_costs c = costs(&t, 1);
    float used[1][DRAFT_MAX];
    uint32_t length;
    fill(used[0], .97f, DRAFT_MAX);
    double rate = draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_in_range(length, 7, DRAFT_MAX);
    assert_true(rate > 5);
    fill(used[0], .6f, DRAFT_MAX); /* .6 ^ 7 is worth 3 % of a token; a row takes 2 % of a step */
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_in_range(length, 4, 7);
    fill(used[0], .9f, 3); /* there are no more */
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 3);
    c.max_rows = 2;
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 2);
}

static void test_poor_guesses_are_left_out(void **state) {
    (void)state;
    step_time t = machine();
    draft_costs c = costs(&t, 1);
    float used[1][DRAFT_MAX];
    uint32_t length = 9;
    fill(used[0], .01f, DRAFT_MAX);
    assert_true(draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length) == 1);
    assert_int_equal(length, 0);
    fill(used[0], 0, 0);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 0);
}

/* With many sequences a row costs as much as the token that it may give. */
static void test_load_turns_it_down(void **state) {
    (void)state;
    enum { N = 256 };
    static float used[N][DRAFT_MAX];
    static uint32_t length[N];
    step_time t = machine();
    uint32_t total = 0;
    for (int i = 0; i < N; i++) fill(used[i], i < 2 ? .9f : .5f, DRAFT_MAX);
    draft_costs c = costs(&t, N);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, N, length);
    for (int i = 0; i < N; i++) total += length[i];
    assert_int_equal(total, 0); /* 256 more rows give 1.5 times the tokens in twice the time */
    c = costs(&t, 4);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 4, length);
    assert_true(length[0] >= 2 && length[0] == length[1] && length[2] <= 1); /* the better first */
    for (int i = 0; i < 4; i++) total += length[i];
    assert_int_equal(total, 4); /* 8 rows in all */
}

/* The choice is the best of all numbers of rows taken by chance, found here by trying each. */
static void test_no_other_number_is_better(void **state) {
    (void)state;
    step_time t = machine();
    uint32_t seed = 7;
    for (int round = 0; round < 200; round++) {
        float used[5][DRAFT_MAX], sorted[5 * DRAFT_MAX];
        uint32_t length[5], n = 1 + (uint32_t)round % 5, n_all = 0, chosen = 0;
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            fill(used[i], (float)(seed >> 16 & 1023) / 1024, 1 + (seed >> 26) % DRAFT_MAX);
            for (int j = 0; j < DRAFT_MAX; j++)
                if (used[i][j] > 0) sorted[n_all++] = used[i][j];
        }
        for (uint32_t i = 1; i < n_all; i++)
            for (uint32_t j = i; j > 0 && sorted[j] > sorted[j - 1]; j--) {
                float swap = sorted[j];
                sorted[j] = sorted[j - 1];
                sorted[j - 1] = swap;
            }
        draft_costs c = costs(&t, n);
        double rate = draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, n, length);
        double plain = step_time_of(&t, n), gain = 0, best = 1, got = 0;
        for (uint32_t k = 0; k < n_all; k++) {
            gain += (double)sorted[k];
            double r = (1 + gain / n) * plain / step_time_of(&t, n + k + 1);
            if (r > best) best = r;
        }
        for (uint32_t i = 0; i < n; i++) {
            chosen += length[i];
            for (uint32_t j = 0; j < length[i]; j++) got += (double)used[i][j];
        }
        got = (1 + got / n) * plain / step_time_of(&t, n + chosen);
        assert_true(got > best * 0.97); /* chances are told apart in steps of 1/64 */
        assert_near(rate, got, .03);
    }
}

/* Guesses that take time themselves: as many rounds as pay, none where they are as dear as steps.
 */
static void test_rounds_of_a_draft_model(void **state) {
    (void)state;
    step_time t = machine();
    draft_costs c = costs(&t, 1);
    float used[1][DRAFT_MAX];
    uint32_t cheap, dear, length;
    fill(used[0], .8f, DRAFT_MAX);
    c.round_s = 0.0005;
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &cheap);
    c.round_s = 0.003;
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &dear);
    assert_true(cheap > dear && dear > 0);
    fill(used[0], 1, DRAFT_MAX);
    c.round_s = 0.010;
    assert_true(draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length) == 1);
    assert_int_equal(length, 0);
}

/* Beside a prompt of hundreds of rows a few more are cheap. */
static void test_beside_prompts(void **state) {
    (void)state;
    step_time t = machine();
    for (int i = 0; i < 20; i++) step_time_add_prompt(&t, 512, 0.512);
    draft_costs c = costs(&t, 1);
    c.n_prompt_rows = 500;
    float used[1][DRAFT_MAX];
    uint32_t length;
    fill(used[0], .9f, DRAFT_MAX);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_true(length >= 4);
    fill(used[0], .05f, DRAFT_MAX);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 0);
}

static void test_a_slow_row_is_looked_at_again(void **state) {
    (void)state;
    step_time t = {0};
    for (int i = 0; i < 40; i++) {
        step_time_add(&t, 1, 0.010);
        step_time_add(&t, 2, 0.090); /* something else ran */
    }
    for (uint32_t n = 3; n <= 32; n++) step_time_add(&t, n, 0.1);
    learn(&t, 1, 0.010);
    draft_costs c = costs(&t, 1);
    float used[1][DRAFT_MAX];
    uint32_t length;
    fill(used[0], .9f, 1);
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 0);
    c.hopeful = true;
    draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
    assert_int_equal(length, 1);
}

static void test_records(void **state) {
    (void)state;
    draft_record own = {0}, all = {0};
    all.classes[3].n = 8;
    all.classes[3].hits = 4;
    assert_near(draft_record_chance(&own, &all, 3), .5, 1e-6);
    for (int i = 0; i < 40; i++) draft_record_add(&own, 3, true, 24);
    assert_true(draft_record_chance(&own, &all, 3) > .85);
    assert_true(own.classes[3].n <= 24);
    for (int i = 0; i < 40; i++) draft_record_add(&own, 3, false, 24); /* the old ones fade */
    assert_true(draft_record_chance(&own, &all, 3) < .25);
    assert_true(own.classes[2].n == 0);
}

/* Texts, replayed: a row more costs `row` of a step of one, and guesses of class k come true with
 * chance[k]. One sequence after the other, as the engine takes them, hopeful as it is. */
typedef struct {
    double row, time;
    step_time steps;
    draft_record all;
    uint32_t seed;
} replay;

static replay replay_of(double row) {
    replay r = {.row = row, .seed = 5};
    for (int c = 0; c < DRAFT_CLASSES; c++) {
        r.all.classes[c].n = 8;
        r.all.classes[c].hits = 6;
    }
    for (uint32_t n = 1; n <= 1 + DRAFT_MAX; n++) learn(&r.steps, n, 1 + row * (n - 1));
    return r;
}

static bool happens(replay *r, double chance) {
    r->seed = r->seed * 1664525u + 1013904223u;
    return (r->seed >> 8) < chance * (1 << 24);
}

/* Seconds that a text of n tokens takes. A step of one takes 1. */
static double replay_text(replay *r, uint32_t n, const double chance[DRAFT_CLASSES]) {
    draft_record own = {0};
    draft_allowance allowance = 0;
    double start = r->time;
    uint32_t n_declined = 0;
    for (uint32_t done = 0, first = 0; done < n; first = (first + 1) % DRAFT_CLASSES) {
        draft_costs c = {
            .time = &r->steps, .n_sequences = 1, .max_rows = 511, .hopeful = n_declined >= 64};
        float used[1][DRAFT_MAX] = {{0}}, all = 1;
        uint32_t length, n_true = 0, most = draft_allowance_length(allowance, &c);
        if (most > n - done - 1) most = n - done - 1;
        for (uint32_t j = 0; j < most; j++) {
            uint32_t class = first + j < DRAFT_CLASSES ? first + j : DRAFT_CLASSES - 1;
            used[0][j] = all *= (float)draft_record_chance(&own, &r->all, class);
        }
        draft_length_choose(&c, (const float(*)[DRAFT_MAX])used, 1, &length);
        n_declined = length > 0 || c.hopeful ? 0 : n_declined + 1;
        for (bool right = true; right;) { /* one more than verified: what came instead is known */
            uint32_t class = first + n_true < DRAFT_CLASSES ? first + n_true : DRAFT_CLASSES - 1;
            right = happens(r, chance[class]);
            draft_record_add(&own, class, right, 24);
            draft_record_add(&r->all, class, right, 512);
            if (n_true == length) break;
            n_true += right;
        }
        double seconds = 1 + r->row * length;
        step_time_add(&r->steps, 1 + length, seconds);
        draft_allowance_settle(&allowance, &c, length, length, n_true);
        r->time += seconds;
        done += 1 + n_true;
    }
    return r->time - start;
}

/* After texts whose guesses were all right one comes whose guesses are all wrong: everything that
 * was learned is in favour of guessing, and it costs a hundredth and a step all the same. */
static void test_a_text_unlike_all_others(void **state) {
    (void)state;
    static const double right[DRAFT_CLASSES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double wrong[DRAFT_CLASSES] = {0}, rows[] = {.01, .05, .15, .3, .6, .95};
    for (int i = 0; i < 6; i++)
        for (uint32_t n = 32; n <= 512; n *= 4) {
            replay r = replay_of(rows[i]);
            for (int k = 0; k < 8; k++) replay_text(&r, 400, right);
            double seconds = replay_text(&r, n, wrong);
            if (!(seconds <= n * (1 + DRAFT_LOSS) + 1.01))
                fail_msg("a row of %g: %g s for %u tokens", rows[i], seconds, n);
        }
}

/* Of a step's time each pays for its own guesses, and gets what they save. */
static void test_company_shares_the_time(void **state) {
    (void)state;
    step_time t = machine();
    draft_costs c = costs(&t, 4);
    draft_allowance none = 0, few = 0, many = 0;
    double step = step_time_of(&t, 4), more = step_time_of(&t, 12) - step;
    draft_allowance_settle(&none, &c, 8, 0, 0);
    draft_allowance_settle(&few, &c, 8, 2, 0);
    draft_allowance_settle(&many, &c, 8, 6, 5);
    assert_near(none, DRAFT_LOSS * step / 4, 1e-6);
    assert_near(none - few, more * 2 / 8, 1e-6);
    assert_near(many, 6 * (1 + DRAFT_LOSS) * step / 4 - step / 4 - more * 6 / 8, 1e-6);
    assert_int_equal(draft_allowance_length(few, &c), 0); /* it has had more than a token's time */
    c.round_s = step;                                     /* guesses as dear as tokens */
    assert_int_equal(draft_allowance_length(0, &c), 0);
    assert_in_range(draft_allowance_length(2 * step, &c), 4, 8);
}

/* And a text that is worth it is not held back by what bounds the loss of others. */
static void test_a_text_of_good_guesses(void **state) {
    (void)state;
    static const double half[DRAFT_CLASSES] = {.5, .5, .5, .5, .5, .5, .5, .5, .5, .5};
    static const double good[DRAFT_CLASSES] = {.95, .95, .95, .95, .95, .95, .95, .95, .95, .95};
    replay cheap = replay_of(.05), dear = replay_of(.3);
    assert_true(replay_text(&cheap, 400, good) < 400 / 5.0);
    assert_true(replay_text(&dear, 400, good) < 400 / 2.0);
    assert_true(replay_text(&dear, 400, half) < 400 / 1.05);
}

/* The first step with a guess was held up: later texts try again, each too short for its allowance
 * to pay for what such a step seems to take, and find that guesses pay. */
static void test_a_mishap_is_found_out(void **state) {
    (void)state;
    static const double good[DRAFT_CLASSES] = {.95, .95, .95, .95, .95, .95, .95, .95, .95, .95};
    replay r = replay_of(.05);
    r.steps = (step_time){0};
    learn(&r.steps, 1, 1);
    step_time_add(&r.steps, 2, 5);
    for (int k = 0; k < 20; k++) replay_text(&r, 200, good);
    assert_true(replay_text(&r, 200, good) < 200 / 2.0);
}

/* Who is hopeful may try one guess, though not at the cost of who has lost some already. */
static void test_hope_is_bounded(void **state) {
    (void)state;
    step_time t = {0};
    learn(&t, 1, 1);
    learn(&t, 2, 2.5);
    draft_costs c = costs(&t, 1);
    assert_int_equal(draft_allowance_length(.2, &c), 0);
    c.hopeful = true;
    assert_int_equal(draft_allowance_length(.2, &c), 1);
    assert_int_equal(draft_allowance_length(-.1, &c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_seen),
        cmocka_unit_test(test_the_level_follows),
        cmocka_unit_test(test_rows_of_prompts),
        cmocka_unit_test(test_good_guesses_fill_what_memory_leaves),
        cmocka_unit_test(test_poor_guesses_are_left_out),
        cmocka_unit_test(test_load_turns_it_down),
        cmocka_unit_test(test_no_other_number_is_better),
        cmocka_unit_test(test_rounds_of_a_draft_model),
        cmocka_unit_test(test_beside_prompts),
        cmocka_unit_test(test_a_slow_row_is_looked_at_again),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_a_text_unlike_all_others),
        cmocka_unit_test(test_company_shares_the_time),
        cmocka_unit_test(test_a_text_of_good_guesses),
        cmocka_unit_test(test_a_mishap_is_found_out),
        cmocka_unit_test(test_hope_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
