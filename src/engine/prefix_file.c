/* engine/prefix_file: see prefix_file.h. */
#include "engine/prefix_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "base/newfile.h"

#define MAGIC "ridgekv1"
#define N_NAME 7 /* of it: what all versions of the format begin with */

typedef struct {
    char magic[8];
    fingerprint fingerprint;
    uint32_t block_size, n_groups;
    uint64_t block_bytes[KV_MAX_GROUPS];
    uint64_t n_nodes;
} prefix_header;

typedef struct {
    uint64_t salt;   /* of a root's child */
    uint32_t parent; /* 1 + its place in the file; 0: a root */
    uint32_t n_tokens, mask, n_uses;
} prefix_record;

static prefix_header header_of(const engine *e, uint64_t n_nodes) {
    prefix_header h;
    memset(&h, 0, sizeof h); /* no padding of any value */
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.fingerprint, e->fingerprint, sizeof h.fingerprint);
    h.block_size = e->params.block_size;
    h.n_groups = e->kv_layout.n_groups;
    h.n_nodes = n_nodes;
    for (uint32_t g = 0; g < h.n_groups; g++)
        h.block_bytes[g] = dev_kv_bytes_per_block(&e->kv_layout, g);
    return h;
}

/* Writing. */

typedef struct {
    FILE *file;
    XXH3_state_t *hash;
    uint8_t *block; /* the largest */
    bool failed;
} writer;

static void put(writer *w, const void *data, size_t n) {
    XXH3_64bits_update(w->hash, data, n);
    w->failed = w->failed || fwrite(data, 1, n, w->file) != n; /* newfile_commit sees it, too */
}

static uint32_t mask_of(const kv_node *node) {
    uint32_t mask = 0;
    for (uint32_t g = 0; g < KV_MAX_GROUPS; g++) mask |= (uint32_t)(node->blocks[g] >= 0) << g;
    return mask;
}

static size_t record_bytes(const prefix_header *h, uint32_t n_tokens, uint32_t mask) {
    size_t n = sizeof(prefix_record) + n_tokens * sizeof(int32_t);
    for (uint32_t g = 0; g < h->n_groups; g++) n += (mask >> g & 1) * h->block_bytes[g];
    return n;
}

static void put_node(writer *w, const engine *e, const prefix_header *h, const kv_node *node,
                     uint32_t parent) {
    prefix_record r = {.salt = kv_prefix_salt(node),
                       .parent = parent,
                       .n_tokens = node->n_tokens,
                       .mask = mask_of(node),
                       .n_uses = node->n_uses};
    put(w, &r, sizeof r);
    put(w, node->tokens, node->n_tokens * sizeof *node->tokens);
    for (uint32_t g = 0; g < h->n_groups; g++) {
        if (node->blocks[g] < 0) continue;
        e->dev->vtable->kv_read_block(e->dev, e->kv, g, node->blocks[g], w->block);
        put(w, w->block, h->block_bytes[g]);
    }
}

/* Those of the ranking that fit: a beginning of it, in which no parent is missing. */
static size_t n_within(const prefix_header *h, const kv_node *const *nodes, size_t n,
                       uint64_t max_bytes) {
    uint64_t bytes = sizeof *h + sizeof(uint64_t);
    for (size_t i = 0; i < n; i++) {
        bytes += record_bytes(h, nodes[i]->n_tokens, mask_of(nodes[i]));
        if (bytes > max_bytes) return i;
    }
    return n < UINT32_MAX ? n : UINT32_MAX - 1;
}

/* Where each node's parent stands: found by the block that it names, which is its alone. */
static void put_nodes(writer *w, const engine *e, const prefix_header *h,
                      const kv_node *const *nodes, uint32_t *place, uint32_t group) {
    for (uint32_t i = 0; i < h->n_nodes; i++) {
        int32_t above = nodes[i]->parent->blocks[group]; /* a root has none */
        put_node(w, e, h, nodes[i], above >= 0 ? place[above] : 0);
        place[nodes[i]->blocks[group]] = i + 1;
    }
}

static void put_all(writer *w, const engine *e, const prefix_header *h, const kv_node *const *nodes,
                    uint32_t *place, uint32_t group) {
    put(w, h, sizeof *h);
    put_nodes(w, e, h, nodes, place, group);
    uint64_t sum = XXH3_64bits_digest(w->hash);
    put(w, &sum, sizeof sum);
}

