/* tests/support/device_rig: what the tests of the cpu device share: its paths, random numbers,
 * devices and uploads that must succeed. */
#ifndef RIDGE_TESTS_DEVICE_RIG_H
#define RIDGE_TESTS_DEVICE_RIG_H

#include "device/device.h"

extern const char *rig_paths[4]; /* those that this machine has */
extern int rig_n_paths;
void rig_find_paths(void);

uint32_t random_u32(void); /* of 31 bits; the same ones in every run */
float random_float(void);  /* about normal */
float *random_floats(size_t n);

device *open_device(const char *isa, int threads, bool precise);
device *open_device_batch(const char *isa, int threads, int threads_batch, bool precise);
dev_weight *upload(device *d, quant_type type, const void *data, uint32_t rows, uint32_t cols);

#endif
