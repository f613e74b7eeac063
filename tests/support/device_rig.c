/* tests/support/device_rig: see device_rig.h. */
#include "device_rig.h"

#include <stdlib.h>

#include "base/mem.h"
#include "unit.h"

const char *rig_paths[4];
int rig_n_paths;

static uint64_t random_state = 1;

uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

float random_float(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(random_u32() & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7f;
}

float *random_floats(size_t n) {
    float *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

/* A test that is built for certain paths has them. */
#ifdef RIG_PATHS
#define REQUIRED true
#else
#define REQUIRED false
#define RIG_PATHS "portable", "avx2", "avx512", "neon", "i8mm"
#endif

void rig_find_paths(void) {
    const char *names[] = {RIG_PATHS};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        device *d = NULL;
        device_cpu_params p = {.n_threads = 1, .isa = names[i]};
        ridge_error err = {0};
        if (device_cpu_create(&d, &p, &err) != RIDGE_OK) {
            if (REQUIRED) print_error("%s\n", err.text);
            if (REQUIRED) exit(EXIT_FAILURE);
            continue;
        }
        rig_paths[rig_n_paths++] = names[i];
        d->vtable->destroy(d);
    }
}

device *open_device_batch(const char *isa, int threads, int threads_batch, bool precise) {
    device *d = NULL;
    ridge_error err = {0};
    device_cpu_params p = {
        .n_threads = threads, .n_threads_batch = threads_batch, .isa = isa, .precise = precise};
    if (device_cpu_create(&d, &p, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return d;
}

device *open_device(const char *isa, int threads, bool precise) {
    return open_device_batch(isa, threads, 0, precise);
}

dev_weight *upload(device *d, quant_type type, const void *data, uint32_t rows, uint32_t cols) {
    dev_weight *w = NULL;
    ridge_error err = {0};
    if (d->vtable->weight_upload(d, &w, type, data, rows, cols, false, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
    return w;
}
