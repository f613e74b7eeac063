/* server/choice: see choice.h. */
#include "server/choice.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "server/explain.h"
#include "server/miss.h"

static bool is_chat(const choice *c) {
    return c->request->kind == API_CHAT;
}
static bool wants_logprobs(const choice *c) {
    return c->request->logprobs >= 0;
}
static bool echoes_logprobs(const choice *c) {
    return c->request->echo && wants_logprobs(c);
}

static void comma(buf *b) {
    if (b->len > 0) buf_putc(b, ',');
}

/* ---- logprobs ---- */

static void write_logprob(float x, buf *out) {
    buf_json_double(out, isfinite(x) ? (double)x : -9999.0); /* JSON knows no infinity */
}

static void write_token_text(const choice *c, int32_t id, buf *out) {
    size_t n;
    const char *bytes = c->backend->token_bytes(c->backend->self, id, &n);
    buf_json_string(out, bytes, n);
}

static void write_chat_entry(const choice *c, int32_t id, float logprob, buf *out) {
    size_t n;
    const char *bytes = c->backend->token_bytes(c->backend->self, id, &n);
    buf_puts(out, "{\"token\":");
    buf_json_string(out, bytes, n);
    buf_puts(out, ",\"logprob\":");
    write_logprob(logprob, out);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i > 0 ? "," : "", (unsigned)(unsigned char)bytes[i]);
    buf_putc(out, ']');
}

static void add_chat_logprob(choice *c, const sampler_result *t) {
    comma(&c->entries);
    write_chat_entry(c, t->id, t->logprob, &c->entries);
    buf_puts(&c->entries, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        if (i > 0) buf_putc(&c->entries, ',');
        write_chat_entry(c, t->top[i].id, t->top[i].logprob, &c->entries);
        buf_putc(&c->entries, '}');
    }
    buf_puts(&c->entries, "]}");
}

/* Text to logprob, the likeliest of those with equal text; the chosen one is always there. */
static void write_tops(const choice *c, const sampler_result *t, buf *out) {
    buf seen = {0}, key = {0};
    buf_putc(out, '{');
    for (int i = 0; i <= t->n_top; i++) {
        bool chosen = i == t->n_top;
        buf_clear(&key);
        buf_putc(&key, '\1'); /* never inside a JSON text: where a key begins */
        write_token_text(c, chosen ? t->id : t->top[i].id, &key);
        buf_putc(&key, ':');
        if (key.failed || (seen.len > 0 && memmem(seen.data, seen.len, key.data, key.len) != NULL))
            continue;
        buf_append(&seen, key.data, key.len);
        if (i > 0) buf_putc(out, ',');
        buf_append(out, key.data + 1, key.len - 1);
        write_logprob(chosen ? t->logprob : t->top[i].logprob, out);
    }
    buf_putc(out, '}');
    out->failed |= seen.failed || key.failed;
    buf_free(&seen);
    buf_free(&key);
}

/* One column of the four parallel arrays. shown: the token's part of the text. t NULL: the first
 * token of a prompt, which nothing predicts. */
static void add_column(choice *c, const char *shown, size_t n, const sampler_result *t) {
    comma(&c->tokens);
    buf_json_string(&c->tokens, n > 0 ? shown : "", n);
    comma(&c->offsets);
    buf_printf(&c->offsets, "%zu", c->n_chars);
    c->n_chars += utf8_count(shown, n);
    comma(&c->values);
    comma(&c->tops);
    if (t == NULL) {
        buf_puts(&c->values, "null");
        buf_puts(&c->tops, "null");
    } else {
        write_logprob(t->logprob, &c->values);
        write_tops(c, t, &c->tops);
    }
}

static void add_completion_logprob(choice *c, int32_t id, const sampler_result *t, bool special) {
    buf shown = {0};
    c->backend->detokenize(c->backend->self, &c->pieces, id, special, &shown);
    /* A BOS which the tokenizer put before the client's text is no part of that text. */
    bool added =
        t == NULL && c->prompt->text != NULL && shown.len > 0 &&
        (shown.len > c->prompt->n_text || memcmp(shown.data, c->prompt->text, shown.len) != 0);
    add_column(c, shown.data, added ? 0 : shown.len, t);
    c->tokens.failed |= shown.failed;
    buf_free(&shown);
}

