/* plan/minimize: see minimize.h. */
#include "plan/minimize.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

#define FLAT 1e-7 /* a simplex whose values differ by less has arrived */

typedef struct {
    double x[MINIMIZE_MAX_VARIABLES], value;
} corner;

typedef struct {
    minimize_fn f;
    const void *context;
    size_t n;
    int calls_left;
    corner corners[MINIMIZE_MAX_VARIABLES + 1]; /* best first */
} simplex;

static void evaluate(simplex *s, corner *c) {
    s->calls_left--;
    c->value = s->f(s->context, c->x);
    if (isnan(c->value)) c->value = INFINITY;
}

static void sort(simplex *s) {
    for (size_t i = 1; i <= s->n; i++)
        for (size_t j = i; j > 0 && s->corners[j].value < s->corners[j - 1].value; j--) {
            corner c = s->corners[j];
            s->corners[j] = s->corners[j - 1];
            s->corners[j - 1] = c;
        }
}

/* The point at middle + by * (worst - middle), middle being that of all but the worst. */
static corner through_middle(simplex *s, double by) {
    corner c = {.value = 0};
    for (size_t v = 0; v < s->n; v++) {
        double middle = 0;
        for (size_t i = 0; i < s->n; i++) middle += s->corners[i].x[v] / (double)s->n;
        c.x[v] = middle + by * (s->corners[s->n].x[v] - middle);
    }
    evaluate(s, &c);
    return c;
}

static void shrink(simplex *s) {
    for (size_t i = 1; i <= s->n; i++) {
        corner *c = &s->corners[i];
        for (size_t v = 0; v < s->n; v++) c->x[v] = (c->x[v] + s->corners[0].x[v]) / 2;
        evaluate(s, c);
    }
}

static void move(simplex *s) {
    corner *worst = &s->corners[s->n];
    corner reflected = through_middle(s, -1);
    if (reflected.value < s->corners[0].value) {
        corner further = through_middle(s, -2);
        *worst = further.value < reflected.value ? further : reflected;
    } else if (reflected.value < s->corners[s->n - 1].value) {
        *worst = reflected;
    } else {
        bool outside = reflected.value < worst->value;
        corner nearer = through_middle(s, outside ? -0.5 : 0.5);
        if (nearer.value < (outside ? reflected.value : worst->value))
            *worst = nearer;
        else
            shrink(s);
    }
    sort(s);
}

static void begin(simplex *s, const double *x, double step) {
    for (size_t i = 0; i <= s->n; i++) {
        memcpy(s->corners[i].x, x, s->n * sizeof *x);
        if (i > 0) s->corners[i].x[i - 1] += step;
        evaluate(s, &s->corners[i]);
    }
    sort(s);
}

double minimize(minimize_fn f, const void *context, double *x, size_t n_variables, double step,
                int max_calls) {
    simplex s = {.f = f, .context = context, .n = n_variables, .calls_left = max_calls};
    ridge_assert(n_variables > 0 && n_variables <= MINIMIZE_MAX_VARIABLES);
    do {
        begin(&s, x, step);
        while (s.calls_left > 0 && s.corners[n_variables].value - s.corners[0].value > FLAT)
            move(&s);
        memcpy(x, s.corners[0].x, n_variables * sizeof *x);
        step /= 2;
    } while (s.calls_left > 0);
    return s.corners[0].value;
}
