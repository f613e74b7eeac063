/* sample/counts: which tokens a sequence has seen, and how often it has produced them.
 *
 * A list of what was seen, and an open-addressing table from id to its place there, at most half
 * full: their room is fixed when the request arrives, so that counting a token inside a step cannot
 * fail; what is not used is never touched. The penalties are sums and products per distinct id,
 * hence independent of the list's order.
 */
#include <string.h>

#include "base/mem.h"
#include "sample/sampler_internal.h"

typedef struct {
    int32_t id;
    uint32_t n_output;
} entry;

struct sampler_counts {
    size_t n, max, mask;
    entry *entries;   /* [n] of [max] */
    uint32_t slots[]; /* [mask + 1] places in entries, from 1; 0: empty */
};

bool sampler_needs_counts(const sampler_params *p) {
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

ridge_status sampler_counts_create(sampler_counts **out, size_t max_ids, ridge_error *err) {
    size_t capacity = 16, bytes;
    while (capacity / 2 < max_ids)
        if (!mem_mul(capacity, 2, &capacity))
            return RIDGE_FAIL(err, RIDGE_EINVAL, "token counts: %zu tokens", max_ids);
    if (max_ids > UINT32_MAX || !mem_mul(capacity, sizeof(uint32_t), &bytes) ||
        !mem_add(bytes, sizeof(sampler_counts), &bytes))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "token counts: %zu tokens", max_ids);
    sampler_counts *c = mem_zalloc(1, bytes);
    if (c == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "token counts");
    c->mask = capacity - 1;
    c->max = max_ids;
    c->entries = mem_zalloc(max_ids, sizeof *c->entries);
    if (c->entries == NULL) {
        sampler_counts_destroy(c);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "token counts");
    }
    *out = c;
    return RIDGE_OK;
}

void sampler_counts_destroy(sampler_counts *c) {
    if (c == NULL) return;
    mem_free(c->entries);
    mem_free(c);
}

/* Where the id's place is, or would be. */
static uint32_t *find(sampler_counts *c, int32_t id) {
    size_t i = ((uint32_t)id * 2654435769u) & c->mask;
    while (c->slots[i] != 0 && c->entries[c->slots[i] - 1].id != id) i = (i + 1) & c->mask;
    return &c->slots[i];
}

bool sampler_counts_add(sampler_counts *c, int32_t id, bool is_output) {
    uint32_t *slot = find(c, id);
    bool is_new = *slot == 0;
    if (is_new) {
        ridge_assert(c->n < c->max);
        c->entries[c->n++] = (entry){.id = id};
        *slot = (uint32_t)c->n;
    }
    c->entries[*slot - 1].n_output += is_output;
    return is_new;
}

/* A slot can be emptied as none was filled after it: no other id's search passes over it. */
void sampler_counts_undo(sampler_counts *c, int32_t id, bool was_new) {
    uint32_t *slot = find(c, id);
    ridge_assert(*slot > 0 && c->entries[*slot - 1].n_output > 0);
    c->entries[*slot - 1].n_output--;
    if (!was_new) return;
    ridge_assert(*slot == c->n);
    c->n--;
    *slot = 0;
}

void sampler_counts_apply(const sampler_counts *c, const sampler_params *p, logit_row *row) {
    for (const entry *e = c->entries; e < c->entries + c->n; e++) {
        float *x = row_at(row, e->id);
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (e->n_output > 0) *x -= p->presence_penalty + p->frequency_penalty * (float)e->n_output;
    }
}
