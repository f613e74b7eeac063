/* load: a load generator for servers that speak OpenAI's API.
 *
 * A run is a plan and its measurement. The plan (load/plan.h) says when each request is due and how
 * long it is, from nothing but the parameters and the seed. The runner sends each when it is due,
 * whether the server keeps up or not (open loop), or a fixed number at a time (closed loop), and
 * every latency counts from when the request was due: a request that had to wait in here has waited
 * all the same (otherwise a server that stalls would be asked less just when it is slow: Tene's
 * "coordinated omission"). How late the requests really left is part of the result.
 *
 * Owns its connections and event loop; one thread, the caller's; load_run returns when all is
 * measured. Prints nothing.
 */
#ifndef RIDGE_LOAD_LOAD_H
#define RIDGE_LOAD_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stats.h"
#include "traffic/traffic.h"

#define LOAD_MAX_REQUESTS ((size_t)1 << 24)
/* Late is a run whose lateness (99th percentile) is over so many milliseconds, and over this share
 * of the median time to the first token (without a stream: to the end). */
#define LOAD_LATE_MS 10.0
#define LOAD_LATE_SHARE 0.01

/* Strings are borrowed. */
typedef struct {
    const char *url;     /* http://HOST[:PORT][/PREFIX], with or without /v1 and what follows */
    const char *model;   /* NULL: the first that the server lists */
    const char *api_key; /* NULL: none */
    bool chat;           /* /v1/chat/completions, else /v1/completions */
    bool stream;
    bool token_ids;      /* prompts are lists of ids instead of words (not with chat) */
    uint32_t vocab_size; /* of those ids */

    traffic_params traffic;
    size_t concurrency; /* TRAFFIC_AT_ONCE, which here is a closed loop: so many at a time */
    double temperature;
    bool ignore_eos;
    const char *extra_body; /* more members for every request: a JSON object, or NULL */

    size_t max_connections; /* a request that finds all busy waits, and its latency with it */
    double timeout_s;       /* per request, from when it is sent; 0: none */
    double wait_s;          /* how long the server may take until it can be reached */
    int stop_fd;            /* readable: nothing more is sent, what runs is given up; -1: none */
    const log_sink *log;
} load_params;

load_params load_params_default(void);

/* How a request ended. A name for each in load_end_name; LOAD_HTTP's is "http_429" and the like. */
#define LOAD_END_MAP(X)                                                                            \
    X(OK, "ok")                                                                                    \
    X(HTTP, "http")       /* a status other than 200 */                                            \
    X(CONNECT, "connect") /* no connection */                                                      \
    X(TIMEOUT, "timeout")                                                                          \
    X(DROPPED, "dropped")           /* the connection ended before the answer did */               \
    X(PROTOCOL, "protocol")         /* neither HTTP, nor events, nor JSON as it should be */       \
    X(STREAM_ERROR, "stream_error") /* the server reported an error within the answer */           \
    X(INCOMPLETE, "incomplete")     /* an orderly end without a finish reason */                   \
    X(INTERRUPTED, "interrupted")   /* by stop_fd */

typedef enum {
#define X(name, text) LOAD_##name,
    LOAD_END_MAP(X)
#undef X
        LOAD_N_ENDS
} load_end;

/* One request as it was measured. Times in microseconds after the run's start; 0: it never came. */
typedef struct {
    uint32_t n_input, n_output; /* planned tokens; the input with its prefix */
    int64_t due_us, sent_us, first_us, last_us, end_us;  /* first and last: of text */
    int64_t prompt_tokens, cached_tokens, output_tokens; /* by the server's account; -1: not said */
    uint32_t n_texts;                                    /* pieces that brought text */
    uint32_t *gaps_us; /* [n_texts - 1]: between one and the next */
    size_t gaps_capacity;
    load_end end;
    int http_status;
    char *message; /* what an error said; NULL: nothing. Owned */
    char finish_reason[24];
    uint64_t text_hash; /* XXH3 of the answer's text */
} load_record;

const char *load_end_name(const load_record *r, char out[static 16]);
/* From when it was due to its first text; NAN where there was none. */
double load_record_ttft_ms(const load_record *r);
/* From first to last text, over the tokens after the first; NAN where there are none. */
double load_record_tpot_ms(const load_record *r);
uint64_t load_record_tokens(const load_record *r); /* the server's count, else pieces of text */

typedef struct {
    load_record *records; /* [n], in the plan's order; only what was begun */
    size_t n;
    double seconds;    /* from the run's start to the last end */
    char *model, *url; /* as used */
    bool interrupted;
} load_result;

/* Fails before anything is measured: an impossible parameter, a bad trace, a server that cannot be
 * reached. Requests that fail are in the result. */
ridge_status load_run(load_result *out, const load_params *p, ridge_error *err) RIDGE_CHECKED;
void load_result_free(load_result *r);

#define LOAD_MAX_ERROR_KINDS 32

/* What the records come to. Latencies are of requests that succeeded; lateness is of all. */
typedef struct {
    size_t n_ok, n_failed;
    quantiles ttft_ms, tpot_ms, itl_ms, e2e_ms, late_ms;
    uint64_t input_tokens, cached_tokens, output_tokens; /* of requests that succeeded */
    size_t n_good;                                       /* met every target given */
    bool late; /* the generator, or a lack of connections, distorts the result */
    struct {
        char name[16];
        size_t count;
        const char *first; /* the first one's message, or NULL; the record's */
    } errors[LOAD_MAX_ERROR_KINDS];
    size_t n_errors;
} load_summary;

/* Targets in milliseconds; 0: none. */
ridge_status load_summarize(load_summary *out, const load_result *r, double slo_ttft_ms,
                            double slo_tpot_ms, ridge_error *err) RIDGE_CHECKED;

#endif
