/* Fuzzes what a client sends: the head of a request, a chunked body, and a body of the API.
 *
 * The first byte chooses which. The backend is the least that the parser asks for: a token per
 * byte, and messages rendered by name. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api_request.h"
#include "server/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static backend_info get_info(void *self) {
    (void)self;
    return (backend_info){.n_vocab = 256, .max_model_len = 4096, .fingerprint = ""};
}

static ridge_status encode(void *self, const char *text, size_t n, bool add_special, int32_t **ids,
                           size_t *n_ids, ridge_error *err) {
    (void)self;
    (void)add_special;
    *ids = mem_zalloc(n + 1, sizeof **ids);
    if (*ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "ids");
    for (size_t i = 0; i < n; i++) (*ids)[i] = (unsigned char)text[i];
    *n_ids = n;
    return RIDGE_OK;
}

static size_t min_tokens(void *self, const char *text, size_t n) {
    (void)self;
    (void)text;
    return n;
}

static ridge_status render(void *self, json_t *variables, buf *out, ridge_error *err) {
    (void)self;
    (void)err;
    char *text = json_dumps(variables, JSON_COMPACT);
    if (text != NULL) buf_puts(out, text);
    free(text);
    return RIDGE_OK;
}

static void detokenize(void *self, detokenizer *d, int32_t id, bool special, buf *out) {
    (void)self;
    (void)d;
    (void)special;
    buf_putc(out, (char)id);
}

static void detokenize_end(void *self, detokenizer *d, buf *out) {
    (void)self;
    (void)d;
    (void)out;
}

static void fuzz_body(api_kind kind, const char *body, size_t n) {
    static const api_names names = {"m", "m.gguf"};
    const server_backend backend = {.info = get_info,
                                    .encode = encode,
                                    .min_tokens = min_tokens,
                                    .render = render,
                                    .detokenize = detokenize,
                                    .detokenize_end = detokenize_end};
    api_request r = {0};
    api_error e = {0};
    bool ok = api_request_read(&r, kind, body, n, &backend, &names, &e);
    ridge_assert(ok == (e.status == 0));
    if (ok) ridge_assert(r.n_prompts > 0 && r.n > 0 && r.prompts[0].n_ids > 0);
    buf b = {0};
    api_error_write(&e, &b);
    buf_free(&b);
    api_request_free(&r);
}

static void fuzz_head(const char *text, size_t n) {
    size_t length = http_head_length(text, n, 0);
    bool bare = http_head_has_bare_lf(text, n, 0);
    if (length == 0) return;
    http_head h;
    const char *why = NULL;
    char *copy = mem_strndup(text, length);
    if (copy == NULL) return;
    int status = http_head_parse(&h, copy, length, &why);
    ridge_assert(status == 0 || why != NULL);
    if (http_head_has_bare_lf(text, length, 0)) ridge_assert(bare && status != 0);
    if (status == 0) ridge_assert(h.path != NULL && (h.chunked ? h.content_length == 0 : true));
    mem_free(copy);
}

/* The same bytes whole and one by one: the same body. */
static void fuzz_chunks(const char *data, size_t n) {
    http_chunks whole = {0}, split = {0};
    buf a = {0}, b = {0};
    size_t used = 0, at = 0, one;
    http_chunks_status wanted = http_chunks_feed(&whole, data, n, &a, &used), got = 0;
    while (at < n && got == HTTP_CHUNKS_MORE) {
        got = http_chunks_feed(&split, data + at, 1, &b, &one);
        at += one;
    }
    ridge_assert(wanted == got && at == used && a.len == b.len);
    ridge_assert(a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
    buf_free(&a);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 4) {
    case 0: fuzz_body(API_CHAT, text, size - 1); break;
    case 1: fuzz_body(API_COMPLETIONS, text, size - 1); break;
    case 2: fuzz_head(text, size - 1); break;
    default: fuzz_chunks(text, size - 1); break;
    }
    return 0;
}
