/* sched/scheduler: see scheduler.h. */
#include "sched/scheduler.h"

#include "base/mem.h"

/* Sequences in the served order, linked through themselves. */
typedef struct {
    sequence *first, *last;
    uint32_t n;
} queue;

struct scheduler {
    sched_params params;
    kv_pool *pools[SEQUENCE_MAX_GROUPS]; /* [n_groups] */
    queue waiting, running;
    sequence **planned; /* [max_num_seqs] */
    uint32_t n_planned;
};

/* From the back: arrivals come in order, so the place is nearly always found at once. */
static void queue_insert(queue *q, sequence *s) {
    sequence *after = q->last;
    while (after != NULL && sequence_before(s, after)) after = after->previous;
    s->previous = after;
    s->next = after != NULL ? after->next : q->first;
    *(s->previous != NULL ? &s->previous->next : &q->first) = s;
    *(s->next != NULL ? &s->next->previous : &q->last) = s;
    q->n++;
}

static void queue_remove(queue *q, sequence *s) {
    *(s->previous != NULL ? &s->previous->next : &q->first) = s->next;
    *(s->next != NULL ? &s->next->previous : &q->last) = s->previous;
    s->next = s->previous = NULL;
    q->n--;
}

ridge_status sched_create(scheduler **out, const sched_params *p, ridge_error *err) {
    if (p->max_num_seqs == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "max_num_seqs must be at least 1");
    if (p->max_num_batched_tokens == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "max_num_batched_tokens must be at least 1");
    if (p->block_size == 0) return RIDGE_FAIL(err, RIDGE_EINVAL, "block_size must be at least 1");
    ridge_assert(p->n_groups >= 1 && p->n_groups <= SEQUENCE_MAX_GROUPS);
    scheduler *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) goto out_of_memory;
    s->params = *p;
    s->planned = mem_zalloc(p->max_num_seqs, sizeof *s->planned);
    if (s->planned == NULL) goto out_of_memory;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        ridge_status status = kv_pool_create(&s->pools[g], p->n_blocks, err);
        if (status != RIDGE_OK) {
            sched_destroy(s);
            return status;
        }
    }
    *out = s;
    return RIDGE_OK;
out_of_memory:
    sched_destroy(s);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "scheduler of %u sequences", p->max_num_seqs);
}

void sched_destroy(scheduler *s) {
    if (s == NULL) return;
    ridge_assert(s->waiting.n == 0 && s->running.n == 0);
    for (uint32_t g = 0; g < SEQUENCE_MAX_GROUPS; g++) kv_pool_destroy(s->pools[g]);
    mem_free(s->planned);
    mem_free(s);
}

static uint32_t blocks_for(const scheduler *s, uint32_t n_tokens) {
    return n_tokens / s->params.block_size + (n_tokens % s->params.block_size != 0);
}

bool sched_fits(const scheduler *s, uint32_t n_tokens) {
    return blocks_for(s, n_tokens) <= s->params.n_blocks;
}

void sched_add(scheduler *s, sequence *q) {
    ridge_assert(q->state == SEQUENCE_NEW && q->n_groups == s->params.n_groups);
    ridge_assert(sched_fits(s, q->max_tokens));
    q->state = SEQUENCE_WAITING;
    queue_insert(&s->waiting, q);
}

static void release_blocks(scheduler *s, sequence *q) {
    for (uint32_t g = 0; g < s->params.n_groups; g++) kv_table_release(&q->tables[g], s->pools[g]);
    q->n_computed = q->n_scheduled = 0;
}

void sched_remove(scheduler *s, sequence *q) {
    if (q->state == SEQUENCE_WAITING) queue_remove(&s->waiting, q);
    if (q->state == SEQUENCE_RUNNING) queue_remove(&s->running, q);
    release_blocks(s, q);
    q->state = SEQUENCE_DONE;
}

/* Blocks for all of q's tokens in every group, or for none. */
static bool reserve(scheduler *s, sequence *q) {
    uint32_t need = blocks_for(s, q->n_tokens);
    for (uint32_t g = 0; g < s->params.n_groups; g++)
        if (need > q->tables[g].n_blocks &&
            need - q->tables[g].n_blocks > kv_pool_n_free(s->pools[g]))
            return false;
    for (uint32_t g = 0; g < s->params.n_groups; g++) {
        ridge_status status = kv_table_grow(&q->tables[g], s->pools[g], need);
        ridge_assert(status == RIDGE_OK); /* counted above */
    }
    return true;
}

static void preempt(scheduler *s, sequence *victim) {
    queue_remove(&s->running, victim);
    release_blocks(s, victim);
    victim->n_preempted++;
    victim->state = SEQUENCE_WAITING;
    queue_insert(&s->waiting, victim);
}

/* Makes room for q's next token at the cost of those after it, at last of q itself. Victims are
 * taken from the end, so those already planned, which are before q, keep what they have. */
static uint32_t reserve_or_preempt(scheduler *s, sequence *q) {
    uint32_t n_preempted = 0;
    while (!reserve(s, q)) {
        sequence *victim = s->running.last;
        preempt(s, victim);
        n_preempted++;
        if (victim == q) break;
    }
    return n_preempted;
}

