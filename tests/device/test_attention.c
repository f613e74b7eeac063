/* Attention and the KV cache of the cpu device against naive double-precision computations, and bit
 * for bit against itself: every path, shape, type of cache, chunking, block size and thread count.
 */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device_rig.h"

typedef struct {
    uint32_t n_heads, n_kv_heads, head_dim, window, block_size, n_rot, n_f16_layers;
    float softcap;
    bool neox;
    dev_kv_type kv_type;
    int threads;
    bool give_back;
    const char *isa;
} attention_case;

#define MAX_SEQS 4
#define NO_BLOCK INT32_MIN /* -1 to the engine; who looks there dies */

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
                                        .n_f16_layers = a->n_f16_layers,
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

/* Row by token of the batch: out [all tokens, width]. */
static void read_rows(attention_rig *rig, const dev_batch *b, uint32_t width, float *out) {
    float *rows = mem_alloc((size_t)DEV_HEAD_ROWS * width * sizeof *rows);
    for (uint32_t first = 0; first < b->n_tokens; first += DEV_HEAD_ROWS) {
        uint32_t wanted[DEV_HEAD_ROWS], n = b->n_tokens - first;
        if (n > DEV_HEAD_ROWS) n = DEV_HEAD_ROWS;
        for (uint32_t i = 0; i < n; i++) wanted[i] = first + i;
        assert_int_equal(rig->d->vtable->head(rig->d, rig->c, wanted, n, rows, NULL), RIDGE_OK);
        for (uint32_t i = 0; i < n; i++)
            memcpy(out + (size_t)b->tokens[first + i] * width, rows + (size_t)i * width,
                   width * sizeof *out);
    }
    mem_free(rows);
}

/* Walks all sequences together, each `chunk` tokens a step (0: all at once), blocks interleaved
 * among them from the end of the pool; out [sum of lengths, H * D]. With give_back a block that no
 * row of a step sees is no block any more. */
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
            if (a->give_back && done[s] >= a->window)
                for (uint32_t k = 0; k < (done[s] + 1 - a->window) / a->block_size; k++)
                    tables[s][k] = NO_BLOCK;
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
        read_rows(&rig, &b, width, out);
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

/* As a q8_0 cache keeps keys: turned by the orthogonal Hadamard matrix of 2^k values, here by its
 * definition: entry (i, j) is -1 to the number of ones in i & j. */
static void turn(double *x, uint32_t n) {
    double y[512];
    uint32_t size = n & -n;
    for (uint32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < size; j++)
            y[i] += (__builtin_popcount(i % size & j) % 2 ? -1 : 1) * x[i - i % size + j];
    }
    for (uint32_t i = 0; i < n; i++) x[i] = y[i] / sqrt(size);
}

/* As q8_0 keeps 32 values: of the steps of their scale, which a cache keeps in f16. */
static void round_q8(double *x, uint32_t n, bool cached) {
    for (uint32_t i = 0; i < n; i += 32) {
        double most = 0;
        for (uint32_t k = i; k < i + 32; k++) most = fmax(most, fabs(x[k]));
        double step = most / 127;
        if (cached) step = (double)quant_f16_to_f32(quant_f32_to_f16((float)step));
        for (uint32_t k = i; k < i + 32 && step > 0; k++) x[k] = step * rint(x[k] / step);
    }
}

/* What a query or the cache holds of n heads of one token: in double, but rounded as the type does.
 */
static void keep(const attention_case *a, const attention_input *in, const float *x, uint32_t n,
                 uint32_t position, bool value, bool cached, double *out) {
    uint32_t d = a->head_dim;
    for (uint32_t i = 0; i < n * d; i++) out[i] = (double)x[i];
    for (uint32_t h = 0; h < n; h++, out += d) {
        if (!value) rotate(a, in->inv_freq, position, out);
        if (a->kv_type != DEV_KV_Q8_0) continue;
        if (!value) turn(out, d);
        round_q8(out, d, cached);
    }
}

