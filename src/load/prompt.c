/* load/prompt: the text of requests, see plan.h. */
#include <stdio.h>
#include <string.h>

#include "format/trace.h"
#include "load/plan.h"
#include "sample/philox.h"

/* Whose tokens they are: equal (kind, name) and seed give equal tokens. */
typedef enum { FROM_REQUEST = 16, FROM_PREFIX, FROM_BLOCK } source_kind;

#define N_WORDS 512

/* Everyday words, each one token in the vocabularies of llama, qwen, gemma, falcon, deepseek,
 * command-r, phi and smollm: at a text's beginning and after a blank. */
static const char *const words[N_WORDS] = {
#include "load/words.inc"
};

typedef struct {
    buf *out;
    const load_params *params;
    bool first; /* nothing before it: no blank, no comma */
} writer;

static void put_token(writer *w, uint32_t draw) {
    if (w->params->token_ids) {
        uint32_t half = w->params->vocab_size / 2;
        uint32_t id = w->params->vocab_size / 4 + (uint32_t)(((uint64_t)draw * half) >> 32);
        buf_printf(w->out, w->first ? "%u" : ",%u", id);
    } else {
        if (!w->first) buf_putc(w->out, ' ');
        buf_puts(w->out, words[draw % N_WORDS]);
    }
    w->first = false;
}

/* Four tokens come from one block of the generator. */
static void put_tokens(writer *w, source_kind kind, int64_t name, uint32_t n) {
    uint64_t seed = w->params->traffic.seed, id = (uint64_t)name;
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t draws[4];
    for (uint32_t i = 0; i < n; i++) {
        if (i % 4 == 0) {
            const uint32_t counter[4] = {i / 4, (uint32_t)kind, (uint32_t)id, (uint32_t)(id >> 32)};
            philox4x32(counter, key, draws);
        }
        put_token(w, draws[i % 4]);
    }
}

/* The blocks that the trace names, then what no name is given for. */
static void put_own_tokens(writer *w, const load_plan *plan, size_t i) {
    const planned_request *r = &plan->requests[i];
    uint32_t left = r->n_input;
    for (uint32_t b = 0; b < r->n_blocks && left > 0; b++) {
        uint32_t n = left < TRACE_BLOCK_TOKENS ? left : TRACE_BLOCK_TOKENS;
        put_tokens(w, FROM_BLOCK, plan->blocks[r->first_block + b], n);
        left -= n;
    }
    put_tokens(w, FROM_REQUEST, (int64_t)i, left);
}

static void put_prefix(writer *w, const load_plan *plan, size_t i) {
    put_tokens(w, FROM_PREFIX, plan->requests[i].prefix, w->params->traffic.prefix_tokens);
}

/* A shared beginning is the system's message, as it is where people share one. */
static void write_messages(writer *w, const load_plan *plan, size_t i) {
    buf_puts(w->out, "\"messages\":[");
    if (w->params->traffic.prefix_tokens > 0) {
        buf_puts(w->out, "{\"role\":\"system\",\"content\":\"");
        put_prefix(w, plan, i);
        buf_puts(w->out, "\"},");
        w->first = true;
    }
    buf_puts(w->out, "{\"role\":\"user\",\"content\":\"");
    put_own_tokens(w, plan, i);
    buf_puts(w->out, "\"}]");
}

static void write_prompt(writer *w, const load_plan *plan, size_t i) {
    bool ids = w->params->token_ids;
    buf_puts(w->out, ids ? "\"prompt\":[" : "\"prompt\":\"");
    put_prefix(w, plan, i);
    put_own_tokens(w, plan, i);
    buf_putc(w->out, ids ? ']' : '"');
}

/* The members of an object that was checked to be one: {"a":1} -> ,"a":1 */
static void write_extra(buf *out, const char *object) {
    const char *open = strchr(object, '{') + 1, *close = strrchr(object, '}');
    size_t blanks = strspn(open, " \t\r\n");
    if (open + blanks == close) return;
    buf_putc(out, ',');
    buf_append(out, open, (size_t)(close - open));
}

void load_body_write(buf *out, const load_params *p, const char *model, const load_plan *plan,
                     size_t i) {
    writer w = {out, p, true};
    buf_puts(out, "{\"model\":");
    buf_json_string(out, model, strlen(model));
    buf_putc(out, ',');
    if (p->chat)
        write_messages(&w, plan, i);
    else
        write_prompt(&w, plan, i);
    buf_printf(out, ",\"max_tokens\":%u,\"temperature\":", plan->requests[i].n_output);
    buf_json_double(out, p->temperature);
    if (p->temperature > 0)
        buf_printf(out, ",\"seed\":%llu", (unsigned long long)((p->traffic.seed + i) & INT64_MAX));
    if (p->ignore_eos) buf_puts(out, ",\"ignore_eos\":true");
    if (p->stream) buf_puts(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    if (p->extra_body != NULL) write_extra(out, p->extra_body);
    buf_putc(out, '}');
}
