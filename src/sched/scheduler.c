/* sched/scheduler: see scheduler.h. */
#include "sched/scheduler_internal.h"

#include <string.h>

#include "base/mem.h"

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
    outlook_init(s);
    ridge_assert(!p->static_batches || p->max_model_len > 0);
    kv_cache_params cache = {.n_groups = p->n_groups,
                             .block_size = p->block_size,
                             .share = p->prefix_caching,
                             .summary = p->cache_summary,
                             .max_copies = p->max_num_seqs * p->n_groups};
    memcpy(cache.n_blocks, p->n_blocks, sizeof cache.n_blocks);
    memcpy(cache.window, p->window, sizeof cache.window);
    ridge_status status = kv_cache_create(&s->cache, &cache, err);
    if (status != RIDGE_OK) {
        sched_destroy(s);
        return status;
    }
    s->full_group = kv_cache_full_group(s->cache);
    s->windows = kv_cache_has_windows(s->cache);
    *out = s;
    return RIDGE_OK;
out_of_memory:
    sched_destroy(s);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "scheduler of %u sequences", p->max_num_seqs);
}

void sched_destroy(scheduler *s) {
    if (s == NULL) return;
    ridge_assert(s->waiting.n == 0 && s->running.n == 0);
    kv_cache_destroy(s->cache);
    mem_free(s->planned);
    mem_free(s);
}

static uint32_t blocks_for(const scheduler *s, uint32_t n_tokens) {
    return kv_blocks_for(n_tokens, s->params.block_size);
}

uint32_t sched_window_blocks(const sched_params *p, uint32_t window) {
    return kv_cache_window_blocks(window, p->block_size, p->max_num_seqs,
                                  p->max_num_batched_tokens);
}

bool sched_fits(const scheduler *s, uint32_t n_tokens) {
    return blocks_for(s, n_tokens) <= kv_cache_capacity(s->cache);
}

void sched_add(scheduler *s, sequence *q) {
    ridge_assert(q->state == SEQUENCE_NEW && q->n_groups == s->params.n_groups);
    ridge_assert(sched_fits(s, q->max_tokens));
    q->state = SEQUENCE_WAITING;
    queue_insert(&s->waiting, q);
}

static void release_blocks(scheduler *s, sequence *q) {
    kv_cache_release(s->cache, &q->kv, q->tokens, q->n_computed);
    q->n_computed = q->n_scheduled = q->n_draft = 0;
}

void sched_remove(scheduler *s, sequence *q) {
    if (q->state == SEQUENCE_WAITING) queue_remove(&s->waiting, q);
    if (q->state == SEQUENCE_RUNNING) {
        queue_remove(&s->running, q);
        if (!q->padding) outlook_note_answer(s, q);
        s->n_padding -= q->padding;
    }
    release_blocks(s, q);
    q->state = SEQUENCE_DONE;
}

static void preempt(scheduler *s, sequence *victim) {
    queue_remove(&s->running, victim);
    release_blocks(s, victim);
    victim->n_preempted++;
    victim->state = SEQUENCE_WAITING;
    queue_insert(&s->waiting, victim);
}

/* Tokens that q's blocks have room for. */
static uint64_t room_of(const scheduler *s, const sequence *q) {
    return (uint64_t)q->kv.tables[s->full_group].n_blocks * s->params.block_size;
}

/* Has q the blocks for its tokens, as nearly always? */
static bool has_blocks(const scheduler *s, const sequence *q) {
    uint64_t room = room_of(s, q);
    if (room == q->n_tokens) kv_cache_fetch(s->cache, &q->kv, q->tokens, q->n_tokens);
    return room >= q->n_tokens;
}

/* Makes room for q's next token at the cost of those after it, at last of q itself. Victims are
 * taken from the end, so those already planned, which are before q, keep what they have. */
