/* ridge bench: prefill and decode against the machine's measured roof; --kernels: the products
 * alone (bench_kernels).
 *
 * Prefill: one prompt of --prompt random tokens, until its first token. Decode: --batch sequences
 * at a context of --prompt tokens, --gen steps; only steps in which every sequence decodes are
 * timed. Every figure is the median of --repeat runs. mbu counts the weights once per step, and the
 * KV that is read. In between the steps the machine's peaks are measured, for a quarter of their
 * time: what a result is a part of are the means of its own run.
 *
 * With --profile or --svg each result keeps what the device says of its operations. With --sampler
 * decode runs once for each way to draw a token; without, tokens are the likeliest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench_kernels.h"
#include "cli/bench_report.h"
#include "cli/engine_args.h"
#include "cli/machine.h"

#define MAX_BATCHES 16
#define MAX_REPEAT 101
#define MAX_BATCH 4096
#define MAX_ROWS 64 /* kinds of operation in a profile */
#define LEAST_READ ((size_t)1 << 20)

typedef struct {
    engine_args engine;
    uint64_t prompt, gen, repeat;
    const char *batch_list, *svg;
    bool json, profile, kernels, sampler;
    uint64_t kernel_bytes;
    uint32_t batches[MAX_BATCHES], max_batch;
    size_t n_batches;
} bench_args;

/* How --sampler draws tokens: what requests ask for, one thing at a time. */
typedef struct {
    const char *name;
    float temperature;
    int32_t top_k;
    float top_p, min_p, frequency_penalty;
    int n_logprobs;
} bench_sampling;

static const bench_sampling samplings[] = {
    {"greedy", 0, 0, 1, 0, 0, -1},
    {"temperature 0.8", 0.8f, 0, 1, 0, 0, -1},
    {"top_k 40, top_p 0.95", 0.8f, 40, 0.95f, 0, 0, -1},
    {"top_p 0.95", 0.8f, 0, 0.95f, 0, 0, -1},
    {"min_p 0.05", 0.8f, 0, 1, 0.05f, 0, -1},
    {"logprobs 20", 1, 0, 1, 0, 0, 20},
    {"penalties", 0.8f, 0, 1, 0, 0.3f, -1},
};
#define N_SAMPLINGS (sizeof samplings / sizeof *samplings)
#define MAX_RESULTS (1 + MAX_BATCHES * N_SAMPLINGS)

static bool wants_profile(const bench_args *a) {
    return a->profile || a->svg != NULL;
}

static bool parse_batches(bench_args *a) {
    const char *p = a->batch_list;
    while (a->n_batches < MAX_BATCHES) {
        char *end;
        unsigned long v = strtoul(p, &end, 10);
        if (end == p || *p == '-' || v < 1 || v > MAX_BATCH) return false;
        a->batches[a->n_batches++] = (uint32_t)v;
        if (v > a->max_batch) a->max_batch = (uint32_t)v;
        if (*end == '\0') return true;
        if (*end != ',') return false;
        p = end + 1;
    }
    return false;
}

/* Submits n sequences of random tokens (always the same ones), each to answer max_tokens. */
static ridge_status submit_all(engine *e, uint32_t n, uint64_t n_prompt, uint64_t max_tokens,
                               const bench_sampling *sampling, ridge_error *err) {
    int32_t *ids = mem_zalloc(n_prompt, sizeof *ids);
    if (ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "prompt");
    ridge_status status = RIDGE_OK;
    uint32_t draw = 12345;
    for (uint32_t s = 0; s < n && status == RIDGE_OK; s++) {
        for (uint64_t i = 0; i < n_prompt; i++) {
            draw = draw * 1664525u + 1013904223u; /* Numerical Recipes */
            ids[i] = (int32_t)((draw >> 8) % (uint32_t)engine_n_vocab(e));
        }
        engine_request r = engine_request_default();
        r.prompt = ids;
        r.n_prompt = n_prompt;
        r.max_tokens = (uint32_t)max_tokens;
        r.ignore_eos = true;
        r.sampling.temperature = sampling->temperature;
        r.sampling.top_k = sampling->top_k;
        r.sampling.top_p = sampling->top_p;
        r.sampling.min_p = sampling->min_p;
        r.sampling.frequency_penalty = sampling->frequency_penalty;
        r.sampling.n_logprobs = sampling->n_logprobs;
        r.sampling.seed = s;
        uint64_t id;
        status = engine_submit(e, &r, &id, err);
    }
    mem_free(ids);
    return status;
}

/* What is measured, and what it is measured by. */
typedef struct {
    engine *e;
    const bench_args *args;
    peaks_meter meter;
} bench;

