/* engine/stop: see stop.h. */
#include "engine/stop.h"

#include <string.h>

#include "base/mem.h"

static ridge_status string_init(stop_string *s, const char *text, size_t len, ridge_error *err) {
    s->bytes = mem_strndup(text, len);
    s->border = mem_zalloc(len + 1, sizeof *s->border);
    s->len = len;
    if (s->bytes == NULL || s->border == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "stop strings");
    for (size_t i = 1, k = 0; i < len; i++) {
        while (k > 0 && text[i] != text[k]) k = s->border[k];
        k += text[i] == text[k];
        s->border[i + 1] = (uint32_t)k;
    }
    return RIDGE_OK;
}

ridge_status stop_filter_init(stop_filter *f, const char *const *strings, size_t n,
                              ridge_error *err) {
    size_t total = 0;
    *f = (stop_filter){0};
    if (n == 0) return RIDGE_OK;
    if (n > STOP_MAX_STRINGS)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "stop: %zu strings, at most %d", n, STOP_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (len == 0) return RIDGE_FAIL(err, RIDGE_EINVAL, "stop: a stop string must not be empty");
        total += len;
    }
    if (total > STOP_MAX_BYTES)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "stop: %zu bytes, at most %d", total, STOP_MAX_BYTES);
    f->strings = mem_zalloc(n, sizeof *f->strings);
    if (f->strings == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "stop strings");
    f->n = n;
    ridge_status status = RIDGE_OK;
    for (size_t i = 0; i < n && status == RIDGE_OK; i++)
        status = string_init(&f->strings[i], strings[i], strlen(strings[i]), err);
    if (status != RIDGE_OK) stop_filter_deinit(f);
    return status;
}

void stop_filter_deinit(stop_filter *f) {
    for (size_t i = 0; i < f->n; i++) {
        mem_free(f->strings[i].bytes);
        mem_free(f->strings[i].border);
    }
    mem_free(f->strings);
    buf_free(&f->held);
    *f = (stop_filter){0};
}

/* Advances every string by one byte: the length of the longest complete one (f->found), else 0. */
static size_t advance(stop_filter *f, char c) {
    size_t complete = 0;
    for (size_t i = 0; i < f->n; i++) {
        stop_string *s = &f->strings[i];
        size_t k = s->matched;
        while (k > 0 && s->bytes[k] != c) k = s->border[k];
        k += s->bytes[k] == c;
        s->matched = k;
        if (k < s->len || k <= complete) continue;
        complete = k;
        f->found = i;
    }
    return complete;
}

static size_t longest_match(const stop_filter *f) {
    size_t longest = 0;
    for (size_t i = 0; i < f->n; i++)
        if (f->strings[i].matched > longest) longest = f->strings[i].matched;
    return longest;
}

/* Lets the first n held bytes go. */
static void let_go(stop_filter *f, size_t n, buf *out) {
    buf_append(out, f->held.data, n);
    f->held.len -= n;
    if (n > 0) memmove(f->held.data, f->held.data + n, f->held.len);
}

bool stop_filter_push(stop_filter *f, const char *text, size_t n, buf *out) {
    if (f->stopped) return true;
    if (f->n == 0) {
        buf_append(out, text, n);
        return false;
    }
    buf_append(&f->held, text, n);
    if (f->held.failed) {
        out->failed = true; /* the owner looks there */
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        size_t complete = advance(f, text[i]);
        if (complete == 0) continue;
        let_go(f, f->held.len - n + i + 1 - complete, out);
        f->stopped = true;
        buf_clear(&f->held);
        return true;
    }
    let_go(f, f->held.len - longest_match(f), out);
    return false;
}

void stop_filter_flush(stop_filter *f, buf *out) {
    if (f->held.len > 0) let_go(f, f->held.len, out);
    for (size_t i = 0; i < f->n; i++) f->strings[i].matched = 0;
}
