/* plan/experiment: see experiment.h. */
#include "plan/experiment.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "plan/machine.h"

experiment experiment_default(void) {
    const plan_params defaults = plan_params_default();
    return (experiment){.n_node = defaults.n_node,
                        .decode_split = {.n_redundant = EXPERIMENT_AS_SPLIT},
                        .expert_imbalance = 1,
                        .profile = defaults.profile,
                        .dtype = defaults.dtype,
                        .memory_share = 0.9,
                        .kv_type = defaults.kv_type,
                        .sim = {.pool = {.n_replicas = 1,
                                         .sched = {.max_num_seqs = 256,
                                                   .max_num_batched_tokens = 2048,
                                                   .block_size = 16,
                                                   .prefix_caching = true}},
                                .router = SIM_LEAST_LOADED},
                        .traffic = {.arrivals = TRAFFIC_AT_ONCE,
                                    .n_requests = 1000,
                                    .trace_speed = 1,
                                    .input = {LENGTH_FIXED, 1024, 0},
                                    .output = {LENGTH_FIXED, 128, 0},
                                    .n_prefixes = 1}};
}

static ridge_status open_machine(machine **out, const experiment *e, const model_split *split,
                                 sched_params *s, ridge_error *err) {
    machine_params p = {.model = e->model,
                        .count = plan_counting(&e->gpu, &e->dtype, &e->profile, e->n_node),
                        .dtype = e->dtype,
                        .file_weights = e->file_weights,
                        .memory_bytes = e->gpu.memory_bytes * e->memory_share,
                        .split = *split,
                        .kv_type = e->kv_type};
    RIDGE_TRY(plan_check_links(&e->gpu, split, e->n_node, err));
    if (e->sim.n_drafts > 0) p.draft = e->draft;
    p.count.expert_imbalance = e->expert_imbalance;
    p.count.halves = e->halves;
    return machine_open(out, &p, s, err);
}

static bool fits(const experiment *e, const model_split *split) {
    machine *m = NULL;
    sched_params s = e->sim.pool.sched;
    if (open_machine(&m, e, split, &s, NULL) != RIDGE_OK) return false;
    machine_close(m);
    return true;
}

/* Of all GPUs that are known, the smallest that would do in this one's place; NULL: none. */
static const char *larger_gpu(const experiment *e, const model_split *split) {
    const hardware *h, *best = NULL;
    for (size_t i = 0; (h = hardware_at(i)) != NULL; i++) {
        experiment with = *e;
        with.gpu = *h;
        if ((best == NULL || h->memory_bytes < best->memory_bytes) && fits(&with, split)) best = h;
    }
    return best != NULL ? best->name : NULL;
}

/* Adds to an error what would fit. */
static void advise(const experiment *e, const model_split *split, ridge_error *err) {
    const char *gpu = err != NULL ? larger_gpu(e, split) : NULL;
    model_split more = *split;
    if (err == NULL) return;
    do more.n_tensor++;
    while (more.n_tensor <= MACHINE_MAX_TENSOR && !fits(e, &more));
    buf b = {0};
    if (more.n_tensor <= MACHINE_MAX_TENSOR)
        buf_printf(&b, "; --tensor-parallel-size %u would do", more.n_tensor);
    if (gpu != NULL) buf_printf(&b, "%s --gpu %s", b.len > 0 ? ", or" : "; what fits is", gpu);
    size_t len = strlen(err->text);
    if (b.data != NULL) snprintf(err->text + len, sizeof err->text - len, "%s", b.data);
    buf_free(&b);
}

/* What is decided by the machine of a pool's replicas. */
static ridge_status open_pool(machine **m, sim_pool *p, const experiment *e,
                              const model_split *split, ridge_error *err) {
    ridge_status status = open_machine(m, e, split, &p->sched, err);
    if (status == RIDGE_ETOOLARGE) advise(e, split, err);
    if (status != RIDGE_OK) return status;
    p->n_stages = split->n_stages;
    p->n_expert = split->n_expert;
    p->n_tensor = split->n_tensor;
    p->step = machine_step;
    p->draft = e->draft != NULL ? machine_draft_step : NULL;
    p->step_context = *m;
    if (p->sched.static_batches) p->sched.prefix_caching = false;
    return machine_cost(*m, &p->cost, err);
}

