/* sample/sampler: see sampler.h.
 *
 * Candidates are ranked by (logit descending, id ascending), a strict total order; top_k and top_p
 * each keep a prefix of that ranking. A prefix is found by quickselect over weights, in expected
 * linear time and without sorting the vocabulary; it is then described by its last member alone, so
 * that the draw itself walks the candidates in id order.
 */
#include "sample/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sample/philox.h"
#include "sample/sampler_internal.h"

typedef struct {
    float logit;
    float weight; /* exp((logit - largest) / temperature) */
    int32_t id;
} candidate;

struct sampler {
    int32_t n_vocab;
    float *work;       /* [n_vocab] logits after penalties and bias */
    candidate *all;    /* [n_vocab] in id order; those not kept are dropped at the end */
    candidate *ranked; /* [n_vocab] permuted by the selections */
    size_t n_kept;     /* of `all`, after the last draw */
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
    if (s == NULL) goto fail;
    s->n_vocab = n_vocab;
    s->work = mem_zalloc((size_t)n_vocab, sizeof *s->work);
    s->all = mem_zalloc((size_t)n_vocab, sizeof *s->all);
    s->ranked = mem_zalloc((size_t)n_vocab, sizeof *s->ranked);
    if (s->work == NULL || s->all == NULL || s->ranked == NULL) goto fail;
    *out = s;
    return RIDGE_OK;
fail:
    sampler_destroy(s);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "sampler for %d tokens", n_vocab);
}

void sampler_destroy(sampler *s) {
    if (s == NULL) return;
    mem_free(s->work);
    mem_free(s->all);
    mem_free(s->ranked);
    mem_free(s);
}

/* Log-probabilities, of the raw logits. */

static float tame(float x) {
    return isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
}

double sampler_logsumexp(const float *logits, size_t n) {
    float largest = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (logits[i] > largest) largest = logits[i];
    largest = tame(largest);
    if (largest == -INFINITY) return -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)expf(tame(logits[i]) - largest);
    return (double)largest + log(sum);
}

float sampler_logprob_of(float logit, double logsumexp) {
    double x = (double)tame(logit) - logsumexp;
    if (!(x > (double)SAMPLER_LOGPROB_FLOOR)) return SAMPLER_LOGPROB_FLOOR;
    return x < 0 ? (float)x : 0.0f;
}

size_t sampler_top(const float *logits, size_t n_vocab, int32_t *ids, size_t n) {
    size_t count = 0;
    for (size_t id = 0; id < n_vocab && n > 0; id++) {
        float x = logits[id];
        if (!(x > -INFINITY) || (count == n && !(x > logits[ids[n - 1]]))) continue;
        size_t at = count < n ? count++ : n - 1;
        for (; at > 0 && x > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)id;
    }
    return count;
}

void sampler_describe(const sampler *s, const float *logits, int32_t id, int n_logprobs,
                      sampler_result *out) {
    int32_t ids[SAMPLER_MAX_LOGPROBS];
    double logsumexp = sampler_logsumexp(logits, (size_t)s->n_vocab);
    out->id = id;
    out->logprob = sampler_logprob_of(logits[id], logsumexp);
    out->n_top = (int)sampler_top(logits, (size_t)s->n_vocab, ids, (size_t)n_logprobs);
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = (sampler_logprob){ids[i], sampler_logprob_of(logits[ids[i]], logsumexp)};
}

/* The draw. */

/* Logits after penalties, bias and bans: `logits` itself where there are none. */
static const float *adjust(sampler *s, const sampler_params *p, const sampler_counts *counts,
                           const float *logits) {
    bool penalised = counts != NULL && sampler_needs_counts(p);
    if (!penalised && p->n_bias == 0 && p->n_banned == 0) return logits;
    memcpy(s->work, logits, (size_t)s->n_vocab * sizeof *logits);
    if (penalised) sampler_counts_apply(counts, p, s->work);
    for (size_t i = 0; i < p->n_bias; i++) s->work[p->bias[i].id] += p->bias[i].bias;
    for (size_t i = 0; i < p->n_banned; i++) s->work[p->banned[i]] = -INFINITY;
    return s->work;
}

static bool is_banned(const sampler_params *p, int32_t id) {
    for (size_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] == id) return true;
    return false;
}

/* The largest, ties to the lower id; NaN is never larger. */
static int32_t argmax(const sampler *s, const sampler_params *p, const float *x) {
    int32_t best = -1;
    float largest = -INFINITY;
    for (int32_t id = 0; id < s->n_vocab; id++)
        if (x[id] > largest) {
            largest = x[id];
            best = id;
        }
    if (best >= 0) return best;
    for (int32_t id = 0; id < s->n_vocab; id++)
        if (!is_banned(p, id)) return id;
    return 0;
}

