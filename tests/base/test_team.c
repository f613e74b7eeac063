/* The thread team: pieces in order, every chunk once, by whatever members a run has; pinning. */
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/team.h"

#define N_PIECES 300
#define MAX_CHUNKS 7
#define MAX_MEMBERS 8

typedef struct {
    team *team;
    uint32_t n_pieces;
    uint32_t values[N_PIECES][MAX_CHUNKS]; /* plain: the pieces alone order them */
    atomic_int faults, members;
    int n_members;     /* that the run has */
    uint32_t sleeping; /* bit m: member m sleeps now and then */
} crank;

static void fault_unless(crank *c, bool ok) {
    if (!ok) atomic_fetch_add(&c->faults, 1);
}

static uint32_t chunks_of(uint32_t piece) {
    return piece % (MAX_CHUNKS + 1);
}

/* Where the share that a chunk is of ends, as evenly as n shares can be. */
static uint32_t share_end(uint32_t chunk, uint32_t n_chunks, uint32_t n) {
    uint32_t share = 1;
    while (n_chunks * share / n <= chunk) share++;
    return n_chunks * share / n;
}

/* Piece p has p % 8 chunks (none, at times); each writes what it finds in the piece before, plus
 * one. */
static void turn(void *context, int member, int n) {
    crank *c = context;
    atomic_fetch_add(&c->members, 1);
    fault_unless(c, n == c->n_members && member < n);
    bool sleeps = c->sleeping >> member & 1;
    for (uint32_t p = 0; p < c->n_pieces; p++) {
        if (sleeps && p % 61 == 0) usleep(200);
        team_cursor work = team_work(c->team, member, chunks_of(p));
        for (uint32_t chunk; team_next(&work, &chunk);) {
            for (uint32_t i = 0; p > 0 && i < chunks_of(p - 1); i++)
                fault_unless(c, c->values[p - 1][i] == p);
            fault_unless(c, work.end == share_end(chunk, chunks_of(p), (uint32_t)n));
            fault_unless(c, c->values[p][chunk] == 0); /* else it was handed out twice */
            c->values[p][chunk] = p + 1;
            if (sleeps && p % 97 == 0) usleep(100);
        }
    }
}

/* One run; afterwards each chunk was done and nothing went wrong. */
static void check_run(crank *c, int n_members, bool all) {
    c->n_members = n_members;
    memset(c->values, 0, sizeof c->values);
    atomic_store(&c->members, 0);
    if (all)
        team_run(c->team, turn, c);
    else
        team_run_first(c->team, n_members, turn, c);
    if (all)
        assert_int_equal(c->members, n_members);
    else
        assert_in_range(c->members, 1, n_members);
    for (uint32_t p = 0; p < c->n_pieces; p++)
        for (uint32_t k = 0; k < chunks_of(p); k++) assert_int_equal(c->values[p][k], p + 1);
    assert_int_equal(c->faults, 0);
}

static void test_pieces(void **state) {
    (void)state;
    static crank c = {.n_pieces = N_PIECES};
    for (int n = 1; n <= 5; n++) {
        assert_int_equal(team_create(&c.team, n, NULL), RIDGE_OK);
        for (int i = 0; i < 40; i++) check_run(&c, n, i % 2 == 0);
        team_destroy(c.team);
    }
}

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Teams of any size whose runs have any number of members and pieces, some of which sleep, with
 * pauses in which all fall asleep. */
static void test_random_runs(void **state) {
    (void)state;
    static crank c;
    for (int round = 0; round < 12; round++) {
        int n = 1 + (int)random_below(MAX_MEMBERS);
        assert_int_equal(team_create(&c.team, n, NULL), RIDGE_OK);
        for (int i = 0; i < 40; i++) {
            bool all = random_below(4) == 0;
            c.n_pieces = random_below(6) == 0 ? 0 : 1 + random_below(N_PIECES);
            c.sleeping = random_below(3) == 0 ? random_below(1u << MAX_MEMBERS) : 0;
            check_run(&c, all ? n : 1 + (int)random_below((uint32_t)n), all);
            if (random_below(8) == 0) usleep(3000);
        }
        team_destroy(c.team);
    }
}

