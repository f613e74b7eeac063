/* cli/sim_runs: see sim_runs.h. */
#include "cli/sim_runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/report.h"
#include "cli/sim_report.h"
#include "cli/svg.h"

#define MOST_REPLICAS 64 /* that are tried */
#define MOST_RANKS 8
#define SIM_MAX_VARIANTS 16
#define SIM_MAX_RATES 32

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
    if (strpbrk(a->prices, "=,") == NULL) return number(a->prices);
    for (const char *s = a->prices;; s++) {
        if (strncmp(s, e->gpu.name, n) == 0 && s[n] == '=') return number(s + n + 1);
        s = strchr(s, ',');
        if (s == NULL) return NAN;
    }
}

ridge_status sim_set_gpu(const sim_args *a, experiment *e, const char *name, size_t n,
                         ridge_error *err) {
    char one[1024];
    if (n >= sizeof one) return RIDGE_FAIL(err, RIDGE_EINVAL, "--gpu: a name of %zu bytes", n);
    snprintf(one, sizeof one, "%.*s", (int)n, name);
    RIDGE_TRY(hardware_open(&e->gpu, &e->profile, one, err));
    if (a->profile != NULL) RIDGE_TRY(efficiency_find(&e->profile, a->profile, err));
    if (!isnan(a->peak_flops)) e->gpu.peaks[PEAK_16] = e->gpu.peaks[e->dtype.peak] = a->peak_flops;
    if (!isnan(a->bandwidth)) e->gpu.bytes_per_s = a->bandwidth;
    if (!isnan(a->link_bandwidth)) e->gpu.link_bytes_per_s = a->link_bandwidth;
    if (!isnan(a->network_bandwidth)) e->gpu.network_bytes_per_s = a->network_bandwidth;
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

/* ---- several to compare ---- */

/* Each variant at each rate, in that order of loops. */
typedef struct {
    const sim_args *args;
    char *names[SIM_MAX_VARIANTS]; /* [n_names] owned */
    double rates[SIM_MAX_RATES];   /* [n_rates] 0 alone: as the traffic has it */
    sim_point points[SIM_MAX_RATES * SIM_MAX_VARIANTS]; /* [n_rates, n_names] */
    size_t n_names, n_rates;
    buf json;
} comparison;

/* All of them are looked at before any is run. */
static ridge_status read_names(comparison *c, ridge_error *err) {
    for (const char *s = c->args->compare;; s++) {
        experiment unused = c->args->e;
        size_t n = strcspn(s, ",");
        if (c->n_names == SIM_MAX_VARIANTS)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "more than %d variants", SIM_MAX_VARIANTS);
        if ((c->names[c->n_names] = mem_strndup(s, n)) == NULL)
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "the variants");
        if (experiment_vary(&unused, c->names[c->n_names++], err) != RIDGE_OK) {
            error_where(err, "--compare");
            return RIDGE_EINVAL;
        }
        s += n;
        if (*s == '\0') return RIDGE_OK;
    }
}

static ridge_status read_rates(comparison *c, ridge_error *err) {
    c->n_rates = 1;
    if (c->args->rates == NULL) return RIDGE_OK;
    const char *s = c->args->rates;
    for (c->n_rates = 0;; s++) {
        double rate = number(s), last = c->n_rates > 0 ? c->rates[c->n_rates - 1] : 0;
        if (!(rate > last && rate <= 1e6) || c->n_rates == SIM_MAX_RATES)
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "--rates: expected up to %d growing numbers from 0 to 1e6, as 1,2,5; "
                              "found '%.40s'",
                              SIM_MAX_RATES, c->args->rates);
        c->rates[c->n_rates++] = rate;
        s += strcspn(s, ",");
        if (*s == '\0') return RIDGE_OK;
    }
}