/* `"id":{...}` as vLLM has it. */
static void write_ranked(const choice *c, int32_t id, float logprob, int rank, buf *out) {
    buf_printf(out, "\"%d\":{\"logprob\":", id);
    write_logprob(logprob, out);
    buf_printf(out, ",\"rank\":%d,\"decoded_token\":", rank);
    write_token_text(c, id, out);
    buf_putc(out, '}');
}

/* The prompt's own token, then the likeliest ones. */
static void add_prompt_logprob(choice *c, const sampler_result *t) {
    buf *out = &c->prompt_logprobs;
    buf_puts(out, ",{");
    write_ranked(c, t->id, t->logprob, t->rank, out);
    for (int i = 0; i < t->n_top && i < c->request->prompt_logprobs; i++) {
        if (t->top[i].id == t->id) continue;
        buf_putc(out, ',');
        write_ranked(c, t->top[i].id, t->top[i].logprob, i + 1, out);
    }
    buf_putc(out, '}');
}

/* Each of two readers may have asked for fewer than the engine was. */
static void add_prompt_token(choice *c, const sampler_result *t) {
    sampler_result echoed = *t;
    if (echoed.n_top > c->request->logprobs) echoed.n_top = c->request->logprobs;
    if (echoes_logprobs(c)) add_completion_logprob(c, t->id, &echoed, true);
    if (c->request->prompt_logprobs >= 0) add_prompt_logprob(c, t);
}

/* ---- events ---- */

void choice_init(choice *c, generation *owner, const api_request *r, const api_prompt *p,
                 const server_backend *b, uint32_t index) {
    *c = (choice){.owner = owner, .request = r, .prompt = p, .backend = b, .index = index};
    /* A prompt is described by its first choice alone, unless each of them shows it. */
    c->describes =
        r->engine.prompt_logprobs >= 0 && (index % r->best_of == 0 || echoes_logprobs(c));
    const char *shown = p->text != NULL ? p->text : p->decoded.data;
    size_t n = p->text != NULL ? p->n_text : p->decoded.len;
    if (r->echo) {
        buf_append(&c->text, n > 0 ? shown : "", n);
        if (wants_logprobs(c)) add_completion_logprob(c, p->ids[0], NULL, true);
    } else if (r->kind == API_COMPLETIONS && wants_logprobs(c) && n > 0) {
        c->n_chars = utf8_count(shown, n); /* offsets count from the start of the prompt */
    }
}

