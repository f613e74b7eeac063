/* Bodies of the API: what is taken, with which values, and what is refused naming which field. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "fake_backend.h"
#include "server/api_request.h"
#include "server/json_field.h"

static server_backend table;
static const api_names names = {"m", "/models/m.gguf"};

static bool read_n(api_request *r, api_kind kind, const char *body, size_t n, api_error *e) {
    *r = (api_request){0};
    *e = (api_error){0};
    return api_request_read(r, kind, body, n, &table, &names, e);
}

static void check_ok(api_request *r, api_kind kind, const char *body) {
    api_error e;
    if (!read_n(r, kind, body, strlen(body), &e)) fail_msg("%s: %d %s", body, e.status, e.message);
}

static void test_defaults_and_nulls(void **state) {
    (void)state;
    api_request r, nulls;
    check_ok(&r, API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    check_ok(&nulls, API_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":null,"
             "\"top_p\":null,\"max_tokens\":null,\"max_completion_tokens\":null,\"stop\":null,"
             "\"seed\":null,\"n\":null,\"logit_bias\":null,\"tools\":null,\"tool_choice\":null,"
             "\"response_format\":null,\"stream\":null,\"stream_options\":null,\"user\":null,"
             "\"logprobs\":null,\"top_logprobs\":null,\"presence_penalty\":null,"
             "\"frequency_penalty\":null,\"model\":null,\"unknown\":{\"x\":[1]}}");
    for (int i = 0; i < 2; i++) {
        const api_request *a = i == 0 ? &r : &nulls;
        assert_int_equal(a->n, 1);
        assert_int_equal(a->n_prompts, 1);
        assert_int_equal(a->engine.max_tokens, 0);
        assert_int_equal(a->engine.prompt_logprobs, -1);
        assert_int_equal(a->engine.sampling.n_logprobs, -1);
        assert_true(a->engine.sampling.temperature == 1.0f && a->engine.sampling.top_p == 1.0f);
        assert_false(a->stream || a->echo || a->add_special || a->include_usage);
        assert_int_equal(a->prompts[0].n_ids, strlen("user:hi\n"));
    }
    assert_true(r.engine.sampling.seed != nulls.engine.sampling.seed);
    api_request_free(&r);
    api_request_free(&nulls);
}

static void test_what_cannot_fit_is_not_encoded(void **state) {
    (void)state;
    api_request r;
    api_error e;
    size_t n = (4 << 20) + 64;
    char *body = mem_alloc(n);
    memset(body, 'x', n);
    memcpy(body, "{\"prompt\":\"", 11);
    memcpy(body + n - 2, "\"}", 2);
    assert_false(read_n(&r, API_COMPLETIONS, body, n, &e));
    assert_non_null(strstr(e.message, "at least 2097177 input tokens"));
    api_request_free(&r);
    api_request_free(&r);
    /* More values than are parsed: [[],[],... */
    memcpy(body, "{\"prompt\":[[]", 13);
    for (size_t i = 13; i + 3 <= n - 64; i += 3) memcpy(body + i, ",[]", 3);
    assert_false(read_n(&r, API_COMPLETIONS, body, n, &e));
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "2097152 values"));
    api_request_free(&r);
    mem_free(body);
}

static void test_values(void **state) {
    (void)state;
    api_request r;
    check_ok(&r, API_COMPLETIONS,
             "{\"model\":\"m\",\"prompt\":\"ab\",\"n\":3,\"best_of\":3,\"temperature\":0,"
             "\"top_k\":-1,\"top_p\":0.5,\"min_p\":0.1,\"seed\":4294967297,\"max_tokens\":7,"
             "\"min_tokens\":2,\"stop\":[\"x\",\"yz\"],\"stop_token_ids\":[3],\"logprobs\":2,"
             "\"echo\":true,\"logit_bias\":{\"5\":-100,\"6\":1.5},\"ignore_eos\":true,"
             "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"priority\":-4,"
             "\"skip_special_tokens\":false,\"repetition_penalty\":1.5}");
    assert_int_equal(r.n, 3);
    assert_true(r.engine.sampling.seed == 4294967297u);
    assert_int_equal(r.engine.max_tokens, 7);
    assert_int_equal(r.engine.min_tokens, 2);
    assert_int_equal(r.engine.n_stop, 2);
    assert_string_equal(r.engine.stop[1], "yz");
    assert_int_equal(r.engine.stop_ids[0], 3);
    assert_int_equal(r.engine.sampling.n_bias, 2);
    assert_int_equal(r.engine.sampling.n_logprobs, 2);
    assert_int_equal(r.engine.prompt_logprobs, 2);
    assert_int_equal(r.engine.priority, -4);
    assert_true(r.engine.ignore_eos && r.engine.special && r.stream && r.include_usage && r.echo);
    assert_int_equal(r.prompts[0].n_ids, 3); /* with a BOS */
    api_request_free(&r);
    check_ok(&r, API_COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":0,\"max_tokens\":0}");
    assert_true(r.engine.prompt_only);
    api_request_free(&r);
    check_ok(&r, API_COMPLETIONS, "{\"prompt\":[1,2,3],\"stop\":\"\",\"suffix\":\"\"}");
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.engine.max_tokens, 16);
    assert_int_equal(r.engine.n_stop, 0);
    api_request_free(&r);
    check_ok(&r, API_COMPLETIONS, "{\"prompt\":[[1,2],[3]],\"model\":\"/models/m.gguf\"}");
    assert_int_equal(r.n_prompts, 2);
    api_request_free(&r);
    check_ok(&r, API_COMPLETIONS, "{\"prompt\":[\"a\",[7,8]],\"stop\":[]}");
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].n_ids, 2);
    api_request_free(&r);
}