static ridge_status compare_one(comparison *c, size_t rate, size_t name, ridge_error *err) {
    const sim_args *a = c->args;
    experiment e = a->e;
    experiment_result r;
    size_t at = rate * c->n_names + name;
    RIDGE_TRY(experiment_vary(&e, c->names[name], err));
    if (c->rates[rate] > 0) experiment_set_rate(&e, c->rates[rate]);
    RIDGE_TRY(experiment_run(&r, &e, err));
    c->points[at] = sim_report_point(&e, &r);
    if (!a->json) {
        sim_report_line(c->names[name], &e, &r);
        return RIDGE_OK;
    }
    buf_puts(&c->json, at == 0 ? "{\"name\":" : ",{\"name\":");
    buf_json_string(&c->json, c->names[name], strlen(c->names[name]));
    if (c->rates[rate] > 0) buf_json_field(&c->json, "rate", c->rates[rate]);
    sim_report_json(&c->json, &e, &r, price_of(a, &e));
    buf_putc(&c->json, '}');
    return RIDGE_OK;
}

static void name_variant(const char *name, ridge_error *err) {
    char where[sizeof err->where];
    snprintf(where, sizeof where, "--compare %s", name);
    error_where(err, where);
}

static ridge_status compare_all(comparison *c, ridge_error *err) {
    RIDGE_TRY(read_names(c, err));
    RIDGE_TRY(read_rates(c, err));
    if (c->args->plot != NULL) RIDGE_TRY(cli_check_output(c->args->plot, err));
    if (!c->args->json) sim_report_heading();
    for (size_t r = 0; r < c->n_rates; r++) {
        if (!c->args->json && c->rates[r] > 0) printf("rate %g\n", c->rates[r]);
        for (size_t n = 0; n < c->n_names; n++) {
            ridge_status status = compare_one(c, r, n, err);
            if (status != RIDGE_OK) name_variant(c->names[n], err);
            if (status != RIDGE_OK) return status;
        }
    }
    return RIDGE_OK;
}

static ridge_status plot(const comparison *c, ridge_error *err) {
    const sim_args *a = c->args;
    char title[256];
    bool traced = a->e.traffic.arrivals == TRAFFIC_TRACE;
    const sim_curves curves = {.title = title,
                               .x_name = traced ? "times the trace's speed" : "requests/s",
                               .names = (const char *const *)c->names,
                               .rates = c->rates,
                               .points = c->points,
                               .n_names = c->n_names,
                               .n_rates = c->n_rates};
    buf b = {0};
    snprintf(title, sizeof title, "%.100s on %.100s", a->model, a->e.gpu.title);
    sim_svg(&b, &curves);
    ridge_status status = svg_write(&b, a->plot, err);
    buf_free(&b);
    return status;
}

ridge_status sim_compare(const sim_args *a, ridge_error *err) {
    comparison c = {.args = a};
    json_head(&c.json, a);
    buf_puts(&c.json, ",\"compare\":[");
    ridge_status status = compare_all(&c, err);
    if (status == RIDGE_OK && a->plot != NULL) status = plot(&c, err);
    buf_putc(&c.json, ']');
    for (size_t i = 0; i < c.n_names; i++) mem_free(c.names[i]);
    if (status == RIDGE_OK && a->json) return finish_json(&c.json, err);
    buf_free(&c.json);
    return status;
}

