/* cli/sim_runs: see sim_runs.h. */
#include "cli/sim_runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report.h"
#include "cli/sim_report.h"

#define MOST_REPLICAS 64 /* that are tried */
#define MOST_RANKS 8

/* "2.5", or "h100=2.5,l4=0.7": a price; NAN: not one. */
static double number(const char *text) {
    char *end;
    double x = strtod(text, &end);
    return end > text && (*end == '\0' || *end == ',') && x >= 0 && x < 1e9 ? x : NAN;
}

/* Of the GPU and hour; 0: none is given, NAN: it cannot be read, or not of this GPU. */
static double price_of(const sim_args *a, const experiment *e) {
    size_t n = strlen(e->gpu.name);
    if (a->prices == NULL) return 0;
    if (strchr(a->prices, '=') == NULL) return number(a->prices);
    for (const char *s = a->prices;; s++) {
        if (strncmp(s, e->gpu.name, n) == 0 && s[n] == '=') return number(s + n + 1);
        s = strchr(s, ',');
        if (s == NULL) return NAN;
    }
}

ridge_status sim_set_gpu(const sim_args *a, experiment *e, const char *name, size_t n,
                         ridge_error *err) {
    char one[64];
    snprintf(one, sizeof one, "%.*s", (int)n, name);
    RIDGE_TRY(hardware_find(&e->gpu, one, err));
    if (!isnan(a->peak_flops)) e->gpu.peaks[PEAK_16] = e->gpu.peaks[e->dtype.peak] = a->peak_flops;
    if (!isnan(a->bandwidth)) e->gpu.bytes_per_s = a->bandwidth;
    if (a->memory != SIM_NOT_GIVEN) e->gpu.memory_bytes = (double)a->memory;
    if (!isnan(price_of(a, e))) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "--price-per-hour: expected a number, or GPU=NUMBER,... with one for %s, "
                      "found '%s'",
                      e->gpu.name, a->prices);
}

static void json_head(buf *b, const sim_args *a) {
    const traffic_params *t = &a->e.traffic;
    buf_puts(b, "{\"model\":");
    buf_json_string(b, a->model, strlen(a->model));
    report_json_member(b, "gpu", a->e.gpu.name);
    if (t->arrivals == TRAFFIC_TRACE) report_json_member(b, "trace", t->trace);
    buf_printf(b, ",\"seed\":%llu", (unsigned long long)a->traffic.seed);
}

static ridge_status finish_json(buf *b, ridge_error *err) {
    buf_puts(b, "}\n");
    bool failed = b->failed;
    if (!failed) fwrite(b->data, 1, b->len, stdout);
    buf_free(b);
    return failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "the result") : RIDGE_OK;
}

ridge_status sim_once(const sim_args *a, ridge_error *err) {
    experiment_result r;
    buf b = {0};
    RIDGE_TRY(experiment_run(&r, &a->e, err));
    if (!a->json) {
        sim_report_text(&a->e, &r, price_of(a, &a->e));
        return RIDGE_OK;
    }
    json_head(&b, a);
    sim_report_json(&b, &a->e, &r, price_of(a, &a->e));
    return finish_json(&b, err);
}

/* One variant: the next of the list, of n bytes. */
static ridge_status compare_one(const sim_args *a, const char *name, size_t n, buf *b, bool first,
                                ridge_error *err) {
    experiment e = a->e;
    experiment_result r;
    char variant[256];
    if (n >= sizeof variant) return RIDGE_FAIL(err, RIDGE_EINVAL, "too long");
    memcpy(variant, name, n);
    variant[n] = '\0';
    RIDGE_TRY(experiment_vary(&e, variant, err));
    RIDGE_TRY(experiment_run(&r, &e, err));
    if (!a->json) {
        sim_report_line(variant, &e, &r);
        return RIDGE_OK;
    }
    buf_puts(b, first ? "{\"name\":" : ",{\"name\":");
    buf_json_string(b, variant, n);
    sim_report_json(b, &e, &r, price_of(a, &e));
    buf_putc(b, '}');
    return RIDGE_OK;
}

static ridge_status compare_all(const sim_args *a, buf *b, ridge_error *err) {
    bool first = true;
    for (const char *name = a->compare;; first = false) {
        size_t n = strcspn(name, ",");
        RIDGE_TRY(compare_one(a, name, n, b, first, err));
        if (name[n] == '\0') return RIDGE_OK;
        name += n + 1;
    }
}

ridge_status sim_compare(const sim_args *a, ridge_error *err) {
    buf b = {0};
    json_head(&b, a);
    buf_puts(&b, ",\"compare\":[");
    if (!a->json) sim_report_heading();
    ridge_status status = compare_all(a, &b, err);
    if (status != RIDGE_OK) error_where(err, "--compare");
    buf_putc(&b, ']');
    if (status == RIDGE_OK && a->json) return finish_json(&b, err);
    buf_free(&b);
    return status;
}

