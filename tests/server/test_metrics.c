/* server/histogram and server/metrics: what is counted from which event, and the text of it. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/metrics.h"

static void test_histogram(void **state) {
    (void)state;
    static const double bounds[] = {0.001, 0.5, 1, 2560, 100000, 1e6, 5e6};
    static const char *const texts[] = {"0.001",    "0.5",   "1.0",  "2560.0",
                                        "100000.0", "1e+06", "5e+06"};
    histogram h;
    histogram_init(&h, bounds, 7);
    for (size_t i = 0; i < 7; i++) assert_string_equal(h.bound_texts[i], texts[i]);
    assert_int_equal(histogram_count(&h), 0);
    static const struct {
        double x;
        size_t bucket;
    } cases[] = {{0.001, 0}, {0.0011, 1}, {1, 2},    {5e6, 6},
                 {5.1e6, 7}, {0, 0},      {-1e9, 0}, {(double)NAN, 0}};
    double sum = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t before = h.counts[cases[i].bucket];
        histogram_add(&h, cases[i].x);
        assert_int_equal(h.counts[cases[i].bucket], before + 1);
        sum += cases[i].x > 0 ? cases[i].x : 0;
        assert_true(h.sum == sum);
    }
    histogram_add(&h, (double)INFINITY);
    assert_int_equal(histogram_count(&h), 8);
    assert_true(h.sum == sum);
}

static void test_bounds_of_lengths(void **state) {
    (void)state;
    histogram h;
    histogram_init_125(&h, 0);
    assert_int_equal(h.n_bounds, 0);
    histogram_add(&h, 3);
    assert_int_equal(histogram_count(&h), 1);
    histogram_init_125(&h, 1);
    assert_int_equal(h.n_bounds, 1);
    histogram_init_125(&h, 8192);
    assert_int_equal(h.n_bounds, 12);
    assert_string_equal(h.bound_texts[11], "5000.0");
    histogram_init_125(&h, (double)UINT32_MAX);
    assert_int_equal(h.n_bounds, 29);
    assert_string_equal(h.bound_texts[28], "2e+09");
}

/* The value of the line that begins with `series` and a blank. */
static double value_of(const buf *text, const char *series) {
    size_t n = strlen(series);
    for (const char *line = text->data; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, n) == 0 && line[n] == ' ') return strtod(line + n + 1, NULL);
    }
    fail_msg("no series %s", series);
    return 0;
}

#define L "{model_name=\"m\",engine=\"0\""

static void check_value(const buf *text, const char *name, const char *more, double expected) {
    char series[200];
    snprintf(series, sizeof series, "%s" L "%s}", name, more);
    double found = value_of(text, series);
    if (fabs(found - expected) > 1e-9) fail_msg("%s is %.17g, not %.17g", series, found, expected);
}

static void check_histogram(const buf *text, const char *name, double count, double sum) {
    char series[100];
    snprintf(series, sizeof series, "%s_count", name);
    check_value(text, series, "", count);
    snprintf(series, sizeof series, "%s_bucket", name);
    check_value(text, series, ",le=\"+Inf\"", count);
    snprintf(series, sizeof series, "%s_sum", name);
    check_value(text, series, "", sum);
}

static void begin(metrics *m) {
    engine_cache_info cache = {.block_size = 16, .n_blocks = 99, .type = "f16"};
    assert_int_equal(metrics_init(m, "m", false, NULL), RIDGE_OK);
    metrics_model_is_ready(m, 4096, &cache, 10, 100);
}

static const buf *scrape(metrics *m, const engine_stats *s, double now_s) {
    const buf *text = metrics_write(m, s, now_s);
    assert_non_null(text);
    assert_null(strcasestr(text->data, "nan"));
    return text;
}

static engine_event token_at(double time_s) {
    return (engine_event){.has_token = true, .time_s = time_s};
}

