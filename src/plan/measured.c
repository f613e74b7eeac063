/* plan/measured: see measured.h. */
#include "plan/measured.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "format/slice.h"

#define MAX_BYTES ((size_t)1 << 30)
#define MAX_COLUMNS 128
#define VALUE_BYTES 2 /* 16 bits */

/* Whose times a column has; those of sends to another node share one with those within. */
static const struct {
    const char *name, *column;
} kinds[MEASURED_N_KINDS] = {
    [MEASURED_ATTN_PRE_PROJ] = {"attn_pre_proj", "attn_pre_proj"},
    [MEASURED_ATTN_POST_PROJ] = {"attn_post_proj", "attn_post_proj"},
    [MEASURED_MLP_UP_PROJ] = {"mlp_up_proj", "mlp_up_proj"},
    [MEASURED_MLP_DOWN_PROJ] = {"mlp_down_proj", "mlp_down_proj"},
    [MEASURED_INPUT_NORM] = {"input_layernorm", "input_layernorm"},
    [MEASURED_POST_NORM] = {"post_attention_layernorm", "post_attention_layernorm"},
    [MEASURED_ROPE] = {"attn_rope", "attn_rope"},
    [MEASURED_MLP_ACT] = {"mlp_act", "mlp_act"},
    [MEASURED_ADD] = {"add", "add"},
    [MEASURED_EMB] = {"emb", "emb"},
    [MEASURED_ALL_REDUCE] = {"all_reduce", "all_reduce"},
    [MEASURED_SEND] = {"send", "send_recv"},
    [MEASURED_SEND_NETWORK] = {"send to another node", NULL},
};

const char *measured_kind_name(measured_kind kind) {
    return kinds[kind].name;
}

/* ---- a row's fields ---- */

/* A whole field as a number of [min, max]. */
static ridge_status to_number(double *out, slice s, const char *column, double min, double max,
                              const place *at) {
    char text[64], *end = text;
    if (s.len < sizeof text) {
        memcpy(text, s.start, s.len);
        text[s.len] = 0;
        *out = strtod(text, &end);
    }
    if (s.len == 0 || s.len >= sizeof text || *end != 0 || isspace((unsigned char)text[0]))
        return FAIL_AT(at, "%s is '%.*s', expected a number", column, shown(s), s.start);
    if (!(*out >= min && *out <= max))
        return FAIL_AT(at, "%s is %g, expected %g to %g", column, *out, min, max);
    return RIDGE_OK;
}

/* ---- columns ---- */

typedef enum {
    N_HEAD,
    N_KV_HEAD,
    N_EMBD,
    N_FF,
    GATED,
    N_TOKENS,
    TP,
    N_WORKERS,
    DEVICES_PER_NODE,
    SIZE,
    N_SHAPES
} shape;

#define N_MLP_SHAPES N_WORKERS

static const struct {
    const char *column;
    double max;
} shapes[N_SHAPES] = {
    [N_HEAD] = {"n_head", 1 << 16},
    [N_KV_HEAD] = {"n_kv_head", 1 << 16},
    [N_EMBD] = {"n_embd", 1 << 24},
    [N_FF] = {"n_expanded_embd", 1 << 24},
    [GATED] = {"use_gated_mlp", 1},
    [N_TOKENS] = {"num_tokens", 1 << 28},
    [TP] = {"num_tensor_parallel_workers", 1 << 16},
    [N_WORKERS] = {"num_workers", 1 << 16},
    [DEVICES_PER_NODE] = {"devices_per_node", 1 << 16},
    [SIZE] = {"size", 1e15},
};

typedef struct {
    size_t n;
    int times[MEASURED_N_KINDS], shapes[N_SHAPES]; /* which column; -1: none */
    bool collective;
} header;

static int column_of(const slice *fields, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (slice_is(fields[i], name)) return (int)i;
    return -1;
}

