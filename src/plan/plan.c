/* plan: see plan.h. */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "roof/work.h"

struct plan {
    plan_params params;
    /* of the whole model */
    model_config config;
    double parameters, idle_parameters, weight_bytes;
    plan_dtype dtype; /* of a file: the mean of its bits */
    /* what one rank has of it */
    double part_bytes;
    device *dev;
    model *part;
    gguf *file; /* NULL: a shape */
    dev_kv *kv;
    dev_kv_layout layout;
    dev_compiled *program;
    dev_seq *seqs; /* [PLAN_MAX_BATCH] */
};

plan_params plan_params_default(void) {
    plan_params p = {.profile = efficiency_ideal(),
                     .kv_type = DEV_KV_F16,
                     .n_node = PLAN_NODE,
                     .batch = 1,
                     .prompt = 1000};
    ridge_status status = plan_dtype_find(&p.dtype, "bf16", NULL);
    ridge_assert(status == RIDGE_OK);
    return p;
}

double plan_n_gpus(const model_split *s) {
    return fmax(1, s->n_tensor) * fmax(1, s->n_expert) * fmax(1, s->n_stages);
}

void plan_close(plan *p) {
    if (p == NULL) return;
    if (p->program != NULL) p->dev->vtable->compiled_free(p->dev, p->program);
    if (p->kv != NULL) p->dev->vtable->kv_free(p->dev, p->kv);
    plan_model_close(&(plan_model){p->part, p->file});
    if (p->dev != NULL) p->dev->vtable->destroy(p->dev);
    mem_free(p->seqs);
    mem_free(p);
}

static efficiency_peaks peaks_of(const hardware *gpu, hardware_peak precision) {
    return (efficiency_peaks){.flops_per_s = hardware_flops(gpu, precision),
                              .bytes_per_s = gpu->bytes_per_s,
                              .link_bytes_per_s = hardware_link(gpu)};
}

ridge_status plan_check_links(const hardware *gpu, const model_split *split, uint32_t n_node,
                              ridge_error *err) {
    double n = plan_n_gpus(split);
    if (n > 1 && n_node != 1 && hardware_link(gpu) == 0)
        return RIDGE_FAIL(
            err, RIDGE_EINVAL,
            "%.0f GPUs: how fast those of '%s' reach each other is not known: "
            "--link-bandwidth BYTES/s (in the file of a machine \"link_bytes_per_s\"), "
            "or --gpus-per-node 1 if they have a network only",
            n, gpu->name);
    if (n_node > 0 && n > n_node && gpu->network_bytes_per_s == 0)
        return RIDGE_FAIL(
            err, RIDGE_EINVAL,
            "%.0f GPUs, %u to a node: how fast those of '%s' reach other nodes is not "
            "known: --network-bandwidth BYTES/s (in the file of a machine "
            "\"network_bytes_per_s\"), or more --gpus-per-node",
            n, n_node, gpu->name);
    return RIDGE_OK;
}

count_params plan_counting(const hardware *gpu, const plan_dtype *dtype,
                           const efficiency_profile *profile, uint32_t n_node) {
    bool small = dtype->peak >= PEAK_FP8 && gpu->peaks[dtype->peak] > 0;
    return (count_params){.profile = profile,
                          .linear = peaks_of(gpu, dtype->peak),
                          .other = peaks_of(gpu, PEAK_16),
                          .n_node = n_node,
                          .network_bytes_per_s = gpu->network_bytes_per_s,
                          .dispatch_bytes = small ? 1 : 0};
}

/* bits 0: of each matrix as its type has it. */
static ridge_status open_device(plan *p, double bits, ridge_error *err) {
    const plan_params *a = &p->params;
    count_params c = plan_counting(&a->gpu, &a->dtype, &a->profile, a->n_node);
    c.weight_bits = bits;
    c.halves = a->halves;
    return device_count_create(&p->dev, &c, err);
}

