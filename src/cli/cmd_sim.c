/* ridge sim: traffic through simulated deployments. The flags; what is done with them is in
 * sim_runs.c, and how in plan/. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/shape_args.h"
#include "cli/sim_runs.h"
#include "engine/engine.h"
#include "plan/machine.h"

#define USAGE "sim --model MODEL --gpu NAME [--trace FILE | --rate R] [OPTION ...]"

#define MOST_REPLICAS 1024

/* ---- from flags to an experiment ---- */

static ridge_status set_scheduler(const sim_args *a, sched_params *s, ridge_error *err) {
    s->static_batches = strcmp(a->scheduler, "static") == 0;
    if (!s->static_batches && strcmp(a->scheduler, "continuous") != 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--scheduler: expected continuous or static, found '%s'", a->scheduler);
    s->prefix_caching = a->prefix_caching;
    RIDGE_TRY(cli_whole(&s->max_num_seqs, "max-num-seqs", a->max_num_seqs, 1, 1u << 16, err));
    RIDGE_TRY(cli_whole(&s->max_num_batched_tokens, "max-num-batched-tokens",
                        a->max_num_batched_tokens, 1, LENGTH_MAX, err));
    RIDGE_TRY(cli_whole(&s->max_model_len, "max-model-len", a->max_model_len, 0, LENGTH_MAX, err));
    return cli_whole(&s->block_size, "block-size", a->block_size, 1, ENGINE_MAX_BLOCK_SIZE, err);
}

/* What is not given stays as it is. */
static ridge_status set_split(const sim_split_args *a, model_split *s, const char *prefix,
                              ridge_error *err) {
    const struct {
        uint32_t *out;
        const char *flag;
        uint64_t value, least, most;
    } parts[] = {
        {&s->n_tensor, "tensor-parallel-size", a->n_tensor, 1, MACHINE_MAX_TENSOR},
        {&s->n_stages, "pipeline-parallel-size", a->n_stages, 1, SIM_MAX_STAGES},
        {&s->n_expert, "expert-parallel-size", a->n_expert, 1, MACHINE_MAX_EXPERT},
        {&s->n_redundant, "num-redundant-experts", a->n_redundant, 0, MODEL_MAX_EXPERTS},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char flag[64];
        if (parts[i].value == SIM_NOT_GIVEN) continue;
        snprintf(flag, sizeof flag, "%s%s", prefix, parts[i].flag);
        RIDGE_TRY(
            cli_whole(parts[i].out, flag, parts[i].value, parts[i].least, parts[i].most, err));
    }
    return RIDGE_OK;
}

static ridge_status set_disaggregation(const sim_args *a, experiment *e, ridge_error *err) {
    const sim_split_args *d = &a->decode;
    if (a->disaggregate == NULL) {
        bool apart = d->n_tensor != SIM_NOT_GIVEN || d->n_stages != SIM_NOT_GIVEN ||
                     d->n_expert != SIM_NOT_GIVEN || d->n_redundant != SIM_NOT_GIVEN;
        if (!apart || a->compare != NULL) return RIDGE_OK;
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--decode-... is of replicas for answers only: --disaggregate xPyD");
    }
    if (a->replicas > 1)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--replicas and --disaggregate exclude each other");
    char variant[64];
    snprintf(variant, sizeof variant, "disagg=%.32s", a->disaggregate);
    bool one = strchr(a->disaggregate, '+') == NULL;
    if (one && experiment_vary(e, variant, NULL) == RIDGE_OK) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "--disaggregate: expected xPyD, such as 2P1D, found '%s'",
                      a->disaggregate);
}

static ridge_status set_cluster(const sim_args *a, experiment *e, ridge_error *err) {
    sim_params *p = &e->sim;
    RIDGE_TRY(cli_whole(&p->pool.n_replicas, "replicas", a->replicas, 1, MOST_REPLICAS, err));
    RIDGE_TRY(set_split(&a->split, &e->split, "", err));
    RIDGE_TRY(set_split(&a->decode, &e->decode_split, "decode-", err));
    RIDGE_TRY(cli_whole(&e->n_node, "gpus-per-node", a->n_node, 1, MODEL_MAX_RANKS, err));
    RIDGE_TRY(cli_real(&e->expert_imbalance, "expert-imbalance", a->expert_imbalance, 1, 1e3, err));
    e->halves = a->halves;
    if (!sim_router_find(a->router, &p->router))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--router: expected round-robin, least-loaded or prefix, found '%s'",
                          a->router);
    if (!isnan(a->link_gbps))
        RIDGE_TRY(cli_real(&p->link_bytes_per_s, "link-gbps", a->link_gbps, 1e-6, 1e9, err));
    p->link_bytes_per_s *= 1e9 / 8;
    RIDGE_TRY(cli_real(&p->link_latency_s, "link-latency-us", a->link_latency_us, 0, 1e9, err));
    p->link_latency_s /= 1e6;
    return set_disaggregation(a, e, err);
}

