/* cli/sim_runs: what `ridge sim` is asked for: one simulation, several to compare, or a search.
 * Each prints its result. */
#ifndef RIDGE_CLI_SIM_RUNS_H
#define RIDGE_CLI_SIM_RUNS_H

#include "plan/experiment.h"

#define SIM_NOT_GIVEN UINT64_MAX

/* The flags as they are given, and what becomes of them. */
typedef struct {
    experiment e;
    const char *model, *gpu, *input, *output, *kv_cache_dtype, *router, *scheduler, *disaggregate,
        *compare, *find, *prices, *dtype, *profile;
    double rate, peak_flops, bandwidth, weight_bits; /* NAN: not given */
    double memory_share, link_gbps, link_latency_us;
    double slo_ttft_ms, slo_tpot_ms, goodput_target, acceptance;
    uint64_t n_ranks, max_num_seqs, max_num_batched_tokens, max_model_len, block_size, memory,
        n_requests, max_input, max_output, prefix_tokens, n_prefixes, replicas, n_drafts, seed;
    bool prefix_caching, json;
} sim_args;

/* The GPU of that name [n], with the figures given in place of its own. */
ridge_status sim_set_gpu(const sim_args *a, experiment *e, const char *name, size_t n,
                         ridge_error *err) RIDGE_CHECKED;

ridge_status sim_once(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_compare(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_find_max_rate(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_find_cheapest(const sim_args *a, ridge_error *err) RIDGE_CHECKED;

#endif
