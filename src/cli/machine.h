/* cli/machine: this machine's name and its measured peaks, cached on disk. */
#ifndef RIDGE_CLI_MACHINE_H
#define RIDGE_CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "device/cpu/peaks.h"

typedef roof_peaks machine_peaks;

/* "CPU, 2 threads, avx512"; owned (mem_free), NULL when out of memory. */
char *machine_text(const char *isa, int n_threads);
/* The members "cpu", "threads" and "isa" of a JSON object. */
void machine_json(buf *b, const char *isa, int n_threads);

/* The peaks for so many threads and a working set of about so many bytes, from the cache
 * ($RIDGE_HOME/peaks.json, keyed by CPU, ISA, threads and the working set's power of two); measured
 * now (half a second) and stored if absent or of another PEAKS_VERSION. fresh: always measured, and
 * stored where it is higher. false: could not be measured. */
bool machine_peaks_get(machine_peaks *out, const char *isa, int n_threads, uint64_t working_set,
                       bool fresh);

/* The same without ever measuring: false where they are not in the cache. The form of
 * engine_params.peaks; context is not used. */
bool machine_peaks_known(void *context, const char *isa, int n_threads, uint64_t working_set,
                         machine_peaks *out);

#endif
