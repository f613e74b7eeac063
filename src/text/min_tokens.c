/* text/min_tokens: how many tokens a text has at least, without encoding it.
 *
 * No token stands for more bytes than its key has (in SentencePiece's text a space has three, so
 * the text as given is never longer). So n bytes make at least n / longest key tokens, unless bytes
 * leave no token at all: those are not counted, or nothing is promised.
 */
#include "text/tokenizer_internal.h"

/* The most that NFC makes a text shorter: U+1FBE U+0308 U+0301, 7 bytes, is U+0390, 2 bytes. */
#define NFC_SHRINK 4
#define LONGEST_CHARACTER 4 /* what the unknown token stands for */

void min_tokens_prepare(tokenizer *t) {
    t->bound = (token_bound){.longest = LONGEST_CHARACTER, .has_all_bytes = true};
    for (size_t i = 0; i < t->vocab.n; i++) {
        const vocab_token *token = &t->vocab.tokens[i];
        if (token->key_len > t->bound.longest) t->bound.longest = token->key_len;
        t->bound.strips |= token->strips_right;
    }
    for (int b = 0; b < 256; b++) t->bound.has_all_bytes &= t->byte_id[b] != NO_TOKEN;
}

size_t tokenizer_min_tokens(const tokenizer *t, const char *text, size_t n) {
    bool strips = t->bound.strips, complete = t->bound.has_all_bytes;
    size_t longest = t->bound.longest, counted = 0;
    if (t->family != KIND_BPE && !complete && t->unknown == NO_TOKEN) return 0;
    if (t->family == KIND_BPE && t->nfc && !nfc_is_clean(text, n)) {
        if (!complete || strips) return 0;
        longest *= NFC_SHRINK;
    }
    if ((t->family != KIND_BPE || complete) && !strips) return n / longest;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)text[i];
        bool space = byte == ' ' || (byte >= '\t' && byte <= '\r'); /* a token may swallow it */
        counted += !(strips && space) && (t->family != KIND_BPE || t->byte_id[byte] != NO_TOKEN);
    }
    return counted / longest;
}
