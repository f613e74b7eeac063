/* plan/machine: see machine.h. */
#include "plan/machine.h"

#include "base/mem.h"
#include "device/count/count.h"
#include "engine/cache_size.h"

#define ACTIVATION_BYTES 2

struct machine {
    machine_params params;
    device *dev;
    plan_model opened;
    dev_kv_layout layout;
    dev_kv *kv;
    dev_compiled *program;
    double weight_bytes;
    uint32_t n_sums; /* of the program's: the ranks' parts are summed for each */
};

static ridge_status size_cache(machine *m, sched_params *s, ridge_error *err) {
    const machine_params *p = &m->params;
    cache_size_groups(&m->layout, s, m->opened.model);
    double all = p->memory_bytes * p->n_ranks, left = all - m->weight_bytes;
    if (left <= 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%.1f GB of weights, but %.1f GB of memory",
                          m->weight_bytes / 1e9, all / 1e9);
    uint64_t n = cache_size_within(&m->layout, s, (uint64_t)left, INT32_MAX / 4);
    uint64_t holds = n * s->block_size, context = m->opened.model->config.n_context;
    if (s->max_model_len == 0) s->max_model_len = (uint32_t)(context < holds ? context : holds);
    if (holds < s->max_model_len || n == 0)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE,
                          "%.1f GB of weights leave %.1f of %.1f GB for the KV cache: %llu tokens, "
                          "fewer than a context of %u (--max-model-len)",
                          m->weight_bytes / 1e9, left / 1e9, all / 1e9, (unsigned long long)holds,
                          s->max_model_len);
    cache_size_set(&m->layout, s, n);
    return RIDGE_OK;
}

/* Each rank does its share of every operation: n ranks are as one that is n times as fast. */
static efficiency_peaks times(efficiency_peaks p, uint32_t n) {
    return (efficiency_peaks){p.flops_per_s * n, p.bytes_per_s * n, p.link_bytes_per_s};
}

static ridge_status open_model(machine *m, ridge_error *err) {
    const machine_params *p = &m->params;
    count_params count = {.profile = &m->params.profile,
                          .linear = times(p->linear, p->n_ranks),
                          .other = times(p->other, p->n_ranks),
                          .weight_bits = p->weight_bits};
    RIDGE_TRY(device_count_create(&m->dev, &count, err));
    RIDGE_TRY(plan_model_open(&m->opened, p->model, m->dev, err));
    const dev_program *program = &m->opened.model->program;
    for (size_t i = 0; i < program->head_start; i++) m->n_sums += program->ops[i].kind == DEV_ADD;
    const model *opened = m->opened.model;
    m->weight_bytes = p->weight_bits > 0 ? (double)opened->n_parameters * p->weight_bits / 8
                                         : (double)opened->weight_bytes;
    return RIDGE_OK;
}

static ridge_status prepare(machine *m, sched_params *s, ridge_error *err) {
    RIDGE_TRY(open_model(m, err));
    m->layout.type = m->params.kv_type;
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
    model_close(m->opened.model);
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
    return (double)cache_size_token_bytes(&m->layout);
}

double machine_weight_bytes(const machine *m) {
    return m->weight_bytes;
}

static double all_reduce_seconds(const machine *m, uint32_t n_tokens) {
    const model_config *c = &m->opened.model->config;
    efficiency_op op = {.kind = EFFICIENCY_ALL_REDUCE,
                        .bytes = (double)n_tokens * c->n_embd * ACTIVATION_BYTES,
                        .n_ranks = (int)m->params.n_ranks};
    return efficiency_seconds(&m->params.profile, &m->params.other, &op);
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
    double link_s = m->n_sums * all_reduce_seconds(m, batch->n_tokens);
    out->bounds_s[ROOF_LINK] += link_s;
    out->seconds = out->account.seconds + link_s;
    return RIDGE_OK;
}