static void test_a_request(void **state) {
    (void)state;
    metrics m;
    metrics_sequence q;
    engine_stats s = {0};
    begin(&m);
    metrics_submitted(&m, &q, 100, 50, 100.1);
    engine_event first = token_at(103), second = token_at(103.5), third = token_at(103.5);
    metrics_event(&m, &q, &first, 104);
    const buf *text = scrape(&m, &s, 104);
    check_histogram(text, "vllm:time_to_first_token_seconds", 1, 4);
    check_histogram(text, "vllm:e2e_request_latency_seconds", 0, 0);
    metrics_event(&m, &q, &second, 104);
    third.finish = ENGINE_LENGTH; /* of the same step: no gap of its own */
    third.usage = (engine_usage){.prompt_tokens = 70,
                                 .completion_tokens = 3,
                                 .cached_tokens = 64,
                                 .queue_s = 1,
                                 .prefill_s = 2,
                                 .decode_s = .5,
                                 .prefill = {.n_steps = 1}};
    metrics_event(&m, &q, &third, 105);
    metrics_prompt_done(&m, 1, 3);
    text = scrape(&m, &s, 105);
    check_histogram(text, "vllm:time_to_first_token_seconds", 1, 4);
    check_histogram(text, "vllm:inter_token_latency_seconds", 1, .5);
    check_histogram(text, "vllm:request_time_per_output_token_seconds", 1, .25);
    check_histogram(text, "vllm:e2e_request_latency_seconds", 1, 5);
    check_histogram(text, "vllm:request_queue_time_seconds", 1, 1);
    check_histogram(text, "vllm:request_inference_time_seconds", 1, 2.5);
    check_histogram(text, "vllm:request_prefill_time_seconds", 1, 2);
    check_histogram(text, "vllm:request_decode_time_seconds", 1, .5);
    check_histogram(text, "vllm:request_prompt_tokens", 1, 70);
    check_histogram(text, "vllm:request_generation_tokens", 1, 3);
    check_histogram(text, "vllm:request_prefill_kv_computed_tokens", 1, 6);
    check_histogram(text, "vllm:request_params_max_tokens", 1, 50);
    check_histogram(text, "vllm:request_max_num_generation_tokens", 1, 3);
    check_histogram(text, "vllm:request_params_n", 1, 1);
    check_value(text, "vllm:request_prompt_tokens_bucket", ",le=\"50.0\"", 0);
    check_value(text, "vllm:request_prompt_tokens_bucket", ",le=\"100.0\"", 1);
    check_value(text, "vllm:request_prompt_tokens_bucket", ",le=\"2000.0\"", 1);
    assert_null(strstr(text->data, "le=\"5000.0\"")); /* beyond the context */
    check_value(text, "vllm:request_success_total", ",finished_reason=\"length\"", 1);
    check_value(text, "vllm:request_success_total", ",finished_reason=\"stop\"", 0);
    metrics_deinit(&m);
}

