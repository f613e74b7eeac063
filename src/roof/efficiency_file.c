/* efficiency_file: profiles as JSON.
 *
 *     {"format": "ridge efficiency profile", "version": 1, "name": "h100", "made": "ridge plan
 * ...", "activations": 1.0, "kinds": {"linear": {"compute": 0.7, "bandwidth": 0.9, "link": 1.0,
 * "overhead_s": 5e-06, "sharpness": 2.0, "wave_outputs": 1e+05, "from": "..."}, ...}}
 *
 * A kind that a file leaves out is ideal, and so is a number; an infinite sharpness is null. A
 * profile of a machine that is in no table has that machine's peaks:
 *
 *     "machine": {"title": "...", "flops_per_s": 5e+11, "bytes_per_s": 2e+10, "memory_bytes": 1e10}
 *
 * and, where somebody has added them, "link_bytes_per_s" and "network_bytes_per_s", from one of its
 * kind to another. What serving adds to a step may stand in any profile; one without it adds
 * nothing:
 *
 *     "host": {"step_s": 0.0003, "token_s": 4e-05}
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "roof/efficiency.h"

#define FORMAT "ridge efficiency profile"
#define VERSION 1

static const char *const kind_names[EFFICIENCY_N_KINDS] = {
    [EFFICIENCY_LINEAR] = "linear",
    [EFFICIENCY_EXPERTS] = "experts",
    [EFFICIENCY_ATTENTION_PREFILL] = "attention_prefill",
    [EFFICIENCY_ATTENTION_DECODE] = "attention_decode",
    [EFFICIENCY_EMBED] = "embed",
    [EFFICIENCY_NORM] = "norm",
    [EFFICIENCY_ROPE] = "rope",
    [EFFICIENCY_CACHE_WRITE] = "cache_write",
    [EFFICIENCY_GLU] = "glu",
    [EFFICIENCY_ADD] = "add",
    [EFFICIENCY_ROWS] = "rows",
    [EFFICIENCY_ALL_REDUCE] = "all_reduce",
    [EFFICIENCY_ALL_GATHER] = "all_gather",
    [EFFICIENCY_SEND] = "send",
    [EFFICIENCY_SEND_NETWORK] = "send_network",
};

const char *efficiency_kind_name(efficiency_kind kind) {
    return kind_names[kind];
}

/* The numbers of a kind, and what they may be. Their order is that of the file. */
static const struct {
    const char *name;
    size_t offset;
    double min, max;
} fields[] = {
    {"compute", offsetof(efficiency_numbers, compute), 1e-6, 100},
    {"bandwidth", offsetof(efficiency_numbers, bandwidth), 1e-6, 100},
    {"link", offsetof(efficiency_numbers, link), 1e-6, 100},
    {"overhead_s", offsetof(efficiency_numbers, overhead_s), 0, 1},
    {"latency_s", offsetof(efficiency_numbers, latency_s), 0, 1},
    {"sharpness", offsetof(efficiency_numbers, sharpness), 1, 1e6},
    {"wave_outputs", offsetof(efficiency_numbers, wave_outputs), 0, 1e12},
    {"few_tokens", offsetof(efficiency_numbers, few_tokens), 0, 1e6},
    {"few_compute", offsetof(efficiency_numbers, few_compute), 1e-6, 100},
    {"unpack_tokens", offsetof(efficiency_numbers, unpack_tokens), 0, 1e6},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

static double *field_of(efficiency_numbers *c, size_t i) {
    return (double *)((char *)c + fields[i].offset);
}

/* ---- reading ---- */

static ridge_status read_text(char *out, size_t size, const json_t *object, const char *name,
                              ridge_error *err) {
    const json_t *v = json_object_get(object, name);
    if (!json_is_string(v))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"%s\": expected a string", name);
    if (json_string_length(v) >= size)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"%s\": %zu bytes, expected at most %zu", name,
                          json_string_length(v), size - 1);
    snprintf(out, size, "%s", json_string_value(v));
    return RIDGE_OK;
}

static ridge_status read_number(double *out, const json_t *v, const char *path, double min,
                                double max, ridge_error *err) {
    if (!json_is_number(v)) return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: expected a number", path);
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: %g, expected %g to %g", path, x, min, max);
    *out = x;
    return RIDGE_OK;
}

