/* sim: cases that a hand can reckon, with steps that take a + b * tokens. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "plan/sim.h"

typedef struct {
    double step_s, token_s;
    double parts[5]; /* of each step, in place of those, where n_parts is not 0 */
    uint32_t n_parts;
    buf log; /* "8/2 ": tokens and wanted rows of each step, "8/2 of 9 " in a team */
    bool keep;
} cost;

static ridge_status take(void *context, const dev_batch *b, uint32_t n_wanted, sim_step *out,
                         ridge_error *err) {
    cost *c = context;
    uint32_t n = 0;
    (void)err;
    for (uint32_t i = 0; i < b->n_seqs; i++) n += b->seqs[i].n_rows;
    assert_int_equal(n, b->n_tokens);
    *out = (sim_step){.seconds = c->step_s + c->token_s * n};
    out->bounds_s[ROOF_MEMORY] = out->seconds;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        if (i == 0) out->seconds = 0;
        out->seconds += out->parts_s[i] = c->parts[i];
        out->n_parts = c->n_parts;
    }
    if (c->keep) buf_printf(&c->log, "%u/%u ", n, n_wanted);
    if (c->keep && b->n_group_tokens > 0) buf_printf(&c->log, "of %u ", b->n_group_tokens);
    return RIDGE_OK;
}

static cost costs;

static sim_params params(double step_s, double token_s) {
    costs = (cost){.step_s = step_s, .token_s = token_s};
    return (sim_params){.pool = {.n_replicas = 1,
                                 .sched = {.max_num_seqs = 64,
                                           .max_num_batched_tokens = 100000,
                                           .block_size = 16,
                                           .n_groups = 1,
                                           .n_blocks = {10000},
                                           .prefix_caching = true,
                                           .max_model_len = 1000},
                                 .step = take,
                                 .step_context = &costs}};
}

