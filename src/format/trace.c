/* format/trace: see trace.h. */
#include "format/trace.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "format/slice.h"

#define MAX_MS 1e13 /* three centuries: far from what microseconds in 63 bits can hold */
#define MAX_COLUMNS 64

static ridge_status add(trace *t, const trace_request *r, const place *at) {
    if (!mem_grow((void **)&t->requests, &t->requests_capacity, t->n + 1, sizeof *r))
        return RIDGE_FAIL(at->err, RIDGE_ENOMEM, "the trace");
    t->requests[t->n++] = *r;
    return RIDGE_OK;
}

/* ---- Mooncake ---- */

static ridge_status read_number(double *out, const json_t *object, const char *name, double max,
                                const place *at) {
    const json_t *v = json_object_get(object, name);
    if (v == NULL) return FAIL_AT(at, "no \"%s\"", name);
    if (!json_is_number(v)) return FAIL_AT(at, "\"%s\" is not a number", name);
    *out = json_number_value(v);
    if (!(*out >= 0 && *out <= max))
        return FAIL_AT(at, "\"%s\" is %g, expected 0 to %.0f", name, *out, max);
    return RIDGE_OK;
}

static ridge_status read_length(uint32_t *out, const json_t *object, const char *name,
                                const place *at) {
    double n = 0;
    RIDGE_TRY(read_number(&n, object, name, TRACE_MAX_TOKENS, at));
    if (n != floor(n)) return FAIL_AT(at, "\"%s\" is %g, expected a whole number", name, n);
    *out = n < 1 ? 1 : (uint32_t)n;
    return RIDGE_OK;
}

static ridge_status read_blocks(trace *t, trace_request *r, const json_t *object, const place *at) {
    const json_t *ids = json_object_get(object, "hash_ids");
    r->first_block = t->n_blocks;
    if (ids == NULL || json_is_null(ids)) return RIDGE_OK;
    if (!json_is_array(ids)) return FAIL_AT(at, "\"%s\" is not a list", "hash_ids");
    size_t n = json_array_size(ids),
           most = (r->n_input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
    if (n > most)
        return FAIL_AT(at, "%zu hash_ids for %u tokens, expected at most %zu (one per %d)", n,
                       r->n_input, most, TRACE_BLOCK_TOKENS);
    if (!mem_grow((void **)&t->blocks, &t->blocks_capacity, t->n_blocks + n, sizeof *t->blocks))
        return RIDGE_FAIL(at->err, RIDGE_ENOMEM, "the trace's blocks");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id)) return FAIL_AT(at, "hash_ids[%zu] is not an integer", i);
        t->blocks[t->n_blocks++] = json_integer_value(id);
    }
    r->n_blocks = (uint32_t)n;
    return RIDGE_OK;
}

static ridge_status read_object(trace *t, const json_t *object, const place *at) {
    trace_request r = {0};
    double ms = 0;
    if (!json_is_object(object)) return FAIL_AT(at, "%s", "expected a JSON object");
    RIDGE_TRY(read_number(&ms, object, "timestamp", MAX_MS, at));
    RIDGE_TRY(read_length(&r.n_input, object, "input_length", at));
    RIDGE_TRY(read_length(&r.n_output, object, "output_length", at));
    RIDGE_TRY(read_blocks(t, &r, object, at));
    r.at_us = (int64_t)(ms * 1000);
    return add(t, &r, at);
}

static ridge_status read_mooncake(trace *t, slice line, const place *at) {
    json_error_t e;
    json_t *object = json_loadb(line.start, line.len, JSON_REJECT_DUPLICATES, &e);
    if (object == NULL) return FAIL_AT(at, "not a JSON object: %s (column %d)", e.text, e.column);
    ridge_status status = read_object(t, object, at);
    json_decref(object);
    return status;
}

/* ---- Azure ---- */

typedef struct {
    int timestamp, input, output; /* which column; -1: not seen */
} columns;

/* Blanks around a field are no part of it. */
static size_t split(slice line, slice *out) {
    size_t n = slice_split(line, out, MAX_COLUMNS);
    for (size_t i = 0; i < n && i < MAX_COLUMNS; i++) out[i] = slice_trim(out[i]);
    return n;
}

static ridge_status read_header(columns *c, slice line, const place *at) {
    slice fields[MAX_COLUMNS];
    size_t n = split(line, fields);
    *c = (columns){-1, -1, -1};
    for (size_t i = 0; i < n && i < MAX_COLUMNS; i++) {
        if (slice_is(fields[i], "TIMESTAMP")) c->timestamp = (int)i;
        if (slice_is(fields[i], "ContextTokens")) c->input = (int)i;
        if (slice_is(fields[i], "GeneratedTokens")) c->output = (int)i;
    }
    if (c->timestamp < 0 || c->input < 0 || c->output < 0)
        return FAIL_AT(at,
                       "expected JSON lines, or CSV with the columns TIMESTAMP, ContextTokens and "
                       "GeneratedTokens, found '%.*s'",
                       shown(line), line.start);
    return RIDGE_OK;
}

