/* What the server says about itself, over HTTP on a fake engine: /metrics at once, after requests,
 * during one and while the model loads; the watchdog; explained answers. */
#include "server_fixture.h"

static char *scrape(const fixture *f) {
    char *answer = ask(f, "GET", "/metrics", "");
    assert_int_equal(status_of(answer), 200);
    assert_non_null(strstr(answer, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert_null(strcasestr(strstr(answer, "\r\n\r\n"), "nan"));
    return answer;
}

#define L "{model_name=\"org/fake\",engine=\"0\""

static void check_line(const char *text, const char *line) {
    if (strstr(text, line) == NULL) fail_msg("no line %s in %s", line, text);
}

static void test_before_and_after(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.api_key = "secret"; /* which /metrics does not ask for, as vLLM does not */
    begin(&f, 100, 3);
    char *before = scrape(&f);
    check_line(before, "\nvllm:request_success_total" L ",finished_reason=\"stop\"} 0.0\n");
    check_line(before, "\nvllm:e2e_request_latency_seconds_count" L "} 0.0\n");
    check_line(before, "\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"f16\","
                       "enable_prefix_caching=\"False\",num_gpu_blocks=\"1000\",engine=\"0\"} "
                       "1.0\n");
    check_line(before, "\nridge:peak_bytes_per_second" L "} 10000000000.0\n");
    static const char *const bodies[] = {
        "{\"prompt\":\"a\"}", "{\"prompt\":\"abc\",\"max_tokens\":7,\"stream\":true}",
        "{\"prompt\":[\"a\",\"b\"],\"n\":1,\"max_tokens\":1}",
        "{\"prompt\":\"a\",\"n\":3,\"max_tokens\":2}", "{\"prompt\":\"a\",\"n\":4}" /* 429 */};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char *request =
            http("POST", "/v1/completions", CLOSE "Authorization: Bearer secret\r\n", bodies[i]);
        char *answer = exchange(&f, request);
        assert_int_equal(status_of(answer), i == 4 ? 429 : 200);
        mem_free(answer);
        mem_free(request);
    }
    wait_live(&f, 0);
    usleep(20000);
    char *after = scrape(&f);
    check_line(after, "\nvllm:request_success_total" L ",finished_reason=\"length\"} 7.0\n");
    check_line(after, "\nvllm:request_success_total" L ",finished_reason=\"abort\"} 0.0\n");
    check_line(after, "\nvllm:admission_rejections_total" L ",reason=\"queue_full\"} 1.0\n");
    check_line(after, "\nvllm:num_requests_running" L "} 0.0\n");
    check_line(after, "\nvllm:request_params_n_count" L "} 5.0\n");
    check_line(after, "\nvllm:request_params_n_sum" L "} 7.0\n");
    check_line(after, "\nvllm:request_max_num_generation_tokens_sum" L "} 27.0\n");
    check_line(after, "\nvllm:request_params_max_tokens_sum" L "} 31.0\n");
    mem_free(before);
    mem_free(after);
    stop(&f);
}

static void test_while_one_streams(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 5000, 64);
    int fd = dial(&f);
    buf got = {0};
    char *request =
        http("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"stream\":true," ENDLESS);
    send_text(fd, request, strlen(request));
    assert_true(read_until(fd, &got, "data: "));
    usleep(50000); /* some tokens more */
    char *text = scrape(&f);
    check_line(text, "\nvllm:num_requests_running" L "} 1.0\n");
    check_line(text, "\nvllm:time_to_first_token_seconds_count" L "} 1.0\n");
    check_line(text, "\nvllm:e2e_request_latency_seconds_count" L "} 0.0\n");
    assert_null(strstr(text, "\nvllm:inter_token_latency_seconds_count" L "} 0.0\n"));
    close(fd);
    wait_live(&f, 0);
    mem_free(text);
    mem_free(request);
    buf_free(&got);
    stop(&f);
}

static void test_while_loading(void **state) {
    (void)state;
    fixture f = {.params = server_params_default(), .loading = true};
    f.params.legacy_metric_names = true;
    begin(&f, 100, 64);
    check_status(&f, "GET", "/health", "", 503);
    char *text = scrape(&f);
    check_line(text, "\nridge:engine_ready" L "} 0.0\n");
    check_line(text, "\nvllm:gpu_cache_usage_perc" L "} 0.0\n");
    mem_free(text);
    fake_backend_set_state(f.fake, LOOP_READY);
    check_status(&f, "GET", "/health", "", 200);
    text = scrape(&f);
    check_line(text, "\nridge:engine_ready" L "} 1.0\n");
    check_line(text, "\nvllm:request_prompt_tokens_bucket" L ",le=\"1000.0\"} 0.0\n");
    mem_free(text);
    char *answer = ask(&f, "HEAD", "/metrics", "");
    assert_int_equal(status_of(answer), 200);
    assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
    mem_free(answer);
    check_status(&f, "POST", "/metrics", "{}", 405);
    stop(&f);
}