/* q [head_dim] against the tokens [first, n) of one head; k and v of a token are ld apart. */
static void naive_row(const attention_case *a, const double *q, const double *k, const double *v,
                      size_t ld, uint32_t first, uint32_t n, double *out) {
    uint32_t d = a->head_dim;
    double *s = malloc(n * sizeof *s), top = -INFINITY, sum = 0;
    for (uint32_t t = first; t < n; t++) {
        s[t] = 0;
        for (uint32_t i = 0; i < d; i++) s[t] += q[i] * k[t * ld + i];
        s[t] *= (double)0.3f;
        if (a->softcap > 0) s[t] = (double)a->softcap * tanh(s[t] / (double)a->softcap);
        if (s[t] > top) top = s[t];
    }
    for (uint32_t i = 0; i < d; i++) out[i] = 0;
    for (uint32_t t = first; t < n; t++) {
        double p = exp(s[t] - top);
        sum += p;
        for (uint32_t i = 0; i < d; i++) out[i] += p * v[t * ld + i];
    }
    for (uint32_t i = 0; i < d; i++) out[i] /= sum;
    free(s);
}

/* f32 cache: 2e-5; f16: 1.5e-2 (values up to 3.4 at 11 bits, scores up to some tens); q8_0, beside
 * what its rounding makes of the values, as much: one of them may go the other way at a tie. */
static void check_row(const attention_case *a, const double *expected, const float *got,
                      const char *where, uint32_t t, uint32_t head) {
    double tolerance = a->kv_type == DEV_KV_F32 ? 2e-5 : 1.5e-2;
    for (uint32_t i = 0; i < a->head_dim; i++)
        if (fabs((double)got[i] - expected[i]) > tolerance)
            fail_msg("%s: token %u head %u [%u]: %g, expected %g", where, t, head, i,
                     (double)got[i], expected[i]);
}

/* One sequence: q, k, v are the rows of its tokens. */
static void check_sequence(const attention_case *a, const attention_input *in, uint32_t n,
                           const float *q, const float *k, const float *v, const float *got) {
    size_t width = (size_t)a->n_heads * a->head_dim, ld = (size_t)a->n_kv_heads * a->head_dim;
    double *keys = malloc(n * ld * sizeof *keys), *values = malloc(n * ld * sizeof *values);
    double *query = malloc(width * sizeof *query), expected[512];
    for (uint32_t t = 0; t < n; t++) {
        keep(a, in, k + t * ld, a->n_kv_heads, t, false, true, keys + t * ld);
        keep(a, in, v + t * ld, a->n_kv_heads, t, true, true, values + t * ld);
    }
    for (uint32_t t = 0; t < n; t += t < 20 ? 1 : 7) {
        uint32_t first = a->window && t + 1 > a->window ? t + 1 - a->window : 0;
        keep(a, in, q + t * width, a->n_heads, t, false, false, query);
        for (uint32_t h = 0; h < a->n_heads; h++) {
            size_t at = h / (a->n_heads / a->n_kv_heads) * a->head_dim;
            naive_row(a, query + h * a->head_dim, keys + at, values + at, ld, first, t + 1,
                      expected);
            check_row(a, expected, got + t * width + h * a->head_dim, a->isa, t, h);
        }
    }
    free(keys);
    free(values);
    free(query);
}

