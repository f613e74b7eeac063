/* sample/: what sampler.c and its tests share with counts.c. */
#ifndef RIDGE_SAMPLE_SAMPLER_INTERNAL_H
#define RIDGE_SAMPLE_SAMPLER_INTERNAL_H

#include "sample/row.h"
#include "sample/sampler.h"

/* Applies repetition, presence and frequency penalties; row_settle is left to the caller. */
void sampler_counts_apply(const sampler_counts *c, const sampler_params *p, logit_row *row);

/* For tests: after a sampler_draw with temperature > 0, the ids among which it chose, in id order;
 * returns how many. Its logits must be there still. */
size_t sampler_last_kept(const sampler *s, int32_t *ids /* [n_vocab] */);

#endif
