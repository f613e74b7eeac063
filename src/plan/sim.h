/* plan/sim: traffic through replicas of the real scheduler under virtual time.
 *
 * Nothing is computed. A scheduler (sched/scheduler.h) has its block pools and its prefix tree, as
 * in the engine, and steps that take as long as a function says, which is the count device behind
 * the model's own program (plan/machine.h). Each step is what the engine's is: plan, execute, a
 * made-up token for every sequence that caught up, commit. So a change of the scheduler, the cache
 * or the model changes what is simulated; nothing of them is told twice.
 *
 * A replica is one scheduler, or several that share its GPUs:
 *
 *     experts     of ranks that share experts each has a scheduler with sequences and a cache of
 *                 its own (DeepSeek-V3, arXiv 2412.19437, section 3.4). They form a team, whose
 *                 steps begin together and last as long as that of the slowest: layer by layer all
 *                 exchange rows. A rank without sequences has a row that nobody wants.
 *     pipeline    of n stages: n teams, each with an n-th of the caches (as vLLM's first pipeline
 *                 had it). A team's step goes through the stages and the links between them, each
 *                 of which has one step at a time, the earliest first; its next one begins after
 *                 that. So a token takes all stages and links one after the other, and with all
 *                 teams at work the slowest stage says how many steps a second there are.
 *
 * Time is that of the devices, and what a profile says that serving adds to a step (sampling,
 * texts, the way to clients: roof/efficiency.h); that of data sheets adds nothing. Answers are as
 * long as the traffic says. A prompt's tokens are such that what the trace names alike, and a
 * shared beginning, is equal, and nothing else is. As by the engine, a prompt that leaves no room
 * in max_model_len is refused, and an answer ends where the room does.
 *
 * The same parameters and traffic give the same result, bit for bit. Memory is that of the requests
 * that are in the system at once. One thread.
 */
#ifndef RIDGE_PLAN_SIM_H
#define RIDGE_PLAN_SIM_H

#include "base/stats.h"
#include "device/device.h"
#include "roof/roof.h"
#include "sched/scheduler.h"
#include "traffic/traffic.h"

#define SIM_MAX_STAGES 64
#define SIM_MAX_LANES 16384       /* schedulers */
#define SIM_MAX_BLOCKS (1u << 28) /* of all their caches: some 6 GB */

/* What a step takes, and of that how long for what. */
typedef struct {
    double seconds, bounds_s[ROOF_N_BOUNDS];
    double parts_s[2 * SIM_MAX_STAGES - 1]; /* of seconds: stages, and the links between them */
    uint32_t n_parts;                       /* 0: one stage */
    dev_account account;
} sim_step;

/* Of the batch only its counts, and each sequence's n_rows and n_context are set; n_wanted rows
 * need logits. */
typedef ridge_status (*sim_step_fn)(void *context, const dev_batch *batch, uint32_t n_wanted,
                                    sim_step *out, ridge_error *err);

/* Who gets a request (plan/router.c has the rules). */
typedef enum { SIM_ROUND_ROBIN, SIM_LEAST_LOADED, SIM_PREFIX_AWARE, SIM_N_ROUTERS } sim_router;

const char *sim_router_name(sim_router r); /* "round-robin", "least-loaded", "prefix" */
bool sim_router_find(const char *name, sim_router *out);

/* Replicas that are alike. */
typedef struct {
    uint32_t n_replicas;
    uint32_t n_stages, n_expert; /* of each; 0 and 1: no pipeline, a team of one */
    uint32_t n_tensor;           /* GPUs of each stage and rank: what busy_s counts; 0: 1 */
    sched_params sched;          /* of each scheduler; all pools have the same max_model_len */
    cost_shape cost;             /* what its steps cost, for paces (sched/cost.h) */
    sim_step_fn step;
    sim_step_fn draft;  /* of a forward of the model that guesses; NULL: guesses take no time */
    void *step_context; /* of both */
} sim_pool;

typedef struct {
    sim_pool pool;
    /* Disaggregated (n_replicas not 0): the others compute prompts, up to the first token, and
     * these go on from there with keys and values that come over the link of the first's rank. */
    sim_pool decode;
    sim_router router;
    double link_bytes_per_s, link_latency_s;
    struct {
        double token_bytes;
        uint32_t window;       /* 0: full; else what is out of sight stays behind */
    } kv[SEQUENCE_MAX_GROUPS]; /* of the KV groups */
    /* Guesses per step of a sequence that decodes (0: none), each of which comes true with this
     * chance if those before it did. A draft model makes one for every sequence in a forward,
     * between two steps, and has a cache of its own: what that lacks, at first the prompt, is in
     * the first forward, as far as max_num_batched_tokens go (engine/draft_model.h). */
    uint32_t n_drafts;
    double acceptance;
    uint32_t prefix_tokens;        /* before each prompt its shared beginning */
    double slo_ttft_s, slo_tpot_s; /* targets that goodput counts by; 0: none */
    bool pace;                     /* prompts keep slo_tpot_s, too (sched/pace.h) */
    uint64_t seed;                 /* of what is drawn here: which guesses come true */
} sim_params;

typedef struct {
    uint64_t n_requests, n_good; /* answered; good ones met every target */
    uint64_t n_refused, n_cut;   /* not among them; those whose answers were cut */
    uint64_t input_tokens, cached_tokens, output_tokens;
    quantiles ttft_s, tpot_s, itl_s, e2e_s, queue_s;
    double seconds; /* until the last answer */
    uint64_t n_steps, n_preempted, n_transfers;
    uint64_t n_drafted, n_accepted;
    /* Of all GPUs, summed up: with a step in their stage, however long their own part of it is;
     * and what those and the links between stages waited for. */
    double busy_s, bounds_s[ROOF_N_BOUNDS];
    dev_account account;
    /* Of the KV cache, over the time of all steps: the share that is held, or reserved; of what
     * each sequence holds the share with tokens in it (sched_get_cache_use). */
    double kv_held, kv_used;
    double transfer_s; /* of links, summed up */
    uint32_t max_live; /* requests in the system at once */
} sim_result;

/* Traffic is read to its end. That no replica could ever hold a request, or that all are refused,
 * is an error that says which and how much it lacks. */
ridge_status sim_run(sim_result *out, const sim_params *p, traffic *from,
                     ridge_error *err) RIDGE_CHECKED;

#endif
