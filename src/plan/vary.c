/* plan/vary: the parts of an experiment that have a name, to compare one with another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/experiment.h"
#include "plan/machine.h"

/* Whole prompts in one step, of any number: no step is ever cut. */
#define NO_CHUNKS (1u << 20)
#define DEFAULT_DRAFTS 4
#define MOST 4096

static bool whole_or_none(const char *text, uint32_t most, uint32_t *out) {
    char *end;
    if (text == NULL || *text < '0' || *text > '9') return false;
    unsigned long n = strtoul(text, &end, 10);
    if (n > most || *end != '\0') return false;
    *out = (uint32_t)n;
    return true;
}

static bool whole(const char *text, uint32_t most, uint32_t *out) {
    uint32_t n;
    if (!whole_or_none(text, most, &n) || n == 0) return false;
    *out = n;
    return true;
}

static bool set_static(experiment *e, const char *value) {
    e->sim.pool.sched.static_batches = true;
    return value == NULL;
}

static bool set_continuous(experiment *e, const char *value) {
    e->sim.pool.sched.static_batches = false;
    return value == NULL;
}

static bool set_unchunked(experiment *e, const char *value) {
    e->sim.pool.sched.max_num_batched_tokens = NO_CHUNKS;
    return value == NULL;
}

static bool set_chunked(experiment *e, const char *value) {
    return value == NULL || whole(value, NO_CHUNKS, &e->sim.pool.sched.max_num_batched_tokens);
}

static bool set_no_prefix_cache(experiment *e, const char *value) {
    e->sim.pool.sched.prefix_caching = false;
    return value == NULL;
}

static bool set_pace(experiment *e, const char *value) {
    e->sim.pace = true;
    return value == NULL;
}

static bool set_no_pace(experiment *e, const char *value) {
    e->sim.pace = false;
    return value == NULL;
}

static bool set_dbo(experiment *e, const char *value) {
    e->halves = true;
    return value == NULL;
}

static bool set_no_dbo(experiment *e, const char *value) {
    e->halves = false;
    return value == NULL;
}

static bool set_prefix_cache(experiment *e, const char *value) {
    e->sim.pool.sched.prefix_caching = true;
    return value == NULL;
}

static bool set_speculation(experiment *e, const char *value) {
    char *end;
    if (value == NULL || *value < '0' || *value > '9') return false;
    e->sim.acceptance = strtod(value, &end);
    if (!(e->sim.acceptance <= 1)) return false;
    e->sim.n_drafts = DEFAULT_DRAFTS;
    return *end == '\0' || (*end == ':' && whole(end + 1, 64, &e->sim.n_drafts));
}

/* "2P1D" */
static bool set_disagg(experiment *e, const char *value) {
    uint32_t *counts[] = {&e->sim.pool.n_replicas, &e->sim.decode.n_replicas};
    for (int i = 0; i < 2; i++) {
        char digits[8];
        size_t n = value != NULL ? strspn(value, "0123456789") : 0;
        if (n == 0 || n >= sizeof digits || value[n] != "PD"[i]) return false;
        memcpy(digits, value, n);
        digits[n] = '\0';
        if (!whole(digits, MOST, counts[i])) return false;
        value += n + 1;
    }
    return *value == '\0';
}

static bool set_replicas(experiment *e, const char *value) {
    e->sim.decode.n_replicas = 0;
    return whole(value, MOST, &e->sim.pool.n_replicas);
}

/* "tp", "pp", ...: of a split, and the most that it may be; NULL: no such part. */
static uint32_t *part_of(model_split *s, const char *name, uint32_t *most) {
    *most = strcmp(name, "tp") == 0   ? MACHINE_MAX_TENSOR
            : strcmp(name, "pp") == 0 ? SIM_MAX_STAGES
                                      : MACHINE_MAX_EXPERT;
    if (strcmp(name, "tp") == 0) return &s->n_tensor;
    if (strcmp(name, "pp") == 0) return &s->n_stages;
    if (strcmp(name, "ep") == 0) return &s->n_expert;
    return strcmp(name, "redundant") == 0 ? &s->n_redundant : NULL;
}

static bool set_split(experiment *e, const char *name, const char *value) {
    static const char decode[] = "decode-";
    bool apart = strncmp(name, decode, sizeof decode - 1) == 0;
    model_split *split = apart ? &e->decode_split : &e->split;
    uint32_t most, *part = part_of(split, apart ? name + sizeof decode - 1 : name, &most);
    if (part == NULL) return false;
    return (part == &split->n_redundant ? whole_or_none : whole)(value, most, part);
}

static bool set_router(experiment *e, const char *value) {
    return value != NULL && sim_router_find(value, &e->sim.router);
}

static bool set_seqs(experiment *e, const char *value) {
    return whole(value, MOST, &e->sim.pool.sched.max_num_seqs);
}

static bool set_block(experiment *e, const char *value) {
    return whole(value, MOST, &e->sim.pool.sched.block_size);
}

static const struct {
    const char *name;
    bool (*set)(experiment *e, const char *value); /* NULL: none given; false: not so */
} variants[] = {
    {"static", set_static},
    {"continuous", set_continuous},
    {"unchunked", set_unchunked},
    {"chunked", set_chunked},
    {"prefix-cache", set_prefix_cache},
    {"no-prefix-cache", set_no_prefix_cache},
    {"dbo", set_dbo},
    {"no-dbo", set_no_dbo},
    {"pace", set_pace},
    {"no-pace", set_no_pace},
    {"speculation", set_speculation},
    {"disagg", set_disagg},
    {"replicas", set_replicas},
    {"router", set_router},
    {"seqs", set_seqs},
    {"block", set_block},
};

static ridge_status vary_one(experiment *e, const char *text, size_t n, ridge_error *err) {
    char one[64];
    bool set = false;
    snprintf(one, sizeof one, "%.*s", (int)n, text);
    char *value = strchr(one, '=');
    if (value != NULL) *value++ = '\0';
    for (size_t i = 0; i < sizeof variants / sizeof *variants && !set; i++)
        set = n < sizeof one && strcmp(variants[i].name, one) == 0 && variants[i].set(e, value);
    set = set || (n < sizeof one && set_split(e, one, value));
    if (set) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "expected one of %s; found '%.*s'", experiment_variants(),
                      n < 40 ? (int)n : 40, text);
}

ridge_status experiment_vary(experiment *e, const char *variant, ridge_error *err) {
    for (;;) {
        size_t n = strcspn(variant, "+");
        RIDGE_TRY(vary_one(e, variant, n, err));
        if (variant[n] == '\0') return RIDGE_OK;
        variant += n + 1;
    }
}

const char *experiment_variants(void) {
    return "static, continuous, unchunked, chunked[=N], no-prefix-cache, prefix-cache, dbo, "
           "no-dbo, pace, no-pace, speculation=A[:K], disagg=xPyD, replicas=N, router=NAME, "
           "seqs=N, block=N, "
           "[decode-]tp=N, [decode-]pp=N, [decode-]ep=N, [decode-]redundant=N";
}
