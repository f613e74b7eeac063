/* The whole server over loopback, on a fake engine: HTTP, OpenAI's shapes, disconnects, limits and
 * stopping. Short enough for the sanitizers. */
#include "unit.h"

#include "server/api_request.h"
#include "server/json_field.h"
#include "server_fixture.h"

static void test_plain_routes(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    check_status(&f, "GET", "/health", "", 200);
    check_status(&f, "HEAD", "/health", "", 200);
    check_status(&f, "GET", "/v1/models/org%2Ffake", "", 200);
    check_status(&f, "GET", "/v1/models/org/fake", "", 200);
    check_status(&f, "GET", "/v1/models/other", "", 404);
    check_status(&f, "GET", "/nothing", "", 404);
    check_status(&f, "POST", "/nothing", "{}", 404);
    check_status(&f, "GET", "/v1/chat/completions", "", 405);
    check_status(&f, "DELETE", "/health", "", 405);
    json_t *models = ask_json(&f, "/v1/models", "");
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(models, "data"), 0), "id")),
                        "org/fake");
    json_decref(models);
    char *answer =
        exchange(&f, "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: http://o\r\n"
                     "Access-Control-Request-Headers: authorization\r\n" CLOSE "\r\n");
    assert_int_equal(status_of(answer), 204);
    assert_non_null(strstr(answer, "Access-Control-Allow-Origin: *\r\n"));
    assert_non_null(strstr(answer, "Access-Control-Allow-Headers: authorization\r\n"));
    mem_free(answer);
    stop(&f);
}

static void test_whole_answers(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    json_t *r = ask_json(&f, "/v1/chat/completions", CHAT "}");
    assert_string_equal(string_at(r, "choices", 0, "message", "content"), SCRIPT);
    assert_string_equal(string_at(r, "choices", 0, "finish_reason", NULL), "stop");
    assert_string_equal(json_string_value(json_object_get(r, "object")), "chat.completion");
    assert_int_equal(usage_of(r, "prompt_tokens"), 8);
    assert_int_equal(usage_of(r, "completion_tokens"), strlen(SCRIPT) + 1);
    json_decref(r);
    /* A cut inside a character leaves whole characters only. */
    r = ask_json(&f, "/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":9}");
    assert_int_equal(json_array_size(json_object_get(r, "choices")), 4);
    assert_string_equal(string_at(r, "choices", 3, "text", NULL), "Hello, ");
    assert_string_equal(string_at(r, "choices", 3, "finish_reason", NULL), "length");
    assert_int_equal(usage_of(r, "prompt_tokens"), 4);
    assert_int_equal(usage_of(r, "completion_tokens"), 36);
    json_decref(r);
    r = ask_json(&f, "/v1/completions", "{\"prompt\":\"ab\",\"echo\":true,\"max_tokens\":0}");
    assert_string_equal(string_at(r, "choices", 0, "text", NULL), "ab");
    assert_int_equal(usage_of(r, "completion_tokens"), 0);
    json_decref(r);
    r = ask_json(&f, "/tokenize", "{\"prompt\":\"ab\",\"add_special_tokens\":false}");
    assert_int_equal(json_array_size(json_object_get(r, "tokens")), 2);
    json_decref(r);
    check_status(&f, "POST", "/tokenize", CHAT ",\"tools\":[{}]}", 400);
    r = ask_json(&f, "/detokenize", "{\"tokens\":[97,98,256]}");
    assert_string_equal(json_string_value(json_object_get(r, "prompt")), "ab<eos>");
    json_decref(r);
    stop(&f);
}

static void test_logprobs(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    json_t *r =
        ask_json(&f, "/v1/completions",
                 "{\"prompt\":\"\xC3\xA9x\",\"echo\":true,\"logprobs\":1,\"max_tokens\":2}");
    json_t *lp = json_object_get(json_array_get(json_object_get(r, "choices"), 0), "logprobs");
    json_t *tokens = json_object_get(lp, "tokens"), *tops = json_object_get(lp, "top_logprobs");
    json_t *values = json_object_get(lp, "token_logprobs");
    json_t *offsets = json_object_get(lp, "text_offset");
    size_t n = 6; /* BOS, two bytes, x, H, e */
    assert_int_equal(json_array_size(tokens), n);
    assert_int_equal(json_array_size(tops), n);
    assert_int_equal(json_array_size(values), n);
    buf text = {0};
    static const int expected[] = {0, 0, 0, 1, 2, 3};
    for (size_t i = 0; i < n; i++) {
        buf_puts(&text, json_string_value(json_array_get(tokens, i)));
        assert_int_equal(json_integer_value(json_array_get(offsets, i)), expected[i]);
        if (i == 0) continue;
        double best = -1e9;
        const char *key;
        json_t *v;
        json_object_foreach(json_array_get(tops, i), key, v) if (json_real_value(v) > best) best =
            json_real_value(v);
        assert_true(json_real_value(json_array_get(values, i)) == best);
    }
    assert_true(json_is_null(json_array_get(values, 0)) && json_is_null(json_array_get(tops, 0)));
    assert_string_equal(text.data, string_at(r, "choices", 0, "text", NULL));
    buf_free(&text);
    json_decref(r);
    r = ask_json(&f, "/v1/completions", "{\"prompt\":[97,98],\"logprobs\":0,\"max_tokens\":1}");
    lp = json_object_get(json_array_get(json_object_get(r, "choices"), 0), "logprobs");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 0)), 2);
    json_decref(r);
    r = ask_json(&f, "/v1/chat/completions", CHAT ",\"logprobs\":true,\"top_logprobs\":3}");
    lp = json_object_get(json_array_get(json_object_get(r, "choices"), 0), "logprobs");
    json_t *first = json_array_get(json_object_get(lp, "content"), 0);
    assert_int_equal(json_array_size(json_object_get(first, "top_logprobs")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(first, "bytes"), 0)), 'H');
    json_decref(r);
    stop(&f);
}

