/* format/trace: recorded arrivals: when requests came, and how long they and their answers were.
 *
 * Two formats, told apart by the first character that is no blank:
 *   '{'   Mooncake's: a JSON object per line with timestamp (ms), input_length, output_length and
 *         hash_ids, one name per block of the prompt (512 tokens); equal names are equal text up to
 *         the end of that block. Other members are ignored, and hash_ids may be absent.
 *   else  Azure's: CSV with a header that has TIMESTAMP (2023-11-16 18:15:46.6805900),
 *         ContextTokens and GeneratedTokens among its columns.
 * Nothing is believed: a line that is not so is refused as "FILE:LINE: what". Pure; any thread.
 */
#ifndef RIDGE_FORMAT_TRACE_H
#define RIDGE_FORMAT_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TRACE_BLOCK_TOKENS 512
#define TRACE_MAX_TOKENS (1u << 24) /* of one prompt or answer */
#define TRACE_MAX_BYTES ((size_t)1 << 30)

typedef struct {
    int64_t at_us;              /* after the trace's first request */
    uint32_t n_input, n_output; /* tokens; a recorded 0 is 1: there is no such request */
    size_t first_block;         /* its names: blocks[first_block .. first_block + n_blocks) */
    uint32_t n_blocks;          /* 0: the trace names none */
} trace_request;

typedef struct {
    trace_request *requests; /* [n], in order of arrival */
    size_t n;
    int64_t *blocks; /* [n_blocks] */
    size_t n_blocks;
    size_t requests_capacity, blocks_capacity; /* private */
} trace;

/* The first `limit` requests of the text (0: all); `name` is the file's in errors. A trace without
 * a request is refused. *out is to be freed in any case. */
ridge_status trace_parse(trace *out, const char *name, const char *text, size_t size, size_t limit,
                         ridge_error *err) RIDGE_CHECKED;
void trace_free(trace *t);

/* A file's requests one after the other, in order of arrival. Every line is checked when it is
 * opened; of a file that is in order no more than one request is in memory at a time, of another
 * one all are. "-": standard input. */
typedef struct trace_reader trace_reader;

ridge_status trace_reader_open(trace_reader **out, const char *path, size_t limit,
                               ridge_error *err) RIDGE_CHECKED;
/* *more: there was one; its names are blocks[0 .. out->n_blocks), borrowed until the next call. */
ridge_status trace_reader_next(trace_reader *r, trace_request *out, const int64_t **blocks,
                               bool *more, ridge_error *err) RIDGE_CHECKED;
void trace_reader_rewind(trace_reader *r);
void trace_reader_close(trace_reader *r); /* NULL allowed */

#endif
