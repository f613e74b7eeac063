/* Programs of the cpu device beyond one operation: heads whose values are as wide as the
 * vocabulary, logits that end where the caller's memory does, matrices of several types that share
 * an input. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "device_rig.h"

#define N 5 /* rows of a step, and wanted */

static void *random_matrix(quant_type type, uint32_t rows, uint32_t cols) {
    size_t n = (size_t)rows * cols;
    if (type == QUANT_F32) return random_floats(n);
    uint8_t *data = mem_alloc(n / quant_block_values(type) * quant_block_bytes(type));
    for (size_t b = 0; b < n / quant_block_values(type); b++) {
        uint8_t *p = data + b * quant_block_bytes(type);
        uint16_t scale = quant_f32_to_f16(type == QUANT_F16 ? random_float() : 0.02f);
        for (size_t i = 0; i < quant_block_bytes(type); i++) p[i] = (uint8_t)random_u32();
        memcpy(p, &scale, 2);
    }
    return data;
}

static void run(device *d, const dev_program *p, uint32_t n_rows, float *out) {
    dev_compiled *c = NULL;
    ridge_error err = {0};
    if (d->vtable->compile(d, &c, p, N, &err) != RIDGE_OK) fail_msg("%s", err.text);
    const int32_t tokens[N] = {0, 1, 2, 3, 4};
    const uint32_t rows[N] = {0, 1, 2, 3, 4};
    dev_seq seq = {.n_rows = N, .n_context = N};
    dev_batch b = {.n_tokens = N, .n_seqs = 1, .tokens = tokens, .positions = tokens, .seqs = &seq};
    if (d->vtable->submit(d, c, NULL, &b, &err) != RIDGE_OK) fail_msg("%s", err.text);
    for (uint32_t r = 0; r < N; r += n_rows) {
        uint32_t n = N - r < n_rows ? N - r : n_rows;
        float *to = out + (size_t)r * p->n_vocab;
        assert_int_equal(d->vtable->head(d, c, rows + r, n, to, &err), RIDGE_OK);
    }
    d->vtable->compiled_free(d, c);
}

/* Gather, norm, output matrix, soft-cap, as of a model of `width` and n_vocab; x and the matrix are
 * `type`s in double below. */
typedef struct {
    quant_type type;
    uint32_t width, n_vocab;
    bool precise;
    const float *x, *norm; /* [N, width], [width] */
    const void *head;      /* [n_vocab, width] of the type */
} head_case;

static void run_head(const char *isa, int threads, uint32_t n_rows, const head_case *h,
                     float *out) {
    device *d = open_device(isa, threads, h->precise);
    dev_weight *w[] = {upload(d, QUANT_F32, h->x, N, h->width),
                       upload(d, QUANT_F32, h->norm, 1, h->width),
                       upload(d, h->type, h->head, h->n_vocab, h->width)};
    dev_op ops[] = {
        {.kind = DEV_EMBED, .out = {0}, .w = {w[0]}, .scale = 1},
        {.kind = DEV_GATHER, .in = {0}, .out = {1}},
        {.kind = DEV_RMS_NORM, .in = {1}, .out = {1}, .w = {w[1]}, .eps = 1e-5f},
        {.kind = DEV_LINEAR, .in = {1}, .out = {2}, .w = {w[2]}, .n_weights = 1},
        {.kind = DEV_SOFTCAP, .in = {2}, .out = {2}, .softcap = 20},
    };
    uint32_t widths[] = {h->width, h->width, h->n_vocab};
    dev_program p = {.ops = ops,
                     .n_ops = 5,
                     .head_start = 1,
                     .widths = widths,
                     .n_values = 3,
                     .n_vocab = h->n_vocab};
    run(d, &p, n_rows, out);
    for (int i = 0; i < 3; i++) d->vtable->weight_free(d, w[i]);
    d->vtable->destroy(d);
}

/* Within 1e-5 of the norms where activations are f32; of int8 ones 6e-3. */
static void check_logits(const head_case *h, const float *got) {
    bool exact = h->precise || quant_block_values(h->type) == 1;
    size_t row_bytes = (size_t)h->width / quant_block_values(h->type) * quant_block_bytes(h->type);
    float *row = mem_alloc(h->width * sizeof *row);
    for (uint32_t v = 0; v < h->n_vocab; v++) {
        quant_dequantize(h->type, (const uint8_t *)h->head + v * row_bytes, row, h->width);
        for (uint32_t t = 0; t < N; t++) {
            const float *x = h->x + (size_t)t * h->width;
            double squares = 0, sum = 0, xx = 0, ww = 0;
            for (uint32_t i = 0; i < h->width; i++) squares += (double)x[i] * (double)x[i];
            for (uint32_t i = 0; i < h->width; i++) {
                double y = (double)x[i] / sqrt(squares / h->width + 1e-5) * (double)h->norm[i];
                sum += y * (double)row[i];
                xx += y * y;
                ww += (double)row[i] * (double)row[i];
            }
            double expected = 20 * tanh(sum / 20), value = (double)got[t * h->n_vocab + v];
            if (fabs(value - expected) > (exact ? 1e-5 : 6e-3) * sqrt(xx * ww) + 1e-5)
                fail_msg("%s %u of %u, row %u: %g, expected %g", quant_name(h->type), v, h->n_vocab,
                         t, value, expected);
        }
    }
    mem_free(row);
}

