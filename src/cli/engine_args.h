/* cli/engine_args: the flags that every command with an engine shares, and opening it. */
#ifndef RIDGE_CLI_ENGINE_ARGS_H
#define RIDGE_CLI_ENGINE_ARGS_H

#include "cli/cli.h"
#include "device/device.h"
#include "engine/engine.h"

typedef struct {
    int64_t threads, threads_batch;
    const char *cpu_affinity;
    uint64_t max_num_seqs, max_num_batched_tokens, max_model_len, block_size, kv_cache_bytes;
    const char *kv_cache_dtype;
    bool precise, prefix_caching;
    double slo_tpot_ms, slo_ttft_ms; /* 0: none */
    bool shed;
    const char *speculative, *speculative_model; /* NULL: none */
    uint64_t num_speculative_tokens;
    const char *scheduler; /* "continuous", "static" */
} engine_args;

engine_args engine_args_default(void);

/* The options to put into a command's table: { ENGINE_OPTIONS(&args), ... } */
#define ENGINE_OPTIONS(a)                                                                          \
    {"threads", CLI_INT, &(a)->threads, "threads (default: the usable processors)"},               \
        {"threads-batch", CLI_INT, &(a)->threads_batch,                                            \
         "threads of steps of more than 8 tokens (default: --threads)"},                           \
        {"cpu-affinity", CLI_STRING, &(a)->cpu_affinity,                                           \
         "pin the threads to processors: a list such as 0-3,8, or auto (default: not pinned)"},    \
        {"max-num-seqs", CLI_UINT, &(a)->max_num_seqs, "sequences running at once"},               \
        {"max-num-batched-tokens", CLI_UINT, &(a)->max_num_batched_tokens, "tokens per step"},     \
        {"max-model-len", CLI_UINT, &(a)->max_model_len,                                           \
         "context in tokens (default: the model's)"},                                              \
        {"block-size", CLI_UINT, &(a)->block_size, "tokens per block of the KV cache"},            \
        {"kv-cache-memory-bytes", CLI_BYTES, &(a)->kv_cache_bytes,                                 \
         "size of the KV cache (default: from the free memory)"},                                  \
        {"enable-prefix-caching", CLI_FLAG, &(a)->prefix_caching,                                  \
         "prompts that begin alike share what is computed (default; off: "                         \
         "--no-enable-prefix-caching)"},                                                           \
        {"speculative", CLI_STRING, &(a)->speculative,                                             \
         "ngram: verify guesses from the text's own past, several tokens a step"},                 \
        {"speculative-model", CLI_STRING, &(a)->speculative_model,                                 \
         "the same with the guesses of a smaller MODEL of the same vocabulary"},                   \
        {"num-speculative-tokens", CLI_UINT, &(a)->num_speculative_tokens,                         \
         "guesses a step, up to 16 (default: as many as pay)"},                                    \
        {"kv-cache-dtype", CLI_STRING, &(a)->kv_cache_dtype,                                       \
         "the KV cache's type: auto (f16; with --precise f32), f16, f32, q8_0 (default: auto)"},   \
    {                                                                                              \
        "precise", CLI_FLAG, &(a)->precise, "f32 activations and cache: the accuracy reference"    \
    }

/* For a command that serves: targets, and the scheduler. */
#define SLO_OPTIONS(a)                                                                             \
    {"slo-tpot", CLI_DOUBLE, &(a)->slo_tpot_ms,                                                    \
     "target in ms per token: prompts leave it to those that decode"},                             \
        {"slo-ttft", CLI_DOUBLE, &(a)->slo_ttft_ms, "target in ms to the first token"},            \
        {"scheduler", CLI_STRING, &(a)->scheduler,                                                 \
         "continuous (default), or static: for benchmarks, batches as they were before"},          \
    {                                                                                              \
        "shed", CLI_FLAG, &(a)->shed, "429 for whoever would miss --slo-ttft"                      \
    }

/* RIDGE_EINVAL names the option whose value cannot be: what the others below take for granted.
 * Asked first, before anything is opened; cli_refuse says it. */
ridge_status engine_args_check(const engine_args *a, ridge_error *err) RIDGE_CHECKED;
bool engine_args_is_static(const engine_args *a); /* --scheduler static */
/* What of them concerns the device alone. Reads RIDGE_CPU. */
void engine_args_device(const engine_args *a, device_cpu_params *out);
/* Fills the engine's parameters; *path is owned by the caller (mem_free), p borrows it (the draft
 * model's lies behind it). Reads RIDGE_CPU. */
ridge_status engine_args_params(const engine_args *a, const char *model, char **path,
                                engine_params *p, ridge_error *err) RIDGE_CHECKED;
/* The two steps in one. */
ridge_status engine_args_open(engine **out, const engine_args *a, const char *model,
                              ridge_error *err) RIDGE_CHECKED;

#endif