/* Readable by its owner alone: it holds prompts. */
static ridge_status write_to(const engine *e, const char *path, const kv_node *const *nodes,
                             const prefix_header *h, ridge_error *err) {
    uint32_t group = kv_cache_full_group(sched_cache(e->sched));
    uint64_t largest = 0;
    for (uint32_t g = 0; g < h->n_groups; g++)
        if (h->block_bytes[g] > largest) largest = h->block_bytes[g];
    writer w = {.hash = XXH3_createState(), .block = mem_alloc(largest)};
    uint32_t *place = mem_zalloc(e->kv_layout.groups[group].n_blocks, sizeof *place);
    newfile f = {0};
    ridge_status status;
    if (w.hash == NULL || w.block == NULL || place == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", path);
    else
        status = newfile_open(&f, path, S_IRUSR | S_IWUSR, err);
    if (status == RIDGE_OK) {
        w.file = f.file;
        XXH3_64bits_reset(w.hash);
        put_all(&w, e, h, nodes, place, group);
        status = newfile_commit(&f, err);
    }
    XXH3_freeState(w.hash);
    mem_free(w.block);
    mem_free(place);
    return status;
}

static ridge_status replace(engine *e, const char *path, uint64_t max_bytes, uint64_t *n_tokens,
                            ridge_error *err) {
    const kv_node **nodes;
    size_t n;
    RIDGE_TRY(kv_cache_ranked(sched_cache(e->sched), &nodes, &n, err));
    prefix_header h = header_of(e, 0);
    h.n_nodes = n_within(&h, nodes, n, max_bytes);
    if (n_tokens != NULL) *n_tokens = 0;
    for (size_t i = 0; i < h.n_nodes && n_tokens != NULL; i++) *n_tokens += nodes[i]->n_tokens;
    ridge_status status = n > 0 ? write_to(e, path, nodes, &h, err) : RIDGE_OK;
    mem_free(nodes);
    return status;
}

/* A link stays: the file that it leads to is replaced. */
ridge_status prefix_file_write(engine *e, const char *path, uint64_t max_bytes, uint64_t *n_tokens,
                               ridge_error *err) {
    char *real = realpath(path, NULL); /* NULL: nothing there yet */
    ridge_status status = replace(e, real != NULL ? real : path, max_bytes, n_tokens, err);
    free(real);
    return status;
}

/* Reading. */

static ridge_status check_header(const engine *e, const mapfile *f, const char *path,
                                 prefix_header *h, ridge_error *err) {
    uint64_t sum;
    if (f->size == 0) return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "%s: empty", path);
    if (memcmp(f->data, MAGIC, f->size < N_NAME ? f->size : N_NAME) != 0)
        return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED, "%s: not a prefix cache", path);
    if (f->size > N_NAME && f->data[N_NAME] != MAGIC[N_NAME])
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: of another version of the format", path);
    if (f->size < sizeof *h + sizeof sum)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: damaged: only %zu bytes", path, f->size);
    memcpy(h, f->data, sizeof *h);
    memcpy(&sum, f->data + f->size - sizeof sum, sizeof sum);
    if (XXH3_64bits(f->data, f->size - sizeof sum) != sum)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: damaged: its checksum differs", path);
    prefix_header own = header_of(e, h->n_nodes);
    if (memcmp(h->fingerprint, own.fingerprint, sizeof own.fingerprint) != 0)
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "%s: of another model, version or kind of cache: its fingerprint is "
                          "%.*s, this is %s",
                          path, (int)sizeof h->fingerprint - 1, h->fingerprint, own.fingerprint);
    if (memcmp(h, &own, sizeof own) != 0)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: of blocks of %u tokens, these have %u", path,
                          h->block_size, own.block_size);
    return RIDGE_OK;
}

typedef struct {
    prefix_record record;
    const uint8_t *tokens, *blocks; /* where they stand in the file */
} entry;

static bool are_tokens(const engine *e, const uint8_t *at, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, at + i * sizeof id, sizeof id);
        if (id < 0 || id >= engine_n_vocab(e)) return false;
    }
    return true;
}

