/* server/metrics_write: the text of /metrics. See metrics.h.
 *
 * Prometheus's text format 0.0.4: per family a HELP and a TYPE line, then its series. A counter's
 * name ends in _total, in its TYPE line too; vLLM has one histogram whose name does.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/metrics.h"

#define MIN_RATE_S 5.0 /* rates are over at least so long, where there has been so much */

typedef struct {
    buf *out;
    const char *labels;
} writer;

/* Most values are whole numbers, and printf takes its time over them. */
static void put_whole(buf *b, uint64_t x) {
    char text[24], *p = text + sizeof text;
    *--p = '\n';
    *--p = '0';
    *--p = '.';
    do *--p = (char)('0' + x % 10);
    while ((x /= 10) > 0);
    buf_append(b, p, (size_t)(text + sizeof text - p));
}

static void put_number(buf *b, double x) {
    if (!isfinite(x)) x = 0;
    if (x >= 0 && x < 1e15 && x == floor(x))
        put_whole(b, (uint64_t)x);
    else
        buf_printf(b, "%.15g\n", x);
}

static void put_all(buf *b, const char *const *parts, size_t n) {
    for (size_t i = 0; i < n; i++) buf_puts(b, parts[i]);
}
#define PUT(b, ...)                                                                                \
    put_all(b, (const char *const[]){__VA_ARGS__},                                                 \
            sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *))

