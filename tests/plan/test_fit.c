/* plan/fit and plan/measured: files are checked; the fit finds the numbers that made its samples;
 * on real measurements, what was held out is predicted within the stated bars. */
#include "unit.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plan/fit.h"
#include "plan/minimize.h"

#define PROFILES "../shared/data/gpu_profiles"

/* NVIDIA's data sheets: A100 80GB SXM and H100 SXM, dense, 16 bits. */
static const fit_params A100 = {
    .peaks = {.flops_per_s = 312e12, .bytes_per_s = 2.039e12, .link_bytes_per_s = 300e9},
    .network_bytes_per_s = 25e9};
static const fit_params H100 = {
    .peaks = {.flops_per_s = 989e12, .bytes_per_s = 3.35e12, .link_bytes_per_s = 450e9},
    .network_bytes_per_s = 50e9};

/* ---- minimize ---- */

/* Rosenbrock's valley: the minimum is at (1, 1). */
static double valley(const void *context, const double *x) {
    (void)context;
    return 100 * pow(x[1] - x[0] * x[0], 2) + pow(1 - x[0], 2);
}

static void the_valley_is_followed_to_its_end(void **state) {
    (void)state;
    double x[] = {-1.2, 1};
    assert_true(minimize(valley, NULL, x, 2, 0.5, 2000) < 1e-6);
    assert_true(fabs(x[0] - 1) < 1e-2 && fabs(x[1] - 1) < 1e-2);
}

/* ---- files ---- */

#define SHAPE                                                                                      \
    "n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
#define MLP "time_stats.mlp_up_proj.median,time_stats.attn_rope.median," SHAPE "\n"
#define REDUCE "time_stats.all_reduce.median,num_workers,devices_per_node,size\n"
#define SEND "time_stats.send_recv.median,num_workers,devices_per_node,size\n"

static ridge_status parse(measured *m, const char *text, ridge_error *err) {
    return measured_parse(m, "x.csv", text, strlen(text), err);
}

static void rows_become_operations(void **state) {
    (void)state;
    measured m = {0};
    ridge_error err = {0};
    assert_int_equal(parse(&m, MLP "0.5,0.25,32,8,4096,14336,True,100,2\n", &err), RIDGE_OK);
    assert_int_equal(m.n, 2);
    const efficiency_op *up = &m.samples[0].ops[0], *rope = m.samples[1].ops;
    assert_true(m.samples[0].seconds == 0.5e-3);
    assert_int_equal(m.samples[0].workers, 2);
    assert_true(up->k == 4096 && up->n == 14336 && up->m == 100);
    assert_true(up->flops == 2.0 * 100 * 4096 * 14336 && up->bytes == 2.0 * 4096 * 14336);
    assert_int_equal(m.samples[1].n_ops, 2); /* 16 heads of 128, then 4 */
    assert_true(rope[0].intermediate_bytes == 2.0 * 100 * 2 * 2048 &&
                rope[1].intermediate_bytes == 2.0 * 100 * 2 * 512);
    measured_free(&m);
}

static void sends_may_leave_the_node(void **state) {
    (void)state;
    measured m = {0};
    ridge_error err = {0};
    assert_int_equal(parse(&m, REDUCE "0.1,4,4,1000\n", &err), RIDGE_OK);
    assert_int_equal(parse(&m, SEND "0.1,2,2,1000\n0.1,2,1,1000\n", &err), RIDGE_OK);
    assert_int_equal(m.n, 3);
    static const efficiency_kind kinds[] = {EFFICIENCY_ALL_REDUCE, EFFICIENCY_SEND,
                                            EFFICIENCY_SEND_NETWORK};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(m.samples[i].ops[0].kind, kinds[i]);
        assert_true(m.samples[i].ops[0].bytes == 1000);
        assert_int_equal(m.samples[i].ops[0].n_ranks, i == 0 ? 4 : 2);
    }
    measured_free(&m);
}