/* The logits end where the caller's memory does. */
static void check_head(quant_type type, uint32_t width, uint32_t n_vocab, bool precise) {
    void *head = random_matrix(type, n_vocab, width);
    float *x = random_floats(N * width), *norm = random_floats(width);
    size_t size = (size_t)N * n_vocab * sizeof(float);
    float *first = mem_alloc(size), *again = mem_alloc(size + 64);
    head_case h = {type, width, n_vocab, precise, x, norm, head};
    run_head(rig_paths[0], 1, N, &h, first);
    check_logits(&h, first);
    for (int k = 0; k < rig_n_paths; k++)
        for (uint32_t n_rows = 1; n_rows <= N; n_rows += 2) {
            memset(again, 0x55, size + 64);
            run_head(rig_paths[k], (int)n_rows, n_rows, &h, again);
            assert_memory_equal(first, again, size);
            for (size_t i = size; i < size + 64; i++) assert_int_equal(((uint8_t *)again)[i], 0x55);
        }
    mem_free(head);
    mem_free(x);
    mem_free(norm);
    mem_free(first);
    mem_free(again);
}

/* A vocabulary of as many tokens as a row has columns is no reason to take one for the other. */
static void test_heads(void **state) {
    (void)state;
    static const quant_type some[] = {QUANT_F32, QUANT_F16, QUANT_Q4_0, QUANT_Q8_0};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (int precise = 0; precise < 2; precise++) {
            check_head(some[i], 64, 64, precise != 0);
            check_head(some[i], 256, 256, precise != 0);
            check_head(some[i], 64, 2, precise != 0);
            check_head(some[i], 32, 17, precise != 0);
            check_head(some[i], 96, 131, precise != 0);
        }
}

static void check_refused(device *d, const dev_program *p, const char *expected) {
    dev_compiled *c = NULL;
    ridge_error err = {0};
    assert_int_equal(d->vtable->compile(d, &c, p, N, &err), RIDGE_EINVAL);
    assert_null(c);
    if (strstr(err.text, expected) == NULL) fail_msg("%s", err.text);
}

/* Logits of another width than the vocabulary's, or in a value of the body. */
static void test_logits_refused(void **state) {
    (void)state;
    device *d = open_device(NULL, 1, false);
    float *x = random_floats(N * 8);
    dev_weight *w = upload(d, QUANT_F32, x, N, 8);
    dev_op ops[] = {{.kind = DEV_EMBED, .out = {0}, .w = {w}, .scale = 1},
                    {.kind = DEV_GATHER, .in = {0}, .out = {1}}};
    uint32_t widths[] = {8, 8};
    dev_program p = {
        .ops = ops, .n_ops = 2, .head_start = 1, .widths = widths, .n_values = 2, .n_vocab = 7};
    check_refused(d, &p, "8 wide, expected 7");
    p.n_vocab = 8;
    ops[1].out[0] = 0;
    check_refused(d, &p, "logits in value 0");
    mem_free(x);
    d->vtable->weight_free(d, w);
    d->vtable->destroy(d);
}

/* x, then x written anew (times 2, or turned by rope, which is in place) times a matrix, with x
 * times it before: as without. */
static void check_written_anew(const char *isa, dev_op_kind kind) {
    enum { WIDTH = 64, ROWS = 33 };
    static const float inv_freq[WIDTH / 2] = {1, 0.5f, 0.1f};
    float *x = random_floats(N * WIDTH), first[N * ROWS], again[N * ROWS];
    void *data = random_matrix(QUANT_Q8_0, ROWS, WIDTH);
    device *d = open_device(isa, 2, false);
    dev_weight *embed = upload(d, QUANT_F32, x, N, WIDTH);
    dev_weight *w = upload(d, QUANT_Q8_0, data, ROWS, WIDTH);
    dev_op linear = {.kind = DEV_LINEAR, .out = {1}, .w = {w}, .n_weights = 1};
    dev_op change = {.kind = kind,
                     .scale = 2,
                     .head_dim = WIDTH,
                     .n_rot = WIDTH,
                     .rope_inv_freq = inv_freq,
                     .rope_mscale = 1};
    dev_op all[] = {{.kind = DEV_EMBED, .w = {embed}, .scale = 1},
                    linear,
                    change,
                    linear,
                    {.kind = DEV_GATHER, .in = {1}, .out = {2}}};
    dev_op less[] = {all[0], change, linear, all[4]};
    uint32_t widths[] = {WIDTH, ROWS, ROWS};
    dev_program p = {
        .ops = less, .n_ops = 4, .head_start = 3, .widths = widths, .n_values = 3, .n_vocab = ROWS};
    run(d, &p, N, first);
    p.ops = all;
    p.n_ops = 5;
    p.head_start = 4;
    run(d, &p, N, again);
    assert_memory_equal(first, again, sizeof first);
    d->vtable->weight_free(d, embed);
    d->vtable->weight_free(d, w);
    d->vtable->destroy(d);
    mem_free(data);
    mem_free(x);
}

