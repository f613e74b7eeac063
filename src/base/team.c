/* base/team: see team.h.
 *
 * A run is published by advancing `generation`; a member that has spun in vain sleeps on it with a
 * futex. The barrier counts arrivals in one word and releases by advancing `phase`, on which late
 * members spin and then sleep, so that a preempted member costs the others no processor time.
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
#define SPINS_AT_BARRIER 20000

/* One member's part in sharing work: how far its share has been taken, in two slots. While slot i
 * serves one piece of work its owner clears the other for the next: nobody can still be in the
 * piece before, a barrier lies between. */
typedef struct {
    _Alignas(64) atomic_uint taken[2];
    unsigned round; /* pieces of work begun by this member */
} team_share;

struct team {
    int n;
    team_share *shares; /* [n] */
    pthread_t *threads; /* [n - 1] */
    team_fn fn;
    void *context;
    _Alignas(64) atomic_uint generation;
    atomic_uint sleepers; /* members asleep on generation */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint phase;
    atomic_uint phase_sleepers;
    atomic_bool stop;
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

void team_barrier(team *t) {
    if (t->n == 1) return;
    unsigned phase = atomic_load_explicit(&t->phase, memory_order_acquire);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == (unsigned)t->n) {
        atomic_store(&t->arrived, 0);
        advance(&t->phase, &t->phase_sleepers);
    } else {
        wait_change(&t->phase, phase, &t->phase_sleepers, SPINS_AT_BARRIER);
    }
}

static void *member_main(void *p) {
    member_arg arg = *(member_arg *)p;
    mem_free(p);
    team *t = arg.team;
    unsigned seen = 0;
    for (;;) {
        wait_change(&t->generation, seen, &t->sleepers, SPINS_BETWEEN_RUNS);
        seen++;
        if (atomic_load(&t->stop)) return NULL;
        t->fn(t->context, arg.member, t->n);
        team_barrier(t);
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

void team_run(team *t, team_fn fn, void *context) {
    t->fn = fn;
    t->context = context;
    if (t->n > 1) advance(&t->generation, &t->sleepers);
    fn(context, 0, t->n);
    team_barrier(t);
}

team_cursor team_work(team *t, int member, uint32_t n_chunks) {
    team_share *own = &t->shares[member];
    unsigned slot = own->round++ & 1;
    atomic_store_explicit(&own->taken[slot ^ 1], 0, memory_order_relaxed);
    return (team_cursor){
        .team = t, .slot = slot, .n_chunks = n_chunks, .owner = member, .left = t->n};
}

bool team_next(team_cursor *c, uint32_t *chunk) {
    unsigned n = (unsigned)c->team->n;
    while (c->left > 0) {
        uint64_t owner = (uint64_t)c->owner;
        uint32_t begin = (uint32_t)(c->n_chunks * owner / n);
        uint32_t end = (uint32_t)(c->n_chunks * (owner + 1) / n);
        atomic_uint *taken = &c->team->shares[owner].taken[c->slot];
        /* The look before the increment keeps the counter from wrapping. */
        if (atomic_load_explicit(taken, memory_order_relaxed) < end - begin) {
            uint32_t i = atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
            if (i < end - begin) {
                *chunk = begin + i;
                return true;
            }
        }
        c->owner = c->owner + 1 == c->team->n ? 0 : c->owner + 1;
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