static uint32_t reserve_or_preempt(scheduler *s, sequence *q) {
    uint32_t n_preempted = 0;
    if (has_blocks(s, q)) return 0;
    while (!kv_cache_grow(s->cache, &q->kv, q->n_tokens)) {
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

/* The rest of a prompt, as far as those that decode can bear it. */
static void give_prompt(scheduler *s, sequence *q, uint32_t *budget) {
    uint32_t n = give(q, pace_allows(&s->pace, &s->cost, q), budget);
    pace_take(&s->pace, &s->cost, q, n);
}

/* Will q ever want another block beside those for its tokens, which have so much room? The last
 * token of an answer is never computed. */
static bool may_outgrow(const sequence *q, uint64_t room) {
    return room < (q->max_tokens > q->n_prompt ? q->max_tokens - 1 : q->n_prompt);
}

/* So many blocks must be left over that none of the running ones, n_growing of which will want
 * more, finds the pool dry at once: else the one let in last would be preempted again, time after
 * time, having computed hardly more than what it had lost. */
static uint32_t spare_blocks(const scheduler *s, uint32_t n_growing) {
    uint32_t least = kv_cache_capacity(s->cache) / 100;
    if (s->running.n == 0) return 0; /* it would wait for ever */
    return n_growing > 0 && n_growing < least ? least : n_growing;
}

/* Will a step later more than m of q's tokens be known, because p, which is before it, computes
 * them now? Of a stream that decodes nothing is expected, though q goes on with its very answer: it
 * brings one token a step, and q could compute them all at once. */
static bool will_know_more(const scheduler *s, const sequence *q, const sequence *p,
                           const kv_match *m) {
    uint32_t known = p->n_computed + p->n_scheduled, size = s->params.block_size;
    bool decodes = p->n_computed >= p->n_prompt && p->n_scheduled == 1;
    bool enters = p->kv.node != NULL; /* else nobody will ever find what it computes */
    if (p->n_scheduled == 0 || decodes || !enters || p->salt != q->salt) return false;
    bool tail = p->n_computed < p->n_prompt && known >= p->n_prompt; /* is entered too */
    if (known > q->n_tokens - 1) known = q->n_tokens - 1;
    if (!tail) known = known / size * size;
    uint32_t least = tail ? m->n_tokens + 1 : (m->n_tokens / size + 1) * size;
    return known >= least && memcmp(p->tokens, q->tokens, least * sizeof *p->tokens) == 0;
}

static bool should_wait(const scheduler *s, const sequence *q, const kv_match *m) {
    if (!s->params.prefix_caching || q->no_match) return false;
    for (const sequence *p = s->running.first; p != NULL; p = p->next)
        if (will_know_more(s, q, p, m)) return true;
    return false;
}

/* What stands in the cache where q's prompt leaves it: before it is let in for the first time, as
 * that may take the place of something there. */
static void look_around(sequence *q, const kv_match *m) {
    q->n_left_at = m->n_left_at;
    if (q->near != NULL)
        q->n_near = kv_cache_nearest(m, q->tokens + m->n_left_at, q->n_tokens - m->n_left_at,
                                     q->near, q->max_near);
}

static void note_hits(scheduler *s, sequence *q, uint32_t n_cached) {
    q->n_cached = n_cached;
    outlook_note_prompt(s, q);
    if (q->no_match || !s->params.prefix_caching) return;
    s->prefix.queries += q->n_tokens;
    s->prefix.hits += n_cached;
}

static kv_match find(const scheduler *s, const sequence *q, uint32_t n_most) {
    return q->no_match ? (kv_match){0} : kv_cache_find(s->cache, q->salt, q->tokens, n_most);
}

/* What comes with q is as if it had been computed here; when q is preempted it is gone. */
static void receive(scheduler *s, sequence *q) {
    ridge_assert(q->n_received < q->n_tokens);
    if (q->n_received > q->n_computed) {
        kv_cache_skip(s->cache, &q->kv, q->n_received);
        q->n_computed = q->n_received;
    }
    q->n_received = 0;
}

/* Lets q in, if there is room; without the copy of a partial block, if that is what is too much. */
static bool start(scheduler *s, sequence *q, const kv_match *found, uint32_t spare) {
    kv_match m = *found;
    if (!q->admitted) look_around(q, found);
    if (!kv_cache_take(s->cache, &q->kv, &m, q->salt, q->n_tokens, spare)) {
        if (m.partial == NULL) return false;
        m = find(s, q, m.n_full * s->params.block_size);
        if (!kv_cache_take(s->cache, &q->kv, &m, q->salt, q->n_tokens, spare)) return false;
    }
    if (!q->admitted) note_hits(s, q, m.n_tokens);
    queue_remove(&s->waiting, q);
    q->n_computed = m.n_tokens;
    receive(s, q);
    q->admitted = true;
    q->state = SEQUENCE_RUNNING;
    queue_insert(&s->running, q);
    return true;
}

static bool may_admit(const scheduler *s, uint32_t budget) {
    return budget > 0 && !s->pace.full && s->waiting.n > 0 && s->running.n < s->params.max_num_seqs;
}

static void admit(scheduler *s, uint32_t *budget) {
    uint32_t n_growing = 0;
    s->short_of_blocks = false;
    if (!may_admit(s, *budget)) return;
    for (const sequence *q = s->running.first; q != NULL; q = q->next)
        n_growing += may_outgrow(q, room_of(s, q));
    while (may_admit(s, *budget)) {
        sequence *q = s->waiting.first;
        kv_match m = find(s, q, q->n_tokens - 1);
        uint64_t room = (uint64_t)blocks_for(s, q->n_tokens) * s->params.block_size;
        n_growing += may_outgrow(q, room);
        if (should_wait(s, q, &m)) return; /* nobody overtakes */
        s->short_of_blocks = !start(s, q, &m, spare_blocks(s, n_growing));
        if (s->short_of_blocks) return;
        give_prompt(s, q, budget);
    }
}

bool sched_let_in(scheduler *s, sequence *q) {
    const kv_match none = {0};
    return start(s, q, &none, 0);
}

/* The running ones have their tokens. */
static sched_plan make_plan(scheduler *s, uint32_t n_tokens, uint32_t n_preempted) {
    s->n_planned = 0;
    outlook_begin(s);
    for (sequence *q = s->running.first; q != NULL; q = q->next) {
        if (q->n_scheduled > 0) s->planned[s->n_planned++] = q;
        if (q->n_scheduled > 0 && s->windows)
            kv_cache_grow_windows(s->cache, &q->kv, q->n_computed + q->n_scheduled);
        if (s->weighs) outlook_weigh(s, q);
    }
    sched_plan plan = {.sequences = s->planned,
                       .n_sequences = s->n_planned,
                       .n_tokens = n_tokens,
                       .n_preempted = n_preempted};
    plan.copies = kv_cache_take_copies(s->cache, &plan.n_copies);
    return plan;
}

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* What guesses may take of the budget: it is kept for them while prompts take the rest. */
static uint32_t hold_for_drafts(const scheduler *s, uint32_t budget) {
    uint32_t n = 0;
    for (const sequence *q = s->running.first; q != NULL; q = q->next)
        n += min(q->n_draft, budget - n);
    return n;
}

static void grant_drafts(scheduler *s, uint32_t *budget) {
    for (sequence *q = s->running.first; q != NULL; q = q->next) {
        uint32_t n = min(q->n_draft, *budget);
        q->n_draft = 0;
        if (n == 0 || !sequence_catches_up(q)) continue;
        ridge_assert(q->n_tokens + n < q->max_tokens);
        if (!kv_cache_grow(s->cache, &q->kv, q->n_tokens + n)) /* no more than its blocks hold */
            n = min(n, blocks_for(s, q->n_tokens) * s->params.block_size - q->n_tokens);
        q->n_draft = n;
        q->n_scheduled += n;
        *budget -= n;
    }
}

/* What the running ones ask for beyond a token each: most steps have neither. */
typedef struct {
    bool prompts, drafts;
} wishes;

/* One token each; how many were preempted for that. */
static uint32_t give_one_each(scheduler *s, uint32_t *budget, wishes *w) {
    uint32_t n_preempted = 0;
    sequence *q = s->running.first, *next;
    for (; q != NULL && *budget > 0; q = next) {
        n_preempted += reserve_or_preempt(s, q);
        if (q->state != SEQUENCE_RUNNING) return n_preempted; /* q was the last one */
        next = q->next;
        give(q, 1, budget);
        w->prompts = w->prompts || !sequence_catches_up(q);
        w->drafts = w->drafts || q->n_draft > 0;
    }
    for (; q != NULL; q = q->next) w->drafts = w->drafts || q->n_draft > 0;
    return n_preempted;
}

sched_plan sched_next(scheduler *s) {
    uint32_t budget = s->params.max_num_batched_tokens;
    if (s->params.static_batches) {
        static_plan(s, &budget);
        return make_plan(s, s->params.max_num_batched_tokens - budget, 0);
    }
    wishes w = {0};
    uint32_t n_preempted = give_one_each(s, &budget, &w);
    pace_begin(&s->pace, &s->cost, s->running.first);
    uint32_t held = w.drafts ? hold_for_drafts(s, budget) : 0;
    budget -= held;
    for (sequence *q = w.prompts ? s->running.first : NULL; q != NULL && budget > 0; q = q->next)
        give_prompt(s, q, &budget);
    if (n_preempted == 0) admit(s, &budget);
    budget += held;
    if (w.drafts) grant_drafts(s, &budget);
    return make_plan(s, s->params.max_num_batched_tokens - budget, n_preempted);
}

void sched_commit(scheduler *s, bool computed) {
    for (uint32_t i = 0; i < s->n_planned; i++) {
        sequence *q = s->planned[i];
        uint32_t before = q->n_computed;
        if (computed && !q->padding) q->n_computed += q->n_scheduled - q->n_draft;
        if (q->n_draft > 0) kv_cache_shrink(s->cache, &q->kv, q->n_tokens);
        q->n_scheduled = q->n_draft = 0;
        bool prompt_done = before < q->n_prompt && q->n_computed >= q->n_prompt;
        if (prompt_done || s->windows || kv_seq_fills(&q->kv, s->params.block_size, q->n_computed))
            kv_cache_commit(s->cache, &q->kv, q->tokens, q->n_computed, prompt_done);
    }
    s->n_planned = 0;
}

uint32_t sched_n_waiting(const scheduler *s) {
    return s->waiting.n;
}

uint32_t sched_n_running(const scheduler *s) {
    return s->running.n - s->n_padding;
}

kv_cache *sched_cache(const scheduler *s) {
    return s->cache;
}

sched_prefix_stats sched_get_prefix_stats(const scheduler *s) {
    return s->prefix;
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

/* Holders of each block of a group, as the tables have it. */
static void check_holders(const scheduler *s, uint32_t g) {
    const kv_pool *pool = kv_cache_pool(s->cache, g);
    uint32_t n_blocks = kv_pool_size(pool);
    uint32_t *n = mem_zalloc(n_blocks, sizeof *n);
    if (n == NULL) return;
    for (const sequence *q = s->running.first; q != NULL; q = q->next)
        for (uint32_t b = q->kv.tables[g].first; b < q->kv.tables[g].n_blocks; b++)
            n[q->kv.tables[g].blocks[b]]++;
    for (uint32_t b = 0; b < n_blocks; b++) ridge_assert(kv_pool_holders(pool, (int32_t)b) == n[b]);
    mem_free(n);
}

void sched_check(const scheduler *s) {
    check_queue(&s->waiting, SEQUENCE_WAITING);
    check_queue(&s->running, SEQUENCE_RUNNING);
    ridge_assert(s->running.n <= s->params.max_num_seqs);
    kv_cache_check(s->cache);
    for (uint32_t g = 0; g < s->params.n_groups; g++) {
        for (const sequence *q = s->waiting.first; q != NULL; q = q->next)
            ridge_assert(q->kv.tables[g].n_blocks == 0 && q->n_computed == 0);
        for (const sequence *q = s->running.first; q != NULL; q = q->next)
            ridge_assert(q->kv.tables[g].n_blocks >= blocks_for(s, q->n_computed));
        check_holders(s, g);
    }
}
