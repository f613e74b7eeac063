/* text/tokenizer: building a tokenizer from GGUF metadata, and what it says about itself.
 *
 * Encoding is encoder.c, decoding detokenizer.c. Keys are those of ggml's docs/gguf.md.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

#define KEY(name) "tokenizer.ggml." name

static bool is_string(gguf_string s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* ---- the vocabulary ---- */

static ridge_status load_types(vocab *v, const gguf *g, ridge_error *err) {
    gguf_type type;
    size_t n;
    for (size_t i = 0; i < v->n; i++) v->tokens[i].type = TOKEN_NORMAL;
    if (!gguf_get_array(g, KEY("token_type"), &type, &n)) return RIDGE_OK;
    int64_t *types = mem_zalloc(n, sizeof *types);
    if (types == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, KEY("token_type"));
    ridge_status status = RIDGE_OK;
    bool is_int = type == GGUF_I32 || type == GGUF_U32; /* the same rule as inspect's */
    if (n < v->n || !is_int || !gguf_array_i64(g, KEY("token_type"), types, n))
        status = RIDGE_FAIL(
            err, RIDGE_EFORMAT,
            KEY("token_type") ": expected %zu 32-bit integers, found %zu of another type "
                              "or too few",
            v->n, n);
    for (size_t i = 0; i < v->n && status == RIDGE_OK; i++)
        v->tokens[i].type =
            (uint8_t)(types[i] >= TOKEN_NORMAL && types[i] <= TOKEN_BYTE ? types[i]
                                                                         : TOKEN_UNDEFINED);
    mem_free(types);
    return status;
}

/* Text as it stands in a text: SentencePiece's pieces write spaces as U+2581. */
static bool add_unescaped(vocab *v, vocab_token *t, const char *s, size_t n) {
    uint32_t offset;
    t->bytes_len = 0;
    if (!vocab_add_text(v, "", 0, &t->bytes)) return false;
    for (size_t i = 0; i < n;) {
        bool space = n - i >= 3 && memcmp(s + i, SPM_SPACE, 3) == 0;
        if (!vocab_add_text(v, space ? " " : s + i, 1, &offset)) return false;
        i += space ? 3 : 1;
        t->bytes_len++;
    }
    return true;
}

static bool add_token_text(tokenizer *t, vocab_token *token, gguf_string s, char *scratch) {
    vocab *v = &t->vocab;
    size_t n = s.len;
    bool literal =
        token->type == TOKEN_CONTROL || token->type == TOKEN_USER || token->type == TOKEN_UNKNOWN;
    if (t->family == KIND_BPE && !literal && bpe_token_bytes(s.data, s.len, scratch, &n)) {
        s.data = scratch;
        literal = true;
        token->is_piece = token->type != TOKEN_BYTE;
    } else if (t->family != KIND_BPE) {
        token->is_piece = !literal && token->type != TOKEN_BYTE;
    }
    if (!vocab_add_text(v, s.data, n, &token->key)) return false;
    token->key_len = (uint32_t)n;
    int byte = token->type == TOKEN_BYTE ? spm_byte_of(s.data, n) : -1;
    if (byte >= 0) {
        char one = (char)byte;
        token->bytes_len = 1;
        return vocab_add_text(v, &one, 1, &token->bytes);
    }
    if (t->family != KIND_BPE && !literal) return add_unescaped(v, token, s.data, n);
    token->bytes = token->key;
    token->bytes_len = token->key_len;
    return true;
}

static ridge_status add_tokens(tokenizer *t, const gguf_string *texts, ridge_error *err) {
    vocab *v = &t->vocab;
    size_t longest = 0;
    for (size_t i = 0; i < v->n; i++)
        if (texts[i].len > longest) longest = texts[i].len;
    char *scratch = mem_alloc(longest);
    bool ok = scratch != NULL;
    for (size_t i = 0; i < v->n && ok; i++)
        ok = add_token_text(t, &v->tokens[i], texts[i], scratch);
    mem_free(scratch);
    return ok && vocab_index(v) ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, KEY("tokens"));
}

