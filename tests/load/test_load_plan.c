/* load: lengths, arrivals and bodies: distributions against what theory says, equal plans for equal
 * seeds, shared beginnings where they are meant to be. */
#include "unit.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "load/plan.h"
#include "sample/philox.h"

#define N 20000

static length_spec length(const char *text) {
    length_spec s = {0};
    ridge_error err = {0};
    if (length_parse(&s, text, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return s;
}

typedef struct {
    double mean, sd, min, max;
} moments;

static moments moments_of(const length_spec *s) {
    double sum = 0, squares = 0;
    moments m = {.min = INFINITY};
    for (uint64_t i = 0; i < N; i++) {
        double x = length_draw(s, philox_uniform(1, 0, i), philox_uniform(1, 1, i));
        sum += x;
        squares += x * x;
        m.min = fmin(m.min, x);
        m.max = fmax(m.max, x);
    }
    m.mean = sum / N;
    m.sd = sqrt(squares / N - m.mean * m.mean);
    return m;
}

static void assert_near(double x, double expected, double share) {
    if (fabs(x - expected) > share * expected) fail_msg("%g, expected %g", x, expected);
}

static void test_lengths(void **state) {
    (void)state;
    length_spec fixed = length("256"), uniform = length("uniform:10:20"),
                exponential = length("exp:128"), truncated = length("exp:128:256"),
                normal = length("normal:500:50"), low = length("normal:1:100");
    moments m = moments_of(&fixed);
    assert_true(m.min == 256 && m.max == 256);
    m = moments_of(&uniform);
    assert_true(m.min == 10 && m.max == 20);
    assert_near(m.mean, 15, 0.01);
    assert_near(m.sd, sqrt((11 * 11 - 1) / 12.0), 0.02);
    /* Rounding up makes it geometric: mean 1 / (1 - e^(-1/128)). */
    m = moments_of(&exponential);
    assert_near(m.mean, 1 / -expm1(-1 / 128.0), 0.03);
    assert_near(m.sd, 128, 0.03);
    assert_true(m.max > 1000);
    /* Truncated at twice the mean: 128 (1 - 2 / (e^2 - 1)), and half a token for rounding up. */
    m = moments_of(&truncated);
    assert_true(m.max <= 256 && m.max > 250);
    assert_near(m.mean, 128 * (1 - 2 / expm1(2)) + 0.5, 0.02);
    m = moments_of(&normal);
    assert_near(m.mean, 500, 0.01);
    assert_near(m.sd, 50, 0.03);
    m = moments_of(&low);
    assert_true(m.min == 1);
    /* The ends of what a draw can be. */
    assert_int_equal(length_draw(&exponential, 0, 0), 1);
    assert_true(length_draw(&exponential, nextafter(1, 0), 0) < 128 * 40);
    assert_int_equal(length_draw(&truncated, nextafter(1, 0), 0), 256);
    assert_true(length_draw(&normal, nextafter(1, 0), 0) < 1000);
}

static void test_bad_lengths(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",        "0",        "-1",          "1.5",           "x",
        "12x",     "99999999", "uniform:5",   "uniform:9:5",   "uniform:1:2:3",
        "exp:",    "exp:0",    "exp:10:0",    "exp:10:x",      "exp:nan",
        "exp:inf", "normal:5", "normal:5:-1", "uniform:1.5:3", "gamma:1:2",
        "1:2",     " 5",       "exp:1e9",     "normal:5:"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        length_spec s;
        ridge_error err = {0};
        if (length_parse(&s, bad[i], &err) != RIDGE_EINVAL) fail_msg("'%s' is accepted", bad[i]);
        assert_non_null(strstr(err.text, "expected a length"));
    }
}

static load_params params(void) {
    load_params p = load_params_default();
    p.traffic.n_requests = 8;
    p.traffic.input = length("uniform:3:9");
    p.traffic.output = length("exp:20:50");
    return p;
}

static load_plan plan_of(const load_params *p) {
    load_plan plan;
    ridge_error err = {0};
    if (load_plan_make(&plan, p, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return plan;
}

/* Gaps are exponential: mean and standard deviation 1 / rate; the number of arrivals in a second
 * has mean and variance rate. */
static void test_poisson(void **state) {
    (void)state;
    load_params p = params();
    p.traffic.arrivals = TRAFFIC_POISSON;
    p.traffic.rate = 50;
    p.traffic.n_requests = N;
    load_plan plan = plan_of(&p);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < plan.n; i++) {
        double gap = (double)(plan.requests[i].due_us - (i > 0 ? plan.requests[i - 1].due_us : 0));
        assert_true(gap >= 0);
        sum += gap / 1e6;
        squares += gap * gap / 1e12;
    }
    assert_near(sum / N, 1 / p.traffic.rate, 0.02);
    assert_near(sqrt(squares / N - sum * sum / N / N), 1 / p.traffic.rate, 0.03);
    int64_t n_seconds = plan.requests[N - 1].due_us / 1000000;
    double mean = 0, variance = 0;
    size_t at = 0;
    for (int64_t s = 0; s < n_seconds; s++) {
        double n = 0;
        for (; plan.requests[at].due_us < (s + 1) * 1000000; at++) n++;
        mean += n / (double)n_seconds;
        variance += (n - p.traffic.rate) * (n - p.traffic.rate) / (double)n_seconds;
    }
    assert_near(mean, p.traffic.rate, 0.02);
    assert_near(variance, p.traffic.rate, 0.2);
    load_plan_free(&plan);
}

static char *body(const load_params *p, const load_plan *plan, size_t i) {
    buf b = {0};
    load_body_write(&b, p, "m\"1", plan, i);
    return buf_take(&b);
}

/* The whole plan and every body, as one text. */
static char *everything(const load_params *p) {
    buf all = {0};
    load_plan plan = plan_of(p);
    for (size_t i = 0; i < plan.n; i++) {
        char *text = body(p, &plan, i);
        buf_printf(&all, "%lld %s\n", (long long)plan.requests[i].due_us, text);
        mem_free(text);
    }
    load_plan_free(&plan);
    return buf_take(&all);
}

static void test_a_seed_makes_the_plan(void **state) {
    (void)state;
    load_params p = params();
    p.traffic.arrivals = TRAFFIC_POISSON;
    p.traffic.rate = 3;
    p.temperature = 0.5;
    p.traffic.prefix_tokens = 3;
    p.traffic.n_prefixes = 4;
    char *a = everything(&p), *b = everything(&p);
    assert_string_equal(a, b);
    mem_free(b);
    p.traffic.seed = 1;
    b = everything(&p);
    assert_string_not_equal(a, b);
    mem_free(b);
    /* A longer run begins as the shorter one. */
    p.traffic.seed = 0;
    p.traffic.n_requests = 12;
    b = everything(&p);
    assert_memory_equal(a, b, strlen(a));
    mem_free(a);
    mem_free(b);
}

static json_t *parsed(const load_params *p, const load_plan *plan, size_t i) {
    char *text = body(p, plan, i);
    json_error_t e;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL) fail_msg("%s: %s", e.text, text);
    mem_free(text);
    return root;
}

static size_t count_words(const char *text) {
    size_t n = *text != '\0';
    for (; *text != '\0'; text++) n += *text == ' ';
    return n;
}

static void test_bodies(void **state) {
    (void)state;
    load_params p = params();
    load_plan plan = plan_of(&p);
    for (size_t i = 0; i < plan.n; i++) {
        json_t *root = parsed(&p, &plan, i);
        const char *prompt = json_string_value(json_object_get(root, "prompt"));
        assert_int_equal(count_words(prompt), plan.requests[i].n_input);
        assert_string_equal(json_string_value(json_object_get(root, "model")), "m\"1");
        assert_int_equal(json_integer_value(json_object_get(root, "max_tokens")),
                         plan.requests[i].n_output);
        assert_true(json_is_true(json_object_get(root, "stream")));
        assert_true(json_is_true(json_object_get(root, "ignore_eos")));
        assert_null(json_object_get(root, "seed"));
        json_decref(root);
    }
    p.stream = p.ignore_eos = false;
    p.temperature = 0.75;
    p.traffic.seed = 40;
    p.extra_body = " { \"priority\": 3, \"a\": {\"b\": []} } ";
    json_t *root = parsed(&p, &plan, 2);
    assert_null(json_object_get(root, "stream"));
    assert_null(json_object_get(root, "ignore_eos"));
    assert_int_equal(json_integer_value(json_object_get(root, "seed")), 42);
    assert_int_equal(json_integer_value(json_object_get(root, "priority")), 3);
    json_decref(root);
    p.extra_body = "{ }";
    json_decref(parsed(&p, &plan, 0));
    load_plan_free(&plan);
}

static void test_token_ids(void **state) {
    (void)state;
    load_params p = params();
    p.token_ids = true;
    p.vocab_size = 1000;
    p.traffic.prefix_tokens = 2;
    load_plan plan = plan_of(&p);
    json_t *first = NULL;
    for (size_t i = 0; i < plan.n; i++) {
        json_t *root = parsed(&p, &plan, i), *ids = json_object_get(root, "prompt"), *id;
        size_t at;
        assert_int_equal(json_array_size(ids), plan.requests[i].n_input + 2);
        json_array_foreach(ids, at, id) {
            assert_true(json_integer_value(id) >= 250 && json_integer_value(id) < 750);
            if (i > 0 && at < 2)
                assert_int_equal(json_integer_value(id),
                                 json_integer_value(json_array_get(first, at)));
        }
        if (i == 0) first = json_incref(ids);
        json_decref(root);
    }
    json_decref(first);
    load_plan_free(&plan);
}

static void test_prefixes(void **state) {
    (void)state;
    load_params p = params();
    p.traffic.prefix_tokens = 50;
    p.traffic.n_prefixes = 3;
    p.traffic.n_requests = 300;
    p.chat = true;
    load_plan plan = plan_of(&p);
    char *seen[3] = {NULL};
    size_t counts[3] = {0};
    for (size_t i = 0; i < plan.n; i++) {
        json_t *root = parsed(&p, &plan, i), *messages = json_object_get(root, "messages");
        json_t *system = json_array_get(messages, 0), *user = json_array_get(messages, 1);
        uint32_t group = plan.requests[i].prefix;
        const char *text = json_string_value(json_object_get(system, "content"));
        assert_true(group < 3);
        assert_string_equal(json_string_value(json_object_get(system, "role")), "system");
        assert_string_equal(json_string_value(json_object_get(user, "role")), "user");
        assert_int_equal(count_words(text), 50);
        assert_int_equal(count_words(json_string_value(json_object_get(user, "content"))),
                         plan.requests[i].n_input);
        if (seen[group] == NULL) seen[group] = mem_strdup(text);
        assert_string_equal(seen[group], text);
        counts[group]++;
        json_decref(root);
    }
    for (int g = 0; g < 3; g++) {
        assert_true(counts[g] > 70 && counts[g] < 130);
        mem_free(seen[g]);
    }
    load_plan_free(&plan);
}

static char *prompt_of(const load_params *p, const load_plan *plan, size_t i) {
    json_t *root = parsed(p, plan, i);
    char *text = mem_strdup(json_string_value(json_object_get(root, "prompt")));
    json_decref(root);
    return text;
}

static size_t common_words(const char *a, const char *b) {
    size_t n = 0, i = 0;
    for (; a[i] == b[i] && a[i] != '\0'; i++) n += a[i] == ' ';
    return n;
}

static void test_equal_blocks_of_a_trace_are_equal_text(void **state) {
    (void)state;
    char path[] = "/tmp/ridge-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs("{\"timestamp\":0,\"input_length\":1200,\"output_length\":3,\"hash_ids\":[0,1,2]}\n"
          "{\"timestamp\":500,\"input_length\":1100,\"output_length\":9,\"hash_ids\":[0,1,3]}\n"
          "{\"timestamp\":900,\"input_length\":700,\"output_length\":9,\"hash_ids\":[4,1]}\n"
          "{\"timestamp\":999,\"input_length\":600,\"output_length\":9,\"hash_ids\":[0]}\n",
          f);
    fclose(f);
    load_params p = params();
    p.traffic.arrivals = TRAFFIC_TRACE;
    p.traffic.trace = path;
    p.traffic.trace_speed = 2;
    p.traffic.n_requests = 0;
    p.traffic.max_output = 5;
    load_plan plan = plan_of(&p);
    assert_int_equal(plan.n, 4);
    assert_int_equal(plan.requests[1].due_us, 250000);
    assert_int_equal(plan.requests[1].n_output, 5);
    char *prompts[4];
    for (size_t i = 0; i < 4; i++) {
        prompts[i] = prompt_of(&p, &plan, i);
        assert_int_equal(count_words(prompts[i]), plan.requests[i].n_input);
    }
    size_t n = common_words(prompts[0], prompts[1]);
    assert_true(n >= 1024 && n < 1024 + 5);
    assert_true(common_words(prompts[0], prompts[2]) < 5);
    n = common_words(prompts[0], prompts[3]);
    assert_true(n >= 512 && n < 512 + 5);
    for (size_t i = 0; i < 4; i++) mem_free(prompts[i]);
    load_plan_free(&plan);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_bad_lengths),
        cmocka_unit_test(test_poisson),
        cmocka_unit_test(test_a_seed_makes_the_plan),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_token_ids),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_equal_blocks_of_a_trace_are_equal_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
