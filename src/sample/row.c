/* sample/row: see row.h. */
#include "sample/row.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/* So many spans ahead a row is asked for while it is read: a pass that weighs, too, would wait for
 * memory at each span. */
#define AHEAD 4

ridge_status row_create(logit_row *r, int32_t n_vocab, ridge_error *err) {
    uint32_t n = ((uint32_t)n_vocab + SPAN - 1) / SPAN, n_padded = (n + SPAN - 1) / SPAN * SPAN;
    *r = (logit_row){.passes = &span_passes_portable, .n_vocab = n_vocab, .n_spans = n};
    r->spans = mem_zalloc(n, sizeof *r->spans);
    r->own = mem_zalloc((size_t)n * SPAN, sizeof *r->own); /* touched only where it is used */
    r->max = mem_zalloc(n_padded, sizeof *r->max);
    r->sum = mem_zalloc(n, sizeof *r->sum);
    r->heap = mem_zalloc(n > ROW_FEW ? n : ROW_FEW, sizeof *r->heap);
    r->list.x = mem_zalloc((size_t)n * SPAN + SPAN, sizeof *r->list.x); /* these two, too */
    r->list.id = mem_zalloc((size_t)n * SPAN + SPAN, sizeof *r->list.id);
    if (r->spans != NULL && r->own != NULL && r->max != NULL && r->sum != NULL && r->heap != NULL &&
        r->list.x != NULL && r->list.id != NULL) {
        for (uint32_t i = n; i < n_padded; i++) r->max[i] = -INFINITY;
        return RIDGE_OK;
    }
    row_destroy(r);
    return RIDGE_FAIL(err, RIDGE_ENOMEM, "sampler for %d tokens", n_vocab);
}

void row_destroy(logit_row *r) {
    mem_free(r->spans);
    mem_free(r->own);
    mem_free(r->max);
    mem_free(r->sum);
    mem_free(r->heap);
    mem_free(r->list.x);
    mem_free(r->list.id);
    *r = (logit_row){0};
}

/* Its logits ---------------------------------------------------------------------------------- */

static bool is_own(const logit_row *r, uint32_t span) {
    return r->spans[span] == r->own + (size_t)span * SPAN;
}

static float *own_span(logit_row *r, uint32_t span) {
    float *own = r->own + (size_t)span * SPAN;
    if (!is_own(r, span)) memcpy(own, r->spans[span], SPAN * sizeof *own);
    r->spans[span] = own;
    return own;
}

static void find_max(logit_row *r, uint32_t span) {
    float max = r->passes->largest(r->spans[span]);
    if (max > FLT_MAX) {
        float *own = own_span(r, span);
        for (int i = 0; i < SPAN; i++)
            if (own[i] > FLT_MAX) own[i] = max = FLT_MAX;
    }
    r->max[span] = max;
}

void row_set(logit_row *r, const float *logits, float c) {
    uint32_t n_tail = (uint32_t)r->n_vocab % SPAN, last = r->n_spans - 1;
    r->settled = false;
    r->sum_c = c;
    for (uint32_t s = 0; s < r->n_spans; s++) r->spans[s] = logits + (size_t)s * SPAN;
    if (n_tail == 0) return;
    float *own = r->own + (size_t)last * SPAN;
    memcpy(own, r->spans[last], n_tail * sizeof *own);
    for (uint32_t i = n_tail; i < SPAN; i++) own[i] = -INFINITY;
    r->spans[last] = own;
}

float *row_at(logit_row *r, int32_t id) {
    return own_span(r, (uint32_t)id / SPAN) + (uint32_t)id % SPAN;
}

