/* The ideal profile is the roofline; more work never takes less time; files are checked. */
#include "unit.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "roof/efficiency.h"
#include "roof/roof.h"

static const efficiency_peaks H100 = {
    .flops_per_s = 989e12, .bytes_per_s = 3.35e12, .link_bytes_per_s = 450e9};

static efficiency_profile some_profile(void) {
    efficiency_profile p = {.name = "some", .made = "by hand", .activations = 1};
    for (int k = 0; k < EFFICIENCY_N_KINDS; k++)
        p.kinds[k] = (efficiency_numbers){.compute = 0.7,
                                          .bandwidth = 0.9,
                                          .link = 0.8,
                                          .overhead_s = 4e-6,
                                          .latency_s = 1e-6,
                                          .sharpness = 2,
                                          .wave_outputs = 2e5,
                                          .few_compute = 0.7,
                                          .from = "thin air"};
    p.kinds[EFFICIENCY_SEND].sharpness = INFINITY;
    return p;
}

static efficiency_op linear(double m, double k, double n) {
    return (efficiency_op){.kind = EFFICIENCY_LINEAR,
                           .flops = 2 * m * n * k,
                           .bytes = 2 * n * k,
                           .intermediate_bytes = 2 * m * (n + k),
                           .m = m,
                           .n = n,
                           .k = k,
                           .n_ranks = 2};
}

static double seconds(const efficiency_profile *p, const efficiency_op *op) {
    return efficiency_seconds(p, &H100, op);
}

static void assert_near(double is, double should) {
    if (!(fabs(is - should) <= 1e-9 * fabs(should))) fail_msg("%.12g, not %.12g", is, should);
}

static void ideal_is_the_roofline(void **state) {
    (void)state;
    efficiency_profile ideal = efficiency_ideal();
    for (int kind = 0; kind < EFFICIENCY_ALL_REDUCE; kind++)
        for (double m = 1; m <= 8192; m *= 2) {
            efficiency_op op = linear(m, 8192, 28672);
            op.kind = (efficiency_kind)kind;
            double roof = roof_seconds(op.flops, H100.flops_per_s, op.bytes, H100.bytes_per_s);
            assert_near(seconds(&ideal, &op), roof);
        }
    assert_near(seconds(&ideal, &(efficiency_op){.kind = EFFICIENCY_ADD, .m = 100}), 0);
}

static void collectives_are_rings(void **state) {
    (void)state;
    efficiency_profile ideal = efficiency_ideal();
    efficiency_op op = {.kind = EFFICIENCY_ALL_REDUCE, .bytes = 450e6, .n_ranks = 4};
    assert_near(seconds(&ideal, &op), 1.5e-3);
    op.kind = EFFICIENCY_ALL_GATHER;
    assert_near(seconds(&ideal, &op), 0.75e-3);
    op.kind = EFFICIENCY_SEND;
    assert_near(seconds(&ideal, &op), 1e-3);
    efficiency_profile some = some_profile();
    op.n_ranks = 1;
    for (op.kind = EFFICIENCY_ALL_REDUCE; op.kind < EFFICIENCY_N_KINDS; op.kind++)
        assert_near(seconds(&some, &op), 0);
}

/* 3e-6 and 4e-6 seconds by a norm of 2 are 5e-6; with an overhead of 1e-6, 6e-6. */
static void terms_join_by_the_norm(void **state) {
    (void)state;
    efficiency_profile p = efficiency_ideal();
    p.kinds[EFFICIENCY_LINEAR] = (efficiency_numbers){.compute = 0.5,
                                                      .bandwidth = 0.25,
                                                      .link = 1,
                                                      .overhead_s = 1e-6,
                                                      .sharpness = 2,
                                                      .wave_outputs = 1000};
    efficiency_op op = {.kind = EFFICIENCY_LINEAR,
                        .flops = 0.5 * 989e12 * 3e-6 - 2 * 64 * 1000,
                        .bytes = 0.25 * 3.35e12 * 4e-6,
                        .k = 64};
    assert_near(seconds(&p, &op), 6e-6);
    p.kinds[EFFICIENCY_SEND] = (efficiency_numbers){
        .compute = 1, .bandwidth = 1, .link = 0.5, .latency_s = 3e-6, .sharpness = 2};
    op = (efficiency_op){.kind = EFFICIENCY_SEND, .bytes = 0.5 * 450e9 * 4e-6, .n_ranks = 2};
    assert_near(seconds(&p, &op), 5e-6);
}

/* Peak 1e12: 8 tokens by 1,000 x 500 are 8e6 operations, at a quarter of it 32 us; 9 are 9e6, and
 * 3 more for unpacking, at half of it 24 us. */
static void a_few_tokens_have_kernels_of_their_own(void **state) {
    (void)state;
    static const efficiency_peaks peaks = {.flops_per_s = 1e12};
    efficiency_profile p = efficiency_ideal();
    efficiency_numbers *c = &p.kinds[EFFICIENCY_LINEAR];
    c->compute = 0.5;
    c->few_tokens = 8;
    c->few_compute = 0.25;
    c->unpack_tokens = 3;
    efficiency_op op = linear(8, 1000, 500);
    op.bytes = 0;
    assert_near(efficiency_seconds(&p, &peaks, &op), 32e-6);
    op = linear(9, 1000, 500);
    op.bytes = 0;
    assert_near(efficiency_seconds(&p, &peaks, &op), 24e-6);
}