ridge_status sim_find_max_rate(const sim_args *a, ridge_error *err) {
    experiment_result r = {0};
    double rate = 0;
    buf b = {0};
    bool traced = a->e.traffic.arrivals == TRAFFIC_TRACE;
    RIDGE_TRY(experiment_max_rate(&rate, &r, &a->e, a->goodput_target, err));
    if (!a->json) {
        if (rate > 0)
            printf("%.4g %s with %.1f %% of them within the targets\n\n", rate,
                   traced ? "times the trace's speed" : "requests/s", 100 * experiment_goodput(&r));
        else
            printf("no rate keeps %.1f %% within the targets\n", 100 * a->goodput_target);
        if (rate > 0) sim_report_text(&a->e, &r, price_of(a, &a->e));
        return RIDGE_OK;
    }
    json_head(&b, a);
    report_json_member(&b, "find", "max-rate");
    buf_json_field(&b, traced ? "trace_speed" : "rate", rate);
    buf_json_field(&b, "rate_per_gpu", rate > 0 ? rate / r.n_gpus : 0);
    if (rate > 0) sim_report_json(&b, &a->e, &r, price_of(a, &a->e));
    return finish_json(&b, err);
}

/* ---- cheapest ---- */

typedef struct {
    const sim_args *args;
    buf json;
    bool any;     /* candidates in it */
    double price; /* of the best so far, per hour; INFINITY: there is none */
    experiment best;
    experiment_result result;
} search;

static void note_candidate(search *s, const experiment *e, const char *what, double price) {
    if (!s->args->json) {
        printf("%-14s tp %-3u ", e->gpu.name, e->n_ranks);
        if (price < INFINITY)
            printf("%4u replicas %10.2f per hour\n", e->sim.n_replicas, price);
        else
            printf("%s\n", what);
        return;
    }
    buf_puts(&s->json, s->any ? ",{\"gpu\":" : "{\"gpu\":");
    buf_json_string(&s->json, e->gpu.name, strlen(e->gpu.name));
    buf_printf(&s->json, ",\"tensor_parallel_size\":%u", e->n_ranks);
    if (price < INFINITY) {
        buf_printf(&s->json, ",\"replicas\":%u", e->sim.n_replicas);
        buf_json_field(&s->json, "price_per_hour", price);
    } else {
        report_json_member(&s->json, "why_not", what);
    }
    buf_putc(&s->json, '}');
    s->any = true;
}

/* One kind of GPU at one number of ranks. */
static ridge_status try_machine(search *s, experiment *e, ridge_error *err) {
    experiment_result r;
    ridge_error why = {0};
    uint32_t n = 0;
    ridge_status status =
        experiment_fewest_replicas(&n, &r, e, s->args->goodput_target, MOST_REPLICAS, &why);
    if (status == RIDGE_ETOOLARGE || status == RIDGE_EINVAL) {
        note_candidate(s, e, status == RIDGE_EINVAL ? why.text : "does not fit", INFINITY);
        return RIDGE_OK;
    }
    if (status != RIDGE_OK) {
        if (err != NULL) *err = why;
        return status;
    }
    if (n == 0) {
        note_candidate(s, e, "not with any number of replicas that was tried", INFINITY);
        return RIDGE_OK;
    }
    e->sim.n_replicas = n;
    double price = price_of(s->args, e) * r.n_gpus;
    note_candidate(s, e, NULL, price);
    if (price >= s->price) return RIDGE_OK;
    s->price = price;
    s->best = *e;
    s->result = r;
    return RIDGE_OK;
}

static ridge_status try_gpus(search *s, ridge_error *err) {
    for (const char *name = s->args->gpu;; name++) {
        size_t n = strcspn(name, ",");
        experiment e = s->args->e;
        RIDGE_TRY(sim_set_gpu(s->args, &e, name, n, err));
        if (!(price_of(s->args, &e) > 0))
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "--find cheapest needs a --price-per-hour of each GPU: %s=PRICE",
                              e.gpu.name);
        for (e.n_ranks = 1; e.n_ranks <= MOST_RANKS; e.n_ranks *= 2)
            RIDGE_TRY(try_machine(s, &e, err));
        name += n;
        if (*name == '\0') return RIDGE_OK;
    }
}

ridge_status sim_find_cheapest(const sim_args *a, ridge_error *err) {
    search s = {.args = a, .price = INFINITY};
    const traffic_params *t = &a->e.traffic;
    if (t->arrivals == TRAFFIC_AT_ONCE)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--find cheapest needs a load: --rate or --trace");
    buf_puts(&s.json, "{\"model\":");
    buf_json_string(&s.json, a->model, strlen(a->model));
    buf_puts(&s.json, ",\"find\":\"cheapest\",\"candidates\":[");
    ridge_status status = try_gpus(&s, err);
    if (status != RIDGE_OK) {
        buf_free(&s.json);
        return status;
    }
    if (!a->json) {
        buf_free(&s.json);
        if (s.price == INFINITY) return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "none bears the load");
        printf("\ncheapest: %u x %s, %u replicas of %u: %.2f per hour\n\n", s.result.n_gpus,
               s.best.gpu.name, s.best.sim.n_replicas, s.best.n_ranks, s.price);
        sim_report_text(&s.best, &s.result, price_of(a, &s.best));
        return RIDGE_OK;
    }
    buf_puts(&s.json, "]");
    if (s.price < INFINITY) {
        report_json_member(&s.json, "gpu", s.best.gpu.name);
        buf_printf(&s.json, ",\"tensor_parallel_size\":%u,\"replicas\":%u", s.best.n_ranks,
                   s.best.sim.n_replicas);
        buf_json_field(&s.json, "price_per_hour", s.price);
        sim_report_json(&s.json, &s.best, &s.result, price_of(a, &s.best));
    }
    return finish_json(&s.json, err);
}
