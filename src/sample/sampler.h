/* sample: logits to a token; pure and seeded. No I/O, no clock, no device.
 *
 * Order: penalties, logit_bias, temperature, top_k, top_p (renormalised), min_p; ties to the lower
 * id; one uniform draw per absolute position (Philox4x32-10 keyed by seed, choice index and
 * position; Salmon et al., SC'11), inverse CDF in id order. temperature 0: argmax after penalties
 * and bias. Reported log-probabilities are of the raw logits. min_p is relative to the most likely
 * token after temperature.
 *
 * Defined outcomes for hostile logits: NaN counts as -inf and +inf as the largest float; when every
 * token is at -inf the lowest id that is not banned is drawn. A log-probability is never positive,
 * NaN or infinite: its floor is SAMPLER_LOGPROB_FLOOR.
 */
#ifndef RIDGE_SAMPLE_SAMPLER_H
#define RIDGE_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAMPLER_MAX_LOGPROBS 20
#define SAMPLER_LOGPROB_FLOOR (-9999.0f)

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
    const int32_t *banned; /* [n_banned] ids never drawn (end tokens before min_tokens) */
    size_t n_banned;
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
    int32_t rank;  /* of sampler_describe: its place in the order of `top`, from 1; else 0 */
    int n_top;
    sampler_logprob top[SAMPLER_MAX_LOGPROBS]; /* most likely first */
} sampler_result;

typedef struct sampler sampler; /* scratch for one thread; a struct per engine */

ridge_status sampler_create(sampler **out, int32_t n_vocab, ridge_error *err) RIDGE_CHECKED;
void sampler_destroy(sampler *s);
/* The instructions to use, by the name of the device's path, which the machine must have; the
 * portable ones until then. All give the same bits. */
void sampler_use_isa(sampler *s, const char *isa);

/* Per-sequence token counts for the penalties; a request without penalties needs none. Room for
 * max_ids different ids (prompt and output) is made at once: adding never fails. */
typedef struct sampler_counts sampler_counts;
bool sampler_needs_counts(const sampler_params *p);
ridge_status sampler_counts_create(sampler_counts **out, size_t max_ids,
                                   ridge_error *err) RIDGE_CHECKED;
/* True: the id had not been seen. */
bool sampler_counts_add(sampler_counts *c, int32_t id, bool is_output);
/* Takes an output back; the last one that was added and not yet undone. was_new: what add said. */
void sampler_counts_undo(sampler_counts *c, int32_t id, bool was_new);
void sampler_counts_destroy(sampler_counts *c);

/* logits [n_vocab] are not changed; counts may be NULL. position: the absolute position of the
 * token being drawn. */
void sampler_draw(sampler *s, const sampler_params *p, const sampler_counts *counts,
                  const float *logits, uint64_t position, sampler_result *out);
/* What `id` would report had it been drawn: its log-probability and the n_logprobs alternatives
 * (prompt log-probabilities). */
void sampler_describe(sampler *s, const float *logits, int32_t id, int n_logprobs,
                      sampler_result *out);
/* log sum exp of logits [n], the denominator of every log-probability: within 1e-6 of the exact
 * one. Weights are summed in float within spans of 256, in double over them, in order of index.
 * isa: as sampler_use_isa takes it. */
double sampler_logsumexp(const float *logits, size_t n, const char *isa);
/* logit - logsumexp as it is reported: finite and at most 0. */
float sampler_logprob_of(float logit, double logsumexp);

#endif