/* One step; counts tokens and ends. *seconds is its wall time. */
static ridge_status timed_step(engine *e, double *seconds, size_t *n_tokens, size_t *n_ended,
                               ridge_error *err) {
    const engine_event *events;
    size_t n = 0;
    double start = clock_now_s();
    if (!engine_step(e, &events, &n)) return RIDGE_FAIL(err, RIDGE_EIO, "the engine stopped early");
    *seconds = clock_now_s() - start;
    *n_tokens = *n_ended = 0;
    for (size_t i = 0; i < n; i++) {
        *n_tokens += events[i].has_token;
        *n_ended += events[i].finish != ENGINE_RUNNING;
        if (events[i].finish == ENGINE_ERROR)
            return RIDGE_FAIL(err, events[i].error->code, "%s", events[i].error->text);
    }
    return RIDGE_OK;
}

/* A step that counts, and after it the peaks. */
static ridge_status measured_step(bench *b, bench_result *out, size_t *n_tokens, size_t *n_ended,
                                  ridge_error *err) {
    double seconds;
    RIDGE_TRY(timed_step(b->e, &seconds, n_tokens, n_ended, err));
    out->seconds += seconds;
    peaks_meter_run(&b->meter, PEAKS_SHARE * seconds);
    return RIDGE_OK;
}

/* What was counted until now is not the run's. n_tokens: of its steps. */
static void begin_count(bench *b, uint64_t n_tokens) {
    engine_account account;
    dev_profile_row row;
    engine_account_take(b->e, &account);
    engine_profile_take(b->e, &row, 1);
    peaks_meter_take(&b->meter);
    b->meter.n_tokens = n_tokens < UINT32_MAX ? (uint32_t)n_tokens : UINT32_MAX;
    peaks_meter_run(&b->meter, PEAKS_BEFORE_S);
}

/* The sampler's row, among those of the device. */
static void add_sampler_row(bench_result *out, uint64_t n_steps) {
    size_t at = out->n_rows++;
    for (; at > 0 && out->rows[at - 1].seconds < out->sample_s; at--)
        out->rows[at] = out->rows[at - 1];
    out->rows[at] = (dev_profile_row){.name = "sampler", .n = n_steps, .seconds = out->sample_s};
}

static void end_count(bench *b, bench_result *out) {
    engine_account account;
    engine_account_take(b->e, &account);
    out->peaks = peaks_meter_take(&b->meter);
    out->flops = account.flops;
    out->bytes = account.weight_bytes + account.kv_bytes;
    out->sample_s = account.sample_s;
    if (out->rows == NULL) return;
    out->n_rows = engine_profile_take(b->e, out->rows, MAX_ROWS - 1);
    add_sampler_row(out, account.n_steps);
}

static ridge_status run_prefill(bench *b, bench_result *out, ridge_error *err) {
    size_t tokens, ended = 0;
    RIDGE_TRY(submit_all(b->e, 1, b->args->prompt, 1, samplings, err));
    begin_count(b, b->args->prompt);
    out->tokens = b->args->prompt;
    while (ended == 0) RIDGE_TRY(measured_step(b, out, &tokens, &ended, err));
    end_count(b, out);
    return RIDGE_OK;
}

/* Tokens that each sequence may answer. While the last prompts are still being computed the first
 * sequences already do: what counts starts when all of them decode. */
static uint64_t answer_tokens(const bench_args *a, uint32_t batch) {
    return a->gen + batch * a->prompt / a->engine.max_num_batched_tokens + 2 + batch;
}

/* Said before minutes of prefill. */
static ridge_status check_fits(const engine *e, const bench_args *a, ridge_error *err) {
    uint64_t context = engine_max_model_len(e);
    engine_stats stats;
    engine_get_stats(e, &stats);
    if (a->prompt >= context)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--prompt: %llu tokens and an answer do not fit a context of %llu",
                          (unsigned long long)a->prompt, (unsigned long long)context);
    for (size_t i = 0; i < a->n_batches && a->gen > 0; i++) {
        uint64_t answer = a->gen < context ? answer_tokens(a, a->batches[i]) : a->gen;
        uint64_t n = answer < context ? a->prompt + answer : answer;
        uint64_t cache = stats.kv_blocks * a->engine.block_size;
        if (n > context)
            return RIDGE_FAIL(
                err, RIDGE_EINVAL,
                "decode of %u: a prompt of %llu and up to %llu tokens of answer do not "
                "fit a context of %llu: a smaller --prompt, --gen or --batch",
                a->batches[i], (unsigned long long)a->prompt, (unsigned long long)answer,
                (unsigned long long)context);
        if (n * a->batches[i] > cache)
            return RIDGE_FAIL(err, RIDGE_EINVAL,
                              "decode of %u: contexts of %llu tokens, but the KV cache holds %llu "
                              "together: a larger --kv-cache-memory-bytes or a smaller --batch",
                              a->batches[i], (unsigned long long)n, (unsigned long long)cache);
    }
    return RIDGE_OK;
}