static void activations_count_by_their_share(void **state) {
    (void)state;
    efficiency_profile p = efficiency_ideal();
    efficiency_op op = {.kind = EFFICIENCY_ADD, .intermediate_bytes = 600000};
    p.activations = 0.5;
    assert_near(seconds(&p, &op), 300000 / 3.35e12);
}

static void assert_grows(const efficiency_profile *p, efficiency_op op, efficiency_op more) {
    if (!(seconds(p, &more) >= seconds(p, &op)))
        fail_msg("kind %d, %g rows: %g, then %g", (int)op.kind, op.m, seconds(p, &op),
                 seconds(p, &more));
}

/* Of the profiles that come with ridge, too. */
static void more_is_never_faster(void **state) {
    (void)state;
    efficiency_profile profiles[8] = {efficiency_ideal(), some_profile()};
    size_t n = 2;
    ridge_error err = {0};
    for (const efficiency_builtin *b = efficiency_builtins; b->name != NULL; b++)
        assert_int_equal(efficiency_find(&profiles[n++], b->name, &err), RIDGE_OK);
    for (size_t i = 0; i < n; i++)
        for (int kind = 0; kind < EFFICIENCY_N_KINDS; kind++)
            for (double m = 1; m < 1e6; m = ceil(m * 1.1)) {
                efficiency_op a = linear(m, 4096, 4096), b = linear(m + 1, 4096, 4096);
                efficiency_op wider = linear(m, 4096, 4097), deeper = linear(m, 4097, 4096);
                a.kind = b.kind = wider.kind = deeper.kind = (efficiency_kind)kind;
                assert_grows(&profiles[i], a, b);
                assert_grows(&profiles[i], a, wider);
                assert_grows(&profiles[i], a, deeper);
                assert_true(seconds(&profiles[i], &a) >= 0 && isfinite(seconds(&profiles[i], &b)));
            }
}

/* ---- files ---- */

static void a_file_says_the_same(void **state) {
    (void)state;
    efficiency_profile p = some_profile(), q;
    ridge_error err = {0};
    buf text = {0};
    p.kinds[EFFICIENCY_LINEAR].few_tokens = 8;
    p.kinds[EFFICIENCY_LINEAR].unpack_tokens = 2.5;
    p.machine = (efficiency_machine){"a \"CPU\", 2 threads", 4.25e11, 2.5e10, 1.6e10, 0, 1e9};
    p.host = (efficiency_host){0.00025, 0};
    efficiency_write(&text, &p);
    assert_false(text.failed);
    assert_int_equal(efficiency_parse(&q, "some.json", text.data, text.len, &err), RIDGE_OK);
    assert_string_equal(q.name, p.name);
    assert_string_equal(q.made, p.made);
    for (int c = 0; c < EFFICIENCY_N_KINDS; c++) {
        assert_true(q.kinds[c].sharpness == p.kinds[c].sharpness);
        assert_true(q.kinds[c].latency_s == p.kinds[c].latency_s);
        assert_true(q.kinds[c].wave_outputs == p.kinds[c].wave_outputs);
        assert_true(q.kinds[c].few_tokens == p.kinds[c].few_tokens);
        assert_true(q.kinds[c].few_compute == p.kinds[c].few_compute);
        assert_true(q.kinds[c].unpack_tokens == p.kinds[c].unpack_tokens);
        assert_string_equal(q.kinds[c].from, p.kinds[c].from);
    }
    assert_string_equal(q.machine.title, p.machine.title);
    assert_true(q.machine.flops_per_s == p.machine.flops_per_s);
    assert_true(q.machine.bytes_per_s == p.machine.bytes_per_s);
    assert_true(q.machine.memory_bytes == p.machine.memory_bytes);
    assert_true(q.machine.link_bytes_per_s == 0 && q.machine.network_bytes_per_s == 1e9);
    assert_true(q.host.step_s == 0.00025 && q.host.token_s == 0);
    efficiency_op op = linear(77, 333, 4444);
    assert_near(seconds(&q, &op), seconds(&p, &op));
    buf_free(&text);
}

#define HEAD "{\"format\":\"ridge efficiency profile\",\"version\":1,\"name\":\"x\",\"made\":\"\","
#define PEAKS "\"flops_per_s\":1e12,\"bytes_per_s\":1e10"
#define REST HEAD "\"activations\":1,\"kinds\":"

