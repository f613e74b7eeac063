/* server/pool: a few threads for what would hold up the event loop: parsing, rendering, tokenizing.
 *
 * A job's `work` runs on a worker; its `done` runs on the thread that calls pool_take, which is
 * the event loop whenever pool_fd is readable. Jobs start in the order of their submission, but
 * heavy ones never take the last worker (of several): what is small is not held up for long.
 */
#ifndef RIDGE_SERVER_POOL_H
#define RIDGE_SERVER_POOL_H

#include <stdbool.h>

#include "base/error.h"

typedef struct pool pool;
typedef struct pool_job pool_job;

struct pool_job { /* the first member of the owner's struct */
    void (*work)(pool_job *job);
    void (*done)(pool_job *job); /* owns the job from here on */
    bool heavy;                  /* may take seconds */
    pool_job *next;              /* private */
};

ridge_status pool_create(pool **out, int n_threads, ridge_error *err) RIDGE_CHECKED;
/* Waits for the running jobs; those not begun are done without having worked. NULL allowed. */
void pool_destroy(pool *p);
int pool_fd(const pool *p);
void pool_submit(pool *p, pool_job *job);
void pool_take(pool *p);

#endif
