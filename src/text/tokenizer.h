/* text/tokenizer: text to ids and back, from GGUF metadata. Immutable after open: any thread.
 *
 * Kinds: byte-level BPE ("gpt2"), SentencePiece-style ("llama"), "gemma4". Exact: the ids are those
 * of the model's published tokenizer. Cost is linear in the length of the text.
 */
#ifndef RIDGE_TEXT_TOKENIZER_H
#define RIDGE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "format/gguf.h"

typedef struct tokenizer tokenizer;

typedef struct {
    bool parse_special; /* control tokens in the text become their ids */
    bool add_bos;       /* adds BOS (and EOS) where the model says so; never a second BOS */
} tokenizer_options;

/* Copies what it needs: g may be closed afterwards. */
ridge_status tokenizer_open(tokenizer **out, const gguf *g, const log_sink *log,
                            ridge_error *err) RIDGE_CHECKED;
void tokenizer_close(tokenizer *t);

/* *ids is allocated (mem_free). Any bytes are accepted; those not UTF-8 are encoded as bytes. */
ridge_status tokenizer_encode(const tokenizer *t, const char *text, size_t n,
                              tokenizer_options options, int32_t **ids, size_t *n_ids,
                              ridge_error *err) RIDGE_CHECKED;
/* A number of ids that encoding the text gives at least, in a fraction of its time: for limits. */
size_t tokenizer_min_tokens(const tokenizer *t, const char *text, size_t n);
/* The bytes of one token as it appears inside a text; "" for an unknown id. Control tokens give
 * their text only when `special`. Borrowed. */
const char *tokenizer_token_bytes(const tokenizer *t, int32_t id, bool special, size_t *n);
/* Appends the text of ids; handles a dummy prefix space at the start. Bytes may be invalid UTF-8.
 */
ridge_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n_ids, bool special,
                              buf *out, ridge_error *err) RIDGE_CHECKED;

int32_t tokenizer_n_vocab(const tokenizer *t);
int32_t tokenizer_bos(const tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const tokenizer *t); /* -1: none */
bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_is_eog(const tokenizer *t,
                      int32_t id);              /* ends a generation: eos, eot, <end_of_turn> ... */
const char *tokenizer_kind(const tokenizer *t); /* "bpe (qwen2)", "spm" */

/* Streaming detokenizer: whole UTF-8 characters leave; an incomplete tail is held back, invalid
 * bytes become U+FFFD. One per sequence; zero-initialise. */
typedef struct {
    char held[8];
    size_t n_held;
    bool started; /* a dummy prefix space has been dealt with */
} detokenizer;

/* For a text that goes on behind that of this token: it has no space put before it. */
detokenizer detokenizer_after(const tokenizer *t, int32_t id);
void detokenizer_push(detokenizer *d, const tokenizer *t, int32_t id, bool special, buf *out);
void detokenizer_finish(detokenizer *d, buf *out); /* a held tail becomes U+FFFD */

#endif