static void check_attention(const attention_case *a, const attention_input *in, float *parts[3],
                            const float *got) {
    size_t width = (size_t)a->n_heads * a->head_dim, ld = (size_t)a->n_kv_heads * a->head_dim;
    for (size_t s = 0, at = 0; s < in->n_seqs; at += in->lengths[s++])
        check_sequence(a, in, in->lengths[s], parts[0] + at * width, parts[1] + at * ld,
                       parts[2] + at * ld, got + at * width);
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
    a.isa = rig_paths[0];
    a.threads = 1;
    a.block_size = 16;
    run_attention(&a, &in, parts, 0, first);
    check_attention(&a, &in, parts, first);
    for (int i = 0; i < rig_n_paths; i++) {
        a.isa = rig_paths[i];
        a.threads = 1;
        a.block_size = 16;
        run_attention(&a, &in, parts, 0, again);
        assert_memory_equal(first, again, size);
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
    check_case(wide, (attention_input){.lengths = {350}, .n_seqs = 1});
}

static void test_attention_q8(void **state) {
    (void)state;
    attention_input three = {.lengths = {300, 1, 37}, .n_seqs = 3};
    attention_case plain = {
        .n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .n_rot = 64, .kv_type = DEV_KV_Q8_0};
    check_case(plain, three);
    attention_case window = plain;
    window.head_dim = 96;
    window.window = 20;
    window.softcap = 5;
    window.neox = true;
    window.n_f16_layers = 1; /* the other one */
    check_case(window, three);
    attention_case wide = plain;
    wide.n_heads = 4;
    wide.n_kv_heads = 1;
    wide.head_dim = wide.n_rot = 256;
    wide.window = 300;
    check_case(wide, (attention_input){.lengths = {350}, .n_seqs = 1});
    attention_case single = plain;
    single.n_heads = single.n_kv_heads = 3;
    single.head_dim = 32;
    single.n_rot = 8;
    check_case(single, (attention_input){.lengths = {50, 70}, .n_seqs = 2});
}

/* However many heads share a key: they are worked on by so many at once, and the rest. */
static void test_heads_of_a_key(void **state) {
    (void)state;
    attention_input two = {.lengths = {41, 18}, .n_seqs = 2};
    static const dev_kv_type kv_types[] = {DEV_KV_F16, DEV_KV_F32, DEV_KV_Q8_0};
    for (uint32_t n = 1; n <= 9; n++)
        for (int t = 0; t < 3; t++)
            check_case((attention_case){.n_heads = 2 * n,
                                        .n_kv_heads = 2,
                                        .head_dim = 32,
                                        .n_rot = 32,
                                        .kv_type = kv_types[t]},
                       two);
}

/* So many that fewer rows make a job than are split over spans: the last rows of 270 by sevens. */
static void test_many_heads_of_a_key(void **state) {
    (void)state;
    for (uint32_t n = 20; n <= 64; n += 44)
        check_case(
            (attention_case){
                .n_heads = n, .n_kv_heads = 1, .head_dim = 4, .n_rot = 4, .kv_type = DEV_KV_F16},
            (attention_input){.lengths = {270}, .n_seqs = 1});
}

/* More partials than are kept, of sequences in one step: the bits that each has alone. All see the
 * same 3,068 zeros, and four tokens of their own. */
static void test_partials_beyond_room(void **state) {
    (void)state;
    enum { SEQS = 11, ROWS = 4, DIM = 4, HEADS = 16, WIDTH = HEADS * DIM, BLOCK = 16, N = 3072 };
    attention_case a = {.n_heads = HEADS, .n_kv_heads = 1, .head_dim = DIM, .block_size = BLOCK};
    a.kv_type = DEV_KV_F32;
    a.threads = 2;
    const float inv_freq[] = {1};
    attention_input in = {.inv_freq = inv_freq};
    float *parts[] = {random_floats(SEQS * ROWS * WIDTH), random_floats(SEQS * ROWS * DIM),
                      random_floats(SEQS * ROWS * DIM)};
    attention_rig rig = {0};
    make_rig(&rig, &a, &in, parts, SEQS * ROWS, SEQS * ROWS);
    int32_t tables[SEQS][N / BLOCK], tokens[SEQS * ROWS], positions[SEQS * ROWS];
    dev_seq seqs[SEQS];
    for (int s = 0; s < SEQS; s++) {
        for (int i = 0; i < N / BLOCK; i++) tables[s][i] = i;
        tables[s][N / BLOCK - 1] = N / BLOCK + s;
        for (int i = 0; i < ROWS; i++) {
            tokens[s * ROWS + i] = s * ROWS + i;
            positions[s * ROWS + i] = N - ROWS + i;
        }
        seqs[s] = (dev_seq){
            .first_row = (uint32_t)s * ROWS, .n_rows = ROWS, .n_context = N, .blocks = {tables[s]}};
    }
    float *together = mem_alloc(SEQS * ROWS * WIDTH * 4),
          *alone = mem_alloc(SEQS * ROWS * WIDTH * 4);
    dev_batch b = {.n_tokens = SEQS * ROWS,
                   .n_seqs = SEQS,
                   .tokens = tokens,
                   .positions = positions,
                   .seqs = seqs};
    assert_int_equal(rig.d->vtable->submit(rig.d, rig.c, rig.kv, &b, NULL), RIDGE_OK);
    read_rows(&rig, &b, WIDTH, together);
    for (int s = 0; s < SEQS; s++) {
        dev_seq one = seqs[s];
        one.first_row = 0;
        b = (dev_batch){.n_tokens = ROWS,
                        .n_seqs = 1,
                        .tokens = tokens + s * ROWS,
                        .positions = positions,
                        .seqs = &one};
        assert_int_equal(rig.d->vtable->submit(rig.d, rig.c, rig.kv, &b, NULL), RIDGE_OK);
        read_rows(&rig, &b, WIDTH, alone);
    }
    assert_memory_equal(together, alone, SEQS * ROWS * WIDTH * sizeof *alone);
    mem_free(together);
    mem_free(alone);
    free_rig(&rig);
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
}

/* Heads of any size: whole registers of each path or not, whole tiles of columns or not. */
static void test_sizes_of_heads(void **state) {
    (void)state;
    static const uint32_t dims[] = {2, 6, 16, 24, 40, 48, 72, 80, 112, 128, 160, 192};
    attention_input two = {.lengths = {21, 40}, .n_seqs = 2};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        attention_case a = {
            .n_heads = 2 + 2 * (uint32_t)(i % 3), .n_kv_heads = 2, .head_dim = dims[i]};
        a.n_rot = 2;
        a.kv_type = DEV_KV_F32;
        check_case(a, two);
        a.kv_type = DEV_KV_F16;
        check_case(a, two);
        a.kv_type = DEV_KV_Q8_0;
        if (dims[i] % 32 == 0) check_case(a, two);
    }
}