/* What the answer reports, and what the engine is asked for: enough for all readers of it. */
static void test_logprobs_and_candidates(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        uint32_t n, best_of;
        int logprobs, prompt_logprobs, of_engine, of_prompt;
    } cases[] = {
        {"\"n\":2", 2, 2, -1, -1, -1, -1},
        {"\"n\":2,\"best_of\":5", 2, 5, -1, -1, 0, -1},
        {"\"best_of\":128,\"logprobs\":3", 1, 128, 3, -1, 3, -1},
        {"\"best_of\":null,\"prompt_logprobs\":null", 1, 1, -1, -1, -1, -1},
        {"\"prompt_logprobs\":false", 1, 1, -1, -1, -1, -1},
        {"\"prompt_logprobs\":0", 1, 1, -1, 0, -1, 0},
        {"\"prompt_logprobs\":20,\"logprobs\":1", 1, 1, 1, 20, 1, 20},
        {"\"prompt_logprobs\":2,\"logprobs\":4,\"echo\":true", 1, 1, 4, 2, 4, 4},
        {"\"prompt_logprobs\":4,\"logprobs\":2,\"echo\":true", 1, 1, 2, 4, 2, 4},
        {"\"prompt_logprobs\":0,\"stream\":true", 1, 1, -1, -1, -1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_request r;
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\":\"x\",%s}", cases[i].fields);
        check_ok(&r, API_COMPLETIONS, body);
        assert_int_equal(r.n, cases[i].n);
        assert_int_equal(r.best_of, cases[i].best_of);
        assert_int_equal(r.logprobs, cases[i].logprobs);
        assert_int_equal(r.prompt_logprobs, cases[i].prompt_logprobs);
        assert_int_equal(r.engine.sampling.n_logprobs, cases[i].of_engine);
        assert_int_equal(r.engine.prompt_logprobs, cases[i].of_prompt);
        api_request_free(&r);
    }
}

static uint64_t salt_of(const char *salt) {
    api_request r;
    char body[600];
    snprintf(body, sizeof body, "{\"prompt\":\"x\",\"cache_salt\":%s}", salt);
    check_ok(&r, API_COMPLETIONS, body);
    uint64_t found = r.engine.cache_salt;
    api_request_free(&r);
    return found;
}

static void test_extras(void **state) {
    (void)state;
    api_request r;
    check_ok(
        &r, API_COMPLETIONS,
        "{\"prompt\":\"x\",\"ridge\":{\"explain\":true,\"unknown\":1},\"cache_prompt\":false}");
    assert_true(r.explain && r.engine.no_cache);
    assert_true(r.engine.cache_salt == 0);
    api_request_free(&r);
    check_ok(&r, API_COMPLETIONS, "{\"prompt\":\"x\",\"ridge\":{\"explain\":null}}");
    assert_false(r.explain || r.engine.no_cache);
    api_request_free(&r);
    assert_true(salt_of("null") == 0);
    assert_true(salt_of("\"a\"") != 0 && salt_of("\"a\"") == salt_of("\"a\""));
    assert_true(salt_of("\"a\"") != salt_of("\"b\""));
    /* 128 characters of two bytes are taken, one more is not. */
    char text[300] = "\"";
    for (int i = 0; i < 128; i++) strcat(text, "\xC3\xA9");
    strcat(text, "\"");
    assert_true(salt_of(text) != 0);
    char body[600];
    api_error e;
    text[strlen(text) - 1] = '\0';
    snprintf(body, sizeof body, "{\"prompt\":\"x\",\"cache_salt\":%sx\"}", text);
    assert_false(read_n(&r, API_COMPLETIONS, body, strlen(body), &e));
    assert_string_equal(e.param, "cache_salt");
    assert_non_null(strstr(e.message, "129 characters"));
    api_request_free(&r);
}

