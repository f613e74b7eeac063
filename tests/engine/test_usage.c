/* engine/usage: what others' prompts added to a step, what bounds it, and how it is counted. */
#include "unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/usage.h"
#include "tiny_model.h"

/* At these peaks a step of 1000 FLOPs and 100 bytes takes 10 s at the roof either way. */
#define PEAKS .peak_flops_per_s = 100, .peak_bytes_per_s = 10

static void assert_near(double a, double b) {
    if (fabs(a - b) > 1e-12) fail_msg("%.17g is not %.17g", a, b);
}

static void test_share_of_others(void **state) {
    (void)state;
    /* The memory bounds it: without the others it would have taken as long. */
    step_cost c = {.flops = 900, .weight_bytes = 80, .kv_bytes = 20, PEAKS, .n_tokens = 10};
    assert_near(step_roof_s(&c), 10);
    assert_false(step_is_compute_bound(&c));
    assert_near(step_others_share(&c, 9), 0);
    /* The arithmetic bounds it, and would without them. */
    c.flops = 4000;
    assert_near(step_roof_s(&c), 40);
    assert_true(step_is_compute_bound(&c));
    assert_near(step_others_share(&c, 5), .5);
    /* Without them the memory would: 10 s of 40 are left. */
    assert_near(step_others_share(&c, 9), .75);
    assert_near(step_others_share(&c, 0), 0);
    /* Unknown peaks: their part of the tokens. */
    c.peak_bytes_per_s = 0;
    assert_near(step_roof_s(&c), 0);
    assert_false(step_is_compute_bound(&c));
    assert_near(step_others_share(&c, 9), .9);
}

static void test_phases(void **state) {
    (void)state;
    engine_phase p = {0};
    step_cost c = {.seconds = 50,
                   .flops = 4000,
                   .weight_bytes = 100,
                   PEAKS,
                   .n_tokens = 10,
                   .n_prompt_tokens = 8,
                   .n_seqs = 3};
    phase_add_step(&p, &c, 3, false); /* five of others */
    assert_int_equal(p.n_steps, 1);
    assert_int_equal(p.n_seqs, 3);
    assert_near(p.seconds, 50);
    assert_near(p.others_s, 25);
    assert_near(p.again_s, 0);
    assert_near(p.roof_s, 40);
    assert_near(p.compute_s, 50);
    phase_add_step(&p, &c, 8, true);
    assert_int_equal(p.n_seqs, 6);
    assert_int_equal(p.n_mixed, 1);
    assert_near(p.others_s, 25);
    assert_near(p.again_s, 50);
    c.flops = 10;
    phase_add_step(&p, &c, 3, true);
    assert_near(p.seconds, 150);
    assert_near(p.others_s, 25);
    assert_near(p.again_s, 100);
    assert_near(p.roof_s, 90);
    assert_near(p.compute_s, 100);
}

static void test_counters(void **state) {
    (void)state;
    static const struct {
        uint32_t n_tokens;
        size_t bucket;
    } cases[] = {{1, 0}, {2, 1}, {8, 1}, {9, 2}, {512, 7}, {16384, 12}, {16385, 13}};
    engine_stats s = {0};
    step_cost c = {.seconds = 2, .flops = 4000, .weight_bytes = 60, .kv_bytes = 40, PEAKS};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t before = s.step_tokens[cases[i].bucket];
        c.n_tokens = cases[i].n_tokens;
        stats_add_step(&s, &c);
        assert_int_equal(s.step_tokens[cases[i].bucket], before + 1);
    }
    assert_int_equal(s.steps, 7);
    assert_int_equal(s.step_tokens_sum, 1 + 2 + 8 + 9 + 512 + 16384 + 16385);
    assert_near(s.compute_bound_s, 14);
    assert_near(s.memory_bound_s, 0);
    assert_near(s.roof_s, 280);
    assert_near(s.kv_bytes, 280);
    c.flops = 10;
    stats_add_step(&s, &c);
    assert_near(s.memory_bound_s, 2);
    c.peak_flops_per_s = 0;
    stats_add_step(&s, &c);
    assert_near(s.step_s, 18);
    assert_near(s.unknown_bound_s, 2);
}

static bool given_peaks(void *context, const char *isa, int n_threads, uint64_t weight_bytes,
                        roof_peaks *out) {
    (void)context;
    (void)isa;
    (void)n_threads;
    (void)weight_bytes;
    *out = (roof_peaks){1e11, 1e12, 1e12};
    return true;
}

static engine_request request_of(const int32_t *prompt, size_t n, uint32_t max_tokens, int priority,
                                 engine_usage *out) {
    engine_request r = engine_request_default();
    r.prompt = prompt;
    r.n_prompt = n;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.priority = priority;
    r.user = out;
    return r;
}

static void step_until_idle(engine *e) {
    const engine_event *events;
    size_t n;
    double last = 0;
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) {
            assert_true(events[i].time_s >= last);
            last = events[i].time_s;
            if (events[i].finish != ENGINE_RUNNING)
                *(engine_usage *)events[i].user = events[i].usage;
        }
}