void choice_free(choice *c) {
    buf *all[] = {&c->text, &c->ids,     &c->entries, &c->tokens,         &c->values,
                  &c->tops, &c->offsets, &c->miss,    &c->prompt_logprobs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(all[i]);
}

static void add_token(choice *c, const sampler_result *t) {
    c->n_tokens++;
    c->logprob += (double)t->logprob;
    c->last_id = t->id;
    if (c->request->return_token_ids) {
        comma(&c->ids);
        buf_printf(&c->ids, "%d", t->id);
    }
    if (wants_logprobs(c) && is_chat(c))
        add_chat_logprob(c, t);
    else if (wants_logprobs(c))
        add_completion_logprob(c, t->id, t, c->request->engine.special);
}

static void note_miss(choice *c, const engine_usage *u) {
    const engine_request *r = &c->request->engine;
    bool asked =
        c->backend->info(c->backend->self).cache.prefix_caching && !r->no_cache && !c->describes;
    miss_write(c->backend, c->prompt->ids, (uint32_t)c->prompt->n_ids, u, asked, &c->miss);
}

void choice_event(choice *c, const engine_event *e) {
    if (e->is_prompt)
        add_prompt_token(c, &e->token);
    else if (e->has_token)
        add_token(c, &e->token);
    if (e->n_text > 0) buf_append(&c->text, e->text, e->n_text);
    if (e->finish == ENGINE_RUNNING) return;
    c->live = false;
    c->finish = e->finish;
    c->stop_string = e->stop_string;
    c->usage = e->usage;
    c->usage.miss = (engine_miss){0}; /* it dies with the event */
    if (c->request->explain) note_miss(c, &e->usage);
}

/* Prompt logprobs wait for the first token: before it there is nothing to show. */
bool choice_has_news(const choice *c) {
    if (c->finish != ENGINE_RUNNING) return true;
    if (c->n_tokens == 0) return false;
    return c->text.len > 0 || c->ids.len > 0 || c->entries.len > 0 || c->tokens.len > 0;
}

void choice_clear(choice *c) {
    buf *all[] = {&c->text, &c->ids, &c->entries, &c->tokens, &c->values, &c->tops, &c->offsets};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_clear(all[i]);
}

/* ---- writing ---- */

static void write_parts(const buf *b, buf *out) {
    buf_append(out, b->len > 0 ? b->data : "", b->len);
    out->failed |= b->failed;
}

static void write_text(const choice *c, buf *out) {
    buf_json_string(out, c->text.len > 0 ? c->text.data : "", c->text.len);
    out->failed |= c->text.failed;
}

static void write_logprobs(const choice *c, buf *out) {
    buf_puts(out, ",\"logprobs\":");
    if (!wants_logprobs(c)) {
        buf_puts(out, "null");
    } else if (is_chat(c)) {
        buf_puts(out, "{\"content\":[");
        write_parts(&c->entries, out);
        buf_puts(out, "],\"refusal\":null}");
    } else {
        buf_puts(out, "{\"tokens\":[");
        write_parts(&c->tokens, out);
        buf_puts(out, "],\"token_logprobs\":[");
        write_parts(&c->values, out);
        buf_puts(out, "],\"top_logprobs\":[");
        write_parts(&c->tops, out);
        buf_puts(out, "],\"text_offset\":[");
        write_parts(&c->offsets, out);
        buf_puts(out, "]}");
    }
}

/* The stop id or the stop string that ended the text; null for the model's own end. */
static void write_stop_reason(const choice *c, buf *out) {
    const engine_request *r = &c->request->engine;
    buf_puts(out, ",\"stop_reason\":");
    for (size_t i = 0; c->finish == ENGINE_STOP && i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == c->last_id && c->n_tokens > 0) {
            buf_printf(out, "%d", c->last_id);
            return;
        }
    if (c->finish == ENGINE_STOP && c->stop_string >= 0)
        buf_json_string(out, r->stop[c->stop_string], strlen(r->stop[c->stop_string]));
    else
        buf_puts(out, "null");
}

static void write_ending(const choice *c, buf *out) {
    static const char *const reasons[] = {"null", "\"stop\"", "\"length\"", "\"abort\"",
                                          "\"error\""};
    buf_printf(out, ",\"finish_reason\":%s", reasons[c->finish]);
    write_stop_reason(c, out);
    if (!c->request->return_token_ids) return;
    buf_puts(out, ",\"token_ids\":[");
    write_parts(&c->ids, out);
    buf_putc(out, ']');
}

void choice_write_chunk(const choice *c, bool role, buf *out) {
    buf_printf(out, "{\"index\":%u,", c->index);
    if (!is_chat(c)) {
        buf_puts(out, "\"text\":");
        write_text(c, out);
    } else if (role) {
        buf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                      "\"finish_reason\":null}");
        return;
    } else {
        buf_puts(out, "\"delta\":{\"content\":");
        write_text(c, out);
        buf_putc(out, '}');
    }
    write_logprobs(c, out);
    write_ending(c, out);
    buf_putc(out, '}');
}

void choice_write_prompt_logprobs(const choice *described, buf *out) {
    if (described->request->prompt_logprobs < 0) return;
    buf_puts(out, ",\"prompt_logprobs\":[null");
    write_parts(&described->prompt_logprobs, out);
    buf_putc(out, ']');
}

double choice_mean_logprob(const choice *c) {
    return c->n_tokens > 0 ? c->logprob / c->n_tokens : 0;
}

void choice_write_whole(const choice *c, const choice *described, buf *out) {
    buf_printf(out, "{\"index\":%u,", c->index);
    buf_puts(out, is_chat(c) ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    write_text(c, out);
    if (is_chat(c)) buf_puts(out, ",\"refusal\":null}");
    write_logprobs(c, out);
    write_ending(c, out);
    if (!is_chat(c)) choice_write_prompt_logprobs(described, out);
    buf_putc(out, '}');
}

void choice_explain(const choice *c, buf *out) {
    buf_printf(out, "\"index\":%u,", c->index);
    explain_write(&c->usage, c->measured.end_seen_s - c->measured.arrived_s, out);
    buf_puts(out, ",\"prefix_cache\":{");
    write_parts(&c->miss, out);
    buf_putc(out, '}');
}
