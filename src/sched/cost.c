/* sched/cost: see cost.h.
 *
 * Steps are much alike: those of streams alone differ by their contexts, and with a target all take
 * as long (pace.h). So they say little of what each part takes alone, and the past is kept for
 * long, which the common factor allows.
 *
 * The fit keeps the normal equations, decayed, instead of the recursive form of least squares: it
 * is the same estimate, and with them at hand coefficients can be held at 0 or above.
 */
#include "sched/cost.h"

#include <math.h>
#include <string.h>

#include "roof/work.h"

#define FORGET 0.995      /* per step of its kind: some 200 steps count */
#define FACTOR_RATE 0.5   /* of the common factor */
#define MOST_SURPRISE 0.4 /* that one step is to it, as a logarithm */
#define FIRST_STEPS 4     /* of a kind, taken as they are */
#define LIMIT 2.0         /* later ones count as at most so much longer or shorter than predicted */
#define PRIOR_WEIGHT 0.05 /* in steps */
#define SWEEPS 96         /* of coordinate descent, from the last solution */
#define SHORTEST 1e-9     /* seconds of a step */
#define LONGEST 1e6

/* Stand-ins for unknown peaks: one core of a small machine. Learning does the rest. */
#define USUAL_BYTES_PER_S 10e9
#define USUAL_LINEAR_OPS_PER_S 200e9
#define USUAL_ATTENTION_OPS_PER_S 50e9

/* Before any step: what processors have been seen to take. */
static const cost_rates prior = {{[COST_OVERHEAD] = 1e-4,
                                  [COST_WEIGHTS] = 1,
                                  [COST_CACHE] = 2,
                                  [COST_LINEAR] = 2,
                                  [COST_ATTENTION] = 1.5}};

/* A peak outside any machine's is taken for unknown. */
static double peak(double x, double otherwise) {
    return x >= 1e3 && x <= 1e18 ? x : otherwise;
}

void cost_add(const cost_shape *s, cost_work *w, uint32_t first, uint32_t n, uint32_t n_wanted) {
    if (n == 0) return;
    w->n_rows += n;
    w->n_wanted += n_wanted;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        uint32_t window = s->groups[g].window;
        w->attention_ops += s->groups[g].attention_ops * work_seen_tokens(window, first, n);
        w->cache_bytes += s->groups[g].bytes_per_token * work_read_tokens(window, first, n);
    }
}

static void parts_of(const cost_shape *s, const cost_work *w, double *x) {
    double weights = s->weight_bytes + (w->n_wanted > 0 ? s->head_bytes : 0);
    double bytes_per_s = peak(s->bytes_per_s, USUAL_BYTES_PER_S);
    double linear = s->row_ops * w->n_rows + s->head_row_ops * w->n_wanted;
    x[COST_OVERHEAD] = 1;
    x[COST_WEIGHTS] = weights / bytes_per_s;
    x[COST_CACHE] = w->cache_bytes / bytes_per_s;
    x[COST_LINEAR] = linear / peak(s->linear_ops_per_s, USUAL_LINEAR_OPS_PER_S);
    x[COST_ATTENTION] = w->attention_ops / peak(s->attention_ops_per_s, USUAL_ATTENTION_OPS_PER_S);
}

static double dot(const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < COST_PARTS; i++) sum += a[i] * b[i];
    return sum;
}

double cost_seconds(const cost_shape *s, const cost_rates *r, const cost_work *w) {
    double x[COST_PARTS];
    parts_of(s, w, x);
    return dot(r->b, x);
}

void cost_init(cost_model *m, const cost_shape *shape) {
    *m = (cost_model){.shape = *shape, .rates = prior, .slow = prior};
}

double cost_predict(const cost_model *m, const cost_work *w) {
    return cost_seconds(&m->shape, &m->rates, w);
}

uint32_t cost_fit(const cost_model *m, const cost_work *w, uint32_t first, uint32_t n,
                  double seconds) {
    uint32_t low = 0, high = n; /* low fit; more than high do not */
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        cost_work more = *w;
        cost_add(&m->shape, &more, first, middle, 0);
        if (cost_predict(m, &more) <= seconds)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Solves square * b = product for b >= 0, from the b there is: one coordinate after the other. The
 * diagonal is never 0, as the prior is in it. */
static void solve(double square[COST_PARTS][COST_PARTS], const double *product, double *b) {
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 0; i < COST_PARTS; i++) {
            double rest = product[i] - dot(square[i], b) + square[i][i] * b[i];
            b[i] = rest > 0 ? rest / square[i][i] : 0;
        }
}

/* A step as an equation between 1 and its parts over its time: errors are relative then. */
static void remember(cost_model *m, int kind, const double *x, double seconds) {
    m->kinds[kind].n++;
    for (int i = 0; i < COST_PARTS; i++) {
        for (int j = 0; j < COST_PARTS; j++)
            m->kinds[kind].square[i][j] =
                FORGET * m->kinds[kind].square[i][j] + x[i] * x[j] / (seconds * seconds);
        m->kinds[kind].product[i] = FORGET * m->kinds[kind].product[i] + x[i] / seconds;
    }
}

/* What has not been seen is as far from the prior as what has. */
static void fit(cost_model *m) {
    double square[COST_PARTS][COST_PARTS], product[COST_PARTS];
    double ratio = m->prior_ratio / m->prior_weight;
    for (int i = 0; i < COST_PARTS; i++) {
        double expected = prior.b[i] * ratio;
        for (int j = 0; j < COST_PARTS; j++)
            square[i][j] = m->kinds[0].square[i][j] + m->kinds[1].square[i][j];
        square[i][i] += PRIOR_WEIGHT / (expected * expected);
        product[i] = m->kinds[0].product[i] + m->kinds[1].product[i] + PRIOR_WEIGHT / expected;
    }
    solve(square, product, m->slow.b);
}

/* A slow step is followed by slow ones more often than not, so the next is taken to be much as the
 * last was; but one that was held up moves little. */
static void follow_speed(cost_model *m, const double *x, double seconds) {
    double surprise = log(seconds / fmax(dot(m->slow.b, x), SHORTEST)) - m->log_factor;
    m->log_factor += FACTOR_RATE * fmin(fmax(surprise, -MOST_SURPRISE), MOST_SURPRISE);
    for (int i = 0; i < COST_PARTS; i++) m->rates.b[i] = m->slow.b[i] * exp(m->log_factor);
}

void cost_learn(cost_model *m, const cost_work *w, bool prompts, double seconds) {
    double x[COST_PARTS], predicted = cost_predict(m, w);
    if (!(seconds > 0)) return;
    seconds = fmin(fmax(seconds, SHORTEST), LONGEST);
    parts_of(&m->shape, w, x);
    m->last_error = fabs(predicted - seconds) / seconds;
    m->error_sum += m->last_error;
    m->n_steps++;

    double counts = seconds;
    if (m->kinds[prompts].n >= FIRST_STEPS)
        counts = fmin(fmax(seconds, predicted / LIMIT), predicted * LIMIT);
    m->prior_ratio = FORGET * m->prior_ratio + counts / dot(prior.b, x);
    m->prior_weight = FORGET * m->prior_weight + 1;
    remember(m, prompts, x, counts);
    fit(m);
    follow_speed(m, x, seconds);
}