/* Two requests through a real engine: the phases have as many steps as the schedule, and their
 * times fit inside those of the request. */
static void test_of_an_engine(void **state) {
    (void)state;
    engine *e = NULL;
    engine_params p = engine_params_default();
    engine_usage a, b;
    int32_t prompt[40];
    uint64_t id;
    for (int i = 0; i < 40; i++) prompt[i] = 3 + i;
    p.model_path = tiny_llama_path;
    p.prefix_caching = false; /* every token of a prompt is computed */
    p.n_threads = 1;
    p.max_num_seqs = 2;
    p.max_num_batched_tokens = 16;
    p.max_model_len = TINY_N_CONTEXT;
    p.kv_cache_bytes = 1 << 20;
    p.peaks = given_peaks;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    engine_request r = request_of(prompt, 40, 5, 0, &a), s = request_of(prompt, 3, 4, 0, &b);
    assert_int_equal(engine_submit(e, &r, &id, NULL), RIDGE_OK);
    assert_int_equal(engine_submit(e, &s, &id, NULL), RIDGE_OK);
    step_until_idle(e);
    assert_int_equal(a.n_ahead, 0);
    assert_int_equal(b.n_ahead, 1);
    assert_int_equal(a.prefill.n_steps, 3); /* 16, 16 and 8 of 40 */
    assert_int_equal(a.prefill.n_seqs, 4);  /* in the last with the other one */
    assert_int_equal(a.decode.n_steps, 4);
    assert_int_equal(b.prefill.n_steps, 1);
    assert_int_equal(b.decode.n_steps, 3);
    const engine_usage *both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        const engine_usage *u = both[i];
        assert_true(u->prefill_s > 0 && u->decode_s > 0 && u->queue_s >= 0);
        assert_near(u->queue_s + u->prefill_s, u->ttft_s);
        /* A step goes on for a moment after its token is drawn. */
        assert_true(u->prefill.seconds > 0 && u->prefill.seconds < u->prefill_s + .1);
        assert_true(u->decode.seconds > 0 && u->decode.seconds < u->decode_s + .1);
        assert_true(u->prefill.others_s >= 0 && u->prefill.others_s < u->prefill.seconds);
        assert_true(u->prefill.roof_s > 0 && u->decode.roof_s > 0);
        assert_true(u->prefill.again_s == 0 && u->n_preempted == 0);
    }
    engine_stats stats;
    engine_get_stats(e, &stats);
    assert_int_equal(stats.steps, 7);
    assert_int_equal(stats.step_tokens_sum, 40 + 3 + 4 + 3);
    assert_true(stats.flops > 0 && stats.weight_bytes > 0 && stats.roof_s > 0);
    assert_near(stats.memory_bound_s + stats.compute_bound_s, stats.step_s);
    assert_true(stats.device_s > 0 && stats.device_s <= stats.step_s);
    engine_close(e);
}

/* A pool for hardly more than one: what the loser had is computed again, and said to be. */
static void test_of_a_preemption(void **state) {
    (void)state;
    engine *e = NULL;
    engine_params p = engine_params_default();
    engine_usage a, b;
    int32_t prompt[20];
    uint64_t id;
    for (int i = 0; i < 20; i++) prompt[i] = 3 + i;
    p.model_path = tiny_llama_path;
    p.prefix_caching = false; /* every token of a prompt is computed */
    p.n_threads = 1;
    p.block_size = 4;
    p.max_model_len = 60;
    p.kv_cache_bytes = 1 << 20;
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    p.kv_cache_bytes = 15 * 4 * engine_kv_bytes_per_token(e);
    engine_close(e);
    assert_int_equal(engine_open(&e, &p, NULL), RIDGE_OK);
    engine_request r = request_of(prompt, 20, 36, 0, &a), s = request_of(prompt, 20, 36, 1, &b);
    assert_int_equal(engine_submit(e, &r, &id, NULL), RIDGE_OK);
    assert_int_equal(engine_submit(e, &s, &id, NULL), RIDGE_OK);
    step_until_idle(e);
    engine_close(e);
    assert_int_equal(a.n_preempted, 0);
    assert_true(a.prefill.again_s + a.decode.again_s == 0);
    assert_true(b.n_preempted > 0);
    assert_true(b.decode.again_s > 0 && b.decode.again_s < b.decode.seconds);
    assert_true(b.decode.seconds < b.decode_s); /* it waited, too */
    assert_near(b.prefill.roof_s, 0);           /* the peaks are unknown */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share_of_others), cmocka_unit_test(test_phases),
        cmocka_unit_test(test_counters),        cmocka_unit_test(test_of_an_engine),
        cmocka_unit_test(test_of_a_preemption),
    };
    return cmocka_run_group_tests(tests, tiny_llama_setup, tiny_llama_teardown);
}
