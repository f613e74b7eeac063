/* cli/engine_args: see engine_args.h. */
#include "cli/engine_args.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mem.h"

engine_args engine_args_default(void) {
    engine_params p = engine_params_default();
    return (engine_args){.threads = p.n_threads,
                         .max_num_seqs = p.max_num_seqs,
                         .max_num_batched_tokens = p.max_num_batched_tokens,
                         .max_model_len = p.max_model_len,
                         .block_size = p.block_size,
                         .kv_cache_bytes = p.kv_cache_bytes,
                         .kv_cache_dtype = dev_kv_type_name(p.kv_type),
                         .precise = p.precise,
                         .prefix_caching = p.prefix_caching};
}

static ridge_status check_range(const char *name, uint64_t value, uint64_t low, uint64_t high,
                                ridge_error *err) {
    if (value >= low && value <= high) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s: expected %llu to %llu, found %llu", name,
                      (unsigned long long)low, (unsigned long long)high, (unsigned long long)value);
}

static ridge_status check_threads(const char *name, int64_t value, ridge_error *err) {
    if (value >= 0 && value <= ENGINE_MAX_THREADS) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s: expected 1 to %d, found %lld", name,
                      ENGINE_MAX_THREADS, (long long)value);
}

static ridge_status check_affinity(const engine_args *a, ridge_error *err) {
    int64_t n = a->threads > a->threads_batch ? a->threads : a->threads_batch;
    cpu_list cpus = {0};
    if (a->cpu_affinity == NULL) return RIDGE_OK;
    ridge_status status = cpus_choose(&cpus, "", a->cpu_affinity, err);
    if (status == RIDGE_OK && cpus.n < n)
        status = RIDGE_FAIL(err, RIDGE_EINVAL, "--cpu-affinity %s: %d for %d threads",
                            a->cpu_affinity, cpus.n, (int)n);
    cpu_list_free(&cpus);
    return status;
}

bool engine_args_is_static(const engine_args *a) {
    return a->scheduler != NULL && strcmp(a->scheduler, "static") == 0;
}

static ridge_status check_scheduler(const engine_args *a, ridge_error *err) {
    if (a->scheduler != NULL && !engine_args_is_static(a) &&
        strcmp(a->scheduler, "continuous") != 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--scheduler: expected continuous or static, found %s",
                          a->scheduler);
    bool guesses = a->speculative != NULL || a->speculative_model != NULL;
    if (engine_args_is_static(a) && (a->slo_tpot_ms > 0 || a->shed || guesses))
        return RIDGE_FAIL(
            err, RIDGE_EINVAL,
            "--scheduler static goes with neither --slo-tpot, --shed nor speculation");
    return RIDGE_OK;
}

static ridge_status check_slo(const engine_args *a, ridge_error *err) {
    const double most = 1e9;
    const struct {
        const char *name;
        double ms;
    } targets[] = {{"slo-tpot", a->slo_tpot_ms}, {"slo-ttft", a->slo_ttft_ms}};
    for (int i = 0; i < 2; i++)
        if (!(targets[i].ms >= 0 && targets[i].ms <= most))
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "--%s: expected milliseconds from 0 (no target) to %g, found %g",
                              targets[i].name, most, targets[i].ms);
    if (a->shed && a->slo_ttft_ms == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--shed needs a target to shed by: --slo-ttft MS");
    return RIDGE_OK;
}

