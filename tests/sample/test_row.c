/* sample/row against a full sort in double: on random logits with ties, NaN and infinities, small
 * and huge vocabularies, what is kept and what is drawn is what the definitions of sampler.h say.
 * And every path of instructions gives the same bits. */
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/philox.h"
#include "sample/sampler_internal.h"

#define MAX_VOCAB 262144
#define MAX_PATHS 3
#define NEAR 2e-5 /* so near to an edge the float weights may decide otherwise */

typedef struct {
    float x;
    int32_t id;
} ranked;

typedef struct {
    float logits[MAX_VOCAB];
    ranked sorted[MAX_VOCAB];
    double weight[MAX_VOCAB]; /* by id; 0: not kept */
    int32_t kept[MAX_VOCAB];
    int32_t n;
} row;

static row *r;
static uint64_t counter;

static double uniform(void) {
    return philox_uniform(2024, 5, counter++);
}

static int32_t below(int32_t n) {
    return (int32_t)(uniform() * n);
}

static float normal(void) {
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += uniform() - .5;
    return (float)(sum * 1.414);
}

/* The paths of this machine. */
static int paths(const char *out[MAX_PATHS]) {
    int n = 0;
    out[n++] = "portable";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = "avx2";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        out[n++] = "avx512";
#endif
    return n;
}

/* With the fastest of them. */
static sampler *make(int32_t n) {
    const char *names[MAX_PATHS];
    sampler *s;
    assert_int_equal(sampler_create(&s, n, NULL), RIDGE_OK);
    sampler_use_isa(s, names[paths(names) - 1]);
    return s;
}

static float tamed(float x) {
    return isnan(x) ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
}

enum { PEAKED, FLAT, TIED, ALL_EQUAL, HOSTILE, EXTREME, TINY_STEPS, HALVES, STRIPES, N_KINDS };

static void fill(int kind, int32_t n) {
    r->n = n;
    for (int32_t i = 0; i < n; i++) {
        float x = normal();
        switch (kind) {
        case PEAKED: x = 3 * x - (float)below(3) * 5 + (below(500) == 0 ? 12.0f : 0); break;
        case FLAT: x *= 1.5f; break;
        case TIED: x = floorf(3 * x); break;
        case ALL_EQUAL: x = -7.25f; break;
        case HOSTILE: {
            const float odd[] = {NAN, -NAN, -INFINITY, -FLT_MAX, 0, -0.0f, 1e-40f, -1e-40f};
            x = below(3) == 0 ? odd[below(8)] : 2 * x;
            break;
        }
        case EXTREME: x = below(4) == 0 ? INFINITY : below(2) == 0 ? FLT_MAX : x * 1e37f; break;
        case HALVES: x -= i < n / 2 ? 0 : 6; break;
        case STRIPES: x -= i / SPAN % 16 == 0 ? 8 : 0; break;
        default: x = 1 + (float)below(50000) * FLT_EPSILON; break;
        }
        r->logits[i] = x;
    }
}

static int by_rank(const void *a, const void *b) {
    const ranked *l = a, *m = b;
    if (l->x != m->x) return l->x > m->x ? -1 : 1;
    return l->id < m->id ? -1 : 1;
}

