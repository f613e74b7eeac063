/* text/tokenizer, inside: the vocabulary, its look-ups, and the state of one encoding.
 *
 * A tokenizer is built once and then only read. What an encoding needs besides lives in an encoder
 * on the caller's stack, so that any number of threads may encode with one tokenizer.
 */
#ifndef RIDGE_TEXT_TOKENIZER_INTERNAL_H
#define RIDGE_TEXT_TOKENIZER_INTERNAL_H

#include "text/pretokenize.h"
#include "text/tokenizer.h"

#define NO_TOKEN (-1)
#define NO_RANK UINT32_MAX
#define SPM_SPACE "\xE2\x96\x81" /* U+2581, a space inside SentencePiece's pieces */

/* GGUF's values of tokenizer.ggml.token_type. */
typedef enum {
    TOKEN_UNDEFINED,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER,
    TOKEN_UNUSED,
    TOKEN_BYTE
} token_type;

typedef enum {
    KIND_BPE,   /* byte-level BPE: symbols are bytes, merges have ranks */
    KIND_SPM,   /* SentencePiece: symbols are characters, the best-scored piece is made first */
    KIND_GEMMA4 /* characters of SPM's text, merged as BPE */
} tokenizer_family;

typedef struct {
    uint32_t key, key_len;     /* in vocab.text: what merges look up; byte-level: the bytes */
    uint32_t bytes, bytes_len; /* in vocab.text: what it stands for in a text */
    uint32_t rank;             /* SPM: place in the order of scores; equal scores share one */
    uint32_t left;             /* SPM, unused: bytes of the left of the two that make it; 0: none */
    uint8_t type;
    bool is_piece;     /* merging makes it; others are only found as a whole, if at all */
    bool strips_right; /* whitespace after it in a text belongs to it */
} vocab_token;

typedef struct {
    uint32_t hash; /* the low half of the key's */
    int32_t id;    /* NO_TOKEN: free */
} vocab_slot;

/* Tokens and the way from a key to its id. Control tokens and their like are found only by name. */
typedef struct {
    vocab_token *tokens; /* [n] */
    size_t n;
    char *text; /* all keys and bytes */
    size_t text_len, text_capacity;
    vocab_slot *slots; /* [n_slots]; a power of two */
    size_t n_slots;
    size_t longest; /* bytes of the longest key in the table */
} vocab;

bool vocab_add_text(vocab *v, const char *s, size_t n, uint32_t *offset);
bool vocab_index(vocab *v); /* builds the table from tokens; false: out of memory */
int32_t vocab_find(const vocab *v, const char *s, size_t n);
void vocab_free(vocab *v);

/* What a pair of symbols merges to: BPE. */
typedef struct {
    uint64_t pair; /* left << 32 | right; the free slot has rank NO_RANK */
    uint32_t rank;
    int32_t id;
} merge_slot;

typedef struct {
    merge_slot *slots; /* [n_slots]; a power of two */
    size_t n_slots;
} merge_table;

/* The tokens that are found in a text before anything else, as a trie over their bytes. */
typedef struct {
    int32_t child, sibling; /* 0: none */
    int32_t id;             /* the token that ends here, or NO_TOKEN */
    uint8_t byte;
} special_node;

typedef struct {
    special_node *nodes; /* [n]; 0 is unused; the first level is found by `first` */
    size_t n, capacity;
    int32_t first[256];
} special_trie;

/* What min_tokens.c has to know of the vocabulary. */
typedef struct {
    size_t longest;             /* bytes of the longest key of all tokens */
    bool strips, has_all_bytes; /* some token strips_right; every byte has a token */
} token_bound;

struct tokenizer {
    tokenizer_family family;
    char name[80]; /* for tokenizer_kind */
    vocab vocab;
    merge_table merges;   /* BPE and gemma4 */
    int32_t byte_id[256]; /* the token of a byte, or NO_TOKEN */
    uint64_t *joinable;   /* SPM: [JOINABLE_BITS / 64], see spm.c */
    special_trie specials;
    const pretokenizer *pre; /* BPE */
    bool nfc, ignore_merges, space_prefix, adds_bos, adds_eos;
    bool always_bos; /* whatever the file says: gemma4's say otherwise and are wrong */
    int32_t bos, eos, unknown;
    bool *eog; /* [vocab.n] */
    token_bound bound;
};