typedef struct {
    team *team;
    double cpu_s[MAX_MEMBERS];
} thrift;

static void measure_cpu(void *context, int member, int n) {
    thrift *t = context;
    (void)n;
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    t->cpu_s[member] = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void one_piece(void *context, int member, int n) {
    thrift *t = context;
    (void)n;
    team_cursor work = team_work(t->team, member, 8);
    for (uint32_t chunk; team_next(&work, &chunk);) {
    }
}

/* Members without a part in the runs stay asleep: they use no time of a processor. */
static void test_others_sleep_on(void **state) {
    (void)state;
    thrift t = {0};
    double before[4];
    assert_int_equal(team_create(&t.team, 4, NULL), RIDGE_OK);
    team_run(t.team, measure_cpu, &t);
    usleep(20000); /* by now they have given up spinning */
    team_run(t.team, measure_cpu, &t);
    usleep(20000);
    memcpy(before, t.cpu_s, sizeof before);
    double end = clock_now_s() + 0.2;
    int n_runs = 0;
    for (; clock_now_s() < end; n_runs++) team_run_first(t.team, 1 + n_runs % 2, one_piece, &t);
    team_run(t.team, measure_cpu, &t);
    /* Two spells of spinning, each under 5 ms here, whatever the 200 ms of runs were. */
    for (int i = 2; i < 4; i++)
        if (t.cpu_s[i] - before[i] > 0.1)
            fail_msg("member %d used %g s while %d runs had no part for it", i,
                     t.cpu_s[i] - before[i], n_runs);
    team_destroy(t.team);
}

typedef struct {
    team *team;
    const int *cpus;
    atomic_int faults;
} pinned;

static void check_place(void *context, int member, int n) {
    pinned *p = context;
    (void)n;
    cpu_list allowed;
    if (cpus_allowed(&allowed, NULL) != RIDGE_OK || allowed.n != 1 ||
        allowed.ids[0] != p->cpus[member] || sched_getcpu() != p->cpus[member])
        atomic_fetch_add(&p->faults, 1);
    cpu_list_free(&allowed);
}

static void assert_free(const cpu_list *own) {
    cpu_list now;
    assert_int_equal(cpus_allowed(&now, NULL), RIDGE_OK);
    assert_int_equal(now.n, own->n);
    assert_memory_equal(now.ids, own->ids, (size_t)own->n * sizeof *own->ids);
    cpu_list_free(&now);
}

static void test_pinning(void **state) {
    (void)state;
    cpu_list own;
    assert_int_equal(cpus_allowed(&own, NULL), RIDGE_OK);
    int n = own.n < 4 ? own.n : 4, reversed[4];
    for (int i = 0; i < n; i++) reversed[i] = own.ids[n - 1 - i];
    pinned p = {.cpus = reversed};
    ridge_error err = {0};
    assert_int_equal(team_create(&p.team, n, NULL), RIDGE_OK);
    if (team_pin(p.team, reversed, &err) != RIDGE_OK) fail_msg("%s", err.text);
    for (int i = 0; i < 20; i++) {
        team_run(p.team, check_place, &p);
        assert_free(&own); /* the caller, between runs */
    }
    assert_int_equal(p.faults, 0);
    team_destroy(p.team);
    assert_free(&own);
    const int missing[] = {CPUS_MAX_ID, CPUS_MAX_ID, CPUS_MAX_ID, CPUS_MAX_ID};
    assert_int_equal(team_create(&p.team, n, NULL), RIDGE_OK);
    assert_int_equal(team_pin(p.team, missing, &err), n > 1 ? RIDGE_EINVAL : RIDGE_OK);
    team_destroy(p.team);
    cpu_list_free(&own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_random_runs),
        cmocka_unit_test(test_others_sleep_on),
        cmocka_unit_test(test_pinning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