/* /health of an engine that has stopped working for what it was given. */
static void test_watchdog(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.watchdog_s = 0.3;
    begin(&f, 100, 64);
    usleep(400000); /* idle is not dead */
    check_status(&f, "GET", "/health", "", 200);
    fake_backend_set_stuck(f.fake, true);
    usleep(400000);
    check_status(&f, "GET", "/health", "", 200);
    int fd = dial(&f);
    char *request = http("POST", "/v1/completions", "", "{\"prompt\":\"a\"," ENDLESS);
    send_text(fd, request, strlen(request));
    wait_live(&f, 1);
    check_status(&f, "GET", "/health", "", 200);
    usleep(400000);
    char *answer = ask(&f, "GET", "/health", "");
    assert_int_equal(status_of(answer), 503);
    assert_non_null(strstr(answer, "no step for"));
    fake_backend_set_stuck(f.fake, false);
    usleep(50000);
    check_status(&f, "GET", "/health", "", 200);
    close(fd);
    mem_free(answer);
    mem_free(request);
    stop(&f);
}

static json_t *complete(const fixture *f, const char *headers, const char *body) {
    buf all = {0};
    buf_printf(&all, "%s" CLOSE, headers);
    char *request = http("POST", "/v1/completions", all.data, body);
    char *answer = exchange(f, request);
    json_t *root = body_json(answer);
    mem_free(request);
    mem_free(answer);
    buf_free(&all);
    return root;
}

static void test_explained_answers(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    static const struct {
        const char *headers, *body;
        bool explained;
    } cases[] = {
        {"", "{\"prompt\":\"a\"}", false},
        {"", "{\"prompt\":\"a\",\"ridge\":{\"explain\":true}}", true},
        {"X-Ridge-Explain: 1\r\n", "{\"prompt\":\"a\"}", true},
        {"X-Ridge-Explain: 0\r\n", "{\"prompt\":\"a\"}", false},
        {"X-Ridge-Explain: 1\r\n", "{\"prompt\":\"a\",\"ridge\":{\"explain\":false}}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *r = complete(&f, cases[i].headers, cases[i].body);
        json_t *ours = json_object_get(r, "ridge");
        assert_int_equal(ours != NULL, cases[i].explained);
        if (ours != NULL) {
            assert_string_equal(json_string_value(json_object_get(ours, "main_reason")), "decode");
            assert_true(json_real_value(json_object_get(ours, "prefill_ms")) == 500);
            assert_null(json_object_get(ours, "choices"));
        }
        json_decref(r);
    }
    json_t *r = complete(&f, "", "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"ridge\":{\"explain\":true}}");
    json_t *each = json_object_get(json_object_get(r, "ridge"), "choices");
    assert_int_equal(json_array_size(each), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(each, i), "index")), i);
    json_decref(r);
    stop(&f);
}

/* In a stream the usage chunk has it, or else the last chunk with a choice; never both. */
static void test_explained_streams(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    static const char *const bodies[] = {
        CHAT ",\"n\":2,\"stream\":true,\"ridge\":{\"explain\":true},"
             "\"stream_options\":{\"include_usage\":true}}",
        CHAT ",\"n\":2,\"stream\":true,\"ridge\":{\"explain\":true}}",
        CHAT ",\"max_tokens\":1,\"stream\":true,\"ridge\":{\"explain\":true}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char *answer = ask(&f, "POST", "/v1/chat/completions", bodies[i]);
        char *body = strstr(answer, "\r\n\r\n") + 4;
        unchunk(body);
        assert_int_equal(count(body, "\"ridge\":{"), 1);
        char *last = strstr(body, "\"ridge\":{"), *end = strstr(last, "\n\n");
        assert_string_equal(end, "\n\ndata: [DONE]\n\n");
        while (strncmp(last, "data: ", 6) != 0) last--;
        *end = '\0';
        json_t *chunk = json_loads(last + 6, 0, NULL);
        assert_non_null(chunk);
        json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        assert_int_equal(choice == NULL, i == 0);
        assert_int_equal(json_is_string(json_object_get(choice, "finish_reason")), i != 0);
        json_decref(chunk);
        mem_free(answer);
    }
    stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_and_after),  cmocka_unit_test(test_while_one_streams),
        cmocka_unit_test(test_while_loading),     cmocka_unit_test(test_watchdog),
        cmocka_unit_test(test_explained_answers), cmocka_unit_test(test_explained_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