/* Cancelled in the queue: it has ended, but neither ran nor said anything. */
static void test_a_request_that_never_ran(void **state) {
    (void)state;
    metrics m;
    metrics_sequence q;
    engine_stats s = {0};
    begin(&m);
    metrics_submitted(&m, &q, 100, 50, 100);
    engine_event e = {.finish = ENGINE_CANCELLED, .usage = {.prompt_tokens = 70}};
    metrics_event(&m, &q, &e, 101);
    metrics_queue_full(&m);
    s.shed = 4;
    s.accepted_at[2] = 3;
    const buf *text = scrape(&m, &s, 101);
    check_value(text, "vllm:request_success_total", ",finished_reason=\"abort\"", 1);
    check_value(text, "vllm:admission_rejections_total", ",reason=\"queue_full\"", 1);
    check_value(text, "vllm:admission_rejections_total", ",reason=\"slo\"", 4);
    check_value(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", ",position=\"2\"", 3);
    check_histogram(text, "vllm:e2e_request_latency_seconds", 1, 1);
    static const char *const empty[] = {
        "vllm:time_to_first_token_seconds", "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) check_histogram(text, empty[i], 0, 0);
    metrics_deinit(&m);
}

static void test_of_the_engine(void **state) {
    (void)state;
    metrics m;
    engine_stats s = {.n_waiting = 3,
                      .n_running = 2,
                      .kv_blocks = 80,
                      .kv_blocks_used = 20,
                      .steps = 4,
                      .step_tokens = {1, 0, 2},
                      .step_tokens_sum = 25,
                      .step_s = 10,
                      .memory_bound_s = 6,
                      .compute_bound_s = 3,
                      .unknown_bound_s = 1,
                      .roof_s = 5,
                      .flops = 200,
                      .weight_bytes = 30,
                      .kv_bytes = 10};
    begin(&m);
    const buf *text = scrape(&m, &s, 1000);
    check_value(text, "vllm:num_requests_running", "", 2);
    check_value(text, "vllm:num_requests_waiting", "", 3);
    check_value(text, "vllm:num_requests_waiting_by_reason", ",reason=\"capacity\"", 3);
    check_value(text, "vllm:kv_cache_usage_perc", "", .25);
    check_value(text, "ridge:step_seconds_total", ",bound=\"memory\"", 6);
    check_value(text, "ridge:step_seconds_total", ",bound=\"compute\"", 3);
    check_value(text, "ridge:step_seconds_total", ",bound=\"unknown\"", 1);
    check_value(text, "ridge:achieved_flops_per_second", "", 20);
    check_value(text, "ridge:mfu", "", .2);
    check_value(text, "ridge:achieved_bytes_per_second", "", 4);
    check_value(text, "ridge:mbu", "", .4);
    check_value(text, "ridge:roof_utilization", "", .5);
    check_value(text, "vllm:iteration_tokens_total_bucket", ",le=\"1.0\"", 1);
    check_value(text, "vllm:iteration_tokens_total_bucket", ",le=\"8.0\"", 1);
    check_value(text, "vllm:iteration_tokens_total_bucket", ",le=\"16.0\"", 3);
    check_value(text, "vllm:iteration_tokens_total_bucket", ",le=\"16384.0\"", 3);
    check_histogram(text, "vllm:iteration_tokens_total", 3, 25);
    assert_non_null(strstr(text->data, "# TYPE vllm:iteration_tokens_total histogram\n"));
    assert_non_null(strstr(text->data, "# TYPE vllm:prompt_tokens_total counter\n"));
    /* Rates are those since the scrape before, however often it is asked within five seconds. */
    for (int i = 1; i <= 3; i++) {
        s.flops += 300;
        s.step_s += 5;
        text = scrape(&m, &s, 1000 + i);
        check_value(text, "ridge:achieved_flops_per_second", "", (200. + 300 * i) / (10 + 5 * i));
    }
    text = scrape(&m, &s, 1010); /* base: 1000 */
    check_value(text, "ridge:achieved_flops_per_second", "", 60);
    text = scrape(&m, &s, 1020); /* base: 1010, and no step since */
    check_value(text, "ridge:achieved_flops_per_second", "", 0);
    check_value(text, "ridge:mbu", "", 0);
    metrics_deinit(&m);
}

/* How many lines say this series name, whatever its labels. */
static int count_families(const buf *text, const char *kind) {
    int n = 0;
    for (const char *p = text->data; (p = strstr(p, kind)) != NULL; p++) n++;
    return n;
}

static void test_before_the_model_is_there(void **state) {
    (void)state;
    metrics m;
    engine_stats s = {0};
    engine_cache_info cache = {
        .block_size = 16, .n_blocks = 99, .type = "q8_0", .prefix_caching = true};
    assert_int_equal(metrics_init(&m, "m", false, NULL), RIDGE_OK);
    const buf *text = scrape(&m, &s, 50);
    check_value(text, "ridge:engine_ready", "", 0);
    check_histogram(text, "vllm:request_prompt_tokens", 0, 0);
    assert_null(strstr(text->data, "vllm:cache_config_info{"));
    int n_families = count_families(text, "# TYPE ");
    assert_int_equal(count_families(text, "# HELP "), n_families);
    metrics_model_is_ready(&m, 100, &cache, 0, 0);
    text = scrape(&m, &s, 51);
    assert_int_equal(count_families(text, "# TYPE "), n_families);
    check_value(text, "ridge:engine_ready", "", 1);
    assert_non_null(strstr(text->data, "vllm:cache_config_info{block_size=\"16\",cache_dtype="
                                       "\"q8_0\",enable_prefix_caching=\"True\","
                                       "num_gpu_blocks=\"99\",engine=\"0\"} 1.0\n"));
    assert_null(strstr(text->data, "gpu_cache_usage_perc"));
    metrics_deinit(&m);
    assert_int_equal(metrics_init(&m, "m", true, NULL), RIDGE_OK);
    s.kv_blocks = 2;
    s.kv_blocks_used = 1;
    text = scrape(&m, &s, 52);
    check_value(text, "vllm:gpu_cache_usage_perc", "", .5);
    check_histogram(text, "vllm:time_per_output_token_seconds", 0, 0);
    metrics_deinit(&m);
}

static void test_label_escapes(void **state) {
    (void)state;
    metrics m;
    engine_stats s = {0};
    assert_int_equal(metrics_init(&m, "a\\b\"c\nd", false, NULL), RIDGE_OK);
    const buf *text = scrape(&m, &s, 1);
    assert_non_null(strstr(text->data,
                           "\nvllm:num_requests_running{model_name=\"a\\\\b\\\"c\\nd\",engine="
                           "\"0\"} 0.0\n"));
    metrics_deinit(&m);
}

static void test_silence(void **state) {
    (void)state;
    metrics m;
    metrics_sequence q;
    engine_stats s = {.turned_s = 90};
    begin(&m);
    assert_true(metrics_silent_s(&m, &s, 1000) == 0); /* nothing to do */
    metrics_submitted(&m, &q, 95, 50, 100);
    assert_true(metrics_silent_s(&m, &s, 130) == 30);
    s.turned_s = 120;
    assert_true(metrics_silent_s(&m, &s, 130) == 10);
    engine_event e = {.finish = ENGINE_STOP};
    metrics_event(&m, &q, &e, 131);
    assert_true(metrics_silent_s(&m, &s, 1000) == 0);
    metrics_deinit(&m);
}

static void test_no_memory(void **state) {
    (void)state;
    metrics m;
    engine_stats s = {0};
    mem_fail_after(1);
    assert_int_equal(metrics_init(&m, "m", false, NULL), RIDGE_ENOMEM);
    mem_fail_after(0);
    begin(&m);
    mem_fail_after(1);
    assert_null(metrics_write(&m, &s, 1));
    mem_fail_after(0);
    scrape(&m, &s, 1);
    mem_fail_after(1); /* the second one needs none */
    scrape(&m, &s, 2);
    mem_fail_after(0);
    metrics_deinit(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histogram),     cmocka_unit_test(test_bounds_of_lengths),
        cmocka_unit_test(test_a_request),     cmocka_unit_test(test_a_request_that_never_ran),
        cmocka_unit_test(test_of_the_engine), cmocka_unit_test(test_before_the_model_is_there),
        cmocka_unit_test(test_label_escapes), cmocka_unit_test(test_silence),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
