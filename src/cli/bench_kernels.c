/* cli/bench_kernels: see bench_kernels.h. */
#include "cli/bench_kernels.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/stats.h"
#include "cli/machine.h"

#define COLS 4096u         /* a whole number of blocks of every type */
#define MAX_ROWS 65536u    /* of one matrix, as of a large vocabulary: what it gives stays small */
#define ROW_STEP 16u       /* matrices have a multiple of so many rows */
#define N_INPUTS 64u       /* different rows of input */
#define MAX_MATRICES 65535 /* where the free memory is not known */

/* Where the floating-point numbers of a type's block lie: n_fields of field_bytes from offset on.
 * What is kept of random bits and what is set makes them ordinary: scales of 2^-11 to 2^-10,
 * weights of 2^-4 to 2^-3 of both signs. Every other bit pattern of a block is a valid one. */
typedef struct {
    quant_type type;
    uint32_t n_fields, field_bytes, offset, keep, set;
} weight_kind;

static const weight_kind kinds[] = {
    {QUANT_Q4_0, 1, 2, 0, 0x3ff, 0x1000},   {QUANT_Q4_1, 2, 2, 0, 0x3ff, 0x1000},
    {QUANT_Q5_0, 1, 2, 0, 0x3ff, 0x1000},   {QUANT_Q5_1, 2, 2, 0, 0x3ff, 0x1000},
    {QUANT_Q8_0, 1, 2, 0, 0x3ff, 0x1000},   {QUANT_Q2_K, 2, 2, 80, 0x3ff, 0x1000},
    {QUANT_Q3_K, 1, 2, 108, 0x3ff, 0x1000}, {QUANT_Q4_K, 2, 2, 0, 0x3ff, 0x1000},
    {QUANT_Q5_K, 2, 2, 0, 0x3ff, 0x1000},   {QUANT_Q6_K, 1, 2, 208, 0x3ff, 0x1000},
    {QUANT_IQ4_NL, 1, 2, 0, 0x3ff, 0x1000}, {QUANT_F16, 1, 2, 0, 0x83ff, 0x2c00},
    {QUANT_BF16, 1, 2, 0, 0x807f, 0x3d80},  {QUANT_F32, 1, 4, 0, 0x807fffff, 0x3d800000},
};

/* One type's matrices, uploaded, and the program that multiplies by each of them once. */
typedef struct {
    device *d;
    const weight_kind *kind;
    uint32_t n_matrices, rows; /* rows of each */
    size_t matrix_bytes;       /* in the file's form */
    uint8_t *file;             /* [n_matrices][matrix_bytes] */
    float *input;              /* [N_INPUTS][COLS] */
    dev_weight *embed, **weights;
    dev_compiled *program;
    peaks_meter meter;
} rig;

typedef struct {
    double seconds, flops, bytes;
    bool integer;
    machine_peaks peaks; /* measured in turn with the runs */
} outcome;

static uint64_t next_random(uint64_t *state) { /* xorshift64 (Marsaglia 2003) */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* size: whole blocks, and a multiple of 8. */
static void fill_random(const weight_kind *k, uint8_t *data, size_t size) {
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = next_random(&state);
        memcpy(data + i, &word, 8);
    }
    for (size_t block = 0; block < size; block += quant_block_bytes(k->type))
        for (uint32_t i = 0; i < k->n_fields; i++) {
            uint8_t *at = data + block + k->offset + i * k->field_bytes;
            uint32_t value = 0;
            memcpy(&value, at, k->field_bytes); /* little-endian, as the format and the machine */
            value = (value & k->keep) | k->set;
            memcpy(at, &value, k->field_bytes);
        }
}

/* The fewest matrices of at most MAX_ROWS rows that have about so many bytes. */
static ridge_status choose_shape(rig *r, uint64_t bytes, uint32_t max_batch, ridge_error *err) {
    uint64_t row_bytes =
        COLS / quant_block_values(r->kind->type) * quant_block_bytes(r->kind->type);
    uint64_t n_rows = bytes / row_bytes < ROW_STEP ? ROW_STEP : bytes / row_bytes;
    uint64_t n = (n_rows + MAX_ROWS - 1) / MAX_ROWS, free_bytes = mem_available_bytes();
    r->rows = (uint32_t)(n_rows / n / ROW_STEP * ROW_STEP);
    uint64_t work = (uint64_t)max_batch * sizeof(float) * (r->rows + 2 * COLS);
    bool fits = free_bytes == 0 || (bytes <= free_bytes / 2 && work <= free_bytes - 2 * bytes);
    if (n > MAX_MATRICES || !fits)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "%llu bytes of weights in two forms and products of %u rows: %llu bytes "
                          "of memory are free",
                          (unsigned long long)bytes, max_batch, (unsigned long long)free_bytes);
    r->n_matrices = (uint32_t)n;
    r->matrix_bytes = (size_t)(r->rows * row_bytes);
    return RIDGE_OK;
}

