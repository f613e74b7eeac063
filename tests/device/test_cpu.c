/* The cpu device against naive double-precision computations, and bit for bit against itself:
 * every path, weight type, odd size, batch shape and thread count. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mem.h"
#include "device/device.h"
#include "device_rig.h"

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
    run_product(rig_paths[0], 1, false, &p, n, first);
    check_product(&p, first, quant_block_values(type) == 1 ? 3e-6 : 6e-3);
    for (int i = 0; i < rig_n_paths; i++) { /* alone, all together, on threads: the same bits */
        run_product(rig_paths[i], 1, false, &p, 1, again);
        assert_memory_equal(first, again, size);
        run_product(rig_paths[i], 3, false, &p, n, again);
        assert_memory_equal(first, again, size);
    }
    run_product(rig_paths[0], 1, true, &p, n, first);
    check_product(&p, first, 3e-6);
    for (int i = 0; i < rig_n_paths; i++) {
        run_product(rig_paths[i], 2, true, &p, i % 2 == 0 ? 1 : n, again);
        assert_memory_equal(first, again, size);
    }
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

/* Rows longer than what is unpacked at a time (24 blocks): by one block or superblock, and by more
 * than as much again; of few tokens, of many, and of several token blocks. */
static void test_long_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint32_t block = quant_block_values(types[i]), longer = block == 256 ? 1024 : 800;
        compare_paths(types[i], 17, longer, i % 2 == 0 ? 26 : 31);
        compare_paths(types[i], 3, block == 256 ? 1792 : 1632, i % 2 == 0 ? 98 : 5);
    }
}

/* A step of any size gives each row the bits that it has alone, whichever tiles it ends in: a type
 * of each way to hold quants. */
static void test_step_sizes(void **state) {
    (void)state;
    enum { ROWS = 40, COLS = 256, N = 40 };
    static const quant_type some[] = {QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_1, QUANT_Q5_0,
                                      QUANT_Q6_K, QUANT_IQ4_NL, QUANT_Q8_0};
    float *x = random_floats(N * COLS);
    float *alone = mem_alloc(N * ROWS * sizeof *alone), *again = mem_alloc(N * ROWS * 4);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        uint8_t *weights = random_weights(some[i], (size_t)ROWS * COLS);
        product p = {
            .type = some[i], .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
        run_product(rig_paths[0], 1, false, &p, 1, alone);
        for (int k = 0; k < rig_n_paths; k++)
            for (uint32_t batch = 2; batch <= N; batch++) {
                run_product(rig_paths[k], 1, false, &p, batch, again);
                assert_memory_equal(alone, again, N * ROWS * sizeof *alone);
            }
        mem_free(weights);
    }
    mem_free(x);
    mem_free(alone);
    mem_free(again);
}

/* Steps of few and of many tokens on teams of their own size, one within the other: the same bits.
 */
