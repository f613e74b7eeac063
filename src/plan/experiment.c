/* plan/experiment: see experiment.h. */
#include "plan/experiment.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "plan/machine.h"

experiment experiment_default(void) {
    const plan_params defaults = plan_params_default();
    return (experiment){.n_ranks = 1,
                        .profile = defaults.profile,
                        .dtype = defaults.dtype,
                        .memory_share = 0.9,
                        .kv_type = defaults.kv_type,
                        .sim = {.sched = {.max_num_seqs = 256,
                                          .max_num_batched_tokens = 2048,
                                          .block_size = 16,
                                          .prefix_caching = true},
                                .n_replicas = 1,
                                .router = SIM_LEAST_LOADED},
                        .traffic = {.arrivals = TRAFFIC_AT_ONCE,
                                    .n_requests = 1000,
                                    .trace_speed = 1,
                                    .input = {LENGTH_FIXED, 1024, 0},
                                    .output = {LENGTH_FIXED, 128, 0},
                                    .n_prefixes = 1}};
}

static ridge_status open_machine(machine **out, const experiment *e, sched_params *s,
                                 ridge_error *err) {
    machine_params p = {.model = e->model,
                        .linear = plan_peaks(&e->gpu, e->dtype.peak),
                        .other = plan_peaks(&e->gpu, PEAK_16),
                        .memory_bytes = e->gpu.memory_bytes * e->memory_share,
                        .profile = e->profile,
                        .n_ranks = e->n_ranks,
                        .weight_bits = e->file_weights ? 0 : e->dtype.bits,
                        .kv_type = e->kv_type};
    return machine_open(out, &p, s, err);
}

/* Does it fit on n GPUs? */
static bool fits(const experiment *e, uint32_t n) {
    machine *m = NULL;
    sched_params s = e->sim.sched;
    experiment with = *e;
    with.n_ranks = n;
    if (open_machine(&m, &with, &s, NULL) != RIDGE_OK) return false;
    machine_close(m);
    return true;
}

/* Of all GPUs that are known, the smallest that would do in this one's place; NULL: none. */
static const char *larger_gpu(const experiment *e) {
    const hardware *h, *best = NULL;
    for (size_t i = 0; (h = hardware_at(i)) != NULL; i++) {
        experiment with = *e;
        with.gpu = *h;
        if ((best == NULL || h->memory_bytes < best->memory_bytes) && fits(&with, e->n_ranks))
            best = h;
    }
    return best != NULL ? best->name : NULL;
}

/* Adds to an error what would fit. */
static void advise(const experiment *e, ridge_error *err) {
    const char *gpu = err != NULL ? larger_gpu(e) : NULL;
    uint32_t n = e->n_ranks + 1;
    if (err == NULL) return;
    while (n <= MACHINE_MAX_RANKS && !fits(e, n)) n++;
    buf b = {0};
    if (n <= MACHINE_MAX_RANKS) buf_printf(&b, "; --tensor-parallel-size %u would do", n);
    if (gpu != NULL) buf_printf(&b, "%s --gpu %s", b.len > 0 ? ", or" : "; what fits is", gpu);
    size_t len = strlen(err->text);
    if (b.data != NULL) snprintf(err->text + len, sizeof err->text - len, "%s", b.data);
    buf_free(&b);
}

/* With all that the machine decides. */
static ridge_status run_on(experiment_result *out, const experiment *e, machine *m,
                           const sched_params *s, ridge_error *err) {
    traffic *from = NULL;
    sim_params p = e->sim;
    p.sched = *s;
    p.step = machine_step;
    p.step_context = m;
    p.prefix_tokens = e->traffic.prefix_tokens;
    p.kv_token_bytes = machine_kv_token_bytes(m);
    if (s->static_batches) p.sched.prefix_caching = false;
    *out = (experiment_result){.n_gpus = (p.n_replicas + p.n_decode) * e->n_ranks,
                               .max_model_len = s->max_model_len,
                               .weight_bytes = machine_weight_bytes(m),
                               .kv_token_bytes = p.kv_token_bytes,
                               .kv_tokens = machine_kv_tokens(m)};
    RIDGE_TRY(traffic_open(&from, &e->traffic, err));
    ridge_status status = sim_run(&out->sim, &p, from, err);
    traffic_close(from);
    return status;
}

ridge_status experiment_run(experiment_result *out, const experiment *e, ridge_error *err) {
    machine *m = NULL;
    sched_params s = e->sim.sched;
    ridge_status status = open_machine(&m, e, &s, err);
    if (status == RIDGE_ETOOLARGE) advise(e, err);
    if (status != RIDGE_OK) return status;
    status = run_on(out, e, m, &s, err);
    machine_close(m);
    return status;
}

double experiment_goodput(const experiment_result *r) {
    return r->sim.n_requests > 0 ? (double)r->sim.n_good / (double)r->sim.n_requests : 0;
}
