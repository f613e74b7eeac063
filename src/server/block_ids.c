/* server/block_ids: see block_ids.h.
 *
 * Two tables, the newer half of what came and the older. What is found in the older moves to the
 * newer; when the newer is full the older is emptied and they change places.
 */
#include "server/block_ids.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"

typedef struct {
    uint64_t hash; /* 0: empty */
    uint64_t id;
} slot;

typedef struct {
    slot *slots; /* [2 * capacity], so that at most half are in use */
    size_t n;
} table;

struct block_ids {
    size_t capacity;
    table newer, older;
    uint64_t next_id;
};

ridge_status block_ids_create(block_ids **out, size_t capacity, ridge_error *err) {
    ridge_assert(capacity > 0 && (capacity & (capacity - 1)) == 0);
    block_ids *b = mem_zalloc(1, sizeof *b);
    if (b != NULL) {
        b->capacity = capacity;
        b->newer.slots = mem_zalloc(2 * capacity, sizeof(slot));
        b->older.slots = mem_zalloc(2 * capacity, sizeof(slot));
    }
    if (b == NULL || b->newer.slots == NULL || b->older.slots == NULL) {
        block_ids_destroy(b);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "names for %zu blocks", capacity);
    }
    *out = b;
    return RIDGE_OK;
}

void block_ids_destroy(block_ids *b) {
    if (b == NULL) return;
    mem_free(b->newer.slots);
    mem_free(b->older.slots);
    mem_free(b);
}

size_t block_ids_count(size_t n_tokens) {
    return n_tokens / BLOCK_IDS_TOKENS + (n_tokens % BLOCK_IDS_TOKENS != 0);
}

/* The hash's slot, or the empty one where it would be. */
static slot *slot_of(const block_ids *b, const table *t, uint64_t hash) {
    size_t mask = 2 * b->capacity - 1, i = hash & mask;
    while (t->slots[i].hash != 0 && t->slots[i].hash != hash) i = (i + 1) & mask;
    return &t->slots[i];
}

static void age(block_ids *b) {
    table emptied = b->older;
    memset(emptied.slots, 0, 2 * b->capacity * sizeof(slot));
    emptied.n = 0;
    b->older = b->newer;
    b->newer = emptied;
}

static uint64_t id_of(block_ids *b, uint64_t hash) {
    slot *s = slot_of(b, &b->newer, hash);
    if (s->hash != 0) return s->id;
    const slot *before = slot_of(b, &b->older, hash);
    uint64_t id = before->hash != 0 ? before->id : b->next_id++;
    if (b->newer.n == b->capacity) {
        age(b);
        s = slot_of(b, &b->newer, hash);
    }
    *s = (slot){hash, id};
    b->newer.n++;
    return id;
}

void block_ids_name(block_ids *b, uint64_t salt, const int32_t *tokens, size_t n_tokens,
                    uint64_t *ids) {
    uint64_t hash = salt;
    for (size_t i = 0; i < n_tokens; i += BLOCK_IDS_TOKENS) {
        size_t n = n_tokens - i < BLOCK_IDS_TOKENS ? n_tokens - i : BLOCK_IDS_TOKENS;
        hash = XXH3_64bits_withSeed(tokens + i, n * sizeof *tokens, hash);
        if (hash == 0) hash = 1; /* 0 is no hash */
        ids[i / BLOCK_IDS_TOKENS] = id_of(b, hash);
    }
}