void row_settle(logit_row *r) {
    r->largest = -INFINITY;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (!r->settled || is_own(r, s)) {
            if (s + AHEAD < r->n_spans)
                for (size_t i = 0; i < SPAN; i += MEM_LINE / sizeof(float))
                    mem_prefetch(r->spans[s + AHEAD] + i);
            find_max(r, s);
            if (r->sum_c > 0) r->sum[s] = r->passes->sum(r->spans[s], r->max[s], r->sum_c);
        }
        if (r->max[s] > r->largest) r->largest = r->max[s];
    }
    r->settled = true;
    r->list.n = 0;
    r->list.limit = nextafterf(r->largest, INFINITY);
}

int32_t row_best(const logit_row *r) {
    uint32_t s = 0, i = 0;
    if (!(r->largest > -INFINITY)) return -1;
    while (r->max[s] < r->largest) s++;
    while (!(r->spans[s][i] >= r->largest)) i++;
    return (int32_t)(s * SPAN + i);
}

/* Weights ------------------------------------------------------------------------------------- */

/* A span's weights are summed relative to its own largest logit, which is known when it is read;
 * that of the row is not. */
double row_weigh(const logit_row *r, float c, double *mass) {
    float scale[SPAN];
    double total = 0;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (s % SPAN == 0) r->passes->weights(r->max + s, r->largest, c, scale);
        float sum = r->sum_c == c ? r->sum[s] : r->passes->sum(r->spans[s], r->max[s], c);
        mass[s] = (double)scale[s % SPAN] * (double)sum;
        total += mass[s];
    }
    return total;
}

static int32_t first_id(uint32_t span) {
    return (int32_t)(span * SPAN);
}

bool row_keeps(row_cut cut, float x, int32_t id) {
    return (x > cut.limit) | ((x == cut.limit) & (id <= cut.last));
}

row_cut row_cut_min(row_cut a, row_cut b) {
    return a.limit > b.limit || (a.limit == b.limit && a.last < b.last) ? a : b;
}

/* The list goes down to limit from now on. */
static void list_from(logit_row *r, float limit) {
    row_list *l = &r->list;
    if (!(limit < l->limit)) return;
    for (uint32_t s = 0; s < r->n_spans; s++)
        if (r->max[s] >= limit)
            l->n += r->passes->pick(r->spans[s], limit, l->limit, first_id(s), l->x + l->n,
                                    l->id + l->n);
    for (size_t i = 0; i < SPAN; i++) l->x[l->n + i] = -INFINITY;
    l->limit = limit;
}

/* Mostly the next in the list is of the same span: their weights are summed up before they go
 * there. */
double row_weigh_cut(logit_row *r, float c, row_cut cut, double *mass) {
    const row_list *l = &r->list;
    double total = 0, sum = 0;
    float w[SPAN];
    int32_t span = 0;
    list_from(r, cut.limit);
    memset(mass, 0, r->n_spans * sizeof *mass);
    for (size_t first = 0; first < l->n; first += SPAN) {
        const float *x = l->x + first;
        const int32_t *id = l->id + first;
        r->passes->weights(x, r->largest, c, w);
        for (int i = 0; i < SPAN; i++) w[i] = row_keeps(cut, x[i], id[i]) ? w[i] : 0;
        for (size_t i = 0; i < SPAN && first + i < l->n; i++) {
            if (id[i] / SPAN != span) {
                mass[span] += sum;
                span = id[i] / SPAN;
                sum = 0;
            }
            sum += (double)w[i];
        }
    }
    mass[span] += sum;
    for (uint32_t s = 0; s < r->n_spans; s++) total += mass[s];
    return total;
}

int32_t row_pick(const logit_row *r, float c, row_cut cut, const double *mass, double threshold) {
    double sum = 0;
    int32_t last = -1;
    float w[SPAN];
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (!(mass[s] > 0)) continue;
        if (sum + mass[s] <= threshold) {
            sum += mass[s];
            continue;
        }
        double before = sum;
        r->passes->weights(r->spans[s], r->largest, c, w);
        for (int i = 0; i < SPAN; i++) {
            if (!(w[i] > 0) || !row_keeps(cut, r->spans[s][i], first_id(s) + i)) continue;
            last = first_id(s) + i;
            sum += (double)w[i];
            if (sum > threshold) return last;
        }
        if (last >= 0) return last; /* rounding: the span's sum was a little more */
        sum = before;
    }
    return last;
}