/* The definitions, with a sort. False where a rounding may decide. */
static bool keep_by_sorting(const sampler_params *p, int32_t *n_kept) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->n; i++)
        if (tamed(r->logits[i]) > -INFINITY) r->sorted[n++] = (ranked){tamed(r->logits[i]), i};
    qsort(r->sorted, (size_t)n, sizeof *r->sorted, by_rank);
    memset(r->weight, 0, (size_t)r->n * sizeof *r->weight);
    int32_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n, end = 0;
    double total = 0, sum = 0, most = n > 0 ? (double)r->sorted[0].x : 0;
    bool sure = true;
    for (int32_t i = 0; i < n; i++) {
        ranked t = r->sorted[i];
        r->weight[t.id] = exp(((double)t.x - most) / (double)p->temperature);
        if (i < k) total += r->weight[t.id];
    }
    for (; end < k; end++) {
        double w = r->weight[r->sorted[end].id];
        if (p->top_p < 1 && end > 0 && sum >= (double)p->top_p * total) break;
        sum += w;
        if (p->top_p < 1) sure &= fabs(sum / total - (double)p->top_p) > NEAR;
        if (p->min_p > 0) {
            sure &= w == 1 || fabs(w / (double)p->min_p - 1) > NEAR;
            if (w < (double)p->min_p) break;
        }
    }
    *n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        double *w = &r->weight[r->sorted[i].id];
        if (i >= end) *w = 0;
        sure &= *w == 0 || *w > 1e-36 || *w < 1e-39; /* where weights vanish */
        *n_kept += *w > 1e-37;
    }
    return sure;
}

static int32_t draw_by_sorting(double u, bool *sure) {
    double total = 0, sum = 0;
    for (int32_t i = 0; i < r->n; i++) total += r->weight[i];
    for (int32_t i = 0; i < r->n; i++) {
        if (!(r->weight[i] > 0)) continue;
        sum += r->weight[i];
        *sure &= fabs(sum / total - u) > NEAR;
        if (sum > u * total) return i;
    }
    return -1;
}

static sampler_params random_params(int round, int32_t n) {
    const float temperatures[] = {1, .8f, .3f, 2, 5, 100, 1e-4f};
    sampler_params p = sampler_params_default();
    p.temperature = temperatures[below(7)];
    p.seed = counter;
    if (round % 2 == 1) p.top_k = 1 + below(round % 4 == 1 ? 60 : n + 10);
    if (round % 3 != 0) p.top_p = (float)uniform();
    if (round % 5 == 0) p.min_p = (float)pow(uniform(), 3);
    return p;
}

static void check_round(sampler *s, int round, int kind, int32_t n, int *n_unsure) {
    sampler_params p = random_params(round, n);
    sampler_result out;
    fill(kind, n);
    sampler_draw(s, &p, NULL, r->logits, 9, &out);
    int32_t expected;
    bool sure = keep_by_sorting(&p, &expected);
    int32_t n_kept = (int32_t)sampler_last_kept(s, r->kept);
    if (sure && expected > 0) {
        assert_int_equal(n_kept, expected);
        for (int32_t i = 0; i < n_kept; i++) assert_true(r->weight[r->kept[i]] > 0);
        int32_t id = draw_by_sorting(philox_uniform(p.seed, 0, 9), &sure);
        if (sure) assert_int_equal(out.id, id);
    }
    *n_unsure += !sure;
    assert_in_range(out.id, 0, n - 1);
}

static void test_as_sorting(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 17, 255, 256, 257, 1000, 5000, 49152};
    int n_unsure = 0, n_rounds = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sampler *s = make(sizes[i]);
        int rounds = sizes[i] < 1000 ? 210 : sizes[i] < 10000 ? 70 : 7;
        for (int round = 0; round < rounds; round++, n_rounds++)
            check_round(s, round, round % N_KINDS, sizes[i], &n_unsure);
        sampler_destroy(s);
    }
    assert_true(n_unsure < n_rounds / 5); /* else the test shows little */
}

static void test_as_sorting_a_huge_vocabulary(void **state) {
    (void)state;
    static const int kinds[] = {PEAKED, FLAT, TIED, ALL_EQUAL, HOSTILE};
    for (int i = 0; i < 5; i++) {
        int n_unsure = 0;
        int32_t n = i % 2 == 0 ? MAX_VOCAB : 151936;
        sampler *s = make(n);
        check_round(s, i, kinds[i], n, &n_unsure);
        sampler_destroy(s);
    }
}

/* What is kept are the first of the ranking, which weigh as much as they must, but not without the
 * last of them. */
