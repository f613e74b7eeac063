/* plan/machine: see machine.h. */
#include "plan/machine.h"

#include "base/mem.h"
#include "device/count/count.h"
#include "engine/cache_size.h"
#include "roof/work.h"

#define MOST_BLOCKS (1u << 26) /* whose list takes 256 MB */

#define MAX_PARTS (2 * SIM_MAX_STAGES - 1)

struct machine {
    machine_params params;
    efficiency_profile profile;
    device *dev;
    plan_model opened; /* what one rank has of it; the file is that of the whole */
    dev_kv_layout layout;
    dev_kv *kv;
    dev_compiled *parts[MAX_PARTS]; /* [n_parts]: stages, and the links between them */
    uint32_t n_parts;
    double weight_bytes; /* of one rank, of all stages together */
    machine *draft;      /* NULL: none */
    dev_kv_layout whole; /* the cache of the whole model */
};

/* Schedulers of a replica, each with a cache. */
static uint32_t n_caches(const machine *m) {
    return model_split_ways(m->params.split.n_expert) * model_split_ways(m->params.split.n_stages);
}

/* The first stage has the least room where there is a draft model, which is there alone with what
 * it keeps for the caches of all stages. */
static ridge_status size_cache(machine *m, sched_params *s, ridge_error *err) {
    const machine_params *p = &m->params;
    cache_size_groups(&m->layout, s, m->opened.model);
    double weights = m->weight_bytes / model_split_ways(p->split.n_stages), share = 1;
    if (m->draft != NULL) {
        double own = (double)cache_size_token_bytes(&m->layout);
        weights += m->draft->weight_bytes;
        double draft = (double)cache_size_token_bytes(&m->draft->layout);
        share = own / (own + draft * model_split_ways(p->split.n_stages));
    }
    double left = p->memory_bytes - weights;
    double weights_gb = machine_weight_bytes(m) / 1e9, n_gpus = plan_n_gpus(&p->split),
           all_gb = p->memory_bytes * n_gpus / 1e9;
    if (left <= 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%.1f GB of weights, but %.1f GB of memory",
                          weights_gb, all_gb);
    uint64_t n = cache_size_within(&m->layout, s, (uint64_t)(share * left), MOST_BLOCKS);
    uint64_t holds = n * s->block_size, context = m->opened.model->config.n_context;
    if (s->max_model_len == 0) s->max_model_len = (uint32_t)(context < holds ? context : holds);
    if (holds < s->max_model_len || n == 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                          "%.1f GB of weights leave %.1f of %.1f GB for %s: %llu tokens%s, fewer "
                          "than a context of %u (--max-model-len)",
                          weights_gb, left * n_gpus / 1e9, all_gb,
                          n_caches(m) > 1 ? "KV caches" : "the KV cache", (unsigned long long)holds,
                          n_caches(m) > 1 ? " in each" : "", s->max_model_len);
    cache_size_set(&m->layout, s, n);
    return RIDGE_OK;
}

/* bits 0: of each matrix as its type has it. */
static ridge_status open_device(machine *m, double bits, ridge_error *err) {
    count_params count = m->params.count;
    count.weight_bits = bits;
    return device_count_create(&m->dev, &count, err);
}

/* In place of the whole. */
static ridge_status open_part(machine *m, const plan_dtype *dtype, ridge_error *err) {
    model_config part;
    RIDGE_TRY(model_config_split(&part, &m->opened.model->config, &m->params.split, err));
    plan_model_close(&m->opened);
    m->dev->vtable->destroy(m->dev);
    m->dev = NULL;
    RIDGE_TRY(open_device(m, dtype->bits, err));
    RIDGE_TRY(model_open_shape(&m->opened.model, &part, m->dev, err));
    m->weight_bytes = plan_dtype_apply(dtype, m->opened.model);
    return RIDGE_OK;
}

/* A part of a file has the mean of its bits. */
static ridge_status open_model(machine *m, sched_params *s, ridge_error *err) {
    const machine_params *p = &m->params;
    plan_dtype dtype = p->dtype;
    RIDGE_TRY(open_device(m, p->file_weights ? 0 : dtype.bits, err));
    RIDGE_TRY(plan_model_open(&m->opened, p->model, m->dev, err));
    const model *whole = m->opened.model;
    cache_size_groups(&m->whole, s, whole);
    m->weight_bytes =
        p->file_weights ? (double)whole->weight_bytes : plan_dtype_apply(&dtype, whole);
    if (plan_n_gpus(&p->split) == 1 && p->split.n_redundant == 0) return RIDGE_OK;
    if (p->file_weights)
        plan_dtype_set_bits(&dtype, 8 * m->weight_bytes / (double)whole->n_parameters);
    return open_part(m, &dtype, err);
}

