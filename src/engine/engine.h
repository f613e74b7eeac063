/* engine: many requests on one set of weights: step() = schedule, forward, sample, detokenize,
 * emit.
 *
 * Owns the model, device, KV pool, scheduler and every sequence. All functions are called on one
 * thread (engine_loop.h runs them on a thread of its own, behind two queues). No event is lost,
 * doubled or reordered; a sequence ends with exactly one event whose `finish` is not RUNNING.
 */
#ifndef RIDGE_ENGINE_ENGINE_H
#define RIDGE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"
#include "roof/roof.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

typedef struct engine engine;

/* The most that engine_open takes; everything counts from 1. */
#define ENGINE_MAX_THREADS 1024
#define ENGINE_MAX_SEQS 4096
#define ENGINE_MAX_BATCHED_TOKENS (1u << 17)
#define ENGINE_MAX_BLOCK_SIZE 4096
#define ENGINE_MAX_DRAFT 16

typedef struct {
    const char *model_path;          /* a .gguf file */
    int n_threads;                   /* 0: all usable */
    int n_threads_batch;             /* for steps of many tokens (device.h); 0: as n_threads */
    const char *cpu_affinity;        /* processors to pin the threads to (device.h); NULL: none */
    const char *isa;                 /* NULL: best */
    bool precise;                    /* f32 activations, and cache unless kv_type says other */
    dev_kv_type kv_type;             /* of the cache; DEV_KV_AUTO: f16, with precise f32 */
    uint32_t max_num_seqs;           /* running at once */
    uint32_t max_num_batched_tokens; /* per step */
    uint32_t max_model_len;          /* 0: the model's, cut to what the cache holds */
    uint32_t block_size;
    uint64_t kv_cache_bytes; /* 0: from the free memory, the model's context and max_num_seqs */
    bool prefix_caching;     /* what is computed is kept and used again (kv/cache.h) */
    const char *prefix_cache_file;    /* read by engine_open, if it is there and fits, written by
                                         engine_close (engine/prefix_file.h); NULL: none */
    uint64_t prefix_cache_file_bytes; /* at most; 0: 1 GiB */
    bool static_batches; /* for comparison only: as before continuous batching (sched/static.c);
                            without prefix caching and targets for steps */
    /* Targets (sched/pace.h, engine/admission.h), 0: none. */
    double slo_tpot_s; /* per token: prompts leave it to those that decode */
    double slo_ttft_s; /* to the first token */
    bool shed;         /* whoever would miss slo_ttft_s is refused (engine_loop_submit) */
    /* Speculative decoding (speculate.h), by one of: */
    bool speculative_ngram;
    const char *speculative_model;   /* a .gguf file of the same vocabulary; NULL: none */
    uint32_t num_speculative_tokens; /* guesses of each step; 0: as many as pay */
    const log_sink *log;             /* borrowed until engine_close */
    bool checks; /* asserts after each step that blocks, sequences, events and texts are
                    as they must be; slow: by default in debug builds only */
    /* Asked once the model is open, on the thread that opens it, for the peaks of what runs there
     * (weight_bytes: read by one decode step); false, or NULL: the roof is unknown. */
    bool (*peaks)(void *context, const char *isa, int n_threads, uint64_t weight_bytes,
                  roof_peaks *out);
    void *peaks_context;
} engine_params;

engine_params engine_params_default(void);

typedef enum {
    ENGINE_RUNNING,
    ENGINE_STOP,
    ENGINE_LENGTH,
    ENGINE_CANCELLED,
    ENGINE_ERROR /* a step failed, or the model's logits for this request are not numbers */
} engine_finish;

typedef struct {
    const int32_t *prompt; /* [n_prompt >= 1], copied by submit */
    size_t n_prompt;
    uint32_t max_tokens; /* 0: until the context is full */
    uint32_t min_tokens; /* until then neither end-of-generation tokens nor stop strings end it */
    bool ignore_eos;
    bool special; /* control tokens appear in the text */
    bool goes_on; /* the text goes on where the prompt's ends: a space at its beginning is
                     kept, which vocabularies with a space before every text would take
                     for that one; else it is a text of its own */
    sampler_params sampling; /* bias is copied */
    const char *const *stop; /* [n_stop] strings that end the text (not included), copied */
    size_t n_stop;
    const int32_t *stop_ids; /* [n_stop_ids] copied */
    size_t n_stop_ids;
    int priority;        /* lower is earlier */
    uint64_t cache_salt; /* XXH3 of the tenant's salt: prefixes are shared among equals; 0: none */
    bool no_cache;       /* neither takes from the prefix cache nor leaves anything in it */
    bool explain;        /* engine_usage.miss is filled */
    bool prompt_only; /* nothing is sampled: ends with ENGINE_LENGTH once the prompt is computed */
    int prompt_logprobs; /* -1: none; else an event with is_prompt for each prompt token but the
                            first, with this many alternatives (<= SAMPLER_MAX_LOGPROBS) */
    bool follows;        /* another one of its client's request came in just before: it is not shed
                            by itself (engine/admission.h) */
    bool prompt_logits;  /* engine_logits_fn is called for prompt rows (score) */
    void *user;          /* returned in every event */
} engine_request;

