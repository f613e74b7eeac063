/* engine/fingerprint: the name of everything that decides an answer's bits; see engine.h. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "engine/engine_internal.h"

#define SAMPLE_BYTES 4096

/* Each field is hashed with what came before as the seed: its length is part of that. */
static void add(uint64_t *h, const void *data, size_t n) {
    *h = XXH3_64bits_withSeed(data, n, *h);
}

/* A tensor's first, middle and last bytes: who retrains or requantises a model changes them all,
 * and reading every byte would cost seconds. */
static void add_tensor(uint64_t *h, const gguf_tensor *t) {
    const unsigned char *data = t->data;
    size_t n = t->size_bytes;
    if (n <= 3 * SAMPLE_BYTES) {
        add(h, data, n);
        return;
    }
    add(h, data, SAMPLE_BYTES);
    add(h, data + (n - SAMPLE_BYTES) / 2, SAMPLE_BYTES);
    add(h, data + n - SAMPLE_BYTES, SAMPLE_BYTES);
}

void fingerprint_make(fingerprint out, const gguf *file, const fingerprint_path *path) {
    uint64_t h = 0;
    add(&h, path->version, strlen(path->version));
    add(&h, path->isa, strlen(path->isa));
    add(&h, &(uint32_t){path->kv_type}, sizeof(uint32_t));
    add(&h, &(uint32_t){path->precise}, sizeof(uint32_t));
    const void *header;
    size_t n;
    for (size_t i = 0; (header = gguf_header(file, i, &n)) != NULL; i++) add(&h, header, n);
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        add_tensor(&h, t);
        gguf_drop(file, t->data, t->size_bytes);
    }
    snprintf(out, sizeof(fingerprint), "fp_%016llx", (unsigned long long)h);
}
