/* base/team: see team.h.
 *
 * A run has a number. Its members are called one by one, each by that number in a word of its own:
 * who has spun in vain sleeps on it with a futex, and who has no part in the run isn't touched. A
 * member enters through `gate`, which is open for one run and which the caller closes at the end of
 * a run of pieces; then the caller waits for those inside only.
 *
 * Pieces are numbered on and on. How much of a share is taken stands in one word with the piece's
 * number, so that a member late by a piece can take nothing of the next one by mistake. Who
 * finishes the last chunk of a piece prepares the words for the next and then advances `piece`, on
 * which the others wait: that store hands over all that was written in the piece.
 */
#include "base/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/mem.h"

#define SPINS_BETWEEN_RUNS 20000
#define SPINS_BETWEEN_PIECES 20000
#define GATE_OPEN 0x80000000u
#define GATE_COUNT (GATE_OPEN - 1)

/* One member's. */
typedef struct {
    _Alignas(MEM_LINE) atomic_ullong taken; /* of its share: the piece's number << 32 | chunks */
    _Alignas(MEM_LINE) atomic_uint called;  /* the last run that it has a part in */
    atomic_uint asleep;                     /* 1: on `called` */
    _Alignas(MEM_LINE) uint32_t next;       /* the piece that it comes to next; its own */
} team_share;

struct team {
    int n;
    team_share *shares; /* [n] */
    pthread_t *threads; /* [n - 1] */
    bool pinned;
    cpu_mask pin, own; /* the caller's: in a run, and otherwise */
    uint32_t run;      /* the number of the last one; the caller's */
    /* Of the run behind the open gate. */
    team_fn fn;
    void *context;
    int n_active;
    uint32_t first_piece;
    atomic_bool stop;
    _Alignas(MEM_LINE) atomic_ullong gate; /* run << 32 | GATE_OPEN | members that entered it */
    _Alignas(MEM_LINE) atomic_uint left;   /* members that have left it again */
    atomic_uint left_sleepers;
    _Alignas(MEM_LINE) atomic_uint done; /* chunks of the current piece that are done */
    _Alignas(MEM_LINE) atomic_uint piece;
    atomic_uint piece_sleepers;
};

typedef struct {
    team *team;
    int member;
} member_arg;

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned expected) {
    syscall(SYS_futex, (unsigned *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
    syscall(SYS_futex, (unsigned *)word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* Returns when *word differs from seen: spins first, then sleeps, counted in *sleepers. */
static void wait_change(atomic_uint *word, unsigned seen, atomic_uint *sleepers, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        cpu_relax();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) futex_wait(word, seen);
    atomic_fetch_sub(sleepers, 1);
}

static void advance(atomic_uint *word, atomic_uint *sleepers) {
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers) > 0) futex_wake_all(word);
}

/* True when the gate of that run is open: then the member is inside until it adds to `left`. */
static bool enter(team *t, uint32_t run) {
    unsigned long long gate = atomic_load(&t->gate);
    while ((gate & GATE_OPEN) && (uint32_t)(gate >> 32) == run)
        if (atomic_compare_exchange_weak(&t->gate, &gate, gate + 1)) return true;
    return false;
}

static void *member_main(void *p) {
    member_arg arg = *(member_arg *)p;
    mem_free(p);
    team *t = arg.team;
    team_share *own = &t->shares[arg.member];
    for (unsigned run = 0;;) {
        wait_change(&own->called, run, &own->asleep, SPINS_BETWEEN_RUNS);
        run = atomic_load(&own->called);
        if (atomic_load(&t->stop)) return NULL;
        if (!enter(t, run)) continue;
        own->next = t->first_piece;
        t->fn(t->context, arg.member, t->n_active);
        advance(&t->left, &t->left_sleepers);
    }
}

static void call(team_share *member, uint32_t run) {
    atomic_store(&member->called, run);
    if (atomic_load(&member->asleep) > 0) futex_wake_all(&member->called);
}

ridge_status team_create(team **out, int n_threads, ridge_error *err) {
    if (n_threads < 1 || n_threads > 1024)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%d threads: expected 1 to 1024", n_threads);
    team *t = mem_aligned(MEM_LINE, sizeof *t);
    if (t == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "thread team");
    *t = (team){.n = 1};
    t->threads = mem_zalloc((size_t)n_threads, sizeof *t->threads);
    if (t->threads == NULL) goto nomem;
    t->shares = mem_aligned(MEM_LINE, (size_t)n_threads * sizeof *t->shares);
    if (t->shares == NULL) goto nomem;
    memset(t->shares, 0, (size_t)n_threads * sizeof *t->shares);
    for (; t->n < n_threads; t->n++) {
        member_arg *arg = mem_alloc(sizeof *arg);
        if (arg == NULL) goto nomem;
        *arg = (member_arg){.team = t, .member = t->n};
        if (pthread_create(&t->threads[t->n - 1], NULL, member_main, arg) != 0) {
            mem_free(arg);
            RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot start thread %d of %d", t->n, n_threads);
            team_destroy(t);
            return RIDGE_ENOMEM;
        }
    }
    *out = t;
    return RIDGE_OK;
nomem:
    team_destroy(t);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "thread team");
}