/* Ranking ------------------------------------------------------------------------------------- */

static bool ranks_before(row_ranked a, row_ranked b) {
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

/* h[at] may rank after its children (2 at + 1, 2 at + 2). */
static void sink(row_ranked *h, size_t n, size_t at) {
    row_ranked item = h[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && ranks_before(h[child + 1], h[child])) child++;
        if (!ranks_before(h[child], item)) break;
        h[at] = h[child];
    }
    h[at] = item;
}

static void make_heap(row_ranked *h, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sink(h, n, i);
}

/* Takes out the first of the ranking. */
static row_ranked pop(row_ranked *h, size_t *n) {
    row_ranked first = h[0];
    h[0] = h[--*n];
    if (*n > 0) sink(h, *n, 0);
    return first;
}

/* Where a prefix ends -------------------------------------------------------------------------- */

/* What is sought, a number of tokens or a weight, and where it is reached: by the logits from `low`
 * on, but not by those from `high` on. What lies between is in the list from `first` on, equal ones
 * in order of ids. */
typedef struct {
    logit_row *row;
    double goal;
    bool by_weight;
    float c;
    size_t first;
    float low, high;
    double before, at_low, at_high; /* tokens or weight: listed before `first`; from low, high on */
} search;

static double amount_of(const search *k, float x) {
    return k->by_weight ? (double)k->row->passes->weight(x, k->row->largest, k->c) : 1;
}

/* Of all from limit on, of which what is before `first` is known; *n: how many come after that. */
static double amount_from(const search *k, float limit, size_t *n) {
    const logit_row *r = k->row;
    double weight = 0;
    *n = 0;
    for (size_t i = k->first; i < r->list.n; i += SPAN) {
        uint32_t some;
        weight += (double)r->passes->sum_from(r->list.x + i, r->largest, k->c, limit, &some);
        *n += some;
    }
    return k->before + (k->by_weight ? weight : (double)*n);
}

/* A limit that `goal` tokens reach, as each span has at least its largest; above all logits where
 * there are fewer spans. */
static float bound_by_spans(const search *k) {
    const logit_row *r = k->row;
    size_t n = 0, wanted = (size_t)k->goal;
    for (uint32_t s = 0; s < r->n_spans; s++)
        if (r->max[s] > -INFINITY) r->heap[n++] = (row_ranked){r->max[s], (int32_t)s};
    if (wanted > n) return INFINITY;
    make_heap(r->heap, n);
    while (--wanted > 0) pop(r->heap, &n);
    return r->heap[0].x;
}

/* Is the goal reached at limit? `low` goes there, `high` to where it was. */
static bool reaches(search *k, float limit) {
    size_t n;
    k->first = k->row->list.n;
    k->high = k->low;
    k->before = k->at_high = k->at_low;
    list_from(k->row, limit);
    k->low = k->row->list.limit;
    k->at_low = amount_from(k, k->low, &n);
    return k->at_low >= k->goal;
}

/* Goes down from the largest logit until the goal is reached; false: there is no further down. The
 * first steps see few spans, and are mostly enough. */
static bool go_down(search *k) {
    logit_row *r = k->row;
    size_t n;
    k->high = nextafterf(r->largest, INFINITY);
    k->low = r->list.limit;
    k->at_low = amount_from(k, k->low, &n); /* what an earlier search has listed */
    if (k->at_low >= k->goal || (!k->by_weight && reaches(k, bound_by_spans(k)))) return true;
    for (float z = 2; z < 256; z *= 1.25f)
        if (reaches(k, r->largest - z / k->c)) return true;
    return !k->by_weight && reaches(k, -FLT_MAX); /* what lies lower weighs nothing */
}

/* The order of floats as that of integers. */
static int64_t order_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >= 0 ? bits : INT32_MIN - (int64_t)bits;
}