static ridge_status run_decode(bench *b, uint32_t batch, const bench_sampling *sampling,
                               bench_result *out, ridge_error *err) {
    const bench_args *a = b->args;
    size_t tokens, ended = 0, n_ended = 0;
    double seconds;
    RIDGE_TRY(submit_all(b->e, batch, a->prompt, answer_tokens(a, batch), sampling, err));
    for (tokens = 0; tokens < batch;) RIDGE_TRY(timed_step(b->e, &seconds, &tokens, &ended, err));
    begin_count(b, batch);
    for (uint64_t i = 0; i < a->gen; i++) {
        RIDGE_TRY(measured_step(b, out, &tokens, &ended, err));
        n_ended += ended;
        if (tokens != batch)
            return RIDGE_FAIL(err, RIDGE_EIO, "%zu of %u sequences decoded: the cache is too small",
                              tokens, batch);
        out->tokens += tokens;
    }
    end_count(b, out);
    while (n_ended < batch) {
        RIDGE_TRY(timed_step(b->e, &seconds, &tokens, &ended, err));
        n_ended += ended;
    }
    return RIDGE_OK;
}

static int by_seconds(const void *x, const void *y) {
    double a = ((const bench_result *)x)->seconds, b = ((const bench_result *)y)->seconds;
    return (a > b) - (a < b);
}

static ridge_status run_once(bench *b, uint32_t batch, const bench_sampling *sampling,
                             bench_result *out, ridge_error *err) {
    *out = (bench_result){
        .decode = batch > 0, .batch = batch > 0 ? batch : 1, .sampling = sampling->name};
    if (wants_profile(b->args)) {
        out->rows = mem_zalloc(MAX_ROWS, sizeof *out->rows);
        if (out->rows == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "profile");
    }
    return batch == 0 ? run_prefill(b, out, err) : run_decode(b, batch, sampling, out, err);
}

/* batch 0: prefill. The median of the repeats; one more run before them warms caches and clocks up.
 */
static ridge_status run_median(bench *b, uint32_t batch, const bench_sampling *sampling,
                               bench_result *out, ridge_error *err) {
    uint64_t repeat = b->args->repeat;
    bench_result runs[MAX_REPEAT + 1] = {0};
    ridge_status status = RIDGE_OK;
    uint64_t n = 0, middle = 1 + repeat / 2;
    while (n <= repeat && status == RIDGE_OK)
        status = run_once(b, batch, sampling, &runs[n++], err);
    if (status == RIDGE_OK) {
        qsort(runs + 1, repeat, sizeof *runs, by_seconds);
        *out = runs[middle];
        runs[middle].rows = NULL;
    }
    for (uint64_t i = 0; i < n; i++) mem_free(runs[i].rows);
    return status;
}

static ridge_status run_kernels(const bench_args *a, ridge_error *err) {
    bench_kernels_args k = {.bytes = a->kernel_bytes,
                            .batches = a->batches,
                            .n_batches = a->n_batches,
                            .max_batch = a->max_batch,
                            .repeat = a->repeat,
                            .json = a->json};
    engine_args_device(&a->engine, &k.device);
    return bench_kernels(&k, err);
}

static ridge_status run_phases(bench *b, bench_result *results, size_t *n, ridge_error *err) {
    const bench_args *a = b->args;
    size_t n_samplings = a->sampler ? N_SAMPLINGS : 1;
    RIDGE_TRY(run_median(b, 0, samplings, &results[(*n)++], err));
    for (size_t i = 0; i < a->n_batches * n_samplings && a->gen > 0; i++)
        RIDGE_TRY(run_median(b, a->batches[i / n_samplings], &samplings[i % n_samplings],
                             &results[(*n)++], err));
    return RIDGE_OK;
}