static ridge_status read_numbers(efficiency_numbers *c, const char *name, json_t *object,
                                 ridge_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "kinds.%s: expected an object", name);
    json_object_foreach(object, key, value) {
        char path[96];
        size_t i = 0;
        snprintf(path, sizeof path, "kinds.%s.%.32s", name, key);
        if (strcmp(key, "from") == 0) {
            RIDGE_TRY(read_text(c->from, sizeof c->from, object, "from", err));
            continue;
        }
        while (i < N_FIELDS && strcmp(key, fields[i].name) != 0) i++;
        if (i == N_FIELDS) return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: unknown field", path);
        if (json_is_null(value) && strcmp(key, "sharpness") == 0)
            c->sharpness = INFINITY;
        else
            RIDGE_TRY(read_number(field_of(c, i), value, path, fields[i].min, fields[i].max, err));
    }
    return RIDGE_OK;
}

static ridge_status read_kinds(efficiency_profile *p, json_t *kinds, ridge_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(kinds))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"kinds\": expected an object");
    json_object_foreach(kinds, key, value) {
        int c = 0;
        while (c < EFFICIENCY_N_KINDS && strcmp(key, kind_names[c]) != 0) c++;
        if (c == EFFICIENCY_N_KINDS)
            return RIDGE_FAIL(err, RIDGE_EFORMAT, "kinds.%.32s: no such kind", key);
        RIDGE_TRY(read_numbers(&p->kinds[c], kind_names[c], value, err));
    }
    return RIDGE_OK;
}

/* The peaks of a machine, and what they may be, in the order of the file. */
static const struct {
    const char *name;
    size_t offset;
    bool optional;
} machine_fields[] = {
    {"flops_per_s", offsetof(efficiency_machine, flops_per_s), false},
    {"bytes_per_s", offsetof(efficiency_machine, bytes_per_s), false},
    {"memory_bytes", offsetof(efficiency_machine, memory_bytes), false},
    {"link_bytes_per_s", offsetof(efficiency_machine, link_bytes_per_s), true},
    {"network_bytes_per_s", offsetof(efficiency_machine, network_bytes_per_s), true},
};
#define N_MACHINE_FIELDS (sizeof machine_fields / sizeof *machine_fields)

static double *machine_field(efficiency_machine *m, size_t i) {
    return (double *)((char *)m + machine_fields[i].offset);
}

static ridge_status read_machine(efficiency_machine *m, const json_t *object, ridge_error *err) {
    if (!json_is_object(object))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"machine\": expected an object");
    size_t n_known = 1;
    RIDGE_TRY(read_text(m->title, sizeof m->title, object, "title", err));
    for (size_t i = 0; i < N_MACHINE_FIELDS; i++) {
        char path[40];
        const json_t *value = json_object_get(object, machine_fields[i].name);
        if (value == NULL && machine_fields[i].optional) continue;
        n_known++;
        snprintf(path, sizeof path, "machine.%s", machine_fields[i].name);
        RIDGE_TRY(read_number(machine_field(m, i), value, path, 1e6, 1e21, err));
    }
    return json_object_size(object) == n_known
               ? RIDGE_OK
               : RIDGE_FAIL(err, RIDGE_EFORMAT,
                            "machine: unknown fields: expected title, flops_per_s, bytes_per_s, "
                            "memory_bytes and perhaps link_bytes_per_s and network_bytes_per_s");
}

static ridge_status read_host(efficiency_host *h, const json_t *object, ridge_error *err) {
    if (!json_is_object(object) || json_object_size(object) != 2)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"host\": expected an object of step_s and token_s");
    RIDGE_TRY(read_number(&h->step_s, json_object_get(object, "step_s"), "host.step_s", 0, 1, err));
    return read_number(&h->token_s, json_object_get(object, "token_s"), "host.token_s", 0, 1, err);
}

static ridge_status read_profile(efficiency_profile *p, const json_t *root, ridge_error *err) {
    char format[40];
    double version;
    if (!json_is_object(root)) return RIDGE_FAIL(err, RIDGE_EFORMAT, "expected an object");
    RIDGE_TRY(read_text(format, sizeof format, root, "format", err));
    if (strcmp(format, FORMAT) != 0)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "\"format\": '%s', expected '%s'", format, FORMAT);
    RIDGE_TRY(read_number(&version, json_object_get(root, "version"), "\"version\"", VERSION,
                          VERSION, err));
    RIDGE_TRY(read_text(p->name, sizeof p->name, root, "name", err));
    RIDGE_TRY(read_text(p->made, sizeof p->made, root, "made", err));
    RIDGE_TRY(read_number(&p->activations, json_object_get(root, "activations"), "\"activations\"",
                          0, 1, err));
    RIDGE_TRY(read_kinds(p, json_object_get(root, "kinds"), err));
    const json_t *machine = json_object_get(root, "machine"), *host = json_object_get(root, "host");
    if (machine != NULL) RIDGE_TRY(read_machine(&p->machine, machine, err));
    if (host != NULL) RIDGE_TRY(read_host(&p->host, host, err));
    return json_object_size(root) == 6u + (machine != NULL) + (host != NULL)
               ? RIDGE_OK
               : RIDGE_FAIL(err, RIDGE_EFORMAT,
                            "unknown fields: expected format, version, name, made, activations, "
                            "kinds and perhaps machine and host");
}

