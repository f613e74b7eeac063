/* server/api_sampling: the fields that chat and completions share: how much to make, how to draw,
 * when to stop, what to report. See api_request.h. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "server/api_request.h"
#include "server/json_field.h"

/* Fields that ask for another answer, or more of it, than the one that ridge would give: OpenAI's,
 * vLLM's, SGLang's and llama-server's. Values that ask for nothing (false, an empty list or text)
 * are as good as absent. */
static bool refuse_missing_features(const json_t *root, api_error *e) {
    static const char *const missing[] = {
        "allowed_token_ids",
        "audio",
        "bad_words",
        "chat_template",
        "continue_final_message",
        "custom_logit_processor",
        "ebnf",
        "functions",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "include_stop_str_in_output",
        "json_schema",
        "logits_processors",
        "logprob_token_ids",
        "lora_path",
        "no_stop_trim",
        "prompt_embeds",
        "regex",
        "repetition_detection",
        "return_hidden_states",
        "return_prompt_text",
        "return_tokens_as_token_ids",
        "structural_tag",
        "structured_outputs",
        "suffix",
        "thinking_token_budget",
        "truncate_prompt_tokens",
        "use_beam_search",
    };
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        const json_t *v = field_get(root, missing[i]);
        if (v == NULL || json_is_false(v)) continue;
        if (json_is_string(v) && json_string_length(v) == 0) continue;
        if (json_is_array(v) && json_array_size(v) == 0) continue;
        return api_fail(e, 400, missing[i], "'%s' is not supported yet", missing[i]);
    }
    return true;
}

static bool read_response_format(const json_t *root, api_error *e) {
    const json_t *format = field_get(root, "response_format");
    if (format == NULL) return true;
    if (!json_is_object(format)) return field_type_error(e, "response_format", "an object", format);
    const json_t *type = json_object_get(format, "type");
    if (json_is_text(type, "text")) return true;
    return api_fail(e, 400, "response_format",
                    "'response_format' of type '%s' is not supported yet; only 'text' is",
                    json_is_string(type) ? json_string_value(type) : "(none)");
}

static bool read_tools(const json_t *root, api_error *e) {
    const json_t *tools = field_get(root, "tools"), *choice = field_get(root, "tool_choice");
    if (tools != NULL && !json_is_array(tools))
        return field_type_error(e, "tools", "an array", tools);
    bool none = json_is_text(choice, "none"), automatic = json_is_text(choice, "auto");
    if (choice != NULL && !json_is_object(choice) && !none && !automatic &&
        !json_is_text(choice, "required"))
        return api_fail(e, 400, "tool_choice",
                        "'tool_choice' must be 'none', 'auto', 'required' or a named function");
    if (json_array_size(tools) > 0 && !none)
        return api_fail(e, 400, "tools",
                        "'tools' are not supported yet (except with "
                        "\"tool_choice\": \"none\", which leaves them out)");
    if (choice != NULL && !none && !automatic)
        return api_fail(e, 400, "tool_choice",
                        "'tool_choice' needs tools, which are not "
                        "supported yet");
    return true;
}

static bool read_max_tokens(api_request *r, api_error *e) {
    int64_t max = r->kind == API_COMPLETIONS ? 16 : -1, low = r->kind == API_COMPLETIONS ? 0 : 1;
    int64_t min = 0;
    if (!field_int(r->root, "max_tokens", low, INT32_MAX, &max, e) ||
        !field_int(r->root, "max_completion_tokens", low, INT32_MAX, &max, e) ||
        !field_int(r->root, "min_tokens", 0, INT32_MAX, &min, e))
        return false;
    if (max >= 0 && min > max)
        return api_fail(e, 400, "min_tokens", "'min_tokens' is %lld, more than 'max_tokens', %lld",
                        (long long)min, (long long)max);
    r->engine.prompt_only = max == 0; /* the engine's 0 means no limit */
    r->engine.max_tokens = max < 0 ? 0 : (uint32_t)max;
    r->engine.min_tokens = (uint32_t)min;
    return true;
}

static uint64_t random_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint64_t)(uintptr_t)&seed;
    return seed;
}

static bool read_draws(api_request *r, api_error *e) {
    sampler_params *s = &r->engine.sampling;
    const json_t *o = r->root;
    int64_t top_k = 0, seed = -1, priority = 0;
    *s = sampler_params_default();
    s->temperature = 1.0f;
    if (!field_float(o, "temperature", 0, 100, &s->temperature, e) ||
        !field_float(o, "top_p", 0, 1, &s->top_p, e) ||
        !field_float(o, "min_p", 0, 1, &s->min_p, e) ||
        !field_float(o, "repetition_penalty", .01, 100, &s->repetition_penalty, e) ||
        !field_float(o, "presence_penalty", -2, 2, &s->presence_penalty, e) ||
        !field_float(o, "frequency_penalty", -2, 2, &s->frequency_penalty, e) ||
        !field_int(o, "top_k", -1, INT32_MAX, &top_k, e) ||
        !field_int(o, "seed", INT64_MIN, INT64_MAX, &seed, e) ||
        !field_int(o, "priority", INT32_MIN, INT32_MAX, &priority, e))
        return false;
    s->top_k = (int32_t)top_k;
    s->seed = seed == -1 ? random_seed() : (uint64_t)seed;
    r->engine.priority = (int)priority;
    return true;
}

