/* cli/engine_args: the flags that open an engine and those that sample, the same in every command;
 * the machine's measured peaks; the text that a command reads.
 */
#ifndef RIDGE_CLI_ENGINE_ARGS_H
#define RIDGE_CLI_ENGINE_ARGS_H

#include "cli/cli.h"
#include "engine/engine.h"
#include "roof/roof.h"

typedef struct {
    int64_t threads;
    uint64_t max_num_seqs, max_num_batched_tokens, max_model_len, block_size, kv_cache_bytes;
    bool precise;
} engine_args;

#define ENGINE_ARGS_OPTIONS 7
#define SAMPLING_ARGS_OPTIONS 11

/* Puts defaults into *a and its flags into options [ENGINE_ARGS_OPTIONS]. */
void engine_args_options(engine_args *a, cli_option *options);
/* The engine of MODEL (a file or a name in the cache) as the flags say; RIDGE_CPU forces the path
 * through the kernels. */
ridge_status engine_args_open(engine **out, const engine_args *a, const char *model,
                              ridge_error *err) RIDGE_CHECKED;

typedef struct {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;
    uint64_t seed, max_tokens, min_tokens;
    const char *stop; /* NULL: none */
} sampling_args;

void sampling_args_options(sampling_args *a, cli_option *options /* [SAMPLING_ARGS_OPTIONS] */);
/* Into r, whose stop strings point into *a. */
ridge_status sampling_args_apply(const sampling_args *a, engine_request *r,
                                 ridge_error *err) RIDGE_CHECKED;

/* The peaks of this machine for a working set of that size: measured once (half a second), then
 * kept in the model cache. False when they cannot be had. */
bool cli_peaks(roof_peaks *out, const char *isa, int n_threads, uint64_t working_set_bytes);
const char *cli_cpu_name(char *text, size_t size); /* "Intel(R) Xeon(R) ..." */

/* All of standard input: owned. */
ridge_status cli_read_stdin(char **out, size_t *size, ridge_error *err) RIDGE_CHECKED;

#endif
