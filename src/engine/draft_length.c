/* engine/draft_length: see draft_length.h.
 *
 * Chances are sorted by counting, into LEVELS steps of equal width: the walk over numbers of rows
 * then costs no more than there are rows.
 */
#include "engine/draft_length.h"

#include <math.h>
#include <string.h>

#define LEVELS 64
/* So many guesses of its own count as much as all others': a text's chances are spread around those
 * of all like a beta distribution of this weight (a + b), the likeliest for 32 answers of two
 * models. */
#define OWN_WEIGHT 6.0f
#define LEAST_GAIN 1.02 /* below it the errors of the estimates decide */

void draft_record_add(draft_record *r, uint32_t class, bool hit, float fade) {
    if (r->classes[class].n >= fade) {
        float keep = (fade - 1) / r->classes[class].n;
        r->classes[class].hits *= keep;
        r->classes[class].n *= keep;
    }
    r->classes[class].hits += hit;
    r->classes[class].n += 1;
}

double draft_record_chance(const draft_record *own, const draft_record *all, uint32_t class) {
    float chance = all->classes[class].hits / all->classes[class].n;
    return (double)((own->classes[class].hits + OWN_WEIGHT * chance) /
                    (own->classes[class].n + OWN_WEIGHT));
}

/* Guesses by level of chance, of the first n_rounds of each sequence. */
typedef struct {
    uint32_t n[LEVELS];
    double sum[LEVELS];
} histogram;

static uint32_t level_of(float chance) {
    int level = (int)(chance * LEVELS);
    return level < LEVELS ? (uint32_t)level : LEVELS - 1;
}

static void count(histogram *h, const float (*used)[DRAFT_MAX], uint32_t n, uint32_t n_rounds) {
    memset(h, 0, sizeof *h);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n_rounds && used[i][j] > 0; j++) {
            uint32_t level = level_of(used[i][j]);
            h->n[level]++;
            h->sum[level] += (double)used[i][j];
        }
}

/* Seconds that n_rows guesses add to the step. With prompts in it every row costs the same;
 * without, what the larger step takes more. */
static double added_s(const draft_costs *c, bool hopeful, uint32_t n_rows) {
    if (c->n_prompt_rows > 0) return n_rows * step_time_of_row(c->time);
    uint32_t n = c->n_sequences;
    double (*of)(const step_time *, uint32_t) = hopeful ? step_time_guess : step_time_of;
    double more = of(c->time, n + n_rows) - of(c->time, n);
    return more > 0 ? more : 0;
}

/* The number of rows of the best rate, and that rate, relative to none's. A prompt's rows pass the
 * time anyway, so guesses have to pay in steps of decoding only. */
static double walk(const draft_costs *c, const histogram *h, double rounds_s, uint32_t *n_best) {
    double plain = step_time_of(c->time, c->n_sequences), gain = 0, best = 1;
    uint32_t n_rows = 0;
    *n_best = 0;
    for (int level = LEVELS - 1; level >= 0; level--)
        for (uint32_t k = 0; k < h->n[level] && n_rows < c->max_rows; k++) {
            gain += h->sum[level] / h->n[level];
            n_rows++;
            double rate = (1 + gain / c->n_sequences) * plain /
                          (plain + added_s(c, c->hopeful, n_rows) + rounds_s);
            if (rate <= best) continue;
            best = rate;
            *n_best = n_rows;
        }
    return best;
}

/* Hands n_rows out again, the best chances first. */
static void hand_out(const float (*used)[DRAFT_MAX], uint32_t n, uint32_t n_rounds,
                     const histogram *h, uint32_t n_rows, uint32_t *length) {
    int level = LEVELS; /* all guesses of levels above `least` */
    uint32_t n_above = 0;
    while (level > 0 && n_above + h->n[level - 1] <= n_rows) n_above += h->n[--level];
    uint32_t n_at = n_rows - n_above; /* and so many of the next */
    for (uint32_t i = 0; i < n; i++) {
        length[i] = 0;
        for (uint32_t j = 0; j < n_rounds && used[i][j] > 0; j++) {
            int own = (int)level_of(used[i][j]);
            if (own + 1 < level || (own + 1 == level && n_at == 0)) break;
            n_at -= own + 1 == level;
            length[i]++;
        }
    }
}

double draft_length_choose(const draft_costs *c, const float (*used)[DRAFT_MAX], uint32_t n,
                           uint32_t *length) {
    histogram h;
    double best = LEAST_GAIN;
    uint32_t best_rounds = 0, best_rows = 0;
    for (uint32_t rounds = c->round_s > 0 ? 1 : DRAFT_MAX; rounds <= DRAFT_MAX; rounds++) {
        uint32_t n_rows;
        count(&h, used, n, rounds);
        double rate = walk(c, &h, rounds * c->round_s, &n_rows);
        if (rate <= best) continue;
        best = rate;
        best_rounds = rounds;
        best_rows = n_rows;
    }
    count(&h, used, n, best_rounds);
    hand_out(used, n, best_rounds, &h, best_rows, length);
    return best_rows > 0 ? best : 1;
}

/* Of the step, one token of one sequence. */
static double token_s(const draft_costs *c) {
    return step_time_of(c->time, c->n_sequences) / c->n_sequences;
}

/* And of a round of the draft model. */
static double guess_s(const draft_costs *c) {
    return c->round_s / c->n_sequences;
}

uint32_t draft_allowance_length(draft_allowance a, const draft_costs *c) {
    double most = a + token_s(c);
    uint32_t n = 0;
    while (n < DRAFT_MAX && added_s(c, false, n + 1) + (n + 1) * guess_s(c) <= most) n++;
    return n == 0 && c->hopeful && a >= 0 ? 1 : n;
}

void draft_allowance_settle(draft_allowance *a, const draft_costs *c, uint32_t n_all, uint32_t n,
                            uint32_t n_accepted) {
    *a += token_s(c) * (n_accepted + DRAFT_LOSS * (1 + n_accepted));
    if (n > 0) *a -= added_s(c, false, n_all) * n / n_all + n * guess_s(c);
}
