/* engine/draft_model: guesses what comes next by a smaller model of the same vocabulary.
 *
 * It has weights, a program and a KV cache of its own and runs on the engine's device, one forward
 * for every token that it guesses, of all sequences together. It draws as the target does: the same
 * penalties, biases and bans, and the same number for the same position, so that where the two
 * distributions agree the two draws do (Leviathan et al. 2023 accept by chance instead; equal draws
 * make the accepted text that of the target alone).
 *
 * Its cache follows the sequence: positions that hold guesses which did not come true are computed
 * again. A sequence for which its pool has no blocks is not guessed for. Nothing here can fail a
 * request: an error of the device ends the guessing. The engine's thread.
 */
#ifndef RIDGE_ENGINE_DRAFT_MODEL_H
#define RIDGE_ENGINE_DRAFT_MODEL_H

#include "engine/draft_length.h"
#include "kv/table.h"
#include "model/model.h"
#include "sample/sampler.h"
#include "sched/sequence.h"
#include "text/tokenizer.h"

typedef struct draft_model draft_model;

typedef struct {
    const char *path; /* of the .gguf file */
    device *dev;
    const tokenizer *target; /* the vocabulary that it must have, */
    uint32_t n_vocab;        /* and the rows of its logits */
    dev_kv_type kv_type;
    uint32_t block_size, n_blocks; /* n_blocks in each of its groups; fewer where they would take
                                      more than half of the memory that is free */
    uint32_t max_num_seqs, max_num_batched_tokens;
    const log_sink *log;
} draft_model_params;

/* RIDGE_EINVAL says which token differs first, or which size. */
ridge_status draft_model_open(draft_model **out, const draft_model_params *p,
                              ridge_error *err) RIDGE_CHECKED;
void draft_model_close(draft_model *d);                /* no cache may hold blocks; NULL allowed */
uint64_t draft_model_step_bytes(const draft_model *d); /* of its weights, that a round reads */

/* What the model's cache holds of one sequence: its tokens [0, n_computed). */
typedef struct {
    kv_table tables[DEV_MAX_GROUPS];
    uint32_t n_computed;
} draft_cache;

/* Room for max_tokens; may run on any thread. */
ridge_status draft_cache_init(draft_cache *c, const draft_model *d, uint32_t max_tokens,
                              ridge_error *err) RIDGE_CHECKED;
void draft_cache_deinit(draft_cache *c); /* its blocks must be released; a zeroed one is allowed */
void draft_cache_release(draft_cache *c, draft_model *d);
/* Tokens from n_tokens on are no longer those that were computed. */
void draft_cache_keep(draft_cache *c, uint32_t n_tokens);

/* One sequence's part in a call. */
typedef struct {
    const sequence *seq;
    draft_cache *cache;
    const sampler_params *sampling;
    sampler_counts *counts; /* NULL: none; as it was when the call returns */
    uint32_t n_free;        /* from this guess on nothing is banned (min_tokens are reached) */
    uint32_t n_wanted;      /* <= DRAFT_MAX; 0: only catch up with the sequence */
    int32_t *guesses;       /* [n_wanted] */
    uint32_t n;             /* out: how many were made */
} draft_job;

typedef struct {
    dev_account account; /* of all forwards */
    uint32_t n_rounds;   /* of guesses */
    uint32_t n_rows;     /* in all forwards */
} draft_work;

/* A sequence that the cache lags far behind is caught up with max_num_batched_tokens tokens in a
 * call; it gets guesses in the call in which that is done. */
draft_work draft_model_guess(draft_model *d, sampler *s, draft_job *jobs, uint32_t n);

#endif
