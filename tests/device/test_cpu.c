/* The cpu device against naive double-precision computations, and bit for bit against itself:
 * every path, weight type, odd size, batch shape, chunking, block size and thread count. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mem.h"
#include "device/device.h"

static const char *paths[4];
static int n_paths;

static uint64_t random_state = 1;

static uint32_t random_u32(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static float random_float(void) { /* about normal */
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(random_u32() & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7f;
}

static float *random_floats(size_t n) {
    float *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

static void put_f16(uint8_t *p, float x) {
    uint16_t h = quant_f32_to_f16(x);
    memcpy(p, &h, 2);
}

/* The scales of a block of the file, where its type has them; of F32, F16 and BF16 the value. */
static void put_scales(quant_type type, uint8_t *p, float scale, float min) {
    uint32_t bits;
    memcpy(&bits, &scale, 4);
    switch (type) {
    case QUANT_F32: memcpy(p, &scale, 4); break;
    case QUANT_BF16: memcpy(p, (uint8_t *)&bits + 2, 2); break;
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        put_f16(p, scale);
        put_f16(p + 2, min);
        break;
    case QUANT_Q2_K:
        put_f16(p + 80, scale);
        put_f16(p + 82, min);
        break;
    case QUANT_Q3_K: put_f16(p + 108, scale); break;
    case QUANT_Q6_K: put_f16(p + 208, scale); break;
    default: put_f16(p, scale); break;
    }
}

/* Random blocks whose scales are ordinary numbers. */
static uint8_t *random_weights(quant_type type, size_t n) {
    size_t block = quant_block_bytes(type), n_blocks = n / quant_block_values(type);
    uint8_t *data = mem_alloc(n_blocks * block);
    for (size_t i = 0; i < n_blocks * block; i++) data[i] = (uint8_t)random_u32();
    for (size_t b = 0; b < n_blocks; b++) {
        float scale = 0.001f * (float)(1 + random_u32() % 20), x = random_float();
        float min = type == QUANT_Q2_K ? scale : -8 * scale * random_float();
        if (type == QUANT_Q6_K) scale *= 0.1f;
        put_scales(type, data + b * block, quant_block_values(type) == 1 ? x : scale, min);
    }
    return data;
}

static device *open_device_batch(const char *isa, int threads, int threads_batch, bool precise) {
    device *d = NULL;
    ridge_error err = {0};
    device_cpu_params p = {
        .n_threads = threads, .n_threads_batch = threads_batch, .isa = isa, .precise = precise};
    if (device_cpu_create(&d, &p, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return d;
}

static device *open_device(const char *isa, int threads, bool precise) {
    return open_device_batch(isa, threads, 0, precise);
}

static dev_weight *upload(device *d, quant_type type, const void *data, uint32_t rows,
                          uint32_t cols) {
    dev_weight *w = NULL;
    ridge_error err = {0};
    if (d->vtable->weight_upload(d, &w, type, data, rows, cols, false, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
    return w;
}

/* One matrix product run as a model would: embed the tokens, gather, linear. The embedding is the
 * input: [n, cols] f32, token i = row i. */
typedef struct {
    quant_type type;
    uint32_t rows, cols, n;
    int threads_batch; /* 0: as others */
    const uint8_t *weights;
    const float *x, *bias; /* bias NULL: none */
} product;

static void run_product(const char *isa, int threads, bool precise, const product *p,
                        uint32_t batch, float *out /* [n, rows] */) {
    device *d = open_device_batch(isa, threads, p->threads_batch, precise);
    dev_weight *embed = upload(d, QUANT_F32, p->x, p->n, p->cols);
    dev_weight *w = upload(d, p->type, p->weights, p->rows, p->cols);
    dev_weight *bias = p->bias != NULL ? upload(d, QUANT_F32, p->bias, 1, p->rows) : NULL;
    dev_op ops[4] = {
        {.kind = DEV_EMBED, .out = {0}, .w = {embed}, .scale = 1},
        {.kind = DEV_LINEAR, .in = {0}, .out = {1}, .w = {w}, .bias = {bias}, .n_weights = 1},
        {.kind = DEV_GATHER, .in = {1}, .out = {2}},
        {.kind = DEV_SCALE, .in = {2}, .out = {3}, .scale = 1}};
    uint32_t widths[] = {p->cols, p->rows, p->rows, p->rows};
    dev_program program = {.ops = ops,
                           .n_ops = 4,
                           .head_start = 2,
                           .widths = widths,
                           .n_values = 4,
                           .n_vocab = p->rows};
    dev_compiled *c = NULL;
    ridge_error err = {0};
    if (d->vtable->compile(d, &c, &program, batch, &err) != RIDGE_OK) fail_msg("%s", err.text);
    for (uint32_t first = 0; first < p->n; first += batch) {
        uint32_t n = p->n - first < batch ? p->n - first : batch;
        int32_t *tokens = mem_alloc(n * 4);
        uint32_t wanted[DEV_HEAD_ROWS];
        for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(first + i);
        int32_t *positions = mem_zalloc(n, 4);
        dev_seq seq = {.n_rows = n, .n_context = 1};
        dev_batch b = {
            .n_tokens = n, .n_seqs = 1, .tokens = tokens, .positions = positions, .seqs = &seq};
        if (d->vtable->submit(d, c, NULL, &b, &err) != RIDGE_OK) fail_msg("%s", err.text);
        assert_int_equal(d->vtable->wait(d, &err), RIDGE_OK);
        for (uint32_t r = 0; r < n; r += DEV_HEAD_ROWS) {
            uint32_t m = n - r < DEV_HEAD_ROWS ? n - r : DEV_HEAD_ROWS;
            for (uint32_t i = 0; i < m; i++) wanted[i] = r + i;
            float *to = out + (size_t)(first + r) * p->rows;
            assert_int_equal(d->vtable->head(d, c, wanted, m, to, &err), RIDGE_OK);
        }
        mem_free(tokens);
        mem_free(positions);
    }
    d->vtable->compiled_free(d, c);
    d->vtable->weight_free(d, embed);
    d->vtable->weight_free(d, w);
    d->vtable->weight_free(d, bias);
    d->vtable->destroy(d);
}

/* Against the exact product of the exact weights. Tolerance, relative to the norms of the two
 * vectors: f32 activations 3e-6; int8 ones 6e-3 (steps of 1/127 of a block's largest). */
static void check_product(const product *p, const float *out, double tolerance) {
    float *row = mem_alloc(p->cols * sizeof *row);
    size_t row_bytes = (size_t)p->cols / quant_block_values(p->type) * quant_block_bytes(p->type);
    for (uint32_t r = 0; r < p->rows; r++) {
        quant_dequantize(p->type, p->weights + r * row_bytes, row, p->cols);
        for (uint32_t t = 0; t < p->n; t++) {
            double sum = p->bias != NULL ? (double)p->bias[r] : 0, ww = 0, xx = 0;
            for (uint32_t k = 0; k < p->cols; k++) {
                double w = (double)row[k], x = (double)p->x[(size_t)t * p->cols + k];
                sum += w * x;
                ww += w * w;
                xx += x * x;
            }
            double got = (double)out[(size_t)t * p->rows + r];
            if (fabs(got - sum) > tolerance * sqrt(ww * xx) + 1e-6)
                fail_msg("%s %ux%u token %u row %u: %g, expected %g (norms %g)",
                         quant_name(p->type), p->rows, p->cols, t, r, got, sum, sqrt(ww * xx));
        }
    }
    mem_free(row);
}

static const quant_type types[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0,  QUANT_Q4_1,
                                   QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0, QUANT_Q2_K,  QUANT_Q3_K,
                                   QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL};

static void compare_paths(quant_type type, uint32_t rows, uint32_t cols, uint32_t n) {
    product p = {.type = type, .rows = rows, .cols = cols, .n = n};
    uint8_t *weights = random_weights(type, (size_t)rows * cols);
    float *x = random_floats((size_t)n * cols), *bias = random_floats(rows);
    p.weights = weights;
    p.x = x;
    if (rows % 2 != 0) p.bias = bias;
    size_t size = (size_t)n * rows * sizeof(float);
    float *first = mem_alloc(size), *again = mem_alloc(size);
    run_product(paths[0], 1, false, &p, n, first);
    check_product(&p, first, quant_block_values(type) == 1 ? 3e-6 : 6e-3);
    for (int i = 0; i < n_paths; i++) { /* alone, all together, on threads: the same bits */
        run_product(paths[i], 1, false, &p, 1, again);
        assert_memory_equal(first, again, size);
        run_product(paths[i], 3, false, &p, n, again);
        assert_memory_equal(first, again, size);
    }
    run_product(NULL, 2, true, &p, n, again);
    check_product(&p, again, 3e-6);
    mem_free(weights);
    mem_free(x);
    mem_free(bias);
    mem_free(first);
    mem_free(again);
}

static void test_linear(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint32_t block = quant_block_values(types[i]);
        uint32_t odd = block == 1 ? 37 : block, wide = block == 256 ? 768 : 288;
        compare_paths(types[i], 16, wide, 1);
        compare_paths(types[i], 17, odd, 3);
        compare_paths(types[i], 50, wide, 29);
    }
    compare_paths(QUANT_Q4_1, 100, 64, 230); /* several token blocks */
    compare_paths(QUANT_Q6_K, 33, 256, 101);
}

/* Steps of few and of many tokens on teams of their own size, one within the other: the same bits.
 */
static void test_thread_counts(void **state) {
    (void)state;
    enum { ROWS = 150, COLS = 256, N = 60 };
    static const int counts[][2] = {{1, 4}, {4, 1}, {2, 3}, {3, 2}, {5, 5}};
    static const uint32_t batches[] = {1, DEV_FEW_TOKENS, DEV_FEW_TOKENS + 1, 50, N};
    uint8_t *weights = random_weights(QUANT_Q4_K, (size_t)ROWS * COLS);
    float *x = random_floats(N * COLS);
    float *first = mem_alloc(N * ROWS * sizeof *first), *again = mem_alloc(N * ROWS * 4);
    product p = {
        .type = QUANT_Q4_K, .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
    run_product(NULL, 1, false, &p, N, first);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
            p.threads_batch = counts[i][1];
            run_product(NULL, counts[i][0], false, &p, batches[k], again);
            assert_memory_equal(first, again, N * ROWS * sizeof *first);
        }
    mem_free(weights);
    mem_free(x);
    mem_free(first);
    mem_free(again);
}

static void check_threads(device_cpu_params p, int expected) {
    device *d = NULL;
    ridge_error err = {0};
    if (device_cpu_create(&d, &p, &err) != RIDGE_OK) fail_msg("%s", err.text);
    assert_int_equal(device_cpu_threads(d), expected);
    d->vtable->destroy(d);
}

static void check_refused(device_cpu_params p, const char *expected) {
    device *d = NULL;
    ridge_error err = {0};
    assert_int_equal(device_cpu_create(&d, &p, &err), RIDGE_EINVAL);
    assert_null(d);
    if (strstr(err.text, expected) == NULL) fail_msg("%s", err.text);
}

static void test_affinity(void **state) {
    (void)state;
    char one[16], two[32];
    cpu_list own;
    assert_int_equal(cpus_allowed(&own, NULL), RIDGE_OK);
    snprintf(one, sizeof one, "%d", own.ids[0]);
    check_threads((device_cpu_params){.cpu_affinity = one}, 1);
    check_threads((device_cpu_params){.cpu_affinity = "auto"}, cpus_usable());
    check_refused((device_cpu_params){.n_threads = 2, .cpu_affinity = one}, "1 for 2 threads");
    check_refused((device_cpu_params){.n_threads_batch = 3, .cpu_affinity = one},
                  "1 for 3 threads");
    check_refused((device_cpu_params){.n_threads = own.n + 1, .cpu_affinity = "auto"},
                  "processors 'auto': ");
    check_refused((device_cpu_params){.cpu_affinity = "0-"}, "expected a list such as");
    if (own.n > 1) {
        snprintf(two, sizeof two, "%d,%d", own.ids[1], own.ids[0]);
        check_threads(
            (device_cpu_params){.n_threads_batch = 2, .n_threads = 1, .cpu_affinity = two}, 2);
    }
    cpu_list_free(&own);
}

/* Blocks at the ends of what a file may hold: quants all one byte (0, -128, -1, 127) and scales of
 * zero, of the smallest and of the largest f16; plain values likewise. */
static uint8_t *extreme_weights(quant_type type, size_t n) {
    static const uint8_t bytes[] = {0x00, 0x80, 0xFF, 0x7F};
    static const float scales[] = {0, 65504, 6e-8f, -65504, 1};
    size_t block = quant_block_bytes(type), n_blocks = n / quant_block_values(type);
    uint8_t *data = mem_alloc(n_blocks * block);
    for (size_t b = 0; b < n_blocks; b++) {
        memset(data + b * block, bytes[b / 5 % 4], block);
        put_scales(type, data + b * block, scales[b % 5], scales[(b + 1) % 5]);
    }
    return data;
}

/* Of a zero row, of negative zeros, of denormals, of one value among zeros, of all the same, of
 * large values in turn. */
static void extreme_row(float *x, size_t n, int kind) {
    for (size_t i = 0; i < n; i++) {
        const float values[] = {0, -0.0f, 1e-40f, i == n / 2 ? 1 : 0, 3.7f, i % 2 ? -1e4f : 1e4f};
        x[i] = values[kind];
    }
}

/* Finite, zero where the input is zero, and the same bits on every path. */
static void test_extreme_blocks(void **state) {
    (void)state;
    enum { ROWS = 23, COLS = 768, KINDS = 6 };
    float *x = mem_alloc(KINDS * COLS * sizeof *x);
    float *first = mem_alloc(KINDS * ROWS * sizeof *first), *again = mem_alloc(KINDS * ROWS * 4);
    for (int k = 0; k < KINDS; k++) extreme_row(x + (size_t)k * COLS, COLS, k);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint8_t *weights = extreme_weights(types[i], (size_t)ROWS * COLS);
        product p = {
            .type = types[i], .rows = ROWS, .cols = COLS, .n = KINDS, .weights = weights, .x = x};
        run_product(paths[0], 1, false, &p, KINDS, first);
        check_product(&p, first, quant_block_values(types[i]) == 1 ? 3e-6 : 6e-3);
        for (int r = 0; r < KINDS * ROWS; r++) {
            assert_true(isfinite(first[r]));
            if (r < 2 * ROWS) assert_true(first[r] == 0);
        }
        for (int k = 0; k < n_paths; k++) {
            run_product(paths[k], 3, false, &p, k % 2 == 0 ? 1 : KINDS, again);
            assert_memory_equal(first, again, KINDS * ROWS * sizeof *first);
        }
        mem_free(weights);
    }
    mem_free(x);
    mem_free(first);
    mem_free(again);
}

/* Attention ------------------------------------------------------------------------------------ */

typedef struct {
    uint32_t n_heads, n_kv_heads, head_dim, window, block_size, n_rot;
    float softcap;
    bool neox;
    dev_kv_type kv_type;
    int threads;
    const char *isa;
} attention_case;

#define MAX_SEQS 4

/* Sequences of given lengths; q, k, v come out of one embedding of [tokens, (H + 2 KV) * D]. */
typedef struct {
    uint32_t lengths[MAX_SEQS], n_seqs;
    const float *qkv; /* [sum of lengths, width] */
    const float *inv_freq;
} attention_input;

typedef struct {
    device *d;
    dev_compiled *c;
    dev_kv *kv;
    dev_weight *w[4];
} attention_rig;

/* embed -> three slices by identity matrices would blur the test; three embeddings do not. */
static void make_rig(attention_rig *rig, const attention_case *a, const attention_input *in,
                     float *parts[3], uint32_t n_tokens, uint32_t max_tokens) {
    device *d = rig->d = open_device(a->isa, a->threads, false);
    uint32_t q_width = a->n_heads * a->head_dim, kv_width = a->n_kv_heads * a->head_dim;
    uint32_t widths[] = {q_width, kv_width, kv_width, q_width, q_width};
    for (int i = 0; i < 3; i++) rig->w[i] = upload(d, QUANT_F32, parts[i], n_tokens, widths[i]);
    dev_op shape = {.n_heads = a->n_heads,
                    .n_kv_heads = a->n_kv_heads,
                    .head_dim = a->head_dim,
                    .window = a->window,
                    .softcap = a->softcap,
                    .scale = 0.3f,
                    .layer = 1,
                    .rope_inv_freq = in->inv_freq,
                    .rope_mscale = 1,
                    .rope_neox = a->neox,
                    .n_rot = a->n_rot};
    dev_op ops[8];
    for (int i = 0; i < 3; i++)
        ops[i] = (dev_op){.kind = DEV_EMBED, .out = {(dev_value)i}, .w = {rig->w[i]}, .scale = 1};
    for (int i = 3; i < 7; i++) ops[i] = shape;
    ops[3].kind = ops[4].kind = DEV_ROPE;
    ops[4].in[0] = 1;
    ops[5].kind = DEV_KV_WRITE;
    ops[5].in[0] = 1;
    ops[5].in[1] = 2;
    ops[6].kind = DEV_ATTENTION;
    ops[6].out[0] = 3;
    ops[7] = (dev_op){.kind = DEV_GATHER, .in = {3}, .out = {4}};
    dev_program p = {.ops = ops,
                     .n_ops = 8,
                     .head_start = 7,
                     .widths = widths,
                     .n_values = 5,
                     .n_vocab = q_width};
    ridge_error err = {0};
    if (d->vtable->compile(d, &rig->c, &p, max_tokens, &err) != RIDGE_OK) fail_msg("%s", err.text);
    dev_kv_layout layout = {.groups = {{.n_layers = 2,
                                        .n_kv_heads = a->n_kv_heads,
                                        .head_dim = a->head_dim,
                                        .window = a->window,
                                        .n_blocks = 4096 / a->block_size}},
                            .n_groups = 1,
                            .block_size = a->block_size,
                            .type = a->kv_type};
    if (d->vtable->kv_create(d, &rig->kv, &layout, &err) != RIDGE_OK) fail_msg("%s", err.text);
}

static void free_rig(attention_rig *rig) {
    rig->d->vtable->kv_free(rig->d, rig->kv);
    rig->d->vtable->compiled_free(rig->d, rig->c);
    for (int i = 0; i < 3; i++) rig->d->vtable->weight_free(rig->d, rig->w[i]);
    rig->d->vtable->destroy(rig->d);
}

/* Walks all sequences together, each `chunk` tokens a step (0: all at once), blocks interleaved
 * among them from the end of the pool; out [sum of lengths, H * D]. */
static void run_attention(const attention_case *a, const attention_input *in, float *parts[3],
                          uint32_t chunk, float *out) {
    uint32_t total = 0, width = a->n_heads * a->head_dim, starts[MAX_SEQS];
    for (uint32_t s = 0; s < in->n_seqs; s++) {
        starts[s] = total;
        total += in->lengths[s];
    }
    attention_rig rig = {0};
    make_rig(&rig, a, in, parts, total, total);
    int32_t tables[MAX_SEQS][4096], next = (int32_t)(4096 / a->block_size) - 1;
    uint32_t done[MAX_SEQS] = {0}, finished = 0;
    int32_t *tokens = mem_alloc(total * 4), *positions = mem_alloc(total * 4);
    while (finished < total) {
        dev_seq seqs[MAX_SEQS] = {0};
        dev_batch b = {.tokens = tokens, .positions = positions, .seqs = seqs};
        for (uint32_t s = 0; s < in->n_seqs; s++) {
            uint32_t left = in->lengths[s] - done[s], n = chunk != 0 && chunk < left ? chunk : left;
            if (n == 0) continue;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t position = done[s] + i;
                if (position % a->block_size == 0) tables[s][position / a->block_size] = next--;
                tokens[b.n_tokens + i] = (int32_t)(starts[s] + position);
                positions[b.n_tokens + i] = (int32_t)position;
            }
            seqs[b.n_seqs++] = (dev_seq){.first_row = b.n_tokens,
                                         .n_rows = n,
                                         .n_context = done[s] + n,
                                         .blocks = {tables[s]}};
            b.n_tokens += n;
            done[s] += n;
        }
        ridge_error err = {0};
        if (rig.d->vtable->submit(rig.d, rig.c, rig.kv, &b, &err) != RIDGE_OK)
            fail_msg("%s", err.text);
        for (uint32_t r = 0; r < b.n_tokens; r++)
            assert_int_equal(
                rig.d->vtable->head(rig.d, rig.c, &r, 1, out + (size_t)tokens[r] * width, &err),
                RIDGE_OK);
        finished += b.n_tokens;
    }
    mem_free(tokens);
    mem_free(positions);
    free_rig(&rig);
}

static void rotate(const attention_case *a, const float *inv_freq, uint32_t position, double *x) {
    for (uint32_t i = 0; i < a->n_rot / 2; i++) {
        double angle = position * (double)inv_freq[i], c = cos(angle), s = sin(angle);
        uint32_t p = a->neox ? i : 2 * i, q = a->neox ? i + a->n_rot / 2 : 2 * i + 1;
        double u = x[p], v = x[q];
        x[p] = u * c - v * s;
        x[q] = u * s + v * c;
    }
}

static void naive_row(const attention_case *a, const attention_input *in, float *parts[3],
                      uint32_t start, uint32_t position, uint32_t head, double *out) {
    uint32_t d = a->head_dim, kv_head = head / (a->n_heads / a->n_kv_heads);
    uint32_t first = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
    double q[512], k[512], *s = malloc((position + 1) * sizeof *s), top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < d; i++)
        q[i] = (double)parts[0][((size_t)(start + position) * a->n_heads + head) * d + i];
    rotate(a, in->inv_freq, position, q);
    for (uint32_t t = first; t <= position; t++) {
        const float *row = parts[1] + ((size_t)(start + t) * a->n_kv_heads + kv_head) * d;
        for (uint32_t i = 0; i < d; i++) k[i] = (double)row[i];
        rotate(a, in->inv_freq, t, k);
        s[t] = 0;
        for (uint32_t i = 0; i < d; i++) s[t] += q[i] * k[i];
        s[t] *= (double)0.3f;
        if (a->softcap > 0) s[t] = (double)a->softcap * tanh(s[t] / (double)a->softcap);
        if (s[t] > top) top = s[t];
    }
    for (uint32_t i = 0; i < d; i++) out[i] = 0;
    for (uint32_t t = first; t <= position; t++) {
        const float *row = parts[2] + ((size_t)(start + t) * a->n_kv_heads + kv_head) * d;
        double p = exp(s[t] - top);
        sum += p;
        for (uint32_t i = 0; i < d; i++) out[i] += p * (double)row[i];
    }
    for (uint32_t i = 0; i < d; i++) out[i] /= sum;
    free(s);
}

/* f32 cache: 2e-5; f16: 1.5e-2 (values up to 3.4 at 11 bits, scores up to some tens). */
static void check_attention(const attention_case *a, const attention_input *in, float *parts[3],
                            const float *got) {
    uint32_t start = 0;
    double expected[512], tolerance = a->kv_type == DEV_KV_F32 ? 2e-5 : 1.5e-2;
    for (uint32_t s = 0; s < in->n_seqs; start += in->lengths[s++])
        for (uint32_t t = 0; t < in->lengths[s]; t += t < 20 ? 1 : 7)
            for (uint32_t h = 0; h < a->n_heads; h++) {
                naive_row(a, in, parts, start, t, h, expected);
                const float *row = got + ((size_t)(start + t) * a->n_heads + h) * a->head_dim;
                for (uint32_t i = 0; i < a->head_dim; i++)
                    if (fabs((double)row[i] - expected[i]) > tolerance)
                        fail_msg("%s: sequence %u token %u head %u [%u]: %g, expected %g", a->isa,
                                 s, t, h, i, (double)row[i], expected[i]);
            }
}

static void check_case(attention_case a, attention_input in) {
    uint32_t total = 0, kv_width = a.n_kv_heads * a.head_dim, width = a.n_heads * a.head_dim;
    for (uint32_t s = 0; s < in.n_seqs; s++) total += in.lengths[s];
    float *parts[3] = {random_floats((size_t)total * width),
                       random_floats((size_t)total * kv_width),
                       random_floats((size_t)total * kv_width)};
    float inv_freq[128];
    for (uint32_t i = 0; i < 128; i++) inv_freq[i] = (float)pow(10000, -2.0 * i / a.n_rot);
    in.inv_freq = inv_freq;
    size_t size = (size_t)total * width * sizeof(float);
    float *first = mem_alloc(size), *again = mem_alloc(size);
    for (int i = 0; i < n_paths; i++) {
        a.isa = paths[i];
        a.threads = 1;
        a.block_size = 16;
        run_attention(&a, &in, parts, 0, first);
        check_attention(&a, &in, parts, first);
        a.threads = 3;
        const uint32_t chunks[] = {1, 7, 100}, sizes[] = {16, 5, 32};
        for (int k = 0; k < 3; k++) {
            a.block_size = sizes[k];
            run_attention(&a, &in, parts, chunks[k], again);
            assert_memory_equal(first, again, size);
        }
    }
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
    mem_free(first);
    mem_free(again);
}

static void test_attention(void **state) {
    (void)state;
    attention_input three = {.lengths = {300, 1, 37}, .n_seqs = 3};
    attention_case plain = {
        .n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .n_rot = 64, .kv_type = DEV_KV_F32};
    check_case(plain, three);
    attention_case window = plain;
    window.window = 20;
    window.softcap = 5;
    window.neox = true;
    check_case(window, three);
    attention_case odd = {.n_heads = 3,
                          .n_kv_heads = 3,
                          .head_dim = 20,
                          .n_rot = 8,
                          .neox = true,
                          .kv_type = DEV_KV_F16};
    check_case(odd, (attention_input){.lengths = {50, 70}, .n_seqs = 2});
    attention_case wide = {
        .n_heads = 4, .n_kv_heads = 1, .head_dim = 256, .n_rot = 256, .kv_type = DEV_KV_F16};
    wide.window = 300;
    check_case(wide, (attention_input){.lengths = {600}, .n_seqs = 1});
}

/* Values beyond f16 become infinite in the cache: who does not see such a token is not touched by
 * it, whatever shares its step. */
static void test_overflowed_values(void **state) {
    (void)state;
    enum { N = 90, FIRST = 61 };
    attention_case a = {.n_heads = 6,
                        .n_kv_heads = 2,
                        .head_dim = 48,
                        .block_size = 16,
                        .n_rot = 0,
                        .kv_type = DEV_KV_F16,
                        .threads = 2};
    const float inv_freq[] = {1};
    attention_input in = {.lengths = {N}, .n_seqs = 1, .inv_freq = inv_freq};
    size_t q_width = a.n_heads * a.head_dim, kv_width = a.n_kv_heads * a.head_dim;
    float *parts[] = {random_floats(N * q_width), random_floats(N * kv_width),
                      random_floats(N * kv_width)};
    for (size_t i = FIRST * kv_width; i < N * kv_width; i++) parts[2][i] = 1e6f;
    float *whole = mem_alloc(N * q_width * sizeof *whole), *single = mem_alloc(N * q_width * 4);
    for (int k = 0; k < n_paths; k++)
        for (a.window = 0; a.window <= 20; a.window += 20) {
            a.isa = paths[k];
            run_attention(&a, &in, parts, 0, whole);
            run_attention(&a, &in, parts, 1, single);
            for (size_t i = 0; i < FIRST * q_width; i++) assert_true(isfinite(whole[i]));
            assert_memory_equal(whole, single, N * q_width * sizeof *whole);
        }
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
    mem_free(whole);
    mem_free(single);
}

/* Whole blocks out of one pool and into another, of another size, and copied within it; no other
 * block changes. */
static void check_blocks(dev_kv_type type, uint32_t block_size) {
    enum { GROUP = 1, N = 7 };
    device *d = open_device(NULL, 1, false);
    const device_vtable *t = d->vtable;
    dev_kv_layout l = {.groups = {{.n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .n_blocks = 3},
                                  {.n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .n_blocks = N}},
                       .n_groups = 2,
                       .block_size = block_size,
                       .type = type};
    dev_kv *kv = NULL, *other = NULL;
    assert_int_equal(t->kv_create(d, &kv, &l, NULL), RIDGE_OK);
    l.groups[GROUP].n_blocks = 2;
    assert_int_equal(t->kv_create(d, &other, &l, NULL), RIDGE_OK);
    size_t n = dev_kv_bytes_per_block(&l, GROUP);
    uint8_t *blocks = mem_alloc(N * n), *got = mem_alloc(n);
    for (size_t i = 0; i < N * n; i++) blocks[i] = (uint8_t)random_u32();
    for (int b = 0; b < N; b++) t->kv_write_block(d, kv, GROUP, b, blocks + (size_t)b * n);
    t->kv_copy(d, kv, GROUP, 6, 2, block_size);
    memcpy(blocks + 2 * n, blocks + 6 * n, n);
    for (int b = 0; b < N; b++) {
        t->kv_read_block(d, kv, GROUP, b, got);
        assert_memory_equal(got, blocks + (size_t)b * n, n);
        t->kv_write_block(d, other, GROUP, 1, got);
        memset(got, 0, n);
        t->kv_read_block(d, other, GROUP, 1, got);
        assert_memory_equal(got, blocks + (size_t)b * n, n);
    }
    mem_free(blocks);
    mem_free(got);
    t->kv_free(d, kv);
    t->kv_free(d, other);
    t->destroy(d);
}

static void test_blocks_read_and_written(void **state) {
    (void)state;
    check_blocks(DEV_KV_F16, 16);
    check_blocks(DEV_KV_F16, 5);
    check_blocks(DEV_KV_F32, 32);
}

/* Gate and up -> act -> down, as one step or, where somebody else reads what lies between, as
 * several: the same bits. */
static void run_glu(const char *isa, int threads, bool separate, bool biased, uint32_t n,
                    const float *x, uint8_t *const data[3], const float *bias, float *out) {
    enum { IN = 64, HIDDEN = 96, OUT = 40 };
    device *d = open_device(isa, threads, false);
    dev_weight *w[] = {upload(d, QUANT_F32, x, n, IN), upload(d, QUANT_Q4_1, data[0], HIDDEN, IN),
                       upload(d, QUANT_Q5_0, data[1], HIDDEN, IN),
                       upload(d, QUANT_Q8_0, data[2], OUT, HIDDEN),
                       upload(d, QUANT_F32, bias, 1, HIDDEN)};
    dev_weight *b = biased ? w[4] : NULL;
    dev_op ops[] = {{.kind = DEV_EMBED, .out = {0}, .w = {w[0]}, .scale = 1},
                    {.kind = DEV_LINEAR,
                     .in = {0},
                     .out = {1, 2},
                     .w = {w[1], w[2]},
                     .bias = {b, b},
                     .n_weights = 2},
                    {.kind = DEV_GLU, .in = {1, 2}, .out = {3}, .activation = DEV_SILU},
                    {.kind = DEV_LINEAR, .in = {3}, .out = {4}, .w = {w[3]}, .n_weights = 1},
                    {.kind = DEV_ADD, .in = {1, 2}, .out = {5}},
                    {.kind = DEV_GATHER, .in = {4}, .out = {6}}};
    if (!separate) ops[4] = (dev_op){.kind = DEV_SCALE, .in = {4}, .out = {4}, .scale = 1};
    uint32_t widths[] = {IN, HIDDEN, HIDDEN, HIDDEN, OUT, HIDDEN, OUT};
    dev_program p = {
        .ops = ops, .n_ops = 6, .head_start = 5, .widths = widths, .n_values = 7, .n_vocab = OUT};
    dev_compiled *c = NULL;
    ridge_error err = {0};
    if (d->vtable->compile(d, &c, &p, n, &err) != RIDGE_OK) fail_msg("%s", err.text);
    int32_t tokens[256], positions[256], table[256] = {0};
    for (uint32_t i = 0; i < n; i++) tokens[i] = positions[i] = (int32_t)i;
    dev_seq seq = {.n_rows = n, .n_context = n, .blocks = {table}};
    dev_batch batch = {
        .n_tokens = n, .n_seqs = 1, .tokens = tokens, .positions = positions, .seqs = &seq};
    if (d->vtable->submit(d, c, NULL, &batch, &err) != RIDGE_OK) fail_msg("%s", err.text);
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(d->vtable->head(d, c, &r, 1, out + (size_t)r * OUT, &err), RIDGE_OK);
    dev_profile_row rows[16];
    size_t n_rows = d->vtable->profile(d, c, rows, 16), n_fused = 0;
    for (size_t i = 0; i < n_rows; i++) n_fused += strstr(rows[i].name, ", glu") != NULL;
    assert_int_equal(n_fused, separate ? 0 : 1);
    d->vtable->compiled_free(d, c);
    for (int i = 0; i < 5; i++) d->vtable->weight_free(d, w[i]);
    d->vtable->destroy(d);
}

/* No number, but the same bits on every path. */
static void test_infinite_activations(void **state) {
    (void)state;
    enum { ROWS = 23, COLS = 768, N = 3 };
    float *x = random_floats(N * COLS);
    x[5] = INFINITY;
    x[COLS + 40] = -INFINITY;
    x[2 * COLS + 700] = NAN;
    float *first = mem_alloc(N * ROWS * sizeof *first), *again = mem_alloc(N * ROWS * 4);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (quant_block_values(types[i]) == 1) continue; /* no activation is quantised */
        uint8_t *weights = random_weights(types[i], (size_t)ROWS * COLS);
        product p = {
            .type = types[i], .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
        run_product(paths[0], 1, false, &p, N, first);
        for (int k = 0; k < n_paths; k++) {
            run_product(paths[k], 2, false, &p, k % 2 == 0 ? 1 : N, again);
            for (int r = 0; r < N * ROWS; r++)
                assert_true(isnan(first[r]) ? isnan(again[r]) : first[r] == again[r]);
        }
        mem_free(weights);
    }
    mem_free(x);
    mem_free(first);
    mem_free(again);
}

static void test_glu_fused_or_not(void **state) {
    (void)state;
    enum { N = 110, OUT = 40 };
    const uint32_t sizes[] = {1, 2, 5, 6, 7, 12, 13, 97, N};
    uint8_t *data[] = {random_weights(QUANT_Q4_1, 96 * 64), random_weights(QUANT_Q5_0, 96 * 64),
                       random_weights(QUANT_Q8_0, OUT * 96)};
    float *x = random_floats(N * 64), *bias = random_floats(96);
    float *first = mem_alloc(N * OUT * sizeof *first), *again = mem_alloc(N * OUT * sizeof *again);
    for (int biased = 0; biased < 2; biased++) {
        run_glu(paths[0], 1, true, biased, N, x, data, bias, first);
        for (int k = 0; k < n_paths; k++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                for (int separate = 0; separate < 2; separate++) {
                    run_glu(paths[k], 1 + (int)i % 3, separate, biased, sizes[i], x, data, bias,
                            again);
                    assert_memory_equal(first, again, sizes[i] * OUT * sizeof *first);
                }
    }
    for (int i = 0; i < 3; i++) mem_free(data[i]);
    mem_free(x);
    mem_free(bias);
    mem_free(first);
    mem_free(again);
}

static void test_errors(void **state) {
    (void)state;
    device *d = NULL;
    ridge_error err = {0};
    device_cpu_params p = {.isa = "z80"};
    assert_int_equal(device_cpu_create(&d, &p, &err), RIDGE_EUNSUPPORTED);
    assert_null(d);
    d = open_device(NULL, 1, false);
    dev_weight *w = NULL;
    assert_int_equal(d->vtable->weight_upload(d, &w, QUANT_Q4_0, "", 2, 31, false, &err),
                     RIDGE_EINVAL);
    d->vtable->destroy(d);
}

int main(void) {
    const char *names[] = {"portable", "avx2", "avx512", "neon"};
    for (int i = 0; i < 4; i++) {
        device *d = NULL;
        device_cpu_params p = {.n_threads = 1, .isa = names[i]};
        if (device_cpu_create(&d, &p, NULL) != RIDGE_OK) continue;
        paths[n_paths++] = names[i];
        d->vtable->destroy(d);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_thread_counts),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_extreme_blocks),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_overflowed_values),
        cmocka_unit_test(test_blocks_read_and_written),
        cmocka_unit_test(test_infinite_activations),
        cmocka_unit_test(test_glu_fused_or_not),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