static void times_not_taken_are_left_out(void **state) {
    (void)state;
    measured m = {0};
    ridge_error err = {0};
    assert_int_equal(parse(&m,
                           "\xEF\xBB\xBF" MLP
                           "0.5,,32,8,4096,14336,1,100,2\r\n\n0.5,0,32,8,4096,14336,0,1,1",
                           &err),
                     RIDGE_OK);
    assert_int_equal(m.n, 2);
    assert_true(m.samples[0].ops[0].n == 14336 && m.samples[1].ops[0].n == 14336);
    measured_free(&m);
}

static void faults_are_named_by_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "x.csv:1: expected a header with time_stats.OPERATION.median, found ''"},
        {"a,b\n1,2\n", "x.csv:1: expected a header"},
        {"time_stats.add.median,n_head\n1,2\n", "x.csv:1: no column n_kv_head"},
        {"time_stats.all_reduce.median,size\n", "x.csv:1: no column num_workers"},
        {MLP, "x.csv: no times in it"},
        {MLP "0.5\n", "x.csv:2: 1 fields, expected 9 as in the header"},
        {MLP "0.5,0.2,32,8,4096,14336,True,100,2\n-1,0.2,32,8,4096,14336,True,100,2\n",
         "x.csv:3: mlp_up_proj is -1, expected 0"},
        {MLP "fast,0.2,32,8,4096,14336,True,100,2\n", "x.csv:2: mlp_up_proj is 'fast'"},
        {MLP "nan,0.2,32,8,4096,14336,True,100,2\n", "x.csv:2: mlp_up_proj is nan, expected"},
        {MLP "0.5,0.2,32,8,4096,14336,True,0,2\n", "x.csv:2: num_tokens is 0, expected 1"},
        {MLP "0.5,0.2,32,8,4096,14336,True,1.5,2\n", "x.csv:2: num_tokens is 1.5"},
        {MLP "0.5,0.2,32,8,4096,14336,yes,1,2\n", "x.csv:2: use_gated_mlp is 'yes'"},
        {MLP "0.5,0.2,30,8,4096,14336,True,1,1\n", "x.csv:2: n_embd 4096 is not a multiple"},
        {MLP "0.5,0.2,32,8,4096,14336,True,1,3\n", "x.csv:2: 3 workers do not share 32 heads"},
        {REDUCE "0.1,4,4,1e99\n", "x.csv:2: size is 1e+99"},
        {REDUCE "0.1,4,4,\n", "x.csv:2: size is '', expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measured m = {0};
        ridge_error err = {0};
        assert_int_equal(parse(&m, cases[i].text, &err), RIDGE_EFORMAT);
        if (strstr(err.text, cases[i].error) == NULL)
            fail_msg("'%s', expected '%s'", err.text, cases[i].error);
        measured_free(&m);
    }
}

/* Equal sizes are never on both sides. */
static void every_other_size_is_held_out(void **state) {
    (void)state;
    measured m = {0};
    ridge_error err = {0};
    assert_int_equal(
        parse(&m, REDUCE "1,2,2,30\n1,2,2,10\n1,2,2,20\n1,2,2,20\n1,4,4,10\n1,4,4,20\n", &err),
        RIDGE_OK);
    assert_int_equal(measured_hold_out(&m, "every-other", &err), RIDGE_OK);
    static const bool held_out[] = {false, true, true, false, false, true};
    for (size_t i = 0; i < 6; i++) assert_int_equal(m.samples[i].held_out, held_out[i]);
    measured_free(&m);
}