static ridge_status open_whole(plan *p, const char *name, ridge_error *err) {
    plan_model opened = {0};
    bool as_file = p->params.file_weights;
    RIDGE_TRY(open_device(p, as_file ? 0 : p->params.dtype.bits, err));
    RIDGE_TRY(plan_model_open(&opened, name, p->dev, err));
    p->part = opened.model;
    p->file = opened.file;
    p->config = p->part->config;
    p->parameters = (double)p->part->n_parameters;
    p->idle_parameters = (double)p->part->n_idle_parameters;
    p->dtype = p->params.dtype;
    p->weight_bytes =
        as_file ? (double)p->part->weight_bytes : plan_dtype_apply(&p->dtype, p->part);
    if (as_file) plan_dtype_set_bits(&p->dtype, 8 * p->weight_bytes / p->parameters);
    p->part_bytes = p->weight_bytes;
    return RIDGE_OK;
}

/* In place of the whole; weights from a file have the mean of its bits. */
static ridge_status open_part(plan *p, ridge_error *err) {
    model_config config;
    RIDGE_TRY(model_config_split(&config, &p->config, &p->params.split, err));
    plan_model_close(&(plan_model){p->part, p->file});
    p->part = NULL;
    p->file = NULL;
    p->dev->vtable->destroy(p->dev);
    p->dev = NULL;
    RIDGE_TRY(open_device(p, p->dtype.bits, err));
    RIDGE_TRY(model_open_shape(&p->part, &config, p->dev, err));
    p->part_bytes = plan_dtype_apply(&p->dtype, p->part);
    return RIDGE_OK;
}

static ridge_status open_cache(plan *p, ridge_error *err) {
    const model *m = p->part;
    p->layout =
        (dev_kv_layout){.n_groups = m->n_groups, .block_size = 1, .type = p->params.kv_type};
    memcpy(p->layout.groups, m->groups, sizeof p->layout.groups);
    return p->dev->vtable->kv_create(p->dev, &p->kv, &p->layout, err);
}

static ridge_status open_all(plan *p, const char *name, ridge_error *err) {
    const model_split *split = &p->params.split;
    RIDGE_TRY(plan_check_links(&p->params.gpu, split, p->params.n_node, err));
    RIDGE_TRY(open_whole(p, name, err));
    if (plan_n_gpus(split) > 1 || split->n_redundant > 0) RIDGE_TRY(open_part(p, err));
    RIDGE_TRY(open_cache(p, err));
    return p->dev->vtable->compile(p->dev, &p->program, &p->part->program, MODEL_MAX_CONTEXT, err);
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

/* Of `n` tokens of each of `batch` sequences, on one of the ranks that share them, as far as
 * windows keep them. */
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

static roof_bound largest(const double bounds[ROOF_N_BOUNDS]) {
    roof_bound most = ROOF_MEMORY;
    for (int i = 0; i < ROOF_N_BOUNDS; i++)
        if (bounds[i] > bounds[most]) most = (roof_bound)i;
    return most;
}

/* n_rows tokens of sequences whose cache has so many bytes, on n GPUs at once. */
static plan_phase textbook(const plan *p, double n_rows, double kv_bytes, double n_gpus) {
    const model_moe *e = &p->config.moe;
    double idle = p->idle_parameters, skipped = 0; /* of experts that no row takes */
    if (e->n_experts > e->top_k)
        skipped = idle * (e->n_experts - work_experts_touched(e->n_experts, e->top_k, n_rows)) /
                  (e->n_experts - e->top_k);
    plan_phase f = {.n_rows = n_rows,
                    .flops = 2 * (p->parameters - idle) * n_rows,
                    .weight_bytes = p->weight_bytes - skipped * p->dtype.expert_bits / 8,
                    .kv_bytes = kv_bytes};
    f.compute_s = f.flops / (n_gpus * hardware_flops(&p->params.gpu, p->params.dtype.peak));
    f.memory_s = (f.weight_bytes + f.kv_bytes) / (n_gpus * p->params.gpu.bytes_per_s);
    f.seconds = fmax(f.compute_s, f.memory_s);
    f.bound = f.compute_s > f.memory_s ? ROOF_COMPUTE : ROOF_MEMORY;
    f.bounds[f.bound] = f.seconds;
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
    v->account(p->dev, &a);
    *out = (plan_phase){.n_rows = batch.n_tokens,
                        .flops = a.flops,
                        .weight_bytes = a.weight_bytes,
                        .kv_bytes = a.kv_bytes,
                        .seconds = a.seconds};
    out->compute_s = a.flops / hardware_flops(&p->params.gpu, p->params.dtype.peak);
    out->memory_s = (a.weight_bytes + a.kv_bytes) / p->params.gpu.bytes_per_s;
    device_count_bounds(p->dev, out->bounds);
    out->bound = largest(out->bounds);
    return RIDGE_OK;
}

size_t plan_operations(plan *p, dev_profile_row out[PLAN_MAX_ROWS]) {
    return p->dev->vtable->profile(p->dev, p->program, out, PLAN_MAX_ROWS);
}

/* Stages work on as many parts of the batch at once, so a step is of one part; ranks of experts
 * have sequences of their own. */
ridge_status plan_decode(plan *p, uint32_t batch, uint32_t context, plan_count *out,
                         ridge_error *err) {
    const model_split *s = &p->params.split;
    if (batch < 1 || batch > PLAN_MAX_BATCH || context > MODEL_MAX_CONTEXT)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "a step of %u sequences of %u tokens, expected 1 to %u of at most %u",
                          batch, context, PLAN_MAX_BATCH, MODEL_MAX_CONTEXT);
    double tensor = model_split_ways(s->n_tensor), experts = model_split_ways(s->n_expert);
    double at_once = ceil(batch / (double)model_split_ways(s->n_stages)),
           here = ceil(at_once / experts);
    out->textbook =
        textbook(p, at_once, tensor * cache_bytes(p, at_once, context), tensor * experts);
    return run(p, (uint32_t)here, 1, context > 0 ? context : 1, &out->counted, err);
}