static void check_prefix(sampler *s, const sampler_params *p, int kind, int32_t n) {
    sampler_result out;
    int32_t ignored;
    double total = 0, sum = 0, last = 0;
    fill(kind, n);
    sampler_draw(s, p, NULL, r->logits, 9, &out);
    keep_by_sorting(p, &ignored); /* it ranks them */
    int32_t n_kept = (int32_t)sampler_last_kept(s, r->kept), n_ranked = 0;
    for (int32_t i = 0; i < n; i++) n_ranked += tamed(r->logits[i]) > -INFINITY;
    memset(r->weight, 0, (size_t)n * sizeof *r->weight);
    for (int32_t i = 0; i < n_kept; i++) r->weight[r->kept[i]] = 1;
    for (int32_t i = 0; i < n_ranked; i++) {
        double x = (double)r->sorted[i].x - (double)r->sorted[0].x;
        double w = exp(x / (double)p->temperature);
        total += w;
        if (i >= n_kept) continue;
        assert_true(r->weight[r->sorted[i].id] == 1);
        sum += last = w;
    }
    assert_true(sum > ((double)p->top_p - NEAR) * total);
    assert_true(sum - last < ((double)p->top_p + NEAR) * total);
}

/* Thousands are kept, and rounding decides how many. */
static void test_long_prefixes(void **state) {
    (void)state;
    static const int kinds[] = {FLAT, TIED, ALL_EQUAL, HOSTILE, TINY_STEPS, HALVES, STRIPES};
    static const float parts[] = {.3f, .7f, .95f, .9999f}, temperatures[] = {.7f, 3};
    int32_t n = 30011;
    sampler *s = make(n);
    for (int i = 0; i < 7 * 4 * 2; i++) {
        sampler_params p = sampler_params_default();
        p.top_p = parts[i / 14];
        p.temperature = temperatures[i / 7 % 2];
        p.seed = counter;
        check_prefix(s, &p, kinds[i % 7], n);
    }
    sampler_destroy(s);
}

/* The alternatives are the first of the ranking, their log-probabilities those of double. */
static void test_logprobs_as_in_double(void **state) {
    (void)state;
    static const int kinds[] = {PEAKED, FLAT, TIED, HOSTILE};
    for (int round = 0; round < 60; round++) {
        int32_t n = 1 + below(round % 2 == 0 ? 40 : 20000);
        sampler_params p = sampler_params_default();
        p.temperature = round % 3 == 0 ? 0 : .7f;
        p.n_logprobs = round % 21;
        sampler *s = make(n);
        sampler_result out, described;
        fill(kinds[round % 4], n);
        sampler_draw(s, &p, NULL, r->logits, 3, &out);
        int32_t count = 0;
        for (int32_t i = 0; i < n; i++)
            if (tamed(r->logits[i]) > -INFINITY) r->sorted[count++] = (ranked){r->logits[i], i};
        qsort(r->sorted, (size_t)count, sizeof *r->sorted, by_rank);
        assert_int_equal(out.n_top, count < p.n_logprobs ? count : p.n_logprobs);
        double total = 0, most = count > 0 ? (double)r->sorted[0].x : 0;
        for (int32_t i = 0; i < count; i++) total += exp((double)r->sorted[i].x - most);
        for (int i = 0; i < out.n_top; i++) {
            double exact = (double)r->sorted[i].x - most - log(total);
            assert_int_equal(out.top[i].id, r->sorted[i].id);
            if (exact < -9000) continue;
            assert_true(fabs((double)out.top[i].logprob - exact) < 1e-6 - 1e-7 * exact);
        }
        int32_t rank = 1;
        for (int32_t i = 0; i < n; i++) {
            float x = tamed(r->logits[i]), chosen = tamed(r->logits[out.id]);
            rank += x > chosen || (!(x < chosen) && i < out.id);
        }
        /* the same from the other ways to it, bit for bit; but for the rank, which a draw leaves */
        sampler_describe(s, r->logits, out.id, p.n_logprobs, &described);
        assert_int_equal(described.rank, rank);
        described.rank = 0;
        assert_memory_equal(&described, &out, sizeof out);
        double logsumexp = sampler_logsumexp(r->logits, (size_t)n, "portable");
        float logprob = sampler_logprob_of(r->logits[out.id], logsumexp);
        assert_memory_equal(&logprob, &out.logprob, sizeof logprob);
        sampler_destroy(s);
    }
}