static ridge_status upload(rig *r, ridge_error *err) {
    const device_vtable *v = r->d->vtable;
    size_t size = r->n_matrices * r->matrix_bytes;
    r->file = mem_map(size);
    r->weights = mem_zalloc(r->n_matrices, sizeof(dev_weight *));
    r->input = mem_alloc((size_t)N_INPUTS * COLS * sizeof(float));
    if (r->file == NULL || r->weights == NULL || r->input == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "%zu bytes of weights", size);
    fill_random(r->kind, r->file, size);
    fill_random(&kinds[sizeof kinds / sizeof *kinds - 1], (uint8_t *)r->input,
                (size_t)N_INPUTS * COLS * sizeof(float));
    RIDGE_TRY(v->weight_upload(r->d, &r->embed, QUANT_F32, r->input, N_INPUTS, COLS, true, err));
    for (uint32_t i = 0; i < r->n_matrices; i++)
        RIDGE_TRY(v->weight_upload(r->d, &r->weights[i], r->kind->type,
                                   r->file + i * r->matrix_bytes, r->rows, COLS, false, err));
    return RIDGE_OK;
}

/* The input's rows, then every matrix times them; all into one value, which nobody reads. */
static ridge_status compile(rig *r, uint32_t max_batch, ridge_error *err) {
    uint32_t widths[] = {COLS, r->rows};
    dev_op *ops = mem_zalloc(r->n_matrices + 1, sizeof *ops);
    if (ops == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "program");
    ops[0] = (dev_op){.kind = DEV_EMBED, .out = {0}, .w = {r->embed}, .scale = 1};
    for (uint32_t i = 0; i < r->n_matrices; i++)
        ops[i + 1] = (dev_op){
            .kind = DEV_LINEAR, .in = {0}, .out = {1}, .w = {r->weights[i]}, .n_weights = 1};
    size_t n_ops = r->n_matrices + 1;
    dev_program p = {.ops = ops,
                     .n_ops = n_ops,
                     .head_start = n_ops,
                     .widths = widths,
                     .n_values = 2,
                     .n_vocab = r->rows};
    ridge_status status = r->d->vtable->compile(r->d, &r->program, &p, max_batch, err);
    mem_free(ops);
    return status;
}

static void rig_close(rig *r) {
    const device_vtable *v = r->d->vtable;
    if (r->program != NULL) v->compiled_free(r->d, r->program);
    for (uint32_t i = 0; r->weights != NULL && i < r->n_matrices; i++)
        v->weight_free(r->d, r->weights[i]);
    v->weight_free(r->d, r->embed);
    if (r->file != NULL) mem_unmap(r->file, r->n_matrices * r->matrix_bytes);
    mem_free(r->weights);
    mem_free(r->input);
}

static ridge_status time_batch(rig *r, const dev_batch *batch, uint64_t repeat, double *seconds,
                               outcome *out, ridge_error *err) {
    const device_vtable *v = r->d->vtable;
    dev_account account;
    dev_profile_row rows[4];
    r->meter.n_tokens = batch->n_tokens;
    peaks_meter_run(&r->meter, PEAKS_BEFORE_S);
    for (uint64_t i = 0; i < repeat; i++) {
        double start = clock_now_s();
        RIDGE_TRY(v->submit(r->d, r->program, NULL, batch, err));
        RIDGE_TRY(v->wait(r->d, err));
        seconds[i] = clock_now_s() - start;
        peaks_meter_run(&r->meter, PEAKS_SHARE * seconds[i]);
    }
    v->account(r->d, &account);
    sort_values(seconds, repeat);
    double bytes = (double)r->n_matrices * (double)r->matrix_bytes; /* without the inputs */
    *out = (outcome){seconds[repeat / 2], account.flops, bytes, false, peaks_meter_take(&r->meter)};
    size_t n = v->profile(r->d, r->program, rows, sizeof rows / sizeof *rows);
    for (size_t i = 0; i < n; i++) out->integer |= rows[i].flops > 0 && rows[i].integer;
    return RIDGE_OK;
}

