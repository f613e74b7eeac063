/* cli/engine_args: see engine_args.h. */
#include "cli/engine_args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "device/cpu/peaks.h"

#define MAX_INPUT ((size_t)1 << 30)

void engine_args_options(engine_args *a, cli_option *options) {
    engine_params p = engine_params_default();
    *a = (engine_args){.max_num_seqs = p.max_num_seqs,
                       .max_num_batched_tokens = p.max_num_batched_tokens,
                       .block_size = p.block_size};
    const cli_option own[ENGINE_ARGS_OPTIONS] = {
        {"threads", CLI_INT, &a->threads, "processor threads (default: all usable)"},
        {"precise", CLI_FLAG, &a->precise, "f32 activations and an f32 cache: slow, for reference"},
        {"max-num-seqs", CLI_UINT, &a->max_num_seqs, "sequences running at once"},
        {"max-num-batched-tokens", CLI_UINT, &a->max_num_batched_tokens, "tokens in one step"},
        {"max-model-len", CLI_UINT, &a->max_model_len,
         "longest prompt and answer together (default: the model's)"},
        {"block-size", CLI_UINT, &a->block_size, "tokens in a block of the cache"},
        {"kv-cache-memory-bytes", CLI_BYTES, &a->kv_cache_bytes,
         "memory of the cache (default: from the free memory)"},
    };
    memcpy(options, own, sizeof own);
}

static ridge_status to_u32(const char *name, uint64_t v, uint32_t *out, ridge_error *err) {
    if (v > UINT32_MAX)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s: %llu is too large", name,
                          (unsigned long long)v);
    *out = (uint32_t)v;
    return RIDGE_OK;
}

ridge_status engine_args_open(engine **out, const engine_args *a, const char *model,
                              ridge_error *err) {
    engine_params p = engine_params_default();
    char *path;
    RIDGE_TRY(to_u32("max-num-seqs", a->max_num_seqs, &p.max_num_seqs, err));
    RIDGE_TRY(to_u32("max-num-batched-tokens", a->max_num_batched_tokens, &p.max_num_batched_tokens,
                     err));
    RIDGE_TRY(to_u32("max-model-len", a->max_model_len, &p.max_model_len, err));
    RIDGE_TRY(to_u32("block-size", a->block_size, &p.block_size, err));
    if (a->threads < 0 || a->threads > 1024)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--threads must be between 0 and 1024");
    RIDGE_TRY(cli_model_path(&path, model, err));
    const char *isa = getenv("RIDGE_CPU");
    p.model_path = path;
    p.n_threads = (int)a->threads;
    p.isa = isa != NULL && isa[0] != '\0' ? isa : NULL;
    p.precise = a->precise;
    p.kv_cache_bytes = a->kv_cache_bytes;
    p.log = cli_log();
    ridge_status status = engine_open(out, &p, err);
    if (status != RIDGE_OK) error_where(err, path);
    mem_free(path);
    return status;
}

void sampling_args_options(sampling_args *a, cli_option *options) {
    sampler_params p = sampler_params_default();
    *a = (sampling_args){.temperature = (double)p.temperature,
                         .top_p = (double)p.top_p,
                         .min_p = (double)p.min_p,
                         .repetition_penalty = (double)p.repetition_penalty};
    const cli_option own[SAMPLING_ARGS_OPTIONS] = {
        {"max-tokens", CLI_UINT, &a->max_tokens, "most tokens of the answer (default: no limit)"},
        {"min-tokens", CLI_UINT, &a->min_tokens, "the answer doesn't end before so many tokens"},
        {"temperature", CLI_DOUBLE, &a->temperature, "0 (default): always the most likely token"},
        {"seed", CLI_UINT, &a->seed, "of the draws"},
        {"top-k", CLI_INT, &a->top_k, "draw among the k most likely (0: all)"},
        {"top-p", CLI_DOUBLE, &a->top_p, "draw among the most likely that make up p"},
        {"min-p", CLI_DOUBLE, &a->min_p, "draw among those at least p times the most likely"},
        {"repetition-penalty", CLI_DOUBLE, &a->repetition_penalty, "of tokens seen (1: none)"},
        {"presence-penalty", CLI_DOUBLE, &a->presence_penalty, "of tokens in the answer"},
        {"frequency-penalty", CLI_DOUBLE, &a->frequency_penalty, "the same, each time"},
        {"stop", CLI_STRING, &a->stop, "the answer ends before this text"},
    };
    memcpy(options, own, sizeof own);
}

