/* plan/measured: times of single operations as they were measured on real machines.
 *
 * Reads the CSV files of Vidur (Agrawal et al., MLSys 2024; github.com/microsoft/vidur, MIT):
 * one row per run, a column time_stats.OPERATION.median in milliseconds, told apart by their
 * headers:
 *   mlp         num_tokens, num_tensor_parallel_workers, the model's shape; every operation of a
 *               layer but attention, on the share of one worker
 *   collectives num_workers, devices_per_node, size in bytes
 * Weights and activations have 16 bits. Other columns are ignored. Nothing is believed: a row that
 * is not so is refused as "FILE:LINE: what". Pure but for measured_open.
 */
#ifndef RIDGE_PLAN_MEASURED_H
#define RIDGE_PLAN_MEASURED_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "roof/efficiency.h"

typedef enum {
    MEASURED_ATTN_PRE_PROJ, /* queries, keys and values */
    MEASURED_ATTN_POST_PROJ,
    MEASURED_MLP_UP_PROJ, /* with the gate */
    MEASURED_MLP_DOWN_PROJ,
    MEASURED_INPUT_NORM,
    MEASURED_POST_NORM,
    MEASURED_ROPE,
    MEASURED_MLP_ACT,
    MEASURED_ADD,
    MEASURED_EMB,
    MEASURED_ALL_REDUCE,
    MEASURED_SEND,         /* within a node */
    MEASURED_SEND_NETWORK, /* to another node */
    MEASURED_N_KINDS
} measured_kind;

typedef struct {
    measured_kind kind;
    efficiency_op ops[2]; /* what one worker does, as a program has it; one after the other */
    int n_ops;            /* rotating queries and keys is two */
    double seconds;       /* the median */
    int workers;          /* tensor-parallel, or taking part in the collective */
    size_t file;          /* which of measured.files */
    bool held_out;        /* not to be fitted on */
} measured_sample;

typedef struct {
    measured_sample *samples; /* [n] */
    size_t n;
    char **files; /* [n_files] names as given */
    size_t n_files;
    size_t samples_capacity, files_capacity; /* private */
} measured;

/* Adds a file's samples; operations that the file doesn't time, or whose time the clock showed as
 * 0, are left out. `name` is the file's in errors. *m is to be freed in any case. */
ridge_status measured_parse(measured *m, const char *name, const char *text, size_t size,
                            ridge_error *err) RIDGE_CHECKED;
ridge_status measured_open(measured *m, const char *path, ridge_error *err) RIDGE_CHECKED;
void measured_free(measured *m);

/* Marks what the rules, separated by commas, hold out:
 *   tp=N          operations measured with N tensor-parallel workers
 *   every-other   of each collective every other size
 *   TEXT          the files whose name has TEXT in it
 * A rule that holds nothing out is refused. */
ridge_status measured_hold_out(measured *m, const char *rules, ridge_error *err) RIDGE_CHECKED;

const char *measured_kind_name(measured_kind kind); /* "mlp_up_proj" */

#endif