static ridge_status load_vocab(tokenizer *t, const gguf *g, ridge_error *err) {
    vocab *v = &t->vocab;
    gguf_type type;
    size_t n;
    if (!gguf_get_array(g, KEY("tokens"), &type, &n))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, KEY("tokens") " is missing");
    if (type != GGUF_STRING || n == 0 || n >= INT32_MAX)
        return RIDGE_FAIL(
            err, RIDGE_EFORMAT,
            KEY("tokens") ": expected an array of strings, found %zu elements of type "
                          "%d",
            n, (int)type);
    gguf_string *texts = mem_zalloc(n, sizeof *texts);
    v->tokens = mem_zalloc(n, sizeof *v->tokens);
    ridge_status status = RIDGE_OK;
    if (texts == NULL || v->tokens == NULL) {
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, KEY("tokens"));
    } else {
        v->n = n;
        if (!gguf_array_string(g, KEY("tokens"), texts, n))
            status = RIDGE_FAIL(err, RIDGE_EFORMAT, KEY("tokens") ": unreadable");
        if (status == RIDGE_OK) status = load_types(v, g, err);
        if (status == RIDGE_OK) status = add_tokens(t, texts, err);
    }
    mem_free(texts);
    return status;
}

/* ---- scores: SentencePiece merges what makes the best-scored piece first ---- */

typedef struct {
    float score;
    uint32_t id;
} scored;

static bool before(scored a, scored b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

/* Merge sort: no recursion deeper than log n, no worst case. */
static void sort_scores(scored *items, scored *scratch, size_t n) {
    if (n < 2) return;
    size_t half = n / 2, i = 0, j = half;
    sort_scores(items, scratch, half);
    sort_scores(items + half, scratch, n - half);
    for (size_t k = 0; k < n; k++)
        scratch[k] = j == n || (i < half && !before(items[j], items[i])) ? items[i++] : items[j++];
    memcpy(items, scratch, n * sizeof *items);
}

static void rank_scores(vocab *v, const float *scores, scored *items, scored *scratch) {
    for (size_t i = 0; i < v->n; i++)
        items[i] = (scored){scores[i] == scores[i] ? scores[i] : 0, (uint32_t)i};
    sort_scores(items, scratch, v->n);
    uint32_t rank = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (i > 0 && items[i].score < items[i - 1].score) rank++;
        v->tokens[items[i].id].rank = rank;
    }
}

static ridge_status load_scores(vocab *v, const gguf *g, ridge_error *err) {
    gguf_type type;
    size_t n;
    if (!gguf_get_array(g, KEY("scores"), &type, &n))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, KEY("scores") " is missing; kind 'llama' needs it");
    float *scores = mem_zalloc(n, sizeof *scores);
    scored *items = mem_zalloc(v->n, 2 * sizeof *items);
    ridge_status status = RIDGE_OK;
    if (scores == NULL || items == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, KEY("scores"));
    else if (n < v->n || !gguf_array_f32(g, KEY("scores"), scores, n))
        status =
            RIDGE_FAIL(err, RIDGE_EFORMAT,
                       KEY("scores") ": expected %zu numbers, found %zu of another type or too "
                                     "few",
                       v->n, n);
    else
        rank_scores(v, scores, items, items + v->n);
    mem_free(scores);
    mem_free(items);
    return status;
}

/* ---- special tokens ---- */

/* A token id from the metadata; *id is left alone where the key is absent. */
static ridge_status load_id(const tokenizer *t, const gguf *g, const char *key, int32_t *id,
                            ridge_error *err) {
    uint64_t value;
    if (!gguf_get_u64(g, key, &value)) return RIDGE_OK;
    if (value >= t->vocab.n)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: %" PRIu64 " is no token id, %zu tokens", key,
                          value, t->vocab.n);
    *id = (int32_t)value;
    return RIDGE_OK;
}

/* Tokens that end a turn, by the names that models give them. Of type normal they are mere text. */
static const char *const eog_names[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<|flush|>",
                                        "<|calls|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|eom_id|>",
                                        "<EOT>",
                                        "<|EOT|>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<|end_of_text|>",
                                        "<end_of_utterance>",
                                        "<eos>",
                                        "<turn|>",
                                        "<|tool_response>",
                                        "</s>",
                                        "<|fim_pad|>",
                                        "<|repo_name|>",
                                        "<|file_sep|>",
                                        "<|END_OF_TURN_TOKEN|>",
                                        "[e~[",
                                        "<\xEF\xBD\x9C"
                                        "end\xE2\x96\x81"
                                        "of\xE2\x96\x81"
                                        "sentence\xEF\xBD\x9C>"};