/* One submit of n rows; the first of a type is run once more before, for caches and clocks. */
static ridge_status measure(rig *r, const bench_kernels_args *a, uint32_t n, bool first,
                            outcome *out, ridge_error *err) {
    int32_t *tokens = mem_zalloc(n, sizeof *tokens), *positions = mem_zalloc(n, sizeof *positions);
    double *seconds = mem_zalloc(a->repeat, sizeof *seconds);
    ridge_status status = RIDGE_OK;
    if (tokens == NULL || positions == NULL || seconds == NULL) {
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "batch of %u", n);
    } else {
        for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(i % N_INPUTS);
        dev_seq seq = {.n_rows = n, .n_context = 1};
        dev_batch batch = {
            .n_tokens = n, .n_seqs = 1, .tokens = tokens, .positions = positions, .seqs = &seq};
        if (first) status = time_batch(r, &batch, 1, seconds, out, err);
        if (status == RIDGE_OK) status = time_batch(r, &batch, a->repeat, seconds, out, err);
    }
    mem_free(tokens);
    mem_free(positions);
    mem_free(seconds);
    return status;
}

static void report(const rig *r, const bench_kernels_args *a, uint32_t batch, const outcome *o,
                   buf *json) {
    const machine_peaks *peaks = &o->peaks;
    double peak = o->integer ? peaks->int8_ops_per_s : peaks->f32_flops_per_s;
    double bytes_per_s = o->bytes / o->seconds, flops_per_s = o->flops / o->seconds;
    const char *name = quant_name(r->kind->type), *unit = o->integer ? "int8" : "f32";
    if (!a->json) {
        printf("%-7s %5u %11.1f %8.1f %7.1f%% %9.1f %7.1f%% %s\n", name, batch, o->seconds * 1e6,
               bytes_per_s / 1e9, 100 * bytes_per_s / peaks->read_bytes_per_s, flops_per_s / 1e9,
               100 * flops_per_s / peak, unit);
        fflush(stdout);
        return;
    }
    bool is_first = json->data[json->len - 1] == '[';
    buf_printf(json, "%s{\"type\":\"%s\",\"batch\":%u,\"matrices\":%u,\"rows\":%u,\"cols\":%u",
               is_first ? "" : ",", name, batch, r->n_matrices, r->rows, COLS);
    buf_json_field(json, "bytes", o->bytes);
    buf_json_field(json, "flops", o->flops);
    buf_json_field(json, "seconds", o->seconds);
    buf_json_field(json, "bytes_per_s", bytes_per_s);
    buf_json_field(json, "flops_per_s", flops_per_s);
    buf_json_field(json, "peak_read_bytes_per_s", peaks->read_bytes_per_s);
    buf_json_field(json, "peak_flops_per_s", peak);
    buf_json_field(json, "mbu", bytes_per_s / peaks->read_bytes_per_s);
    buf_json_field(json, "mfu", flops_per_s / peak);
    buf_printf(json, ",\"unit\":\"%s\"}", unit);
}

/* What is read in between is the weights as a file would have them, which no product touches. */
static ridge_status bench_kind(device *d, const bench_kernels_args *a, const weight_kind *kind,
                               buf *json, ridge_error *err) {
    rig r = {.d = d, .kind = kind};
    outcome o = {0};
    RIDGE_TRY(choose_shape(&r, a->bytes, a->max_batch, err));
    ridge_status status = upload(&r, err);
    if (status == RIDGE_OK) status = compile(&r, a->max_batch, err);
    if (status == RIDGE_OK) peaks_meter_open(&r.meter, d, r.file, r.n_matrices * r.matrix_bytes);
    for (size_t i = 0; i < a->n_batches && status == RIDGE_OK; i++) {
        status = measure(&r, a, a->batches[i], i == 0, &o, err);
        if (status == RIDGE_OK) report(&r, a, a->batches[i], &o, json);
    }
    rig_close(&r);
    return status;
}

static void print_head(const bench_kernels_args *a, const char *isa, int n_threads, buf *json) {
    if (a->json) {
        buf_puts(json, "{\"machine\":{");
        machine_json(json, isa, n_threads);
        buf_puts(json, "},\"results\":[");
        return;
    }
    char *machine = machine_text(isa, n_threads);
    printf("%s: %.0f MB of random weights\n", machine != NULL ? machine : "",
           (double)a->bytes / 1e6);
    printf("%-7s %5s %11s %8s %8s %9s %8s\n", "type", "batch", "us", "GB/s", "of read", "GOPS",
           "of peak");
    mem_free(machine);
}

ridge_status bench_kernels(const bench_kernels_args *a, ridge_error *err) {
    device *d = NULL;
    buf json = {0};
    RIDGE_TRY(device_cpu_create(&d, &a->device, err));
    print_head(a, device_cpu_isa(d), device_cpu_threads(d), &json);
    ridge_status status = RIDGE_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && status == RIDGE_OK; i++)
        status = bench_kind(d, a, &kinds[i], &json, err);
    buf_puts(&json, "]}\n");
    if (status == RIDGE_OK && json.failed) status = RIDGE_FAIL(err, RIDGE_ENOMEM, "JSON");
    if (status == RIDGE_OK && a->json) fputs(json.data, stdout);
    buf_free(&json);
    d->vtable->destroy(d);
    return status;
}
