/* device/cpu/run: one walk of the team over steps; shared by run.c, linear.c and attention.c. */
#ifndef RIDGE_DEVICE_CPU_RUN_H
#define RIDGE_DEVICE_CPU_RUN_H

#include "device/cpu/cpu_internal.h"

typedef struct {
    dev_compiled *c;
    const cpu_kernels *k;
    team *team;
    int n_members; /* how many of the team take part */
    cpu_step *steps;
    size_t n_steps;
    double began;           /* the step that member 0 is in */
    uint32_t n_rows;        /* of the batch, or wanted by the head */
    float *logits;          /* head: [n_rows, n_vocab] */
    const uint32_t *gather; /* head: [n_rows] rows of the batch */
} cpu_run;

/* Row of a value; of the caller's logits where the value is those. */
float *cpu_value_row(const cpu_run *r, dev_value v, uint32_t row);
/* Block b of a row's quantised input x[input] of n_blocks (in tiles, as cpu_xblock says); the row's
 * next block is *stride further, which is the tile's width too. */
cpu_xblock *cpu_input_at(const cpu_run *r, int input, uint32_t n_blocks, uint32_t row, uint32_t b,
                         uint32_t *stride);
/* The member's work on a step of n_chunks; what the step before took is known then. */
team_cursor cpu_step_work(cpu_run *r, const cpu_step *step, int member, uint32_t n_chunks);
/* One member's share of a product. */
void cpu_linear_run(cpu_run *r, const cpu_step *step, int member);
/* For a new batch: which sequences are split over spans. */
void cpu_attention_plan(dev_compiled *c);
/* One member's share. Sequences that are split leave partials, which cpu_attention_merge turns into
 * rows of out. */
void cpu_attention_run(cpu_run *r, const cpu_step *step, int member);
void cpu_attention_merge(const cpu_run *r, const dev_op *op, uint32_t row, float *out);

#endif