static void rules_hold_out_workers_and_files(void **state) {
    (void)state;
    static const char rows[] = MLP "1,1,32,8,4096,14336,True,1,1\n1,1,32,8,4096,14336,True,1,2\n";
    measured m = {0};
    ridge_error err = {0};
    assert_int_equal(measured_parse(&m, "a.csv", rows, strlen(rows), &err), RIDGE_OK);
    assert_int_equal(measured_parse(&m, "b.csv", rows, strlen(rows), &err), RIDGE_OK);
    assert_int_equal(measured_hold_out(&m, "tp=2,b.c", &err), RIDGE_OK);
    static const bool held_out[] = {false, false, true, true, true, true, true, true};
    for (size_t i = 0; i < 8; i++) assert_int_equal(m.samples[i].held_out, held_out[i]);
    static const char *const bad[] = {"tp=4", "tp=", "tp=2x", "every-other", "c.csv", "a.csv,", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error_reset(&err);
        assert_int_equal(measured_hold_out(&m, bad[i], &err), RIDGE_EINVAL);
        assert_non_null(strstr(err.text, "holds no measurement out"));
    }
    measured_free(&m);
}

/* ---- the fit ---- */

static measured_sample linear_sample(double m, double k, double n) {
    measured_sample s = {.kind = MEASURED_MLP_UP_PROJ, .n_ops = 1, .workers = 1};
    s.ops[0] = (efficiency_op){.kind = EFFICIENCY_LINEAR,
                               .flops = 2 * m * n * k,
                               .bytes = 2 * n * k,
                               .intermediate_bytes = 2 * m * (n + k),
                               .m = m,
                               .n = n,
                               .k = k};
    return s;
}

static void assert_about(double is, double should, double within) {
    if (!(fabs(is / should - 1) <= within)) fail_msg("%g, not %g", is, should);
}

static void known_numbers_are_found(void **state) {
    (void)state;
    static measured_sample samples[300];
    measured m = {.samples = samples};
    efficiency_profile truth = efficiency_ideal(), fitted;
    ridge_error err = {0};
    truth.activations = 1;
    truth.kinds[EFFICIENCY_LINEAR] = (efficiency_numbers){.compute = 0.62,
                                                          .bandwidth = 0.81,
                                                          .link = 1,
                                                          .overhead_s = 6e-6,
                                                          .sharpness = 2.5,
                                                          .wave_outputs = 3e5};
    for (double rows = 1; rows <= 4096; rows = ceil(rows * 1.3))
        for (double n_out = 512; n_out <= 32768; n_out *= 4) {
            samples[m.n] = linear_sample(rows, 4096, n_out);
            samples[m.n].seconds = fit_predict(&truth, &H100, &samples[m.n]);
            m.n++;
        }
    assert_int_equal(fit_profile(&fitted, &m, &H100, &err), RIDGE_OK);
    const efficiency_numbers *c = &fitted.kinds[EFFICIENCY_LINEAR];
    assert_about(c->compute, 0.62, 0.02);
    assert_about(c->bandwidth, 0.81, 0.02);
    assert_about(c->overhead_s, 6e-6, 0.1);
    assert_about(c->sharpness, 2.5, 0.2);
    assert_about(c->wave_outputs, 3e5, 0.2);
    assert_about(fitted.kinds[EFFICIENCY_ATTENTION_DECODE].bandwidth, c->bandwidth, 0);
    assert_string_equal(fitted.kinds[EFFICIENCY_ATTENTION_DECODE].from, "assumed: as linear");
    for (size_t i = 0; i < m.n; i++) samples[i].held_out = true;
    assert_int_equal(fit_profile(&fitted, &m, &H100, &err), RIDGE_EINVAL);
}

