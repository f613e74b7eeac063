/* plan/machine: a model on the GPUs of one replica: how many blocks its cache has, and how long its
 * steps take: the model's own program on the count device (device/count/count.h).
 *
 * Tensor parallel as model/split.c has it: a step is that of one rank with its part of each matrix,
 * of the heads and of the cache, and with what the ranks tell each other; all ranks are alike. With
 * more ranks than KV heads, or with latents, several keep the same keys and values.
 */
#ifndef RIDGE_PLAN_MACHINE_H
#define RIDGE_PLAN_MACHINE_H

#include "plan/models.h"
#include "plan/sim.h"
#include "roof/efficiency.h"

typedef struct machine machine;

#define MACHINE_MAX_RANKS 64

typedef struct {
    const char *model;              /* as plan_model_open takes it (plan/models.h) */
    efficiency_peaks linear, other; /* of one GPU: of its linear layers, and of all else */
    double memory_bytes;            /* of one GPU, as far as it is used */
    efficiency_profile profile;     /* what of those is reached */
    uint32_t n_ranks;               /* tensor parallel */
    double weight_bits;             /* of each value; 0: as the model has them */
    dev_kv_type kv_type;
} machine_params;

/* Sets of `s` what the memory and the model decide: groups, windows and blocks. The rest of it is
 * given, and max_model_len 0 becomes the model's context, or as much of it as the cache holds.
 * RIDGE_ETOOLARGE: the model, or a sequence of max_model_len tokens, does not fit; RIDGE_EINVAL: it
 * cannot be divided among so many ranks. */
ridge_status machine_open(machine **out, const machine_params *p, sched_params *s,
                          ridge_error *err) RIDGE_CHECKED;
void machine_close(machine *m);               /* NULL allowed */
uint64_t machine_kv_tokens(const machine *m); /* that the cache holds */
double machine_kv_token_bytes(const machine *m);
double machine_weight_bytes(const machine *m); /* of all ranks */
ridge_status machine_step(void *machine, const dev_batch *batch, uint32_t n_wanted, sim_step *out,
                          ridge_error *err) RIDGE_CHECKED; /* a sim_step_fn */

#endif