static ridge_status read_header(header *h, slice line, const place *at) {
    slice fields[MAX_COLUMNS];
    h->n = slice_split(line, fields, MAX_COLUMNS);
    if (h->n > MAX_COLUMNS)
        return FAIL_AT(at, "%zu columns, expected at most %d", h->n, MAX_COLUMNS);
    bool any = false;
    for (int k = 0; k < MEASURED_N_KINDS; k++) {
        char name[64];
        h->times[k] = -1;
        if (kinds[k].column == NULL) continue;
        snprintf(name, sizeof name, "time_stats.%s.median", kinds[k].column);
        h->times[k] = column_of(fields, h->n, name);
        any |= h->times[k] >= 0;
    }
    if (!any)
        return FAIL_AT(at, "expected a header with time_stats.OPERATION.median, found '%.*s'",
                       shown(line), line.start);
    h->collective = h->times[MEASURED_ALL_REDUCE] >= 0 || h->times[MEASURED_SEND] >= 0;
    for (int s = 0; s < N_SHAPES; s++) {
        h->shapes[s] = column_of(fields, h->n, shapes[s].column);
        if (h->shapes[s] < 0 && h->collective == (s >= N_MLP_SHAPES))
            return FAIL_AT(at, "no column %s", shapes[s].column);
    }
    return RIDGE_OK;
}

static ridge_status read_shapes(double out[N_SHAPES], const header *h, const slice *fields,
                                const place *at) {
    int begin = h->collective ? N_MLP_SHAPES : 0, end = h->collective ? N_SHAPES : N_MLP_SHAPES;
    for (int s = begin; s < end; s++) {
        slice field = fields[h->shapes[s]];
        double min = s == GATED ? 0 : 1;
        if (s == GATED && (slice_is(field, "True") || slice_is(field, "False")))
            out[s] = slice_is(field, "True");
        else
            RIDGE_TRY(to_number(&out[s], field, shapes[s].column, min, shapes[s].max, at));
        if (out[s] != floor(out[s]))
            return FAIL_AT(at, "%s is %g, expected a whole number", shapes[s].column, out[s]);
    }
    return RIDGE_OK;
}

/* ---- operations ---- */

static efficiency_op linear(double m, double k, double n) {
    return (efficiency_op){.kind = EFFICIENCY_LINEAR,
                           .flops = 2 * m * n * k,
                           .bytes = VALUE_BYTES * n * k,
                           .intermediate_bytes = VALUE_BYTES * m * (n + k),
                           .m = m,
                           .n = n,
                           .k = k};
}

static efficiency_op by_row(efficiency_kind kind, double rows, double n_in, double n_out) {
    return (efficiency_op){
        .kind = kind, .intermediate_bytes = VALUE_BYTES * rows * (n_in + n_out), .m = rows};
}

/* One worker's share of a layer. */
static void set_mlp_ops(measured_sample *m, const double s[N_SHAPES]) {
    double rows = s[N_TOKENS], width = s[N_EMBD], head = width / s[N_HEAD], ff = s[N_FF] / s[TP];
    double q = head * s[N_HEAD] / s[TP], kv = head * fmax(1, s[N_KV_HEAD] / s[TP]);
    double up = s[GATED] != 0 ? 2 * ff : ff;
    m->n_ops = 1;
    switch (m->kind) {
    case MEASURED_ATTN_PRE_PROJ: m->ops[0] = linear(rows, width, q + 2 * kv); break;
    case MEASURED_ATTN_POST_PROJ: m->ops[0] = linear(rows, q, width); break;
    case MEASURED_MLP_UP_PROJ: m->ops[0] = linear(rows, width, up); break;
    case MEASURED_MLP_DOWN_PROJ: m->ops[0] = linear(rows, ff, width); break;
    case MEASURED_MLP_ACT: m->ops[0] = by_row(EFFICIENCY_GLU, rows, up, ff); break;
    case MEASURED_ADD: m->ops[0] = by_row(EFFICIENCY_ADD, rows, 2 * width, width); break;
    case MEASURED_EMB:
        m->ops[0] = by_row(EFFICIENCY_EMBED, rows, 0, width);
        m->ops[0].bytes = VALUE_BYTES * rows * width;
        break;
    case MEASURED_ROPE:
        m->n_ops = 2;
        m->ops[0] = by_row(EFFICIENCY_ROPE, rows, q, q);
        m->ops[1] = by_row(EFFICIENCY_ROPE, rows, kv, kv);
        break;
    default: /* the norms */
        m->ops[0] = by_row(EFFICIENCY_NORM, rows, width, width);
        m->ops[0].bytes = VALUE_BYTES * width;
    }
}