ridge_status sampling_args_apply(const sampling_args *a, engine_request *r, ridge_error *err) {
    RIDGE_TRY(to_u32("max-tokens", a->max_tokens, &r->max_tokens, err));
    RIDGE_TRY(to_u32("min-tokens", a->min_tokens, &r->min_tokens, err));
    if (a->top_k < -1 || a->top_k > INT32_MAX)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--top-k must be between -1 and %d", INT32_MAX);
    r->sampling.temperature = (float)a->temperature;
    r->sampling.seed = a->seed;
    r->sampling.top_k = (int32_t)a->top_k;
    r->sampling.top_p = (float)a->top_p;
    r->sampling.min_p = (float)a->min_p;
    r->sampling.repetition_penalty = (float)a->repetition_penalty;
    r->sampling.presence_penalty = (float)a->presence_penalty;
    r->sampling.frequency_penalty = (float)a->frequency_penalty;
    r->stop = &a->stop;
    r->n_stop = a->stop != NULL;
    return RIDGE_OK;
}

const char *cli_cpu_name(char *text, size_t size) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(text, size, "unknown");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        snprintf(text, size, "%s", colon + 1 + (colon[1] == ' '));
        text[strcspn(text, "\n")] = '\0';
        break;
    }
    if (f != NULL) fclose(f);
    return text;
}

/* "peaks-<hash of processor, path, threads, megabytes>": three numbers in a file. */
static char *peaks_path(const char *isa, int n_threads, uint64_t megabytes) {
    char cpu[128], key[256], file[64];
    snprintf(key, sizeof key, "%s|%s|%d|%llu", cli_cpu_name(cpu, sizeof cpu), isa, n_threads,
             (unsigned long long)megabytes);
    snprintf(file, sizeof file, "peaks-%016llx", (unsigned long long)XXH64(key, strlen(key), 1));
    return cli_cache_path(file);
}

static bool read_peaks(roof_peaks *out, const char *path) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    bool read = fscanf(f, "%lf %lf %lf", &out->read_bytes_per_s, &out->int8_ops_per_s,
                       &out->f32_flops_per_s) == 3;
    fclose(f);
    return read && out->read_bytes_per_s > 0;
}

/* Written aside and renamed, for several processes may do so at once; if it can't be, no harm. */
static void write_peaks(const roof_peaks *p, const char *path) {
    buf aside = {0};
    buf_printf(&aside, "%s.XXXXXX", path);
    int fd = aside.failed ? -1 : mkstemp(aside.data);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f != NULL) {
        fprintf(f, "%.17g %.17g %.17g\n", p->read_bytes_per_s, p->int8_ops_per_s,
                p->f32_flops_per_s);
        if (fclose(f) != 0 || rename(aside.data, path) != 0) remove(aside.data);
    }
    buf_free(&aside);
}

bool cli_peaks(roof_peaks *out, const char *isa, int n_threads, uint64_t working_set_bytes) {
    uint64_t megabytes = 16; /* sizes of a kind share a measurement */
    while (megabytes << 20 < working_set_bytes && megabytes < 1024) megabytes *= 2;
    char *path = peaks_path(isa, n_threads, megabytes);
    if (path == NULL) return false;
    bool known = read_peaks(out, path);
    if (!known &&
        device_cpu_measure(out, isa, n_threads, (size_t)megabytes << 20, NULL) == RIDGE_OK) {
        write_peaks(out, path);
        known = true;
    }
    mem_free(path);
    return known;
}

ridge_status cli_read_stdin(char **out, size_t *size, ridge_error *err) {
    return file_read(out, size, "-", MAX_INPUT, err);
}
