/* load/answer: see answer.h. */
#include "load/answer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define MAX_MESSAGE 300
/* What says more counts no tokens; sums of all answers cannot wrap. */
#define MAX_TOKENS INT32_MAX

static void take_text(XXH64_state_t *hash, const json_t *text, bool *has_text) {
    if (!json_is_string(text) || json_string_length(text) == 0) return;
    XXH64_update(hash, json_string_value(text), json_string_length(text));
    *has_text = true;
}

static void take_message(XXH64_state_t *hash, const json_t *message, bool *has_text) {
    static const char *const members[] = {"content", "reasoning_content", "reasoning"};
    size_t i;
    json_t *call;
    for (i = 0; i < sizeof members / sizeof *members; i++)
        take_text(hash, json_object_get(message, members[i]), has_text);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        const json_t *function = json_object_get(call, "function");
        take_text(hash, json_object_get(function, "name"), has_text);
        take_text(hash, json_object_get(function, "arguments"), has_text);
    }
}

static void take_choice(load_record *r, XXH64_state_t *hash, const json_t *choice, bool *has_text) {
    take_text(hash, json_object_get(choice, "text"), has_text);
    take_message(hash, json_object_get(choice, "delta"), has_text);
    take_message(hash, json_object_get(choice, "message"), has_text);
    const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
    if (reason != NULL) snprintf(r->finish_reason, sizeof r->finish_reason, "%s", reason);
}

static void take_count(int64_t *out, const json_t *v) {
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    if (n >= 0 && n <= MAX_TOKENS) *out = n;
}

static void take_usage(load_record *r, const json_t *usage) {
    take_count(&r->prompt_tokens, json_object_get(usage, "prompt_tokens"));
    take_count(&r->output_tokens, json_object_get(usage, "completion_tokens"));
    take_count(&r->cached_tokens,
               json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

/* {"error":{"message":…}}, {"error":"…"}, {"message":…}, {"detail":"…"}: what there is in use. */
static const char *error_text(const json_t *root) {
    const json_t *error = json_object_get(root, "error");
    const char *text = json_string_value(error);
    if (text == NULL) text = json_string_value(json_object_get(error, "message"));
    if (text == NULL) text = json_string_value(json_object_get(root, "message"));
    if (text == NULL) text = json_string_value(json_object_get(root, "detail"));
    return text;
}

static bool is_truthy(const json_t *v) {
    return v != NULL && !json_is_null(v) && !json_is_false(v);
}

static ridge_status take_root(load_record *r, XXH64_state_t *hash, const json_t *root,
                              bool *has_text, ridge_error *err) {
    const json_t *choices = json_object_get(root, "choices"),
                 *usage = json_object_get(root, "usage");
    if (is_truthy(json_object_get(root, "error"))) {
        const char *text = error_text(root);
        return RIDGE_FAIL(err, RIDGE_EIO, "%s", text != NULL ? text : "an error without a message");
    }
    if (!json_is_array(choices) && usage == NULL)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "an answer without choices");
    size_t i;
    json_t *choice;
    json_array_foreach(choices, i, choice) take_choice(r, hash, choice, has_text);
    take_usage(r, usage);
    return RIDGE_OK;
}

ridge_status answer_take(load_record *r, XXH64_state_t *hash, const char *json, size_t n,
                         bool *has_text, ridge_error *err) {
    json_error_t e;
    *has_text = false;
    json_t *root = json_loadb(json, n, JSON_ALLOW_NUL, &e);
    if (root == NULL) return RIDGE_FAIL(err, RIDGE_EFORMAT, "not JSON: %s", e.text);
    ridge_status status = take_root(r, hash, root, has_text, err);
    json_decref(root);
    return status;
}

char *answer_error_message(const char *body, size_t n) {
    json_t *root = json_loadb(body, n, 0, NULL);
    const char *text = error_text(root);
    char *message = text != NULL ? mem_strndup(text, strnlen(text, MAX_MESSAGE))
                    : n > 0      ? mem_strndup(body, n < MAX_MESSAGE ? n : MAX_MESSAGE)
                                 : NULL;
    if (message != NULL) utf8_make_printable(message);
    json_decref(root);
    return message;
}

char *answer_first_model(const char *body, size_t n) {
    json_t *root = json_loadb(body, n, 0, NULL);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    char *model = id != NULL ? mem_strdup(id) : NULL;
    json_decref(root);
    return model;
}