static uint32_t give(sequence *q, uint32_t n_most, uint32_t *budget) {
    uint32_t n = q->n_tokens - q->n_computed - q->n_scheduled;
    if (n > n_most) n = n_most;
    if (n > *budget) n = *budget;
    q->n_scheduled += n;
    *budget -= n;
    return n;
}

/* Will q ever want another block? The last token of an answer is never computed. */
static bool may_grow(const scheduler *s, const sequence *q) {
    uint32_t most = q->max_tokens > q->n_prompt ? q->max_tokens - 1 : q->n_prompt;
    return blocks_for(s, most) > blocks_for(s, q->n_tokens);
}

/* Blocks for all of q's tokens, and so many left over that none of the running ones, n_growing of
 * which will want more, finds the pool dry at once: else the one let in last would be preempted
 * again, time after time, having computed hardly more than what it had lost. */
static bool can_admit(const scheduler *s, const sequence *q, uint32_t n_growing) {
    uint64_t need = blocks_for(s, q->n_tokens), spare = n_growing;
    if (n_growing > 0 && spare < s->params.n_blocks / 100) spare = s->params.n_blocks / 100;
    if (s->running.n == 0) spare = 0; /* it would wait for ever */
    for (uint32_t g = 0; g < s->params.n_groups; g++)
        if (need + spare > kv_pool_n_free(s->pools[g])) return false;
    return true;
}

static void admit(scheduler *s, uint32_t *budget) {
    uint32_t n_growing = 0;
    for (const sequence *q = s->running.first; q != NULL && s->waiting.n > 0; q = q->next)
        n_growing += may_grow(s, q);
    while (*budget > 0 && s->waiting.n > 0 && s->running.n < s->params.max_num_seqs) {
        sequence *q = s->waiting.first;
        n_growing += may_grow(s, q);
        if (!can_admit(s, q, n_growing)) return; /* nobody overtakes */
        bool reserved = reserve(s, q);
        ridge_assert(reserved);
        queue_remove(&s->waiting, q);
        q->state = SEQUENCE_RUNNING;
        queue_insert(&s->running, q);
        give(q, UINT32_MAX, budget);
    }
}

sched_plan sched_next(scheduler *s) {
    uint32_t budget = s->params.max_num_batched_tokens, n_preempted = 0;
    for (sequence *q = s->running.first, *next; q != NULL && budget > 0; q = next) {
        n_preempted += reserve_or_preempt(s, q);
        if (q->state != SEQUENCE_RUNNING) break; /* q was the last one */
        next = q->next;
        give(q, 1, &budget);
    }
    for (sequence *q = s->running.first; q != NULL && budget > 0; q = q->next)
        give(q, UINT32_MAX, &budget);
    if (n_preempted == 0) admit(s, &budget);

    s->n_planned = 0;
    for (sequence *q = s->running.first; q != NULL; q = q->next)
        if (q->n_scheduled > 0) s->planned[s->n_planned++] = q;
    return (sched_plan){.sequences = s->planned,
                        .n_sequences = s->n_planned,
                        .n_tokens = s->params.max_num_batched_tokens - budget,
                        .n_preempted = n_preempted};
}

void sched_commit(scheduler *s) {
    for (uint32_t i = 0; i < s->n_planned; i++) {
        sequence *q = s->planned[i];
        q->n_computed += q->n_scheduled;
        q->n_scheduled = 0;
    }
    s->n_planned = 0;
}

uint32_t sched_n_waiting(const scheduler *s) {
    return s->waiting.n;
}

uint32_t sched_n_running(const scheduler *s) {
    return s->running.n;
}

uint32_t sched_n_blocks_free(const scheduler *s, uint32_t group) {
    return kv_pool_n_free(s->pools[group]);
}

static void check_queue(const queue *q, sequence_state state) {
    uint32_t n = 0;
    for (const sequence *s = q->first; s != NULL; s = s->next, n++) {
        ridge_assert(s->state == state && s->n_computed <= s->n_tokens);
        ridge_assert(s->next != NULL ? s->next->previous == s : q->last == s);
        ridge_assert(s->next == NULL || sequence_before(s, s->next));
    }
    ridge_assert(n == q->n);
}

void sched_check(const scheduler *s) {
    check_queue(&s->waiting, SEQUENCE_WAITING);
    check_queue(&s->running, SEQUENCE_RUNNING);
    ridge_assert(s->running.n <= s->params.max_num_seqs);
    for (uint32_t g = 0; g < s->params.n_groups; g++) {
        uint32_t n_held = 0;
        for (const sequence *q = s->waiting.first; q != NULL; q = q->next)
            ridge_assert(q->tables[g].n_blocks == 0 && q->n_computed == 0);
        for (const sequence *q = s->running.first; q != NULL; q = q->next) {
            ridge_assert(q->tables[g].n_blocks >= blocks_for(s, q->n_computed));
            for (uint32_t b = 0; b < q->tables[g].n_blocks; b++)
                ridge_assert(kv_pool_holders(s->pools[g], q->tables[g].blocks[b]) == 1);
            n_held += q->tables[g].n_blocks;
        }
        kv_pool_check(s->pools[g]);
        ridge_assert(n_held + kv_pool_n_free(s->pools[g]) == kv_pool_size(s->pools[g]));
    }
}