static json_t *choice_at(json_t *answer, size_t i) {
    return json_array_get(json_object_get(answer, "choices"), i);
}

/* Texts of tokens begin as the answer's text does: with a space where it goes on behind a byte. */
static void test_logprobs_of_a_first_space(void **state) {
    (void)state;
    static const struct {
        const char *body, *text;
    } cases[] = {
        {"{\"prompt\":\"x\",\"logprobs\":0,\"max_tokens\":3}", " ab"},
        {"{\"prompt\":[257],\"logprobs\":0,\"max_tokens\":3}", "ab"},
    };
    fixture f = {.params = server_params_default(), .script = " ab"};
    begin(&f, 100, 64);
    for (size_t i = 0; i < 2; i++) {
        json_t *r = ask_json(&f, "/v1/completions", cases[i].body);
        json_t *lp = json_object_get(choice_at(r, 0), "logprobs"), *token;
        size_t at;
        buf text = {0};
        json_array_foreach(json_object_get(lp, "tokens"), at, token)
            buf_puts(&text, json_string_value(token));
        assert_string_equal(text.data, cases[i].text);
        assert_string_equal(string_at(r, "choices", 0, "text", NULL), cases[i].text);
        buf_free(&text);
        json_decref(r);
    }
    stop(&f);
}

/* Of four candidates the fake likes 1 best, then 2, then 3 (fake_backend.c). */
static void test_best_of(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    static const char *const bodies[] = {
        "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"best_of\":4,\"max_tokens\":5,\"logprobs\":0}",
        "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"best_of\":4,\"max_tokens\":5}"};
    for (int k = 0; k < 2; k++) {
        json_t *r = ask_json(&f, "/v1/completions", bodies[k]);
        assert_int_equal(json_array_size(json_object_get(r, "choices")), 6);
        assert_int_equal(usage_of(r, "completion_tokens"), 2 * 4 * 5);
        assert_int_equal(usage_of(r, "prompt_tokens"), 4); /* with a BOS each */
        for (size_t i = 0; i < 6; i++) {
            json_t *lp = json_object_get(choice_at(r, i), "logprobs");
            double value =
                json_real_value(json_array_get(json_object_get(lp, "token_logprobs"), 0));
            double expected = -.5 - 1. / ('H' + 3) + .125 * (double)(3 - i % 3);
            assert_int_equal(json_integer_value(json_object_get(choice_at(r, i), "index")), i);
            assert_true(k == 0 ? value > expected - 1e-6 && value < expected + 1e-6
                               : json_is_null(lp)); /* of candidates 1, 2, 3 */
        }
        json_decref(r);
    }
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\",\"best_of\":2,\"stream\":true}",
                 400);
    stop(&f);
}

/* What the fake says of the prompt's token of this id, as vLLM would. */
static void check_described(json_t *entry, int id, size_t n_entries) {
    char key[16];
    snprintf(key, sizeof key, "%d", id);
    json_t *own = json_object_get(entry, key);
    double expected = -.5 - 1. / (id + 3);
    assert_int_equal(json_object_size(entry), n_entries);
    assert_int_equal(json_integer_value(json_object_get(own, "rank")), 1 + id % 7);
    assert_true(json_real_value(json_object_get(own, "logprob")) > expected - 1e-6);
    assert_true(json_real_value(json_object_get(own, "logprob")) < expected + 1e-6);
    assert_true(json_is_text(json_object_get(own, "decoded_token"), (char[]){(char)id, '\0'}));
    snprintf(key, sizeof key, "%d", id + 1);
    if (n_entries > 1) /* the fake's second */
        assert_int_equal(json_integer_value(json_object_get(json_object_get(entry, key), "rank")),
                         2);
}

static void test_prompt_logprobs(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    json_t *r = ask_json(&f, "/v1/completions",
                         "{\"prompt\":[\"abc\",\"xy\"],\"prompt_logprobs\":2,\"max_tokens\":1,"
                         "\"add_special_tokens\":false,\"n\":2,\"echo\":true,\"logprobs\":1}");
    for (size_t i = 0; i < 4; i++) { /* each choice has its prompt's */
        const char *prompt = i < 2 ? "abc" : "xy";
        json_t *list = json_object_get(choice_at(r, i), "prompt_logprobs");
        assert_int_equal(json_array_size(list), strlen(prompt));
        assert_true(json_is_null(json_array_get(list, 0)));
        for (size_t k = 1; k < strlen(prompt); k++)
            check_described(json_array_get(list, k), prompt[k], 2);
        json_t *lp = json_object_get(choice_at(r, i), "logprobs");
        json_t *tops = json_object_get(lp, "top_logprobs");
        assert_int_equal(json_array_size(tops), strlen(prompt) + 1);
        assert_int_equal(json_object_size(json_array_get(tops, 1)), 1); /* as many as it asked */
    }
    assert_null(json_object_get(r, "prompt_logprobs"));
    json_decref(r);
    r = ask_json(&f, "/v1/completions",
                 "{\"prompt\":\"a\",\"prompt_logprobs\":0,\"max_tokens\":0}");
    json_t *list = json_object_get(choice_at(r, 0), "prompt_logprobs"); /* BOS, a */
    assert_int_equal(json_array_size(list), 2);
    check_described(json_array_get(list, 1), 'a', 1);
    assert_true(json_is_null(json_object_get(choice_at(r, 0), "logprobs")));
    assert_string_equal(string_at(r, "choices", 0, "text", NULL), "");
    json_decref(r);
    r = ask_json(&f, "/v1/chat/completions", CHAT ",\"prompt_logprobs\":0,\"best_of\":3}");
    list = json_object_get(r, "prompt_logprobs");
    assert_int_equal(json_array_size(list), strlen("user:hi\n"));
    check_described(json_array_get(list, 1), 's', 1);
    assert_null(json_object_get(choice_at(r, 0), "prompt_logprobs"));
    json_decref(r);
    r = ask_json(&f, "/v1/chat/completions", CHAT "}");
    assert_null(json_object_get(r, "prompt_logprobs"));
    json_decref(r);
    stop(&f);
}