/* Operations [begin, end) of the program. */
static ridge_status compile_part(machine *m, size_t begin, size_t end, uint32_t max_tokens,
                                 ridge_error *err) {
    dev_program part = m->opened.model->program;
    ridge_assert(m->n_parts < MAX_PARTS);
    part.ops += begin;
    part.n_ops = end - begin;
    part.head_start = (end < part.head_start ? end : part.head_start) - begin;
    RIDGE_TRY(m->dev->vtable->compile(m->dev, &m->parts[m->n_parts], &part, max_tokens, err));
    m->n_parts++;
    return RIDGE_OK;
}

static ridge_status compile_parts(machine *m, uint32_t max_tokens, ridge_error *err) {
    const dev_program *p = &m->opened.model->program;
    size_t begin = 0;
    for (size_t i = 0; i < p->head_start; i++) {
        if (p->ops[i].kind != DEV_SEND) continue;
        RIDGE_TRY(compile_part(m, begin, i, max_tokens, err));
        RIDGE_TRY(compile_part(m, i, i + 1, max_tokens, err));
        begin = i + 1;
    }
    return compile_part(m, begin, p->n_ops, max_tokens, err);
}

/* Some vocabularies are padded. */
static ridge_status check_draft(const machine *m, ridge_error *err) {
    double n = m->draft->opened.model->config.n_vocab * model_split_ways(m->params.split.n_tensor);
    double whole = m->opened.model->config.n_vocab * model_split_ways(m->params.split.n_tensor);
    if (n >= 0.99 * whole && n <= 1.01 * whole) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "the draft model has %.0f tokens and the model %.0f: they must have the same "
                      "vocabulary",
                      n, whole);
}

/* Whether it fits is the model's concern. */
static ridge_status open_draft(machine *m, const sched_params *s, ridge_error *err) {
    machine_params p = m->params;
    sched_params unused = *s;
    if (p.draft == NULL) return RIDGE_OK;
    p.model = p.draft;
    p.draft = NULL;
    p.memory_bytes = 1e18;
    p.split = (model_split){.n_tensor = p.split.n_tensor};
    ridge_status status = machine_open(&m->draft, &p, &unused, err);
    if (status == RIDGE_OK) status = check_draft(m, err);
    if (status != RIDGE_OK) error_where(err, "--speculative-model");
    return status;
}

static ridge_status prepare(machine *m, sched_params *s, ridge_error *err) {
    m->layout.type = m->whole.type = m->params.kv_type;
    RIDGE_TRY(open_model(m, s, err));
    RIDGE_TRY(open_draft(m, s, err));
    RIDGE_TRY(size_cache(m, s, err));
    RIDGE_TRY(m->dev->vtable->kv_create(m->dev, &m->kv, &m->layout, err));
    return compile_parts(m, s->max_num_batched_tokens, err);
}

