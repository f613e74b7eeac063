/* fuzz: the shipping GGUF reader on arbitrary bytes; what opens is read through every getter. */
#include <stdlib.h>

#include "base/mem.h"
#include "format/gguf_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_array(const gguf *g, const char *key) {
    gguf_type type;
    size_t n;
    if (!gguf_get_array(g, key, &type, &n)) return;
    void *items = mem_zalloc(n, sizeof(gguf_string)); /* the largest of the three */
    if (items == NULL) abort();
    (void)gguf_array_string(g, key, items, n);
    (void)gguf_array_f32(g, key, items, n);
    (void)gguf_array_i64(g, key, items, n);
    mem_free(items);
}

static void read_key(const gguf *g, const char *key) {
    uint64_t u;
    int64_t i;
    double x;
    bool flag;
    gguf_string s;
    if (!gguf_has(g, key, NULL)) abort();
    (void)gguf_get_u64(g, key, &u);
    (void)gguf_get_i64(g, key, &i);
    (void)gguf_get_f64(g, key, &x);
    (void)gguf_get_bool(g, key, &flag);
    (void)gguf_get_string(g, key, &s);
    read_array(g, key);
}

static void read_tensor(const gguf *g, const gguf_tensor *t) {
    float x[256];
    size_t bytes = quant_block_bytes(t->type);
    if (gguf_tensor_find(g, t->name) != t) abort();
    const unsigned char *p = t->data; /* its first and last blocks */
    quant_dequantize(t->type, p, x, quant_block_values(t->type));
    quant_dequantize(t->type, p + t->size_bytes - bytes, x, quant_block_values(t->type));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf *g = NULL;
    ridge_error err = {0};
    ridge_status status = gguf_open_memory(&g, data, size, &err);
    if ((status == RIDGE_OK) != (g != NULL) || status != err.code) abort();
    if (g == NULL) return 0;
    for (size_t i = 0; i < gguf_n_keys(g); i++) read_key(g, gguf_key(g, i, NULL));
    for (size_t i = 0; i < gguf_n_tensors(g); i++) read_tensor(g, gguf_tensor_at(g, i));
    gguf_close(g);
    return 0;
}