/* What is read in between steps is as large as what a step reads, up to PEAKS_MAX_READ. */
static ridge_status measure_phases(engine *e, const bench_args *a, bench_result *results, size_t *n,
                                   ridge_error *err) {
    uint64_t step = engine_weight_bytes(e);
    size_t size = step < LEAST_READ       ? LEAST_READ
                  : step > PEAKS_MAX_READ ? PEAKS_MAX_READ
                                          : (size_t)step;
    void *data = mem_map(size);
    if (data == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%zu bytes to be read", size);
    bench b = {.e = e, .args = a};
    peaks_meter_open(&b.meter, engine_device(e), data, size);
    peaks_meter_fill(&b.meter, data);
    ridge_status status = run_phases(&b, results, n, err);
    mem_unmap(data, size);
    return status;
}

static ridge_status run_model(bench_args *a, const char *model, ridge_error *err) {
    engine *e = NULL;
    machine_peaks best;
    bench_result results[MAX_RESULTS] = {0};
    size_t n = 0;
    ridge_status status = engine_args_open(&e, &a->engine, model, err);
    if (status == RIDGE_OK) status = check_fits(e, a, err);
    if (status == RIDGE_OK && a->svg != NULL) status = cli_check_output(a->svg, err);
    if (status == RIDGE_OK &&
        !machine_peaks_get(&best, engine_isa(e), engine_n_threads(e), engine_weight_bytes(e), true))
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "cannot measure the machine's peaks");
    if (status == RIDGE_OK) status = measure_phases(e, a, results, &n, err);
    for (size_t i = 0; i < n && status == RIDGE_OK; i++)
        best = roof_peaks_higher(&best, &results[i].peaks);
    const bench_report report = {.e = e,
                                 .model = model,
                                 .best = &best,
                                 .n_prompt = a->prompt,
                                 .profile = a->profile,
                                 .sampler = a->sampler,
                                 .results = results,
                                 .n_results = n};
    if (status == RIDGE_OK && a->svg != NULL) status = bench_report_svg(&report, a->svg, err);
    if (status == RIDGE_OK && a->json)
        status = bench_report_json(&report, err);
    else if (status == RIDGE_OK)
        bench_report_table(&report);
    for (size_t i = 0; i < n; i++) mem_free(results[i].rows);
    engine_close(e);
    return status;
}

static ridge_status check(bench_args *a, ridge_error *err) {
    uint32_t n;
    if (a->batch_list == NULL) a->batch_list = a->kernels ? "1,4,16,32,512" : "1";
    if (!parse_batches(a))
        return RIDGE_FAIL(
            err, RIDGE_EINVAL,
            "--batch: expected up to %d numbers from 1 to %d, such as 1,4,16, found '%s'",
            MAX_BATCHES, MAX_BATCH, a->batch_list);
    RIDGE_TRY(cli_whole(&n, "repeat", a->repeat, 1, MAX_REPEAT, err));
    RIDGE_TRY(cli_whole(&n, "prompt", a->prompt, 1, UINT32_MAX, err));
    if (a->engine.max_num_seqs < a->max_batch) a->engine.max_num_seqs = a->max_batch;
    RIDGE_TRY(engine_args_check(&a->engine, err));
    if (a->kernels && (a->engine.precise || a->svg != NULL || a->profile || a->sampler))
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "--precise, --svg, --profile and --sampler are of a MODEL, not of "
                          "--kernels");
    return RIDGE_OK;
}

int cmd_bench(int argc, char **argv) {
    bench_args a = {.engine = engine_args_default(),
                    .prompt = 512,
                    .gen = 128,
                    .repeat = 3,
                    .kernel_bytes = (uint64_t)1 << 30};
    a.engine.prefix_caching = false; /* every run's prompts are the same */
    const cli_option options[] = {
        {"prompt", CLI_UINT, &a.prompt, "prompt tokens, and the context of decode (default 512)"},
        {"gen", CLI_UINT, &a.gen, "decode steps (default 128; 0: prefill only)"},
        {"batch", CLI_STRING, &a.batch_list,
         "sequences decoding together: a list such as 1,4,16 (default 1)"},
        {"repeat", CLI_UINT, &a.repeat, "runs, of which the median counts (default 3)"},
        {"profile", CLI_FLAG, &a.profile,
         "what each kind of operation takes, and how far from its roof"},
        {"svg", CLI_STRING, &a.svg, "write the roofline with every operation on it to this file"},
        {"sampler", CLI_FLAG, &a.sampler,
         "decode with each way to draw a token, for the sampler's share of a step"},
        {"kernels", CLI_FLAG, &a.kernels,
         "no model: the products alone, of every type (--batch 1,4,16,32,512)"},
        {"bytes", CLI_BYTES, &a.kernel_bytes, "random weights for --kernels (default 1G)"},
        {"json", CLI_FLAG, &a.json, "print one JSON document"},
        ENGINE_OPTIONS(&a.engine),
    };
    static const char usage[] = "bench MODEL [options] | bench --kernels [options]";
    int n_args,
        parsed = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (parsed == CLI_OK) parsed = cli_count(usage, argv, n_args, !a.kernels, !a.kernels);
    if (parsed != CLI_OK) return parsed < 0 ? CLI_OK : parsed;
    ridge_error err = {0};
    if (check(&a, &err) != RIDGE_OK) return cli_refuse(&err);
    ridge_status status = a.kernels ? run_kernels(&a, &err) : run_model(&a, argv[0], &err);
    return status == RIDGE_OK ? CLI_OK : cli_fail(&err);
}