static void test_messages(void **state) {
    (void)state;
    api_request r;
    check_ok(&r, API_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
             "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null,"
             "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
             "\"arguments\":\"{\"}}]},{\"role\":\"tool\",\"content\":\"\\uD83D\\uDE00\\u0000\"}]}");
    static const char expected[] = "user:a\nb\nassistant:\ntool:\xF0\x9F\x98\x80\0\n";
    assert_int_equal(r.prompts[0].n_ids, sizeof expected - 1);
    for (size_t i = 0; i < sizeof expected - 1; i++)
        assert_int_equal(r.prompts[0].ids[i], (unsigned char)expected[i]);
    api_request_free(&r);
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        api_kind kind;
        const char *body;
        int status;
        const char *param, *message; /* a part of it */
    } cases[] = {
        {API_CHAT, "", 400, "", "not valid JSON"},
        {API_CHAT, "{", 400, "", "line 1, column 1"},
        {API_CHAT, "[]", 400, "", "an object, not an array"},
        {API_CHAT, "{} {}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":01}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":1e400}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":\"\\s\"}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":\"\t\"}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":\"\\ud83d\"}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"a\":\"\xFF\"}", 400, "", "not valid JSON"},
        {API_CHAT, "{\"seed\":9223372036854775808," USER "}", 400, "seed", "out of range"},
        {API_CHAT, "{}", 400, "messages", "required"},
        {API_CHAT, "{\"messages\":[]}", 400, "messages", "at least one"},
        {API_CHAT, "{\"messages\":\"x\"}", 400, "messages", "list"},
        {API_CHAT, "{\"messages\":[1]}", 400, "messages", "an integer"},
        {API_CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"\"}]}", 400, "messages",
         "king"},
        {API_CHAT, "{\"messages\":[{\"content\":\"\"}]}", 400, "messages", "role"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages",
         "content"},
        {API_CHAT, "{\"messages\":[{\"role\":\"developer\",\"content\":\"\"}]}", 400, "messages",
         "boom"},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
         "\"image_url\":{\"url\":\"x\"}}]}]}",
         400, "messages", "image_url"},
        {API_CHAT, "{\"model\":\"gpt\"," USER "}", 404, "model", "does not exist"},
        {API_CHAT, "{\"model\":1," USER "}", 400, "model", "a string, not an integer"},
        {API_CHAT, "{\"temperature\":\"hot\"," USER "}", 400, "temperature", "a number"},
        {API_CHAT, "{\"temperature\":-1," USER "}", 400, "temperature", "-1"},
        {API_CHAT, "{\"temperature\":true," USER "}", 400, "temperature", "a boolean"},
        {API_CHAT, "{\"top_p\":1.5," USER "}", 400, "top_p", "1.5"},
        {API_CHAT, "{\"min_p\":-0.5," USER "}", 400, "min_p", "-0.5"},
        {API_CHAT, "{\"top_k\":-2," USER "}", 400, "top_k", "-2"},
        {API_CHAT, "{\"presence_penalty\":3," USER "}", 400, "presence_penalty", "3"},
        {API_CHAT, "{\"repetition_penalty\":0," USER "}", 400, "repetition_penalty", "0"},
        {API_CHAT, "{\"max_tokens\":0," USER "}", 400, "max_tokens", "0"},
        {API_CHAT, "{\"max_tokens\":1.5," USER "}", 400, "max_tokens", "an integer"},
        {API_CHAT, "{\"max_tokens\":2,\"min_tokens\":3," USER "}", 400, "min_tokens", "more than"},
        {API_CHAT, "{\"seed\":1.5," USER "}", 400, "seed", "an integer"},
        {API_CHAT, "{\"seed\":\"7\"," USER "}", 400, "seed", "a string"},
        {API_CHAT, "{\"n\":0," USER "}", 400, "n", "0"},
        {API_CHAT, "{\"n\":1000," USER "}", 400, "n", "1000"},
        {API_CHAT, "{\"stop\":5," USER "}", 400, "stop", "an integer"},
        {API_CHAT, "{\"stop\":[\"\"]," USER "}", 400, "stop", "empty"},
        {API_CHAT, "{\"stop\":\"a\\u0000b\"," USER "}", 400, "stop", "U+0000"},
        {API_CHAT, "{\"logprobs\":1," USER "}", 400, "logprobs", "a boolean"},
        {API_CHAT, "{\"top_logprobs\":2," USER "}", 400, "top_logprobs", "only allowed"},
        {API_CHAT, "{\"logprobs\":true,\"top_logprobs\":21," USER "}", 400, "top_logprobs", "21"},
        {API_CHAT, "{\"logprobs\":true,\"top_logprobs\":-1," USER "}", 400, "top_logprobs", "-1"},
        {API_CHAT, "{\"logit_bias\":{\"x\":1}," USER "}", 400, "logit_bias", "'x'"},
        {API_CHAT, "{\"logit_bias\":{\"999999\":1}," USER "}", 400, "logit_bias", "999999"},
        {API_CHAT, "{\"logit_bias\":{\"1\":101}," USER "}", 400, "logit_bias", "100"},
        {API_CHAT, "{\"stream\":\"yes\"," USER "}", 400, "stream", "a boolean"},
        {API_CHAT, "{\"tools\":[{\"type\":\"function\"}]," USER "}", 400, "tools", "not supported"},
        {API_CHAT, "{\"tool_choice\":\"required\"," USER "}", 400, "tool_choice", "needs tools"},
        {API_CHAT, "{\"tool_choice\":\"maybe\"," USER "}", 400, "tool_choice", "must be"},
        {API_CHAT, "{\"tool_choice\":\"none\\u0000\"," USER "}", 400, "tool_choice", "must be"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"x\"}]}", 400,
         "messages", "'role' must be"},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":"
         "\"x\"}]}]}",
         400, "messages", "not supported yet"},
        {API_CHAT, "{\"response_format\":{\"type\":\"text\\u0000\"}," USER "}", 400,
         "response_format", "not supported yet"},
        {API_CHAT, "{\"response_format\":{\"type\":\"json_object\"}," USER "}", 400,
         "response_format", "json_object"},
        {API_CHAT, "{\"guided_json\":{}," USER "}", 400, "guided_json", "not supported"},
        {API_COMPLETIONS, "{}", 400, "prompt", "required"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"seed\":99999999999999999999}", 400, "seed",
         "64 bits"},
        {API_COMPLETIONS, "{\"max_tokens\":-9223372036854775809,\"prompt\":\"x\"}", 400,
         "max_tokens", "9223372036854775809"},
        {API_COMPLETIONS, "{\"temperature\":1e400,\"prompt\":\"x\"}", 400, "", "not valid JSON"},
        {API_COMPLETIONS, "{\"prompt\":[[1],[2,18446744073709551616]],\"seed\":1}", 400, "prompt",
         "64 bits"},
        {API_COMPLETIONS, "{\"prompt\":\"\"}", 400, "prompt", "empty"},
        {API_COMPLETIONS, "{\"prompt\":[]}", 400, "prompt", "empty"},
        {API_COMPLETIONS, "{\"prompt\":[\"\"]}", 400, "prompt", "empty"},
        {API_COMPLETIONS, "{\"prompt\":[[]]}", 400, "prompt", "empty"},
        {API_COMPLETIONS, "{\"prompt\":null}", 400, "prompt", "required"},
        {API_COMPLETIONS, "{\"prompt\":{\"x\":1}}", 400, "prompt", "an object"},
        {API_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", 400, "prompt", "a token id"},
        {API_COMPLETIONS, "{\"prompt\":[1.5]}", 400, "prompt", "a token id"},
        {API_COMPLETIONS, "{\"prompt\":[-1]}", 400, "prompt", "-1"},
        {API_COMPLETIONS, "{\"prompt\":[258]}", 400, "prompt", "258 tokens"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"n\":3,\"best_of\":2}", 400, "best_of", "is 2"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"best_of\":129}", 400, "best_of", "128"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"best_of\":1.5}", 400, "best_of", "an integer"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"n\":2,\"best_of\":3,\"stream\":true}", 400,
         "best_of", "'stream'"},
        {API_COMPLETIONS,
         "{\"prompt\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\","
         "\"a\",\"a\",\"a\"],\"best_of\":128}",
         400, "prompt", "17 prompts times 128"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"prompt_logprobs\":21}", 400, "prompt_logprobs",
         "20"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"prompt_logprobs\":-1}", 400, "prompt_logprobs",
         "-1"},
        {API_CHAT, "{\"prompt_logprobs\":1,\"stream\":true," USER "}", 400, "prompt_logprobs",
         "'stream'"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":true}", 400, "logprobs", "an integer"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"suffix\":\"y\"}", 400, "suffix", "not supported"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":\"\"}", 400, "cache_salt", "empty"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":7}", 400, "cache_salt", "an integer"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":\"a@b\"}", 400, "cache_salt", "'@'"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":\"a/b\"}", 400, "cache_salt", "'/'"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":\"a\\\\b\"}", 400, "cache_salt",
         "'\\'"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_salt\":\"a\\u0000\"}", 400, "cache_salt",
         "U+0000"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"cache_prompt\":1}", 400, "cache_prompt",
         "an integer"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"ridge\":true}", 400, "ridge", "a boolean"},
        {API_COMPLETIONS, "{\"prompt\":\"x\",\"ridge\":{\"explain\":1}}", 400, "explain",
         "an integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_request r;
        api_error e;
        bool ok = read_n(&r, cases[i].kind, cases[i].body, strlen(cases[i].body), &e);
        if (ok || e.status != cases[i].status || strcmp(e.param, cases[i].param) != 0 ||
            strstr(e.message, cases[i].message) == NULL)
            fail_msg("%s: %d '%s' %s", cases[i].body, e.status, e.param, e.message);
        api_request_free(&r);
    }
}