/* Exactly n digits at *s, which moves over them. */
static bool take_digits(const char **s, const char *end, int n, int *out) {
    *out = 0;
    if (end - *s < n) return false;
    for (int i = 0; i < n; i++, (*s)++) {
        if (!isdigit((unsigned char)**s)) return false;
        *out = *out * 10 + (**s - '0');
    }
    return true;
}

static bool take(const char **s, const char *end, const char *any) {
    if (*s == end || memchr(any, **s, strlen(any)) == NULL) return false;
    (*s)++;
    return true;
}

/* Days since 1970-01-01 of the proleptic Gregorian calendar: years counted from March, so that the
 * leap day is a year's last. */
static int64_t days_of(int year, int month, int day) {
    int64_t y = year - (month <= 2), era = y / 400, in_era = y - era * 400;
    int64_t in_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year - 719468;
}

static bool is_day(int year, int month, int day) {
    return month >= 1 && month <= 12 && day >= 1 &&
           day <= days_of(year, month + 1, 1) - days_of(year, month, 1);
}

/* "2023-11-16 18:15:46.6805900", then nothing, "Z" or an offset that is 0. */
static bool parse_time(int64_t *us, slice s) {
    const char *p = s.start, *end = s.start + s.len;
    int year, month, day, hour, minute, second, digit;
    if (!take_digits(&p, end, 4, &year) || !take(&p, end, "-") ||
        !take_digits(&p, end, 2, &month) || !take(&p, end, "-") || !take_digits(&p, end, 2, &day) ||
        !take(&p, end, " T") || !take_digits(&p, end, 2, &hour) || !take(&p, end, ":") ||
        !take_digits(&p, end, 2, &minute) || !take(&p, end, ":") ||
        !take_digits(&p, end, 2, &second))
        return false;
    if (!is_day(year, month, day) || hour > 23 || minute > 59 || second > 60) return false;
    int64_t fraction = 0, unit = 100000;
    if (take(&p, end, "."))
        for (; take_digits(&p, end, 1, &digit); unit /= 10) fraction += unit * digit;
    slice zone = {p, (size_t)(end - p)};
    if (zone.len > 0 && !slice_is(zone, "Z") && !slice_is(zone, "+00:00")) return false;
    *us = ((days_of(year, month, day) * 24 + hour) * 60 + minute) * 60 * 1000000 +
          (int64_t)second * 1000000 + fraction;
    return true;
}

static ridge_status parse_tokens(uint32_t *out, slice s, const char *column, const place *at) {
    uint64_t n = 0;
    bool ok = s.len > 0 && s.len < 12;
    for (size_t i = 0; ok && i < s.len; i++) {
        ok = isdigit((unsigned char)s.start[i]) != 0;
        n = n * 10 + (uint64_t)(s.start[i] - '0');
    }
    if (!ok || n > TRACE_MAX_TOKENS)
        return FAIL_AT(at, "%s: expected 0 to %u, found '%.*s'", column, TRACE_MAX_TOKENS, shown(s),
                       s.start);
    *out = n < 1 ? 1 : (uint32_t)n;
    return RIDGE_OK;
}

static ridge_status read_azure(trace *t, slice line, const columns *c, const place *at) {
    slice fields[MAX_COLUMNS];
    trace_request r = {0};
    size_t n = split(line, fields);
    int last = c->timestamp > c->input ? c->timestamp : c->input;
    if (c->output > last) last = c->output;
    if (n <= (size_t)last)
        return FAIL_AT(at, "%zu column%s, expected at least %d", n, plural(n), last + 1);
    slice when = fields[c->timestamp];
    if (!parse_time(&r.at_us, when))
        return FAIL_AT(at, "TIMESTAMP: expected YYYY-MM-DD HH:MM:SS[.FRACTION], found '%.*s'",
                       shown(when), when.start);
    RIDGE_TRY(parse_tokens(&r.n_input, fields[c->input], "ContextTokens", at));
    RIDGE_TRY(parse_tokens(&r.n_output, fields[c->output], "GeneratedTokens", at));
    return add(t, &r, at);
}

/* ---- both ---- */

/* Of equal times, the one that stands first in the file (its blocks do too, where it has some). */
static int by_arrival(const void *a, const void *b) {
    const trace_request *x = a, *y = b;
    if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
    return (x->first_block > y->first_block) - (x->first_block < y->first_block);
}

static void put_in_order(trace *t) {
    bool ordered = true;
    for (size_t i = 1; i < t->n && ordered; i++)
        ordered = t->requests[i - 1].at_us <= t->requests[i].at_us;
    if (!ordered) qsort(t->requests, t->n, sizeof *t->requests, by_arrival);
    int64_t first = t->n > 0 ? t->requests[0].at_us : 0;
    for (size_t i = 0; i < t->n; i++) t->requests[i].at_us -= first;
}

/* A text on its way: what is left of it, and what its lines are. */
typedef struct {
    place at;
    slice rest;
    enum { UNKNOWN, MOONCAKE, AZURE } format;
    columns columns;
} lines;

static lines lines_of(const char *name, const char *text, size_t size, ridge_error *err) {
    return (lines){.at = {.file = name, .err = err}, .rest = slice_of_text(text, size)};
}

