/* server/explain: see explain.h. */
#include "server/explain.h"

static double positive(double x) {
    return x > 0 ? x : 0;
}

/* Of its steps, what neither others nor a preemption have to answer for. */
static double own_s(const engine_phase *p) {
    return positive(p->seconds - p->others_s - p->again_s);
}

explain_parts explain_split(const engine_usage *u, double total_s) {
    const engine_phase *prefill = &u->prefill, *decode = &u->decode;
    explain_parts p = {.total_s = total_s};
    double *s = p.seconds, steps_s = prefill->seconds + decode->seconds;
    /* From the first step to the last token: its step ends a moment later. */
    double span_s = u->prefill_s + u->decode_s, between_s = positive(span_s - steps_s);
    s[EXPLAIN_QUEUE] = positive(u->queue_s);
    s[EXPLAIN_PROMPT] = own_s(prefill);
    s[EXPLAIN_DECODE] = own_s(decode);
    s[EXPLAIN_OTHERS] = prefill->others_s + decode->others_s;
    s[EXPLAIN_PREEMPTED] = prefill->again_s + decode->again_s;
    s[u->n_preempted > 0 ? EXPLAIN_PREEMPTED : EXPLAIN_TURN] += between_s;
    s[EXPLAIN_OUTSIDE] = positive(total_s - s[EXPLAIN_QUEUE] - steps_s - between_s);
    for (explain_part i = 1; i < EXPLAIN_N_PARTS; i++)
        if (s[i] > s[p.reason]) p.reason = i;
    return p;
}

/* ---- the sentence ---- */

static void put_ms(buf *out, double seconds) {
    double ms = seconds * 1e3;
    buf_printf(out, "%.*f ms", ms >= 100 ? 0 : ms >= 10 ? 1 : 2, ms);
}

static double mean_batch(const engine_phase *p) {
    return p->n_steps > 0 ? (double)p->n_seqs / p->n_steps : 0;
}

static const char *bound_of(const engine_phase *p) {
    return p->compute_s > p->seconds / 2 ? "compute" : "memory";
}

static void put_roof(buf *out, const engine_phase *p) {
    if (p->roof_s > 0 && p->seconds > 0)
        buf_printf(out, ", at %.0f %% of the %s roof", 100 * p->roof_s / p->seconds, bound_of(p));
}

static void put_prompt(buf *out, const engine_usage *u) {
    uint32_t n = u->prompt_tokens - u->cached_tokens;
    buf_printf(out, ": %u token%s of it to compute", n, plural(n));
    if (u->cached_tokens > 0) buf_printf(out, " (%u more came from the cache)", u->cached_tokens);
    put_roof(out, &u->prefill);
}

static void put_answer(buf *out, const engine_usage *u) {
    uint32_t n = u->completion_tokens > 1 ? u->completion_tokens - 1 : 1;
    buf_printf(out, ": %u token%s after the first, ", n, plural(n));
    put_ms(out, u->decode_s / n);
    buf_puts(out, " each");
    put_roof(out, &u->decode);
    if (u->draft_tokens > 0)
        buf_printf(out, ", %u of %u drafted ones accepted", u->accepted_tokens, u->draft_tokens);
    if (mean_batch(&u->decode) > 1.05)
        buf_printf(out, ", in steps of %.1f sequences on average", mean_batch(&u->decode));
}

void explain_sentence(const engine_usage *u, const explain_parts *p, buf *out) {
    static const char *const subjects[] = {
        [EXPLAIN_QUEUE] = "Waiting in the queue",
        [EXPLAIN_PROMPT] = "Its prompt",
        [EXPLAIN_DECODE] = "Its answer",
        [EXPLAIN_OTHERS] = "Prompts of other requests in the same steps",
        [EXPLAIN_PREEMPTED] = "Being preempted",
        [EXPLAIN_TURN] = "Waiting for room in the steps",
        [EXPLAIN_OUTSIDE] = "What lies outside the engine",
    };
    buf_printf(out, "%s took ", subjects[p->reason]);
    put_ms(out, p->seconds[p->reason]);
    buf_puts(out, " of ");
    put_ms(out, p->total_s);
    switch (p->reason) {
    case EXPLAIN_QUEUE:
        buf_printf(out, ": %u other request%s waited or ran when it came", u->n_ahead,
                   plural(u->n_ahead));
        break;
    case EXPLAIN_PROMPT: put_prompt(out, u); break;
    case EXPLAIN_DECODE: put_answer(out, u); break;
    case EXPLAIN_OTHERS:
        buf_printf(out, ": %u of its %u steps computed such, too",
                   u->prefill.n_mixed + u->decode.n_mixed, u->prefill.n_steps + u->decode.n_steps);
        break;
    case EXPLAIN_PREEMPTED:
        buf_printf(out,
                   ": %u time%s its cache blocks were given to others, and it waited and computed "
                   "again",
                   u->n_preempted, plural(u->n_preempted));
        break;
    case EXPLAIN_TURN: buf_puts(out, ": others filled the token budget of a step"); break;
    default: buf_puts(out, ": reading and tokenizing the request, handing over its tokens"); break;
    }
    buf_putc(out, '.');
}

/* ---- JSON ---- */

/* Percent of the roof; null where that is unknown, or the phase had no step. */
static void put_roof_field(buf *out, const char *name, const engine_phase *p) {
    if (p->roof_s > 0 && p->seconds > 0)
        buf_json_field(out, name, 100 * p->roof_s / p->seconds);
    else
        buf_printf(out, ",\"%s\":null", name);
}

void explain_write(const engine_usage *u, double total_s, buf *out) {
    static const char *const names[] = {"queue",     "prompt", "decode", "other_prompts",
                                        "preempted", "turn",   "outside"};
    explain_parts p = explain_split(u, total_s);
    uint32_t n_steps = u->prefill.n_steps + u->decode.n_steps;
    buf sentence = {0};
    explain_sentence(u, &p, &sentence);
    buf_puts(out, "\"explanation\":");
    buf_json_string(out, sentence.failed ? "" : sentence.data, sentence.failed ? 0 : sentence.len);
    out->failed |= sentence.failed;
    buf_free(&sentence);
    buf_printf(out, ",\"main_reason\":\"%s\"", names[p.reason]);
    buf_json_field(out, "total_ms", total_s * 1e3);
    buf_json_field(out, "queue_ms", u->queue_s * 1e3);
    buf_json_field(out, "prefill_ms", u->prefill_s * 1e3);
    buf_json_field(out, "decode_ms", u->decode_s * 1e3);
    buf_printf(out,
               ",\"requests_ahead\":%u,\"cached_tokens\":%u,\"computed_tokens\":%u,\"steps\":%u",
               u->n_ahead, u->cached_tokens, u->prompt_tokens - u->cached_tokens, n_steps);
    buf_json_field(out, "mean_batch",
                   n_steps > 0 ? (double)(u->prefill.n_seqs + u->decode.n_seqs) / n_steps : 0);
    put_roof_field(out, "prefill_roof_percent", &u->prefill);
    put_roof_field(out, "decode_roof_percent", &u->decode);
    if (u->draft_tokens > 0)
        buf_printf(out, ",\"drafted_tokens\":%u,\"accepted_tokens\":%u", u->draft_tokens,
                   u->accepted_tokens);
    buf_printf(out, ",\"preemptions\":%u,\"parts_ms\":{", u->n_preempted);
    for (explain_part i = 0; i < EXPLAIN_N_PARTS; i++)
        buf_json_field(out, names[i], p.seconds[i] * 1e3);
    buf_putc(out, '}');
}