/* Of the fields that the clients of OpenAI, vLLM, SGLang and llama-server send: each is honoured
 * (the tests above), refused by name, or makes no difference to the answer. */
static void test_fields_of_other_servers(void **state) {
    (void)state;
    static const char *const refused[] = {"\"allowed_token_ids\":[1]",
                                          "\"audio\":{\"voice\":\"a\"}",
                                          "\"bad_words\":[\"x\"]",
                                          "\"chat_template\":\"x\"",
                                          "\"continue_final_message\":true",
                                          "\"ebnf\":\"x\"",
                                          "\"functions\":[{}]",
                                          "\"grammar\":\"x\"",
                                          "\"guided_choice\":[\"x\"]",
                                          "\"guided_grammar\":\"x\"",
                                          "\"guided_json\":{}",
                                          "\"guided_regex\":\"x\"",
                                          "\"include_stop_str_in_output\":true",
                                          "\"json_schema\":{}",
                                          "\"logits_processors\":[\"x\"]",
                                          "\"logprob_token_ids\":[1]",
                                          "\"lora_path\":\"x\"",
                                          "\"modalities\":[\"text\",\"audio\"]",
                                          "\"no_stop_trim\":true",
                                          "\"prompt_embeds\":\"x\"",
                                          "\"prompt_logprobs\":true",
                                          "\"prompt_logprobs\":-1",
                                          "\"regex\":\"x\"",
                                          "\"repetition_detection\":{}",
                                          "\"response_format\":{\"type\":\"json_object\"}",
                                          "\"response_format\":{\"type\":\"json_schema\"}",
                                          "\"response_format\":{}",
                                          "\"response_format\":\"text\"",
                                          "\"return_hidden_states\":true",
                                          "\"return_prompt_text\":true",
                                          "\"return_tokens_as_token_ids\":true",
                                          "\"structured_outputs\":{\"json\":{}}",
                                          "\"suffix\":\"x\"",
                                          "\"thinking_token_budget\":5",
                                          "\"tool_choice\":{\"type\":\"function\"}",
                                          "\"tools\":[{}]",
                                          "\"truncate_prompt_tokens\":5",
                                          "\"use_beam_search\":true",
                                          "\"n\":0",
                                          "\"best_of\":0",
                                          "\"best_of\":2,\"stream\":true",
                                          "\"stream_options\":[]",
                                          "\"logit_bias\":[]"};
    static const char *const no_difference[] = {
        "\"bad_words\":[]",
        "\"cache_prompt\":true",
        "\"cache_salt\":\"x\"",
        "\"continue_final_message\":false",
        "\"functions\":[]",
        "\"id_slot\":1",
        "\"include_reasoning\":true",
        "\"include_stop_str_in_output\":false",
        "\"kv_transfer_params\":{\"x\":1}",
        "\"length_penalty\":2",
        "\"metadata\":{\"a\":\"b\"}",
        "\"mm_processor_kwargs\":{}",
        "\"modalities\":[\"text\"]",
        "\"parallel_tool_calls\":false",
        "\"prediction\":{\"type\":\"content\",\"content\":\"x\"}",
        "\"prompt_cache_key\":\"x\"",
        "\"request_id\":\"x\"",
        "\"response_format\":{\"type\":\"text\"}",
        "\"safety_identifier\":\"x\"",
        "\"service_tier\":\"auto\"",
        "\"spaces_between_special_tokens\":true",
        "\"store\":true",
        "\"stream_options\":{\"include_usage\":true}",
        "\"suffix\":\"\"",
        "\"tools\":[]",
        "\"tool_choice\":\"auto\"",
        "\"tools\":[{}],\"tool_choice\":\"none\"",
        "\"use_beam_search\":false",
        "\"user\":5",
        "\"verbosity\":\"low\"",
        "\"web_search_options\":{}",
        "\"x\":[{\"y\":null}]"};
    for (int k = 0; k < 2; k++) {
        const char *prompt = k == 0 ? "\"prompt\":\"x\"" : USER;
        api_kind kind = k == 0 ? API_COMPLETIONS : API_CHAT;
        char body[256], name[64];
        api_request r;
        api_error e;
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
            snprintf(body, sizeof body, "{%s,%s}", refused[i], prompt);
            snprintf(name, sizeof name, "%.*s", (int)strcspn(refused[i] + 1, "\""), refused[i] + 1);
            bool ok = read_n(&r, kind, body, strlen(body), &e);
            if (ok || e.status != 400 || strcmp(e.param, name) != 0 || !strstr(e.message, name))
                fail_msg("%s: %d '%s' %s", body, e.status, e.param, e.message);
            api_request_free(&r);
        }
        for (size_t i = 0; i < sizeof no_difference / sizeof *no_difference; i++) {
            snprintf(body, sizeof body, "{%s,%s}", no_difference[i], prompt);
            check_ok(&r, kind, body);
            assert_int_equal(r.n, 1);
            api_request_free(&r);
        }
    }
}