void team_destroy(team *t) {
    if (t == NULL) return;
    atomic_store(&t->stop, true);
    for (int i = 1; i < t->n; i++) call(&t->shares[i], atomic_load(&t->shares[i].called) + 1);
    for (int i = 0; i < t->n - 1; i++) pthread_join(t->threads[i], NULL);
    cpu_mask_free(&t->pin);
    cpu_mask_free(&t->own);
    mem_free(t->shares);
    mem_free(t->threads);
    mem_free(t);
}

int team_size(const team *t) {
    return t->n;
}

/* Returns when *word is target; whoever changes it uses advance. */
static void wait_until(atomic_uint *word, unsigned target, atomic_uint *sleepers, int spins) {
    for (unsigned now; (now = atomic_load(word)) != target;)
        wait_change(word, now, sleepers, spins);
}

static ridge_status pin_member(pthread_t thread, int member, int cpu, ridge_error *err) {
    cpu_mask mask;
    RIDGE_TRY(cpu_mask_make(&mask, &cpu, 1, err));
    int failed = pthread_setaffinity_np(thread, mask.size, mask.set);
    cpu_mask_free(&mask);
    if (failed == 0) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "cannot pin thread %d to processor %d: %s", member, cpu,
                      strerror(failed));
}

ridge_status team_pin(team *t, const int *cpus, ridge_error *err) {
    cpu_list allowed;
    ridge_assert(!t->pinned);
    RIDGE_TRY(cpus_allowed(&allowed, err));
    ridge_status status = cpu_mask_make(&t->own, allowed.ids, allowed.n, err);
    cpu_list_free(&allowed);
    if (status == RIDGE_OK) status = cpu_mask_make(&t->pin, cpus, 1, err);
    for (int i = 1; i < t->n && status == RIDGE_OK; i++)
        status = pin_member(t->threads[i - 1], i, cpus[i], err);
    t->pinned = status == RIDGE_OK;
    return status;
}

/* What the run before left behind: the shares of members that had no part in it. */
static void begin_run(team *t, int n, team_fn fn, void *context) {
    uint32_t piece = atomic_load(&t->piece);
    for (int i = t->n_active; i < n; i++)
        atomic_store(&t->shares[i].taken, (unsigned long long)piece << 32);
    t->n_active = n;
    t->fn = fn;
    t->context = context;
    t->first_piece = t->shares[0].next = piece;
    if (n == 1) return;
    atomic_store(&t->left, 0);
    if (++t->run == 0) t->run = 1; /* 0: none yet */
    atomic_store(&t->gate, (unsigned long long)t->run << 32 | GATE_OPEN);
    for (int i = 1; i < n; i++) call(&t->shares[i], t->run);
}