/* The parts of each choice, put together from the chunks of a stream, by the field of `logprobs`
 * ("": the text). */
static void join_stream(const fixture *f, const char *body, json_t *lists[2], buf texts[2]) {
    static const char *const fields[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    char *answer = ask(f, "POST", "/v1/completions", body),
         *events = strstr(answer, "\r\n\r\n") + 4;
    assert_int_equal(status_of(answer), 200);
    unchunk(events);
    for (int i = 0; i < 2; i++) lists[i] = json_object();
    for (char *event = events, *next; strncmp(event, "data: {", 7) == 0; event = next) {
        next = strstr(event, "\n\n");
        *next = '\0';
        next += 2;
        json_t *chunk = json_loads(event + 6, 0, NULL), *choice = choice_at(chunk, 0);
        size_t i = (size_t)json_integer_value(json_object_get(choice, "index"));
        buf_puts(&texts[i], json_string_value(json_object_get(choice, "text")));
        for (int k = 0; k < 4; k++) {
            json_t *all = json_object_get(lists[i], fields[k]);
            if (all == NULL) json_object_set_new(lists[i], fields[k], all = json_array());
            json_array_extend(all, json_object_get(json_object_get(choice, "logprobs"), fields[k]));
        }
        json_decref(chunk);
    }
    mem_free(answer);
}

/* The second choice has its tokens before the first has described the prompt, which both show. */
static void test_streams_share_a_described_prompt(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"\xC3\xA9xyz\",\"echo\":true,\"logprobs\":2,\"max_tokens\":3,\"n\":2",
        "{\"prompt\":[97],\"echo\":true,\"logprobs\":0,\"max_tokens\":3,\"n\":2",
        "{\"prompt\":\"abcdefghijklmnop\",\"echo\":true,\"logprobs\":1,\"max_tokens\":1,\"n\":2",
        "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0,\"n\":2"};
    fixture f = {.params = server_params_default()};
    begin(&f, 1000, 64);
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
        json_t *streamed[2];
        buf texts[2] = {0}, body = {0};
        buf_printf(&body, "%s}", bodies[b]);
        json_t *whole = ask_json(&f, "/v1/completions", body.data);
        buf_clear(&body);
        buf_printf(&body, "%s,\"stream\":true}", bodies[b]);
        join_stream(&f, body.data, streamed, texts);
        for (size_t i = 0; i < 2; i++) {
            assert_string_equal(texts[i].data, string_at(whole, "choices", i, "text", NULL));
            assert_true(json_equal(streamed[i], json_object_get(choice_at(whole, i), "logprobs")));
            json_decref(streamed[i]);
            buf_free(&texts[i]);
        }
        buf_free(&body);
        json_decref(whole);
    }
    stop(&f);
}

static void check_refused(const fixture *f, const char *path, const char *body, int status,
                          const char *why) {
    char *answer = ask(f, "POST", path, body);
    if (status_of(answer) != status || strstr(answer, why) == NULL)
        fail_msg("%.100s: %.600s", body, answer);
    mem_free(answer);
}

/* What the server keeps of answers is bounded: of one alone, and of all together. */
static void test_answers_that_take_too_much(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.max_answer_bytes = 3000;
    begin(&f, 500, 64);
    const char *too_much = "takes more than 3000 bytes";
    check_refused(&f, "/v1/completions", "{\"prompt\":\"a\",\"n\":2," ENDLESS, 400, too_much);
    check_refused(&f, "/v1/completions", "{\"prompt\":\"a\",\"logprobs\":2," ENDLESS, 400,
                  too_much);
    check_refused(&f, "/v1/chat/completions", CHAT ",\"logprobs\":true," ENDLESS, 400, too_much);
    check_refused(&f, "/v1/completions", "{\"prompt\":\"a\",\"return_token_ids\":true," ENDLESS,
                  400, too_much);
    wait_live(&f, 0); /* what nobody waits for any more is cancelled */
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"," ENDLESS, 200);
    check_status(&f, "POST", "/v1/completions",
                 "{\"prompt\":\"a\",\"logprobs\":2,\"stream\":true," ENDLESS, 200);
    /* Prompts that are shown count from the start, in each choice. */
    buf b = {0};
    buf_puts(&b, "{\"echo\":true,\"max_tokens\":1,\"n\":32,\"prompt\":\"");
    for (int i = 0; i < 99; i++) buf_putc(&b, 'x');
    buf_puts(&b, "\"}");
    check_refused(&f, "/v1/completions", b.data, 400, too_much);
    /* So do their ids. */
    buf_clear(&b);
    buf_puts(&b, "{\"return_token_ids\":true,\"max_tokens\":1,\"n\":16,\"prompt\":\"");
    for (int i = 0; i < 99; i++) buf_putc(&b, 'x');
    buf_puts(&b, "\"}");
    check_refused(&f, "/v1/completions", b.data, 400, too_much);
    buf_free(&b);
    /* Together: the one that has more ends, the other does not. */
    int fd = dial(&f);
    char *first = http("POST", "/v1/completions", CLOSE, "{\"prompt\":\"a\"," ENDLESS);
    send_text(fd, first, strlen(first));
    mem_free(first);
    wait_live(&f, 1);
    usleep(20000);
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"," ENDLESS, 200);
    buf got = {0};
    assert_true(read_until(fd, &got, NULL));
    assert_int_equal(status_of(got.data), 503);
    assert_non_null(strstr(got.data, "take more than 3000 bytes, of them this one 1"));
    buf_free(&got);
    close(fd);
    stop(&f);
}

