/* base/team: see team.h.
 *
 * A run is published by advancing `generation`; a member that has spun in vain sleeps on it with a
 * futex. It enters through `gate`, which the caller closes at the end of a run of pieces; then the
 * caller waits for those inside only.
 *
 * Pieces are numbered on and on. How much of a share is taken stands in one word with the piece's
 * number, so that a member late by a piece can take nothing of the next one by mistake. Who
 * finishes the last chunk of a piece prepares the words for the next and then advances `piece`, on
 * which the others wait: that store hands over all that was written in the piece.
 */
#include "base/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

#define SPINS_BETWEEN_RUNS 20000
#define SPINS_BETWEEN_PIECES 20000
#define GATE_OPEN 0x80000000u
#define GATE_COUNT (GATE_OPEN - 1)

/* One member's share of the current piece: the piece's number << 32 | chunks taken. */
typedef struct {
    _Alignas(64) atomic_ullong taken;
    _Alignas(64) uint32_t next; /* the piece that this member comes to next; its own */
} team_share;

struct team {
    int n;
    team_share *shares; /* [n] */
    pthread_t *threads; /* [n - 1] */
    team_fn fn;         /* of the run behind the open gate, as the next two */
    void *context;
    uint32_t first_piece;
    _Alignas(64) atomic_uint generation;
    atomic_uint sleepers; /* members asleep on generation */
    atomic_bool stop;
    _Alignas(64) atomic_ullong gate; /* run << 32 | GATE_OPEN | members that entered it */
    uint32_t n_runs;                 /* the caller's */
    _Alignas(64) atomic_uint left;   /* members that have left it again */
    atomic_uint left_sleepers;
    _Alignas(64) atomic_uint done; /* chunks of the current piece that are done */
    _Alignas(64) atomic_uint piece;
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

/* True when the gate of a run other than *last was open: then the member is inside until it adds to
 * `left`, and *last is that run. A member may come before `generation` says so, hence once more
 * after. */
static bool enter(team *t, uint32_t *last) {
    unsigned long long gate = atomic_load(&t->gate);
    while ((gate & GATE_OPEN) && (uint32_t)(gate >> 32) != *last)
        if (atomic_compare_exchange_weak(&t->gate, &gate, gate + 1)) {
            *last = (uint32_t)(gate >> 32);
            return true;
        }
    return false;
}

static void *member_main(void *p) {
    member_arg arg = *(member_arg *)p;
    mem_free(p);
    team *t = arg.team;
    unsigned seen = 0;
    uint32_t last = 0;
    for (;;) {
        wait_change(&t->generation, seen, &t->sleepers, SPINS_BETWEEN_RUNS);
        seen = atomic_load(&t->generation);
        if (atomic_load(&t->stop)) return NULL;
        if (!enter(t, &last)) continue;
        t->shares[arg.member].next = t->first_piece;
        t->fn(t->context, arg.member, t->n);
        advance(&t->left, &t->left_sleepers);
    }
}

ridge_status team_create(team **out, int n_threads, ridge_error *err) {
    if (n_threads < 1 || n_threads > 1024)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "%d threads: expected 1 to 1024", n_threads);
    team *t = mem_aligned(64, sizeof *t);
    if (t == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "thread team");
    *t = (team){.n = 1};
    t->threads = mem_zalloc((size_t)n_threads, sizeof *t->threads);
    if (t->threads == NULL) goto nomem;
    t->shares = mem_aligned(64, (size_t)n_threads * sizeof *t->shares);
    if (t->shares == NULL) goto nomem;
    memset(t->shares, 0, (size_t)n_threads * sizeof *t->shares);
    /* Members read t->n only in a run, and every run comes after the last of them was started. */
    for (; t->n < n_threads; t->n++) {
        member_arg *arg = mem_alloc(sizeof *arg);
        if (arg == NULL) goto nomem;
        *arg = (member_arg){.team = t, .member = t->n};
        if (pthread_create(&t->threads[t->n - 1], NULL, member_main, arg) != 0) {
            mem_free(arg);
            team_destroy(t);
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot start thread %d of %d", t->n, n_threads);
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
    advance(&t->generation, &t->sleepers);
    for (int i = 0; i < t->n - 1; i++) pthread_join(t->threads[i], NULL);
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

static void run(team *t, team_fn fn, void *context, bool all) {
    uint32_t first = atomic_load(&t->piece);
    t->fn = fn;
    t->context = context;
    t->first_piece = t->shares[0].next = first;
    if (t->n > 1) {
        atomic_store(&t->left, 0);
        if (++t->n_runs == 0) t->n_runs = 1; /* 0: none yet */
        atomic_store(&t->gate, (unsigned long long)t->n_runs << 32 | GATE_OPEN);
        advance(&t->generation, &t->sleepers);
    }
    fn(context, 0, t->n);
    wait_until(&t->piece, t->shares[0].next, &t->piece_sleepers, SPINS_BETWEEN_PIECES);
    if (t->n == 1) return;
    unsigned inside = (unsigned)t->n - 1;
    if (!all) inside = atomic_fetch_and(&t->gate, ~(unsigned long long)GATE_OPEN) & GATE_COUNT;
    wait_until(&t->left, inside, &t->left_sleepers, SPINS_BETWEEN_PIECES);
    atomic_store(&t->gate, 0);
}

void team_run(team *t, team_fn fn, void *context) {
    run(t, fn, context, true);
}

void team_run_pieces(team *t, team_fn fn, void *context) {
    run(t, fn, context, false);
}

/* The last chunk of the current piece is done: nobody can hold one or take one until `piece`
 * advances. */
static void finish_piece(team *t, uint32_t piece) {
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    for (int i = 0; i < t->n; i++)
        atomic_store_explicit(&t->shares[i].taken, (unsigned long long)(piece + 1) << 32,
                              memory_order_relaxed);
    advance(&t->piece, &t->piece_sleepers);
}

team_cursor team_work(team *t, int member, uint32_t n_chunks) {
    team_cursor c = {.team = t, .n_chunks = n_chunks, .owner = member, .left = t->n};
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

bool team_next(team_cursor *c, uint32_t *chunk) {
    team *t = c->team;
    uint64_t n = (uint64_t)t->n;
    if (c->holding && atomic_fetch_add(&t->done, 1) + 1 == c->n_chunks) {
        c->left = 0;
        finish_piece(t, c->piece);
    }
    c->holding = false;
    while (c->left > 0) {
        uint64_t owner = (uint64_t)c->owner;
        uint32_t begin = (uint32_t)(c->n_chunks * owner / n);
        uint32_t size = (uint32_t)(c->n_chunks * (owner + 1) / n) - begin;
        uint32_t i = take(&t->shares[owner].taken, c->piece, size);
        if (i < size) {
            *chunk = begin + i;
            c->holding = true;
            return true;
        }
        c->owner = c->owner + 1 == t->n ? 0 : c->owner + 1;
        c->left--;
    }
    return false;
}

/* CPUs that a cgroup v2 quota grants, rounded up; 0 if unlimited. */
static int cgroup_cpus(void) {
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f == NULL) return 0;
    long quota, period;
    int n = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    return n == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int team_usable_cpus(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cgroup_cpus();
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}