ridge_status efficiency_parse(efficiency_profile *out, const char *where, const char *text,
                              size_t size, ridge_error *err) {
    json_error_t e;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    efficiency_profile p = efficiency_ideal();
    ridge_status status =
        root != NULL ? read_profile(&p, root, err)
                     : RIDGE_FAIL(err, RIDGE_EFORMAT, "line %d: not JSON: %s", e.line, e.text);
    json_decref(root);
    if (status != RIDGE_OK) {
        error_where(err, where);
        return status;
    }
    *out = p;
    return RIDGE_OK;
}

static ridge_status parse_file(efficiency_profile *out, const char *path, ridge_error *err) {
    char *text = NULL;
    size_t size = 0;
    RIDGE_TRY(file_read(&text, &size, path, EFFICIENCY_MAX_BYTES, err));
    ridge_status status = efficiency_parse(out, path, text, size, err);
    mem_free(text);
    return status;
}

/* ---- writing ---- */

static void write_numbers(buf *b, efficiency_numbers c) {
    buf_puts(b, "{");
    for (size_t i = 0; i < N_FIELDS; i++) {
        buf_printf(b, "\"%s\": ", fields[i].name);
        buf_json_double(b, *field_of(&c, i)); /* infinite: null */
        buf_puts(b, ", ");
    }
    buf_puts(b, "\"from\": ");
    buf_json_string(b, c.from, strlen(c.from));
    buf_puts(b, "}");
}

static void write_machine(buf *b, efficiency_machine m) {
    buf_puts(b, ",\n \"machine\": {\"title\": ");
    buf_json_string(b, m.title, strlen(m.title));
    for (size_t i = 0; i < N_MACHINE_FIELDS; i++) {
        if (machine_fields[i].optional && *machine_field(&m, i) == 0) continue;
        buf_printf(b, ", \"%s\": ", machine_fields[i].name);
        buf_json_double(b, *machine_field(&m, i));
    }
    buf_puts(b, "}");
}

static void write_host(buf *b, const efficiency_host *h) {
    buf_puts(b, ",\n \"host\": {\"step_s\": ");
    buf_json_double(b, h->step_s);
    buf_puts(b, ", \"token_s\": ");
    buf_json_double(b, h->token_s);
    buf_puts(b, "}");
}

void efficiency_write(buf *b, const efficiency_profile *p) {
    buf_printf(b, "{\"format\": \"%s\", \"version\": %d,\n \"name\": ", FORMAT, VERSION);
    buf_json_string(b, p->name, strlen(p->name));
    buf_puts(b, ",\n \"made\": ");
    buf_json_string(b, p->made, strlen(p->made));
    if (p->machine.flops_per_s > 0) write_machine(b, p->machine);
    if (p->host.step_s > 0 || p->host.token_s > 0) write_host(b, &p->host);
    buf_puts(b, ",\n \"activations\": ");
    buf_json_double(b, p->activations);
    buf_puts(b, ",\n \"kinds\": {");
    for (int c = 0; c < EFFICIENCY_N_KINDS; c++) {
        buf_printf(b, "%s\n  \"%s\": ", c > 0 ? "," : "", kind_names[c]);
        write_numbers(b, p->kinds[c]);
    }
    buf_puts(b, "}}\n");
}

/* ---- finding ---- */

ridge_status efficiency_find(efficiency_profile *out, const char *name, ridge_error *err) {
    if (strcmp(name, "ideal") == 0) {
        *out = efficiency_ideal();
        return RIDGE_OK;
    }
    buf known = {0};
    buf_puts(&known, "ideal");
    for (const efficiency_builtin *b = efficiency_builtins; b->name != NULL; b++) {
        if (strcmp(name, b->name) == 0) {
            buf_free(&known);
            return efficiency_parse(out, name, b->text, strlen(b->text), err);
        }
        buf_printf(&known, ", %s", b->name);
    }
    ridge_status status = RIDGE_OK;
    if (access(name, F_OK) != 0 && strchr(name, '/') == NULL && strchr(name, '.') == NULL)
        status =
            RIDGE_FAIL(err, RIDGE_ENOTFOUND, "no efficiency profile '%s': expected %s or a file",
                       name, known.failed ? "a name" : known.data);
    buf_free(&known);
    return status == RIDGE_OK ? parse_file(out, name, err) : status;
}