static void read_some(int fd, buf *b, size_t n) {
    static char piece[1 << 16];
    for (size_t end = b->len + n; b->len < end;) {
        ssize_t got = read(fd, piece, sizeof piece);
        assert_true(got > 0);
        buf_append(b, piece, (size_t)got);
    }
}

/* Whole answers whose clients are reading stay, and what comes is refused while there is no room;
 * of those that are not read the largest is let go. */
static void test_answers_that_nobody_reads(void **state) {
    (void)state;
    enum { N_TEXT = 4 << 20 };
    fixture f = {.params = server_params_default()};
    f.params.max_answer_bytes = 18u << 20; /* one of N_TEXT tokens, "120," each */
    begin(&f, 500, 64);
    buf body = {0}, got[2] = {0};
    int fds[2];
    buf_puts(&body, "{\"prompt\":\"");
    for (int i = 0; i < N_TEXT; i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"}");
    char *request = http("POST", "/tokenize", CLOSE, body.data);
    for (int i = 0; i < 2; i++) {
        fds[i] = dial(&f);
        send_text(fds[i], request, strlen(request));
        assert_true(read_until(fds[i], &got[i], "\r\n\r\n"));
    }
    for (int i = 0; i < 2; i++) read_some(fds[i], &got[i], 4 << 20);
    check_refused(&f, "/v1/completions", "{\"prompt\":\"a\"}", 503,
                  "take more than 18874368 bytes");
    for (int i = 0; i < 2; i++) read_some(fds[i], &got[i], 4 << 20);
    check_refused(&f, "/tokenize", "{\"prompt\":\"a\"}", 503, "take more than 18874368 bytes");
    check_status(&f, "GET", "/health", "", 200);
    int status = 503; /* until the system's own buffers have taken nothing for a second either */
    for (int i = 0; i < 200 && status == 503; i++) {
        usleep(100000);
        char *answer = ask(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"}");
        status = status_of(answer);
        mem_free(answer);
    }
    assert_int_equal(status, 200);
    int n_whole = 0;
    for (int i = 0; i < 2; i++) {
        assert_true(read_until(fds[i], &got[i], NULL));
        n_whole += got[i].len > 4 * (size_t)N_TEXT;
        buf_free(&got[i]);
        close(fds[i]);
    }
    assert_int_equal(n_whole, 1);
    /* One that is too large by itself is refused. */
    mem_free(request);
    buf_clear(&body);
    buf_puts(&body, "{\"prompt\":\"");
    for (int i = 0; i < N_TEXT + (1 << 20); i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"}");
    check_refused(&f, "/tokenize", body.data, 400, "at most 18874368 bytes");
    buf_free(&body);
    stop(&f);
}

static void test_large_texts_to_tokenize(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    size_t n = API_MAX_TOKENIZE_BYTES + 1;
    buf b = {0};
    begin(&f, 500, 64);
    buf_puts(&b, "{\"prompt\":\"");
    for (size_t i = 0; i < n; i++) buf_putc(&b, 'x');
    buf_puts(&b, "\"}");
    check_refused(&f, "/tokenize", b.data, 400, "16777217 bytes, at most 16777216");
    buf_free(&b);
    stop(&f);
}

/* A client waits for all candidates: the last to end says why, also where it is not shown. */
static void test_explanation_of_candidates(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    json_t *r = ask_json(&f, "/v1/completions",
                         "{\"prompt\":\"a\",\"best_of\":4,\"ridge\":{\"explain\":true}}");
    json_t *ours = json_object_get(r, "ridge"), *each = json_object_get(ours, "choices");
    assert_true(json_is_null(json_object_get(ours, "index"))); /* the fake's fourth, and worst */
    assert_int_equal(json_array_size(each), 1);
    json_t *only = json_array_get(each, 0);
    assert_int_equal(json_integer_value(json_object_get(only, "index")), 0);
    assert_true(json_real_value(json_object_get(ours, "total_ms")) >
                json_real_value(json_object_get(only, "total_ms")));
    json_decref(r);
    r = ask_json(&f, "/v1/completions", "{\"prompt\":\"a\",\"n\":2,\"ridge\":{\"explain\":true}}");
    ours = json_object_get(r, "ridge");
    assert_int_equal(json_integer_value(json_object_get(ours, "index")), 1);
    assert_int_equal(json_array_size(json_object_get(ours, "choices")), 2);
    json_decref(r);
    stop(&f);
}