static bool parse_token_key(const char *key, int32_t n_vocab, int32_t *id) {
    char *end;
    long v = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end != '\0' || v < 0 || v >= n_vocab) return false;
    *id = (int32_t)v;
    return true;
}

static bool read_bias(api_request *r, int32_t n_vocab, api_error *e) {
    json_t *map = field_get(r->root, "logit_bias"), *value;
    const char *key;
    if (map == NULL) return true;
    if (!json_is_object(map)) return field_type_error(e, "logit_bias", "an object", map);
    size_t n = json_object_size(map), i = 0;
    if (n > API_MAX_BIASES)
        return api_fail(e, 400, "logit_bias", "'logit_bias' has %zu entries, at most %d are taken",
                        n, API_MAX_BIASES);
    sampler_bias *bias = arena_alloc(&r->memory, (n + 1) * sizeof *bias);
    if (bias == NULL) return api_fail(e, 503, "logit_bias", "out of memory");
    json_object_foreach(map, key, value) {
        if (!parse_token_key(key, n_vocab, &bias[i].id))
            return api_fail(e, 400, "logit_bias", "'logit_bias': '%.32s' is no token id below %d",
                            key, n_vocab);
        double x = json_is_number(value) ? json_number_value(value) : 1e9;
        if (!(x >= -100 && x <= 100))
            return api_fail(e, 400, "logit_bias",
                            "'logit_bias': the bias of token %s must be a number between -100 "
                            "and 100",
                            key);
        bias[i++].bias = (float)x;
    }
    r->engine.sampling.bias = bias;
    r->engine.sampling.n_bias = n;
    return true;
}

static bool add_stop(api_request *r, const char **list, const json_t *value, api_error *e) {
    if (!json_is_string(value))
        return field_type_error(e, "stop", "a string or a list of strings", value);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return api_fail(e, 400, "stop", "'stop' must not hold the character U+0000");
    list[r->engine.n_stop++] = json_string_value(value);
    return true;
}

static bool read_stop(api_request *r, api_error *e) {
    const json_t *stop = field_get(r->root, "stop");
    bool is_list = json_is_array(stop);
    size_t n = is_list ? json_array_size(stop) : 1;
    if (stop == NULL || (json_is_string(stop) && json_string_length(stop) == 0)) return true;
    if (n > API_MAX_STOPS)
        return api_fail(e, 400, "stop", "'stop' has %zu strings, at most %d are taken", n,
                        API_MAX_STOPS);
    const char **list = arena_alloc(&r->memory, (n + 1) * sizeof *list);
    if (list == NULL) return api_fail(e, 503, "stop", "out of memory");
    r->engine.stop = list;
    for (size_t i = 0, bytes = 0; i < n; i++) {
        const json_t *value = is_list ? json_array_get(stop, i) : stop;
        if (!add_stop(r, list, value, e)) return false;
        bytes += json_string_length(value);
        if (bytes > API_MAX_STOP_BYTES)
            return api_fail(e, 400, "stop", "'stop' has more than %d bytes", API_MAX_STOP_BYTES);
        if (json_string_length(value) == 0)
            return api_fail(e, 400, "stop", "'stop'[%zu] is empty", i);
    }
    return true;
}

static bool read_stop_ids(api_request *r, int32_t n_vocab, api_error *e) {
    const json_t *list = field_get(r->root, "stop_token_ids");
    int32_t *ids = NULL;
    size_t n = 0;
    if (list == NULL) return true;
    if (!json_is_array(list)) return field_type_error(e, "stop_token_ids", "an array", list);
    if (json_array_size(list) > API_MAX_BIASES)
        return api_fail(e, 400, "stop_token_ids", "'stop_token_ids' has more than %d entries",
                        API_MAX_BIASES);
    if (!json_token_ids(list, "stop_token_ids", n_vocab, &ids, &n, e)) return false;
    int32_t *copy = arena_alloc(&r->memory, (n + 1) * sizeof *copy);
    if (copy != NULL) memcpy(copy, ids, n * sizeof *ids);
    mem_free(ids);
    if (copy == NULL) return api_fail(e, 503, "stop_token_ids", "out of memory");
    r->engine.stop_ids = copy;
    r->engine.n_stop_ids = n;
    return true;
}