static void a_kind_left_out_is_ideal(void **state) {
    (void)state;
    static const char text[] = REST "{\"linear\":{\"compute\":0.5}}}";
    efficiency_profile p;
    ridge_error err = {0};
    assert_int_equal(efficiency_parse(&p, "x", text, strlen(text), &err), RIDGE_OK);
    assert_near(p.kinds[EFFICIENCY_LINEAR].compute, 0.5);
    assert_near(p.kinds[EFFICIENCY_LINEAR].bandwidth, 1);
    assert_near(p.kinds[EFFICIENCY_NORM].compute, 1);
    assert_near(p.kinds[EFFICIENCY_LINEAR].few_compute, 1);
    assert_true(p.machine.flops_per_s == 0);
    assert_true(p.host.step_s == 0 && p.host.token_s == 0);
}

static void faults_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1: not JSON"},
        {"[1]", "expected an object"},
        {"{\"format\":\"other\"}", "'other'"},
        {"{\"format\":7}", "\"format\": expected a string"},
        {"{\"format\":\"ridge efficiency profile\",\"version\":2}", "\"version\": 2"},
        {HEAD "\"activations\":2,\"kinds\":{}}", "\"activations\": 2, expected 0 to 1"},
        {HEAD "\"activations\":1}", "\"kinds\": expected an object"},
        {REST "{},\"more\":1}", "unknown fields"},
        {REST "{},\"machine\":1}", "\"machine\": expected an object"},
        {REST "{},\"machine\":{}}", "\"title\": expected a string"},
        {REST "{},\"machine\":{\"title\":\"x\"," PEAKS "}}",
         "machine.memory_bytes: expected a number"},
        {REST "{},\"machine\":{\"title\":\"x\"," PEAKS ",\"memory_bytes\":0}}",
         "machine.memory_bytes: 0, expected 1e+06 to 1e+21"},
        {REST "{},\"machine\":{\"title\":\"x\"," PEAKS ",\"memory_bytes\":1e9,\"m\":1}}",
         "machine: unknown fields"},
        {REST "{},\"host\":1}", "\"host\": expected an object of step_s and token_s"},
        {REST "{},\"host\":{\"step_s\":0}}", "\"host\": expected an object of step_s and token_s"},
        {REST "{},\"host\":{\"step_s\":0,\"token\":0}}", "host.token_s: expected a number"},
        {REST "{},\"host\":{\"step_s\":-1,\"token_s\":0}}", "host.step_s: -1, expected 0 to 1"},
        {REST "{},\"host\":{\"step_s\":0,\"token_s\":2}}", "host.token_s: 2, expected 0 to 1"},
        {REST "{\"linear\":{\"few_tokens\":-1}}}", "kinds.linear.few_tokens: -1"},
        {REST "{\"linear\":{\"few_compute\":0}}}", "kinds.linear.few_compute: 0"},
        {REST "{\"lineal\":{}}}", "kinds.lineal: no such kind"},
        {REST "{\"linear\":7}}", "kinds.linear: expected an object"},
        {REST "{\"linear\":{\"speed\":1}}}", "kinds.linear.speed: unknown field"},
        {REST "{\"linear\":{\"compute\":\"1\"}}}", "kinds.linear.compute: expected a number"},
        {REST "{\"linear\":{\"compute\":0}}}", "kinds.linear.compute: 0, expected 1e-06 to 100"},
        {REST "{\"linear\":{\"compute\":null}}}", "kinds.linear.compute: expected a number"},
        {REST "{\"linear\":{\"overhead_s\":-1}}}", "kinds.linear.overhead_s: -1"},
        {REST "{\"linear\":{\"sharpness\":0.5}}}", "kinds.linear.sharpness: 0.5"},
        {REST "{\"linear\":{\"compute\":1,\"compute\":1}}}", "not JSON: duplicate"},
        {REST "{\"linear\":{\"from\":1}}}", "\"from\": expected a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        efficiency_profile p = {.name = "untouched"};
        ridge_error err = {0};
        ridge_status s = efficiency_parse(&p, "x.json", cases[i].text, strlen(cases[i].text), &err);
        assert_int_equal(s, RIDGE_EFORMAT);
        assert_string_equal(err.where, "x.json");
        if (strstr(err.text, cases[i].error) == NULL)
            fail_msg("%s: '%s', expected '%s'", cases[i].text, err.text, cases[i].error);
        assert_string_equal(p.name, "untouched");
    }
}

static void unknown_names_list_the_known(void **state) {
    (void)state;
    efficiency_profile p;
    ridge_error err = {0};
    assert_int_equal(efficiency_find(&p, "ideal", &err), RIDGE_OK);
    assert_int_equal(efficiency_find(&p, "h1000", &err), RIDGE_ENOTFOUND);
    assert_non_null(strstr(err.text, "'h1000': expected ideal, a100, h100 or a file"));
    error_reset(&err);
    assert_int_equal(efficiency_find(&p, "/nowhere/x.json", &err), RIDGE_ENOTFOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ideal_is_the_roofline),
        cmocka_unit_test(terms_join_by_the_norm),
        cmocka_unit_test(a_few_tokens_have_kernels_of_their_own),
        cmocka_unit_test(activations_count_by_their_share),
        cmocka_unit_test(collectives_are_rings),
        cmocka_unit_test(more_is_never_faster),
        cmocka_unit_test(a_file_says_the_same),
        cmocka_unit_test(a_kind_left_out_is_ideal),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(unknown_names_list_the_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