/* Scores some hundreds apart, whichever of the spans has the largest: e to their difference would
 * not fit a float. Nearly all of the weight is on one token, which the naive computation has, too.
 */
static void test_scores_far_apart(void **state) {
    (void)state;
    enum { N = 600, DIM = 32, LAST = 7 };
    attention_case a = {.n_heads = 1, .n_kv_heads = 1, .head_dim = DIM, .block_size = 16};
    const float inv_freq[] = {1};
    attention_input in = {.lengths = {N}, .n_seqs = 1, .inv_freq = inv_freq};
    float *parts[] = {mem_zalloc(N * DIM, 4), mem_zalloc(N * DIM, 4), random_floats(N * DIM)};
    float got[N * DIM];
    double query[DIM] = {0}, expected[DIM], *k = malloc(N * DIM * sizeof *k),
           *v = malloc(N * DIM * sizeof *v);
    for (int rising = 0; rising < 2; rising++) {
        for (int t = 0; t < N; t++) {
            parts[0][t * DIM] = 1;
            parts[1][t * DIM] = (float)(rising ? 2 * t : -2 * t);
        }
        for (int i = 0; i < N * DIM; i++) {
            k[i] = (double)parts[1][i];
            v[i] = (double)parts[2][i];
        }
        query[0] = 1;
        for (int p = 0; p < 2 * rig_n_paths; p++) {
            a.isa = rig_paths[p / 2];
            a.kv_type = DEV_KV_F32;
            a.threads = 2;
            run_attention(&a, &in, parts, p % 2 == 0 ? 0 : 3, got);
            for (uint32_t t = 255; t < N; t += LAST) {
                naive_row(&a, query, k, v, DIM, 0, t + 1, expected);
                check_row(&a, expected, got + t * DIM, a.isa, t, 0);
            }
        }
    }
    free(k);
    free(v);
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
}

/* The layers of a q8_0 cache that stay f16 are those of an f16 cache, bit for bit. */
static void test_f16_layers(void **state) {
    (void)state;
    enum { N = 70, WIDTH = 4 * 32 };
    attention_case a = {.n_heads = 4, .n_kv_heads = 4, .head_dim = 32, .block_size = 16};
    const float inv_freq[] = {1};
    attention_input in = {.lengths = {N}, .n_seqs = 1, .inv_freq = inv_freq};
    float *parts[3], f16[N * WIDTH], q8[N * WIDTH];
    for (int k = 0; k < 3; k++) parts[k] = random_floats(N * WIDTH);
    a.kv_type = DEV_KV_F16;
    run_attention(&a, &in, parts, 0, f16);
    a.kv_type = DEV_KV_Q8_0;
    run_attention(&a, &in, parts, 3, q8);
    assert_memory_not_equal(f16, q8, sizeof f16);
    a.n_f16_layers = 2;
    run_attention(&a, &in, parts, 3, q8);
    assert_memory_equal(f16, q8, sizeof f16);
    for (int k = 0; k < 3; k++) mem_free(parts[k]);
}

