/* sample: logits to a token; pure and seeded. No I/O, no clock, no device.
 *
 * Order: penalties, logit_bias, temperature, top_k, top_p (renormalised), min_p; ties to the lower
 * id; one uniform draw per absolute position (Philox4x32-10 keyed by seed, choice index and
 * position; Salmon et al., SC'11), inverse CDF in id order. temperature 0: argmax after penalties
 * and bias. Reported log-probabilities are of the raw logits.
 */
#ifndef RIDGE_SAMPLE_SAMPLER_H
#define RIDGE_SAMPLE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAMPLER_MAX_LOGPROBS 20

typedef struct {
    int32_t id;
    float bias;
} sampler_bias;

typedef struct {
    float temperature;        /* 0: greedy */
    int32_t top_k;            /* 0 or -1: off */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 1: off; over prompt and output */
    float presence_penalty;   /* over output only */
    float frequency_penalty;  /* over output only */
    uint64_t seed;
    uint32_t choice;          /* index among n choices */
    const sampler_bias *bias; /* [n_bias], owned by the request */
    size_t n_bias;
    int n_logprobs; /* -1: none; 0: the token's own; up to SAMPLER_MAX_LOGPROBS more */
} sampler_params;

sampler_params sampler_params_default(void); /* greedy, seed 0 */
/* Ranges, NaN, ids against n_vocab; the message names the parameter. */
ridge_status sampler_params_check(const sampler_params *p, int32_t n_vocab,
                                  ridge_error *err) RIDGE_CHECKED;

typedef struct {
    int32_t id;
    float logprob;
} sampler_logprob;

typedef struct {
    int32_t id;
    float logprob; /* when n_logprobs >= 0 */
    int n_top;
    sampler_logprob top[SAMPLER_MAX_LOGPROBS]; /* most likely first */
} sampler_result;

typedef struct sampler sampler; /* scratch for one thread; a struct per engine */

ridge_status sampler_create(sampler **out, int32_t n_vocab, ridge_error *err) RIDGE_CHECKED;
void sampler_destroy(sampler *s);

/* Per-sequence token counts for the penalties; NULL-safe when no penalty is on. */
typedef struct sampler_counts sampler_counts;
ridge_status sampler_counts_create(sampler_counts **out, int32_t n_vocab,
                                   ridge_error *err) RIDGE_CHECKED;
void sampler_counts_add(sampler_counts *c, int32_t id, int is_output);
void sampler_counts_destroy(sampler_counts *c);

/* logits [n_vocab] are not changed. position: the absolute position of the token being drawn. */
void sampler_draw(sampler *s, const sampler_params *p, const sampler_counts *counts,
                  const float *logits, uint64_t position, sampler_result *out);
/* log sum exp of logits [n] in double, in index order: the denominator of every log-probability. */
double sampler_logsumexp(const float *logits, size_t n);

#endif
