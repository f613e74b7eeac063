/* base/team: a persistent team of threads that go through pieces of work together.
 *
 * The caller is member 0; the others spin briefly for the next run, then sleep. A run is a sequence
 * of pieces; a piece is done when all its chunks are, whoever did them. So a member that the system
 * keeps from running holds nobody up, unless it holds a chunk: the others do its share and go on,
 * and it finds its way when it is back. Only the thread that made the team may start runs; one run
 * at a time.
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
/* Member i runs on processor cpus[i] ([team_size]) alone from now on; before the first run. The
 * caller is on cpus[0] while a run lasts and as free as before in between, so that threads which it
 * starts then inherit nothing of it. */
ridge_status team_pin(team *t, const int *cpus, ridge_error *err) RIDGE_CHECKED;
void team_destroy(team *t); /* NULL allowed */
int team_size(const team *t);
/* Runs fn on every member and returns when all have returned. */
void team_run(team *t, team_fn fn, void *context);
/* The same for an fn that does nothing but pieces of work: members that come too late are left out.
 */
void team_run_pieces(team *t, team_fn fn, void *context);
/* The same on members [0, n_members) alone; the others sleep on. 1 <= n_members <= team_size. */
void team_run_first(team *t, int n_members, team_fn fn, void *context);

/* Chunks [0, n_chunks) of one piece of work, each handed to one member: those of a member's own
 * share first (so that the same memory meets the same core run after run), then what others have
 * not begun. Every member goes through the same pieces in the same order. team_work waits until the
 * piece before is done, and then sees all that was written in it; the run's end waits for the last.
 *
 *     team_cursor work = team_work(t, member, n_chunks);
 *     for (uint32_t chunk; team_next(&work, &chunk);) ...     (to its end: no break)
 */
typedef struct {
    team *team;
    uint32_t piece, n_chunks, end; /* the share that is being taken ends there */
    int owner, left;               /* whose share is being taken; shares not yet seen empty */
    uint32_t taken;                /* chunks, not said to be done before none is left */
} team_cursor;

team_cursor team_work(team *t, int member, uint32_t n_chunks);
bool team_next(team_cursor *c, uint32_t *chunk);

#endif
