/* Fuzzes what the load generator reads: traces, streams of events, answers, URLs, lengths.
 *
 * The first byte chooses which. Events are the same whether the bytes come whole or one by one. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "format/trace.h"
#include "load/answer.h"
#include "load/sse.h"
#include "load/url.h"
#include "traffic/length.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_trace(const char *text, size_t n) {
    trace t;
    ridge_error err = {0};
    if (trace_parse(&t, "trace", text, n, 0, &err) == RIDGE_OK) {
        ridge_assert(t.n > 0 && t.requests[0].at_us == 0);
        for (size_t i = 0; i < t.n; i++) {
            const trace_request *r = &t.requests[i];
            ridge_assert(r->n_input > 0 && r->n_output > 0 && r->at_us >= 0);
            ridge_assert(r->first_block + r->n_blocks <= t.n_blocks);
            ridge_assert(i == 0 || t.requests[i - 1].at_us <= r->at_us);
        }
    } else {
        ridge_assert(err.text[0] != '\0');
    }
    trace_free(&t);
}

static void note_event(void *context, const char *type, const char *data, size_t n) {
    buf *out = context;
    ridge_assert(data[n] == '\0');
    buf_puts(out, type);
    buf_putc(out, '|');
    buf_append(out, data, n);
    buf_putc(out, '\n');
}

static void fuzz_events(const char *text, size_t n) {
    sse_parser whole = {0}, split = {0};
    buf a = {0}, b = {0};
    ridge_status ok = sse_feed(&whole, text, n, note_event, &a, NULL);
    for (size_t i = 0; i < n; i++)
        ridge_assert(sse_feed(&split, text + i, 1, note_event, &b, NULL) == ok);
    ridge_assert(ok == RIDGE_OK && sse_end(&whole, note_event, &a, NULL) == RIDGE_OK);
    ridge_assert(sse_end(&split, note_event, &b, NULL) == RIDGE_OK);
    ridge_assert(a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0));
    sse_free(&whole);
    sse_free(&split);
    buf_free(&a);
    buf_free(&b);
}

static void fuzz_answer(const char *text, size_t n) {
    load_record r = {.prompt_tokens = -1, .cached_tokens = -1, .output_tokens = -1};
    XXH64_state_t *hash = XXH64_createState();
    bool has_text;
    ridge_error err = {0};
    if (hash == NULL) return;
    XXH64_reset(hash, 0);
    ridge_status status = answer_take(&r, hash, text, n, &has_text, &err);
    ridge_assert(status == RIDGE_OK || (err.code == status && err.text[0] != '\0'));
    ridge_assert(r.prompt_tokens >= -1 && r.cached_tokens >= -1 && r.output_tokens >= -1);
    XXH64_freeState(hash);
    mem_free(answer_error_message(text, n));
    mem_free(answer_first_model(text, n));
}

static void fuzz_flags(const char *text, size_t n) {
    char *copy = mem_strndup(text, n);
    length_spec s;
    load_url u;
    if (copy == NULL) return;
    if (length_parse(&s, copy, NULL) == RIDGE_OK)
        for (double at = 0; at < 1; at += 0.0625) {
            uint32_t tokens = length_draw(&s, at, 1 - at / 2);
            ridge_assert(tokens >= 1 && tokens <= LENGTH_MAX);
        }
    if (url_parse(&u, copy, NULL) == RIDGE_OK) {
        ridge_assert(u.host[0] != '\0' && u.port > 0);
        url_free(&u);
    }
    mem_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 4) {
    case 0: fuzz_trace(text, size - 1); break;
    case 1: fuzz_events(text, size - 1); break;
    case 2: fuzz_answer(text, size - 1); break;
    default: fuzz_flags(text, size - 1); break;
    }
    return 0;
}