/* In place of a GPU's own, as far as they are given. */
static ridge_status check_figures(const sim_args *a, ridge_error *err) {
    double unused;
    if (!isnan(a->peak_flops))
        RIDGE_TRY(cli_real(&unused, "peak-flops", a->peak_flops, 1e6, 1e21, err));
    if (!isnan(a->bandwidth))
        RIDGE_TRY(cli_real(&unused, "bandwidth", a->bandwidth, 1e6, 1e18, err));
    if (!isnan(a->link_bandwidth))
        RIDGE_TRY(cli_real(&unused, "link-bandwidth", a->link_bandwidth, 1e6, 1e18, err));
    if (!isnan(a->network_bandwidth))
        RIDGE_TRY(cli_real(&unused, "network-bandwidth", a->network_bandwidth, 1e6, 1e18, err));
    if (a->memory != SIM_NOT_GIVEN)
        RIDGE_TRY(cli_real(&unused, "memory", (double)a->memory, 1e6, 1e18, err));
    return RIDGE_OK;
}

static ridge_status set_machine(sim_args *a, experiment *e, ridge_error *err) {
    RIDGE_TRY(shape_path(&a->path, a->model, err));
    e->model = a->path;
    RIDGE_TRY(shape_dtype(&e->dtype, &e->file_weights, a->path, a->dtype, a->weight_bits, err));
    RIDGE_TRY(check_figures(a, err));
    bool cheapest = a->find != NULL && strcmp(a->find, "cheapest") == 0;
    if (!cheapest) RIDGE_TRY(sim_set_gpu(a, e, a->gpu, strlen(a->gpu), err));
    RIDGE_TRY(cli_real(&e->memory_share, "gpu-memory-utilization", a->memory_share, 0.01, 1, err));
    if (strcmp(a->kv_cache_dtype, "auto") == 0) return RIDGE_OK;
    if (dev_kv_type_find(a->kv_cache_dtype, &e->kv_type)) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "--kv-cache-dtype: expected auto, f16, f32, q8_0, fp8 or fp6, found '%s'",
                      a->kv_cache_dtype);
}