static void end_run(team *t, int n, bool all) {
    wait_until(&t->piece, t->shares[0].next, &t->piece_sleepers, SPINS_BETWEEN_PIECES);
    if (n == 1) return;
    unsigned inside = (unsigned)n - 1;
    if (!all) inside = atomic_fetch_and(&t->gate, ~(unsigned long long)GATE_OPEN) & GATE_COUNT;
    wait_until(&t->left, inside, &t->left_sleepers, SPINS_BETWEEN_PIECES);
    atomic_store(&t->gate, 0);
}

static void run(team *t, int n, team_fn fn, void *context, bool all) {
    ridge_assert(n >= 1 && n <= t->n);
    if (t->pinned) cpu_mask_set(&t->pin, 0);
    begin_run(t, n, fn, context);
    fn(context, 0, n);
    end_run(t, n, all);
    if (t->pinned) cpu_mask_set(&t->own, 0);
}

void team_run(team *t, team_fn fn, void *context) {
    run(t, t->n, fn, context, true);
}

void team_run_pieces(team *t, team_fn fn, void *context) {
    run(t, t->n, fn, context, false);
}

void team_run_first(team *t, int n_members, team_fn fn, void *context) {
    run(t, n_members, fn, context, false);
}

/* The last chunk of the current piece is done: nobody can hold one or take one until `piece`
 * advances. */
static void finish_piece(team *t, uint32_t piece) {
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    for (int i = 0; i < t->n_active; i++)
        atomic_store_explicit(&t->shares[i].taken, (unsigned long long)(piece + 1) << 32,
                              memory_order_relaxed);
    advance(&t->piece, &t->piece_sleepers);
}

team_cursor team_work(team *t, int member, uint32_t n_chunks) {
    team_cursor c = {.team = t, .n_chunks = n_chunks, .owner = member, .left = t->n_active};
    c.piece = t->shares[member].next++;
    /* Pieces behind `piece` are done, with or without this member; numbers wrap. */
    unsigned now;
    while ((int32_t)((now = atomic_load(&t->piece)) - c.piece) < 0)
        wait_change(&t->piece, now, &t->piece_sleepers, SPINS_BETWEEN_PIECES);
    if (now != c.piece) c.left = 0;
    /* A piece without chunks is done by whoever comes first: done stays 0, so the exchange decides.
     */
    unsigned long long fresh = (unsigned long long)c.piece << 32;
    if (n_chunks == 0 && c.left > 0 &&
        atomic_compare_exchange_strong(&t->shares[0].taken, &fresh, fresh + 1))
        finish_piece(t, c.piece);
    return c;
}

/* Takes one chunk of a share of `size` chunks: its index, or size when there is none left. */
static uint32_t take(atomic_ullong *taken, uint32_t piece, uint32_t size) {
    unsigned long long word = atomic_load_explicit(taken, memory_order_relaxed);
    while (word >> 32 == piece && (uint32_t)word < size)
        if (atomic_compare_exchange_weak_explicit(taken, &word, word + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (uint32_t)word;
    return size;
}

/* What a member has done it says once, when there is nothing left to take: a word of all members,
 * written after each chunk, would be fetched from another core each time. */
bool team_next(team_cursor *c, uint32_t *chunk) {
    team *t = c->team;
    uint64_t n = (uint64_t)t->n_active;
    while (c->left > 0) {
        uint64_t owner = (uint64_t)c->owner;
        uint32_t begin = (uint32_t)(c->n_chunks * owner / n);
        uint32_t size = (uint32_t)(c->n_chunks * (owner + 1) / n) - begin;
        uint32_t i = take(&t->shares[owner].taken, c->piece, size);
        if (i < size) {
            *chunk = begin + i;
            c->end = begin + size;
            c->taken++;
            return true;
        }
        c->owner = c->owner + 1 == t->n_active ? 0 : c->owner + 1;
        c->left--;
    }
    if (c->taken > 0 && atomic_fetch_add(&t->done, c->taken) + c->taken == c->n_chunks)
        finish_piece(t, c->piece);
    c->taken = 0;
    return false;
}