static ridge_status check_speculation(const engine_args *a, ridge_error *err) {
    if (a->speculative != NULL && strcmp(a->speculative, "ngram") != 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--speculative: expected ngram, found '%s'",
                          a->speculative);
    if (a->speculative != NULL && a->speculative_model != NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--speculative and --speculative-model: guesses come from one of them");
    RIDGE_TRY(
        check_range("num-speculative-tokens", a->num_speculative_tokens, 0, ENGINE_MAX_DRAFT, err));
    if (a->num_speculative_tokens > 0 && a->speculative == NULL && a->speculative_model == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--num-speculative-tokens needs to know where guesses come from: "
                          "--speculative ngram or --speculative-model MODEL");
    return RIDGE_OK;
}

ridge_status engine_args_check(const engine_args *a, ridge_error *err) {
    dev_kv_type kv_type;
    RIDGE_TRY(check_threads("threads", a->threads, err));
    RIDGE_TRY(check_threads("threads-batch", a->threads_batch, err));
    RIDGE_TRY(check_affinity(a, err));
    RIDGE_TRY(check_range("max-num-seqs", a->max_num_seqs, 1, ENGINE_MAX_SEQS, err));
    RIDGE_TRY(check_range("max-num-batched-tokens", a->max_num_batched_tokens, 1,
                          ENGINE_MAX_BATCHED_TOKENS, err));
    RIDGE_TRY(check_range("max-model-len", a->max_model_len, 0, UINT32_MAX, err));
    RIDGE_TRY(check_range("block-size", a->block_size, 1, ENGINE_MAX_BLOCK_SIZE, err));
    RIDGE_TRY(check_slo(a, err));
    if (!dev_kv_type_find(a->kv_cache_dtype, &kv_type) || kv_type > DEV_KV_Q8_0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--kv-cache-dtype: expected auto, f16, f32 or q8_0, found '%s'",
                          a->kv_cache_dtype);
    RIDGE_TRY(check_scheduler(a, err));
    return check_speculation(a, err);
}

void engine_args_device(const engine_args *a, device_cpu_params *out) {
    *out = (device_cpu_params){.n_threads = (int)a->threads,
                               .n_threads_batch = (int)a->threads_batch,
                               .cpu_affinity = a->cpu_affinity,
                               .isa = cli_env("RIDGE_CPU"),
                               .precise = a->precise};
}

/* The draft model's path behind the model's: p->speculative_model borrows from *path, which grows.
 */
static ridge_status add_draft(const char *model, char **path, engine_params *p, ridge_error *err) {
    char *draft = NULL;
    RIDGE_TRY(cli_model_path(&draft, model, err));
    size_t n = strlen(*path) + 1, n_draft = strlen(draft) + 1;
    char *both = mem_alloc(n + n_draft);
    if (both != NULL) {
        memcpy(both, *path, n);
        memcpy(both + n, draft, n_draft);
        mem_free(*path);
        *path = both;
        p->model_path = both;
        p->speculative_model = both + n;
    }
    mem_free(draft);
    return both != NULL ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "the draft model's path");
}

ridge_status engine_args_params(const engine_args *a, const char *model, char **path,
                                engine_params *p, ridge_error *err) {
    device_cpu_params cpu;
    engine_args_device(a, &cpu);
    RIDGE_TRY(cli_model_path(path, model, err));
    *p = engine_params_default();
    p->model_path = *path;
    p->n_threads = cpu.n_threads;
    p->n_threads_batch = cpu.n_threads_batch;
    p->cpu_affinity = cpu.cpu_affinity;
    p->isa = cpu.isa;
    p->precise = cpu.precise;
    dev_kv_type_find(a->kv_cache_dtype, &p->kv_type);
    p->max_num_seqs = (uint32_t)a->max_num_seqs;
    p->max_num_batched_tokens = (uint32_t)a->max_num_batched_tokens;
    p->max_model_len = (uint32_t)a->max_model_len;
    p->block_size = (uint32_t)a->block_size;
    p->kv_cache_bytes = a->kv_cache_bytes;
    p->prefix_caching = a->prefix_caching;
    p->slo_tpot_s = a->slo_tpot_ms / 1e3;
    p->slo_ttft_s = a->slo_ttft_ms / 1e3;
    p->shed = a->shed;
    p->static_batches = engine_args_is_static(a);
    p->speculative_ngram = a->speculative != NULL;
    p->num_speculative_tokens = (uint32_t)a->num_speculative_tokens;
    p->log = cli_log();
    return a->speculative_model != NULL ? add_draft(a->speculative_model, path, p, err) : RIDGE_OK;
}

ridge_status engine_args_open(engine **out, const engine_args *a, const char *model,
                              ridge_error *err) {
    char *path = NULL;
    engine_params p;
    ridge_status status = engine_args_params(a, model, &path, &p, err);
    if (status == RIDGE_OK) status = engine_open(out, &p, err);
    mem_free(path);
    return status;
}