/* One of the pieces that merging joins: a doubly linked list inside an array. */
typedef struct {
    uint32_t begin, len; /* bytes in the piece */
    int32_t id;          /* NO_TOKEN: no token of its own (SPM) */
    int32_t prev, next;  /* -1: none */
    uint32_t rank;       /* of merging with the next; NO_RANK: cannot */
    int32_t merged;      /* what that makes */
} symbol;

typedef struct {
    uint32_t text, text_len; /* where the piece stood, from encoder.base */
    uint32_t ids, n_ids;     /* where its ids stand in encoder.ids */
} cached_piece;

/* The state of one tokenizer_encode. A function that returns false has found no memory. */
typedef struct {
    const tokenizer *t;
    int32_t *ids; /* [n_ids]: the result so far */
    size_t n_ids, ids_capacity;
    bool rewrites; /* the text is normalised (NFC, U+2581) into work */
    buf work;
    const char *base;    /* pieces lie in it: work.data, or the caller's text */
    cached_piece *cache; /* [n_cache] pieces met in this text; a power of two, or 0 */
    size_t n_cache;
    symbol *symbols; /* scratch of one piece */
    size_t symbols_capacity;
    uint64_t *heap; /* scratch of a long piece: rank << 32 | symbol */
    size_t n_heap, heap_capacity;
    size_t longest; /* SPM: bytes of the longest token that may be made */
} encoder;

void encoder_init(encoder *e, const tokenizer *t);
void encoder_deinit(encoder *e);
bool encoder_put(encoder *e, int32_t id); /* NO_TOKEN: unknown; neighbours become one token */
/* Looks the piece up among those met, else merges it (and remembers). s lies in e->base. */
bool encoder_piece(encoder *e, const char *s, size_t n);
symbol *encoder_symbols(encoder *e, size_t n); /* scratch for n; NULL: out of memory */
/* Joins e->symbols[0, n) of the piece s as far as the tokenizer's rules go. */
bool encoder_merge(encoder *e, const char *s, size_t n_symbols);

/* Each family: how a stretch of text without special tokens is encoded, and one piece of it. */
bool bpe_encode_text(encoder *e, const char *s, size_t n);
bool bpe_encode_piece(encoder *e, const char *s, size_t n);
bool spm_encode_text(encoder *e, const char *s, size_t n, bool prefix);
bool spm_encode_piece(encoder *e, const char *s, size_t n);

/* Building, each from the metadata. */
ridge_status bpe_load(tokenizer *t, const gguf *g, ridge_error *err) RIDGE_CHECKED;
ridge_status spm_load(tokenizer *t, ridge_error *err) RIDGE_CHECKED;
ridge_status spm_split_unused(tokenizer *t, ridge_error *err) RIDGE_CHECKED; /* after the ranks */
void min_tokens_prepare(tokenizer *t);                                       /* last */
int spm_byte_of(const char *s, size_t n); /* "<0x0A>" -> 10; -1: another text */
const merge_slot *merge_find(const merge_table *m, int32_t left, int32_t right); /* NULL: none */

/* Byte-level BPE writes bytes as characters; the bytes of a token's text. false: it has others. */
bool bpe_token_bytes(const char *s, size_t n, char *out /* [n] */, size_t *n_out);

/* Appends s in NFC to out; bytes that are not UTF-8 stay. false: out of memory. */
bool nfc_append(buf *out, const char *s, size_t n);
bool nfc_is_clean(const char *s, size_t n); /* true: surely NFC already */

bool special_add(special_trie *trie, const char *s, size_t n, int32_t id);
/* The longest token that begins at s: its id and length, else NO_TOKEN. */
int32_t special_match(const tokenizer *t, bool parse_special, const char *s, size_t n, size_t *len);

#endif