static void test_stream(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    char *request =
        http("POST", "/v1/chat/completions", CLOSE "X-Request-ID: my-id\r\n",
             CHAT ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true}}");
    char *answer = exchange(&f, request), *body = strstr(answer, "\r\n\r\n") + 4;
    assert_non_null(strstr(answer, "Content-Type: text/event-stream"));
    assert_non_null(strstr(answer, "X-Request-Id: my-id\r\n"));
    unchunk(body);
    buf texts[2] = {0};
    int n_finished = 0, n_usage = 0;
    bool done = false, role[2] = {false, false};
    for (char *event = body, *next; *event != '\0'; event = next) {
        next = strstr(event, "\n\n");
        assert_non_null(next);
        *next = '\0';
        next += 2;
        assert_false(done);
        assert_int_equal(strncmp(event, "data: ", 6), 0);
        done = strcmp(event, "data: [DONE]") == 0;
        if (done) continue;
        json_t *chunk = json_loads(event + 6, 0, NULL);
        assert_non_null(chunk);
        assert_string_equal(json_string_value(json_object_get(chunk, "id")), "chatcmpl-my-id");
        json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        if (choice == NULL) {
            n_usage++;
            assert_int_equal(usage_of(chunk, "completion_tokens"), 2 * (strlen(SCRIPT) + 1));
        } else {
            size_t i = (size_t)json_integer_value(json_object_get(choice, "index"));
            json_t *delta = json_object_get(choice, "delta");
            assert_int_equal(json_object_get(delta, "role") != NULL, !role[i]);
            role[i] = true;
            buf_puts(&texts[i], json_string_value(json_object_get(delta, "content")));
            n_finished += json_is_string(json_object_get(choice, "finish_reason"));
        }
        json_decref(chunk);
    }
    assert_true(done && n_finished == 2 && n_usage == 1);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(texts[i].data, SCRIPT);
        buf_free(&texts[i]);
    }
    mem_free(request);
    mem_free(answer);
    stop(&f);
}

/* Events of some hundred kilobytes: what the socket takes only a part of, or nothing, comes whole
 * and in order, also to a client that reads late. */
static void test_stream_of_large_events(void **state) {
    (void)state;
    enum { N_PROMPTS = 24, N_TOKENS = 9 };
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    buf request = {0}, body = {0}, got[2] = {0};
    buf_puts(&body, "{\"echo\":true,\"logprobs\":20,\"stream\":true,\"max_tokens\":9,\"prompt\":[");
    for (int i = 0; i < N_PROMPTS * 1900; i++) {
        if (i % 1900 == 0) buf_puts(&body, i == 0 ? "\"" : "\",\"");
        buf_putc(&body, 'x');
    }
    buf_puts(&body, "\"]}");
    buf_printf(&request,
               "POST /v1/completions HTTP/1.0\r\nX-Request-Id: a\r\nContent-Length: %zu\r\n\r\n%s",
               body.len, body.data);
    for (int late = 0; late < 2; late++) {
        int fd = dial(&f);
        send_text(fd, request.data, request.len);
        if (late) wait_live(&f, N_PROMPTS);
        if (late) wait_live(&f, 0);
        assert_true(read_until(fd, &got[late], NULL));
        close(fd);
        assert_int_equal(count(got[late].data, "data: {"), N_PROMPTS * N_TOKENS);
        assert_string_equal(got[late].data + got[late].len - 16, "\n\ndata: [DONE]\n\n");
    }
    assert_true(got[0].len > 8000000);
    assert_int_equal(got[0].len, got[1].len);
    for (int i = 0; i < 2; i++) buf_free(&got[i]);
    buf_free(&request);
    buf_free(&body);
    stop(&f);
}

/* Of a stream that is not read only so much is kept, also of all that is left of it at once: then
 * it ends, and what came is no whole one. */
static void test_stream_that_nobody_reads(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.max_pending_bytes = 100000;
    begin(&f, 100, 64);
    int fd = dial_slowly(&f);
    buf got = {0};
    char *request = http("POST", "/v1/completions", "",
                         "{\"prompt\":\"a\",\"n\":8,\"stream\":true,\"logprobs\":20," ENDLESS);
    send_text(fd, request, strlen(request));
    assert_true(read_until(fd, &got, "data: "));
    wait_live(&f, 0);
    check_status(&f, "GET", "/health", "", 200); /* all that was made has been written */
    assert_true(read_until(fd, &got, NULL));
    assert_null(strstr(got.data, "[DONE]"));
    assert_null(strstr(got.data, "\"error\""));
    buf_free(&got);
    mem_free(request);
    close(fd);
    stop(&f);
}

/* The bytes of the answer to one that tokenizes so many x. */
static size_t begin_large_answer(int fd, size_t n) {
    buf body = {0}, got = {0};
    buf_puts(&body, "{\"prompt\":\"");
    for (size_t i = 0; i < n; i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"}");
    char *request = http("POST", "/tokenize", "", body.data);
    send_text(fd, request, strlen(request));
    assert_true(read_until(fd, &got, "\r\n\r\n"));
    size_t n_answer = strtoul(strstr(got.data, "Content-Length: ") + 16, NULL, 10);
    mem_free(request);
    buf_free(&body);
    buf_free(&got);
    return n_answer;
}