static float from_order(int64_t order) {
    int32_t bits = (int32_t)(order >= 0 ? order : INT32_MIN - order);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float halfway(float low, float high) {
    return from_order((order_of(low) + order_of(high)) / 2);
}

/* Narrows low and high until few logits lie between them: by interpolation (the Illinois form of
 * regula falsi); by halving where that is slow, which ends. False: there is one value between them
 * that more than few have. */
static bool narrow(search *k) {
    double over = k->at_low - k->goal, under = k->goal - k->at_high;
    size_t n_low = k->row->list.n - k->first, n_high = 0;
    for (int round = 0; n_low - n_high > ROW_FEW; round++) {
        double at = ((double)k->high * over + (double)k->low * under) / (over + under);
        float limit = (float)at;
        if (round >= 16 || !(limit > k->low && limit < k->high)) limit = halfway(k->low, k->high);
        if (!(limit > k->low && limit < k->high)) return false;
        size_t n;
        double amount = amount_from(k, limit, &n);
        /* the end that stays counts half: the next point lies beyond the goal, seen from here */
        if (amount >= k->goal) {
            k->low = limit;
            n_low = n;
            over = amount - k->goal;
            under /= 2;
        } else {
            k->high = limit;
            k->at_high = amount;
            n_high = n;
            over /= 2;
            under = k->goal - amount;
        }
    }
    return true;
}

/* The candidates in [low, high), ranked until the goal is reached. */
static row_cut cut_among_few(const search *k) {
    const logit_row *r = k->row;
    const row_list *l = &r->list;
    size_t n = 0;
    for (size_t i = k->first; i < l->n; i += SPAN) {
        float x[SPAN];
        int32_t at[SPAN];
        uint32_t some = r->passes->pick(l->x + i, k->low, k->high, (int32_t)i, x, at);
        for (uint32_t j = 0; j < some; j++) r->heap[n++] = (row_ranked){x[j], l->id[at[j]]};
    }
    make_heap(r->heap, n);
    double sum = k->at_high;
    row_ranked last = {k->low, INT32_MAX};
    while (n > 0) {
        last = pop(r->heap, &n);
        sum += amount_of(k, last.x);
        if (sum >= k->goal) break;
    }
    return (row_cut){last.x, last.id};
}

/* More than few logits of one value: the goal is reached at one of them, in the order of ids. */
static row_cut cut_among_equals(const search *k) {
    const row_list *l = &k->row->list;
    double sum = k->at_high, each = amount_of(k, k->low);
    int32_t last = INT32_MAX;
    for (size_t i = k->first; i < l->n && sum < k->goal; i++) {
        if (l->x[i] != k->low) continue;
        sum += each;
        last = l->id[i];
    }
    return (row_cut){k->low, last};
}

row_cut row_find_cut(logit_row *r, double goal, bool by_weight, float c) {
    search k = {.row = r, .goal = goal, .by_weight = by_weight, .c = c};
    if (!(r->largest > -INFINITY)) return ROW_ALL;
    if (!(goal > 0)) return (row_cut){r->largest, row_best(r)};
    if (!go_down(&k)) return ROW_ALL;
    return narrow(&k) ? cut_among_few(&k) : cut_among_equals(&k);
}

size_t row_top(logit_row *r, row_ranked *out, size_t n) {
    const row_list *l = &r->list;
    size_t n_kept = 0, n_out = 0;
    if (n == 0 || !(r->largest > -INFINITY)) return 0;
    row_cut cut = row_find_cut(r, (double)n, false, SPAN_LOG2E);
    for (size_t i = 0; i < l->n; i++)
        if (row_keeps(cut, l->x[i], l->id[i])) r->heap[n_kept++] = (row_ranked){l->x[i], l->id[i]};
    make_heap(r->heap, n_kept);
    while (n_kept > 0) out[n_out++] = pop(r->heap, &n_kept);
    return n_out;
}
