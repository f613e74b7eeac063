/* server/explain: each reason from the numbers that make it the largest, and what is said of it. */
#include "unit.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "server/explain.h"

/* 4 steps up to the first token, 10 after it, nothing else. */
static engine_usage plain(void) {
    return (engine_usage){.prompt_tokens = 100,
                          .completion_tokens = 11,
                          .prefill_s = .1,
                          .decode_s = .5,
                          .prefill = {.n_steps = 4, .n_seqs = 4, .seconds = .1},
                          .decode = {.n_steps = 10, .n_seqs = 10, .seconds = .5}};
}

static void check(const engine_usage *u, double total_s, explain_part reason, const char *text) {
    buf b = {0};
    explain_parts p = explain_split(u, total_s);
    explain_sentence(u, &p, &b);
    if (p.reason != reason) fail_msg("reason %d: %s", (int)p.reason, b.data);
    if (strcmp(b.data, text) != 0) fail_msg("'%s', not '%s'", b.data, text);
    buf_free(&b);
}

static void test_decode(void **state) {
    (void)state;
    engine_usage u = plain();
    check(&u, .6, EXPLAIN_DECODE,
          "Its answer took 500 ms of 600 ms: 10 tokens after the first, 50.0 ms each.");
    u.decode.roof_s = .4;
    u.decode.n_seqs = 32;
    check(&u, .6, EXPLAIN_DECODE,
          "Its answer took 500 ms of 600 ms: 10 tokens after the first, 50.0 ms each, at 80 % of "
          "the memory roof, in steps of 3.2 sequences on average.");
    u.draft_tokens = 9;
    u.accepted_tokens = 5;
    u.decode.n_seqs = 10;
    check(&u, .6, EXPLAIN_DECODE,
          "Its answer took 500 ms of 600 ms: 10 tokens after the first, 50.0 ms each, at 80 % of "
          "the memory roof, 5 of 9 drafted ones accepted.");
    u.draft_tokens = u.accepted_tokens = 0;
    u.decode.compute_s = .3;
    u.completion_tokens = 2;
    check(&u, .6, EXPLAIN_DECODE,
          "Its answer took 500 ms of 600 ms: 1 token after the first, 500 ms each, at 80 % of the "
          "compute roof.");
}

static void test_prompt(void **state) {
    (void)state;
    engine_usage u = plain();
    u.prefill_s = u.prefill.seconds = .8125;
    u.prefill.roof_s = .4;
    u.prefill.compute_s = .8;
    check(&u, 1.5, EXPLAIN_PROMPT,
          "Its prompt took 812 ms of 1500 ms: 100 tokens of it to compute, at 49 % of the compute "
          "roof.");
    u.cached_tokens = 99;
    u.prefill.roof_s = 0;
    check(&u, 1.5, EXPLAIN_PROMPT,
          "Its prompt took 812 ms of 1500 ms: 1 token of it to compute (99 more came from the "
          "cache).");
}

static void test_waiting(void **state) {
    (void)state;
    engine_usage u = plain();
    u.queue_s = 2;
    u.n_ahead = 17;
    check(&u, 2.6, EXPLAIN_QUEUE,
          "Waiting in the queue took 2000 ms of 2600 ms: 17 other requests waited or ran when it "
          "came.");
    u.n_ahead = 1;
    check(&u, 2.6, EXPLAIN_QUEUE,
          "Waiting in the queue took 2000 ms of 2600 ms: 1 other request waited or ran when it "
          "came.");
    u = plain();
    u.decode_s = 1.5; /* of which a third in steps */
    check(&u, 1.6, EXPLAIN_TURN,
          "Waiting for room in the steps took 1000 ms of 1600 ms: others filled the token budget "
          "of a step.");
    u.n_preempted = 2;
    check(&u, 1.6, EXPLAIN_PREEMPTED,
          "Being preempted took 1000 ms of 1600 ms: 2 times its cache blocks were given to "
          "others, and it waited and computed again.");
    u = plain();
    check(&u, 4, EXPLAIN_OUTSIDE,
          "What lies outside the engine took 3400 ms of 4000 ms: reading and tokenizing the "
          "request, handing over its tokens.");
}

