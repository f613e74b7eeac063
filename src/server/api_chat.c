/* server/api_chat: messages to the variables of the chat template. See api_request.h.
 *
 * Templates expect text: a list of text parts becomes their lines, null and absent contents become
 * the empty text, and the arguments of earlier tool calls become objects where they are JSON.
 */
#include <string.h>

#include "server/api_request.h"
#include "server/json_field.h"

static bool part_text(const json_t *part, size_t message, buf *out, api_error *e) {
    const json_t *type = json_object_get(part, "type");
    const json_t *text = json_object_get(part, "text");
    if (json_is_string(part))
        text = part;
    else if (json_is_string(type) && !json_is_text(type, "text"))
        return api_fail(e, 400, "messages",
                        "'messages'[%zu]: content of type '%.40s' is not supported yet; only "
                        "'text' is",
                        message, json_string_value(type));
    if (!json_is_string(text))
        return api_fail(e, 400, "messages", "'messages'[%zu]: a content part has no text", message);
    if (out->len > 0) buf_putc(out, '\n');
    buf_append(out, json_string_value(text), json_string_length(text));
    return true;
}

static bool flatten_content(json_t *message, size_t index, api_error *e) {
    json_t *content = json_object_get(message, "content");
    buf text = {0};
    bool ok = true;
    if (json_is_string(content)) return true;
    if (content != NULL && !json_is_null(content) && !json_is_array(content))
        return api_fail(e, 400, "messages",
                        "'messages'[%zu]: 'content' must be a string or a list of parts, not %s",
                        index, json_kind(content));
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = part_text(json_array_get(content, i), index, &text, e);
    if (ok && (text.failed || json_object_set_new(
                                  message, "content",
                                  json_stringn(text.data != NULL ? text.data : "", text.len)) != 0))
        ok = api_fail(e, 503, "messages", "out of memory");
    buf_free(&text);
    return ok;
}

static bool parse_arguments(json_t *call, size_t index, api_error *e) {
    json_t *function = json_object_get(call, "function");
    if (!json_is_object(call) || !json_is_object(function) ||
        !json_is_string(json_object_get(function, "name")))
        return api_fail(e, 400, "messages",
                        "'messages'[%zu]: an entry of 'tool_calls' names no function", index);
    json_t *text = json_object_get(function, "arguments");
    if (!json_is_string(text)) return true;
    api_error ignored = {0};
    json_t *value =
        json_string_length(text) == 0
            ? json_object()
            : json_parse_object(json_string_value(text), json_string_length(text), &ignored);
    if (value != NULL && json_object_set_new(function, "arguments", value) != 0)
        return api_fail(e, 503, "messages", "out of memory");
    return true; /* what is no object stays the text that it is */
}

static bool check_message(json_t *message, size_t index, api_error *e) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    if (!json_is_object(message))
        return api_fail(e, 400, "messages", "'messages'[%zu] must be an object, not %s", index,
                        json_kind(message));
    const json_t *role = json_object_get(message, "role");
    bool known = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) known |= json_is_text(role, roles[i]);
    if (!known)
        return api_fail(e, 400, "messages",
                        "'messages'[%zu]: 'role' must be system, developer, user, assistant or "
                        "tool, got %.40s",
                        index, json_is_string(role) ? json_string_value(role) : "none");
    json_t *calls = json_object_get(message, "tool_calls");
    if (calls != NULL && !json_is_array(calls) && !json_is_null(calls))
        return api_fail(e, 400, "messages", "'messages'[%zu]: 'tool_calls' must be an array",
                        index);
    if (calls != NULL && json_array_size(calls) == 0) json_object_del(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(json_object_get(message, "tool_calls")); i++)
        if (!parse_arguments(json_array_get(calls, i), index, e)) return false;
    return flatten_content(message, index, e);
}

/* A deep copy: the body stays as it came. */
static json_t *checked_messages(const json_t *root, api_error *e) {
    const json_t *given = field_get(root, "messages");
    if (given == NULL) {
        api_fail(e, 400, "messages", "'messages' is required");
        return NULL;
    }
    if (!json_is_array(given) || json_array_size(given) == 0) {
        api_fail(e, 400, "messages", "'messages' must be a list of at least one message");
        return NULL;
    }
    json_t *copy = json_deep_copy(given);
    if (copy == NULL) api_fail(e, 503, "messages", "out of memory");
    for (size_t i = 0; i < json_array_size(copy); i++)
        if (!check_message(json_array_get(copy, i), i, e)) {
            json_decref(copy);
            return NULL;
        }
    return copy;
}

static bool set_variables(json_t *v, const json_t *root, api_error *e) {
    json_t *kwargs = field_get(root, "chat_template_kwargs");
    bool generation = true;
    if (!field_bool(root, "add_generation_prompt", &generation, e)) return false;
    if (kwargs != NULL && !json_is_object(kwargs))
        return field_type_error(e, "chat_template_kwargs", "an object", kwargs);
    json_t *documents = field_get(root, "documents");
    json_t *effort = field_get(root, "reasoning_effort");
    if (documents != NULL && !json_is_array(documents))
        return field_type_error(e, "documents", "an array", documents);
    if (kwargs != NULL) json_object_update(v, kwargs);
    if (effort != NULL) json_object_set(v, "reasoning_effort", effort);
    json_object_set_new(v, "add_generation_prompt", json_boolean(generation));
    json_object_set_new(v, "tools", json_null());
    json_object_set(v, "documents", documents != NULL ? documents : json_null());
    return true;
}

bool api_chat_render(const json_t *root, const server_backend *backend, buf *out, api_error *e) {
    ridge_error err = {0};
    json_t *messages = checked_messages(root, e);
    json_t *variables = messages != NULL ? json_object() : NULL;
    bool ok = variables != NULL && set_variables(variables, root, e);
    if (ok) {
        json_object_set(variables, "messages", messages);
        if (backend->render(backend->self, variables, out, &err) != RIDGE_OK)
            ok = api_fail_from(e, "messages", &err);
        else if (out->failed)
            ok = api_fail(e, 503, NULL, "out of memory");
    }
    json_decref(variables);
    json_decref(messages);
    return ok;
}