/* Is what stands there a record? One that could not have been written is a damaged file, though
 * its checksum agrees. */
static bool read_entry(const engine *e, const prefix_header *h, const uint8_t **at,
                       const uint8_t *end, const entry *before, size_t i, entry *out) {
    prefix_record *r = &out->record;
    uint32_t full = kv_cache_full_mask(sched_cache(e->sched));
    if ((size_t)(end - *at) < sizeof *r) return false;
    memcpy(r, *at, sizeof *r);
    if (r->n_tokens < 1 || r->n_tokens > h->block_size || r->parent > i ||
        (r->mask & full) != full || r->mask >> h->n_groups != 0)
        return false;
    if (r->parent > 0 && (before[r->parent - 1].record.n_tokens < h->block_size ||
                          before[r->parent - 1].record.salt != r->salt))
        return false;
    size_t n = record_bytes(h, r->n_tokens, r->mask);
    if ((size_t)(end - *at) < n) return false;
    out->tokens = *at + sizeof *r;
    out->blocks = out->tokens + r->n_tokens * sizeof(int32_t);
    *at += n;
    return are_tokens(e, out->tokens, r->n_tokens);
}

static bool read_entries(const engine *e, const prefix_header *h, const mapfile *f,
                         entry *entries) {
    const uint8_t *at = f->data + sizeof *h, *end = f->data + f->size - sizeof(uint64_t);
    for (size_t i = 0; i < h->n_nodes; i++)
        if (!read_entry(e, h, &at, end, entries, i, &entries[i])) return false;
    return at == end;
}

static void restore(engine *e, const prefix_header *h, const entry *entries, kv_node **nodes,
                    int32_t *tokens, uint64_t *n_tokens) {
    kv_cache *cache = sched_cache(e->sched);
    for (size_t i = 0; i < h->n_nodes; i++) {
        const prefix_record *r = &entries[i].record;
        kv_node *parent = r->parent > 0 ? nodes[r->parent - 1] : NULL;
        if (r->parent > 0 && parent == NULL) continue; /* did not fit */
        memcpy(tokens, entries[i].tokens, r->n_tokens * sizeof *tokens);
        nodes[i] = kv_cache_restore(cache, parent, r->salt, tokens, r->n_tokens, r->mask);
        if (nodes[i] == NULL) continue;
        nodes[i]->n_uses = r->n_uses;
        *n_tokens += r->n_tokens;
        const uint8_t *block = entries[i].blocks;
        for (uint32_t g = 0; g < h->n_groups; g++) {
            if ((r->mask >> g & 1) == 0) continue;
            e->dev->vtable->kv_write_block(e->dev, e->kv, g, nodes[i]->blocks[g], block);
            block += h->block_bytes[g];
        }
    }
    kv_cache_settle(cache, nodes, h->n_nodes);
}

static ridge_status read_mapped(engine *e, const mapfile *f, const char *path, uint64_t *n_tokens,
                                ridge_error *err) {
    prefix_header h;
    RIDGE_TRY(check_header(e, f, path, &h, err));
    if (h.n_nodes > f->size / sizeof(prefix_record))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: damaged: %llu records", path,
                          (unsigned long long)h.n_nodes);
    entry *entries = mem_zalloc(h.n_nodes + 1, sizeof *entries);
    kv_node **nodes = mem_zalloc(h.n_nodes + 1, sizeof *nodes);
    int32_t *tokens = mem_zalloc(h.block_size, sizeof *tokens);
    ridge_status status = RIDGE_OK;
    if (entries == NULL || nodes == NULL || tokens == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "%s", path);
    else if (!read_entries(e, &h, f, entries))
        status = RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: damaged: a record is out of place", path);
    else
        restore(e, &h, entries, nodes, tokens, n_tokens);
    mem_free(entries);
    mem_free(nodes);
    mem_free(tokens);
    return status;
}

ridge_status prefix_file_read(engine *e, const char *path, uint64_t *n_tokens, ridge_error *err) {
    mapfile f;
    *n_tokens = 0;
    RIDGE_TRY(mapfile_open(&f, path, err));
    ridge_status status = read_mapped(e, &f, path, n_tokens, err);
    mapfile_close(&f);
    return status;
}
