/* plan/machine: a model on the GPUs of one replica: how many blocks its caches have, and how long
 * its steps take: the model's own program on the count device (device/count/count.h).
 *
 * Spread as model/split.c has it, a step is that of one rank of each stage with its part of each
 * matrix, of the heads, experts and cache, and with what the ranks tell each other. Tensor ranks
 * are all alike; with more of them than KV heads, or with latents, several keep the same keys and
 * values. Ranks of experts have schedulers of their own, and so have as many sets of them as there
 * are stages (plan/sim.h). Each stage has its even share of weights; what they leave of the memory
 * is shared among the sets.
 *
 * What serving adds, the profile says: it has its time with the last part of a step.
 *
 * A draft model is divided among the tensor ranks of the first stage alone, with a cache for as
 * many tokens as all caches of the stages hold, and runs before that stage.
 */
#ifndef RIDGE_PLAN_MACHINE_H
#define RIDGE_PLAN_MACHINE_H

#include "plan/plan.h"
#include "plan/sim.h"

typedef struct machine machine;

#define MACHINE_MAX_TENSOR 64
#define MACHINE_MAX_EXPERT 1024

typedef struct {
    const char *model;   /* as plan_model_open takes it (plan/models.h) */
    count_params count;  /* one GPU; its profile is copied, the bits are those of */
    plan_dtype dtype;    /* which is of no account where */
    bool file_weights;   /* the model is a file, with bits of its own */
    double memory_bytes; /* of one GPU, as far as it is used */
    model_split split;   /* up to MACHINE_MAX_TENSOR, MACHINE_MAX_EXPERT, SIM_MAX_STAGES */
    dev_kv_type kv_type;
    const char *draft; /* another model, that guesses, with weights of as many bits; NULL: none */
} machine_params;

/* Sets of `s` what the memory and the model decide: groups, windows and blocks. The rest of it is
 * given, and max_model_len 0 becomes the model's context, or as much of it as a cache holds.
 * RIDGE_ETOOLARGE: the model, or a sequence of max_model_len tokens, does not fit; RIDGE_EINVAL: it
 * cannot be divided so. */
ridge_status machine_open(machine **out, const machine_params *p, sched_params *s,
                          ridge_error *err) RIDGE_CHECKED;
void machine_close(machine *m);               /* NULL allowed */
uint32_t machine_context(const machine *m);   /* that the model was made for */
uint64_t machine_kv_tokens(const machine *m); /* that all caches of the replica hold */
double machine_kv_token_bytes(const machine *m);
double machine_weight_bytes(const machine *m); /* of all GPUs */
/* How a scheduler reckons with steps. */
ridge_status machine_cost(const machine *m, cost_shape *out, ridge_error *err) RIDGE_CHECKED;
/* The same of a forward of the draft model. */
ridge_status machine_draft_step(void *machine, const dev_batch *batch, uint32_t n_wanted,
                                sim_step *out, ridge_error *err) RIDGE_CHECKED;
/* Of a cache of the whole model: a token's bytes and the windows. */
const dev_kv_layout *machine_kv_layout(const machine *m);
ridge_status machine_step(void *machine, const dev_batch *batch, uint32_t n_wanted, sim_step *out,
                          ridge_error *err) RIDGE_CHECKED; /* a sim_step_fn */

#endif
