/* server/json_field: strict reading of a request's JSON fields.
 *
 * An absent field and an explicit null are the same: the default stays. A field of the wrong type
 * or out of range fails with 400 and the field's name. Pure.
 */
#ifndef RIDGE_SERVER_JSON_FIELD_H
#define RIDGE_SERVER_JSON_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/api_error.h"

#define JSON_MAX_DEPTH 128
#define JSON_MAX_VALUES (1u << 21) /* a parsed value takes up to 60 times its text */

/* The body as an object (json_decref), or NULL with *e set: where the text is malformed, nested
 * too deeply, of too many values, or no object. Of duplicate keys the last one counts. */
json_t *json_parse_object(const char *text, size_t n, api_error *e);

/* The field, or NULL when absent or null. */
json_t *field_get(const json_t *object, const char *key);
bool field_bool(const json_t *object, const char *key, bool *out, api_error *e);
bool field_int(const json_t *object, const char *key, int64_t low, int64_t high, int64_t *out,
               api_error *e);
bool field_float(const json_t *object, const char *key, double low, double high, float *out,
                 api_error *e);
/* *out borrows from object. */
bool field_string(const json_t *object, const char *key, const char **out, size_t *n, api_error *e);
/* Whether value is this text, whole: strcmp would take what a U+0000 follows for it. */
bool json_is_text(const json_t *value, const char *text);
/* "a string", "an array" ...: what a value is, for messages. */
const char *json_kind(const json_t *value);
bool field_type_error(api_error *e, const char *key, const char *expected, const json_t *found);

/* A list of token ids within [0, n_vocab); *ids is allocated (mem_free). */
bool json_token_ids(const json_t *list, const char *key, int32_t n_vocab, int32_t **ids,
                    size_t *n_ids, api_error *e);

#endif
