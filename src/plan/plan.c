/* plan: see plan.h. */
#include "plan/plan.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "device/count/count.h"
#include "roof/work.h"

struct plan {
    plan_params params;
    device *dev;
    plan_model opened;
    dev_kv *kv;
    dev_kv_layout layout;
    dev_compiled *program;
    dev_seq *seqs; /* [PLAN_MAX_BATCH] */
};

/* Bits with their scales: MXFP4 has one of 8 bits for 32 values (OCP, 2023), NVFP4 for 16, int4 as
 * GPTQ and AWQ have it one of 16 bits, and a zero, for 128. */
static const plan_dtype dtypes[] = {
    {"bf16", 16, PEAK_16},    {"f16", 16, PEAK_16},    {"f32", 32, PEAK_F32},
    {"fp8", 8, PEAK_FP8},     {"int8", 8, PEAK_INT8},  {"fp4", 4.5, PEAK_FP4},
    {"mxfp4", 4.25, PEAK_16}, {"int4", 4.16, PEAK_16},
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

ridge_status plan_dtype_find(plan_dtype *out, const char *name, ridge_error *err) {
    for (size_t i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i];
            return RIDGE_OK;
        }
    return RIDGE_FAIL(err, RIDGE_ENOTFOUND,
                      "type '%.40s' is not known; known are bf16, f16, f32, fp8, int8, fp4, mxfp4, "
                      "int4",
                      name);
}

plan_params plan_params_default(void) {
    return (plan_params){.profile = efficiency_ideal(),
                         .dtype = dtypes[0],
                         .kv_type = DEV_KV_F16,
                         .batch = 1,
                         .prompt = 1000};
}

const model *plan_model_of(const plan *p) {
    return p->opened.model;
}

void plan_close(plan *p) {
    if (p == NULL) return;
    if (p->program != NULL) p->dev->vtable->compiled_free(p->dev, p->program);
    if (p->kv != NULL) p->dev->vtable->kv_free(p->dev, p->kv);
    plan_model_close(&p->opened);
    if (p->dev != NULL) p->dev->vtable->destroy(p->dev);
    mem_free(p->seqs);
    mem_free(p);
}

efficiency_peaks plan_peaks(const hardware *gpu, hardware_peak precision) {
    return (efficiency_peaks){.flops_per_s = hardware_flops(gpu, precision),
                              .bytes_per_s = gpu->bytes_per_s,
                              .link_bytes_per_s = gpu->link_bytes_per_s > 0 ? gpu->link_bytes_per_s
                                                                            : gpu->bus_bytes_per_s};
}

static ridge_status open_device(plan *p, ridge_error *err) {
    const plan_params *a = &p->params;
    const count_params c = {.profile = &a->profile,
                            .linear = plan_peaks(&a->gpu, a->dtype.peak),
                            .other = plan_peaks(&a->gpu, PEAK_16),
                            .weight_bits = a->file_weights ? 0 : a->dtype.bits};
    return device_count_create(&p->dev, &c, err);
}

static ridge_status open_cache(plan *p, ridge_error *err) {
    const model *m = p->opened.model;
    p->layout =
        (dev_kv_layout){.n_groups = m->n_groups, .block_size = 1, .type = p->params.kv_type};
    memcpy(p->layout.groups, m->groups, sizeof p->layout.groups);
    return p->dev->vtable->kv_create(p->dev, &p->kv, &p->layout, err);
}

static ridge_status open_all(plan *p, const char *name, ridge_error *err) {
    RIDGE_TRY(open_device(p, err));
    RIDGE_TRY(plan_model_open(&p->opened, name, p->dev, err));
    RIDGE_TRY(open_cache(p, err));
    return p->dev->vtable->compile(p->dev, &p->program, &p->opened.model->program,
                                   MODEL_MAX_CONTEXT, err);
}

ridge_status plan_open(plan **out, const char *name, const plan_params *params, ridge_error *err) {
    plan *p = mem_zalloc(1, sizeof *p);
    if (p != NULL) p->seqs = mem_zalloc(PLAN_MAX_BATCH, sizeof *p->seqs);
    if (p == NULL || p->seqs == NULL) {
        plan_close(p);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "the plan");
    }
    p->params = *params;
    ridge_status status = open_all(p, name, err);
    if (status != RIDGE_OK) {
        plan_close(p);
        return status;
    }
    *out = p;
    return RIDGE_OK;
}

/* Sizes -----------------------------------------------------------------------------------------
 */