static void test_thread_counts(void **state) {
    (void)state;
    enum { ROWS = 150, COLS = 256, N = 100 };
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
 * large values in turn, one by one and two by two. */
static void extreme_row(float *x, size_t n, int kind) {
    for (size_t i = 0; i < n; i++) {
        const float values[] = {0,
                                -0.0f,
                                1e-40f,
                                i == n / 2 ? 1 : 0,
                                3.7f,
                                -3.7f,
                                i % 2 ? -1e4f : 1e4f,
                                i / 2 % 2 ? -1e4f : 1e4f};
        x[i] = values[kind];
    }
}

/* Finite, zero where the input is zero, and the same bits on every path. */
static void test_extreme_blocks(void **state) {
    (void)state;
    enum { ROWS = 23, COLS = 768, KINDS = 8, N = 4 * KINDS };
    const uint32_t sizes[] = {1, KINDS, N};
    float *x = mem_alloc(N * COLS * sizeof *x);
    float *first = mem_alloc(N * ROWS * sizeof *first), *again = mem_alloc(N * ROWS * 4);
    for (int k = 0; k < N; k++) extreme_row(x + (size_t)k * COLS, COLS, k % KINDS);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint8_t *weights = extreme_weights(types[i], (size_t)ROWS * COLS);
        product p = {
            .type = types[i], .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
        run_product(rig_paths[0], 1, false, &p, N, first);
        check_product(&p, first, quant_block_values(types[i]) == 1 ? 3e-6 : 6e-3);
        for (int r = 0; r < N * ROWS; r++) {
            assert_true(isfinite(first[r]));
            if (r / ROWS % KINDS < 2) assert_true(first[r] == 0);
        }
        for (int k = 0; k < rig_n_paths * 3; k++) {
            run_product(rig_paths[k / 3], 3, false, &p, sizes[k % 3], again);
            assert_memory_equal(first, again, N * ROWS * sizeof *first);
        }
        mem_free(weights);
    }
    mem_free(x);
    mem_free(first);
    mem_free(again);
}

/* Gate and up -> act -> down, as one step or, where somebody else reads what lies between, as
 * several: the same bits. */
static void run_glu(const char *isa, int threads, bool separate, bool biased, quant_type up,
                    uint32_t n, const float *x, uint8_t *const data[3], const float *bias,
                    float *out) {
    enum { IN = 64, HIDDEN = 96, OUT = 40 };
    device *d = open_device(isa, threads, false);
    dev_weight *w[] = {upload(d, QUANT_F32, x, n, IN), upload(d, QUANT_Q4_1, data[0], HIDDEN, IN),
                       upload(d, up, data[1], HIDDEN, IN),
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

/* No number, or the same bits, on every path, alone or among others. */
static void check_no_numbers(const product *p, bool precise) {
    size_t n = (size_t)p->n * p->rows;
    float *first = mem_alloc(n * sizeof *first), *again = mem_alloc(n * sizeof *again);
    run_product(rig_paths[0], 1, precise, p, p->n, first);
    for (int k = 0; k < 2 * rig_n_paths; k++) {
        run_product(rig_paths[k / 2], 2, precise, p, k % 2 == 0 ? 1 : p->n, again);
        for (size_t i = 0; i < n; i++)
            assert_true(isnan(first[i]) ? isnan(again[i]) : first[i] == again[i]);
    }
    mem_free(first);
    mem_free(again);
}

/* At each place of a block, as the largest of a block is sought in an order of its own. What is
 * made of them is no number either. */
static void test_infinite_activations(void **state) {
    (void)state;
    enum { ROWS = 23, COLS = 768, N = 3 * 32 };
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    float *x = random_floats(N * COLS);
    for (size_t t = 0; t < N; t++) x[t * COLS + t * 32 % COLS + t / 3] = odd[t % 3];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (quant_block_values(types[i]) == 1) continue; /* no activation is quantised */
        uint8_t *weights = random_weights(types[i], (size_t)ROWS * COLS);
        product p = {
            .type = types[i], .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
        check_no_numbers(&p, false);
        float *out = mem_alloc(N * ROWS * sizeof *out);
        run_product(NULL, 1, false, &p, N, out);
        for (size_t k = 0; k < N * ROWS; k++) assert_true(isnan(out[k]));
        mem_free(out);
        mem_free(weights);
    }
    mem_free(x);
}

/* What a damaged file may hold: scales and minima that are infinite or no number, in one block of a
 * row. Rows without such a block are numbers. */
static void test_infinite_weights(void **state) {
    (void)state;
    enum { ROWS = 37, COLS = 768, N = 27 };
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0};
    float *x = random_floats(N * COLS);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint8_t *weights = random_weights(types[i], (size_t)ROWS * COLS);
        size_t per_row = COLS / quant_block_values(types[i]), block = quant_block_bytes(types[i]);
        for (size_t r = 0; r < ROWS; r += 2)
            put_scales(types[i], weights + (r * per_row + r % per_row) * block, odd[r / 2 % 4],
                       odd[(r / 2 + r / 8) % 4]);
        product p = {
            .type = types[i], .rows = ROWS, .cols = COLS, .n = N, .weights = weights, .x = x};
        check_no_numbers(&p, false);
        check_no_numbers(&p, true);
        float *out = mem_alloc(N * ROWS * sizeof *out);
        run_product(NULL, 1, false, &p, N, out);
        for (size_t k = 0; k < N * ROWS; k++) assert_true(k % ROWS % 2 == 0 || isfinite(out[k]));
        mem_free(out);
        mem_free(weights);
    }
    mem_free(x);
}

/* up: its type; the gate's is Q4_1. */
static void check_glu(quant_type up, bool biased) {
    enum { N = 110, OUT = 40 };
    const uint32_t sizes[] = {1, 2, 5, 6, 7, 12, 13, 97, N};
    uint8_t *data[] = {random_weights(QUANT_Q4_1, 96 * 64), random_weights(up, 96 * 64),
                       random_weights(QUANT_Q8_0, OUT * 96)};
    float *x = random_floats(N * 64), *bias = random_floats(96);
    float *first = mem_alloc(N * OUT * sizeof *first), *again = mem_alloc(N * OUT * sizeof *again);
    run_glu(rig_paths[0], 1, true, biased, up, N, x, data, bias, first);
    for (int k = 0; k < rig_n_paths; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int separate = 0; separate < 2; separate++) {
                run_glu(rig_paths[k], 1 + (int)i % 3, separate, biased, up, sizes[i], x, data, bias,
                        again);
                assert_memory_equal(first, again, sizes[i] * OUT * sizeof *first);
            }
    for (int i = 0; i < 3; i++) mem_free(data[i]);
    mem_free(x);
    mem_free(bias);
    mem_free(first);
    mem_free(again);
}

static void test_glu_fused_or_not(void **state) {
    (void)state;
    for (int biased = 0; biased < 2; biased++) {
        check_glu(QUANT_Q5_0, biased);
        check_glu(QUANT_Q4_1, biased);
    }
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
    rig_find_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_step_sizes),
        cmocka_unit_test(test_thread_counts),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_extreme_blocks),
        cmocka_unit_test(test_infinite_activations),
        cmocka_unit_test(test_infinite_weights),
        cmocka_unit_test(test_glu_fused_or_not),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