static bool read_logprobs(api_request *r, api_error *e) {
    int64_t top = -1;
    if (r->kind == API_COMPLETIONS) {
        if (!json_is_false(json_object_get(r->root, "logprobs")) &&
            !field_int(r->root, "logprobs", 0, SAMPLER_MAX_LOGPROBS, &top, e))
            return false;
    } else {
        bool wanted = false;
        if (!field_bool(r->root, "logprobs", &wanted, e) ||
            !field_int(r->root, "top_logprobs", 0, SAMPLER_MAX_LOGPROBS, &top, e))
            return false;
        if (top > 0 && !wanted)
            return api_fail(e, 400, "top_logprobs",
                            "'top_logprobs' is only allowed when 'logprobs' is true");
        top = wanted ? (top < 0 ? 0 : top) : -1;
    }
    r->logprobs = (int)top;
    r->engine.sampling.n_logprobs = (int)top;
    if (top < 0 && r->best_of > r->n) r->engine.sampling.n_logprobs = 0; /* to find the best */
    if (r->echo) r->engine.prompt_logprobs = (int)top;
    return true;
}

/* vLLM's, which takes 0 in a stream, too, and leaves it out there. */
static bool read_prompt_logprobs(api_request *r, api_error *e) {
    const json_t *given = field_get(r->root, "prompt_logprobs");
    int64_t top = -1;
    r->prompt_logprobs = -1;
    if (given == NULL || json_is_false(given)) return true;
    if (!field_int(r->root, "prompt_logprobs", 0, SAMPLER_MAX_LOGPROBS, &top, e)) return false;
    if (top > 0 && r->stream)
        return api_fail(e, 400, "prompt_logprobs",
                        "'prompt_logprobs' are not available when 'stream' is true");
    if (r->stream) return true;
    r->prompt_logprobs = (int)top;
    if (top > r->engine.prompt_logprobs) r->engine.prompt_logprobs = (int)top;
    return true;
}

static bool read_stream(api_request *r, api_error *e) {
    const json_t *options = field_get(r->root, "stream_options");
    if (!field_bool(r->root, "stream", &r->stream, e)) return false;
    if (options == NULL) return true;
    if (!json_is_object(options))
        return field_type_error(e, "stream_options", "an object", options);
    return field_bool(options, "include_usage", &r->include_usage, e) &&
           field_bool(options, "continuous_usage_stats", &r->continuous_usage, e);
}

static bool read_n(api_request *r, api_error *e) {
    int64_t n = 1, best_of;
    if (!field_int(r->root, "n", 1, API_MAX_CHOICES, &n, e)) return false;
    best_of = n;
    if (!field_int(r->root, "best_of", 1, API_MAX_CHOICES, &best_of, e)) return false;
    if (best_of < n)
        return api_fail(e, 400, "best_of",
                        "'best_of' is %lld, fewer candidates than the %lld choices of 'n'",
                        (long long)best_of, (long long)n);
    if (best_of > n && r->stream)
        return api_fail(e, 400, "best_of",
                        "'best_of' above 'n' is not available when 'stream' is true: which "
                        "candidates are the best is known at the end");
    r->best_of = (uint32_t)best_of;
    r->n = (uint32_t)n;
    return true;
}

/* "text" is the only modality; OpenAI's clients name it. */
static bool read_modalities(const json_t *root, api_error *e) {
    const json_t *list = field_get(root, "modalities");
    if (list == NULL) return true;
    if (!json_is_array(list)) return field_type_error(e, "modalities", "an array", list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *name = json_array_get(list, i);
        if (!json_is_text(name, "text"))
            return api_fail(e, 400, "modalities",
                            "'modalities'[%zu] is %.40s; only 'text' is supported yet", i,
                            json_is_string(name) ? json_string_value(name) : json_kind(name));
    }
    return true;
}

bool api_check_features(const json_t *root, api_error *e) {
    return refuse_missing_features(root, e) && read_modalities(root, e) &&
           read_response_format(root, e) && read_tools(root, e);
}

bool api_sampling_read(api_request *r, int32_t n_vocab, api_error *e) {
    bool skip_special = true, add_special = r->kind == API_COMPLETIONS;
    r->engine = engine_request_default();
    if (!api_check_features(r->root, e) || !read_stream(r, e) || !read_n(r, e) ||
        !field_bool(r->root, "skip_special_tokens", &skip_special, e) ||
        !field_bool(r->root, "add_special_tokens", &add_special, e) ||
        !field_bool(r->root, "ignore_eos", &r->engine.ignore_eos, e) ||
        !field_bool(r->root, "return_token_ids", &r->return_token_ids, e) ||
        !field_bool(r->root, "echo", &r->echo, e))
        return false;
    if (r->kind == API_CHAT && r->echo)
        return api_fail(e, 400, "echo", "'echo' is not supported in chats");
    r->engine.special = !skip_special;
    r->engine.goes_on = r->kind == API_COMPLETIONS;
    r->add_special = add_special;
    if (!read_max_tokens(r, e) || !read_draws(r, e) || !read_bias(r, n_vocab, e) ||
        !read_stop(r, e) || !read_stop_ids(r, n_vocab, e) || !read_logprobs(r, e) ||
        !read_prompt_logprobs(r, e))
        return false;
    ridge_error err = {0};
    if (sampler_params_check(&r->engine.sampling, n_vocab, &err) != RIDGE_OK)
        return api_fail_from(e, err.where, &err);
    return true;
}