/* One whose answer is let go while it is not read gets nothing that stands behind what it lost, not
 * even the end of a stream that comes in the same moment: with 11 bytes of another's answer there
 * are too many, and both have then had their eleventh token, the stream its last one. */
static void test_nothing_follows_what_is_let_go(void **state) {
    (void)state;
    enum { N_TEXT = 2 << 20 };
    fixture f = {.params = server_params_default(), .script = "aaaaaaaaaaaaaaaaaaaa"};
    begin(&f, 100, 64);
    int fd = dial_slowly(&f);
    f.params.max_answer_bytes = begin_large_answer(fd, N_TEXT) + 10;
    close(fd);
    stop(&f);
    begin(&f, 100, 64);
    fd = dial_slowly(&f);
    begin_large_answer(fd, N_TEXT);
    usleep(1500000); /* until the system takes no more, and then a second */
    fake_backend_set_stuck(f.fake, true);
    int whole = dial(&f);
    char *first = http("POST", "/v1/completions", CLOSE, "{\"prompt\":\"a\"}");
    char *second =
        http("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":11}");
    send_text(whole, first, strlen(first));
    wait_live(&f, 1);
    send_text(fd, second, strlen(second));
    wait_live(&f, 2);
    fake_backend_set_stuck(f.fake, false);
    buf got[2] = {0};
    assert_true(read_until(whole, &got[0], NULL));
    assert_int_equal(status_of(got[0].data), 200);
    assert_true(read_until(fd, &got[1], NULL));
    assert_null(strstr(got[1].data, "data: "));
    for (int i = 0; i < 2; i++) buf_free(&got[i]);
    mem_free(first);
    mem_free(second);
    close(whole);
    close(fd);
    stop(&f);
}

static void test_one_connection(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    /* Pipelined: a refused body that looks like a request is not one. */
    const char *inner = "GET /metrics HTTP/1.1\r\n\r\n";
    buf b = {0};
    char *parts[] = {http("POST", "/nothing", "", inner),
                     http("GET", "/version", "", ""),
                     http("POST", "/v1/chat/completions", "", CHAT "}"),
                     http("POST", "/v1/completions", "", "{"),
                     http("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"stream\":true}"),
                     http("GET", "/health", CLOSE, "")};
    for (size_t i = 0; i < 6; i++) {
        buf_puts(&b, parts[i]);
        mem_free(parts[i]);
    }
    char *answer = exchange(&f, b.data);
    assert_int_equal(count(answer, "HTTP/1.1 "), 6);
    assert_int_equal(count(answer, "HTTP/1.1 200"), 4);
    assert_int_equal(count(answer, "HTTP/1.1 404"), 1);
    assert_int_equal(count(answer, "HTTP/1.1 400"), 1);
    mem_free(answer);
    buf_free(&b);
    /* Chunked bodies, and 100-continue. */
    answer = exchange(
        &f, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" CLOSE
            "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n9\r\nmpt\":\"a\"}\r\n0\r\n\r\n");
    assert_int_equal(status_of(answer), 200);
    mem_free(answer);
    int fd = dial(&f);
    buf got = {0};
    const char *head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n"
                       "Expect: 100-continue\r\n\r\n";
    send_text(fd, head, strlen(head));
    assert_true(read_until(fd, &got, "100 Continue\r\n\r\n"));
    send_text(fd, "{\"prompt\":\"a\"}", 14);
    assert_true(read_until(fd, &got, "HTTP/1.1 200"));
    buf_free(&got);
    close(fd);
    stop(&f);
}

static void test_limits(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.max_body_bytes = 1000;
    f.params.max_head_bytes = 2000;
    f.params.head_timeout_s = 0.3;
    f.params.body_timeout_s = 0.3;
    f.params.max_connections = 4;
    begin(&f, 100, 2);
    char big[3000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    check_status(&f, "POST", "/v1/completions", big, 413);
    buf b = {0};
    buf_printf(&b, "GET /health HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", big);
    char *answer = exchange(&f, b.data);
    assert_int_equal(status_of(answer), 431);
    mem_free(answer);
    buf_clear(&b);
    buf_printf(&b,
               "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
               "600\r\n%.1536s\r\n0\r\n\r\n",
               big);
    answer = exchange(&f, b.data);
    assert_int_equal(status_of(answer), 413);
    mem_free(answer);
    buf_free(&b);
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET /hea", 408}, /* and then nothing */
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", 408},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"\x16\x03\x01\x02\r\n\r\n", 400},
        {"GET /health HTTP/1.1\nHost: x\n\n", 400}, /* at once, not when the time is over */
        {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
         "Content-Length: 2\r\n\r\n\x1f\x8b",
         415},
        {"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
         404},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer = exchange(&f, cases[i].text);
        if (status_of(answer) != cases[i].status) fail_msg("%s: %s", cases[i].text, answer);
        assert_non_null(strstr(answer, "Connection: close\r\n"));
        assert_int_equal(count(answer, "HTTP/1.1 "), 1);
        mem_free(answer);
    }
    answer = ask(&f, "POST", "/v1/completions", "{\"prompt\":\"a\",\"n\":3}");
    assert_int_equal(status_of(answer), 429);
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    mem_free(answer);
    fake_backend_set_busy(f.fake, 9);
    answer = ask(&f, "POST", "/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
    assert_int_equal(status_of(answer), 429);
    assert_non_null(strstr(answer, "Retry-After: 9\r\n"));
    assert_non_null(strstr(answer, "the first token would come after about 9.1 s"));
    assert_non_null(strstr(answer, "\"type\":\"RateLimitError\",\"param\":null,\"code\":429"));
    mem_free(answer);
    fake_backend_set_busy(f.fake, 0);
    assert_int_equal(fake_backend_n_live(f.fake), 0); /* no choice comes in without the others */
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"}", 200);
    int idle[4];
    for (int i = 0; i < 4; i++) idle[i] = dial(&f);
    int64_t deadline = clock_now_us() + 5000000;
    int status = 0; /* the four may be accepted a moment later than the fifth asks */
    while (status != 503 && clock_now_us() < deadline) {
        answer = ask(&f, "GET", "/health", "");
        status = status_of(answer);
        mem_free(answer);
        for (int i = 0; status == 503 && i < 4; i++) close(idle[i]);
    }
    assert_int_equal(status, 503);
    usleep(100000);
    check_status(&f, "GET", "/health", "", 200);
    stop(&f);
}

