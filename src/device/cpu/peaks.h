/* device/cpu/peaks: measures what this machine can do: streaming reads, int8 and f32 arithmetic.
 *
 * The loops are those that the kernels of each ISA path could at best be: nothing but loads, or
 * nothing but multiply-adds on registers. Either once, at their best, or in turn with what they are
 * the peaks of: what a shared machine gives moves by a third from one minute to the next, so that a
 * figure and its peak must come from the same.
 */
#ifndef RIDGE_DEVICE_CPU_PEAKS_H
#define RIDGE_DEVICE_CPU_PEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/device.h"
#include "roof/roof.h"

/* Of what the loops below measure: raised with every change to it, so that peaks which were kept
 * from before are measured again. */
#define PEAKS_VERSION 2

#define PEAKS_MAX_READ ((size_t)1 << 30) /* reading more is no slower: no cache holds so much */

/* The best of some runs, in about half a second, by a team of its own. isa: that of a path that the
 * machine has. working_set: bytes read in turn by all threads together (a small model may sit in a
 * shared cache, so measure with the model's size). */
ridge_status device_cpu_measure(roof_peaks *out, const char *isa, int n_threads, size_t working_set,
                                ridge_error *err) RIDGE_CHECKED;

/* In slices of a millisecond or more, on a device's own threads. */
enum { PEAKS_READ, PEAKS_INT8, PEAKS_F32, PEAKS_N_LOOPS };
typedef struct {
    device *device;                /* borrowed; not while it works on a submit */
    uint32_t n_tokens;             /* of the steps in between: as many threads as they have */
    const unsigned char *data;     /* borrowed: what is read, round and round */
    uint32_t n_parts;              /* of data: each of the device's threads has one */
    size_t part, piece;            /* bytes of one, and what is read at a time */
    size_t at;                     /* where in the parts the next slice reads on */
    uint64_t slice[PEAKS_N_LOOPS]; /* bytes or rounds of a slice: what takes long enough */
    bool sized[PEAKS_N_LOOPS];     /* the last slice did */
    double work[PEAKS_N_LOOPS];    /* bytes or operations since the last take, and their time */
    double seconds[PEAKS_N_LOOPS];
} peaks_meter;

/* size: at least 512. n_tokens may be changed after a take. */
void peaks_meter_open(peaks_meter *m, device *d, const void *data, size_t size);
/* Fills data, each thread what it will read: so that the pages are near it. */
void peaks_meter_fill(const peaks_meter *m, void *data);
#define PEAKS_SHARE 0.25    /* of the time of what they are the peaks of: measured after it, */
#define PEAKS_BEFORE_S 0.02 /* and so long before the first */
/* About so many seconds, the same for each loop; at least a slice. */
void peaks_meter_run(peaks_meter *m, double seconds);
/* The mean rates since the last take, each of at least one slice. */
roof_peaks peaks_meter_take(peaks_meter *m);

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
extern const peaks_loops peaks_neon, peaks_i8mm;
int32_t peaks_int8_i8mm(long rounds);
#endif

#endif