ridge_status plan_prefill(plan *p, uint32_t n_tokens, plan_count *out, ridge_error *err) {
    if (n_tokens < 1 || n_tokens > MODEL_MAX_CONTEXT)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "a prompt of %u tokens, expected 1 to %u", n_tokens,
                          MODEL_MAX_CONTEXT);
    /* Ranks of experts have a prompt of their own each. */
    double tensor = model_split_ways(p->params.split.n_tensor);
    double experts = model_split_ways(p->params.split.n_expert);
    out->textbook = textbook(p, experts * n_tokens, 0, tensor * experts);
    return run(p, 1, n_tokens, n_tokens, &out->counted, err);
}

/* The whole plan --------------------------------------------------------------------------------
 */

#define USABLE 0.9 /* of the memory: as vLLM leaves it by default (--gpu-memory-utilization) */

/* The fewest GPUs, at least n, that the layers can be divided among; as an option, or nothing. */
static void name_ranks(const plan *p, double n, char out[48]) {
    model_config part;
    model_split split = {.n_tensor = n < MODEL_MAX_RANKS ? (uint32_t)n : MODEL_MAX_RANKS};
    out[0] = '\0';
    while (split.n_tensor < MODEL_MAX_RANKS &&
           model_config_split(&part, &p->config, &split, NULL) != RIDGE_OK)
        split.n_tensor++;
    if (split.n_tensor < MODEL_MAX_RANKS)
        snprintf(out, 48, "; --tensor-parallel-size %u", split.n_tensor);
}