/* Rows of zeros, of denormals, of values beyond f16, and of one value: finite wherever f32 is. */
static void test_extreme_q8(void **state) {
    (void)state;
    enum { N = 40, DIM = 32 };
    attention_case a = {.n_heads = 1, .n_kv_heads = 1, .head_dim = DIM, .kv_type = DEV_KV_Q8_0};
    const float inv_freq[] = {1};
    attention_input in = {.lengths = {N}, .n_seqs = 1, .inv_freq = inv_freq};
    float *parts[3], first[N * DIM], again[N * DIM];
    for (int k = 0; k < 3; k++) parts[k] = mem_zalloc(N * DIM, sizeof *parts[k]);
    for (size_t i = 0; i < N * DIM; i++) {
        const float values[] = {0, 1e-40f, 1e-7f, 1e6f, i % DIM == 3 ? 1.5f : 0, -0.0f, -1e6f, 3};
        parts[0][i] = i / DIM % 3 == 0 ? 0 : random_float();
        parts[1][i] = values[i / DIM % 8] > 1 ? 1.0f : values[i / DIM % 8];
        parts[2][i] = values[i / DIM % 8];
    }
    for (int k = 0; k < rig_n_paths; k++)
        for (uint32_t chunk = 0; chunk < 2; chunk++) {
            a.isa = rig_paths[k];
            a.threads = 1;
            a.block_size = 16;
            run_attention(&a, &in, parts, chunk, k + (int)chunk == 0 ? first : again);
            if (k + (int)chunk > 0) assert_memory_equal(first, again, sizeof first);
        }
    for (size_t i = 0; i < N * DIM; i++) assert_true(isfinite(first[i]));
    for (size_t i = 0; i < 2 * DIM; i++) assert_true(first[i] == 0);
    for (int k = 0; k < 3; k++) mem_free(parts[k]);
}

static void test_shapes_refused(void **state) {
    (void)state;
    device *d = open_device(NULL, 1, false);
    dev_kv *kv = NULL;
    dev_kv_layout l = {.groups = {{.n_layers = 1, .n_kv_heads = 1, .head_dim = 80, .n_blocks = 1}},
                       .n_groups = 1,
                       .block_size = 16,
                       .type = DEV_KV_Q8_0};
    ridge_error err = {0};
    assert_int_equal(d->vtable->kv_create(d, &kv, &l, &err), RIDGE_EUNSUPPORTED);
    assert_null(kv);
    assert_non_null(strstr(err.text, "--kv-cache-dtype"));
    assert_non_null(strstr(err.text, "heads have 80"));
    l.type = DEV_KV_AUTO;
    assert_int_equal(d->vtable->kv_create(d, &kv, &l, NULL), RIDGE_EINVAL);
    assert_null(kv);
    l.type = DEV_KV_F32;
    l.groups[0].n_blocks = 0;
    assert_int_equal(d->vtable->kv_create(d, &kv, &l, NULL), RIDGE_EINVAL);
    assert_null(kv);
    d->vtable->destroy(d);
}

static void test_type_names(void **state) {
    (void)state;
    const dev_kv_type all[] = {DEV_KV_AUTO, DEV_KV_F16, DEV_KV_F32, DEV_KV_Q8_0};
    dev_kv_type found;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(dev_kv_type_find(dev_kv_type_name(all[i]), &found));
        assert_int_equal(found, all[i]);
    }
    assert_string_equal(dev_kv_type_name(DEV_KV_Q8_0), "q8_0");
    assert_false(dev_kv_type_find("q4_0", &found));
    assert_false(dev_kv_type_find("", &found));
}

/* Whatever the size of a block, where a table of a window group is a row of holes up to the window:
 * the bits of the full table. Each size meets three of the windows, each window three quarters of
 * the sizes. */