static void check_depth(int depth, bool expected) {
    buf b = {0};
    api_request r;
    api_error e;
    buf_puts(&b, "{\"prompt\":\"a\",\"x\":");
    for (int i = 1; i < depth; i++) buf_putc(&b, '[');
    for (int i = 1; i < depth; i++) buf_putc(&b, ']');
    buf_putc(&b, '}');
    assert_int_equal(read_n(&r, API_COMPLETIONS, b.data, b.len, &e), expected);
    if (!expected) assert_non_null(strstr(e.message, "nested"));
    api_request_free(&r);
    buf_free(&b);
}

static void test_depth(void **state) {
    (void)state;
    check_depth(JSON_MAX_DEPTH, true);
    check_depth(JSON_MAX_DEPTH + 1, false);
    check_depth(1 << 20, false);
}

static void test_too_long(void **state) {
    (void)state;
    buf b = {0};
    api_request r;
    api_error e;
    buf_puts(&b, "{\"prompt\":\"");
    for (int i = 0; i < 1000; i++) buf_putc(&b, 'a');
    buf_puts(&b, "\"}");
    assert_false(read_n(&r, API_COMPLETIONS, b.data, b.len, &e));
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "1000 tokens"));
    assert_non_null(strstr(e.message, "1001 input tokens"));
    api_request_free(&r);
    buf_free(&b);
}