static void test_disconnect(void **state) {
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"a\",\"stream\":true," ENDLESS,
                                         "{\"prompt\":\"a\"," ENDLESS,
                                         "{\"prompt\":\"a\",\"n\":5," ENDLESS};
    fixture f = {.params = server_params_default()};
    begin(&f, 5000, 64);
    for (size_t i = 0; i < 6; i++) {
        int fd = dial(&f);
        char *request = http("POST", "/v1/completions", "", bodies[i % 3]);
        send_text(fd, request, strlen(request));
        mem_free(request);
        wait_live(&f, i % 3 == 2 ? 5 : 1);
        if (i < 3)
            close(fd);
        else
            shutdown(fd, SHUT_WR);
        wait_live(&f, 0);
        if (i >= 3) close(fd);
    }
    assert_int_equal(fake_backend_n_cancelled(f.fake), 14);
    /* Whatever it has sent behind its request, and however much of it still waits in the sockets.
     */
    static char more[3000000];
    memset(more, 'x', sizeof more);
    for (size_t i = 0; i < 8; i++) {
        int fd = dial(&f);
        char *request = http("POST", "/v1/completions", "", bodies[i % 2]);
        send_text(fd, request, strlen(request));
        send_text(fd, more, i / 2 % 2 == 0 ? 300000 : sizeof more);
        mem_free(request);
        wait_live(&f, 1);
        if (i < 4) usleep(50000);
        close(fd);
        wait_live(&f, 0);
    }
    assert_int_equal(fake_backend_n_cancelled(f.fake), 22);
    check_status(&f, "GET", "/health", "", 200);
    stop(&f);
}

/* A request is answered as any other, and the connection ends: what came behind it is lost. */
static void test_much_behind_a_request(void **state) {
    (void)state;
    static char more[1000000];
    memset(more, 'x', sizeof more);
    fixture f = {.params = server_params_default()};
    begin(&f, 5000, 64);
    for (int i = 0; i < 2; i++) {
        const char *body = i == 0 ? "{\"prompt\":\"a\",\"max_tokens\":40}"
                                  : "{\"prompt\":\"a\",\"max_tokens\":40,\"stream\":true}";
        char *request = http("POST", "/v1/completions", "", body);
        buf answer = {0};
        int fd = dial(&f);
        send_text(fd, request, strlen(request));
        send_text(fd, more, sizeof more);
        assert_true(read_until(fd, &answer, NULL));
        close(fd);
        buf_putc(&answer, '\0');
        assert_int_equal(status_of(answer.data), 200);
        assert_int_equal(count(answer.data, "HTTP/1.1 "), 1);
        assert_non_null(strstr(answer.data, "\"finish_reason\":\"stop\""));
        mem_free(request);
        buf_free(&answer);
    }
    stop(&f);
}

static void test_request_timeout(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.request_timeout_s = 0.2;
    begin(&f, 5000, 64);
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"," ENDLESS, 504);
    char *answer = ask(&f, "POST", "/v1/completions", "{\"prompt\":\"a\",\"stream\":true," ENDLESS);
    assert_int_equal(status_of(answer), 200);
    assert_non_null(strstr(answer, "data: {\"error\":{"));
    assert_non_null(strstr(answer, "data: [DONE]\n\n"));
    mem_free(answer);
    /* Last, as these keep the workers busy for longer than others may take. */
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"~\"," ENDLESS, 504);
    check_status(&f, "POST", "/tokenize", "{\"prompt\":\"~\"}", 504);
    wait_live(&f, 0);
    stop(&f);
}

static void test_api_key(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.api_key = "secret";
    begin(&f, 100, 64);
    static const struct {
        const char *header;
        int status;
    } cases[] = {
        {"", 401},
        {"Authorization: Bearer secreT\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Bearer secretsecret\r\n", 401},
        {"Authorization: Basic secret\r\n", 401},
        {"Authorization: bearer secret\r\n", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf headers = {0};
        buf_printf(&headers, "%s" CLOSE, cases[i].header);
        char *request = http("GET", "/v1/models", headers.data, "");
        char *answer = exchange(&f, request);
        if (status_of(answer) != cases[i].status) fail_msg("%s: %s", cases[i].header, answer);
        assert_non_null(strstr(answer, "Access-Control-Allow-Origin"));
        mem_free(request);
        mem_free(answer);
        buf_free(&headers);
    }
    check_status(&f, "GET", "/health", "", 200);
    char *refused = ask(&f, "GET", "/v1/completions", "");
    assert_non_null(strstr(refused, "Allow: POST, OPTIONS\r\n"));
    mem_free(refused);
    check_status(&f, "OPTIONS", "/v1/models", "", 204);
    stop(&f);
}

static void test_states(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 100, 64);
    fake_backend_set_state(f.fake, LOOP_LOADING);
    check_status(&f, "GET", "/health", "", 503);
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"}", 503);
    check_status(&f, "GET", "/version", "", 200);
    fake_backend_set_state(f.fake, LOOP_READY);
    check_status(&f, "GET", "/health", "", 200);
    fake_backend_set_state(f.fake, LOOP_FAILED);
    end(&f);
    assert_int_equal(f.status, RIDGE_EIO);
    assert_string_equal(f.error.text, "the fake has failed");
}

