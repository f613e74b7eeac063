/* server/logprobs: see logprobs.h. */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

static void comma(buf *b) {
    if (b->len > 0) buf_putc(b, ',');
}

static void write_logprob(float x, buf *out) {
    buf_json_double(out, isfinite(x) ? (double)x : -9999.0); /* JSON knows no infinity */
}

static void write_token_text(const server_backend *b, int32_t id, buf *out) {
    size_t n;
    const char *bytes = b->token_bytes(b->self, id, &n);
    buf_json_string(out, bytes, n);
}

/* ---- completions ---- */

/* Text to logprob, the likeliest of those with equal text; the chosen one is always there. */
static void write_tops(const server_backend *b, const sampler_result *t, buf *out) {
    buf seen = {0}, key = {0};
    buf_putc(out, '{');
    for (int i = 0; i <= t->n_top; i++) {
        bool chosen = i == t->n_top;
        buf_clear(&key);
        buf_putc(&key, '\1'); /* never inside a JSON text: where a key begins */
        write_token_text(b, chosen ? t->id : t->top[i].id, &key);
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

void logprob_columns_add_text(logprob_columns *c, const char *text, size_t n, size_t *n_chars) {
    comma(&c->tokens);
    buf_json_string(&c->tokens, n > 0 ? text : "", n);
    comma(&c->offsets);
    buf_printf(&c->offsets, "%zu", *n_chars);
    *n_chars += utf8_count(text, n);
}

void logprob_columns_add_value(logprob_columns *c, const server_backend *b,
                               const sampler_result *t) {
    comma(&c->values);
    comma(&c->tops);
    if (t == NULL) {
        buf_puts(&c->values, "null");
        buf_puts(&c->tops, "null");
    } else {
        write_logprob(t->logprob, &c->values);
        write_tops(b, t, &c->tops);
    }
}

size_t logprob_columns_bytes(const logprob_columns *c) {
    return c->tokens.len + c->offsets.len + c->values.len + c->tops.len;
}

void logprob_columns_clear(logprob_columns *c) {
    buf *all[] = {&c->tokens, &c->offsets, &c->values, &c->tops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_clear(all[i]);
}

void logprob_columns_free(logprob_columns *c) {
    buf *all[] = {&c->tokens, &c->offsets, &c->values, &c->tops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(all[i]);
}

static void write_list(const char *name, const buf *first, const buf *rest, buf *out) {
    buf_printf(out, "\"%s\":[", name);
    if (first != NULL && first->len > 0) {
        buf_append(out, first->data, first->len);
        if (rest->len > 0) buf_putc(out, ',');
    }
    buf_append(out, rest->data, rest->len);
    out->failed |= rest->failed || (first != NULL && first->failed);
    buf_putc(out, ']');
}

void logprob_columns_write(const logprob_columns *first, const logprob_columns *rest, buf *out) {
    buf_putc(out, '{');
    write_list("tokens", first != NULL ? &first->tokens : NULL, &rest->tokens, out);
    buf_putc(out, ',');
    write_list("token_logprobs", first != NULL ? &first->values : NULL, &rest->values, out);
    buf_putc(out, ',');
    write_list("top_logprobs", first != NULL ? &first->tops : NULL, &rest->tops, out);
    buf_putc(out, ',');
    write_list("text_offset", first != NULL ? &first->offsets : NULL, &rest->offsets, out);
    buf_putc(out, '}');
}

/* ---- chats ---- */

/* Without the closing brace. */
static void write_chat_entry(const server_backend *b, int32_t id, float logprob, buf *out) {
    size_t n;
    const char *bytes = b->token_bytes(b->self, id, &n);
    buf_puts(out, "{\"token\":");
    buf_json_string(out, bytes, n);
    buf_puts(out, ",\"logprob\":");
    write_logprob(logprob, out);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i > 0 ? "," : "", (unsigned)(unsigned char)bytes[i]);
    buf_putc(out, ']');
}

void logprobs_add_chat(const server_backend *b, const sampler_result *t, buf *list) {
    comma(list);
    write_chat_entry(b, t->id, t->logprob, list);
    buf_puts(list, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        if (i > 0) buf_putc(list, ',');
        write_chat_entry(b, t->top[i].id, t->top[i].logprob, list);
        buf_putc(list, '}');
    }
    buf_puts(list, "]}");
}

/* ---- vLLM's prompt_logprobs ---- */

static void write_ranked(const server_backend *b, int32_t id, float logprob, int rank, buf *out) {
    buf_printf(out, "\"%d\":{\"logprob\":", id);
    write_logprob(logprob, out);
    buf_printf(out, ",\"rank\":%d,\"decoded_token\":", rank);
    write_token_text(b, id, out);
    buf_putc(out, '}');
}

void logprobs_add_ranked(const server_backend *b, const sampler_result *t, int n, buf *list) {
    buf_puts(list, ",{");
    write_ranked(b, t->id, t->logprob, t->rank, list);
    for (int i = 0; i < t->n_top && i < n; i++) {
        if (t->top[i].id == t->id) continue;
        buf_putc(list, ',');
        write_ranked(b, t->top[i].id, t->top[i].logprob, i + 1, list);
    }
    buf_putc(list, '}');
}