static void family(const writer *w, const char *name, const char *type, const char *help) {
    PUT(w->out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

/* extra: more labels, NULL: none. */
static void series(const writer *w, const char *name, const char *extra, double x) {
    PUT(w->out, name, "{", w->labels, extra != NULL ? "," : "", extra != NULL ? extra : "", "} ");
    put_number(w->out, x);
}

static void gauge(const writer *w, const char *name, const char *help, double x) {
    family(w, name, "gauge", help);
    series(w, name, NULL, x);
}

static void counter(const writer *w, const char *name, const char *help, double x) {
    family(w, name, "counter", help);
    series(w, name, NULL, x);
}

static void write_histogram(const writer *w, const char *name, const char *help,
                            const histogram *h) {
    uint64_t n = 0;
    family(w, name, "histogram", help);
    for (size_t i = 0; i <= h->n_bounds; i++) {
        n += h->counts[i];
        PUT(w->out, name, "_bucket{", w->labels, ",le=\"",
            i < h->n_bounds ? h->bound_texts[i] : "+Inf", "\"} ");
        put_whole(w->out, n);
    }
    PUT(w->out, name, "_sum{", w->labels, "} ");
    put_number(w->out, h->sum);
    PUT(w->out, name, "_count{", w->labels, "} ");
    put_whole(w->out, n);
}

/* ---- vLLM's ---- */

static void write_queues(const writer *w, const engine_stats *s) {
    gauge(w, "vllm:num_requests_running", "Sequences in the running batch.", (double)s->n_running);
    gauge(w, "vllm:num_requests_waiting", "Sequences that wait to run.", (double)s->n_waiting);
    family(w, "vllm:num_requests_waiting_by_reason", "gauge", "Sequences that wait, by reason.");
    series(w, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", (double)s->n_waiting);
    series(w, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", 0);
    family(w, "vllm:engine_sleep_state", "gauge", "1 for the state that the engine is in.");
    series(w, "vllm:engine_sleep_state", "sleep_state=\"awake\"", 1);
    series(w, "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"", 0);
    series(w, "vllm:engine_sleep_state", "sleep_state=\"discard_all\"", 0);
    counter(w, "vllm:num_preemptions_total", "Sequences sent back to wait for want of blocks.",
            (double)s->preemptions);
}

/* Both have labels of their own in place of the usual ones. */
static void write_infos(const writer *w, const metrics *m) {
    family(w, "vllm:lora_requests_info", "gauge", "Adapters in use, at this unix time: none.");
    buf_puts(w->out, "vllm:lora_requests_info{max_lora=\"0\",waiting_lora_adapters=\"\","
                     "running_lora_adapters=\"\"} ");
    put_number(w->out, m->opened_s);
    family(w, "vllm:cache_config_info", "gauge", "The KV cache, in the labels.");
    if (!m->ready) return; /* not known yet, and a series that changes would be another one */
    buf_printf(w->out,
               "vllm:cache_config_info{block_size=\"%u\",cache_dtype=\"%s\","
               "enable_prefix_caching=\"%s\",num_gpu_blocks=\"%u\",engine=\"0\"} 1.0\n",
               m->cache.block_size, m->cache.type, m->cache.prefix_caching ? "True" : "False",
               m->cache.n_blocks);
}

static double part_of(double x, double whole) {
    return whole > 0 ? x / whole : 0;
}

static void write_cache(const writer *w, const engine_stats *s) {
    gauge(w, "vllm:kv_cache_usage_perc", "The part of the KV cache's blocks in use, 0 to 1.",
          part_of((double)s->kv_blocks_used, (double)s->kv_blocks));
    counter(w, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            (double)s->prefix_queries);
    counter(w, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
            (double)s->prefix_hits);
    static const char *const absent[] = {"vllm:external_prefix_cache_queries_total",
                                         "vllm:external_prefix_cache_hits_total",
                                         "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        counter(w, absent[i], "Of a cache that this server has not got.", 0);
}

static void write_tokens(const writer *w, const engine_stats *s) {
    double prompt = (double)s->prompt_tokens, cached = (double)s->prompt_tokens_cached;
    counter(w, "vllm:prompt_tokens_total", "Prompt tokens processed, cached ones too.", prompt);
    counter(w, "vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
            cached);
    family(w, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens, by their source.");
    series(w, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"",
           (double)s->prompt_tokens_computed);
    series(w, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", cached);
    series(w, "vllm:prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", 0);
    counter(w, "vllm:generation_tokens_total", "Tokens generated.", (double)s->generation_tokens);
}

static void write_speculation(const writer *w, const engine_stats *s) {
    static const char name[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    counter(w, "vllm:spec_decode_num_drafts_total", "Drafts verified.", (double)s->drafts);
    counter(w, "vllm:spec_decode_num_draft_tokens_total", "Tokens drafted.",
            (double)s->draft_tokens);
    counter(w, "vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.",
            (double)s->accepted_tokens);
    family(w, name, "counter", "Drafted tokens accepted, by their place in the draft.");
    for (int i = 0; i < ENGINE_MAX_DRAFT; i++) {
        char position[24];
        snprintf(position, sizeof position, "position=\"%d\"", i);
        series(w, name, position, (double)s->accepted_at[i]);
    }
    double accepted = (double)s->accepted_tokens, drafts = (double)s->drafts;
    gauge(w, "ridge:speculation_acceptance_rate", "The part of drafted tokens accepted, 0 to 1.",
          part_of(accepted, (double)s->draft_tokens));
    gauge(w, "ridge:speculation_tokens_per_draft",
          "Tokens of a sequence per step that verified a draft of it: 1 and those accepted.",
          drafts > 0 ? 1 + part_of(accepted, drafts) : 0);
    gauge(w, "ridge:speculation_saved_seconds",
          "What drafts have saved of the steps' time so far, by reckoning; negative: cost.",
          s->draft_saved_s);
    gauge(w, "ridge:speculation_gain",
          "The steps' time so far without drafts, by reckoning, over what it was.",
          s->step_s > 0 ? 1 + s->draft_saved_s / s->step_s : 1);
}

static void write_endings(const writer *w, const metrics *m, const engine_stats *s) {
    static const struct {
        const char *label;
        engine_finish finish;
    } reasons[] = {{"finished_reason=\"stop\"", ENGINE_STOP},
                   {"finished_reason=\"length\"", ENGINE_LENGTH},
                   {"finished_reason=\"abort\"", ENGINE_CANCELLED},
                   {"finished_reason=\"error\"", ENGINE_ERROR}};
    family(w, "vllm:request_success_total", "counter", "Sequences that ended, by how.");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        series(w, "vllm:request_success_total", reasons[i].label,
               (double)m->finished[reasons[i].finish]);
    series(w, "vllm:request_success_total", "finished_reason=\"repetition\"", 0);
    counter(w, "vllm:corrupted_requests_total", "Sequences with a logit that was no number.", 0);
    family(w, "vllm:admission_rejections_total", "counter", "Requests answered with 429.");
    series(w, "vllm:admission_rejections_total", "reason=\"queue_full\"", (double)m->n_queue_full);
    series(w, "vllm:admission_rejections_total", "reason=\"slo\"", (double)s->shed);
}

static void write_histograms(const writer *w, const metrics *m, const engine_stats *s) {
    const struct {
        const char *name, *help;
        const histogram *h;
    } all[] = {
        {"vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
         &m->ttft},
        {"vllm:inter_token_latency_seconds", "Between two steps that gave a sequence tokens.",
         &m->itl},
        {"vllm:request_time_per_output_token_seconds",
         "From first to last token, per token after the first.", &m->tpot},
        {"vllm:e2e_request_latency_seconds", "From arrival to the last token.", &m->e2e},
        {"vllm:request_queue_time_seconds", "From the queue's end to the first step.", &m->queue},
        {"vllm:request_inference_time_seconds", "From the first step to the last token.",
         &m->inference},
        {"vllm:request_prefill_time_seconds", "From the first step to the first token.",
         &m->prefill},
        {"vllm:request_decode_time_seconds", "From the first token to the last.", &m->decode},
        {"vllm:request_prompt_tokens", "Tokens in the prompt.", &m->n_prompt},
        {"vllm:request_generation_tokens", "Tokens generated.", &m->n_generated},
        {"vllm:request_max_num_generation_tokens", "The longest of a prompt's choices, in tokens.",
         &m->n_longest},
        {"vllm:request_params_max_tokens", "The most tokens that may be generated.", &m->n_allowed},
        {"vllm:request_prefill_kv_computed_tokens", "Prompt tokens less the cached ones.",
         &m->n_computed},
        {"vllm:request_params_n", "Choices asked for.", &m->n_choices},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        write_histogram(w, all[i].name, all[i].help, all[i].h);
    double bounds[ENGINE_STEP_BOUNDS];
    for (size_t i = 0; i < ENGINE_STEP_BOUNDS; i++) bounds[i] = engine_step_token_bounds[i];
    histogram steps;
    histogram_init(&steps, bounds, ENGINE_STEP_BOUNDS);
    memcpy(steps.counts, s->step_tokens, sizeof s->step_tokens);
    steps.sum = (double)s->step_tokens_sum;
    write_histogram(w, "vllm:iteration_tokens_total", "Tokens computed in a step.", &steps);
}

/* Names that vLLM has given up, and that routers and dashboards of before still read. */
static void write_legacy(const writer *w, const metrics *m, const engine_stats *s) {
    double usage = part_of((double)s->kv_blocks_used, (double)s->kv_blocks);
    gauge(w, "vllm:gpu_cache_usage_perc", "Now vllm:kv_cache_usage_perc.", usage);
    gauge(w, "vllm:cpu_cache_usage_perc", "Of a cache that this server has not got.", 0);
    gauge(w, "vllm:num_requests_swapped", "Sequences swapped out: none ever.", 0);
    double queries = (double)s->prefix_queries, hits = (double)s->prefix_hits;
    counter(w, "vllm:gpu_prefix_cache_queries_total", "Now vllm:prefix_cache_queries_total.",
            queries);
    counter(w, "vllm:gpu_prefix_cache_hits_total", "Now vllm:prefix_cache_hits_total.", hits);
    gauge(w, "vllm:gpu_prefix_cache_hit_rate", "Hits per query since the start, 0 to 1.",
          part_of(hits, queries));
    write_histogram(w, "vllm:time_per_output_token_seconds",
                    "Now vllm:inter_token_latency_seconds.", &m->itl);
}

/* ---- ridge's ---- */

static metrics_mark mark_of(const engine_stats *s, double now_s) {
    return (metrics_mark){now_s, s->flops, s->weight_bytes + s->kv_bytes, s->step_s, s->roof_s};
}

static void write_rates(const writer *w, metrics *m, const engine_stats *s, double now_s) {
    metrics_mark now = mark_of(s, now_s);
    if (now_s - m->newer.time_s >= MIN_RATE_S) {
        m->older = m->newer;
        m->newer = now;
    }
    double step_s = now.step_s - m->older.step_s;
    double flops = part_of(now.flops - m->older.flops, step_s);
    double bytes = part_of(now.bytes - m->older.bytes, step_s);
    gauge(w, "ridge:achieved_flops_per_second",
          "Operations per second spent in steps, since the scrape before (5 s back at least).",
          flops);
    gauge(w, "ridge:achieved_bytes_per_second",
          "Bytes of weights and KV cache per second spent in steps, likewise.", bytes);
    gauge(w, "ridge:mfu", "Achieved operations as a part of the peak; 0 while that is unknown.",
          part_of(flops, m->peak_flops_per_s));
    gauge(w, "ridge:mbu", "Achieved bytes as a part of the peak; 0 while that is unknown.",
          part_of(bytes, m->peak_bytes_per_s));
    gauge(w, "ridge:roof_utilization",
          "The roofline's time of the steps as a part of theirs, likewise.",
          part_of(now.roof_s - m->older.roof_s, step_s));
    gauge(w, "ridge:peak_flops_per_second", "The machine's peak; 0: not measured.",
          m->peak_flops_per_s);
    gauge(w, "ridge:peak_bytes_per_second", "The machine's peak of reads; 0: not measured.",
          m->peak_bytes_per_s);
}

static void write_steps(const writer *w, const engine_stats *s) {
    counter(w, "ridge:steps_total", "Steps of the engine.", (double)s->steps);
    family(w, "ridge:step_seconds_total", "counter",
           "Seconds in steps, by what bounds them at the roof.");
    series(w, "ridge:step_seconds_total", "bound=\"memory\"", s->memory_bound_s);
    series(w, "ridge:step_seconds_total", "bound=\"compute\"", s->compute_bound_s);
    series(w, "ridge:step_seconds_total", "bound=\"unknown\"", s->unknown_bound_s);
    counter(w, "ridge:roof_seconds_total", "What the steps would have taken at the roof.",
            s->roof_s);
    counter(w, "ridge:flops_total", "Operations of the steps.", s->flops);
    family(w, "ridge:bytes_total", "counter", "Bytes that the steps had to move, by what.");
    series(w, "ridge:bytes_total", "kind=\"weights\"", s->weight_bytes);
    series(w, "ridge:bytes_total", "kind=\"kv_cache\"", s->kv_bytes);
}

static void write_promises(const writer *w, const engine_stats *s) {
    family(w, "ridge:slo_requests_total", "counter", "Sequences that met their targets, or not.");
    series(w, "ridge:slo_requests_total", "met=\"true\"", (double)s->slo_met);
    series(w, "ridge:slo_requests_total", "met=\"false\"", (double)s->slo_missed);
    counter(w, "ridge:step_predictions_total", "Steps whose time was predicted.",
            (double)s->step_predictions);
    counter(w, "ridge:step_prediction_error_total",
            "Sum of how far each prediction was off, as a part of the time that the step took.",
            s->step_error_sum);
    counter(w, "ridge:ttft_predictions_total",
            "Sequences whose first token's time was predicted: with a target for it.",
            (double)s->ttft_predictions);
    counter(w, "ridge:ttft_prediction_error_total", "The same sum for those.", s->ttft_error_sum);
}

static void write_held(const writer *w, const engine_stats *s) {
    double room = (double)s->kv_tokens_reserved, used = (double)s->kv_tokens_used;
    gauge(w, "ridge:kv_cache_tokens_reserved", "Room in the blocks that sequences hold, in tokens.",
          room);
    gauge(w, "ridge:kv_cache_tokens_used", "Tokens in those blocks.", used);
    gauge(w, "ridge:kv_cache_waste", "The part of that room without a token in it, 0 to 1.",
          room > used ? part_of(room - used, room) : 0);
    counter(w, "ridge:kv_cache_reserved_token_steps_total", "That room, summed over all steps.",
            s->kv_token_steps_reserved);
    counter(w, "ridge:kv_cache_used_token_steps_total", "Those tokens, summed over all steps.",
            s->kv_token_steps_used);
    gauge(w, "ridge:prefix_cache_blocks", "Blocks that only the prefix cache holds.",
          (double)s->kv_blocks_cached);
    gauge(w, "ridge:prefix_cache_bytes", "Bytes of them.", (double)s->kv_bytes_cached);
    counter(w, "ridge:prefix_cache_evicted_blocks_total", "Blocks that it had to give up.",
            (double)s->kv_blocks_evicted);
}

static void write_state(const writer *w, const metrics *m, const engine_stats *s, double now_s) {
    gauge(w, "ridge:engine_ready", "1 once the model has been loaded.", m->ready);
    counter(w, "ridge:recorded_total", "Lines for the file of --record.", (double)m->n_recorded);
    counter(w, "ridge:record_lost_total", "Lines that the file could not take.",
            (double)m->n_record_lost);
    gauge(w, "ridge:engine_silent_seconds",
          "While it has work: since the engine last began or ended a step.",
          metrics_silent_s(m, s, now_s));
}

const buf *metrics_write(metrics *m, const engine_stats *s, double now_s) {
    buf_clear(&m->out);
    writer w = {&m->out, m->labels.data};
    write_queues(&w, s);
    write_cache(&w, s);
    write_infos(&w, m);
    write_tokens(&w, s);
    write_speculation(&w, s);
    write_endings(&w, m, s);
    write_histograms(&w, m, s);
    write_rates(&w, m, s, now_s);
    write_steps(&w, s);
    write_promises(&w, s);
    write_held(&w, s);
    write_state(&w, m, s, now_s);
    if (m->legacy) write_legacy(&w, m, s);
    return m->out.failed ? NULL : &m->out;
}
