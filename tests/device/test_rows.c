/* The row-wise operations of the cpu device against their formulas in double precision, and bit for
 * bit the same on every path, for rows of any width. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "device_rig.h"

#define N 21 /* rows of a step */
#define MAX_WIDTH 210
#define POSITION 300 /* of the first row */

static const float inv_freq[] = {1, 0.37f, 0.11f, 0.03f, 0.009f, 0.002f, 0.0007f, 0.0001f, 1e-5f};

/* x and y [N, width] are embedded as values 0 and 1; the operation makes value 2 of them, or works
 * in place on 0, and the head gathers the rows: out [N, width]. */
typedef struct {
    dev_op op;
    uint32_t width;
    bool in_place;
    const float *x, *y, *w; /* w: [head_dim, or width] of a norm; else NULL */
} row_case;

static void run_rows(const char *isa, int threads, const row_case *a, float *out) {
    device *d = open_device(isa, threads, false);
    uint32_t n_w = a->op.head_dim != 0 ? a->op.head_dim : a->width;
    dev_weight *x = upload(d, QUANT_F32, a->x, N, a->width);
    dev_weight *y = upload(d, QUANT_F32, a->y, N, a->width);
    dev_weight *w = a->w != NULL ? upload(d, QUANT_F32, a->w, 1, n_w) : NULL;
    dev_op op = a->op;
    dev_value made = a->in_place ? 0 : 2;
    op.in[1] = 1;
    op.out[0] = made;
    op.w[0] = w;
    dev_op ops[] = {{.kind = DEV_EMBED, .out = {0}, .w = {x}, .scale = 1},
                    {.kind = DEV_EMBED, .out = {1}, .w = {y}, .scale = 1},
                    op,
                    {.kind = DEV_GATHER, .in = {made}, .out = {3}}};
    uint32_t widths[] = {a->width, a->width, a->width, a->width};
    dev_program p = {.ops = ops,
                     .n_ops = 4,
                     .head_start = 3,
                     .widths = widths,
                     .n_values = 4,
                     .n_vocab = a->width};
    dev_compiled *c = NULL;
    ridge_error err = {0};
    if (d->vtable->compile(d, &c, &p, N, &err) != RIDGE_OK) fail_msg("%s", err.text);
    int32_t tokens[N], positions[N];
    uint32_t rows[N];
    for (int i = 0; i < N; i++) {
        tokens[i] = i;
        positions[i] = POSITION + i;
        rows[i] = (uint32_t)i;
    }
    dev_seq seq = {.n_rows = N, .n_context = POSITION + N};
    dev_batch b = {
        .n_tokens = N, .n_seqs = 1, .tokens = tokens, .positions = positions, .seqs = &seq};
    if (d->vtable->submit(d, c, NULL, &b, &err) != RIDGE_OK) fail_msg("%s", err.text);
    assert_int_equal(d->vtable->wait(d, &err), RIDGE_OK);
    assert_int_equal(d->vtable->head(d, c, rows, N, out, &err), RIDGE_OK);
    d->vtable->compiled_free(d, c);
    d->vtable->weight_free(d, x);
    d->vtable->weight_free(d, y);
    d->vtable->weight_free(d, w);
    d->vtable->destroy(d);
}

static void rope_row(const dev_op *op, uint32_t width, int position, const double *x, double *out) {
    memcpy(out, x, width * sizeof *out);
    for (uint32_t h = 0; h < width; h += op->head_dim)
        for (uint32_t i = 0; i < op->n_rot / 2; i++) {
            double angle = position * (double)inv_freq[i], scale = (double)op->rope_mscale;
            uint32_t p = h + (op->rope_neox ? i : 2 * i);
            uint32_t q = h + (op->rope_neox ? i + op->n_rot / 2 : 2 * i + 1);
            out[p] = scale * (x[p] * cos(angle) - x[q] * sin(angle));
            out[q] = scale * (x[p] * sin(angle) + x[q] * cos(angle));
        }
}