/* Replicas for answers are like the others. */
static sim_result run(const sim_params *given, const traffic_params *t) {
    traffic *from = NULL;
    sim_result r = {0};
    sim_params p = *given;
    uint32_t n_decode = p.decode.n_replicas;
    ridge_error err = {0};
    p.decode = p.pool;
    p.decode.n_replicas = n_decode;
    if (traffic_open(&from, t, &err) != RIDGE_OK || sim_run(&r, &p, from, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
    traffic_close(from);
    return r;
}

/* "AT_MS INPUT OUTPUT [NAMES];" ... */
static sim_result replay(const sim_params *p, const char *requests) {
    char path[] = "/tmp/ridge-sim-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    double at;
    unsigned input, output;
    int n, named;
    char names[64];
    for (const char *s = requests; *s != '\0'; s += n) {
        assert_int_equal(sscanf(s, " %lf %u %u %n", &at, &input, &output, &n), 3);
        names[0] = '\0';
        if (sscanf(s + n, "[%63[0-9,]] %n", names, &named) == 1) n += named;
        fprintf(f,
                "{\"timestamp\":%g,\"input_length\":%u,\"output_length\":%u,\"hash_ids\":[%s]}\n",
                at, input, output, names);
        if (s[n] == ';') n++;
    }
    fclose(f);
    sim_result r =
        run(p, &(traffic_params){.arrivals = TRAFFIC_TRACE, .trace = path, .trace_speed = 1});
    unlink(path);
    return r;
}

static void assert_near(double x, double expected, double within) {
    if (!(fabs(x - expected) <= within)) fail_msg("%.9g, expected %.9g", x, expected);
}

#define NEAR(x, expected) assert_near(x, expected, 1e-9)

/* The first token after a step of 100 tokens, each other after one of 1. */
static void test_one_request(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    sim_result r = replay(&p, "0 100 4");
    NEAR(r.ttft_s.mean, 0.11);
    NEAR(r.ttft_s.p99, 0.11);
    NEAR(r.tpot_s.mean, 0.011);
    NEAR(r.itl_s.max, 0.011);
    assert_int_equal(r.itl_s.n, 3);
    NEAR(r.e2e_s.mean, 0.143);
    NEAR(r.seconds, 0.143);
    NEAR(r.busy_s, 0.143);
    NEAR(r.bounds_s[ROOF_MEMORY], 0.143);
    assert_int_equal(r.n_steps, 4);
    assert_int_equal(r.input_tokens, 100);
    assert_int_equal(r.output_tokens, 4);
    assert_int_equal(r.max_live, 1);
}

/* One place: the second waits for the whole of the first. Two: it joins at the end of a step. */
static void test_two_requests(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.pool.sched.max_num_seqs = 1;
    sim_result r = replay(&p, "0 100 2; 50 200 1");
    NEAR(r.ttft_s.min, 0.11);
    NEAR(r.ttft_s.max, 0.121 - 0.05 + 0.21);
    NEAR(r.queue_s.max, 0.121 - 0.05);
    NEAR(r.seconds, 0.331);
    p.pool.sched.max_num_seqs = 2;
    r = replay(&p, "0 100 3; 50 200 1");
    NEAR(r.ttft_s.max, 0.11 + 0.01 + 0.201 - 0.05); /* with one token of the first in its step */
    NEAR(r.itl_s.max, 0.211);
    NEAR(r.itl_s.min, 0.011);
    NEAR(r.seconds, 0.11 + 0.211 + 0.011);
    assert_int_equal(r.max_live, 2);
}

/* A prompt in chunks of the budget: 40 + 40 + 20; while the other decodes, 39 + 39 + 22. */
static void test_chunks(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.pool.sched.max_num_batched_tokens = 40;
    costs.keep = true;
    replay(&p, "0 100 1");
    assert_string_equal(costs.log.data, "40/0 40/0 20/1 ");
    buf_clear(&costs.log);
    sim_result r = replay(&p, "0 10 9; 1 100 1");
    assert_string_equal(costs.log.data, "10/1 40/1 40/1 23/2 1/1 1/1 1/1 1/1 1/1 ");
    NEAR(r.itl_s.max, 0.05);
    buf_free(&costs.log);
}

/* Every request one step of 10 ms: M/D/1, whose mean wait is s rho / (2 (1 - rho)) (Pollaczek and
 * Khinchine). */
static void test_queue(void **state) {
    (void)state;
    static const double rhos[] = {0.3, 0.5, 0.8};
    for (int i = 0; i < 3; i++) {
        sim_params p = params(0.01, 0);
        p.pool.sched.max_num_seqs = 1;
        sim_result r = run(&p, &(traffic_params){.arrivals = TRAFFIC_POISSON,
                                                 .rate = rhos[i] * 100,
                                                 .n_requests = 200000,
                                                 .input = {LENGTH_FIXED, 5, 0},
                                                 .output = {LENGTH_FIXED, 1, 0},
                                                 .seed = 7});
        double wait = 0.01 * rhos[i] / (2 * (1 - rhos[i]));
        assert_near(r.queue_s.mean, wait, 0.03 * wait);
        assert_near(r.ttft_s.mean, wait + 0.01, 0.03 * wait);
        assert_near(r.busy_s / r.seconds, rhos[i], 0.01);
    }
}

static traffic_params mixed(size_t n, double rate) {
    return (traffic_params){.arrivals = TRAFFIC_POISSON,
                            .rate = rate,
                            .n_requests = n,
                            .input = {LENGTH_UNIFORM, 1, 300},
                            .output = {LENGTH_EXPONENTIAL, 30, 100},
                            .n_prefixes = 3,
                            .seed = 3};
}

/* Whatever is done with them, all tokens are computed and made: here with a cache so small that
 * some are preempted and recomputed, in one replica or several. */
static void test_nothing_is_lost(void **state) {
    (void)state;
    sim_result first = {0};
    for (int i = 0; i < 7; i++) {
        sim_params p = params(0.001, 0.0001);
        traffic_params t = mixed(500, 1000);
        p.prefix_tokens = 40;
        p.pool.sched.n_blocks[0] = i == 1 ? 60 : 5000;
        p.pool.sched.static_batches = i == 2;
        p.pool.sched.prefix_caching = i > 2;
        p.pool.n_replicas = i == 3 ? 4 : i == 4 ? 2 : 1;
        p.decode.n_replicas = i == 4 ? 2 : 0;
        p.pool.n_stages = i == 6 ? 3 : 1;
        p.pool.n_expert = i == 6 ? 2 : 0;
        p.link_bytes_per_s = 1e9;
        p.kv[0].token_bytes = 1e5;
        p.n_drafts = i == 5 ? 4 : 0;
        p.acceptance = 0.7;
        sim_result r = run(&p, &t);
        if (i == 0) first = r;
        assert_int_equal(r.n_requests, 500);
        assert_int_equal(r.n_good, 500);
        assert_int_equal(r.input_tokens, first.input_tokens);
        assert_int_equal(r.output_tokens, first.output_tokens);
        assert_int_equal(r.ttft_s.n, 500);
        assert_true((r.n_preempted > 0) == (i == 1));
        assert_true((r.cached_tokens > 0) == p.pool.sched.prefix_caching);
        assert_int_equal(r.n_transfers > 0, i == 4);
        sim_result again = run(&p, &t);
        assert_memory_equal(&r, &again, sizeof r);
    }
    assert_true(first.input_tokens > 500 * (40 + 1));
}

/* A batch of two: the short answer's row is computed until the long one's is done, and the third
 * waits for both. 4 tokens of room each. */
static void test_static(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.pool.sched.static_batches = true;
    p.pool.sched.prefix_caching = false;
    p.pool.sched.max_num_seqs = 2;
    p.pool.sched.max_model_len = 64;
    costs.keep = true;
    sim_result r = replay(&p, "0 10 2; 0 20 4; 0 30 1");
    assert_string_equal(costs.log.data, "30/2 2/2 2/2 2/2 30/1 ");
    NEAR(r.ttft_s.max, 0.04 + 3 * 0.012 + 0.04);
    NEAR(r.seconds, 0.116);
    /* Reserved are 64 tokens each of 160000; used, with those of the answer, 30 to 33 for two. */
    double held = (0.04 + 3 * 0.012) * 128 + 0.04 * 64;
    double used = 0.04 * 30 + 0.012 * (32 + 22 + 23) + 0.04 * 30;
    NEAR(r.kv_held, held / (160000 * 0.116));
    NEAR(r.kv_used, used / held);
    buf_free(&costs.log);
}

/* Guesses that always come true: five tokens a step; that never do: one, at the cost of five rows.
 */
static void test_guesses(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.n_drafts = 4;
    p.acceptance = 1;
    sim_result r = replay(&p, "0 10 12");
    NEAR(r.seconds, 0.02 + 0.015 + 0.015 + 0.011); /* 1 + 5 + 5 + 1 tokens */
    assert_int_equal(r.n_drafted, 8);
    assert_int_equal(r.n_accepted, 8);
    p.acceptance = 0;
    r = replay(&p, "0 10 7");
    NEAR(r.seconds, 0.02 + 0.015 + 0.015 + 0.014 + 0.013 + 0.012 + 0.011);
    assert_int_equal(r.n_drafted, 4 + 4 + 3 + 2 + 1);
    assert_int_equal(r.n_accepted, 0);
    /* Half: of k guesses those before the first wrong one, sum of a^i over i = 1 .. k. */
    p.acceptance = 0.5;
    p.pool.sched.max_model_len = 20000;
    p.pool.sched.n_blocks[0] = 50000;
    traffic_params t = {
        .n_requests = 64, .input = {LENGTH_FIXED, 10, 0}, .output = {LENGTH_FIXED, 10000, 0}};
    r = run(&p, &t);
    assert_near((double)r.n_accepted / (double)r.n_drafted, (0.5 + 0.25 + 0.125 + 0.0625) / 4,
                0.002);
}

static ridge_status take_draft(void *context, const dev_batch *b, uint32_t n_wanted, sim_step *out,
                               ridge_error *err) {
    (void)err;
    assert_in_range(n_wanted, 0, b->n_seqs);
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) n += b->seqs[i].n_rows;
    assert_int_equal(n, b->n_tokens);
    *out = (sim_step){.seconds = 0.002 + 0.0001 * n};
    if (((cost *)context)->keep) buf_printf(&((cost *)context)->log, "d%u ", n);
    return RIDGE_OK;
}

/* A forward of the draft model for each guess: the first also has what its cache lacks. */
static void test_draft_model(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.n_drafts = 4;
    p.acceptance = 1;
    p.pool.draft = take_draft;
    costs.keep = true;
    sim_result r = replay(&p, "0 10 12");
    /* The prompt and a token; then four guesses and the token after them, which it hasn't seen. */
    assert_string_equal(costs.log.data, "10/1 d11 d1 d1 d1 5/5 d2 d1 d1 d1 5/5 1/1 ");
    NEAR(r.seconds, 0.02 + 0.0031 + 3 * 0.0021 + 0.015 + 0.0022 + 3 * 0.0021 + 0.015 + 0.011);
    NEAR(r.busy_s, r.seconds);
    buf_clear(&costs.log);
    p.acceptance = 0;
    replay(&p, "0 10 4");
    assert_string_equal(costs.log.data, "10/1 d11 d1 3/3 d1 2/2 1/1 ");
    /* It catches up with 8 tokens a forward; until then there are no guesses. */
    buf_clear(&costs.log);
    p.pool.sched.max_num_batched_tokens = 8;
    p.n_drafts = 1;
    replay(&p, "0 10 5");
    assert_string_equal(costs.log.data, "8/0 2/1 d8 1/1 d4 2/2 d1 2/2 1/1 ");
    buf_free(&costs.log);
}

/* The prompt here, the answer there: its first token takes the prompt's step; between that and the
 * second one lie the link, once, and a step of a single token. */
static void test_disaggregated(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.decode.n_replicas = 1;
    p.kv[0].token_bytes = 1000;
    p.link_bytes_per_s = 1e6;
    p.link_latency_s = 0.5;
    sim_result r = replay(&p, "0 100 3");
    NEAR(r.ttft_s.mean, 0.11);
    NEAR(r.itl_s.max, 0.1 + 0.5 + 0.011);
    NEAR(r.itl_s.min, 0.011);
    NEAR(r.seconds, 0.11 + 0.6 + 0.022);
    NEAR(r.transfer_s, 0.1);
    assert_int_equal(r.n_transfers, 1);
    assert_int_equal(r.n_steps, 3);
    /* Two at once share the link one after the other; an answer of one token never leaves. */
    r = replay(&p, "0 100 2; 0 100 2; 0 100 1");
    NEAR(r.ttft_s.max, 0.31);
    NEAR(r.itl_s.min, 0.1 + 0.5 + 0.011);
    NEAR(r.itl_s.max, 0.2 + 0.5 + 0.011);
    assert_int_equal(r.n_transfers, 2);
    /* A decode pool too small for all: who is preempted there computes his prompt again. */
    p.pool.sched.n_blocks[0] = 14;
    r = replay(&p, "0 79 60; 0 79 60");
    assert_true(r.n_preempted > 0);
    assert_int_equal(r.output_tokens, 120);
}

/* Two stages, 10 and 20 ms, a link of 1 ms between them. */
static void test_pipeline(void **state) {
    (void)state;
    sim_params p = params(0, 0);
    costs.parts[0] = 0.01;
    costs.parts[1] = 0.001;
    costs.parts[2] = 0.02;
    costs.n_parts = 3;
    p.pool.n_stages = 2;
    /* Alone, each token takes all of it. */
    sim_result r = replay(&p, "0 100 3");
    NEAR(r.ttft_s.mean, 0.031);
    NEAR(r.seconds, 0.093);
    NEAR(r.busy_s, 0.09); /* of two GPUs; not on the link */
    /* Two are in a team each: the second stage has one after the other. */
    r = replay(&p, "0 100 3; 0 100 3");
    NEAR(r.ttft_s.min, 0.031);
    NEAR(r.ttft_s.max, 0.051);
    NEAR(r.itl_s.max, 0.04); /* at the second stage's pace */
    NEAR(r.itl_s.min, 0.04);
    NEAR(r.seconds, 0.011 + 6 * 0.02);
    NEAR(r.busy_s, 6 * 0.03);
    /* The third arrives while its team's step is under way, and is in the next. */
    costs.keep = true;
    r = replay(&p, "0 7 2; 0 8 2; 12 9 2");
    assert_string_equal(costs.log.data, "7/1 8/1 10/2 1/1 1/1 ");
    NEAR(r.ttft_s.max, 0.071 - 0.012);
    buf_free(&costs.log);
}

/* Two ranks of experts: each takes the next request; both steps take as long as the longer. */
static void test_experts(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.pool.n_expert = 2;
    p.pool.n_tensor = 3;
    costs.keep = true;
    sim_result r = replay(&p, "0 100 2; 0 50 3");
    assert_string_equal(costs.log.data,
                        "100/1 of 150 50/1 of 150 1/1 of 2 1/1 of 2 1/0 of 2 1/1 of 2 ");
    NEAR(r.ttft_s.min, 0.11);
    NEAR(r.ttft_s.max, 0.11);
    NEAR(r.seconds, 0.11 + 0.011 + 0.011);
    NEAR(r.busy_s, 6 * r.seconds);
    assert_int_equal(r.n_steps, 5);
    /* Two stages of two: four schedulers, each with a request. */
    buf_free(&costs.log);
    costs = (cost){.parts = {0.01, 0, 0.01}, .n_parts = 3, .keep = true};
    p.pool.n_stages = 2;
    r = replay(&p, "0 1 2; 0 2 2; 0 3 2; 0 4 2");
    assert_string_equal(costs.log.data,
                        "1/1 of 3 2/1 of 3 3/1 of 7 4/1 of 7 1/1 of 2 1/1 of 2 1/1 of 2 1/1 of 2 ");
    NEAR(r.seconds, 0.05);
    NEAR(r.busy_s, 3 * 2 * 4 * 0.02);
    buf_free(&costs.log);
}

/* Answers where two ranks share the experts, prompts on one: the link is the first's. */
static void test_pools_apart(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    traffic *from = NULL;
    sim_result r;
    traffic_params t = {
        .n_requests = 2, .input = {LENGTH_FIXED, 100, 0}, .output = {LENGTH_FIXED, 3, 0}};
    p.decode = p.pool;
    p.decode.n_expert = 2;
    p.kv[0].token_bytes = 1000;
    p.link_bytes_per_s = 1e6;
    costs.keep = true;
    assert_int_equal(traffic_open(&from, &t, NULL), RIDGE_OK);
    assert_int_equal(sim_run(&r, &p, from, NULL), RIDGE_OK);
    traffic_close(from);
    /* Both prompts at once; then the first alone, the second 100 ms later, once its keys are there.
     */
    assert_string_equal(
        costs.log.data,
        "200/2 1/1 of 2 1/0 of 2 1/1 of 2 1/0 of 2 1/1 of 2 1/0 of 2 1/1 of 2 1/0 of 2 ");
    NEAR(r.seconds, 0.21 + 0.2 + 0.022);
    buf_free(&costs.log);
}

/* Equal names are equal text from the beginning; what has no name is alone. 16 requests long apart:
 * hits as by hand. */
static void test_prefixes(void **state) {
    (void)state;
    sim_params p = params(0.001, 0);
    p.pool.sched.max_model_len = 2000;
    sim_result r = replay(&p, "0 1100 2 [1,2,3]; 100 1100 2 [1,2,4]; 200 1100 2 [2,1,3]; "
                              "300 600 2; 400 600 2; 500 1024 2 [1,2]; 600 1500 2 [1,2,3]");
    /* 1024; 0; 0; 0; all but the last token; 1100 by name, but the first had only 76 of the third
     * block's tokens and then its own answer. */
    assert_int_equal(r.cached_tokens, 1024 + 1023 + 1100);
}

/* By hand: two replicas, answers that last. */
static void test_routers(void **state) {
    (void)state;
    sim_params p = params(0.01, 0);
    p.pool.n_replicas = 2;
    p.pool.sched.max_num_seqs = 1;
    /* Turn by turn the third waits for the first, though the second replica is free. */
    p.router = SIM_ROUND_ROBIN;
    sim_result r = replay(&p, "0 10 100; 0 10 1; 500 10 1");
    NEAR(r.queue_s.max, 0.5);
    p.router = SIM_LEAST_LOADED;
    r = replay(&p, "0 10 100; 0 10 1; 500 10 1");
    NEAR(r.queue_s.max, 0);
    /* What is known goes where it is known: to the first, which is as loaded as the second. */
    p.router = SIM_PREFIX_AWARE;
    r = replay(&p, "0 512 100 [1]; 100 600 1 [1]; 2000 512 1 [1]; 2000 512 1 [2]; 3000 512 1 [2]");
    assert_int_equal(r.cached_tokens, 512 + 511 + 511);
    NEAR(r.queue_s.max, 0.9);
    p.router = SIM_ROUND_ROBIN;
    r = replay(&p, "0 512 1 [1]; 100 512 1 [1]; 200 512 1 [1]");
    assert_int_equal(r.cached_tokens, 511);
    for (int i = 0; i < SIM_N_ROUTERS; i++) {
        sim_router found = SIM_N_ROUTERS;
        assert_true(sim_router_find(sim_router_name((sim_router)i), &found) && (int)found == i);
    }
    sim_router none;
    assert_false(sim_router_find("random", &none));
}

static void test_goodput(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.slo_ttft_s = 0.2;
    p.slo_tpot_s = 0.02;
    sim_result r = replay(&p, "0 100 3; 1000 195 3; 2000 100 3; 2111 100 1");
    assert_int_equal(r.n_requests, 4);
    assert_int_equal(r.n_good, 2); /* the second's first token is late, the third's others are */
}

/* Of layers with a window of 33 the last 32 tokens go over the link, of others all 100. */
static void test_windows_on_the_link(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.decode.n_replicas = 1;
    p.pool.sched.n_groups = 2;
    p.pool.sched.n_blocks[1] = 10000;
    p.pool.sched.window[1] = p.kv[1].window = 33;
    p.kv[0].token_bytes = 1000;
    p.kv[1].token_bytes = 3000;
    p.link_bytes_per_s = 1e6;
    sim_result r = replay(&p, "0 100 2");
    NEAR(r.transfer_s, (100 + 3 * 32) / 1e3);
    r = replay(&p, "0 20 2"); /* all of it is within the window */
    NEAR(r.transfer_s, 4 * 20 / 1e3);
}

/* A context of 100: no room for an answer, for 1, for 50 of 60, for all. */
static void test_context(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    p.pool.sched.max_model_len = 100;
    sim_result r = replay(&p, "0 100 5; 0 99 5; 0 50 60; 0 50 10; 5000 400 1");
    assert_int_equal(r.n_refused, 2);
    assert_int_equal(r.n_cut, 2);
    assert_int_equal(r.n_requests, 3);
    assert_int_equal(r.input_tokens, 99 + 50 + 50);
    assert_int_equal(r.output_tokens, 1 + 50 + 10);
    traffic *from = NULL;
    ridge_error err = {0};
    traffic_params t = {
        .n_requests = 2, .input = {LENGTH_FIXED, 300, 0}, .output = {LENGTH_FIXED, 3, 0}};
    assert_int_equal(traffic_open(&from, &t, NULL), RIDGE_OK);
    assert_int_equal(sim_run(&r, &p, from, &err), RIDGE_ETOOLARGE);
    assert_non_null(strstr(err.text, "request 0: 300 tokens of prompt, but a context has 100"));
    traffic_close(from);
}

/* While one decodes, prompts of 500 come: a step with a whole one takes half a second. Steps of
 * 20 ms have room for nine of their tokens. */
static void test_pace(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    buf requests = {0};
    buf_puts(&requests, "0 10 700");
    for (int i = 0; i < 10; i++) buf_printf(&requests, "; %d 500 1", 3000 + 1000 * i);
    sim_result whole = replay(&p, requests.data);
    NEAR(whole.itl_s.max, 0.01 + 0.501);
    p.pace = true;
    p.slo_tpot_s = 0.02;
    p.pool.cost = (cost_shape){.linear_ops_per_s = 1e9, .row_ops = 1e6};
    sim_result paced = replay(&p, requests.data);
    assert_true(paced.itl_s.max < 0.0225 && paced.itl_s.p99 > 0.0185);
    assert_true(paced.ttft_s.mean > 55 * 0.02 && paced.ttft_s.max > whole.ttft_s.max);
    assert_int_equal(paced.n_requests, 11);
    buf_free(&requests);
}

static void test_too_long(void **state) {
    (void)state;
    sim_params p = params(0.01, 0.001);
    traffic *from = NULL;
    sim_result r;
    ridge_error err = {0};
    traffic_params t = {.n_requests = 5,
                        .input = {LENGTH_FIXED, 100, 0},
                        .output = {LENGTH_UNIFORM, 1, 100},
                        .seed = 1};
    p.pool.sched.n_blocks[0] = 10;
    assert_int_equal(traffic_open(&from, &t, &err), RIDGE_OK);
    assert_int_equal(sim_run(&r, &p, from, &err), RIDGE_ETOOLARGE);
    assert_non_null(strstr(err.text, "100 tokens of prompt"));
    assert_non_null(strstr(err.text, "holds 160"));
    traffic_close(from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_two_requests),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_guesses),
        cmocka_unit_test(test_draft_model),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_disaggregated),
        cmocka_unit_test(test_routers),
        cmocka_unit_test(test_goodput),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_pools_apart),
        cmocka_unit_test(test_windows_on_the_link),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
