/* roof/hardware: what machines can do at best, by their makers' data sheets.
 *
 * Peaks are dense (no sparsity) and of one device; links are what one device sends in one
 * direction. A table (hardware.c), each row with its source.
 */
#ifndef RIDGE_ROOF_HARDWARE_H
#define RIDGE_ROOF_HARDWARE_H

#include <stddef.h>

#include "base/error.h"
#include "roof/efficiency.h"

typedef enum { PEAK_F32, PEAK_16, PEAK_FP8, PEAK_INT8, PEAK_FP4, PEAK_N } hardware_peak;

typedef struct {
    char name[32], title[64]; /* "h100", "NVIDIA H100 SXM" */
    double peaks[PEAK_N];     /* operations per second, by precision; 0: it has no unit for that */
    double bytes_per_s, memory_bytes;
    double link_bytes_per_s;    /* to its neighbours: NVLink and their like; 0: over the bus */
    double bus_bytes_per_s;     /* PCIe; 0: unknown */
    double network_bytes_per_s; /* to other machines, as usually built; 0: unknown */
    const char *source;
} hardware;

/* RIDGE_ENOTFOUND: none is called so; the message lists those that are. */
ridge_status hardware_find(hardware *out, const char *name, ridge_error *err) RIDGE_CHECKED;

/* By name, else the machine of a profile's file (`ridge plan --calibrate`); *profile then becomes
 * that profile, and stays as it is otherwise. Its peaks are the same in every precision: those that
 * the profile's fractions are of. */
ridge_status hardware_open(hardware *out, efficiency_profile *profile, const char *name,
                           ridge_error *err) RIDGE_CHECKED;
const hardware *hardware_at(size_t i); /* NULL past the last */

/* The peak of a precision; where the device has no unit for it, of 16 bits. */
double hardware_flops(const hardware *h, hardware_peak precision);
/* To its neighbours, over the bus where there are no links; 0: unknown. */
double hardware_link(const hardware *h);

#endif