engine_request engine_request_default(void); /* greedy, to the end of the context, no logprobs */
/* What the text of the answer comes out of, token by token. */
detokenizer engine_request_detokenizer(const engine_request *r, const tokenizer *t);

/* The steps that one phase of a request took: up to its first token, or after it. */
typedef struct {
    uint32_t n_steps;
    uint32_t n_mixed; /* of them: with prompts of others, too */
    uint64_t n_seqs;  /* in all of them together, itself included */
    double seconds;   /* of all of them */
    double others_s;  /* of that: what the prompts of others added (usage.h) */
    double again_s;   /* of that: computing what a preemption had thrown away */
    double compute_s; /* of that: steps that the arithmetic bounds; the memory bounds the others */
    double roof_s;    /* what they would have taken at the roof; 0: unknown */
} engine_phase;

/* Where a prompt left the longest prefix that the cache knew of its tenant's. The cache goes by
 * blocks: `left_at` is at the end of one. */
typedef struct {
    uint32_t left_at;
    const int32_t *near; /* [n_near] cached tokens that come next there, of all prompts those
                            nearest to this one; lives as long as the event */
    uint32_t n_near;
} engine_miss;

typedef struct {
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* of the prompt, not computed again: the longest prefix found when it
                               was let in for the first time */
    engine_miss miss;       /* with engine_request.explain; else zeros */
    double queue_s, ttft_s,
        decode_s;         /* arrival to first schedule; arrival to first token; first to last */
    double prefill_s;     /* first schedule to first token (with prompt_only: to the last event) */
    uint32_t n_ahead;     /* requests that waited or ran when it came */
    uint32_t n_preempted; /* how often */
    uint32_t draft_tokens, accepted_tokens; /* guesses verified, and how many came true */
    engine_phase prefill, decode; /* prefill_s and decode_s less their seconds: not in any step */
    /* Of the steps that it took part in, all their bytes (weights once per step, and keys and
     * values) and FLOPs by all their time, prompt and answer together: each step's rate, weighted
     * by its time. What others in the same steps did is in it: it says how near the roof the
     * machine was while it served this request. */
    double bytes_per_s, flops_per_s;
    double mbu, mfu; /* the same as parts of the peaks: reads, and int8 operations (precise: f32
                        FLOPs); 0 when the roof is unknown */
} engine_usage;

/* One per sampled token, plus those that only finish. Borrowed until the next engine_step. */
typedef struct {
    uint64_t id;
    void *user;
    bool has_token;    /* a token was sampled */
    bool is_prompt;    /* (only with prompt_logprobs) `token` is that of the prompt at `position` */
    uint32_t position; /* absolute position of the token */
    sampler_result token; /* when has_token or is_prompt */
    const char *text;     /* [n_text] whole UTF-8 characters; may be empty while held back */
    size_t n_text;
    engine_finish finish;     /* ENGINE_RUNNING until the last event */
    int stop_string;          /* the index of the stop string that ended the text; -1: none did */
    const ridge_error *error; /* when ENGINE_ERROR */
    engine_usage usage;       /* when finished; until then of it cached_tokens alone */
    double time_s;            /* clock_now_s at the end of the step: one for all of its events */
} engine_event;

ridge_status engine_open(engine **out, const engine_params *p, ridge_error *err) RIDGE_CHECKED;
void engine_close(engine *e);

/* Refused at once, with the numbers, when it can never fit. */
ridge_status engine_submit(engine *e, const engine_request *r, uint64_t *id,
                           ridge_error *err) RIDGE_CHECKED;
/* The sequence's blocks are free when this returns; its last event (ENGINE_CANCELLED) comes next
 * step. */
void engine_cancel(engine *e, uint64_t id);
/* One iteration; false when there is nothing to do. Events of the step: [*n_events]. */
bool engine_step(engine *e, const engine_event **events, size_t *n_events);

#define ENGINE_STEP_BOUNDS 13
extern const uint32_t engine_step_token_bounds[ENGINE_STEP_BOUNDS];

