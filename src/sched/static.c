/* sched/static: batches as before continuous batching, to compare with.
 *
 * A batch is let in when nothing runs, in the served order, each sequence with room for the longest
 * context there is. All prompts are computed, then every sequence one token a step until all are
 * done. Who is done first rides along as padding: its row is computed in each step, and nothing
 * comes of it. So did serving systems before Orca (Yu et al., OSDI 2022) made the step the unit and
 * PagedAttention (Kwon et al., SOSP 2023) the block. Kinder than some of them: prompts are not
 * padded to the longest, and no place waits for a batch to be full.
 */
#include "sched/scheduler_internal.h"

uint32_t static_room(const scheduler *s) {
    uint32_t size = s->params.block_size;
    return kv_blocks_for(s->params.max_model_len, size) * size;
}

static void admit_batch(scheduler *s) {
    uint64_t most = (uint64_t)kv_cache_capacity(s->cache) * s->params.block_size / static_room(s);
    if (most > s->params.max_num_seqs) most = s->params.max_num_seqs;
    while (s->waiting.n > 0 && (s->running.n < most || s->running.n == 0)) {
        sequence *q = s->waiting.first;
        bool in = sched_let_in(s, q) && kv_cache_grow(s->cache, &q->kv, q->max_tokens);
        ridge_assert(in); /* nobody else holds any */
    }
}

static bool has_prompt_left(const sequence *q) {
    return !q->padding && q->n_computed < q->n_prompt;
}

/* The tokens of those that ride along, or of the others. */
static void give_all(scheduler *s, bool padding, bool prompts, uint32_t *budget) {
    for (sequence *q = s->running.first; q != NULL && *budget > 0; q = q->next) {
        if (q->padding != padding || (prompts && !has_prompt_left(q))) continue;
        uint32_t n = q->n_tokens - q->n_computed;
        if (q->padding && n > 1) n = 1;
        if (n > *budget) n = *budget;
        q->n_draft = 0; /* no guesses */
        q->n_scheduled = n;
        *budget -= n;
    }
}

/* Padding comes last: where the budget is short, it must not keep the others from their ends. */
void static_plan(scheduler *s, uint32_t *budget) {
    bool prompts = false;
    if (s->running.n == 0) admit_batch(s);
    for (const sequence *q = s->running.first; q != NULL; q = q->next)
        prompts = prompts || has_prompt_left(q);
    give_all(s, false, prompts, budget);
    give_all(s, true, prompts, budget);
}

bool sched_end(scheduler *s, sequence *q) {
    if (!s->params.static_batches) {
        sched_remove(s, q);
        return true;
    }
    q->padding = true;
    s->n_padding++;
    outlook_note_answer(s, q);
    return false;
}
