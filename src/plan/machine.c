/* plan/machine: see machine.h. */
#include "plan/machine.h"

#include "base/mem.h"
#include "device/count/count.h"
#include "engine/cache_size.h"

#define MOST_BLOCKS (1u << 26) /* whose list takes 256 MB */

struct machine {
    machine_params params;
    device *dev;
    plan_model opened; /* what one rank has of it; the file is that of the whole */
    dev_kv_layout layout;
    dev_kv *kv;
    dev_compiled *program;
    double weight_bytes;   /* of one rank */
    double kv_token_bytes; /* of the whole model */
};

static ridge_status size_cache(machine *m, sched_params *s, ridge_error *err) {
    const machine_params *p = &m->params;
    cache_size_groups(&m->layout, s, m->opened.model);
    double left = p->memory_bytes - m->weight_bytes;
    double weights_gb = m->weight_bytes * p->n_ranks / 1e9,
           all_gb = p->memory_bytes * p->n_ranks / 1e9;
    if (left <= 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%.1f GB of weights, but %.1f GB of memory",
                          weights_gb, all_gb);
    uint64_t n = cache_size_within(&m->layout, s, (uint64_t)left, MOST_BLOCKS);
    uint64_t holds = n * s->block_size, context = m->opened.model->config.n_context;
    if (s->max_model_len == 0) s->max_model_len = (uint32_t)(context < holds ? context : holds);
    if (holds < s->max_model_len || n == 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                          "%.1f GB of weights leave %.1f of %.1f GB for the KV cache: %llu tokens, "
                          "fewer than a context of %u (--max-model-len)",
                          weights_gb, left * p->n_ranks / 1e9, all_gb, (unsigned long long)holds,
                          s->max_model_len);
    cache_size_set(&m->layout, s, n);
    return RIDGE_OK;
}

/* bits 0: of each matrix as its type has it. */
static ridge_status open_device(machine *m, double bits, ridge_error *err) {
    const machine_params *p = &m->params;
    const count_params count = {
        .profile = &p->profile, .linear = p->linear, .other = p->other, .weight_bits = bits};
    return device_count_create(&m->dev, &count, err);
}

/* In place of the whole; weights from a file have the mean of its bits. */
static ridge_status open_part(machine *m, double bits, ridge_error *err) {
    const model_split split = {.n_tensor = m->params.n_ranks};
    model_config part;
    RIDGE_TRY(model_config_split(&part, &m->opened.model->config, &split, err));
    plan_model_close(&m->opened);
    m->dev->vtable->destroy(m->dev);
    m->dev = NULL;
    RIDGE_TRY(open_device(m, bits, err));
    return model_open_shape(&m->opened.model, &part, m->dev, err);
}

static ridge_status open_model(machine *m, sched_params *s, ridge_error *err) {
    const machine_params *p = &m->params;
    RIDGE_TRY(open_device(m, p->weight_bits, err));
    RIDGE_TRY(plan_model_open(&m->opened, p->model, m->dev, err));
    const model *whole = m->opened.model;
    cache_size_groups(&m->layout, s, whole);
    m->kv_token_bytes = (double)cache_size_token_bytes(&m->layout);
    double bytes = p->weight_bits > 0 ? (double)whole->n_parameters * p->weight_bits / 8
                                      : (double)whole->weight_bytes;
    double each = bytes / (double)whole->n_parameters;
    m->weight_bytes = bytes;
    if (p->n_ranks == 1) return RIDGE_OK;
    RIDGE_TRY(open_part(m, 8 * each, err));
    m->weight_bytes = each * (double)m->opened.model->n_parameters;
    return RIDGE_OK;
}

static ridge_status prepare(machine *m, sched_params *s, ridge_error *err) {
    m->layout.type = m->params.kv_type;
    RIDGE_TRY(open_model(m, s, err));
    RIDGE_TRY(size_cache(m, s, err));
    const device_vtable *v = m->dev->vtable;
    RIDGE_TRY(v->kv_create(m->dev, &m->kv, &m->layout, err));
    return v->compile(m->dev, &m->program, &m->opened.model->program, s->max_num_batched_tokens,
                      err);
}

ridge_status machine_open(machine **out, const machine_params *p, sched_params *s,
                          ridge_error *err) {
    machine *m = mem_zalloc(1, sizeof *m);
    if (m == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the machine");
    m->params = *p;
    ridge_status status = prepare(m, s, err);
    m->params.model = NULL; /* the caller's */
    if (status == RIDGE_OK)
        *out = m;
    else
        machine_close(m);
    return status;
}

void machine_close(machine *m) {
    if (m == NULL) return;
    if (m->program != NULL) m->dev->vtable->compiled_free(m->dev, m->program);
    if (m->kv != NULL) m->dev->vtable->kv_free(m->dev, m->kv);
    plan_model_close(&m->opened);
    if (m->dev != NULL) m->dev->vtable->destroy(m->dev);
    mem_free(m);
}

uint64_t machine_kv_tokens(const machine *m) {
    uint32_t most = 0;
    for (uint32_t g = 0; g < m->layout.n_groups; g++)
        if (m->layout.groups[g].n_blocks > most) most = m->layout.groups[g].n_blocks;
    return (uint64_t)most * m->layout.block_size;
}

double machine_kv_token_bytes(const machine *m) {
    return m->kv_token_bytes;
}

double machine_weight_bytes(const machine *m) {
    return m->weight_bytes * m->params.n_ranks;
}

ridge_status machine_step(void *context, const dev_batch *batch, uint32_t n_wanted, sim_step *out,
                          ridge_error *err) {
    const machine *m = context;
    const device_vtable *v = m->dev->vtable;
    RIDGE_TRY(v->submit(m->dev, m->program, m->kv, batch, err));
    RIDGE_TRY(v->wait(m->dev, err));
    if (n_wanted > 0) RIDGE_TRY(v->head(m->dev, m->program, NULL, n_wanted, NULL, err));
    v->account(m->dev, &out->account);
    device_count_bounds(m->dev, out->bounds_s);
    out->seconds = out->account.seconds;
    out->account.flops *= m->params.n_ranks;
    out->account.weight_bytes *= m->params.n_ranks;
    out->account.kv_bytes *= m->params.n_ranks;
    return RIDGE_OK;
}
