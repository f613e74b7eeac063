/* sample/row: one row of logits while a token is drawn from it: what ranks first, how much it
 * weighs, and where a prefix of the ranking ends.
 *
 * Tokens rank by (logit descending, id ascending), a strict total order. top_k, top_p and min_p
 * each keep a prefix of it, so what they keep together is one prefix, a `row_cut`. It is found
 * without sorting the vocabulary: the logits from some limit on are listed, the limit goes down
 * until they are enough, and the end is sought among the last that came. Only spans whose largest
 * logit is above the limit are looked into.
 *
 * The caller's logits are not copied: a span is, when a logit in it is to change. Pure; scratch of
 * one thread. Weights are of temperature 1 / (c ln 2) and relative to the largest logit.
 */
#ifndef RIDGE_SAMPLE_ROW_H
#define RIDGE_SAMPLE_ROW_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "sample/spans.h"

/* So many candidates are ranked one by one; more are narrowed down by passes first. */
#define ROW_FEW 1024

typedef struct {
    float x;
    int32_t id;
} row_ranked;

/* All logits from `limit` on; when it is lowered those that are new follow, in order of ids. */
typedef struct {
    float limit;
    size_t n;
    float *x;    /* [n], and SPAN times -inf */
    int32_t *id; /* [n] */
} row_list;

typedef struct {
    const span_passes *passes;
    int32_t n_vocab;
    uint32_t n_spans;
    const float **spans; /* [n_spans] -> [SPAN], the last one filled up with -inf */
    float *own;          /* [n_spans][SPAN] those that differ from the caller's */
    float *max;          /* [n_spans, up to a multiple of SPAN] the largest of each span */
    float *sum, sum_c;   /* [n_spans] weights relative to that, of this c; 0: not summed */
    float largest;       /* of all; -inf: no candidate */
    bool settled;        /* what is not own is */
    row_ranked *heap;    /* [max(n_spans, ROW_FEW)] */
    row_list list;
} logit_row;

/* Kept are the logits above limit, and those equal to it up to id `last`. */
typedef struct {
    float limit;
    int32_t last;
} row_cut;

#define ROW_ALL ((row_cut){-FLT_MAX, INT32_MAX})

ridge_status row_create(logit_row *r, int32_t n_vocab, ridge_error *err) RIDGE_CHECKED;
void row_destroy(logit_row *r); /* zeroed allowed */

/* The row is these logits [n_vocab] from now on, NaN as -inf, +inf as FLT_MAX. c: that of a
 * row_weigh to come, whose work is then done when a span is first at hand; 0: none will. */
void row_set(logit_row *r, const float *logits, float c);
/* Where to change a logit. */
float *row_at(logit_row *r, int32_t id);
/* Before anything below is asked: after a row is set, and again after changes. */
void row_settle(logit_row *r);

/* The first of the ranking; -1: no candidate. */
int32_t row_best(const logit_row *r);
/* Weight of all; mass [n_spans]: of each span. */
double row_weigh(const logit_row *r, float c, double *mass);
/* The same of what a cut keeps. */
double row_weigh_cut(logit_row *r, float c, row_cut cut, double *mass);
/* The shortest prefix of the ranking that has `goal` tokens, or (by_weight) weighs so much; at
 * least one token; all when there isn't as much. */
row_cut row_find_cut(logit_row *r, double goal, bool by_weight, float c);
/* The smaller of what two cuts keep. */
row_cut row_cut_min(row_cut a, row_cut b);
bool row_keeps(row_cut cut, float x, int32_t id);
/* The first n of the ranking (n <= ROW_FEW), in order; returns how many. */
size_t row_top(logit_row *r, row_ranked *out, size_t n);
/* The token where the running sum of kept weights, in id order, passes threshold; mass as from the
 * weighing of the same cut. -1: never. */
int32_t row_pick(const logit_row *r, float c, row_cut cut, const double *mass, double threshold);

#endif