static ridge_status check_mlp_shapes(const double s[N_SHAPES], const place *at) {
    if (fmod(s[N_EMBD], s[N_HEAD]) != 0)
        return FAIL_AT(at, "n_embd %g is not a multiple of n_head %g", s[N_EMBD], s[N_HEAD]);
    if (fmod(s[N_HEAD], s[TP]) != 0 || fmod(s[N_FF], s[TP]) != 0)
        return FAIL_AT(at, "%g workers do not share %g heads and %g columns evenly", s[TP],
                       s[N_HEAD], s[N_FF]);
    return RIDGE_OK;
}

static void set_collective(measured_sample *m, const double s[N_SHAPES]) {
    if (m->kind == MEASURED_SEND && s[DEVICES_PER_NODE] < s[N_WORKERS])
        m->kind = MEASURED_SEND_NETWORK;
    efficiency_kind kind = m->kind == MEASURED_ALL_REDUCE ? EFFICIENCY_ALL_REDUCE
                           : m->kind == MEASURED_SEND     ? EFFICIENCY_SEND
                                                          : EFFICIENCY_SEND_NETWORK;
    m->n_ops = 1;
    m->ops[0] = (efficiency_op){.kind = kind, .bytes = s[SIZE], .n_ranks = (int)s[N_WORKERS]};
}

static ridge_status add(measured *m, const measured_sample *sample, const place *at) {
    if (!mem_grow((void **)&m->samples, &m->samples_capacity, m->n + 1, sizeof *sample))
        return RIDGE_FAIL(at->err, RIDGE_ENOMEM, "measurements");
    m->samples[m->n++] = *sample;
    return RIDGE_OK;
}

static ridge_status read_row(measured *m, const header *h, slice line, const place *at) {
    slice fields[MAX_COLUMNS];
    double s[N_SHAPES] = {0};
    size_t n = slice_split(line, fields, MAX_COLUMNS);
    if (n != h->n) return FAIL_AT(at, "%zu fields, expected %zu as in the header", n, h->n);
    RIDGE_TRY(read_shapes(s, h, fields, at));
    if (!h->collective) RIDGE_TRY(check_mlp_shapes(s, at));
    for (int k = 0; k < MEASURED_N_KINDS; k++) {
        double ms = 0;
        if (h->times[k] < 0 || fields[h->times[k]].len == 0) continue;
        RIDGE_TRY(to_number(&ms, fields[h->times[k]], kinds[k].column, 0, 1e9, at));
        if (ms == 0) continue;
        measured_sample sample = {.kind = (measured_kind)k,
                                  .seconds = ms / 1000,
                                  .workers = (int)(h->collective ? s[N_WORKERS] : s[TP]),
                                  .file = m->n_files - 1};
        if (h->collective)
            set_collective(&sample, s);
        else
            set_mlp_ops(&sample, s);
        RIDGE_TRY(add(m, &sample, at));
    }
    return RIDGE_OK;
}

/* ---- files ---- */

static ridge_status add_file(measured *m, const char *name, ridge_error *err) {
    if (!mem_grow((void **)&m->files, &m->files_capacity, m->n_files + 1, sizeof *m->files))
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "measurements");
    char *copy = mem_strdup(name);
    if (copy == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "measurements");
    m->files[m->n_files++] = copy;
    return RIDGE_OK;
}

