/* cli/bench_kernels: the product with a weight matrix alone, for every type, on random weights.
 *
 * What the rest of a model cannot blur: how near one product comes to the bandwidth (one row) and
 * to the arithmetic (many rows) that are measured just before it, over a working set of its size.
 * Goes through device.h alone, so it times what a model would run.
 */
#ifndef RIDGE_CLI_BENCH_KERNELS_H
#define RIDGE_CLI_BENCH_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

typedef struct {
    device_cpu_params device;
    uint64_t bytes;          /* of weights, of each type in turn */
    const uint32_t *batches; /* [n_batches] rows of the input */
    size_t n_batches;
    uint32_t max_batch; /* the largest of them */
    uint64_t repeat;    /* runs, of which the median counts; at least 1 */
    bool json;          /* one document at the end; else a table that grows */
} bench_kernels_args;

/* Prints to stdout. RIDGE_EINVAL where bytes do not fit the memory twice: in the file's form and in
 * the device's. */
ridge_status bench_kernels(const bench_kernels_args *a, ridge_error *err) RIDGE_CHECKED;

#endif