ridge_status machine_open(machine **out, const machine_params *p, sched_params *s,
                          ridge_error *err) {
    machine *m = mem_zalloc(1, sizeof *m);
    if (m == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the machine");
    m->params = *p;
    m->profile = *p->count.profile;
    m->params.count.profile = &m->profile;
    ridge_status status = prepare(m, s, err);
    m->params.model = m->params.draft = NULL; /* the caller's */
    if (status == RIDGE_OK)
        *out = m;
    else
        machine_close(m);
    return status;
}

void machine_close(machine *m) {
    if (m == NULL) return;
    for (uint32_t i = 0; i < m->n_parts; i++) m->dev->vtable->compiled_free(m->dev, m->parts[i]);
    if (m->kv != NULL) m->dev->vtable->kv_free(m->dev, m->kv);
    plan_model_close(&m->opened);
    if (m->dev != NULL) m->dev->vtable->destroy(m->dev);
    machine_close(m->draft);
    mem_free(m);
}

uint32_t machine_context(const machine *m) {
    return m->opened.model->config.n_context;
}

uint64_t machine_kv_tokens(const machine *m) {
    uint32_t most = 0;
    for (uint32_t g = 0; g < m->layout.n_groups; g++)
        if (m->layout.groups[g].n_blocks > most) most = m->layout.groups[g].n_blocks;
    return (uint64_t)most * m->layout.block_size * n_caches(m);
}

double machine_kv_token_bytes(const machine *m) {
    return (double)cache_size_token_bytes(&m->whole);
}

double machine_weight_bytes(const machine *m) {
    const model_split *s = &m->params.split;
    double draft = m->draft != NULL ? m->draft->weight_bytes : 0;
    return (m->weight_bytes + draft) * model_split_ways(s->n_tensor) *
           model_split_ways(s->n_expert);
}

/* One part of a step; the last one with the head. */
static ridge_status run_part(const machine *m, uint32_t i, const dev_batch *batch,
                             uint32_t n_wanted, sim_step *out, ridge_error *err) {
    const device_vtable *v = m->dev->vtable;
    double bounds[ROOF_N_BOUNDS];
    dev_account account;
    RIDGE_TRY(v->submit(m->dev, m->parts[i], m->kv, batch, err));
    RIDGE_TRY(v->wait(m->dev, err));
    if (i + 1 == m->n_parts && n_wanted > 0)
        RIDGE_TRY(v->head(m->dev, m->parts[i], NULL, n_wanted, NULL, err));
    v->account(m->dev, &account);
    device_count_bounds(m->dev, bounds);
    dev_account_add(&out->account, &account);
    for (int b = 0; b < ROOF_N_BOUNDS; b++) out->bounds_s[b] += bounds[b];
    out->parts_s[i] = account.seconds;
    return RIDGE_OK;
}

static ridge_status device_step(const machine *m, const dev_batch *batch, uint32_t n_wanted,
                                sim_step *out, ridge_error *err) {
    double n_tensor = model_split_ways(m->params.split.n_tensor);
    *out = (sim_step){.n_parts = m->n_parts};
    for (uint32_t i = 0; i < m->n_parts; i++) RIDGE_TRY(run_part(m, i, batch, n_wanted, out, err));
    out->seconds = out->account.seconds;
    out->account.flops *= n_tensor;
    out->account.weight_bytes *= n_tensor;
    out->account.kv_bytes *= n_tensor;
    return RIDGE_OK;
}

/* The host has its time with the last part. */
ridge_status machine_step(void *context, const dev_batch *batch, uint32_t n_wanted, sim_step *out,
                          ridge_error *err) {
    const machine *m = context;
    RIDGE_TRY(device_step(m, batch, n_wanted, out, err));
    double host_s = m->profile.host.step_s + m->profile.host.token_s * n_wanted;
    out->seconds += host_s;
    out->parts_s[m->n_parts - 1] += host_s;
    return RIDGE_OK;
}

ridge_status machine_draft_step(void *context, const dev_batch *batch, uint32_t n_wanted,
                                sim_step *out, ridge_error *err) {
    return device_step(((const machine *)context)->draft, batch, n_wanted, out, err);
}

const dev_kv_layout *machine_kv_layout(const machine *m) {
    return &m->whole;
}

/* A decode of one sequence, the first token of its context. */
static ridge_status one_row(const machine *m, bool wanted, dev_account *out, ridge_error *err) {
    const dev_seq seq = {.n_rows = 1, .n_context = 1};
    const dev_batch batch = {.n_tokens = 1, .n_seqs = 1, .seqs = &seq};
    sim_step step;
    RIDGE_TRY(device_step(m, &batch, wanted, &step, err));
    *out = step.account;
    return RIDGE_OK;
}

/* Of a row and a token that it sees, in one layer. */
static double attention_ops(const model_config *c) {
    const model_latent *l = &c->latent;
    if (l->rank == 0) return work_attention_flops(c->n_heads, c->head_dim, 1);
    return 2.0 * c->n_heads * (2 * l->rank + l->n_rope); /* absorbed (roof/work.h) */
}

ridge_status machine_cost(const machine *m, cost_shape *out, ridge_error *err) {
    const count_params *c = &m->params.count;
    const dev_kv_layout *l = &m->layout;
    dev_account body, all;
    RIDGE_TRY(one_row(m, false, &body, err));
    RIDGE_TRY(one_row(m, true, &all, err));
    double n_tensor = model_split_ways(m->params.split.n_tensor);
    *out = (cost_shape){.bytes_per_s = c->other.bytes_per_s,
                        .linear_ops_per_s = c->linear.flops_per_s,
                        .attention_ops_per_s = c->other.flops_per_s,
                        .weight_bytes = body.weight_bytes / n_tensor,
                        .head_bytes = (all.weight_bytes - body.weight_bytes) / n_tensor,
                        .row_ops = body.flops / n_tensor,
                        .head_row_ops = (all.flops - body.flops) / n_tensor,
                        .n_groups = l->n_groups};
    for (uint32_t g = 0; g < l->n_groups; g++) {
        out->groups[g].window = l->groups[g].window;
        out->groups[g].attention_ops =
            l->groups[g].n_layers * attention_ops(&m->opened.model->config);
        out->groups[g].bytes_per_token = (double)dev_kv_bytes_per_block(l, g) / l->block_size;
    }
    return RIDGE_OK;
}
