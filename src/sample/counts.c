/* sample/counts: which tokens a sequence has seen, and how often it has produced them.
 *
 * An open-addressing table from id to counts, at most half full: its room is fixed when the request
 * arrives, so that counting a token inside a step cannot fail. The penalties are sums and products
 * per distinct id, hence independent of the table's order.
 */
#include <string.h>

#include "base/mem.h"
#include "sample/sampler_internal.h"

typedef struct {
    int32_t id; /* -1: empty */
    uint32_t n_output;
} entry;

struct sampler_counts {
    size_t mask, n, max;
    entry entries[]; /* [mask + 1] */
};

bool sampler_needs_counts(const sampler_params *p) {
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

ridge_status sampler_counts_create(sampler_counts **out, size_t max_tokens, ridge_error *err) {
    size_t capacity = 16, bytes;
    while (capacity / 2 < max_tokens)
        if (!mem_mul(capacity, 2, &capacity))
            return RIDGE_FAIL(err, RIDGE_EINVAL, "token counts: %zu tokens", max_tokens);
    if (!mem_mul(capacity, sizeof(entry), &bytes) || !mem_add(bytes, sizeof **out, &bytes))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "token counts: %zu tokens", max_tokens);
    sampler_counts *c = mem_alloc(bytes);
    if (c == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "token counts");
    *c = (sampler_counts){.mask = capacity - 1, .max = max_tokens};
    for (size_t i = 0; i < capacity; i++) c->entries[i] = (entry){.id = -1};
    *out = c;
    return RIDGE_OK;
}

void sampler_counts_destroy(sampler_counts *c) {
    mem_free(c);
}

/* Where the id is, or would be. */
static entry *find(sampler_counts *c, int32_t id) {
    size_t i = ((uint32_t)id * 2654435769u) & c->mask;
    while (c->entries[i].id != id && c->entries[i].id != -1) i = (i + 1) & c->mask;
    return &c->entries[i];
}

bool sampler_counts_add(sampler_counts *c, int32_t id, bool is_output) {
    entry *e = find(c, id);
    bool is_new = e->id == -1;
    if (is_new) {
        ridge_assert(c->n < c->max);
        c->n++;
        e->id = id;
    }
    e->n_output += is_output;
    return is_new;
}

/* An entry can be emptied as none was added after it: no other id's search passes over it. */
void sampler_counts_undo(sampler_counts *c, int32_t id, bool was_new) {
    entry *e = find(c, id);
    ridge_assert(e->id == id && e->n_output > 0);
    e->n_output--;
    if (!was_new) return;
    c->n--;
    e->id = -1;
}

void sampler_counts_apply(const sampler_counts *c, const sampler_params *p, logit_row *row) {
    for (size_t i = 0; i <= c->mask; i++) {
        const entry *e = &c->entries[i];
        if (e->id == -1) continue;
        float *x = row_at(row, e->id);
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (e->n_output > 0) *x -= p->presence_penalty + p->frequency_penalty * (float)e->n_output;
    }
}
