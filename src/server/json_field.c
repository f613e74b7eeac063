/* server/json_field: see json_field.h. */
#include "server/json_field.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* jansson recurses once per level and allocates for each value: what is too much of either is
 * refused before it is parsed. */
static bool check_size(const char *text, size_t n, api_error *e) {
    size_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_MAX_DEPTH)
                return api_fail(e, 400, NULL, "the JSON body is nested deeper than %d levels",
                                JSON_MAX_DEPTH);
            values++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && ++values > JSON_MAX_VALUES) {
            return api_fail(e, 400, NULL, "the JSON body has more than %u values", JSON_MAX_VALUES);
        }
    }
    return true;
}

static bool has_beyond_64_bits(const json_t *value) {
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_real(value)) return fabs(json_real_value(value)) >= 0x1p63;
    if (json_is_array(value)) {
        json_array_foreach(value, i, inner) if (has_beyond_64_bits(inner)) return true;
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, inner) if (has_beyond_64_bits(inner)) return true;
    }
    return false;
}

/* jansson reads integers of 64 bits and says of others only where they stand. */
static void fail_parse(const char *text, size_t n, const json_error_t *why, api_error *e) {
    json_t *root = NULL, *value;
    const char *key, *name = NULL;
    if (json_error_code(why) == json_error_numeric_overflow)
        root = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    json_object_foreach(root, key, value) if (name == NULL && has_beyond_64_bits(value)) name = key;
    if (name != NULL)
        api_fail(e, 400, name, "'%.60s' is out of range: integers have 64 bits (%s)", name,
                 why->text);
    else
        api_fail(e, 400, NULL, "the body is not valid JSON: line %d, column %d (byte %d): %s",
                 why->line, why->column, why->position, why->text);
    json_decref(root);
}

json_t *json_parse_object(const char *text, size_t n, api_error *e) {
    json_error_t why;
    if (!check_size(text, n, e)) return NULL;
    json_t *root = json_loadb(n > 0 ? text : "", n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (root == NULL) {
        fail_parse(text, n, &why, e);
        return NULL;
    }
    if (!json_is_object(root)) {
        api_fail(e, 400, NULL, "the JSON body must be an object, not %s", json_kind(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *field_get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

const char *json_kind(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

bool field_type_error(api_error *e, const char *key, const char *expected, const json_t *found) {
    return api_fail(e, 400, key, "'%s' must be %s, not %s", key, expected, json_kind(found));
}

bool json_is_text(const json_t *value, const char *text) {
    size_t n = strlen(text);
    return json_is_string(value) && json_string_length(value) == n &&
           memcmp(json_string_value(value), text, n) == 0;
}

bool field_bool(const json_t *object, const char *key, bool *out, api_error *e) {
    const json_t *v = field_get(object, key);
    if (v == NULL) return true;
    if (!json_is_boolean(v)) return field_type_error(e, key, "a boolean", v);
    *out = json_is_true(v);
    return true;
}

bool field_int(const json_t *object, const char *key, int64_t low, int64_t high, int64_t *out,
               api_error *e) {
    const json_t *v = field_get(object, key);
    if (v == NULL) return true;
    if (!json_is_integer(v)) return field_type_error(e, key, "an integer", v);
    int64_t i = json_integer_value(v);
    if (i < low || i > high)
        return api_fail(e, 400, key, "'%s' must be between %lld and %lld, got %lld", key,
                        (long long)low, (long long)high, (long long)i);
    *out = i;
    return true;
}

bool field_float(const json_t *object, const char *key, double low, double high, float *out,
                 api_error *e) {
    const json_t *v = field_get(object, key);
    if (v == NULL) return true;
    if (!json_is_number(v)) return field_type_error(e, key, "a number", v);
    double x = json_number_value(v);
    if (!(x >= low && x <= high))
        return api_fail(e, 400, key, "'%s' must be between %g and %g, got %g", key, low, high, x);
    *out = (float)x;
    return true;
}

bool field_string(const json_t *object, const char *key, const char **out, size_t *n,
                  api_error *e) {
    const json_t *v = field_get(object, key);
    if (v == NULL) return true;
    if (!json_is_string(v)) return field_type_error(e, key, "a string", v);
    *out = json_string_value(v);
    *n = json_string_length(v);
    return true;
}

bool json_token_ids(const json_t *list, const char *key, int32_t n_vocab, int32_t **ids,
                    size_t *n_ids, api_error *e) {
    size_t n = json_array_size(list);
    int32_t *out = mem_zalloc(n > 0 ? n : 1, sizeof *out);
    if (out == NULL) return api_fail(e, 503, key, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        bool is_id = json_is_integer(v);
        if (is_id && json_integer_value(v) >= 0 && json_integer_value(v) < n_vocab) {
            out[i] = (int32_t)json_integer_value(v);
            continue;
        }
        mem_free(out);
        if (!is_id)
            return api_fail(e, 400, key, "'%s'[%zu] must be a token id, not %s", key, i,
                            json_kind(v));
        return api_fail(e, 400, key, "'%s'[%zu] is %lld, but the vocabulary has %d tokens", key, i,
                        (long long)json_integer_value(v), n_vocab);
    }
    *ids = out;
    *n_ids = n;
    return true;
}
