/* sample/sampler: see sampler.h. What ranks where, and how much it weighs, is row.h's. */
#include "sample/sampler.h"

#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "sample/philox.h"
#include "sample/sampler_internal.h"

struct sampler {
    logit_row row;
    double *mass; /* [n_spans] */
    row_cut cut;  /* of the last draw, */
    float c;      /* and its weights; 0: there was none to make */
};

sampler_params sampler_params_default(void) {
    return (sampler_params){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
}

static ridge_status check_range(const char *name, double x, double low, double high,
                                ridge_error *err) {
    if (x >= low && x <= high) return RIDGE_OK; /* false for NaN */
    error_where(err, name);
    return RIDGE_FAIL(err, RIDGE_EINVAL, "%s must be between %g and %g, found %g", name, low, high,
                      x);
}

ridge_status sampler_params_check(const sampler_params *p, int32_t n_vocab, ridge_error *err) {
    RIDGE_TRY(check_range("temperature", p->temperature, 0, 100, err));
    RIDGE_TRY(check_range("top_k", p->top_k, -1, INT32_MAX, err));
    RIDGE_TRY(check_range("top_p", p->top_p, 0, 1, err));
    RIDGE_TRY(check_range("min_p", p->min_p, 0, 1, err));
    RIDGE_TRY(check_range("repetition_penalty", p->repetition_penalty, 0.01, 100, err));
    RIDGE_TRY(check_range("presence_penalty", p->presence_penalty, -2, 2, err));
    RIDGE_TRY(check_range("frequency_penalty", p->frequency_penalty, -2, 2, err));
    RIDGE_TRY(check_range("logprobs", p->n_logprobs, -1, SAMPLER_MAX_LOGPROBS, err));
    for (size_t i = 0; i < p->n_bias; i++) {
        RIDGE_TRY(check_range("logit_bias", p->bias[i].bias, -100, 100, err));
        RIDGE_TRY(check_range("logit_bias id", p->bias[i].id, 0, n_vocab - 1.0, err));
    }
    for (size_t i = 0; i < p->n_banned; i++)
        RIDGE_TRY(check_range("banned id", p->banned[i], 0, n_vocab - 1.0, err));
    return RIDGE_OK;
}

ridge_status sampler_create(sampler **out, int32_t n_vocab, ridge_error *err) {
    if (n_vocab < 1) return RIDGE_FAIL(err, RIDGE_EINVAL, "n_vocab: %d", n_vocab);
    sampler *s = mem_zalloc(1, sizeof *s);
    if (s == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "sampler for %d tokens", n_vocab);
    ridge_status status = row_create(&s->row, n_vocab, err);
    if (status == RIDGE_OK) {
        s->mass = mem_zalloc(s->row.n_spans, sizeof *s->mass);
        if (s->mass == NULL)
            status = RIDGE_FAIL(err, RIDGE_ENOMEM, "sampler for %d tokens", n_vocab);
    }
    if (status != RIDGE_OK) {
        sampler_destroy(s);
        return status;
    }
    *out = s;
    return RIDGE_OK;
}

void sampler_destroy(sampler *s) {
    if (s == NULL) return;
    row_destroy(&s->row);
    mem_free(s->mass);
    mem_free(s);
}

void sampler_use_isa(sampler *s, const char *isa) {
    s->row.passes = span_passes_find(isa);
}

/* Log-probabilities, of the raw logits. */

static float tame(float x) {
    return isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
}

/* The spans' sums in the order of row_weigh, without a row: the same bits. */
double sampler_logsumexp(const float *logits, size_t n, const char *isa) {
    const span_passes *passes = span_passes_find(isa);
    float span[SPAN], largest = -INFINITY;
    double total = 0;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > largest) largest = logits[i];
    largest = tame(largest);
    if (largest == -INFINITY) return -INFINITY;
    for (size_t first = 0; first < n; first += SPAN) {
        for (size_t i = 0; i < SPAN; i++)
            span[i] = first + i < n ? tame(logits[first + i]) : -INFINITY;
        float max = passes->largest(span), scale = passes->weight(max, largest, SPAN_LOG2E);
        total += (double)scale * (double)passes->sum(span, max, SPAN_LOG2E);
    }
    return (double)largest + log(total);
}

float sampler_logprob_of(float logit, double logsumexp) {
    double x = (double)tame(logit) - logsumexp;
    if (!(x > (double)SAMPLER_LOGPROB_FLOOR)) return SAMPLER_LOGPROB_FLOOR;
    return x < 0 ? (float)x : 0.0f;
}

/* Of the row as it is set: before penalties and bias. The token itself is not known yet. */
static double report(sampler *s, int n_logprobs, sampler_result *out) {
    row_ranked top[SAMPLER_MAX_LOGPROBS];
    if (!(s->row.largest > -INFINITY)) return -INFINITY;
    double logsumexp = (double)s->row.largest + log(row_weigh(&s->row, SPAN_LOG2E, s->mass));
    out->n_top = (int)row_top(&s->row, top, (size_t)n_logprobs);
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = (sampler_logprob){top[i].id, sampler_logprob_of(top[i].x, logsumexp)};
    return logsumexp;
}