static void test_shared_steps(void **state) {
    (void)state;
    engine_usage u = plain();
    u.decode.others_s = .3;
    u.prefill.others_s = .05;
    u.decode.n_mixed = 3;
    u.prefill.n_mixed = 1;
    check(&u, .6, EXPLAIN_OTHERS,
          "Prompts of other requests in the same steps took 350 ms of 600 ms: 4 of its 14 steps "
          "computed such, too.");
    /* Computing again is the preemption's, even with no wait for it. */
    u = plain();
    u.n_preempted = 1;
    u.decode.again_s = .3;
    check(&u, .6, EXPLAIN_PREEMPTED,
          "Being preempted took 300 ms of 600 ms: 1 time its cache blocks were given to others, "
          "and it waited and computed again.");
}

static void assert_adds_up(const engine_usage *u, double total_s) {
    explain_parts p = explain_split(u, total_s);
    double sum = 0;
    for (int i = 0; i < EXPLAIN_N_PARTS; i++) {
        assert_true(p.seconds[i] >= 0);
        sum += p.seconds[i];
    }
    assert_true(fabs(sum - total_s) < 1e-12);
}

static void test_parts_add_up(void **state) {
    (void)state;
    engine_usage u = plain();
    u.queue_s = .25;
    u.decode_s = .75;
    u.decode.others_s = .125;
    u.decode.again_s = .0625;
    u.prefill.others_s = .03125;
    assert_adds_up(&u, 2);
    /* Steps end 30 ms after the first token was drawn, and 20 ms after the last. */
    u = plain();
    u.prefill.seconds += .03;
    u.decode.seconds -= .01;
    assert_adds_up(&u, .62);
    u.decode.seconds -= .2; /* less than what lies between the tokens: others had their turn */
    assert_adds_up(&u, .62);
    /* Clocks that don't meet give no part below zero. */
    u.prefill.seconds = .2;
    u.decode.seconds = 1;
    explain_parts p = explain_split(&u, .5);
    for (int i = 0; i < EXPLAIN_N_PARTS; i++) assert_true(p.seconds[i] >= 0);
    /* One that never ran. */
    u = (engine_usage){.prompt_tokens = 3};
    p = explain_split(&u, 0);
    buf b = {0};
    explain_sentence(&u, &p, &b);
    assert_null(strstr(b.data, "nan"));
    buf_free(&b);
}

static void test_json(void **state) {
    (void)state;
    engine_usage u = plain();
    buf b = {0};
    u.cached_tokens = 64;
    u.n_preempted = 1;
    u.decode.roof_s = .25;
    buf_putc(&b, '{');
    explain_write(&u, .6, &b);
    buf_putc(&b, '}');
    json_t *o = json_loads(b.data, 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "main_reason")), "decode");
    assert_non_null(strstr(json_string_value(json_object_get(o, "explanation")), "50 % of"));
    assert_int_equal(json_integer_value(json_object_get(o, "cached_tokens")), 64);
    assert_int_equal(json_integer_value(json_object_get(o, "computed_tokens")), 36);
    assert_int_equal(json_integer_value(json_object_get(o, "steps")), 14);
    assert_int_equal(json_integer_value(json_object_get(o, "preemptions")), 1);
    assert_true(json_real_value(json_object_get(o, "mean_batch")) == 1);
    assert_true(json_real_value(json_object_get(o, "decode_roof_percent")) == 50);
    assert_true(json_is_null(json_object_get(o, "prefill_roof_percent")));
    json_t *parts = json_object_get(o, "parts_ms");
    assert_int_equal(json_object_size(parts), EXPLAIN_N_PARTS);
    assert_true(json_real_value(json_object_get(parts, "decode")) == 500);
    json_decref(o);
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),       cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_waiting),      cmocka_unit_test(test_shared_steps),
        cmocka_unit_test(test_parts_add_up), cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
