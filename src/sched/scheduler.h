/* sched/scheduler: which tokens of which sequences the next step computes, and who gets the blocks.
 *
 * Each step, within a budget of tokens: every running sequence one token, then what they still lack
 * (chunks of prompts), then waiting ones in (priority, arrival) order while there are places and
 * blocks. A sequence is let in when the pool holds all its tokens and leaves a block for each of
 * the running ones that will grow (at least a hundredth of the pool), or when nothing runs. Those
 * blocks are its own from then on, so only growing past them can find the pool dry. Then the last
 * of the running ones, in the served order, loses its blocks, waits again and recomputes what the
 * cache has not kept of it: the first always goes on.
 *
 * A sequence that is let in starts after the longest prefix of its tokens that the cache knows. It
 * waits a step where another one is just computing more of that prefix: so one prefill serves n
 * choices, or many prompts that begin alike and come together.
 *
 * Guesses (sequence.h) come last: they get what the budget leaves after every running sequence's
 * one token, and blocks that nobody wants now, given back if they prove wrong. So no guess ever
 * preempts, keeps out, or delays another sequence's token.
 *
 * Pure: no clock, no device, no I/O, no allocation in a step. One thread. Owns the pools; sequences
 * belong to the engine, which leaves them alone between sched_plan and sched_commit.
 */
#ifndef RIDGE_SCHED_SCHEDULER_H
#define RIDGE_SCHED_SCHEDULER_H

#include "sched/backlog.h"
#include "sched/cost.h"
#include "sched/pace.h"
#include "sched/sequence.h"

typedef struct scheduler scheduler;

typedef struct {
    uint32_t max_num_seqs;           /* running at once */
    uint32_t max_num_batched_tokens; /* in one step */
    uint32_t block_size, n_groups;
    uint32_t n_blocks[SEQUENCE_MAX_GROUPS];
    /* 0: full. A group with a window needs as many blocks as one without, or
     * sched_window_blocks. */
    uint32_t window[SEQUENCE_MAX_GROUPS];
    bool prefix_caching;
    bool cache_summary; /* other threads ask kv_cache_known */
    /* For comparison only (static.c): a batch runs until all of it is done. */
    bool static_batches;
    uint32_t max_model_len; /* of static batches: the room that each sequence gets */
} sched_params;

/* Blocks that suffice for a group with a window (p->block_size, max_num_seqs and
 * max_num_batched_tokens are read). */
uint32_t sched_window_blocks(const sched_params *p, uint32_t window);

ridge_status sched_create(scheduler **out, const sched_params *p, ridge_error *err) RIDGE_CHECKED;
void sched_destroy(scheduler *s); /* no sequence may be left in it; NULL allowed */

/* What steps cost (cost.h), and the target for the time of those in which streams decode (pace.h;
 * 0: none). Nothing is known and there is no target until this is called, before the first step. */
void sched_set_cost(scheduler *s, const cost_shape *shape, double tpot_s);
const cost_model *sched_cost(const scheduler *s);

/* Could a sequence of n_tokens ever run alone? What this refuses would wait for ever. */
bool sched_fits(const scheduler *s, uint32_t n_tokens);
void sched_add(scheduler *s, sequence *q); /* SEQUENCE_NEW -> SEQUENCE_WAITING */
/* Takes it out, wherever it is, and frees its blocks -> SEQUENCE_DONE. Not between plan and commit.
 */
void sched_remove(scheduler *s, sequence *q);

/* A running sequence has ended. True: it is out, as with sched_remove. False: in a static batch it
 * stays as padding until none runs any more (sched_n_running); then it is to be removed. */
bool sched_end(scheduler *s, sequence *q);

/* The sequences with n_scheduled > 0, in the served order; borrowed until the next call. Empty when
 * there is nothing to do. */
typedef struct {
    sequence *const *sequences; /* [n_sequences] */
    uint32_t n_sequences, n_tokens;
    uint32_t n_preempted;  /* in making this plan */
    const kv_copy *copies; /* [n_copies] to be made in this order before the step */
    uint32_t n_copies;
} sched_plan;

sched_plan sched_next(scheduler *s);
/* The planned step took so long and needed the logits of n_wanted rows; before the commit. Not to
 * be called for steps that failed. */
void sched_learn(scheduler *s, uint32_t n_wanted, double seconds);
/* What was planned has been computed, but for the guesses left (n_draft); or, the step having
 * failed, has not. */
void sched_commit(scheduler *s, bool computed);

uint32_t sched_n_waiting(const scheduler *s);
uint32_t sched_n_running(const scheduler *s); /* without padding */
/* The cache's blocks (kv/cache.h): to read; and to keep and restore while nothing runs. */
kv_cache *sched_cache(const scheduler *s);

typedef struct {
    uint64_t queries, hits; /* tokens of prompts looked up, and found, at their first admission */
} sched_prefix_stats;

sched_prefix_stats sched_get_prefix_stats(const scheduler *s);

/* Room in the blocks that running sequences hold, in tokens, of all groups together (static
 * batches: what is reserved for them), and the tokens in it, with those of a step that is planned.
 * What several sequences share counts for each. */
typedef struct {
    uint64_t reserved, used;
} sched_cache_use;

sched_cache_use sched_get_cache_use(const scheduler *s);

/* How things will stand after the planned step. */
void sched_get_backlog(const scheduler *s, backlog *out);

/* Asserts: every block is held as often as tables of running sequences name it; waiting ones hold
 * none; queues are in order and counted. Slow. */
void sched_check(const scheduler *s);

#endif