static void test_drain(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 10000, 64);
    int fd = dial(&f), idle = dial(&f);
    buf got = {0};
    char *request =
        http("POST", "/v1/completions", "",
             "{\"prompt\":\"a\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":60}");
    send_text(fd, request, strlen(request));
    mem_free(request);
    assert_true(read_until(fd, &got, "data: "));
    ask_to_stop(&f);
    usleep(50000);
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"}", 503);
    check_status(&f, "GET", "/health", "", 503);
    assert_true(read_until(fd, &got, "data: [DONE]\n\n"));
    assert_non_null(strstr(got.data, "\"finish_reason\":\"length\""));
    end(&f);
    assert_int_equal(f.status, RIDGE_OK);
    buf_free(&got);
    close(fd);
    close(idle);
}

static void test_drain_limit(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    f.params.shutdown_timeout_s = 0.2;
    begin(&f, 10000, 64);
    int stream = dial(&f), whole = dial(&f);
    buf a = {0}, b = {0};
    char *first = http("POST", "/v1/completions", "", "{\"prompt\":\"a\",\"stream\":true," ENDLESS);
    char *second = http("POST", "/v1/completions", "", "{\"prompt\":\"a\"," ENDLESS);
    send_text(stream, first, strlen(first));
    send_text(whole, second, strlen(second));
    wait_live(&f, 2);
    stop(&f);
    assert_true(read_until(stream, &a, NULL) && read_until(whole, &b, NULL));
    assert_non_null(strstr(a.data, "data: {\"error\":{"));
    assert_int_equal(status_of(b.data), 503);
    mem_free(first);
    mem_free(second);
    buf_free(&a);
    buf_free(&b);
    close(stream);
    close(whole);
}

/* A second request to stop does not wait, and whatever runs is let go without a leak. */
static void test_stop_twice(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 10000, 64);
    int fd = dial(&f);
    char *request = http("POST", "/v1/completions", "", "{\"prompt\":\"a\"," ENDLESS);
    send_text(fd, request, strlen(request));
    mem_free(request);
    wait_live(&f, 1);
    ask_to_stop(&f);
    usleep(100000);
    stop(&f);
    close(fd);
}

static void *storm_client(void *context) {
    const fixture *f = context;
    for (int i = 0; i < 10; i++) {
        int fd = dial(f);
        bool leaves = i % 3 == 0;
        char *request = http("POST", "/v1/completions", CLOSE,
                             i % 2 == 0 ? "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":20}"
                                        : "{\"prompt\":\"a\",\"max_tokens\":20}");
        send_text(fd, request, strlen(request));
        mem_free(request);
        buf got = {0};
        if (leaves)
            usleep((useconds_t)(i * 500));
        else if (!read_until(fd, &got, NULL) ||
                 (status_of(got.data) != 200 && status_of(got.data) != 429)) {
            close(fd);
            return "a request was not answered";
        }
        buf_free(&got);
        close(fd);
    }
    return NULL;
}

static void test_storm(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    pthread_t threads[16];
    begin(&f, 200, 12);
    for (int i = 0; i < 16; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, storm_client, &f), 0);
    for (int i = 0; i < 16; i++) {
        void *why;
        pthread_join(threads[i], &why);
        assert_null(why);
    }
    wait_live(&f, 0);
    check_status(&f, "POST", "/v1/completions", "{\"prompt\":\"a\"}", 200);
    stop(&f);
}

static void test_port_in_use(void **state) {
    (void)state;
    fixture f = {.params = server_params_default()};
    begin(&f, 1000, 8);
    server_params p = f.params;
    server *second = NULL;
    ridge_error err = {0};
    p.port = f.port;
    assert_int_equal(server_open(&second, &p, &f.table, &err), RIDGE_EIO);
    assert_non_null(strstr(err.text, "in use"));
    p.host = "no.such.host.invalid";
    err = (ridge_error){0};
    assert_int_equal(server_open(&second, &p, &f.table, &err), RIDGE_EINVAL);
    stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_routes),
        cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_of_a_first_space),
        cmocka_unit_test(test_best_of),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_streams_share_a_described_prompt),
        cmocka_unit_test(test_answers_that_take_too_much),
        cmocka_unit_test(test_answers_that_nobody_reads),
        cmocka_unit_test(test_large_texts_to_tokenize),
        cmocka_unit_test(test_explanation_of_candidates),
        cmocka_unit_test(test_stream_of_large_events),
        cmocka_unit_test(test_stream_that_nobody_reads),
        cmocka_unit_test(test_nothing_follows_what_is_let_go),
        cmocka_unit_test(test_one_connection),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_much_behind_a_request),
        cmocka_unit_test(test_request_timeout),
        cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_limit),
        cmocka_unit_test(test_stop_twice),
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_port_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
