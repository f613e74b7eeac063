/* base/team: a persistent team of threads that run one function together.
 *
 * The caller is member 0; the others spin briefly for the next run, then sleep. Inside a run the
 * members meet at team_barrier and share work by team_next, a counter of fixed chunks. Only the
 * thread that made the team may call team_run; one run at a time.
 */
#ifndef RIDGE_BASE_TEAM_H
#define RIDGE_BASE_TEAM_H

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

/* How many processors this process may use: affinity mask and cgroup quota; at least 1. */
int team_usable_cpus(void);

#endif