static int32_t find_special(const tokenizer *t, const char *name) {
    size_t n = strlen(name), len = 0;
    int32_t id = special_match(t, true, name, n, &len);
    return id != NO_TOKEN && len == n ? id : NO_TOKEN;
}

static void mark_eog(tokenizer *t) {
    for (size_t i = 0; i < sizeof eog_names / sizeof *eog_names; i++) {
        int32_t id = find_special(t, eog_names[i]);
        if (id == NO_TOKEN) continue;
        /* "</s>" is HTML in some vocabularies, and user-defined there. */
        if (t->vocab.tokens[id].type == TOKEN_USER && strcmp(eog_names[i], "</s>") == 0) continue;
        t->eog[id] = true;
    }
    /* In the harmony format <|end|> only ends a message. */
    int32_t end = find_special(t, "<|end|>");
    bool call = find_special(t, "<|call|>") != NO_TOKEN || find_special(t, "<|calls|>") != NO_TOKEN;
    bool turn =
        find_special(t, "<|return|>") != NO_TOKEN || find_special(t, "<|flush|>") != NO_TOKEN;
    if (end != NO_TOKEN && call && turn) t->eog[end] = false;
}

static ridge_status load_eog(tokenizer *t, const gguf *g, ridge_error *err) {
    static const char *const keys[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    t->eog = mem_zalloc(t->vocab.n, sizeof *t->eog);
    if (t->eog == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "tokenizer");
    mark_eog(t);
    if (t->eos != NO_TOKEN) t->eog[t->eos] = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t id = NO_TOKEN;
        RIDGE_TRY(load_id(t, g, keys[i], &id, err));
        if (id != NO_TOKEN) t->eog[id] = true;
    }
    return RIDGE_OK;
}

static bool contains_folded(gguf_string s, const char *lower) {
    size_t n = strlen(lower);
    for (size_t i = 0; i + n <= s.len; i++) {
        size_t k = 0;
        while (k < n && (s.data[i + k] |
                         (s.data[i + k] >= 'A' && s.data[i + k] <= 'Z' ? 0x20 : 0)) == lower[k])
            k++;
        if (k == n) return true;
    }
    return false;
}

/* A GGUF does not say which special tokens swallow the whitespace behind them. Known: Phi-3's. */
static void mark_strips(tokenizer *t, const gguf *g) {
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    gguf_string name;
    if (!gguf_get_string(g, "general.name", &name) ||
        !(contains_folded(name, "phi-3") || contains_folded(name, "phi3")))
        return;
    for (size_t i = 0; i < t->vocab.n; i++) {
        vocab_token *token = &t->vocab.tokens[i];
        token->strips_right = token->type == TOKEN_CONTROL || token->type == TOKEN_USER;
    }
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        int32_t id = find_special(t, keep[i]);
        if (id != NO_TOKEN) t->vocab.tokens[id].strips_right = false;
    }
}

static ridge_status load_specials(tokenizer *t, const gguf *g, ridge_error *err) {
    for (size_t i = 0; i < t->vocab.n; i++) {
        const vocab_token *token = &t->vocab.tokens[i];
        if (token->type != TOKEN_CONTROL && token->type != TOKEN_USER &&
            token->type != TOKEN_UNKNOWN)
            continue;
        if (!special_add(&t->specials, t->vocab.text + token->bytes, token->bytes_len, (int32_t)i))
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "special tokens");
    }
    RIDGE_TRY(load_id(t, g, KEY("bos_token_id"), &t->bos, err));
    RIDGE_TRY(load_id(t, g, KEY("eos_token_id"), &t->eos, err));
    RIDGE_TRY(load_id(t, g, KEY("unknown_token_id"), &t->unknown, err));
    gguf_get_bool(g, KEY("add_bos_token"), &t->adds_bos);
    gguf_get_bool(g, KEY("add_eos_token"), &t->adds_eos);
    if (t->always_bos) t->adds_bos = true;
    t->adds_bos = t->adds_bos && t->bos != NO_TOKEN;
    t->adds_eos = t->adds_eos && t->eos != NO_TOKEN;
    mark_strips(t, g);
    return load_eog(t, g, err);
}

/* ---- kinds ---- */

