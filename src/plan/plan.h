/* plan: what a deployment takes: one model on one kind of machine, worked out on paper.
 *
 * Two counts stand side by side. The textbook one is what people do by hand: all parameters are
 * read once a step and cost two operations a token; of experts, those that the batch touches by
 * expectation. The counted one is what the very program of model/forward.c does on the device that
 * counts (device/count/count.h): the embedding table is not streamed, the cache is written, too,
 * attention computes, only wanted rows go through the head, and each operation has a roof of its
 * own. Pure: no I/O.
 */
#ifndef RIDGE_PLAN_PLAN_H
#define RIDGE_PLAN_PLAN_H

#include "device/count/count.h"
#include "plan/dtype.h"
#include "plan/models.h"
#include "roof/efficiency.h"
#include "roof/hardware.h"
#include "roof/roof.h"

#define PLAN_MAX_BATCH (1u << 16)
#define PLAN_MAX_ROWS 48
#define PLAN_NODE 8 /* GPUs of a node, as usually built */

typedef struct {
    hardware gpu;
    efficiency_profile profile;
    plan_dtype dtype;
    bool file_weights; /* weights are as their file has them, in place of dtype */
    dev_kv_type kv_type;
    model_split split;               /* over how many GPUs; zeroed: one */
    uint32_t n_node;                 /* GPUs that links join; others are beyond the network */
    bool halves;                     /* exchanges hide behind half a batch (count.h) */
    uint32_t batch, context, prompt; /* sequences; tokens of each in the cache; of a new prompt */
    double slo_tpot_s;               /* 0: none */
    double price_per_hour;           /* of one GPU; 0: unknown */
} plan_params;

plan_params plan_params_default(void);
/* How one of its kind counts (device/count/count.h): a link goes over the bus where there is no
 * other; what goes to experts takes a byte where they compute in 8 bits or fewer. */
count_params plan_counting(const hardware *gpu, const plan_dtype *dtype,
                           const efficiency_profile *profile, uint32_t n_node);

/* What its GPUs tell each other takes time that must be known. RIDGE_EINVAL: how fast their links
 * are is not, or, of more than a node, the network; the message says how to tell. */
ridge_status plan_check_links(const hardware *gpu, const model_split *split, uint32_t n_node,
                              ridge_error *err) RIDGE_CHECKED;

/* A step, or a prompt; of both counts. The textbook's is of all GPUs that work on it at once, the
 * counted one of one of them. */
typedef struct {
    double n_rows;
    double flops, weight_bytes, kv_bytes;
    double compute_s, memory_s;            /* what its arithmetic, and what its bytes would take */
    double seconds, bounds[ROOF_N_BOUNDS]; /* and of them those that each roof asks for */
    roof_bound bound;
} plan_phase;

typedef struct {
    plan_phase textbook, counted;
} plan_count;

typedef struct {
    const char *weights; /* the name of their type; "file": as the file has them */
    model_config config; /* of the whole model */
    double parameters, active_parameters;
    double weight_bytes, kv_bytes_per_token;
    double peak_flops, ridge; /* of the weights' precision; FLOPs per byte */
    uint32_t kinds;           /* of operations in it: bit k is efficiency_kind k */
    plan_count prefill, decode;
    double prompts_at_once; /* of ranks of experts and of stages, each has one */
    double n_gpus, memory_bytes, deployed_bytes; /* of all GPUs; weights on all of them */
    double sequence_bytes;                       /* of `context` tokens in the cache */
    double kv_tokens, users; /* that fit; users: of `context` tokens, 0 where that is 0 */
    uint32_t slo_batch;      /* the most sequences within slo_tpot_s that fit; 0: not even one */
    double prefill_tokens_per_s, decode_tokens_per_s; /* of all GPUs, counted */
    double cost_per_m_input, cost_per_m_output;       /* of a million tokens; 0: no price */
} plan_result;

/* A model on its counting device, ready for steps of any batch. */
typedef struct plan plan;

ridge_status plan_open(plan **out, const char *name, const plan_params *p,
                       ridge_error *err) RIDGE_CHECKED;
void plan_close(plan *p); /* NULL allowed */
ridge_status plan_work_out(plan *p, plan_result *out, ridge_error *err) RIDGE_CHECKED;
/* RIDGE_EFULL: weights or sequences don't fit; the message says by how much and what would. */
ridge_status plan_check_fit(const plan *p, const plan_result *r, ridge_error *err) RIDGE_CHECKED;
double plan_n_gpus(const model_split *split);

/* One step of `batch` sequences with so many tokens in the cache, or one prompt. */
ridge_status plan_decode(plan *p, uint32_t batch, uint32_t context, plan_count *out,
                         ridge_error *err) RIDGE_CHECKED;
ridge_status plan_prefill(plan *p, uint32_t n_tokens, plan_count *out,
                          ridge_error *err) RIDGE_CHECKED;
/* The operations of the last counted step, most seconds first; how many. */
size_t plan_operations(plan *p, dev_profile_row out[PLAN_MAX_ROWS]);

#endif