static void norm_row(const row_case *a, const double *x, double *out) {
    uint32_t n = a->op.head_dim != 0 ? a->op.head_dim : a->width;
    for (uint32_t h = 0; h < a->width; h += n) {
        double squares = 0;
        for (uint32_t i = 0; i < n; i++) squares += x[h + i] * x[h + i];
        for (uint32_t i = 0; i < n; i++)
            out[h + i] = x[h + i] / sqrt(squares / n + (double)a->op.eps) * (double)a->w[i];
    }
}

static double activated(double x, dev_activation kind) {
    if (kind == DEV_SILU) return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void naive_row(const row_case *a, int row, double *out) {
    double x[MAX_WIDTH], y[MAX_WIDTH];
    for (uint32_t i = 0; i < a->width; i++) {
        x[i] = (double)a->x[(size_t)row * a->width + i];
        y[i] = (double)a->y[(size_t)row * a->width + i];
    }
    double cap = (double)a->op.softcap;
    if (a->op.kind == DEV_ROPE) rope_row(&a->op, a->width, POSITION + row, x, out);
    if (a->op.kind == DEV_RMS_NORM) norm_row(a, x, out);
    for (uint32_t i = 0; i < a->width; i++) switch (a->op.kind) {
        case DEV_GLU: out[i] = activated(x[i], a->op.activation) * y[i]; break;
        case DEV_ADD: out[i] = x[i] + y[i]; break;
        case DEV_SCALE: out[i] = x[i] * (double)a->op.scale; break;
        case DEV_SOFTCAP: out[i] = cap * tanh(x[i] / cap); break;
        default: break;
        }
}

/* Within 2e-6 of the largest factors: some roundings of f32. */
static void check_rows(const row_case *a, const float *got) {
    double expected[MAX_WIDTH];
    for (int row = 0; row < N; row++) {
        naive_row(a, row, expected);
        for (uint32_t i = 0; i < a->width; i++) {
            double value = (double)got[(size_t)row * a->width + i];
            if (fabs(value - expected[i]) > 2e-6 * (fabs(expected[i]) + 4))
                fail_msg("operation %d, row %d of %u [%u]: %.9g, expected %.9g", (int)a->op.kind,
                         row, a->width, i, value, expected[i]);
        }
    }
}

static void assert_same_bits(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        assert_memory_equal(&a[i], &b[i], sizeof *a);
    }
}

static void run_everywhere(const row_case *a, float *first) {
    float again[N * MAX_WIDTH];
    run_rows(rig_paths[0], 1, a, first);
    for (int k = 0; k < rig_n_paths; k++) {
        run_rows(rig_paths[k], 1 + k % 3, a, again);
        assert_same_bits(first, again, N * a->width);
    }
}

/* Random rows, to the formula; then rows of what is no ordinary number, the same everywhere. */
static void check_case(dev_op op, uint32_t width, bool in_place) {
    static const float odd[] = {0,      -0.0f, INFINITY, -INFINITY, NAN,   1e-40f, 3e38f,
                                -3e38f, 88.5f, -88.5f,   1e4f,      -1e4f, 1};
    const size_t n_odd = sizeof odd / sizeof *odd;
    float x[N * MAX_WIDTH], y[N * MAX_WIDTH], w[MAX_WIDTH], got[N * MAX_WIDTH];
    row_case a = {.op = op, .width = width, .in_place = in_place, .x = x, .y = y};
    a.op.rope_inv_freq = inv_freq;
    if (op.kind == DEV_RMS_NORM) a.w = w;
    for (uint32_t i = 0; i < width; i++) w[i] = random_float();
    for (size_t i = 0; i < N * width; i++) {
        x[i] = 3 * random_float();
        y[i] = random_float();
    }
    run_everywhere(&a, got);
    check_rows(&a, got);
    for (size_t i = 0; i < N * width; i++) {
        if (random_u32() % 8 == 0) x[i] = odd[random_u32() % n_odd];
        if (random_u32() % 16 == 0) y[i] = odd[random_u32() % n_odd];
    }
    run_everywhere(&a, got);
}

