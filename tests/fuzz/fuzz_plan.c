/* Fuzzes what the planner reads: configurations of models, efficiency profiles, measured times.
 *
 * The first byte chooses which. What is read is put to use: a shape makes a program whose steps
 * take a time, on one rank and on two; a profile, written out, is read again as the same. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "device/count/count.h"
#include "model/hf_config.h"
#include "model/model.h"
#include "plan/measured.h"
#include "roof/efficiency.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const efficiency_peaks peaks = {1e15, 1e12, 1e11};

static bool is_amount(double x) {
    return isfinite(x) && x >= 0;
}

/* A step of two rows on the device that counts. */
static void run_step(device *d, const model *m) {
    dev_kv *kv;
    dev_compiled *c;
    dev_kv_layout layout = {.n_groups = m->n_groups, .block_size = 16, .type = DEV_KV_F16};
    dev_seq seq = {.n_rows = 2, .n_context = 300};
    dev_batch batch = {.n_tokens = 2, .n_seqs = 1, .seqs = &seq};
    dev_account a;
    memcpy(layout.groups, m->groups, sizeof layout.groups);
    ridge_assert(d->vtable->kv_create(d, &kv, &layout, NULL) == RIDGE_OK);
    ridge_assert(d->vtable->compile(d, &c, &m->program, 2, NULL) == RIDGE_OK);
    ridge_assert(d->vtable->submit(d, c, kv, &batch, NULL) == RIDGE_OK);
    ridge_assert(d->vtable->head(d, c, NULL, 1, NULL, NULL) == RIDGE_OK);
    d->vtable->account(d, &a);
    ridge_assert(is_amount(a.seconds) && a.seconds > 0 && is_amount(a.flops) && a.flops > 0);
    ridge_assert(is_amount(a.weight_bytes) && is_amount(a.kv_bytes) && a.kv_bytes > 0);
    d->vtable->compiled_free(d, c);
    d->vtable->kv_free(d, kv);
}

static uint64_t use_config(const model_config *c) {
    const efficiency_profile ideal = efficiency_ideal();
    const count_params params = {
        .profile = &ideal, .linear = peaks, .other = peaks, .weight_bits = 4};
    device *d;
    model *m;
    ridge_error err = {0};
    ridge_assert(device_count_create(&d, &params, &err) == RIDGE_OK);
    ridge_assert(model_open_shape(&m, c, d, &err) == RIDGE_OK);
    uint64_t n = m->n_parameters;
    ridge_assert(n > 0 && n < (uint64_t)1 << 61 && m->n_idle_parameters < n);
    run_step(d, m);
    model_close(m);
    d->vtable->destroy(d);
    return n;
}

static void fuzz_config(const char *text, size_t n) {
    const model_split two = {.n_tensor = 2};
    model_config whole, part;
    ridge_error err = {0};
    if (hf_config_read(&whole, text, n, &err) != RIDGE_OK) {
        ridge_assert(err.code != RIDGE_OK && err.text[0] != '\0');
        return;
    }
    uint64_t all = use_config(&whole);
    if (model_config_split(&part, &whole, &two, NULL) != RIDGE_OK) return;
    uint64_t each = use_config(&part);
    ridge_assert(each <= all && 2 * each >= all);
}

static void write_profile(buf *out, const efficiency_profile *p) {
    efficiency_write(out, p);
    ridge_assert(!out->failed);
}

static void fuzz_profile(const char *text, size_t n) {
    const efficiency_op op = {.kind = EFFICIENCY_LINEAR,
                              .flops = 2e9,
                              .bytes = 1e6,
                              .intermediate_bytes = 1e6,
                              .m = 1e3,
                              .n = 1e3,
                              .k = 1e3};
    efficiency_profile p, again;
    ridge_error err = {0};
    buf one = {0}, two = {0};
    if (efficiency_parse(&p, "profile", text, n, &err) != RIDGE_OK) {
        ridge_assert(err.code != RIDGE_OK && err.text[0] != '\0');
        return;
    }
    double seconds = efficiency_seconds(&p, &peaks, &op);
    ridge_assert(is_amount(seconds) && seconds > 0);
    write_profile(&one, &p);
    ridge_assert(efficiency_parse(&again, "again", one.data, one.len, NULL) == RIDGE_OK);
    write_profile(&two, &again);
    ridge_assert(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
    buf_free(&one);
    buf_free(&two);
}

static void fuzz_measured(const char *text, size_t n) {
    measured m = {0};
    ridge_error err = {0};
    if (measured_parse(&m, "times", text, n, &err) == RIDGE_OK) {
        ridge_assert(m.n > 0);
        (void)measured_hold_out(&m, "every-other", NULL);
    } else {
        ridge_assert(err.code != RIDGE_OK && err.text[0] != '\0');
    }
    for (size_t i = 0; i < m.n; i++) {
        const measured_sample *s = &m.samples[i];
        ridge_assert(s->seconds > 0 && isfinite(s->seconds) && s->workers > 0);
        ridge_assert(s->n_ops >= 1 && s->n_ops <= 2 && s->file < m.n_files);
        for (int k = 0; k < s->n_ops; k++)
            ridge_assert(is_amount(s->ops[k].flops) && is_amount(s->ops[k].bytes) &&
                         is_amount(s->ops[k].intermediate_bytes));
    }
    measured_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 3) {
    case 0: fuzz_config(text, size - 1); break;
    case 1: fuzz_profile(text, size - 1); break;
    default: fuzz_measured(text, size - 1); break;
    }
    return 0;
}
