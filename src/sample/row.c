/* sample/row: see row.h. */
#include "sample/row.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

ridge_status row_create(logit_row *r, int32_t n_vocab, ridge_error *err) {
    uint32_t n = ((uint32_t)n_vocab + SPAN - 1) / SPAN, n_padded = (n + SPAN - 1) / SPAN * SPAN;
    *r = (logit_row){.passes = &span_passes_portable, .n_vocab = n_vocab, .n_spans = n};
    r->spans = mem_zalloc(n, sizeof *r->spans);
    r->own = mem_zalloc((size_t)n * SPAN, sizeof *r->own); /* touched only where it is used */
    r->max = mem_zalloc(n_padded, sizeof *r->max);
    r->sum = mem_zalloc(n, sizeof *r->sum);
    r->heap = mem_zalloc(n > ROW_FEW ? n : ROW_FEW, sizeof *r->heap);
    bool made =
        r->spans != NULL && r->own != NULL && r->max != NULL && r->sum != NULL && r->heap != NULL;
    for (int i = 0; i < 3; i++) {
        r->parts[i] = mem_zalloc(n, sizeof *r->parts[i]);
        made = made && r->parts[i] != NULL;
    }
    if (made) {
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
    for (int i = 0; i < 3; i++) mem_free(r->parts[i]);
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

static void find_sum(logit_row *r, uint32_t span) {
    if (r->sum_c > 0) r->sum[span] = r->passes->sum(r->spans[span], r->max[span], r->sum_c);
}

void row_set(logit_row *r, const float *logits, float c) {
    uint32_t n_tail = (uint32_t)r->n_vocab % SPAN, last = r->n_spans - 1;
    r->settled = false;
    r->found_c = 0;
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

/* The next span comes from memory while the one before it is summed. */
void row_settle(logit_row *r) {
    bool due = false;
    uint32_t before = 0;
    r->found_c = 0;
    r->largest = -INFINITY;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (!r->settled || is_own(r, s)) {
            find_max(r, s);
            if (due) find_sum(r, before);
            due = true;
            before = s;
        }
        if (r->max[s] > r->largest) r->largest = r->max[s];
    }
    if (due) find_sum(r, before);
    r->settled = true;
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
    return x > cut.limit || (x == cut.limit && id <= cut.last);
}

row_cut row_cut_min(row_cut a, row_cut b) {
    return a.limit > b.limit || (a.limit == b.limit && a.last < b.last) ? a : b;
}

/* Of the span in which the last of equal logits is kept. */
static double weigh_split_span(const logit_row *r, float c, row_cut cut, uint32_t span) {
    float w[SPAN];
    double sum = 0;
    r->passes->weights(r->spans[span], r->largest, c, w);
    for (int i = 0; i < SPAN; i++)
        if (row_keeps(cut, r->spans[span][i], first_id(span) + i)) sum += (double)w[i];
    return sum;
}

/* No logit of the span lies between the limits. */
static bool has_none_between(const row_tally *low, const row_tally *high, uint32_t span) {
    return low->parts[span].n == high->parts[span].n;
}

double row_weigh_cut(const logit_row *r, float c, row_cut cut, double *mass) {
    double total = 0;
    float above = nextafterf(cut.limit, INFINITY);
    bool found = r->found_c == c && cut.limit >= r->low.limit && cut.limit < r->high.limit;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        uint32_t n;
        bool before = cut.last - first_id(s) >= SPAN - 1, after = cut.last < first_id(s);
        float limit = after ? above : cut.limit;
        if (!(r->max[s] >= limit))
            mass[s] = 0;
        else if (found && has_none_between(&r->low, &r->high, s))
            mass[s] = (double)r->low.parts[s].sum;
        else if (before || after)
            mass[s] = (double)r->passes->sum_from(r->spans[s], r->largest, c, limit, &n);
        else
            mass[s] = weigh_split_span(r, c, cut, s);
        total += mass[s];
    }
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

/* What is sought: a number of tokens or a weight. */
typedef struct {
    logit_row *row;
    double goal;
    bool by_weight;
    float c;
} search;

static double amount_of(const search *k, float x) {
    return k->by_weight ? (double)k->row->passes->weight(x, k->row->largest, k->c) : 1;
}

/* Of a limit that lies between two others, or (low NULL) anywhere; into `parts`. */
static row_tally tally_from(const search *k, float limit, const row_tally *low,
                            const row_tally *high, row_part *parts) {
    const logit_row *r = k->row;
    row_tally t = {.limit = limit, .parts = parts};
    double weight = 0;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        row_part *p = &parts[s];
        if (!(r->max[s] >= limit))
            *p = (row_part){0};
        else if (low != NULL && has_none_between(low, high, s))
            *p = low->parts[s];
        else
            p->sum = r->passes->sum_from(r->spans[s], r->largest, k->c, limit, &p->n);
        weight += (double)p->sum;
        t.n += p->n;
    }
    t.amount = k->by_weight ? weight : (double)t.n;
    return t;
}

/* Neither of low nor of high. */
static row_part *spare_parts(const logit_row *r) {
    int i = 0;
    while (r->parts[i] == r->low.parts || r->parts[i] == r->high.parts) i++;
    return r->parts[i];
}

/* A limit that `goal` tokens reach, as each span has at least its largest; above all logits where
 * there are fewer spans. */
static float bound_by_spans(const search *k) {
    const logit_row *r = k->row;
    size_t n = 0, wanted = (size_t)k->goal;
    for (uint32_t s = 0; s < r->n_spans; s++)
        if (r->max[s] > -INFINITY) r->heap[n++] = (row_ranked){r->max[s], (int32_t)s};
    if (wanted > n) return nextafterf(r->largest, INFINITY);
    make_heap(r->heap, n);
    while (--wanted > 0) pop(r->heap, &n);
    return r->heap[0].x;
}

/* Goes down from the largest logit until the goal is reached (low) or there is no further down;
 * `high` is the last limit at which it was not. By weight the first steps see few spans, and are
 * mostly enough. */
static void go_down(const search *k) {
    logit_row *r = k->row;
    float above = nextafterf(r->largest, INFINITY);
    r->low = tally_from(k, k->by_weight ? above : bound_by_spans(k), NULL, NULL, r->parts[0]);
    r->high = tally_from(k, above, NULL, NULL, r->parts[1]);
    for (float z = 2; r->low.amount < k->goal && z < 256; z *= 1.5f) {
        row_part *parts = spare_parts(r);
        r->high = r->low;
        r->low = tally_from(k, r->largest - z / k->c, NULL, NULL, parts);
    }
    if (k->by_weight || r->low.amount >= k->goal) return; /* what lies lower weighs nothing */
    row_part *parts = spare_parts(r);
    r->high = r->low;
    r->low = tally_from(k, -FLT_MAX, NULL, NULL, parts);
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

/* Narrows low (reached) and high (not reached) until few logits lie between them, or one value: by
 * interpolation (the Illinois form of regula falsi); by halving where that is slow, which ends. */
static void narrow(const search *k) {
    row_tally *low = &k->row->low, *high = &k->row->high;
    double over = low->amount - k->goal, under = k->goal - high->amount;
    for (int round = 0; low->n - high->n > ROW_FEW; round++) {
        double at = ((double)high->limit * over + (double)low->limit * under) / (over + under);
        float limit = (float)at;
        if (round >= 16 || !(limit > low->limit && limit < high->limit))
            limit = halfway(low->limit, high->limit);
        if (!(limit > low->limit && limit < high->limit)) return;
        row_tally t = tally_from(k, limit, low, high, spare_parts(k->row));
        bool reached = t.amount >= k->goal;
        *(reached ? low : high) = t;
        /* the end that stays counts half: the next point lies beyond the goal, seen from here */
        over = reached ? t.amount - k->goal : over / 2;
        under = reached ? under / 2 : k->goal - t.amount;
    }
}

/* The candidates in [low, high), ranked until the goal is reached. */
static row_cut cut_among_few(const search *k) {
    const logit_row *r = k->row;
    const row_tally *low = &r->low, *high = &r->high;
    float from = low->limit, to = high->limit;
    size_t n = 0;
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (has_none_between(low, high, s)) continue;
        const float *x = r->spans[s];
        bool in[SPAN]; /* found without branches, and passed over by eights: few are in */
        for (int i = 0; i < SPAN; i++) in[i] = (x[i] >= from) & (x[i] < to);
        for (int first = 0; first < SPAN; first += 8) {
            uint64_t any;
            memcpy(&any, in + first, sizeof any);
            for (int i = first; any != 0 && i < first + 8; i++)
                if (in[i]) r->heap[n++] = (row_ranked){x[i], first_id(s) + i};
        }
    }
    make_heap(r->heap, n);
    double sum = high->amount;
    row_ranked last = {low->limit, INT32_MAX};
    while (n > 0) {
        last = pop(r->heap, &n);
        sum += amount_of(k, last.x);
        if (sum >= k->goal) break;
    }
    return (row_cut){last.x, last.id};
}

/* More than few logits of one value: the goal is reached at one of them, in the order of ids. */
static row_cut cut_among_equals(const search *k) {
    const logit_row *r = k->row;
    const row_tally *low = &r->low, *high = &r->high;
    double sum = high->amount, each = amount_of(k, low->limit);
    int32_t last = INT32_MAX;
    for (uint32_t s = 0; s < r->n_spans && sum < k->goal; s++) {
        if (!(r->max[s] >= low->limit)) continue;
        for (int i = 0; i < SPAN && sum < k->goal; i++)
            if (r->spans[s][i] == low->limit) {
                sum += each;
                last = first_id(s) + i;
            }
    }
    return (row_cut){low->limit, last};
}

row_cut row_find_cut(logit_row *r, double goal, bool by_weight, float c) {
    search k = {r, goal, by_weight, c};
    r->found_c = 0;
    if (!(r->largest > -INFINITY)) return ROW_ALL;
    if (!(goal > 0)) return (row_cut){r->largest, row_best(r)};
    go_down(&k);
    if (r->low.amount < goal) return ROW_ALL;
    narrow(&k);
    r->found_c = c;
    return r->low.n - r->high.n <= ROW_FEW ? cut_among_few(&k) : cut_among_equals(&k);
}

size_t row_top(logit_row *r, row_ranked *out, size_t n) {
    size_t n_kept = 0, n_out = 0;
    if (n == 0 || !(r->largest > -INFINITY)) return 0;
    row_cut cut = row_find_cut(r, (double)n, false, SPAN_LOG2E);
    for (uint32_t s = 0; s < r->n_spans; s++) {
        if (!(r->max[s] >= cut.limit)) continue;
        for (int i = 0; i < SPAN; i++)
            if (row_keeps(cut, r->spans[s][i], first_id(s) + i))
                r->heap[n_kept++] = (row_ranked){r->spans[s][i], first_id(s) + i};
    }
    make_heap(r->heap, n_kept);
    while (n_kept > 0) out[n_out++] = pop(r->heap, &n_kept);
    return n_out;
}
