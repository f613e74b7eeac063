/* sched/: what scheduler.c, static.c and outlook.c share. */
#ifndef RIDGE_SCHED_SCHEDULER_INTERNAL_H
#define RIDGE_SCHED_SCHEDULER_INTERNAL_H

#include "sched/scheduler.h"

/* Sequences in the served order, linked through themselves. */
typedef struct {
    sequence *first, *last;
    uint32_t n;
} queue;

struct scheduler {
    sched_params params;
    kv_cache *cache;
    uint32_t full_group; /* one of the cache's: all of those hold as many blocks of a sequence */
    bool windows;        /* has the cache other groups? */
    queue waiting, running;
    uint32_t n_padding; /* of the running ones (static.c) */
    sequence **planned; /* [max_num_seqs] */
    uint32_t n_planned;
    sched_prefix_stats prefix;
    cost_model cost;
    pace pace;
    bool weighs;                         /* a cost is set: steps are weighed */
    cost_work work;                      /* of what is planned */
    bool prompts;                        /* are any in it? */
    bool short_of_blocks;                /* somebody waits for them */
    double steps_per_answer;             /* recent means; backlog.h */
    double mean_computed, mean_expected; /* tokens of a prompt */
};

/* scheduler.c: lets the first of the waiting ones in, without a look at what is cached; false:
 * there are not enough blocks. */
bool sched_let_in(scheduler *s, sequence *q);

/* static.c: schedules the running ones' tokens of a static batch, or a new batch. */
void static_plan(scheduler *s, uint32_t *budget);
/* The room that a sequence of a static batch is given, in tokens. */
uint32_t static_room(const scheduler *s);

/* outlook.c: a plan is made of the running ones: what it will do. */
void outlook_init(scheduler *s); /* without a cost (sched_set_cost) */
void outlook_begin(scheduler *s);
void outlook_weigh(scheduler *s, const sequence *q);
void outlook_note_answer(scheduler *s, const sequence *q);
void outlook_note_prompt(scheduler *s, const sequence *q); /* q->n_cached is known */

#endif
