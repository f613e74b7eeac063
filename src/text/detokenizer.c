/* text/detokenizer: ids back to text, whole or token by token.
 *
 * Both ways pass every token through decode_token, so that a stream adds up to the whole.
 */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_internal.h"

#define REPLACEMENT "\xEF\xBF\xBD"

static const vocab_token *token_at(const tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocab.n ? &t->vocab.tokens[id] : NULL;
}

const char *tokenizer_token_bytes(const tokenizer *t, int32_t id, bool special, size_t *n) {
    const vocab_token *token = token_at(t, id);
    *n = 0;
    if (token == NULL) return "";
    if (!special && (token->type == TOKEN_CONTROL || token->type == TOKEN_UNKNOWN)) return "";
    *n = token->bytes_len;
    return t->vocab.text + token->bytes;
}

/* The text of id inside a decoding; updates *started (see detokenizer). Where the encoder puts a
 * space before a text (at its start and behind a special token), the first space that comes back
 * there is that one. */
static const char *decode_token(const tokenizer *t, int32_t id, bool special, bool *started,
                                size_t *n) {
    const char *bytes = tokenizer_token_bytes(t, id, special, n);
    const vocab_token *token = token_at(t, id);
    if (!t->space_prefix || token == NULL) return bytes;
    if (token->type == TOKEN_CONTROL || token->type == TOKEN_USER) {
        *started = false;
    } else {
        if (!*started && *n > 0 && bytes[0] == ' ') {
            bytes++;
            --*n;
        }
        *started = true;
    }
    return bytes;
}

ridge_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n_ids, bool special,
                              buf *out, ridge_error *err) {
    bool started = false;
    for (size_t i = 0; i < n_ids; i++) {
        size_t n;
        if (token_at(t, ids[i]) == NULL)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "token id %d: the vocabulary has 0 to %zu", ids[i],
                              t->vocab.n - 1);
        const char *bytes = decode_token(t, ids[i], special, &started, &n);
        buf_append(out, bytes, n);
    }
    if (out->failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "text of %zu tokens", n_ids);
    return RIDGE_OK;
}

/* Lets go of what is decided of the held bytes: characters, and bytes that can be none. */
static void release(detokenizer *d, buf *out, bool at_end) {
    while (d->n_held > 0) {
        size_t width;
        bool valid = utf8_decode(d->held, d->n_held, &width) != UTF8_INVALID;
        if (!valid && !at_end && utf8_incomplete_tail(d->held, d->n_held) == d->n_held) return;
        if (valid)
            buf_append(out, d->held, width);
        else
            buf_puts(out, REPLACEMENT);
        d->n_held -= width;
        memmove(d->held, d->held + width, d->n_held);
    }
}

detokenizer detokenizer_after(const tokenizer *t, int32_t id) {
    detokenizer d = {0};
    size_t n;
    decode_token(t, id, true, &d.started, &n);
    return d;
}

void detokenizer_push(detokenizer *d, const tokenizer *t, int32_t id, bool special, buf *out) {
    size_t n;
    const char *bytes = decode_token(t, id, special, &d->started, &n);
    if (d->n_held == 0 && utf8_valid(bytes, n)) {
        buf_append(out, bytes, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        d->held[d->n_held++] = bytes[i];
        release(d, out, false);
    }
}

void detokenizer_finish(detokenizer *d, buf *out) {
    release(d, out, true);
}
