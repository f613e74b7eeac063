/* plan/experiment: a deployment and the traffic it is to bear, and what comes of it: what `ridge
 * sim` is asked for, in one value that can be varied.
 */
#ifndef RIDGE_PLAN_EXPERIMENT_H
#define RIDGE_PLAN_EXPERIMENT_H

#include "plan/plan.h"
#include "plan/sim.h"

#define EXPERIMENT_AS_SPLIT UINT32_MAX /* decode_split.n_redundant: what split has; 0 is none */

/* Strings are borrowed. */
typedef struct {
    const char *model;
    const char *draft; /* the model that guesses, where any are made; NULL: guesses are free */
    hardware gpu;
    efficiency_profile profile; /* what of its peaks is reached */
    model_split split;          /* of a replica over GPUs; zeroed: one */
    model_split decode_split;   /* of one for answers only; where it is 0, as split has it */
    uint32_t n_node;            /* GPUs of a node */
    double expert_imbalance;    /* rows of the busiest rank's experts, of the mean */
    bool halves;                /* exchanges hide behind half a batch (count.h) */
    double memory_share;        /* of a GPU's memory that weights and cache may take */
    plan_dtype dtype;           /* of weights, unless */
    bool file_weights;          /* they are as the model's file has them */
    dev_kv_type kv_type;
    /* Of its pools n_replicas, and the first one's sched (but for what memory and model decide;
     * max_model_len 0: the model's, or what a cache holds); router, guesses, targets and seed; the
     * link (0 bytes a second: the GPU's network). */
    sim_params sim;
    traffic_params traffic;
} experiment;

experiment experiment_default(void);

/* What it came to beside the simulation's result. */
typedef struct {
    sim_result sim;
    uint32_t n_gpus, max_model_len, model_context; /* the last: that the model was made for */
    double weight_bytes, kv_token_bytes;
    uint64_t kv_tokens; /* that the cache of a replica holds */
} experiment_result;

/* RIDGE_ETOOLARGE: the model or a request does not fit; the message says what would. */
ridge_status experiment_run(experiment_result *out, const experiment *e,
                            ridge_error *err) RIDGE_CHECKED;
/* The share of requests that was good; one that was refused isn't. */
double experiment_goodput(const experiment_result *r);

/* Changes parts of it by name, joined by '+':
 *
 *     static, continuous             batches that run until all is done; requests that come and go
 *     unchunked, chunked[=N]         prompts in one step; steps of at most N tokens
 *     prefix-cache, no-prefix-cache
 *     dbo, no-dbo                    exchanges hide behind half of the batch, or do not
 *     pace, no-pace                  prompts keep the target of the time per token, or need not
 *     speculation=A[:K]              K guesses a step (4), each true with chance A
 *     disagg=xPyD                    x replicas for prompts, y for answers
 *     replicas=N, router=NAME, seqs=N
 *     block=N                        tokens per block; as many as a context: what is reserved whole
 *     tp=N, pp=N, ep=N, redundant=N  ranks that share layers, stages, ranks that share experts, of
 *                                    which so many are there twice
 *     decode-tp=N, decode-pp=N, decode-ep=N, decode-redundant=N  of replicas for answers only
 */
ridge_status experiment_vary(experiment *e, const char *variant, ridge_error *err) RIDGE_CHECKED;
const char *experiment_variants(void); /* the list, for messages */

/* Of Poisson arrivals; of a trace: its speed. */
void experiment_set_rate(experiment *e, double rate);

typedef struct {
    double rate;              /* of a trace: its speed; 0: none does */
    bool at_least;            /* none was found that does not */
    experiment_result result; /* of that rate; of 0: of the lowest that was tried */
} experiment_rate;

/* The highest rate at which at least `target` of the requests are good, to one in a hundred. */
ridge_status experiment_max_rate(experiment_rate *out, const experiment *e, double target,
                                 ridge_error *err) RIDGE_CHECKED;

/* The fewest replicas, up to `most`, with which `target` of them are good. 0: not with that many.
 */
ridge_status experiment_fewest_replicas(uint32_t *n, experiment_result *out, const experiment *e,
                                        double target, uint32_t most,
                                        ridge_error *err) RIDGE_CHECKED;

#endif