/* By (logit descending, id ascending), from 1. */
static int32_t rank_of(int32_t id, const float *logits, int32_t n_vocab) {
    float x = tame(logits[id]);
    int32_t rank = 1;
    for (int32_t i = 0; i < id; i++) rank += tame(logits[i]) >= x;
    for (int32_t i = id + 1; i < n_vocab; i++) rank += tame(logits[i]) > x;
    return rank;
}

void sampler_describe(sampler *s, const float *logits, int32_t id, int n_logprobs,
                      sampler_result *out) {
    *out = (sampler_result){.id = id, .rank = rank_of(id, logits, s->row.n_vocab)};
    row_set(&s->row, logits, SPAN_LOG2E);
    row_settle(&s->row);
    out->logprob = sampler_logprob_of(logits[id], report(s, n_logprobs, out));
}

/* The draw. */

/* Penalties, bias and bans. */
static void adjust(sampler *s, const sampler_params *p, const sampler_counts *counts) {
    if (counts != NULL && sampler_needs_counts(p)) sampler_counts_apply(counts, p, &s->row);
    for (size_t i = 0; i < p->n_bias; i++) *row_at(&s->row, p->bias[i].id) += p->bias[i].bias;
    for (size_t i = 0; i < p->n_banned; i++) *row_at(&s->row, p->banned[i]) = -INFINITY;
}

static int32_t lowest_not_banned(const sampler *s, const sampler_params *p) {
    for (int32_t id = 0; id < s->row.n_vocab; id++) {
        bool banned = false;
        for (size_t i = 0; i < p->n_banned; i++) banned |= p->banned[i] == id;
        if (!banned) return id;
    }
    return 0;
}

/* 2^(c x) = e^(x / temperature) */
static float scale_of(float temperature) {
    double c = 1.4426950408889634 / (double)temperature;
    return c < (double)FLT_MAX ? (float)c : FLT_MAX;
}

static bool has_top_k(const sampler *s, const sampler_params *p) {
    return p->top_k > 0 && p->top_k < s->row.n_vocab;
}

/* Does the draw want the weights of all logits? */
static bool weighs_all(const sampler *s, const sampler_params *p) {
    return p->temperature > 0 && !has_top_k(s, p) && (p->top_p < 1.0f || !(p->min_p > 0));
}

/* Those with a weight of at least min_p, the largest being 1. */
static row_cut min_p_cut(const sampler *s, const sampler_params *p) {
    double least = (double)s->row.largest + (double)p->temperature * log((double)p->min_p);
    float limit = least > -(double)FLT_MAX ? (float)least : -FLT_MAX;
    if ((double)limit < least) limit = nextafterf(limit, INFINITY);
    return (row_cut){limit, INT32_MAX};
}

static double weigh(sampler *s) {
    bool all = s->cut.limit <= -FLT_MAX && s->cut.last == INT32_MAX;
    return all ? row_weigh(&s->row, s->c, s->mass) : row_weigh_cut(&s->row, s->c, s->cut, s->mass);
}

static void truncate(sampler *s, const sampler_params *p) {
    s->cut = ROW_ALL;
    if (has_top_k(s, p)) s->cut = row_find_cut(&s->row, p->top_k, false, s->c);
    if (p->top_p < 1.0f) {
        double goal = (double)p->top_p * weigh(s);
        s->cut = row_cut_min(s->cut, row_find_cut(&s->row, goal, true, s->c));
    }
    if (p->min_p > 0.0f) s->cut = row_cut_min(s->cut, min_p_cut(s, p));
}

static int32_t draw(sampler *s, const sampler_params *p, uint64_t position) {
    int32_t best = row_best(&s->row);
    s->c = 0;
    if (best < 0) return lowest_not_banned(s, p);
    if (p->temperature == 0.0f) return best;
    s->c = scale_of(p->temperature);
    truncate(s, p);
    double total = weigh(s), u = philox_uniform(p->seed, p->choice, position);
    int32_t id = row_pick(&s->row, s->c, s->cut, s->mass, u * total);
    return id >= 0 ? id : best; /* u * total may round to total */
}

void sampler_draw(sampler *s, const sampler_params *p, const sampler_counts *counts,
                  const float *logits, uint64_t position, sampler_result *out) {
    bool reports = p->n_logprobs >= 0;
    double logsumexp = 0;
    *out = (sampler_result){0};
    float c = reports ? SPAN_LOG2E : weighs_all(s, p) ? scale_of(p->temperature) : 0;
    row_set(&s->row, logits, c);
    if (reports) {
        row_settle(&s->row);
        logsumexp = report(s, p->n_logprobs, out);
    }
    adjust(s, p, counts);
    row_settle(&s->row);
    out->id = draw(s, p, position);
    if (reports) out->logprob = sampler_logprob_of(logits[out->id], logsumexp);
}

size_t sampler_last_kept(const sampler *s, int32_t *ids) {
    const logit_row *r = &s->row;
    size_t n = 0;
    for (int32_t id = 0; id < r->n_vocab && s->c > 0; id++) {
        float x = r->spans[id / SPAN][id % SPAN];
        if (row_keeps(s->cut, x, id) && r->passes->weight(x, r->largest, s->c) > 0) ids[n++] = id;
    }
    return n;
}
