/* load/plan: what is asked and when (traffic/traffic.h), all of it before the run: nothing is drawn
 * or read while time is measured. */
#ifndef RIDGE_LOAD_PLAN_H
#define RIDGE_LOAD_PLAN_H

#include "load/load.h"

typedef struct {
    int64_t due_us;   /* after the start; in a closed loop 0 */
    uint32_t n_input; /* its own tokens, after the prefix */
    uint32_t n_output;
    uint32_t prefix; /* which of the shared beginnings */
    size_t first_block;
    uint32_t n_blocks; /* the trace's names of its blocks */
} planned_request;

typedef struct {
    planned_request *requests; /* [n], in order of due_us */
    size_t n;
    int64_t *blocks; /* [n_blocks] */
    size_t n_blocks;
    size_t requests_capacity, blocks_capacity; /* private */
} load_plan;

/* *out is to be freed in any case. */
ridge_status load_plan_make(load_plan *out, const load_params *p, ridge_error *err) RIDGE_CHECKED;
void load_plan_free(load_plan *plan);

/* load/prompt.c: the body of request i, appended to out. A prompt of n tokens is n common English
 * words, one token each in most vocabularies, or n ids of the middle half of the vocabulary, where
 * there are no special tokens. */
void load_body_write(buf *out, const load_params *p, const char *model, const load_plan *plan,
                     size_t i);

#endif
