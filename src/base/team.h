/* base/team: a persistent team of threads that run one function together.
 *
 * The caller is member 0; the others spin briefly for the next run, then sleep. Inside a run the
 * members meet at team_barrier and share work by team_next, a counter of fixed chunks. Only the
 * thread that made the team may call team_run; one run at a time.
 */
#ifndef RIDGE_BASE_TEAM_H
#define RIDGE_BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct team team;
typedef void (*team_fn)(void *context, int member, int n_members);

/* n_threads >= 1; includes the caller. */
ridge_status team_create(team **out, int n_threads, ridge_error *err) RIDGE_CHECKED;
void team_destroy(team *t); /* NULL allowed */
int team_size(const team *t);
/* Runs fn on every member and returns when all have returned. */
void team_run(team *t, team_fn fn, void *context);
/* Called by every member of a run: returns when all have arrived; a full memory fence. */
void team_barrier(team *t);

/* Chunks [0, n_chunks) of one piece of work, each handed to one member: those of a member's own
 * share first (so that the same memory meets the same core run after run), then what others have
 * not begun. Within a run every member calls team_work equally often, with a team_barrier between
 * one piece of work and the next.
 *
 *     team_cursor work = team_work(t, member, n_chunks);
 *     for (uint32_t chunk; team_next(&work, &chunk);) ...
 */
typedef struct {
    team *team;
    unsigned slot;
    uint32_t n_chunks;
    int owner, left; /* whose share is being taken; shares not yet seen empty */
} team_cursor;

team_cursor team_work(team *t, int member, uint32_t n_chunks);
bool team_next(team_cursor *c, uint32_t *chunk);

/* How many processors this process may use: affinity mask and cgroup quota; at least 1. */
int team_usable_cpus(void);

#endif
