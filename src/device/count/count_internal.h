/* device/count: a program's operations, those of one kind together. */
#ifndef RIDGE_DEVICE_COUNT_COUNT_INTERNAL_H
#define RIDGE_DEVICE_COUNT_COUNT_INTERNAL_H

#include "device/device.h"
#include "roof/efficiency.h"
#include "roof/work.h"

struct dev_weight {
    quant_type type;
    uint32_t rows, cols;
    double row_bytes;
};

/* Operations that cost the same in any step: those of all layers of one shape. */
typedef struct {
    dev_op op; /* the first of them */
    uint32_t n;
    efficiency_kind class;
    double n_in, n_out; /* columns of its inputs and outputs together */
    double flops_per_row, weight_bytes, bytes_per_row; /* of each; attention counts by itself, and
                                                          of experts weight_bytes is of all */
    /* since the last profile */
    uint64_t n_runs;
    double seconds, flops, bytes;
} count_kind;

struct dev_compiled {
    count_kind *kinds; /* body [0, n_body), head [n_body, n_kinds) */
    size_t n_kinds, n_body;
    uint32_t windows[DEV_MAX_GROUPS], n_groups;
    uint32_t n_layers, n_exchanges;      /* of rows, for experts: two in each layer that has any */
    uint64_t n_halved;                   /* steps since the last profile */
    double hidden_s;                     /* of the kinds' times in them */
    work_latent latents[DEV_MAX_GROUPS]; /* rank 0: keys and values themselves */
    uint32_t max_tokens;
    uint32_t n_tokens; /* of the last submit */
};

ridge_status count_compile(device *d, dev_compiled **out, const dev_program *p, uint32_t max_tokens,
                           ridge_error *err);
void count_compiled_free(device *d, dev_compiled *c);
bool count_attends(const dev_op *op);
bool count_is_collective(const dev_op *op);
uint32_t count_experts_here(const dev_op *op);    /* of this rank */
void count_name(const dev_op *op, char name[96]); /* "linear 896 -> 4864 + 4864 Q5_0" */

#endif