static model_split decode_split(const experiment *e) {
    const model_split *own = &e->decode_split, *all = &e->split;
    return (model_split){.n_tensor = own->n_tensor > 0 ? own->n_tensor : all->n_tensor,
                         .n_expert = own->n_expert > 0 ? own->n_expert : all->n_expert,
                         .n_stages = own->n_stages > 0 ? own->n_stages : all->n_stages,
                         .n_redundant = own->n_redundant != EXPERIMENT_AS_SPLIT ? own->n_redundant
                                                                                : all->n_redundant};
}

static ridge_status simulate(sim_result *out, const experiment *e, const sim_params *p,
                             ridge_error *err) {
    traffic *from = NULL;
    RIDGE_TRY(traffic_open(&from, &e->traffic, err));
    ridge_status status = sim_run(out, p, from, err);
    traffic_close(from);
    return status;
}

/* From prompts to answers: over the network, unless a link is given; each GPU has a port, and sends
 * or takes its part. */
static ridge_status set_link(sim_params *p, const experiment *e, const model_split *apart,
                             ridge_error *err) {
    if (p->decode.n_replicas == 0 || p->link_bytes_per_s > 0) return RIDGE_OK;
    uint32_t from = model_split_ways(e->split.n_tensor), to = model_split_ways(apart->n_tensor);
    p->link_bytes_per_s = e->gpu.network_bytes_per_s * (from < to ? from : to);
    if (p->link_bytes_per_s > 0) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "how fast keys and values get from one '%s' to another is not known: "
                      "--link-gbps N (or --network-bandwidth BYTES/s; in the file of a machine "
                      "\"network_bytes_per_s\")",
                      e->gpu.name);
}

static void set_transfers(sim_params *p, const dev_kv_layout *l) {
    for (uint32_t g = 0; g < l->n_groups; g++) {
        p->kv[g].token_bytes = (double)dev_kv_bytes_per_block(l, g) / l->block_size;
        p->kv[g].window = l->groups[g].window;
    }
}

/* machines: for prompts, and for answers apart from them. */
static ridge_status run_on(experiment_result *out, const experiment *e, machine *machines[2],
                           ridge_error *err) {
    sim_params p = e->sim;
    const model_split apart = decode_split(e);
    if (p.pace && p.slo_tpot_s <= 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--pace needs a target: --slo-tpot MS");
    RIDGE_TRY(set_link(&p, e, &apart, err));
    RIDGE_TRY(open_pool(&machines[0], &p.pool, e, &e->split, err));
    p.decode.sched = e->sim.pool.sched;
    if (p.decode.n_replicas > 0) {
        RIDGE_TRY(open_pool(&machines[1], &p.decode, e, &apart, err));
        uint32_t *a = &p.pool.sched.max_model_len, *b = &p.decode.sched.max_model_len;
        *a = *b = *a < *b ? *a : *b;
    }
    p.prefix_tokens = e->traffic.prefix_tokens;
    set_transfers(&p, machine_kv_layout(machines[0]));
    *out = (experiment_result){.n_gpus = p.pool.n_replicas * (uint32_t)plan_n_gpus(&e->split) +
                                         p.decode.n_replicas * (uint32_t)plan_n_gpus(&apart),
                               .max_model_len = p.pool.sched.max_model_len,
                               .model_context = machine_context(machines[0]),
                               .weight_bytes = machine_weight_bytes(machines[0]),
                               .kv_token_bytes = machine_kv_token_bytes(machines[0]),
                               .kv_tokens = machine_kv_tokens(machines[0])};
    return simulate(&out->sim, e, &p, err);
}

ridge_status experiment_run(experiment_result *out, const experiment *e, ridge_error *err) {
    machine *machines[2] = {NULL, NULL};
    ridge_status status = run_on(out, e, machines, err);
    for (int i = 0; i < 2; i++) machine_close(machines[i]);
    return status;
}

double experiment_goodput(const experiment_result *r) {
    uint64_t n = r->sim.n_requests + r->sim.n_refused;
    return n > 0 ? (double)r->sim.n_good / (double)n : 0;
}