static bool ranks_before(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void swap(candidate *a, candidate *b) {
    candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves a pivot of c[lo, hi) to its rank; what ranks before it lies in [lo, result). */
static size_t partition(candidate *c, size_t lo, size_t hi) {
    size_t mid = lo + (hi - lo) / 2, last = hi - 1;
    if (ranks_before(&c[mid], &c[lo])) swap(&c[mid], &c[lo]);
    if (ranks_before(&c[last], &c[lo])) swap(&c[last], &c[lo]);
    if (ranks_before(&c[mid], &c[last])) swap(&c[mid], &c[last]); /* the median is last */
    size_t at = lo;
    for (size_t i = lo; i < last; i++)
        if (ranks_before(&c[i], &c[last])) swap(&c[i], &c[at++]);
    swap(&c[at], &c[last]);
    return at;
}

/* Permutes c so that its first k (the result, at least 1) are the shortest prefix of the ranking
 * whose weights reach `target`; with by_count each weighs 1. The last of them is c[k - 1]. */
static size_t select_prefix(candidate *c, size_t n, double target, bool by_count) {
    size_t lo = 0, hi = n;
    double before = 0; /* weight of c[0, lo), all of which rank before c[lo, hi) */
    while (lo < hi) {
        size_t pivot = partition(c, lo, hi);
        double left = before;
        for (size_t i = lo; i < pivot; i++) left += by_count ? 1.0 : (double)c[i].weight;
        if (left >= target && pivot > 0) {
            hi = pivot;
            continue;
        }
        before = left + (by_count ? 1.0 : (double)c[pivot].weight);
        lo = pivot + 1;
        if (before >= target) return lo;
    }
    return lo > 0 ? lo : 1;
}

static double total_weight(const candidate *c, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

/* Candidates of weight > 0, in id order. */
static size_t collect(sampler *s, const float *x, float largest, float temperature) {
    size_t n = 0;
    for (int32_t id = 0; id < s->n_vocab; id++) {
        float logit = tame(x[id]), weight = expf((logit - largest) / temperature);
        if (weight > 0) s->all[n++] = (candidate){logit, weight, id};
    }
    return n;
}

/* Drops from s->all what top_k, top_p and min_p drop. */
static size_t truncate(sampler *s, const sampler_params *p, size_t n) {
    bool by_k = p->top_k > 0 && (size_t)p->top_k < n, by_p = p->top_p < 1.0f;
    size_t n_ranked = n, kept = 0;
    if (!by_k && !by_p && p->min_p <= 0.0f) return n;
    if (by_k || by_p) memcpy(s->ranked, s->all, n * sizeof *s->all);
    if (by_k) n_ranked = select_prefix(s->ranked, n_ranked, p->top_k, true);
    if (by_p) {
        double target = (double)p->top_p * total_weight(s->ranked, n_ranked);
        n_ranked = select_prefix(s->ranked, n_ranked, target, false);
    }
    const candidate *worst = by_k || by_p ? &s->ranked[n_ranked - 1] : NULL;
    for (size_t i = 0; i < n; i++) {
        const candidate *c = &s->all[i];
        if ((worst == NULL || !ranks_before(worst, c)) && c->weight >= p->min_p)
            s->all[kept++] = *c;
    }
    return kept;
}

static int32_t draw(sampler *s, const sampler_params *p, const float *x, uint64_t position) {
    int32_t best = argmax(s, p, x);
    s->n_kept = 0;
    if (p->temperature == 0.0f || !(x[best] > -INFINITY)) return best;
    size_t n = truncate(s, p, collect(s, x, tame(x[best]), p->temperature));
    s->n_kept = n;
    double threshold = philox_uniform(p->seed, p->choice, position) * total_weight(s->all, n),
           sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)s->all[i].weight;
        if (sum > threshold) return s->all[i].id;
    }
    return s->all[n - 1].id;
}

void sampler_draw(sampler *s, const sampler_params *p, const sampler_counts *counts,
                  const float *logits, uint64_t position, sampler_result *out) {
    int32_t id = draw(s, p, adjust(s, p, counts, logits), position);
    *out = (sampler_result){.id = id};
    if (p->n_logprobs >= 0) sampler_describe(s, logits, id, p->n_logprobs, out);
}

size_t sampler_last_kept(const sampler *s, int32_t *ids) {
    for (size_t i = 0; i < s->n_kept; i++) ids[i] = s->all[i].id;
    return s->n_kept;
}