static const uint32_t row_widths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 100, 209};
#define N_WIDTHS (sizeof row_widths / sizeof *row_widths)

static void test_each_width(void **state) {
    (void)state;
    for (size_t i = 0; i < N_WIDTHS; i++) {
        uint32_t width = row_widths[i];
        check_case((dev_op){.kind = DEV_RMS_NORM, .eps = 1e-5f}, width, false);
        check_case((dev_op){.kind = DEV_RMS_NORM, .eps = 0.5f}, width, true);
        check_case((dev_op){.kind = DEV_GLU, .activation = DEV_SILU}, width, false);
        check_case((dev_op){.kind = DEV_GLU, .activation = DEV_GELU_TANH}, width, false);
        check_case((dev_op){.kind = DEV_ADD}, width, false);
        check_case((dev_op){.kind = DEV_ADD}, width, true);
        check_case((dev_op){.kind = DEV_SCALE, .scale = 0.17f}, width, false);
        check_case((dev_op){.kind = DEV_SOFTCAP, .softcap = 2.5f}, width, true);
    }
}

static void test_each_head(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 5, 16, 20, 35};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_case((dev_op){.kind = DEV_RMS_NORM, .eps = 1e-6f, .head_dim = dims[i]}, 5 * dims[i],
                   i % 2 == 0);
    for (uint32_t n_rot = 2; n_rot <= 18; n_rot += 2)
        for (int neox = 0; neox < 2; neox++)
            check_case((dev_op){.kind = DEV_ROPE,
                                .head_dim = n_rot + n_rot / 4,
                                .n_rot = n_rot,
                                .rope_neox = neox != 0,
                                .rope_mscale = 1.3f},
                       3 * (n_rot + n_rot / 4), true);
}

/* Rows of a table are embedded times a scale; 0 and 1 are no scale. */
static void test_embed(void **state) {
    (void)state;
    enum { WIDTH = 37 };
    static const float scales[] = {0, 1, 2.5f};
    float *x = random_floats(N * WIDTH);
    for (int k = 0; k < rig_n_paths; k++)
        for (int s = 0; s < 3; s++) {
            device *d = open_device(rig_paths[k], 2, false);
            dev_weight *w = NULL;
            assert_int_equal(d->vtable->weight_upload(d, &w, QUANT_F32, x, N, WIDTH, true, NULL),
                             RIDGE_OK);
            dev_op ops[] = {{.kind = DEV_EMBED, .w = {w}, .scale = scales[s]},
                            {.kind = DEV_GATHER, .out = {1}}};
            uint32_t widths[] = {WIDTH, WIDTH};
            dev_program p = {.ops = ops,
                             .n_ops = 2,
                             .head_start = 1,
                             .widths = widths,
                             .n_values = 2,
                             .n_vocab = WIDTH};
            dev_compiled *c = NULL;
            assert_int_equal(d->vtable->compile(d, &c, &p, N, NULL), RIDGE_OK);
            int32_t tokens[] = {N - 1, 0, 7}, positions[] = {0, 1, 2};
            uint32_t rows[] = {2, 0, 1};
            float got[3][WIDTH], factor = s == 2 ? scales[s] : 1;
            dev_seq seq = {.n_rows = 3, .n_context = 3};
            dev_batch b = {
                .n_tokens = 3, .n_seqs = 1, .tokens = tokens, .positions = positions, .seqs = &seq};
            assert_int_equal(d->vtable->submit(d, c, NULL, &b, NULL), RIDGE_OK);
            assert_int_equal(d->vtable->head(d, c, rows, 3, got[0], NULL), RIDGE_OK);
            for (int r = 0; r < 3; r++)
                for (int i = 0; i < WIDTH; i++)
                    assert_true(got[r][i] == x[tokens[rows[r]] * WIDTH + i] * factor);
            d->vtable->compiled_free(d, c);
            d->vtable->weight_free(d, w);
            d->vtable->destroy(d);
        }
    mem_free(x);
}

int main(void) {
    rig_find_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_width),
        cmocka_unit_test(test_each_head),
        cmocka_unit_test(test_embed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