ridge_status sim_find_max_rate(const sim_args *a, ridge_error *err) {
    experiment_rate found = {0};
    const experiment_result *r = &found.result;
    buf b = {0};
    bool traced = a->e.traffic.arrivals == TRAFFIC_TRACE;
    RIDGE_TRY(experiment_max_rate(&found, &a->e, a->goodput_target, err));
    if (!a->json) {
        if (found.rate > 0)
            printf("%s%.4g %s with %.1f %% of %s within the targets\n\n",
                   found.at_least ? "at least " : "", found.rate,
                   traced ? "times the trace's speed" : "requests/s", 100 * experiment_goodput(r),
                   traced ? "its requests" : "them");
        else
            printf("no rate keeps %.1f %% within the targets; at the lowest that was tried:\n\n",
                   100 * a->goodput_target);
        sim_report_text(&a->e, r, price_of(a, &a->e));
        return RIDGE_OK;
    }
    json_head(&b, a);
    report_json_member(&b, "find", "max-rate");
    buf_json_field(&b, traced ? "trace_speed" : "rate", found.rate);
    buf_printf(&b, ",\"at_least\":%s", found.at_least ? "true" : "false");
    buf_json_field(&b, "rate_per_gpu", found.rate / r->n_gpus);
    sim_report_json(&b, &a->e, r, price_of(a, &a->e));
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
        printf("%-14s tp %-3u ", e->gpu.name, e->split.n_tensor);
        if (price < INFINITY)
            printf("%4u replicas %10.2f per hour\n", e->sim.pool.n_replicas, price);
        else
            printf("%s\n", what);
        return;
    }
    buf_puts(&s->json, s->any ? ",{\"gpu\":" : "{\"gpu\":");
    buf_json_string(&s->json, e->gpu.name, strlen(e->gpu.name));
    buf_printf(&s->json, ",\"tensor_parallel_size\":%u", e->split.n_tensor);
    if (price < INFINITY) {
        buf_printf(&s->json, ",\"replicas\":%u", e->sim.pool.n_replicas);
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
    e->sim.pool.n_replicas = n;
    double price = price_of(s->args, e) * r.n_gpus;
    note_candidate(s, e, NULL, price);
    if (price >= s->price) return RIDGE_OK;
    s->price = price;
    s->best = *e;
    s->result = r;
    return RIDGE_OK;
}

static ridge_status try_gpu(search *s, experiment *e, ridge_error *err) {
    for (e->split.n_tensor = 1; e->split.n_tensor <= MOST_RANKS; e->split.n_tensor *= 2)
        RIDGE_TRY(try_machine(s, e, err));
    return RIDGE_OK;
}

/* Of all that are named; unless `run`, it is only checked that they are known and have a price. */
static ridge_status try_gpus(search *s, bool run, ridge_error *err) {
    for (const char *name = s->args->gpu;; name++) {
        size_t n = strcspn(name, ",");
        experiment e = s->args->e;
        RIDGE_TRY(sim_set_gpu(s->args, &e, name, n, err));
        if (!(price_of(s->args, &e) > 0))
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "--find cheapest needs a --price-per-hour of each GPU: %s=PRICE",
                              e.gpu.name);
        if (run) RIDGE_TRY(try_gpu(s, &e, err));
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
    ridge_status status = try_gpus(&s, false, err);
    if (status == RIDGE_OK) status = try_gpus(&s, true, err);
    if (status != RIDGE_OK) {
        buf_free(&s.json);
        return status;
    }
    if (!a->json) {
        buf_free(&s.json);
        if (s.price == INFINITY) {
            printf("\nnone bears the load\n"); /* an answer, as no rate is (and as in JSON) */
            return RIDGE_OK;
        }
        printf("\ncheapest: %u x %s, %u replicas of %u: %.2f per hour\n\n", s.result.n_gpus,
               s.best.gpu.name, s.best.sim.pool.n_replicas, (uint32_t)plan_n_gpus(&s.best.split),
               s.price);
        sim_report_text(&s.best, &s.result, price_of(a, &s.best));
        return RIDGE_OK;
    }
    buf_puts(&s.json, "]");
    if (s.price < INFINITY) {
        report_json_member(&s.json, "gpu", s.best.gpu.name);
        buf_printf(&s.json, ",\"tensor_parallel_size\":%u,\"replicas\":%u", s.best.split.n_tensor,
                   s.best.sim.pool.n_replicas);
        buf_json_field(&s.json, "price_per_hour", s.price);
        sim_report_json(&s.json, &s.best, &s.result, price_of(a, &s.best));
    }
    return finish_json(&s.json, err);
}
