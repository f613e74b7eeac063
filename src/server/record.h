/* server/record: --record FILE: one JSON line per sequence, for replaying: when it came, how long
 * prompt and answer were, which blocks of the prompt were known, how long it took; no text.
 *
 * The lines are Mooncake's (format/trace.h reads them) with more fields. They stand in the order of
 * arrival, as far as that can be: a line waits for those of all that arrived before it and are
 * known by then, unless RECORD_MAX_HELD wait for one that takes so long. Whole lines are gathered
 * in memory and handed to the system by record_flush, once a second: a disk that is full or slow
 * costs lines at the most, never more than RECORD_MAX_BYTES, and never the server.
 *
 * Event loop's thread. Owns the file and every entry.
 */
#ifndef RIDGE_SERVER_RECORD_H
#define RIDGE_SERVER_RECORD_H

#include "base/log.h"
#include "engine/engine.h"

#define RECORD_MAX_HELD 4096
#define RECORD_MAX_BYTES ((size_t)8 << 20)

typedef struct record record;
typedef struct record_entry record_entry; /* a sequence that has arrived */

typedef struct {
    uint64_t request; /* of the server: choices of one request have the same */
    double arrived_s;
    const int32_t *prompt; /* [n_prompt] */
    size_t n_prompt;
    uint64_t salt; /* names of another tenant are others */
    int priority;
} record_arrival;

typedef struct {
    double ttft_s, e2e_s; /* as the server saw them; 0: no token */
    uint32_t n_output;    /* tokens */
    engine_finish finish;
    const engine_usage *usage; /* queue time, cached tokens */
} record_outcome;

/* Makes the file, or empties it. A FIFO must have a reader. log: borrowed. */
ridge_status record_open(record **out, const char *path, const log_sink *log,
                         ridge_error *err) RIDGE_CHECKED;
/* Writes what can be written and forgets the rest. NULL allowed. */
void record_close(record *r);
/* Times count from here. */
void record_begin(record *r, double now_s);

/* NULL: no memory; the sequence is not recorded, and is counted as lost. */
record_entry *record_arrived(record *r, const record_arrival *a);
/* Ends the entry; NULL allowed. */
void record_finished(record *r, record_entry *e, const record_outcome *o);

/* Hands whole lines to the system. */
void record_flush(record *r);
bool record_is_flushed(const record *r);  /* nothing is left to hand over */
uint64_t record_n_lines(const record *r); /* taken for writing */
uint64_t record_n_lost(const record *r);

#endif
