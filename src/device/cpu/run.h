/* device/cpu/run: one walk of the team over steps; shared by run.c and attention.c. */
#ifndef RIDGE_DEVICE_CPU_RUN_H
#define RIDGE_DEVICE_CPU_RUN_H

#include "device/cpu/cpu_internal.h"

typedef struct {
    dev_compiled *c;
    const cpu_kernels *k;
    team *team;
    int n_members;
    const cpu_step *steps;
    size_t n_steps;
    uint32_t n_rows;        /* of the batch, or wanted by the head */
    float *logits;          /* head: [n_rows, n_vocab] */
    const uint32_t *gather; /* head: [n_rows] rows of the batch */
} cpu_run;

/* For a new batch: which sequences are split over spans. */
void cpu_attention_plan(dev_compiled *c);
/* One member's share; q and out are [n_tokens, n_heads * head_dim] at the strides of their values.
 * Sequences that are split leave partials, which cpu_attention_merge turns into rows of out. */
void cpu_attention_run(const cpu_run *r, const dev_op *op, int member, const float *q, float *out);
void cpu_attention_merge(const cpu_run *r, const dev_op *op, uint32_t row, float *out);

#endif
