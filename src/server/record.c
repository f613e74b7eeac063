/* server/record: see record.h. */
#include "server/record.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "server/block_ids.h"

#define KNOWN_BLOCKS ((size_t)1 << 18) /* up to 16 MiB, for prompts of 128 M tokens */

struct record_entry {
    record_entry *previous, *next; /* arrived before, and after */
    uint64_t request;
    double arrived_s;
    int priority;
    buf line; /* once finished */
    bool finished;
    size_t n_prompt, n_ids;
    uint64_t ids[]; /* [n_ids] */
};

struct record {
    int fd;
    char *path;
    const log_sink *log;
    double began_s;
    block_ids *names;
    record_entry *first, *last; /* in the order of arrival */
    size_t n_held;              /* finished, behind one that isn't */
    buf out;
    size_t n_out; /* bytes of `out` that have been written */
    uint64_t n_lines, n_lost;
    bool complained;
};

ridge_status record_open(record **out, const char *path, const log_sink *log, ridge_error *err) {
    record *r = mem_zalloc(1, sizeof *r);
    if (r == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "--record");
    r->log = log;
    r->out.limit = RECORD_MAX_BYTES;
    r->path = mem_strdup(path);
    r->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
    ridge_status status = RIDGE_OK;
    if (r->fd < 0)
        status = error_set_errno(err, RIDGE_EIO, "--record: cannot write %s", path);
    else if (r->path == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "--record");
    if (status == RIDGE_OK) status = block_ids_create(&r->names, KNOWN_BLOCKS, err);
    if (status != RIDGE_OK) {
        record_close(r);
        return status;
    }
    *out = r;
    return RIDGE_OK;
}

static void entry_free(record_entry *e) {
    buf_free(&e->line);
    mem_free(e);
}

void record_close(record *r) {
    if (r == NULL) return;
    if (r->fd >= 0) {
        record_flush(r);
        close(r->fd);
    }
    for (size_t i = r->n_out; i < r->out.len; i++) r->n_lost += r->out.data[i] == '\n';
    if (r->n_lost > 0)
        log_printf(r->log, LOG_WARN, "--record %s: %llu line%s lost", r->path,
                   (unsigned long long)r->n_lost, r->n_lost == 1 ? " is" : "s are");
    for (record_entry *e = r->first, *next; e != NULL; e = next) {
        next = e->next;
        entry_free(e);
    }
    block_ids_destroy(r->names);
    buf_free(&r->out);
    mem_free(r->path);
    mem_free(r);
}

void record_begin(record *r, double now_s) {
    r->began_s = now_s;
}

/* From the back: a large prompt may be read for longer than one that came after it. */
static void insert(record *r, record_entry *e) {
    record_entry *before = r->last;
    while (before != NULL && before->arrived_s > e->arrived_s) before = before->previous;
    e->previous = before;
    e->next = before != NULL ? before->next : r->first;
    *(e->previous != NULL ? &e->previous->next : &r->first) = e;
    *(e->next != NULL ? &e->next->previous : &r->last) = e;
}

static void remove_entry(record *r, record_entry *e) {
    *(e->previous != NULL ? &e->previous->next : &r->first) = e->next;
    *(e->next != NULL ? &e->next->previous : &r->last) = e->previous;
    entry_free(e);
}

record_entry *record_arrived(record *r, const record_arrival *a) {
    size_t n_ids = block_ids_count(a->n_prompt);
    record_entry *e = mem_zalloc(1, sizeof *e + n_ids * sizeof *e->ids);
    if (e == NULL) {
        r->n_lost++;
        return NULL;
    }
    e->request = a->request;
    e->arrived_s = a->arrived_s;
    e->priority = a->priority;
    e->n_prompt = a->n_prompt;
    e->n_ids = n_ids;
    block_ids_name(r->names, a->salt, a->prompt, a->n_prompt, e->ids);
    insert(r, e);
    return e;
}

/* ---- lines ---- */

static void put_ms(buf *b, const char *name, bool known, double seconds) {
    if (known)
        buf_printf(b, ", \"%s\": %.3f", name, seconds > 0 ? seconds * 1e3 : 0);
    else
        buf_printf(b, ", \"%s\": null", name);
}

static void write_line(const record *r, record_entry *e, const record_outcome *o) {
    static const char *const reasons[] = {"", "stop", "length", "abort", "error"};
    buf *b = &e->line;
    double at_ms = (e->arrived_s - r->began_s) * 1e3;
    buf_printf(b, "{\"timestamp\": %.0f, \"input_length\": %zu, \"output_length\": %u, ",
               at_ms > 0 ? at_ms : 0, e->n_prompt, o->n_output);
    buf_puts(b, "\"hash_ids\": [");
    for (size_t i = 0; i < e->n_ids; i++)
        buf_printf(b, "%s%llu", i > 0 ? ", " : "", (unsigned long long)e->ids[i]);
    buf_putc(b, ']');
    put_ms(b, "queue_ms", o->usage->prefill.n_steps > 0, o->usage->queue_s);
    put_ms(b, "ttft_ms", o->ttft_s > 0, o->ttft_s);
    put_ms(b, "e2e_ms", true, o->e2e_s);
    buf_printf(b,
               ", \"cached_tokens\": %u, \"finish_reason\": \"%s\", \"priority\": %d, "
               "\"request\": %llu}\n",
               o->usage->cached_tokens, reasons[o->finish], e->priority,
               (unsigned long long)e->request);
}

/* Into the buffer, whole or not at all. */
static void take_line(record *r, const buf *line) {
    if (line->failed || r->out.len + line->len > RECORD_MAX_BYTES) {
        r->n_lost++;
        return;
    }
    buf_append(&r->out, line->data, line->len);
    if (r->out.failed) { /* nothing of it was appended */
        r->out.failed = false;
        r->n_lost++;
    } else {
        r->n_lines++;
    }
}

/* Takes the lines of finished entries: those at the front, or all. */
static void take_lines(record *r, bool all) {
    for (record_entry *e = r->first, *next; e != NULL && (all || e->finished); e = next) {
        next = e->next;
        if (!e->finished) continue;
        take_line(r, &e->line);
        remove_entry(r, e);
        r->n_held--;
    }
}

void record_finished(record *r, record_entry *e, const record_outcome *o) {
    if (e == NULL) return;
    write_line(r, e, o);
    e->finished = true;
    r->n_held++;
    take_lines(r, r->n_held > RECORD_MAX_HELD);
}

/* ---- the file ---- */

static void complain(record *r, int error) {
    if (r->complained) return;
    r->complained = true;
    log_printf(r->log, LOG_WARN,
               "--record: cannot write %s: %s; lines are kept up to %zu bytes, then lost", r->path,
               strerror(error), RECORD_MAX_BYTES);
}

void record_flush(record *r) {
    while (r->n_out < r->out.len) {
        ssize_t n = write(r->fd, r->out.data + r->n_out, r->out.len - r->n_out);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) complain(r, errno);
        if (n <= 0) break;
        r->n_out += (size_t)n;
    }
    if (r->n_out == 0) return;
    size_t left = r->out.len - r->n_out;
    memmove(r->out.data, r->out.data + r->n_out, left);
    r->out.len = left;
    r->n_out = 0;
}

bool record_is_flushed(const record *r) {
    return r->out.len == 0;
}

uint64_t record_n_lines(const record *r) {
    return r->n_lines;
}

uint64_t record_n_lost(const record *r) {
    return r->n_lost;
}
