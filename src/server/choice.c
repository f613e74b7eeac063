/* server/choice: see choice.h. */
#include "server/choice.h"

#include <string.h>

#include "server/explain.h"
#include "server/miss.h"

static bool is_chat(const choice *c) {
    return c->request->kind == API_CHAT;
}
static bool wants_logprobs(const choice *c) {
    return c->request->logprobs >= 0;
}

/* ---- events ---- */

/* As the engine's own. */
static detokenizer begin_pieces(const prompt_report *report) {
    engine_request r = report->request->engine;
    r.prompt = report->prompt->ids;
    r.n_prompt = report->prompt->n_ids;
    return report->backend->detokenize_begin(report->backend->self, &r);
}

void choice_init(choice *c, generation *owner, prompt_report *report, uint32_t index) {
    const api_request *r = report->request;
    *c = (choice){.owner = owner,
                  .request = r,
                  .report = report,
                  .backend = report->backend,
                  .index = index,
                  .describes = r->engine.prompt_logprobs >= 0 && index % r->best_of == 0,
                  .echo_due = r->echo,
                  .pieces = begin_pieces(report),
                  .n_chars = report->n_chars};
}

static void free_parts(choice *c) {
    buf_free(&c->text);
    buf_free(&c->ids);
    buf_free(&c->entries);
    logprob_columns_free(&c->columns);
}

void choice_free(choice *c) {
    free_parts(c);
    buf_free(&c->miss);
}

/* The last one has what the text ends with for an incomplete character. */
static void add_column(choice *c, const sampler_result *t, bool last) {
    buf shown = {0};
    c->backend->detokenize(c->backend->self, &c->pieces, t->id, c->request->engine.special, &shown);
    if (last) c->backend->detokenize_end(c->backend->self, &c->pieces, &shown);
    logprob_columns_add_text(&c->columns, shown.data, shown.len, &c->n_chars);
    logprob_columns_add_value(&c->columns, c->backend, t);
    c->columns.tokens.failed |= shown.failed;
    buf_free(&shown);
}

static void add_token(choice *c, const sampler_result *t, bool last) {
    if (c->request->return_token_ids) buf_printf(&c->ids, "%s%d", c->ids.len > 0 ? "," : "", t->id);
    if (wants_logprobs(c) && is_chat(c))
        logprobs_add_chat(c->backend, t, &c->entries);
    else if (wants_logprobs(c))
        add_column(c, t, last);
}

static void note_miss(choice *c, const engine_usage *u) {
    const engine_request *r = &c->request->engine;
    bool asked =
        c->backend->info(c->backend->self).cache.prefix_caching && !r->no_cache && !c->describes;
    miss_write(c->backend, c->report->prompt->ids, (uint32_t)c->report->prompt->n_ids, u, asked,
               &c->miss);
}

void choice_event(choice *c, const engine_event *e, bool heard) {
    if (e->has_token) {
        c->n_tokens++;
        c->logprob += (double)e->token.logprob;
        c->last_id = e->token.id;
    }
    if (heard && e->is_prompt) prompt_report_add(c->report, &e->token);
    if (heard && e->has_token) add_token(c, &e->token, e->finish != ENGINE_RUNNING);
    if (heard && e->n_text > 0) buf_append(&c->text, e->text, e->n_text);
    c->usage.cached_tokens = e->usage.cached_tokens;
    if (e->finish == ENGINE_RUNNING) return;
    c->live = false;
    c->finish = e->finish;
    c->stop_string = e->stop_string;
    c->usage = e->usage;
    c->usage.miss = (engine_miss){0}; /* it dies with the event */
    if (heard && c->request->explain) note_miss(c, &e->usage);
}

bool choice_waits(const choice *c) {
    return c->echo_due && !prompt_report_is_whole(c->report);
}

bool choice_has_news(const choice *c) {
    if (c->finish != ENGINE_RUNNING) return true;
    if (c->n_tokens == 0) return false;
    return c->echo_due || choice_bytes(c) > 0;
}

void choice_clear(choice *c) {
    c->echo_due = false;
    c->ended = c->finish != ENGINE_RUNNING;
    buf_clear(&c->text);
    buf_clear(&c->ids);
    buf_clear(&c->entries);
    logprob_columns_clear(&c->columns);
}

size_t choice_bytes(const choice *c) {
    return c->text.len + c->ids.len + c->entries.len + logprob_columns_bytes(&c->columns);
}

/* ---- writing ---- */

static void write_parts(const buf *b, buf *out) {
    buf_append(out, b->len > 0 ? b->data : "", b->len);
    out->failed |= b->failed;
}

static void write_text(const choice *c, buf *out) {
    buf whole = {0};
    size_t n;
    if (c->echo_due) {
        const char *prompt = api_prompt_text(c->report->prompt, &n);
        buf_append(&whole, prompt, n);
        buf_append(&whole, c->text.data, c->text.len);
    }
    const buf *text = c->echo_due ? &whole : &c->text;
    buf_json_string(out, text->len > 0 ? text->data : "", text->len);
    out->failed |= c->text.failed || whole.failed;
    buf_free(&whole);
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
        logprob_columns_write(c->echo_due ? &c->report->echoed : NULL, &c->columns, out);
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

void choice_write_prompt_ids(const choice *c, buf *out) {
    const api_prompt *p = c->report->prompt;
    if (!c->request->return_token_ids) return;
    buf_puts(out, ",\"prompt_token_ids\":[");
    for (size_t i = 0; i < p->n_ids; i++) buf_printf(out, "%s%d", i > 0 ? "," : "", p->ids[i]);
    buf_putc(out, ']');
}

void choice_write_chunk(const choice *c, bool first, buf *out) {
    buf_printf(out, "{\"index\":%u,", c->index);
    if (!is_chat(c)) {
        buf_puts(out, "\"text\":");
        write_text(c, out);
    } else if (first) {
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
    if (first) choice_write_prompt_ids(c, out);
    buf_putc(out, '}');
}

double choice_mean_logprob(const choice *c) {
    return c->n_tokens > 0 ? c->logprob / c->n_tokens : 0;
}

void choice_take_whole(choice *c, buf *out) {
    buf_printf(out, "{\"index\":%u,", c->index);
    buf_puts(out, is_chat(c) ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    write_text(c, out);
    if (is_chat(c)) buf_puts(out, ",\"refusal\":null}");
    write_logprobs(c, out);
    write_ending(c, out);
    if (!is_chat(c)) {
        prompt_report_write_ranked(c->report, out);
        choice_write_prompt_ids(c, out);
    }
    buf_putc(out, '}');
    free_parts(c);
}

void choice_explain(const choice *c, buf *out) {
    if (c->index == CHOICE_HIDDEN)
        buf_puts(out, "\"index\":null,");
    else
        buf_printf(out, "\"index\":%u,", c->index);
    explain_write(&c->usage, c->measured.end_seen_s - c->measured.arrived_s, out);
    buf_puts(out, ",\"prefix_cache\":{");
    write_parts(&c->miss, out);
    buf_putc(out, '}');
}
