/* tests/support/sched_world: a scheduler under a virtual clock: a machine whose steps take exactly
 * what a known cost says, and requests that end after so many tokens. */
#ifndef RIDGE_TESTS_SCHED_WORLD_H
#define RIDGE_TESTS_SCHED_WORLD_H

#include "sched/scheduler.h"

#define WORLD_MAX_SEQUENCES 512

typedef struct {
    scheduler *s;
    cost_shape shape;
    cost_rates truth;
    int32_t prompt[8192]; /* of who arrives next; zeros at first */
    double spread;        /* steps take up to so much more or less, as a part */
    uint32_t seed;        /* of that */
    bool blind;           /* nobody looks what is cached when a request comes */
    sequence sequences[WORLD_MAX_SEQUENCES];
    uint32_t n_output[WORLD_MAX_SEQUENCES]; /* each ends after so many tokens */
    double first_s[WORLD_MAX_SEQUENCES], ended_s[WORLD_MAX_SEQUENCES]; /* 0: not yet */
    uint32_t ended_step[WORLD_MAX_SEQUENCES];
    uint32_t n, n_ended, n_steps, n_prompt_tokens; /* n_prompt_tokens: of the last step */
    double now_s;
    bool decodes;   /* did a stream decode in the last step? */
    double least_s; /* what it would have taken with one token of each sequence */
} world;

/* Blocks of 16 tokens; tpot_s 0: no target. */
world *world_make(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s);
/* The same with a prefix cache. */
world *world_make_cached(uint32_t seqs, uint32_t budget, uint32_t n_blocks, double tpot_s);
void world_end(world *w);
/* Its index, which is its id. */
uint32_t world_arrive(world *w, uint32_t n_prompt, uint32_t n_output, int priority);
/* One step of the engine; its seconds, or 0: there is nothing to do. */
double world_step(world *w);

#endif
