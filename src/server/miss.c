/* server/miss: see miss.h. */
#include "server/miss.h"

#include <string.h>

#define AROUND 12      /* tokens shown before the difference, and from it on */
#define BEGUN 3        /* tokens before those in which a character that they end may have begun */
#define MIN_SAME 8     /* tokens in a row that count as the same again */
#define MAX_CHANGE 128 /* tokens that one change may span, in the prompt or the cached text */
#define MAX_CHANGES 64 /* that are looked through */

typedef struct {
    const int32_t *tokens;
    uint32_t n;
} span;

static span after(span s, uint32_t n) {
    return (span){s.tokens + n, s.n - n};
}

static uint32_t common(span a, span b) {
    uint32_t n = 0;
    while (n < a.n && n < b.n && a.tokens[n] == b.tokens[n]) n++;
    return n;
}

/* The nearest place behind a change where the two go on alike, for MIN_SAME tokens or to the end of
 * the prompt. False: there is none near. */
static bool meet_again(span *prompt, span *near) {
    for (uint32_t sum = 1; sum < 2 * MAX_CHANGE; sum++)
        for (uint32_t i = sum < MAX_CHANGE ? 0 : sum - MAX_CHANGE; i <= sum && i <= MAX_CHANGE;
             i++) {
            if (i >= prompt->n || sum - i >= near->n) continue;
            span a = after(*prompt, i), b = after(*near, sum - i);
            if (a.tokens[0] != b.tokens[0]) continue;
            uint32_t wanted = a.n < MIN_SAME ? a.n : MIN_SAME;
            if (common((span){a.tokens, wanted}, b) < wanted) continue;
            *prompt = a;
            *near = b;
            return true;
        }
    return false;
}

static uint32_t count_same(span prompt, span near) {
    uint32_t n = 0;
    for (int i = 0; i < MAX_CHANGES && meet_again(&prompt, &near); i++) {
        uint32_t same = common(prompt, near);
        n += same;
        prompt = after(prompt, same);
        near = after(near, same);
    }
    return n;
}

prefix_miss miss_find(const int32_t *prompt, uint32_t n_prompt, const engine_usage *u, bool asked) {
    const engine_miss *m = &u->miss;
    prefix_miss found = {.kind = MISS_OFF};
    if (!asked) return found;
    uint32_t left_at = m->left_at < n_prompt ? m->left_at : n_prompt;
    span rest = {prompt + left_at, n_prompt - left_at}, near = {m->near, m->n_near};
    uint32_t same = common(rest, near);
    found.at = left_at + same;
    if (same < rest.n && same < near.n)
        found.n_saveable = count_same(after(rest, same), after(near, same));
    if (found.at + 1 >= n_prompt)
        found.kind = MISS_NONE;
    else if (found.at == 0 && found.n_saveable == 0)
        found.kind = MISS_COLD;
    else
        found.kind = same < near.n ? MISS_DIFFERS : MISS_NEW;
    if (found.kind != MISS_DIFFERS) found.n_saveable = 0;
    return found;
}

/* ---- JSON ---- */

/* Of the text of n tokens what those after the first n_begun bring, in whole characters: one that
 * the end cuts is left out, but at the end of all there is. */
static void put_text(const server_backend *b, const int32_t *ids, uint32_t n_begun, uint32_t n,
                     bool is_all, buf *out) {
    detokenizer d = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (i == n_begun) buf_clear(out);
        b->detokenize(b->self, &d, ids[i], true, out);
    }
    if (is_all) b->detokenize_end(b->self, &d, out);
}

/* What both begin with, then what each goes on with. */
static void write_texts(const server_backend *b, const int32_t *prompt, uint32_t n_prompt,
                        const engine_miss *m, uint32_t at, buf *out) {
    uint32_t n_before = at < BEGUN + AROUND ? at : BEGUN + AROUND, n_same = at - m->left_at;
    uint32_t n_begun = n_before > AROUND ? n_before - AROUND : 0;
    int32_t ids[BEGUN + 2 * AROUND];
    memcpy(ids, prompt + at - n_before, n_before * sizeof *ids);
    const struct {
        const char *name;
        span on;
    } texts[] = {{"prompt_text", {prompt + at, n_prompt - at}},
                 {"cached_text", {m->near + n_same, m->n_near - n_same}}};
    for (size_t i = 0; i < 2; i++) {
        buf text = {0};
        span on = texts[i].on;
        bool is_all = on.n <= AROUND;
        if (!is_all) on.n = AROUND;
        memcpy(ids + n_before, on.tokens, on.n * sizeof *ids);
        put_text(b, ids, n_begun, n_before + on.n, is_all, &text);
        buf_printf(out, ",\"%s\":", texts[i].name);
        buf_json_string(out, text.len > 0 ? text.data : "", text.len);
        out->failed |= text.failed;
        buf_free(&text);
    }
}

static void put_sentence(const prefix_miss *m, uint32_t n_prompt, uint32_t n_computed, buf *out) {
    switch (m->kind) {
    case MISS_OFF: buf_puts(out, "The prefix cache was not asked."); break;
    case MISS_COLD: buf_puts(out, "The prefix cache knew nothing that begins like this."); break;
    case MISS_NONE: buf_puts(out, "The prefix cache knew the whole prompt."); break;
    case MISS_NEW:
        buf_printf(out, "Up to token %u of %u the prompt was known; what follows is new.", m->at,
                   n_prompt);
        break;
    case MISS_DIFFERS:
        buf_printf(out, "At token %u of %u the prompt differs from the nearest cached one", m->at,
                   n_prompt);
        if (m->n_saveable > 0)
            buf_printf(out,
                       "; with the same text there, %u token%s more (%.0f %% of its prefill) would "
                       "have come from the cache",
                       m->n_saveable, plural(m->n_saveable), 100.0 * m->n_saveable / n_computed);
        buf_putc(out, '.');
        break;
    }
}

void miss_write(const server_backend *b, const int32_t *prompt, uint32_t n_prompt,
                const engine_usage *u, bool asked, buf *out) {
    static const char *const names[] = {"off", "cold", "none", "new", "differs"};
    prefix_miss m = miss_find(prompt, n_prompt, u, asked);
    uint32_t n_computed = n_prompt > u->cached_tokens ? n_prompt - u->cached_tokens : 1;
    if (m.n_saveable > n_computed) m.n_saveable = n_computed;
    buf_printf(out, "\"miss\":\"%s\",\"explanation\":\"", names[m.kind]);
    put_sentence(&m, n_prompt, n_computed, out);
    buf_puts(out, "\",\"left_at\":");
    if (m.kind == MISS_OFF)
        buf_puts(out, "null");
    else
        buf_printf(out, "%u", m.at);
    buf_printf(out, ",\"saveable_tokens\":%u", m.n_saveable);
    buf_json_field(out, "saveable_part", (double)m.n_saveable / n_computed);
    if (m.kind == MISS_DIFFERS) write_texts(b, prompt, n_prompt, &u->miss, m.at, out);
}