static bool as_in_file(const plan *p) {
    return p->params.file_weights && p->opened.file != NULL;
}

static double bytes_per_parameter(const plan *p) {
    const model *m = p->opened.model;
    if (!as_in_file(p)) return p->params.dtype.bits / 8;
    return (double)m->weight_bytes / (double)m->n_parameters;
}

/* Of `n` tokens of each of `batch` sequences, as far as windows keep them. */
static double cache_bytes(const plan *p, double batch, double n) {
    double bytes = 0;
    for (uint32_t g = 0; g < p->layout.n_groups; g++) {
        double window = p->layout.groups[g].window, kept = window > 0 && n > window ? window : n;
        bytes += batch * kept * (double)dev_kv_bytes_per_block(&p->layout, g);
    }
    return bytes;
}

/* Steps: the textbook ---------------------------------------------------------------------------
 */

static void bound_of(plan_phase *f) {
    f->bound = f->link_s > f->compute_s && f->link_s > f->memory_s ? ROOF_LINK
               : f->compute_s > f->memory_s                        ? ROOF_COMPUTE
                                                                   : ROOF_MEMORY;
}

static plan_phase textbook(const plan *p, double n_rows, double kv_bytes) {
    const model *m = p->opened.model;
    const model_moe *e = &m->config.moe;
    double all = (double)m->n_parameters, idle = (double)m->n_idle_parameters, read = all;
    if (e->n_experts > 0)
        read -= idle * (e->n_experts - work_experts_touched(e->n_experts, e->top_k, n_rows)) /
                (e->n_experts - e->top_k);
    plan_phase f = {.n_rows = n_rows,
                    .flops = 2 * (all - idle) * n_rows,
                    .weight_bytes = read * bytes_per_parameter(p),
                    .kv_bytes = kv_bytes};
    f.compute_s = f.flops / hardware_flops(&p->params.gpu, p->params.dtype.peak);
    f.memory_s = (f.weight_bytes + f.kv_bytes) / p->params.gpu.bytes_per_s;
    f.seconds = fmax(f.compute_s, f.memory_s);
    bound_of(&f);
    return f;
}

/* Steps: counted --------------------------------------------------------------------------------
 */

static ridge_status run(plan *p, uint32_t n_seqs, uint32_t n_rows, uint32_t context,
                        plan_phase *out, ridge_error *err) {
    const device_vtable *v = p->dev->vtable;
    dev_profile_row rows[PLAN_MAX_ROWS];
    for (uint32_t s = 0; s < n_seqs; s++)
        p->seqs[s] = (dev_seq){.first_row = s * n_rows, .n_rows = n_rows, .n_context = context};
    dev_batch batch = {.n_tokens = n_seqs * n_rows, .n_seqs = n_seqs, .seqs = p->seqs};
    v->profile(p->dev, p->program, rows, PLAN_MAX_ROWS); /* starts anew */
    RIDGE_TRY(v->submit(p->dev, p->program, p->kv, &batch, err));
    RIDGE_TRY(v->wait(p->dev, err));
    RIDGE_TRY(v->head(p->dev, p->program, NULL, n_seqs, NULL, err));
    dev_account a;
    double bounds[ROOF_N_BOUNDS];
    v->account(p->dev, &a);
    device_count_bounds(p->dev, bounds);
    *out = (plan_phase){.n_rows = batch.n_tokens,
                        .flops = a.flops,
                        .weight_bytes = a.weight_bytes,
                        .kv_bytes = a.kv_bytes,
                        .compute_s = bounds[ROOF_COMPUTE],
                        .memory_s = bounds[ROOF_MEMORY],
                        .link_s = bounds[ROOF_LINK],
                        .seconds = a.seconds};
    bound_of(out);
    return RIDGE_OK;
}

size_t plan_operations(plan *p, dev_profile_row out[PLAN_MAX_ROWS]) {
    return p->dev->vtable->profile(p->dev, p->program, out, PLAN_MAX_ROWS);
}

ridge_status plan_decode(plan *p, uint32_t batch, uint32_t context, plan_count *out,
                         ridge_error *err) {
    if (batch < 1 || batch > PLAN_MAX_BATCH || context > MODEL_MAX_CONTEXT)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "a step of %u sequences of %u tokens, expected 1 to %u of at most %u",
                          batch, context, PLAN_MAX_BATCH, MODEL_MAX_CONTEXT);
    out->textbook = textbook(p, batch, cache_bytes(p, batch, context));
    return run(p, batch, 1, context > 0 ? context : 1, &out->counted, err);
}