static ridge_status choose_family(tokenizer *t, const gguf *g, ridge_error *err) {
    gguf_string model;
    if (!gguf_get_string(g, KEY("model"), &model))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, KEY("model") " is missing: no tokenizer in the file");
    if (is_string(model, "gpt2"))
        t->family = KIND_BPE;
    else if (is_string(model, "llama"))
        t->family = KIND_SPM;
    else if (is_string(model, "gemma4"))
        t->family = KIND_GEMMA4, t->always_bos = true;
    else
        return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED,
                          KEY("model") ": tokenizer '%.*s'; supported: gpt2, llama, gemma4",
                          (int)(model.len < 80 ? model.len : 80), model.data);
    return RIDGE_OK;
}

static void choose_pretokenizer(tokenizer *t, const gguf *g, const log_sink *log) {
    gguf_string name = {"", 0};
    bool named = gguf_get_string(g, KEY("pre"), &name);
    bool sarvam = named && is_string(name, "sarvam-moe");
    if (sarvam || is_string(name, "gemma4") || is_string(name, "granite-embed-multi-311m")) {
        t->family = KIND_GEMMA4;
        t->always_bos = !sarvam;
        return;
    }
    t->pre = pretokenizer_find(name.data, name.len);
    if (t->pre == NULL) {
        log_printf(log, LOG_WARN, "pre-tokenizer '%.*s' is %s; using 'default'",
                   (int)(name.len < 80 ? name.len : 80), name.data,
                   named ? "unknown" : "not named");
        t->pre = pretokenizer_find("default", 7);
        name = (gguf_string){"default", 7};
    }
    t->nfc = t->pre->nfc;
    t->ignore_merges = t->pre->ignore_merges;
    t->adds_bos = t->pre->adds_bos;
    snprintf(t->name, sizeof t->name, "bpe (%.*s)", (int)name.len, name.data);
}

static void set_defaults(tokenizer *t) {
    t->bos = t->eos = t->unknown = NO_TOKEN;
    for (int b = 0; b < 256; b++) t->byte_id[b] = NO_TOKEN;
    if (t->family != KIND_SPM) return;
    t->adds_bos = t->space_prefix = true;
}

/* SentencePiece's own order of special tokens, where the file doesn't give ids. */
static void set_spm_ids(tokenizer *t) {
    if (t->vocab.n < 3) return;
    t->unknown = 0;
    t->bos = 1;
    t->eos = 2;
}

static ridge_status load(tokenizer *t, const gguf *g, const log_sink *log, ridge_error *err) {
    RIDGE_TRY(choose_family(t, g, err));
    set_defaults(t);
    if (t->family == KIND_BPE) choose_pretokenizer(t, g, log);
    if (t->family != KIND_BPE)
        snprintf(t->name, sizeof t->name, "%s", t->family == KIND_SPM ? "spm" : "gemma4");
    RIDGE_TRY(load_vocab(t, g, err));
    if (t->family != KIND_BPE) RIDGE_TRY(spm_load(t, err));
    if (t->family == KIND_SPM) {
        RIDGE_TRY(load_scores(&t->vocab, g, err));
        RIDGE_TRY(spm_split_unused(t, err));
        set_spm_ids(t);
        gguf_get_bool(g, KEY("add_space_prefix"), &t->space_prefix);
    } else {
        RIDGE_TRY(bpe_load(t, g, err));
    }
    return load_specials(t, g, err);
}

ridge_status tokenizer_open(tokenizer **out, const gguf *g, const log_sink *log, ridge_error *err) {
    tokenizer *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "tokenizer");
    ridge_status status = load(t, g, log, err);
    if (status != RIDGE_OK) {
        tokenizer_close(t);
        return status;
    }
    min_tokens_prepare(t);
    *out = t;
    return RIDGE_OK;
}

void tokenizer_close(tokenizer *t) {
    if (t == NULL) return;
    vocab_free(&t->vocab);
    mem_free(t->merges.slots);
    mem_free(t->joinable);
    mem_free(t->specials.nodes);
    mem_free(t->eog);
    mem_free(t);
}

/* ---- what it says about itself ---- */

int32_t tokenizer_n_vocab(const tokenizer *t) {
    return (int32_t)t->vocab.n;
}

int32_t tokenizer_bos(const tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const tokenizer *t) {
    return t->adds_bos;
}

bool tokenizer_is_eog(const tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocab.n && t->eog[id];
}

const char *tokenizer_kind(const tokenizer *t) {
    return t->name;
}