static void test_inputs_written_anew(void **state) {
    (void)state;
    for (int k = 0; k < rig_n_paths; k++) {
        check_written_anew(rig_paths[k], DEV_SCALE);
        check_written_anew(rig_paths[k], DEV_ROPE);
    }
}

enum { IN = 64, N_SHARED = 3 };

static const uint32_t shared_rows[N_SHARED] = {50, 17, 97};

/* Output `wanted` of the matrices [first, first + n) that share an input. */
static void run_shared(const char *isa, int threads, const quant_type *types, void *const *data,
                       float *const *bias, const float *x, int first, int n, int wanted,
                       float *out) {
    device *d = open_device(isa, threads, false);
    dev_weight *embed = upload(d, QUANT_F32, x, N, IN), *w[N_SHARED] = {0}, *b[N_SHARED] = {0};
    dev_op linear = {.kind = DEV_LINEAR, .in = {0}, .n_weights = n};
    uint32_t widths[N_SHARED + 2] = {IN};
    for (int i = 0; i < n; i++) {
        uint32_t rows = shared_rows[first + i];
        linear.w[i] = w[i] = upload(d, types[first + i], data[first + i], rows, IN);
        if (bias[first + i] != NULL)
            linear.bias[i] = b[i] = upload(d, QUANT_F32, bias[first + i], 1, rows);
        linear.out[i] = (dev_value)(1 + i);
        widths[1 + i] = rows;
    }
    widths[1 + n] = shared_rows[wanted];
    dev_op ops[] = {
        {.kind = DEV_EMBED, .out = {0}, .w = {embed}, .scale = 1},
        linear,
        {.kind = DEV_GATHER, .in = {(dev_value)(1 + wanted - first)}, .out = {(dev_value)(1 + n)}}};
    dev_program p = {.ops = ops,
                     .n_ops = 3,
                     .head_start = 2,
                     .widths = widths,
                     .n_values = (size_t)n + 2,
                     .n_vocab = shared_rows[wanted]};
    run(d, &p, N, out);
    for (int i = 0; i < n; i++) {
        d->vtable->weight_free(d, w[i]);
        d->vtable->weight_free(d, b[i]);
    }
    d->vtable->weight_free(d, embed);
    d->vtable->destroy(d);
}

/* Matrices that share an input give what each gives alone, whatever their types, rows and biases.
 */
static void test_shared_input(void **state) {
    (void)state;
    static const quant_type kinds[][N_SHARED] = {{QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0},
                                                 {QUANT_Q5_0, QUANT_F16, QUANT_Q4_0},
                                                 {QUANT_F32, QUANT_Q4_0, QUANT_F16}};
    float *x = random_floats(N * IN), alone[N * 97], shared[N * 97];
    float *bias[N_SHARED] = {random_floats(50), NULL, random_floats(97)};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        void *data[N_SHARED];
        for (int i = 0; i < N_SHARED; i++) data[i] = random_matrix(kinds[k][i], shared_rows[i], IN);
        for (int i = 0; i < N_SHARED; i++) {
            size_t size = N * shared_rows[i] * sizeof *alone;
            run_shared(rig_paths[0], 1, kinds[k], data, bias, x, i, 1, i, alone);
            for (int j = 0; j < rig_n_paths; j++)
                for (int threads = 1; threads < 5; threads++) {
                    run_shared(rig_paths[j], threads, kinds[k], data, bias, x, 0, N_SHARED, i,
                               shared);
                    assert_memory_equal(alone, shared, size);
                }
        }
        for (int i = 0; i < N_SHARED; i++) mem_free(data[i]);
    }
    for (int i = 0; i < N_SHARED; i++) mem_free(bias[i]);
    mem_free(x);
}

int main(void) {
    rig_find_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_logits_refused),
        cmocka_unit_test(test_inputs_written_anew),
        cmocka_unit_test(test_shared_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