ridge_status plan_check_fit(const plan *p, const plan_result *r, ridge_error *err) {
    double cache = p->params.batch * r->sequence_bytes, needed = r->deployed_bytes + cache;
    const char *gpu = p->params.gpu.title;
    if (needed <= r->memory_bytes) return RIDGE_OK;
    double n_gpus = ceil(needed / (USABLE * p->params.gpu.memory_bytes));
    char ranks[48];
    if (r->deployed_bytes < r->memory_bytes)
        return RIDGE_FAIL(err, RIDGE_EFULL,
                          "%u sequences of %u tokens take %.1f GB beside weights of %.1f GB, %.1f "
                          "GB are there; %.0f such sequences fit, or these on %.0f GPUs (%s)",
                          p->params.batch, p->params.context, cache / 1e9, r->deployed_bytes / 1e9,
                          r->memory_bytes / 1e9, r->users, n_gpus, gpu);
    name_ranks(p, n_gpus, ranks);
    return RIDGE_FAIL(err, RIDGE_EFULL,
                      "the weights take %.1f GB, %.1f GB are there; they fit on %.0f GPUs (%s%s), "
                      "or here at %.1f bits a weight or fewer",
                      r->deployed_bytes / 1e9, r->memory_bytes / 1e9, n_gpus, gpu, ranks,
                      8 * p->weight_bytes / p->parameters * USABLE * r->memory_bytes /
                          r->deployed_bytes);
}

/* Sequences: as many as any step may have where they have nothing in the cache. */
static uint32_t most_that_fit(const plan_result *r) {
    if (r->deployed_bytes > r->memory_bytes) return 0;
    return r->sequence_bytes > 0 && r->users < PLAN_MAX_BATCH ? (uint32_t)r->users : PLAN_MAX_BATCH;
}

/* The most sequences that fit and keep their target; bisection: steps of more take longer. */
static ridge_status find_slo_batch(plan *p, plan_result *r, ridge_error *err) {
    uint32_t low = 0, high = most_that_fit(r);
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

/* Ranks that share layers may have heads or latents twice, ranks of experts all else. */
static void sizes(const plan *p, plan_result *r) {
    const plan_params *a = &p->params;
    double n_gpus = plan_n_gpus(&a->split), tensor = model_split_ways(a->split.n_tensor);
    r->weights = a->file_weights ? "file" : a->dtype.name;
    r->parameters = p->parameters;
    r->active_parameters = p->parameters - p->idle_parameters;
    r->weight_bytes = p->weight_bytes;
    r->kv_bytes_per_token = tensor * cache_bytes(p, 1, 1);
    r->sequence_bytes = tensor * cache_bytes(p, 1, a->context);
    r->n_gpus = n_gpus;
    r->memory_bytes = n_gpus * a->gpu.memory_bytes;
    r->deployed_bytes =
        n_gpus > 1 ? p->part_bytes * n_gpus / model_split_ways(a->split.n_stages) : r->weight_bytes;
    double left = fmax(0, r->memory_bytes - r->deployed_bytes);
    r->kv_tokens = floor(left / r->kv_bytes_per_token);
    if (r->sequence_bytes > 0) r->users = floor(left / r->sequence_bytes);
}

ridge_status plan_work_out(plan *p, plan_result *r, ridge_error *err) {
    const plan_params *a = &p->params;
    *r = (plan_result){.config = p->config, .peak_flops = hardware_flops(&a->gpu, a->dtype.peak)};
    r->ridge = r->peak_flops / a->gpu.bytes_per_s;
    r->kinds = device_count_kinds(p->program);
    sizes(p, r);
    if (a->slo_tpot_s > 0) RIDGE_TRY(find_slo_batch(p, r, err));
    RIDGE_TRY(plan_prefill(p, a->prompt, &r->prefill, err));
    RIDGE_TRY(plan_decode(p, a->batch, a->context, &r->decode, err));
    r->prompts_at_once = model_split_ways(a->split.n_stages) * model_split_ways(a->split.n_expert);
    double per_second = a->price_per_hour * r->n_gpus / 3600;
    r->prefill_tokens_per_s = r->prompts_at_once * a->prompt / r->prefill.counted.seconds;
    r->decode_tokens_per_s = a->batch / r->decode.counted.seconds;
    r->cost_per_m_input = per_second / r->prefill_tokens_per_s * 1e6;
    r->cost_per_m_output = per_second / r->decode_tokens_per_s * 1e6;
    return RIDGE_OK;
}