ridge_status measured_parse(measured *m, const char *name, const char *text, size_t size,
                            ridge_error *err) {
    slice rest = slice_of_text(text, size);
    header h = {0};
    size_t n_before = m->n;
    RIDGE_TRY(add_file(m, name, err));
    place at = {.file = name, .line = 1, .err = err};
    RIDGE_TRY(read_header(&h, slice_take_line(&rest), &at));
    while (rest.len > 0) {
        slice line = slice_take_line(&rest);
        at.line++;
        if (line.len > 0) RIDGE_TRY(read_row(m, &h, line, &at));
    }
    return m->n > n_before ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: no times in it", name);
}

ridge_status measured_open(measured *m, const char *path, ridge_error *err) {
    char *text = NULL;
    size_t size = 0;
    RIDGE_TRY(file_read(&text, &size, path, MAX_BYTES, err));
    ridge_status status = measured_parse(m, path, text, size, err);
    mem_free(text);
    return status;
}

void measured_free(measured *m) {
    for (size_t i = 0; i < m->n_files; i++) mem_free(m->files[i]);
    mem_free(m->files);
    mem_free(m->samples);
    *m = (measured){0};
}

/* ---- what is held out ---- */

static bool is_collective(const measured_sample *s) {
    return s->kind >= MEASURED_ALL_REDUCE;
}

/* By kind, file and workers, then by size. */
static int compare(const void *a, const void *b) {
    const measured_sample *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->workers != y->workers) return x->workers < y->workers ? -1 : 1;
    double p = x->ops[0].bytes, q = y->ops[0].bytes;
    return (p > q) - (p < q);
}

static bool same_series(const measured_sample *a, const measured_sample *b) {
    return a->kind == b->kind && a->file == b->file && a->workers == b->workers;
}

/* Equal sizes stay together, so that no measurement is on both sides. */
static size_t hold_out_every_other(measured *m) {
    size_t n = 0, nth = 0;
    if (m->n > 0) qsort(m->samples, m->n, sizeof *m->samples, compare);
    for (size_t i = 0; i < m->n; i++) {
        measured_sample *s = &m->samples[i];
        if (!is_collective(s)) continue;
        if (i == 0 || !same_series(s - 1, s))
            nth = 0;
        else
            nth += s->ops[0].bytes > s[-1].ops[0].bytes;
        if (nth % 2 == 1) s->held_out = true, n++;
    }
    return n;
}

static size_t hold_out_workers(measured *m, int workers) {
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        if (!is_collective(&m->samples[i]) && m->samples[i].workers == workers)
            m->samples[i].held_out = true, n++;
    return n;
}

static size_t hold_out_files(measured *m, const char *text) {
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        if (strstr(m->files[m->samples[i].file], text) != NULL) m->samples[i].held_out = true, n++;
    return n;
}

static size_t hold_out(measured *m, const char *rule) {
    if (strcmp(rule, "every-other") == 0) return hold_out_every_other(m);
    if (strncmp(rule, "tp=", 3) != 0) return *rule != 0 ? hold_out_files(m, rule) : 0;
    char *end;
    long workers = strtol(rule + 3, &end, 10);
    return *end == 0 && workers > 0 && workers < INT32_MAX ? hold_out_workers(m, (int)workers) : 0;
}

ridge_status measured_hold_out(measured *m, const char *rules, ridge_error *err) {
    while (rules != NULL) {
        const char *comma = strchr(rules, ',');
        char *rule = mem_strndup(rules, comma != NULL ? (size_t)(comma - rules) : strlen(rules));
        if (rule == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "rules");
        size_t n = hold_out(m, rule);
        ridge_status status =
            n > 0 ? RIDGE_OK
                  : RIDGE_FAIL(err, RIDGE_EINVAL,
                               "'%.60s' holds no measurement out: expected tp=N, every-other or "
                               "a part of a file's name",
                               rule);
        mem_free(rule);
        RIDGE_TRY(status);
        rules = comma != NULL ? comma + 1 : NULL;
    }
    return RIDGE_OK;
}