ridge_status plan_prefill(plan *p, uint32_t n_tokens, plan_count *out, ridge_error *err) {
    if (n_tokens < 1 || n_tokens > MODEL_MAX_CONTEXT)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "a prompt of %u tokens, expected 1 to %u", n_tokens,
                          MODEL_MAX_CONTEXT);
    out->textbook = textbook(p, n_tokens, 0);
    return run(p, 1, n_tokens, n_tokens, &out->counted, err);
}

/* The whole plan --------------------------------------------------------------------------------
 */

/* How many sequences of n tokens fit beside the weights. */
static double users_of(const plan *p, double free_bytes, double n) {
    double bytes = cache_bytes(p, 1, n);
    return bytes > 0 ? floor(free_bytes / bytes) : 0;
}

#define USABLE 0.9 /* of the memory: as vLLM leaves it by default (--gpu-memory-utilization) */

ridge_status plan_check_fit(const plan *p, const plan_result *r, ridge_error *err) {
    const hardware *gpu = &p->params.gpu;
    double needed = r->weight_bytes + cache_bytes(p, p->params.batch, p->params.context);
    if (needed <= r->memory_bytes) return RIDGE_OK;
    double n_gpus = ceil(needed / (USABLE * gpu->memory_bytes));
    if (r->weight_bytes < r->memory_bytes)
        return RIDGE_FAIL(err, RIDGE_EFULL,
                          "%u sequences of %u tokens take %.1f GB beside weights of %.1f GB, %.1f "
                          "GB are there; %.0f such sequences fit, or these on %.0f GPUs (%s)",
                          p->params.batch, p->params.context, (needed - r->weight_bytes) / 1e9,
                          r->weight_bytes / 1e9, r->memory_bytes / 1e9, r->users, n_gpus,
                          gpu->title);
    return RIDGE_FAIL(err, RIDGE_EFULL,
                      "the weights take %.1f GB, %.1f GB are there; they fit on %.0f GPUs (%s), or "
                      "here at %.1f bits a weight or fewer",
                      r->weight_bytes / 1e9, r->memory_bytes / 1e9, n_gpus, gpu->title,
                      8 * USABLE * r->memory_bytes / r->parameters);
}

/* The most sequences that fit and keep their target; bisection: steps of more take longer. */
static ridge_status find_slo_batch(plan *p, plan_result *r, ridge_error *err) {
    uint32_t low = 0,
             high = r->users > 0 && r->users < PLAN_MAX_BATCH ? (uint32_t)r->users : PLAN_MAX_BATCH;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        plan_count c;
        RIDGE_TRY(plan_decode(p, middle, p->params.context, &c, err));
        if (c.counted.seconds <= p->params.slo_tpot_s)
            low = middle;
        else
            high = middle - 1;
    }
    r->slo_batch = low;
    return RIDGE_OK;
}

ridge_status plan_work_out(plan *p, plan_result *r, ridge_error *err) {
    const plan_params *a = &p->params;
    const model *m = p->opened.model;
    *r = (plan_result){.weights = as_in_file(p) ? "file" : a->dtype.name,
                       .parameters = (double)m->n_parameters};
    r->active_parameters = r->parameters - (double)m->n_idle_parameters;
    r->weight_bytes = r->parameters * bytes_per_parameter(p);
    r->kv_bytes_per_token = cache_bytes(p, 1, 1);
    r->peak_flops = hardware_flops(&a->gpu, a->dtype.peak);
    r->ridge = r->peak_flops / a->gpu.bytes_per_s;
    r->memory_bytes = a->gpu.memory_bytes;
    double free_bytes = fmax(0, r->memory_bytes - r->weight_bytes);
    r->kv_tokens = floor(free_bytes / r->kv_bytes_per_token);
    r->users = users_of(p, free_bytes, a->context);
    if (a->slo_tpot_s > 0) RIDGE_TRY(find_slo_batch(p, r, err));
    RIDGE_TRY(plan_prefill(p, a->prompt, &r->prefill, err));
    RIDGE_TRY(plan_decode(p, a->batch, a->context, &r->decode, err));
    r->prefill_tokens_per_s = a->prompt / r->prefill.counted.seconds;
    r->cost_per_m_input = a->price_per_hour / 3600 / r->prefill_tokens_per_s * 1e6;
    r->cost_per_m_output = a->price_per_hour / 3600 * r->decode.counted.seconds / a->batch * 1e6;
    return RIDGE_OK;
}