static void test_given_back_blocks(void **state) {
    (void)state;
    enum { LENGTH = 300, WIDTH = 3 * 32, KV_WIDTH = 32 };
    static const uint32_t windows[] = {1, 17, 40, 257}, chunks[] = {1, 9, 70, 0};
    static const dev_kv_type kv_types[] = {DEV_KV_F16, DEV_KV_F32, DEV_KV_Q8_0};
    const float inv_freq[16] = {1, 0.5f, 0.25f, 0.125f};
    attention_input in = {.lengths = {LENGTH}, .n_seqs = 1, .inv_freq = inv_freq};
    float *parts[] = {random_floats(LENGTH * WIDTH), random_floats(LENGTH * KV_WIDTH),
                      random_floats(LENGTH * KV_WIDTH)};
    size_t size = LENGTH * WIDTH * sizeof(float);
    float *full = mem_alloc(size), *holes = mem_alloc(size);
    for (uint32_t w = 0; w < 4; w++)
        for (uint32_t t = 0; t < sizeof kv_types / sizeof *kv_types; t++) {
            attention_case a = {.n_heads = 3, .n_kv_heads = 1, .head_dim = 32, .n_rot = 32};
            a.kv_type = kv_types[t];
            a.window = windows[w];
            a.threads = 2;
            a.block_size = 16;
            a.give_back = false;
            run_attention(&a, &in, parts, 0, full);
            a.give_back = true;
            for (a.block_size = 1 + (w + t) % 4; a.block_size <= 64; a.block_size += 4) {
                /* the portable path is slow: now and then */
                uint32_t others = (uint32_t)rig_n_paths - 1;
                bool slow = others == 0 || a.block_size / 4 % 4 == 0;
                a.isa = rig_paths[slow ? 0 : 1 + a.block_size / 4 % others];
                run_attention(&a, &in, parts, chunks[a.block_size / 3 % 4], holes);
                assert_memory_equal(full, holes, size);
            }
        }
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
    mem_free(full);
    mem_free(holes);
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
    for (int k = 0; k < rig_n_paths; k++)
        for (a.window = 0; a.window <= 20; a.window += 20) {
            a.isa = rig_paths[k];
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
    dev_kv_layout l = {
        .groups =
            {{.n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .n_blocks = 3},
             {.n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .n_blocks = N, .n_f16_layers = 2}},
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

/* The form of a block outside the pool, which the files of a prefix cache have: all keys [layer]
 * [head][16 tokens each][head_dim][16], then all values [layer][head][16 tokens
 * each][16][head_dim].
 */
static void test_form_of_blocks(void **state) {
    (void)state;
    enum { N = 32, H = 2, D = 8, LAYER = 1, BLOCK = 3, RUN = 16 * D };
    attention_case a = {.n_heads = 2,
                        .n_kv_heads = H,
                        .head_dim = D,
                        .block_size = N,
                        .kv_type = DEV_KV_F32,
                        .threads = 1};
    const float inv_freq[] = {1};
    attention_input in = {.lengths = {N}, .n_seqs = 1, .inv_freq = inv_freq};
    float *parts[] = {random_floats(N * H * D), random_floats(N * H * D), random_floats(N * H * D)};
    attention_rig rig = {0};
    make_rig(&rig, &a, &in, parts, N, N);
    int32_t tokens[N], block = BLOCK;
    for (int32_t i = 0; i < N; i++) tokens[i] = i;
    dev_seq seq = {.n_rows = N, .n_context = N, .blocks = {&block}};
    dev_batch b = {.n_tokens = N, .n_seqs = 1, .tokens = tokens, .positions = tokens, .seqs = &seq};
    assert_int_equal(rig.d->vtable->submit(rig.d, rig.c, rig.kv, &b, NULL), RIDGE_OK);
    assert_int_equal(rig.d->vtable->wait(rig.d, NULL), RIDGE_OK);
    float got[2][2][H][N / 16][RUN]; /* keys and values, layers */
    rig.d->vtable->kv_read_block(rig.d, rig.kv, 0, BLOCK, got);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t h = 0; h < H; h++)
            for (uint32_t i = 0; i < D; i++) {
                uint32_t from = (t * H + h) * D + i;
                assert_true(got[0][LAYER][h][t / 16][i * 16 + t % 16] == parts[1][from]);
                assert_true(got[1][LAYER][h][t / 16][t % 16 * D + i] == parts[2][from]);
            }
    free_rig(&rig);
    for (int i = 0; i < 3; i++) mem_free(parts[i]);
}

static void test_blocks_read_and_written(void **state) {
    (void)state;
    check_blocks(DEV_KV_F16, 16);
    check_blocks(DEV_KV_F16, 5);
    check_blocks(DEV_KV_F32, 32);
    check_blocks(DEV_KV_Q8_0, 16);
    check_blocks(DEV_KV_Q8_0, 7);
}

int main(void) {
    rig_find_paths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),           cmocka_unit_test(test_attention_q8),
        cmocka_unit_test(test_heads_of_a_key),      cmocka_unit_test(test_sizes_of_heads),
        cmocka_unit_test(test_many_heads_of_a_key), cmocka_unit_test(test_partials_beyond_room),
        cmocka_unit_test(test_scores_far_apart),    cmocka_unit_test(test_f16_layers),
        cmocka_unit_test(test_extreme_q8),          cmocka_unit_test(test_given_back_blocks),
        cmocka_unit_test(test_overflowed_values),   cmocka_unit_test(test_blocks_read_and_written),
        cmocka_unit_test(test_form_of_blocks),      cmocka_unit_test(test_shapes_refused),
        cmocka_unit_test(test_type_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