/* Errors of +10 %, -20 % and +30 %: by hand. */
static void errors_are_counted(void **state) {
    (void)state;
    measured_sample samples[3];
    measured m = {.samples = samples, .n = 3};
    efficiency_profile ideal = efficiency_ideal();
    static const double errors[] = {0.1, -0.2, 0.3};
    fit_report r;
    ridge_error err = {0};
    for (int i = 0; i < 3; i++) {
        samples[i] = linear_sample(64, 4096, 4096);
        samples[i].seconds = fit_predict(&ideal, &H100, &samples[i]) / (1 + errors[i]);
    }
    assert_int_equal(fit_report_create(&r, &ideal, &m, &H100, &err), RIDGE_OK);
    assert_int_equal(r.n, 3);
    assert_string_equal(r.rows[0].name, "mlp_up_proj");
    assert_string_equal(r.rows[1].name, "linear, all");
    assert_string_equal(r.rows[2].name, "linear, 33 to 128 tokens");
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(r.rows[i].fitted.n, 3);
        assert_int_equal(r.rows[i].held_out.n, 0);
        assert_about(r.rows[i].fitted.median, 0.2, 1e-9);
        assert_about(r.rows[i].fitted.p90, 0.3, 1e-9);
        assert_about(r.rows[i].fitted.bias, 0.1, 1e-9);
    }
    fit_report_free(&r);
}

/* ---- real measurements ---- */

static void assert_bar(const fit_report *r, const char *name, double bar) {
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->rows[i].name, name) != 0) continue;
        const fit_errors *e = &r->rows[i].held_out;
        if (e->n == 0 || e->median > bar)
            fail_msg("%s: %zu held out, median error %.3f, bar %.3f", name, e->n, e->median, bar);
        return;
    }
    fail_msg("no row '%s'", name);
}

static void check_real(const char *const *files, const fit_params *p, const char *rules,
                       fit_report *r) {
    measured m = {0};
    efficiency_profile profile;
    ridge_error err = {0};
    for (; *files != NULL; files++) {
        char path[256];
        snprintf(path, sizeof path, PROFILES "/%s", *files);
        assert_int_equal(measured_open(&m, path, &err), RIDGE_OK);
    }
    assert_int_equal(measured_hold_out(&m, rules, &err), RIDGE_OK);
    assert_int_equal(fit_profile(&profile, &m, p, &err), RIDGE_OK);
    assert_int_equal(fit_report_create(r, &profile, &m, p, &err), RIDGE_OK);
    measured_free(&m);
}

static void skip_without_measurements(void) {
    if (access(PROFILES, R_OK) == 0) return;
    print_message("no " PROFILES ": skipped\n");
    skip();
}

static void another_model_is_predicted(void **state) {
    (void)state;
    static const char *const files[] = {"a100-llama-2-7b-mlp.csv", "a100-llama-3-8b-mlp.csv", NULL};
    fit_report r;
    skip_without_measurements();
    check_real(files, &A100, "llama-3-8b", &r);
    assert_bar(&r, "linear, all", 0.10);
    fit_report_free(&r);
}

static void more_workers_are_predicted(void **state) {
    (void)state;
    static const char *const files[] = {"h100-llama-2-70b-mlp.csv", NULL};
    fit_report r;
    skip_without_measurements();
    check_real(files, &H100, "tp=8", &r);
    assert_bar(&r, "linear, all", 0.15);
    fit_report_free(&r);
}

static void other_sizes_of_collectives_are_predicted(void **state) {
    (void)state;
    static const char *const files[] = {"h100-dgx-all-reduce.csv", "h100-dgx-send-recv.csv", NULL};
    fit_report r;
    skip_without_measurements();
    check_real(files, &H100, "every-other", &r);
    assert_bar(&r, "all_reduce", 0.15);
    assert_bar(&r, "send", 0.15);
    assert_bar(&r, "send to another node", 0.15);
    fit_report_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_valley_is_followed_to_its_end),
        cmocka_unit_test(rows_become_operations),
        cmocka_unit_test(sends_may_leave_the_node),
        cmocka_unit_test(times_not_taken_are_left_out),
        cmocka_unit_test(faults_are_named_by_line),
        cmocka_unit_test(every_other_size_is_held_out),
        cmocka_unit_test(rules_hold_out_workers_and_files),
        cmocka_unit_test(known_numbers_are_found),
        cmocka_unit_test(errors_are_counted),
        cmocka_unit_test(another_model_is_predicted),
        cmocka_unit_test(more_workers_are_predicted),
        cmocka_unit_test(other_sizes_of_collectives_are_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