static ridge_status set_experiment(sim_args *a, ridge_error *err) {
    experiment *e = &a->e;
    sim_params *p = &e->sim;
    if (a->model == NULL || a->gpu == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s is needed", a->model == NULL ? "model" : "gpu");
    RIDGE_TRY(set_machine(a, e, err));
    RIDGE_TRY(set_scheduler(a, &p->pool.sched, err));
    RIDGE_TRY(set_cluster(a, e, err));
    RIDGE_TRY(traffic_args_read(&a->traffic, &e->traffic, err));
    RIDGE_TRY(cli_whole(&p->n_drafts, "num-speculative-tokens", a->n_drafts, 0, 64, err));
    RIDGE_TRY(cli_real(&p->acceptance, "acceptance", a->acceptance, 0, 1, err));
    if (a->draft != NULL && p->n_drafts == 0 && a->compare == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--speculative-model needs guesses to make: --num-speculative-tokens N");
    if (a->draft != NULL) RIDGE_TRY(shape_path(&a->draft_path, a->draft, err));
    e->draft = a->draft_path;
    p->slo_ttft_s = a->traffic.slo_ttft_ms / 1e3;
    p->slo_tpot_s = a->traffic.slo_tpot_ms / 1e3;
    p->seed = a->traffic.seed;
    p->pace = a->pace;
    return RIDGE_OK;
}

/* ---- the command ---- */

/* What could have no effect. Of several that are compared, each may have what another has not. */
static ridge_status check_effects(const sim_args *a, ridge_error *err) {
    bool one = a->compare == NULL, rate = a->e.traffic.arrivals == TRAFFIC_POISSON;
    bool max_rate = a->find != NULL && strcmp(a->find, "max-rate") == 0;
    bool link = !isnan(a->link_gbps) || a->link_latency_us > 0;
    bool experts = a->e.split.n_expert > 1 || a->e.decode_split.n_expert > 1;
    const struct {
        bool idle;
        const char *why;
    } rules[] = {
        {!one && a->find != NULL, "--compare and --find exclude each other"},
        {one && a->rates != NULL, "--rates goes with --compare"},
        {a->rates == NULL && a->plot != NULL, "--plot needs several rates: --compare and --rates"},
        {rate && a->rates != NULL, "--rate and --rates exclude each other"},
        {rate && max_rate, "--rate and --find max-rate exclude each other"},
        {a->find == NULL && !isnan(a->goodput_target), "--goodput-target goes with --find"},
        {one && a->disaggregate == NULL && link, "--link-... is of --disaggregate xPyD"},
        {one && a->n_drafts == 0 && a->acceptance > 0,
         "--acceptance needs guesses: --num-speculative-tokens N"},
        {one && !experts && a->expert_imbalance > 1,
         "--expert-imbalance is of --expert-parallel-size N"},
        {one && !experts && a->halves, "--enable-dbo is of --expert-parallel-size N"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].idle) return RIDGE_FAIL(err, RIDGE_EINVAL, "%s", rules[i].why);
    return RIDGE_OK;
}

static ridge_status run(sim_args *a, ridge_error *err) {
    RIDGE_TRY(set_experiment(a, err));
    RIDGE_TRY(check_effects(a, err));
    const char *file = a->e.traffic.trace;
    bool again = a->compare != NULL || a->find != NULL;
    if (again && file != NULL && strcmp(file, "-") == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--trace -: --compare and --find read it several times, so it must be a "
                          "file");
    if (a->compare != NULL) return sim_compare(a, err);
    if (a->find == NULL) return sim_once(a, err);
    if (isnan(a->goodput_target)) a->goodput_target = 0.99;
    RIDGE_TRY(cli_real(&a->goodput_target, "goodput-target", a->goodput_target, 0.001, 1, err));
    if (a->traffic.slo_ttft_ms == 0 && a->traffic.slo_tpot_ms == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--find needs targets: --slo-ttft MS, --slo-tpot MS");
    if (strcmp(a->find, "max-rate") == 0) return sim_find_max_rate(a, err);
    if (strcmp(a->find, "cheapest") == 0) return sim_find_cheapest(a, err);
    return RIDGE_FAIL(err, RIDGE_EINVAL, "--find: expected max-rate or cheapest, found '%s'",
                      a->find);
}

int cmd_sim(int argc, char **argv) {
    sim_args a = {.e = experiment_default(),
                  .kv_cache_dtype = "auto",
                  .dtype = "auto",
                  .router = "least-loaded",
                  .scheduler = "continuous",
                  .traffic = traffic_args_default(),
                  .peak_flops = NAN,
                  .bandwidth = NAN,
                  .weight_bits = NAN,
                  .memory = SIM_NOT_GIVEN,
                  .link_bandwidth = NAN,
                  .network_bandwidth = NAN,
                  .link_gbps = NAN,
                  .goodput_target = NAN,
                  .split = {.n_tensor = 1, .n_stages = 1, .n_expert = 1},
                  .decode = {SIM_NOT_GIVEN, SIM_NOT_GIVEN, SIM_NOT_GIVEN, SIM_NOT_GIVEN},
                  .n_node = PLAN_NODE,
                  .expert_imbalance = 1,
                  .replicas = 1,
                  .prefix_caching = true};
    a.memory_share = a.e.memory_share;
    a.max_num_seqs = a.e.sim.pool.sched.max_num_seqs;
    a.max_num_batched_tokens = a.e.sim.pool.sched.max_num_batched_tokens;
    a.block_size = a.e.sim.pool.sched.block_size;
    const cli_option options[] = {
        {"model", CLI_STRING, &a.model, "a name such as llama-3.1-8b, a config.json, or MODEL"},
        {"gpu", CLI_STRING, &a.gpu,
         "a name such as h100, or a file of ridge plan --calibrate; with --find cheapest a list"},
        {"tensor-parallel-size", CLI_UINT, &a.split.n_tensor,
         "GPUs of a replica that share each layer (default: 1)"},
        {"pipeline-parallel-size", CLI_UINT, &a.split.n_stages,
         "stages of a replica, with some layers each (default: 1)"},
        {"expert-parallel-size", CLI_UINT, &a.split.n_expert,
         "ranks that share the experts, each with sequences of its own (default: 1)"},
        {"num-redundant-experts", CLI_UINT, &a.split.n_redundant,
         "of the experts so many are there twice (default: 0)"},
        {"expert-imbalance", CLI_DOUBLE, &a.expert_imbalance,
         "rows of the busiest rank's experts, of the mean (default: 1)"},
        {"enable-dbo", CLI_FLAG, &a.halves,
         "rows go to experts and back while the other half of the batch computes"},
        {"gpus-per-node", CLI_UINT, &a.n_node,
         "that links join; beyond is the network (default: 8)"},
        {"replicas", CLI_UINT, &a.replicas, "how many (default: 1)"},
        {"data-parallel-size", CLI_UINT, &a.replicas, "the same"},
        {"router", CLI_STRING, &a.router,
         "who gets a request: round-robin, least-loaded (default) or prefix"},
        {"disaggregate", CLI_STRING, &a.disaggregate,
         "xPyD: x replicas compute prompts, y others answers"},
        {"decode-tensor-parallel-size", CLI_UINT, &a.decode.n_tensor,
         "of replicas for answers (default: as of the others)"},
        {"decode-pipeline-parallel-size", CLI_UINT, &a.decode.n_stages, "likewise"},
        {"decode-expert-parallel-size", CLI_UINT, &a.decode.n_expert, "likewise"},
        {"decode-num-redundant-experts", CLI_UINT, &a.decode.n_redundant, "likewise"},
        {"link-gbps", CLI_DOUBLE, &a.link_gbps,
         "between those: of each of the first, in Gbit/s (default: the GPU's network)"},
        {"link-latency-us", CLI_DOUBLE, &a.link_latency_us, "in microseconds (default: 0)"},
        TRAFFIC_OPTIONS(&a.traffic, "1000", "1024"),
        {"max-num-seqs", CLI_UINT, &a.max_num_seqs, "sequences running at once (default: 256)"},
        {"max-num-batched-tokens", CLI_UINT, &a.max_num_batched_tokens,
         "tokens per step (default: 2048)"},
        {"max-model-len", CLI_UINT, &a.max_model_len, "context in tokens (default: the model's)"},
        {"block-size", CLI_UINT, &a.block_size, "tokens per block of the KV cache (default: 16)"},
        {"profile", CLI_STRING, &a.profile,
         "what of the peaks is reached: ideal (default), or as for ridge plan"},
        {"dtype", CLI_STRING, &a.dtype, SHAPE_DTYPE_HELP},
        {"weight-bits", CLI_DOUBLE, &a.weight_bits, "of each weight, in place of dtype's"},
        {"kv-cache-dtype", CLI_STRING, &a.kv_cache_dtype,
         "the KV cache's type: auto (f16), f16, f32, q8_0, fp8, fp6"},
        {"gpu-memory-utilization", CLI_DOUBLE, &a.memory_share,
         "what weights and cache may take of the memory (default: 0.9)"},
        {"scheduler", CLI_STRING, &a.scheduler, "continuous (default) or static"},
        {"enable-prefix-caching", CLI_FLAG, &a.prefix_caching,
         "prompts that begin alike share what is computed (default)"},
        {"pace", CLI_FLAG, &a.pace,
         "prompts get only what keeps steps within --slo-tpot, as in ridge serve"},
        {"num-speculative-tokens", CLI_UINT, &a.n_drafts, "guesses a step (default: 0)"},
        {"speculative-model", CLI_STRING, &a.draft,
         "that makes them, a name as of --model (default: they are free, as those of n-grams)"},
        {"acceptance", CLI_DOUBLE, &a.acceptance, "the chance of each to come true (default: 0)"},
        {"compare", CLI_STRING, &a.compare,
         "a list of what to vary, such as static,continuous or chunked=512+tp=2,disagg=2P1D"},
        {"rates", CLI_STRING, &a.rates,
         "with --compare: each at several rates (of a trace: speeds), such as 1,2,5"},
        {"plot", CLI_STRING, &a.plot, "a picture (SVG) of all of them over the rates"},
        {"find", CLI_STRING, &a.find,
         "max-rate: the most that is within the targets; cheapest: of all GPUs given, ranks and "
         "numbers of replicas"},
        {"goodput-target", CLI_DOUBLE, &a.goodput_target,
         "with --find, the share of requests that must be (default: 0.99)"},
        {"price-per-hour", CLI_STRING, &a.prices, "of a GPU and hour: 2.5, or h100=2.5,l4=0.7"},
        {"peak-flops", CLI_DOUBLE, &a.peak_flops, "FLOP/s in place of the GPU's"},
        {"bandwidth", CLI_DOUBLE, &a.bandwidth, "bytes/s in place of the GPU's"},
        {"link-bandwidth", CLI_DOUBLE, &a.link_bandwidth,
         "bytes/s from a GPU to others of its node, in place of the GPU's"},
        {"network-bandwidth", CLI_DOUBLE, &a.network_bandwidth, "likewise to other nodes"},
        {"memory", CLI_BYTES, &a.memory, "bytes in place of the GPU's"},
        {"json", CLI_FLAG, &a.json, "print one JSON document"},
    };
    int n_args = 0,
        parsed = cli_parse(argc, argv, USAGE, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(USAGE, argv, n_args, 0, 0);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    ridge_error err = {0};
    ridge_status status = run(&a, &err);
    mem_free(a.path);
    mem_free(a.draft_path);
    if (status == RIDGE_OK) return CLI_OK;
    return cli_refuse(&err);
}