static void test_every_path_gives_the_same_bits(void **state) {
    (void)state;
    const char *names[MAX_PATHS];
    int n_paths = paths(names);
    static const int32_t sizes[] = {100, 5000, 30000};
    for (int round = 0; round < 42; round++) {
        int32_t n = sizes[round % 3];
        sampler_params p = random_params(round, n);
        sampler_result first, out;
        p.n_logprobs = 20;
        fill(round % N_KINDS, n);
        for (int i = 0; i < n_paths; i++) {
            sampler *s;
            memset(&out, 0, sizeof out);
            assert_int_equal(sampler_create(&s, n, NULL), RIDGE_OK);
            sampler_use_isa(s, names[i]);
            sampler_draw(s, &p, NULL, r->logits, 1, &out);
            if (i == 0) first = out;
            assert_memory_equal(&out, &first, sizeof out);
            assert_true(sampler_logsumexp(r->logits, (size_t)n, names[i]) ==
                        sampler_logsumexp(r->logits, (size_t)n, names[0]));
            sampler_destroy(s);
        }
    }
}

/* spans.h: 2^z to a relative 3e-7; 1 at 0, nothing below -126.5; never more for less. */
static void test_weights(void **state) {
    (void)state;
    const char *names[MAX_PATHS];
    int n_paths = paths(names);
    for (int path = 0; path < n_paths; path++) {
        const span_passes *passes = span_passes_find(names[path]);
        float x[SPAN], w[SPAN];
        assert_true(passes->weight(3, 3, 7) == 1.0f);
        assert_true(passes->weight(-INFINITY, 0, 1) == 0 && passes->weight(NAN, 0, 1) == 0);
        assert_true(passes->weight(-1e30f, 0, 1) == 0);
        for (int i = 0; i < 400; i++) {
            for (int k = 0; k < SPAN; k++) x[k] = -(float)(i * SPAN + k) * (1.0f / 800);
            passes->weights(x, 0, 1, w);
            for (int k = 0; k < SPAN; k++) {
                double exact = exp2((double)x[k]);
                if (x[k] >= -126)
                    assert_true(fabs((double)w[k] / exact - 1) < 3e-7);
                else
                    assert_true((double)w[k] <= exact * 1.0001);
            }
        }
    }
}

/* Those between two limits, one by one; NaN is nowhere. */
static void test_pick(void **state) {
    (void)state;
    const char *names[MAX_PATHS];
    int n_paths = paths(names);
    for (int round = 0; round < 300; round++) {
        fill(round % N_KINDS, SPAN);
        float from = round % 7 == 0 ? -FLT_MAX : r->logits[below(SPAN)];
        float below_it = round % 5 == 0 ? INFINITY : r->logits[below(SPAN)];
        for (int path = 0; path < n_paths; path++) {
            float x[SPAN];
            int32_t at[SPAN];
            uint32_t n = 0;
            uint32_t n_found =
                span_passes_find(names[path])->pick(r->logits, from, below_it, 1000, x, at);
            for (int i = 0; i < SPAN; i++) {
                if (!(r->logits[i] >= from && r->logits[i] < below_it)) continue;
                assert_true(n < n_found && at[n] == 1000 + i && x[n] == r->logits[i]);
                n++;
            }
            assert_int_equal(n_found, n);
        }
    }
}