/* The next line: a request more in t, unless it is blank or a header. */
static ridge_status read_line(trace *t, lines *l) {
    slice line = slice_trim(slice_take_line(&l->rest));
    l->at.line++;
    if (line.len == 0) return RIDGE_OK;
    if (l->format == UNKNOWN && line.start[0] != '{') {
        l->format = AZURE;
        return read_header(&l->columns, line, &l->at);
    }
    if (l->format == UNKNOWN) l->format = MOONCAKE;
    return l->format == MOONCAKE ? read_mooncake(t, line, &l->at)
                                 : read_azure(t, line, &l->columns, &l->at);
}

static ridge_status no_requests(const char *name, ridge_error *err) {
    return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: no requests", name);
}

ridge_status trace_parse(trace *out, const char *name, const char *text, size_t size, size_t limit,
                         ridge_error *err) {
    lines l = lines_of(name, text, size, err);
    *out = (trace){0};
    while (l.rest.len > 0 && (limit == 0 || out->n < limit)) RIDGE_TRY(read_line(out, &l));
    if (out->n == 0) return no_requests(name, err);
    put_in_order(out);
    return RIDGE_OK;
}

void trace_free(trace *t) {
    mem_free(t->requests);
    mem_free(t->blocks);
    *t = (trace){0};
}

/* ---- one after the other ---- */

struct trace_reader {
    char *name, *text; /* text NULL: it is the file's */
    mapfile file;
    size_t limit;
    bool in_order;
    int64_t first_us;
    /* where it is */
    lines lines;
    size_t n_read;
    trace t; /* the last request alone; of a text that is not in order, all of them */
};

static const char *text_of(const trace_reader *r, size_t *size) {
    *size = r->file.size;
    return r->text != NULL ? r->text : r->file.data != NULL ? (const char *)r->file.data : "";
}

void trace_reader_rewind(trace_reader *r) {
    size_t size;
    const char *text = text_of(r, &size);
    r->lines = lines_of(r->name, text, size, NULL);
    r->n_read = 0;
}

/* The next request alone in r->t; n = 0 when there is none. */
static ridge_status read_one(trace_reader *r, ridge_error *err) {
    r->t.n = r->t.n_blocks = 0;
    r->lines.at.err = err;
    while (r->t.n == 0 && r->lines.rest.len > 0) {
        if (r->limit > 0 && r->n_read == r->limit) break;
        RIDGE_TRY(read_line(&r->t, &r->lines));
    }
    r->n_read += r->t.n;
    return RIDGE_OK;
}

/* Every line is seen before the first is handed out. */
static ridge_status check(trace_reader *r, ridge_error *err) {
    int64_t last_us = INT64_MIN;
    r->in_order = true;
    for (;;) {
        RIDGE_TRY(read_one(r, err));
        if (r->t.n == 0) break;
        if (r->n_read == 1) r->first_us = r->t.requests[0].at_us;
        r->in_order = r->in_order && r->t.requests[0].at_us >= last_us;
        last_us = r->t.requests[0].at_us;
    }
    if (r->n_read == 0) return no_requests(r->name, err);
    size_t size;
    const char *text = text_of(r, &size);
    trace_reader_rewind(r);
    if (r->in_order) return RIDGE_OK;
    trace_free(&r->t);
    return trace_parse(&r->t, r->name, text, size, r->limit, err);
}

static ridge_status open_text(trace_reader *r, const char *path, ridge_error *err) {
    r->name = mem_strdup(path);
    if (r->name == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the trace");
    if (strcmp(path, "-") != 0) return mapfile_open(&r->file, path, err);
    return file_read(&r->text, &r->file.size, path, TRACE_MAX_BYTES, err);
}

ridge_status trace_reader_open(trace_reader **out, const char *path, size_t limit,
                               ridge_error *err) {
    trace_reader *r = mem_zalloc(1, sizeof *r);
    if (r == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the trace");
    r->limit = limit;
    ridge_status status = open_text(r, path, err);
    if (status == RIDGE_OK) {
        trace_reader_rewind(r);
        status = check(r, err);
    }
    if (status == RIDGE_OK)
        *out = r;
    else
        trace_reader_close(r);
    return status;
}

ridge_status trace_reader_next(trace_reader *r, trace_request *out, const int64_t **blocks,
                               bool *more, ridge_error *err) {
    size_t at = r->n_read;
    if (r->in_order) {
        RIDGE_TRY(read_one(r, err));
        at = 0;
    } else if (at < r->t.n) {
        r->n_read++;
    }
    *more = at < r->t.n;
    if (!*more) return RIDGE_OK;
    *out = r->t.requests[at];
    if (r->in_order) out->at_us -= r->first_us;
    *blocks = out->n_blocks > 0 ? r->t.blocks + out->first_block : NULL;
    return RIDGE_OK;
}

void trace_reader_close(trace_reader *r) {
    if (r == NULL) return;
    if (r->text == NULL) mapfile_close(&r->file);
    mem_free(r->text);
    mem_free(r->name);
    trace_free(&r->t);
    mem_free(r);
}
