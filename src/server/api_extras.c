/* server/api_extras: the fields that concern neither the text nor the draws: whose prefixes may be
 * shared, and what the answer says about itself. See api_request.h. */
#include <string.h>
#include <xxhash.h>

#include "base/utf8.h"
#include "server/api_request.h"
#include "server/json_field.h"

/* vLLM's rules. Only its hash goes on: equal salts share, and nobody learns another's. */
static bool read_salt(api_request *r, api_error *e) {
    const char *salt = NULL;
    size_t n = 0;
    if (!field_string(r->root, "cache_salt", &salt, &n, e)) return false;
    if (salt == NULL) return true;
    if (n == 0) return api_fail(e, 400, "cache_salt", "'cache_salt' must not be empty");
    size_t chars = utf8_count(salt, n);
    if (chars > API_MAX_SALT_CHARS)
        return api_fail(e, 400, "cache_salt",
                        "'cache_salt' has %zu characters, at most %d are taken", chars,
                        API_MAX_SALT_CHARS);
    if (strlen(salt) != n || strpbrk(salt, "@/\\") != NULL)
        return api_fail(e, 400, "cache_salt",
                        "'cache_salt' must not hold '@', '/', '\\' or the character U+0000");
    uint64_t hash = XXH3_64bits(salt, n);
    r->engine.cache_salt = hash != 0 ? hash : 1; /* 0 is none */
    return true;
}

bool api_extras_read(api_request *r, api_error *e) {
    bool cache = true;
    const json_t *ours = field_get(r->root, "ridge");
    if (!read_salt(r, e) || !field_bool(r->root, "cache_prompt", &cache, e)) return false;
    r->engine.no_cache = !cache;
    if (ours == NULL) return true;
    if (!json_is_object(ours)) return field_type_error(e, "ridge", "an object", ours);
    return field_bool(ours, "explain", &r->explain, e);
}
