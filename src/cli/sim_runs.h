/* cli/sim_runs: what `ridge sim` is asked for: one simulation, several to compare, or a search.
 * Each prints its result. */
#ifndef RIDGE_CLI_SIM_RUNS_H
#define RIDGE_CLI_SIM_RUNS_H

#include "cli/traffic_args.h"
#include "plan/experiment.h"

#define SIM_NOT_GIVEN UINT64_MAX

typedef struct {
    uint64_t n_tensor, n_stages, n_expert, n_redundant;
} sim_split_args;

/* The flags as they are given, and what becomes of them. */
typedef struct {
    experiment e;
    char *path, *draft_path; /* of the models, as plan_model_open takes them; owned */
    traffic_args traffic;
    const char *model, *gpu, *kv_cache_dtype, *router, *scheduler, *disaggregate, *compare, *find,
        *prices, *dtype, *profile, *draft, *rates, *plot;
    /* NAN: not given */
    double peak_flops, bandwidth, link_bandwidth, network_bandwidth, weight_bits, link_gbps;
    double memory_share, expert_imbalance, link_latency_us, goodput_target, acceptance;
    sim_split_args split, decode;
    uint64_t n_node, max_num_seqs, max_num_batched_tokens, max_model_len, block_size, memory,
        replicas, n_drafts;
    bool prefix_caching, pace, halves, json;
} sim_args;

/* The GPU of that name [n], with the figures given in place of its own; and what of its peaks is
 * reached. */
ridge_status sim_set_gpu(const sim_args *a, experiment *e, const char *name, size_t n,
                         ridge_error *err) RIDGE_CHECKED;

ridge_status sim_once(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_compare(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_find_max_rate(const sim_args *a, ridge_error *err) RIDGE_CHECKED;
ridge_status sim_find_cheapest(const sim_args *a, ridge_error *err) RIDGE_CHECKED;

#endif