typedef struct {
    uint64_t n_waiting, n_running;
    /* Of the KV groups together: all; held by running sequences; held by none, but kept; of full
     * groups, given up for others so far. */
    uint64_t kv_blocks, kv_blocks_used, kv_blocks_cached, kv_blocks_evicted;
    uint64_t kv_bytes_cached; /* in kv_blocks_cached */
    /* In the last step, of the groups together: room in the blocks that sequences hold, in tokens,
     * and the tokens in it; sums of both over all steps. */
    uint64_t kv_tokens_reserved, kv_tokens_used;
    double kv_token_steps_reserved, kv_token_steps_used;
    uint64_t prefix_queries, prefix_hits; /* tokens of prompts looked up, and found */
    uint64_t steps, preemptions;
    uint64_t prompt_tokens, generation_tokens; /* each counts once, however often it is computed */
    uint64_t prompt_tokens_cached,
        prompt_tokens_computed;           /* of prompt_tokens: the one or the other */
    uint64_t finished[ENGINE_ERROR + 1];  /* requests by engine_finish */
    double step_s, device_s;              /* time spent in steps; of that in the device */
    double flops, weight_bytes, kv_bytes; /* of all steps */
    double roof_s; /* what they would have taken at the roof; 0 while the peaks are unknown */
    double memory_bound_s, compute_bound_s, unknown_bound_s; /* step_s, by what bounds the steps */
    uint64_t step_tokens[ENGINE_STEP_BOUNDS + 1]; /* steps by their tokens: at most each bound */
    uint64_t step_tokens_sum;
    /* Answers that met all the targets there are, and others (errors too). Cancelled requests, and
     * all without a target, are neither. */
    uint64_t slo_met, slo_missed;
    /* Predictions of the time of steps, and with slo_ttft_s of first tokens: how many, and the sum
     * of how far they were off, |predicted - taken| / taken. */
    uint64_t step_predictions, ttft_predictions;
    double step_error_sum, ttft_error_sum;
    uint64_t shed; /* requests refused for slo_ttft_s (engine_loop_stats) */
    /* Speculative decoding: runs of guesses verified, their tokens, how many came true, and how
     * often the one at each place of its run did. */
    uint64_t drafts, draft_tokens, accepted_tokens, accepted_at[ENGINE_MAX_DRAFT];
    double draft_saved_s; /* of step_s, by reckoning; negative: lost */
    double turned_s;      /* clock_now_s when these were taken (engine_loop: its last turn) */
} engine_stats;

void engine_get_stats(const engine *e, engine_stats *out);
size_t engine_n_waiting(const engine *e);
size_t engine_n_running(const engine *e);

/* Called for every row with prompt_logits, in order of position: logits [n_vocab] after token
 * `position`. */
typedef void (*engine_logits_fn)(void *context, uint64_t id, uint32_t position,
                                 const float *logits);
void engine_on_logits(engine *e, engine_logits_fn fn, void *context);

const tokenizer *engine_tokenizer(const engine *e);
const char *engine_chat_template(const engine *e); /* from the file; NULL: none */
int32_t engine_n_vocab(const engine *e);
uint32_t engine_max_model_len(const engine *e);
/* "fp_" and 16 hexadecimal digits, XXH3 over what decides an answer's bits: the version, the ISA
 * path, the KV cache's type, precise; of each file all that stands before the data (every metadata
 * key and value, the table of tensors); of each tensor the first, the middle and the last 4 KiB
 * (all of one up to 12 KiB). Not the tensors' other bytes: opening a file must not read all of it.
 */
const char *engine_fingerprint(const engine *e);
const char *engine_isa(const engine *e); /* "avx512" */
int engine_n_threads(const engine *e);   /* the larger of the two counts */
device *engine_device(const engine *e);  /* for what else is measured on it, between steps */
uint64_t engine_n_parameters(const engine *e);
uint64_t engine_weight_bytes(const engine *e); /* bytes of weights that one decode step reads */
uint64_t engine_kv_bytes_per_token(const engine *e);
/* The peaks that usage and stats are measured by: reads, and the operations of linear layers (int8;
 * precise: f32); 0: unknown. */
void engine_peaks(const engine *e, double *bytes_per_s, double *flops_per_s);

typedef struct {
    uint32_t block_size, n_blocks; /* n_blocks of the group that keeps the whole context */
    const char *type;              /* "f16" */
    bool prefix_caching;
} engine_cache_info;
engine_cache_info engine_get_cache_info(const engine *e);

/* What the steps since the last call did, summed. */
typedef struct {
    double flops, weight_bytes, kv_bytes, seconds;
    double sample_s; /* of these seconds, in the sampler */
    uint64_t n_steps;
} engine_account;
void engine_account_take(engine *e, engine_account *out);
/* What each kind of operation took since the last call, most seconds first: up to max rows, their
 * number returned. */
size_t engine_profile_take(engine *e, dev_profile_row *out, size_t max);

/* Asserts, between steps: every block is free or held by the table of one running sequence, as
 * often as its count says; the queues are in order; the live requests are those of the scheduler.
 */
void engine_check(const engine *e);

#endif
