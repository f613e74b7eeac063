/* sched/sequence: one request on its way: tokens, how many of them are computed, and its blocks.
 *
 * There is no prefill and no decode: a sequence with more tokens than computed tokens has work.
 * A new prompt, a chunk of one, a sampled token and a sequence that comes back from preemption are
 * all that same thing. When computed catches up with tokens, the engine samples one more.
 *
 * Guesses of what comes next (speculative decoding) may lie after the tokens: they are computed
 * with them, and those that come true are appended in place.
 *
 * The engine embeds it at the head of its request. Who sets what: the engine the identity and the
 * tokens; the scheduler what is marked as its own.
 */
#ifndef RIDGE_SCHED_SEQUENCE_H
#define RIDGE_SCHED_SEQUENCE_H

#include <stdbool.h>

#include "kv/cache.h"

#define SEQUENCE_MAX_GROUPS KV_MAX_GROUPS

typedef enum { SEQUENCE_NEW, SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE } sequence_state;

typedef struct sequence sequence;
struct sequence {
    /* What each step looks at comes first: hundreds of sequences are walked several times, and that
     * their lines of the processor's cache are few is what a walk costs. */
    sequence *next, *previous; /* scheduler's: in its queue */
    int32_t *tokens;           /* [n_tokens] of [max_tokens]: prompt, then output */
    uint32_t n_tokens, n_prompt, max_tokens;
    /* Guesses: tokens [n_tokens, n_tokens + n_draft), fewer than max_tokens in all. The engine
     * proposes them for a sequence that lacks one token; the scheduler cuts them to what the step
     * computes; the engine counts off those that come true; those left at the commit are void. */
    uint32_t n_draft;
    /* scheduler's */
    uint32_t n_computed;  /* tokens [0, n_computed) are in the cache */
    uint32_t n_scheduled; /* of this step: [n_computed, n_computed + n_scheduled) */
    sequence_state state;
    uint32_t n_groups;
    bool padding; /* it has ended (static.c) */
    kv_seq kv;
    bool admitted;              /* once at least; then these say how its prompt met the cache: */
    uint32_t n_cached;          /* tokens found */
    uint32_t n_left_at, n_near; /* tokens of the longest way into the tree, in whole blocks; and the
                                   cached ones that come next there, nearest to its own */
    uint32_t n_preempted;       /* how often */
    /* the engine's */
    uint64_t id; /* order of arrival */
    int priority;
    uint64_t salt;       /* of the tenant, whose cached prefixes alone are used */
    bool no_match;       /* computes its whole prompt, whatever is cached */
    uint32_t n_received; /* of its tokens, fewer than all: keys and values of so many come with it,
                            from where they were computed; 0 once it is let in */
    uint32_t n_expected; /* of its prompt, fewer than all: thought to be cached */
    int32_t *near;       /* [n_near] of [max_near], NULL: not asked for */
    uint32_t max_near;
};

/* Copies the prompt and makes room for max_tokens tokens in all (>= n_prompt >= 1), and for their
 * blocks in every group. */
ridge_status sequence_init(sequence *s, const int32_t *prompt, uint32_t n_prompt,
                           uint32_t max_tokens, uint32_t block_size, uint32_t n_groups,
                           ridge_error *err) RIDGE_CHECKED;
void sequence_deinit(sequence *s); /* its blocks must be released; a zeroed one is allowed */
void sequence_append(sequence *s, int32_t token);
static inline void sequence_accept(sequence *s) { /* the same of a token that lies there already */
    ridge_assert(s->n_tokens < s->max_tokens);
    s->n_tokens++;
}
/* Does this step compute the last of its tokens, so that its logits say the next? */
static inline bool sequence_catches_up(const sequence *s) {
    return s->n_computed + s->n_scheduled >= s->n_tokens;
}
/* The served order: smaller priority, then earlier arrival. */
bool sequence_before(const sequence *a, const sequence *b);

#endif