static void test_penalties_change_only_their_tokens(void **state) {
    (void)state;
    sampler_counts *c;
    sampler_result out, again;
    int32_t n = 10000;
    sampler *s = make(n);
    fill(FLAT, n);
    assert_int_equal(sampler_counts_create(&c, 300, NULL), RIDGE_OK);
    for (int i = 0; i < 300; i++) sampler_counts_add(c, below(n), i % 2 == 0);
    sampler_params p = sampler_params_default(), plain = p;
    sampler_bias bias[] = {{17, 3}, {9999, -2}, {17, 1}};
    const int32_t banned[] = {4, 8000};
    p.temperature = plain.temperature = .9f;
    p.repetition_penalty = 1.3f;
    p.frequency_penalty = .4f;
    p.bias = bias;
    p.n_bias = 3;
    p.banned = banned;
    p.n_banned = 2;
    p.n_logprobs = 5;
    float *copy = malloc((size_t)n * sizeof *copy);
    memcpy(copy, r->logits, (size_t)n * sizeof *copy);
    sampler_draw(s, &p, c, r->logits, 1, &out);
    assert_memory_equal(copy, r->logits, (size_t)n * sizeof *copy);
    /* as if the logits had come so; what is reported is of the raw ones */
    logit_row adjusted;
    assert_int_equal(row_create(&adjusted, n, NULL), RIDGE_OK);
    row_set(&adjusted, copy, 0);
    sampler_counts_apply(c, &p, &adjusted);
    for (int i = 0; i < 3; i++) *row_at(&adjusted, bias[i].id) += bias[i].bias;
    for (int i = 0; i < 2; i++) *row_at(&adjusted, banned[i]) = -INFINITY;
    int n_changed = 0;
    for (int32_t i = 0; i < n; i++) {
        copy[i] = adjusted.spans[i / SPAN][i % SPAN];
        n_changed += copy[i] != r->logits[i];
    }
    assert_in_range(n_changed, 290, 305);
    sampler_draw(s, &plain, NULL, copy, 1, &again);
    assert_int_equal(again.id, out.id);
    sampler_describe(s, r->logits, out.id, 5, &again);
    again.rank = 0;
    assert_memory_equal(&again, &out, sizeof out);
    row_destroy(&adjusted);
    free(copy);
    sampler_counts_destroy(c);
    sampler_destroy(s);
}

/* Chi-square over a small vocabulary that lies in two spans, cut and uncut. */
static void test_draws_follow_the_distribution(void **state) {
    (void)state;
    enum { N = 300, DRAWS = 60000 };
    static int counts[N];
    sampler *s = make(N);
    fill(FLAT, N);
    for (int cut = 0; cut < 2; cut++) {
        sampler_params p = sampler_params_default();
        p.temperature = 1;
        if (cut) p.top_p = .8f;
        memset(counts, 0, sizeof counts);
        for (int i = 0; i < DRAWS; i++) {
            sampler_result out;
            sampler_draw(s, &p, NULL, r->logits, (uint64_t)i, &out);
            counts[out.id]++;
        }
        int32_t n_kept;
        keep_by_sorting(&p, &n_kept);
        double total = 0, chi = 0;
        for (int i = 0; i < N; i++) total += r->weight[i];
        for (int i = 0; i < N; i++) {
            double expected = DRAWS * r->weight[i] / total;
            if (expected == 0) assert_int_equal(counts[i], 0);
            if (expected > 0) chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
        double freedom = n_kept - 1;
        assert_true(fabs(chi - freedom) < 5 * sqrt(2 * freedom));
    }
    sampler_destroy(s);
}

static int make_row(void **state) {
    (void)state;
    r = malloc(sizeof *r);
    return 0;
}

static int free_row(void **state) {
    (void)state;
    free(r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_sorting),
        cmocka_unit_test(test_as_sorting_a_huge_vocabulary),
        cmocka_unit_test(test_long_prefixes),
        cmocka_unit_test(test_logprobs_as_in_double),
        cmocka_unit_test(test_every_path_gives_the_same_bits),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_penalties_change_only_their_tokens),
        cmocka_unit_test(test_draws_follow_the_distribution),
    };
    return cmocka_run_group_tests(tests, make_row, free_row);
}