/* A prompt of so many 'x' (a completion's with a BOS) with these fields. param NULL: it is taken.
 */
static void check_size(api_kind kind, size_t n, const char *fields, const char *param,
                       const char *message) {
    buf b = {0};
    api_request r;
    api_error e;
    buf_puts(&b, kind == API_CHAT ? "{\"messages\":[{\"role\":\"user\",\"content\":\""
                                  : "{\"prompt\":\"");
    for (size_t i = 0; i < n; i++) buf_putc(&b, 'x');
    buf_printf(&b, kind == API_CHAT ? "\"}],%s}" : "\",%s}", fields);
    bool ok = read_n(&r, kind, b.data, b.len, &e);
    if (ok != (param == NULL) ||
        (!ok && (e.status != 400 || strcmp(e.param, param) != 0 || !strstr(e.message, message))))
        fail_msg("%zu, %s: %d '%s' %s", n, fields, e.status, e.param, e.message);
    api_request_free(&r);
    buf_free(&b);
}

/* Of 2,097,152 log-probabilities that one answer may have to keep. */
static void test_too_many_logprobs(void **state) {
    (void)state;
    static const struct {
        api_kind kind;
        size_t n;
        const char *fields, *param, *message;
    } cases[] = {
        /* 801 tokens x 21 x 124, and 124 x 21 of the answers: 2,088,408 */
        {API_COMPLETIONS, 800, "\"echo\":true,\"logprobs\":20,\"max_tokens\":1,\"n\":124", NULL,
         ""},
        {API_COMPLETIONS, 800, "\"echo\":true,\"logprobs\":20,\"max_tokens\":1,\"n\":125",
         "logprobs",
         "up to 2105250 log-probabilities, 2102625 of prompts' tokens and 2625 of its own"},
        {API_COMPLETIONS, 800,
         "\"echo\":true,\"logprobs\":20,\"max_tokens\":0,\"n\":125,\"stream\":true", "logprobs",
         "at most 2097152 are taken"},
        {API_COMPLETIONS, 800, "\"echo\":true,\"logprobs\":9,\"max_tokens\":1,\"n\":125", NULL, ""},
        {API_COMPLETIONS, 800, "\"echo\":true,\"max_tokens\":1,\"n\":128", NULL, ""},
        {API_COMPLETIONS, 800, "\"prompt_logprobs\":20,\"n\":125", "prompt_logprobs",
         "2102625 of prompts' tokens and 0 of its own"},
        {API_COMPLETIONS, 800, "\"prompt_logprobs\":20,\"best_of\":125", NULL, ""},
        {API_COMPLETIONS, 800, "\"prompt_logprobs\":10,\"logprobs\":10,\"echo\":true,\"n\":120",
         "logprobs", "2114640 of prompts' tokens"},
        {API_CHAT, 800, "\"prompt_logprobs\":20,\"n\":128", NULL, ""},
        {API_COMPLETIONS, 1, "\"logprobs\":20,\"max_tokens\":900,\"n\":128", "logprobs",
         "0 of prompts' tokens and 2419200 of its own (128 choices times 1 prompts)"},
        {API_COMPLETIONS, 1, "\"logprobs\":20,\"max_tokens\":900,\"best_of\":128", "logprobs",
         "2419200 of its own"},
        {API_COMPLETIONS, 1, "\"logprobs\":20,\"max_tokens\":900,\"n\":128,\"stream\":true", NULL,
         ""},
        {API_COMPLETIONS, 1, "\"logprobs\":0,\"max_tokens\":900,\"n\":128", NULL, ""},
        {API_COMPLETIONS, 1, "\"max_tokens\":900,\"n\":128", NULL, ""},
        /* A number beyond the context, of 1,000, asks for no more than that. */
        {API_COMPLETIONS, 1, "\"logprobs\":20,\"max_tokens\":2147483647,\"n\":99", NULL, ""},
        {API_COMPLETIONS, 1, "\"logprobs\":20,\"max_tokens\":2147483647,\"n\":100", "logprobs",
         "2100000 of its own"},
        {API_CHAT, 1,
         "\"logprobs\":true,\"top_logprobs\":20,\"max_completion_tokens\":900,\"n\":128",
         "top_logprobs", "2419200 of its own"},
        {API_CHAT, 1, "\"logprobs\":true,\"top_logprobs\":20,\"n\":128", NULL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_size(cases[i].kind, cases[i].n, cases[i].fields, cases[i].param, cases[i].message);
}

/* Each sequence has a copy of its prompt: of 16,777,216 tokens in all. */
static void test_too_many_copies_of_prompts(void **state) {
    (void)state;
    server_backend kept = table;
    fake_backend *large = fake_backend_create(&table, "hi", 1000, 8, 200000);
    check_size(API_COMPLETIONS, 139999, "\"n\":119", NULL, "");
    check_size(API_COMPLETIONS, 139999, "\"n\":120", "prompt",
               "140000 tokens times 120 choices make more than 16777216");
    check_size(API_COMPLETIONS, 139999, "\"best_of\":120", "prompt", "times 120 choices");
    check_size(API_CHAT, 139994, "\"n\":119", NULL, "");
    check_size(API_CHAT, 139994, "\"n\":120", "messages", "140000 tokens times 120 choices");
    fake_backend_destroy(large);
    table = kept;
}

/* One more than is taken of each list: `%d` in an item is its number. */
static void test_long_lists(void **state) {
    (void)state;
    static const struct {
        const char *param, *open, *item, *close;
        int n;
        const char *message;
    } cases[] = {
        {"stop", "[", "\"x%d\"", "]", 65, "65 strings, at most 64"},
        {"stop", "[", "\"%01100d\"", "]", 60, "more than 65536 bytes"},
        {"stop_token_ids", "[", "%d", "]", 1025, "more than 1024"},
        {"logit_bias", "{", "\"%d\":1", "}", 1025, "1025 entries, at most 1024"},
        {"prompt", "[", "\"x%d\"", "]", 2049,
         "2049 prompts times 1 choice make 2049 sequences, more than the 2048 that one"},
        {"prompt", "[", "[%d]", "]", 2049,
         "2049 prompts times 1 choice make 2049 sequences, more than the 2048 that one"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf b = {0};
        api_request r;
        api_error e;
        char item[1200];
        bool is_prompt = strcmp(cases[i].param, "prompt") == 0;
        buf_printf(&b, "{%s\"%s\":%s", is_prompt ? "" : "\"prompt\":\"x\",", cases[i].param,
                   cases[i].open);
        for (int k = 0; k < cases[i].n; k++) {
            snprintf(item, sizeof item, cases[i].item, k);
            buf_printf(&b, "%s%s", k > 0 ? "," : "", item);
        }
        buf_printf(&b, "%s}", cases[i].close);
        assert_false(read_n(&r, API_COMPLETIONS, b.data, b.len, &e));
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, cases[i].param);
        if (strstr(e.message, cases[i].message) == NULL) fail_msg("%s", e.message);
        api_request_free(&r);
        buf_free(&b);
    }
}

/* Whatever allocation fails, the request ends in an error and nothing leaks. */
static void test_out_of_memory(void **state) {
    (void)state;
    const char body[] = "{\"prompt\":[[1,2],\"ab\"],\"logprobs\":1,\"stop\":[\"x\"],"
                        "\"logit_bias\":{\"1\":2},\"stop_token_ids\":[1]}";
    bool ok = false;
    for (long n = 1; n < 100 && !ok; n++) {
        api_request r;
        api_error e;
        mem_fail_after(n);
        ok = read_n(&r, API_COMPLETIONS, body, sizeof body - 1, &e);
        mem_fail_after(0);
        if (!ok) assert_int_equal(e.status, 503);
        api_request_free(&r);
    }
    assert_true(ok);
}

static backend_info three_at_once(void *self) {
    (void)self;
    return (backend_info){.n_vocab = FAKE_N_VOCAB, .max_model_len = 1000, .max_sequences = 3};
}

/* What could never come in whole is not told to try later, and is not one too few. */
static void test_more_than_there_is_room_for(void **state) {
    (void)state;
    static const struct {
        const char *body, *param, *message; /* NULL: it is taken */
    } cases[] = {
        {"{\"prompt\":\"x\",\"n\":3}", NULL, NULL},
        {"{\"prompt\":[\"x\",\"y\",\"z\"]}", NULL, NULL},
        {"{\"prompt\":\"x\",\"n\":4}", "n",
         "1 prompt times 4 choices make 4 sequences, more than the 3 that may run and wait"},
        {"{\"prompt\":\"x\",\"n\":2,\"best_of\":4}", "best_of", "times 4 choices make 4"},
        {"{\"prompt\":[\"x\",\"y\"],\"n\":2}", "prompt",
         "2 prompts times 2 choices make 4 sequences, more than the 3 that may run and wait"},
        {"{\"prompt\":[[1],[2],[3],[4]]}", "prompt", "4 prompts times 1 choice make 4"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":3}", NULL, NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":128}", "n",
         "make 128 sequences, more than the 3 that may run and wait (--max-num-seqs, "
         "--max-waiting)"},
    };
    server_backend kept = table;
    table.info = three_at_once;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_request r;
        api_error e;
        const char *body = cases[i].body;
        api_kind kind = strstr(body, "messages") != NULL ? API_CHAT : API_COMPLETIONS;
        assert_int_equal(read_n(&r, kind, body, strlen(body), &e), cases[i].param == NULL);
        if (cases[i].param != NULL) {
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, cases[i].param);
            if (strstr(e.message, cases[i].message) == NULL) fail_msg("%s", e.message);
        }
        api_request_free(&r);
    }
    table = kept;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_nulls),
        cmocka_unit_test(test_what_cannot_fit_is_not_encoded),
        cmocka_unit_test(test_logprobs_and_candidates),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_extras),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fields_of_other_servers),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_too_many_logprobs),
        cmocka_unit_test(test_too_many_copies_of_prompts),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_more_than_there_is_room_for),
        cmocka_unit_test(test_out_of_memory),
    };
    fake_backend *fake = fake_backend_create(&table, "hi", 1000, 8, 1000);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_backend_destroy(fake);
    return failed;
}
