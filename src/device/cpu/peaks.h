/* device/cpu/peaks: measures what this machine can do: streaming reads, int8 and f32 arithmetic.
 *
 * Takes about half a second; runs on a team of its own. The loops are those that the kernels of
 * each ISA path could at best be: nothing but loads, or nothing but multiply-adds on registers.
 */
#ifndef RIDGE_DEVICE_CPU_PEAKS_H
#define RIDGE_DEVICE_CPU_PEAKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "roof/roof.h"

/* Of what the loops below measure: raised with every change to it, so that peaks which were kept
 * from before are measured again. */
#define PEAKS_VERSION 2

/* isa: that of a path that the machine has. working_set: bytes read in turn by
 * all threads together (a small model may sit in a shared cache, so measure with the model's size).
 */
ridge_status device_cpu_measure(roof_peaks *out, const char *isa, int n_threads, size_t working_set,
                                ridge_error *err) RIDGE_CHECKED;

/* The loops of one ISA. Each returns a value that depends on its work, so that none is optimised
 * away. */
typedef struct {
    uint64_t (*read)(const void *data, size_t size); /* size a multiple of 512 */
    int32_t (*int8)(long rounds);
    float (*f32)(long rounds);
    double int8_ops_per_round, f32_flops_per_round;
} peaks_loops;

extern const peaks_loops peaks_portable;
#if defined(__x86_64__)
extern const peaks_loops peaks_avx2, peaks_avx512;
#elif defined(__aarch64__)
extern const peaks_loops peaks_neon;
#endif

#endif
