/* device/count: see count.h. */
#include "device/count/count.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/count/count_internal.h"
#include "roof/work.h"

struct dev_kv {
    dev_kv_layout layout;
};

typedef struct {
    device base;
    count_params params;
    dev_account account;
    double bounds[ROOF_N_BOUNDS];
    double exchange_s; /* of the account's: rows on their way to experts and back */
} count_device;

static void count_destroy(device *d) {
    mem_free(d);
}

static ridge_status count_weight_upload(device *d, dev_weight **out, quant_type type,
                                        const void *data, uint32_t rows, uint32_t cols,
                                        bool embed_only, ridge_error *err) {
    (void)data;
    (void)embed_only;
    double bits = ((count_device *)d)->params.weight_bits;
    uint32_t block = quant_name(type) != NULL ? quant_block_values(type) : 0;
    if (block == 0 || rows == 0 || cols == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "weight %u x %u of type %d", rows, cols, (int)type);
    dev_weight *w = mem_zalloc(1, sizeof *w);
    if (w == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "weight");
    *w = (dev_weight){.type = type, .rows = rows, .cols = cols};
    w->row_bytes =
        bits > 0 && rows > 1 ? cols * bits / 8 : (double)cols / block * quant_block_bytes(type);
    *out = w;
    return RIDGE_OK;
}

static void count_weight_free(device *d, dev_weight *w) {
    (void)d;
    mem_free(w);
}

static ridge_status count_kv_create(device *d, dev_kv **out, const dev_kv_layout *layout,
                                    ridge_error *err) {
    (void)d;
    if (layout->n_groups > DEV_MAX_GROUPS || layout->type == DEV_KV_AUTO)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "KV pool of %u groups, type %s", layout->n_groups,
                          dev_kv_type_name(layout->type));
    dev_kv *kv = mem_zalloc(1, sizeof *kv);
    if (kv == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "KV pool");
    kv->layout = *layout;
    *out = kv;
    return RIDGE_OK;
}

static void count_kv_free(device *d, dev_kv *kv) {
    (void)d;
    mem_free(kv);
}

static void count_kv_copy(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                          uint32_t n_tokens) {
    (void)d;
    (void)kv;
    (void)group;
    (void)from;
    (void)to;
    (void)n_tokens;
}

static void count_kv_read_block(device *d, const dev_kv *kv, uint32_t group, int32_t block,
                                void *to) {
    (void)d;
    (void)block;
    memset(to, 0, dev_kv_bytes_per_block(&kv->layout, group));
}

static void count_kv_write_block(device *d, dev_kv *kv, uint32_t group, int32_t block,
                                 const void *from) {
    (void)d;
    (void)kv;
    (void)group;
    (void)block;
    (void)from;
}

/* A step ---------------------------------------------------------------------------------------
 */

#define ACTIVATION_BYTES 2 /* as on GPUs: 16 bits */

/* Sequences with one row, and with more, are two pieces of work to an attention. */
enum { DECODES, PROMPTS, N_PIECES };

typedef struct {
    double seen, read; /* tokens: of each row, summed up; of each sequence's rows together */
    double n_rows, latent_flops;
} count_piece;

/* What one submit asks of all operations: its rows, and what they see in each group. */
typedef struct {
    double n_rows, n_group_rows; /* group: of all ranks that share experts; 0: as many on each */
    const dev_kv *kv;
    count_piece groups[DEV_MAX_GROUPS][N_PIECES];
} count_step;

static void add_piece(count_piece *p, double n, double seen, double read, double latent_flops) {
    p->n_rows += n;
    p->seen += seen;
    p->read += read;
    p->latent_flops += latent_flops;
}

static void look(const dev_compiled *c, const dev_batch *batch, count_step *step) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        count_piece decodes = {0}, prompts = {0};
        bool latent = c->latents[g].rank > 0;
        for (uint32_t s = 0; s < batch->n_seqs; s++) {
            double n = batch->seqs[s].n_rows, first = batch->seqs[s].n_context - n;
            double seen = work_seen_tokens(c->windows[g], first, n);
            double read = work_read_tokens(c->windows[g], first, n);
            double flops = latent ? work_latent_flops(&c->latents[g], n, seen, read) : 0;
            add_piece(n > 1 ? &prompts : &decodes, n, seen, read, flops);
        }
        step->groups[g][DECODES] = decodes;
        step->groups[g][PROMPTS] = prompts;
    }
}

static roof_bound bound_of(const efficiency_peaks *peaks, const efficiency_op *work) {
    if (work->n_ranks > 0) return ROOF_LINK;
    bool compute = work->flops * peaks->bytes_per_s > work->bytes * peaks->flops_per_s;
    return compute ? ROOF_COMPUTE : ROOF_MEMORY;
}

/* Of the ranks that an operation is about, those on a node. */
static uint32_t ranks_on_node(const count_device *d, const dev_op *op) {
    uint32_t n = d->params.n_node / (op->rank_stride > 1 ? op->rank_stride : 1);
    if (d->params.n_node == 0 || n >= op->n_ranks) return op->n_ranks;
    return n > 1 ? n : 1;
}

static efficiency_peaks peaks_for(const count_device *d, const dev_op *op, efficiency_kind kind) {
    bool linear = kind == EFFICIENCY_LINEAR || kind == EFFICIENCY_EXPERTS;
    efficiency_peaks peaks = linear ? d->params.linear : d->params.other;
    double network = d->params.network_bytes_per_s;
    uint32_t n = ranks_on_node(d, op);
    if (kind == EFFICIENCY_SEND_NETWORK)
        peaks.link_bytes_per_s = network;
    else if (op->kind != DEV_ALL_TO_ALL && n < op->n_ranks && network > 0)
        peaks.link_bytes_per_s = n > 1 ? fmin(peaks.link_bytes_per_s, n * network) : network;
    return peaks;
}

static double seconds_of(const count_device *d, const dev_op *op, const efficiency_op *work) {
    const efficiency_peaks peaks = peaks_for(d, op, work->kind);
    return d->params.profile != NULL ? efficiency_seconds(d->params.profile, &peaks, work) : 0;
}

/* n operations of a kind that ask for `work` each. */
static void add(count_device *d, count_kind *k, const efficiency_op *work, double n) {
    const efficiency_peaks peaks = peaks_for(d, &k->op, work->kind);
    double seconds = n * seconds_of(d, &k->op, work);
    d->bounds[bound_of(&peaks, work)] += seconds;
    d->account.seconds += seconds;
    d->account.flops += n * work->flops;
    k->flops += n * work->flops;
    k->bytes += n * work->bytes;
    k->seconds += seconds;
}

static efficiency_op work_on(const count_kind *k, double n_rows) {
    return (efficiency_op){.kind = k->class,
                           .flops = k->flops_per_row * n_rows,
                           .bytes = k->weight_bytes + k->bytes_per_row * n_rows,
                           .intermediate_bytes = n_rows * (k->n_in + k->n_out) * ACTIVATION_BYTES,
                           .m = n_rows,
                           .n = k->n_out,
                           .k = k->n_in};
}

static void count_plain(count_device *d, count_kind *k, const count_step *step) {
    efficiency_op work = work_on(k, step->n_rows);
    d->account.weight_bytes += k->n * work.bytes;
    add(d, k, &work, k->n);
}

/* What ranks tell each other: activations. */
static void count_collective(count_device *d, count_kind *k, const count_step *step) {
    efficiency_op work = {.kind = k->class,
                          .bytes = step->n_rows * k->n_out * ACTIVATION_BYTES,
                          .n_ranks = (int)k->op.n_ranks};
    if (k->op.kind == DEV_SEND && ranks_on_node(d, &k->op) < k->op.n_ranks)
        work.kind = EFFICIENCY_SEND_NETWORK;
    add(d, k, &work, k->n);
}

static double imbalance(const count_device *d) {
    return d->params.expert_imbalance > 1 ? d->params.expert_imbalance : 1;
}

/* Of n places, those that hold any of a row's experts, by expectation. */
static double places_reached(const dev_op *op, double n) {
    return n * (1 - pow(1 - 1 / n, op->top_k));
}

static void count_all_to_all(count_device *d, count_kind *k, const count_step *step) {
    const dev_op *op = &k->op;
    double here = ranks_on_node(d, op), n_nodes = op->n_ranks / here;
    double sent = d->params.dispatch_bytes, bytes = step->n_rows * imbalance(d) * k->n_out;
    bytes *= sent > 0 && !op->back ? sent : ACTIVATION_BYTES;
    efficiency_op within = {.kind = EFFICIENCY_ALL_GATHER, /* each sends to all others, too */
                            .bytes = bytes * places_reached(op, op->n_ranks),
                            .n_ranks = (int)here};
    efficiency_op across = {.kind = EFFICIENCY_SEND_NETWORK,
                            .bytes = bytes * places_reached(op, n_nodes) * (1 - 1 / n_nodes),
                            .n_ranks = n_nodes > 1 ? (int)op->n_ranks : 1};
    bool network = seconds_of(d, op, &across) > seconds_of(d, op, &within);
    double before = d->account.seconds;
    add(d, k, network ? &across : &within, k->n);
    d->exchange_s += d->account.seconds - before;
}

/* The matrices of those experts that any row takes, each for its share of the rows. Where several
 * ranks have the experts, rows of all of them come to those of this one. */
static void count_experts(count_device *d, count_kind *k, const count_step *step) {
    const dev_op *op = &k->op;
    double n_ranks = op->n_ranks > 1 ? op->n_ranks : 1, here = count_experts_here(op);
    double all = step->n_group_rows > 0 ? step->n_group_rows : step->n_rows * n_ranks;
    double touched = work_experts_touched(op->n_experts, op->top_k, all) / n_ranks;
    double n_rows = all / n_ranks * (n_ranks > 1 ? imbalance(d) : 1);
    efficiency_op work = work_on(k, n_rows);
    work.bytes = k->weight_bytes * touched / here;
    work.m = n_rows * op->top_k / touched;
    work.n = (op->w[0]->rows + op->w[1]->rows) / here + op->w[2]->cols; /* by n_embd each */
    work.k = op->w[0]->cols;
    work.n_matrices = touched;
    d->account.weight_bytes += k->n * work.bytes;
    add(d, k, &work, k->n);
}

static void count_attention(count_device *d, count_kind *k, const count_step *step,
                            double token_bytes, double n) {
    for (int i = 0; i < N_PIECES; i++) {
        const count_piece *p = &step->groups[k->op.group][i];
        if (p->n_rows == 0) continue;
        efficiency_op work = work_on(k, p->n_rows);
        work.kind = i == PROMPTS ? EFFICIENCY_ATTENTION_PREFILL : EFFICIENCY_ATTENTION_DECODE;
        work.flops = k->op.kind == DEV_LATENT_ATTENTION
                         ? p->latent_flops
                         : work_attention_flops(k->op.n_heads, k->op.head_dim, p->seen);
        if (i == PROMPTS && step->n_rows > p->n_rows) work.bytes = 0; /* read for the decodes */
        d->account.weight_bytes += n * work.bytes;
        d->account.kv_bytes += n * token_bytes * p->read;
        work.bytes += token_bytes * p->read;
        add(d, k, &work, n);
    }
}

static void count_cache_write(count_device *d, count_kind *k, const count_step *step,
                              double token_bytes, double n) {
    efficiency_op work = work_on(k, step->n_rows);
    work.bytes = token_bytes * step->n_rows;
    d->account.kv_bytes += n * work.bytes;
    add(d, k, &work, n);
}

/* n layers, in which a token's entry has so many bytes. */
static void count_cached(count_device *d, count_kind *k, const count_step *step, double token_bytes,
                         double n) {
    (count_attends(&k->op) ? count_attention : count_cache_write)(d, k, step, token_bytes, n);
}

/* A group's first layers may be kept in another type. */
static void count_layers(count_device *d, count_kind *k, const count_step *step) {
    uint32_t g = k->op.group;
    if (step->kv == NULL) {
        count_cached(d, k, step, 0, k->n);
        return;
    }
    const dev_kv_layout *l = &step->kv->layout;
    uint32_t n_f16 = l->groups[g].n_f16_layers, n_first = n_f16 < k->n ? n_f16 : k->n;
    if (n_first > 0) count_cached(d, k, step, (double)dev_kv_token_bytes(l, g, 0), n_first);
    if (n_first < k->n)
        count_cached(d, k, step, (double)dev_kv_token_bytes(l, g, n_first), k->n - n_first);
}

static void count_kinds(count_device *d, count_kind *kinds, size_t n_kinds,
                        const count_step *step) {
    for (size_t i = 0; i < n_kinds; i++) {
        count_kind *k = &kinds[i];
        k->n_runs += k->n;
        if (count_attends(&k->op) || k->op.kind == DEV_KV_WRITE)
            count_layers(d, k, step);
        else if (k->op.kind == DEV_ALL_TO_ALL)
            count_all_to_all(d, k, step);
        else if (count_is_collective(&k->op))
            count_collective(d, k, step);
        else
            (k->op.kind == DEV_EXPERTS ? count_experts : count_plain)(d, k, step);
    }
}

/* Two halves of a step ------------------------------------------------------------------------- */

bool count_worth_halving(uint32_t n_tokens, uint32_t n_seqs) {
    return n_tokens >= (n_tokens > n_seqs ? COUNT_HALVED_PROMPTS : COUNT_HALVED_DECODES);
}

static bool is_halved(const count_device *d, const dev_compiled *c, const dev_batch *batch) {
    if (!d->params.halves || c->n_exchanges == 0) return false;
    if (batch->n_group_tokens > 0) return batch->group_halves;
    return count_worth_halving(batch->n_tokens, batch->n_seqs);
}

static count_step half_of(const count_step *step) {
    count_step half = *step;
    half.n_rows /= 2;
    half.n_group_rows /= 2;
    for (uint32_t g = 0; g < DEV_MAX_GROUPS; g++)
        for (int i = 0; i < N_PIECES; i++) {
            count_piece *p = &half.groups[g][i];
            *p = (count_piece){p->seen / 2, p->read / 2, p->n_rows / 2, p->latent_flops / 2};
        }
    return half;
}

/* Both halves have been counted one after the other: what of it is hidden takes no time, nor is it
 * waited for. Layers compute alike; between two exchanges of a half there is a piece of it. */
static void hide(count_device *d, dev_compiled *c) {
    double computed = d->account.seconds - d->exchange_s, n_pieces = 2.0 * c->n_exchanges;
    double beside = computed * c->n_exchanges / (2.0 * c->n_layers);
    double hidden = fmin(beside, d->exchange_s) * (1 - 1 / n_pieces);
    double *link = &d->bounds[ROOF_LINK], other_links = *link - d->exchange_s;
    d->account.seconds -= hidden;
    c->hidden_s += hidden;
    c->n_halved++;
    if (d->exchange_s <= beside) {
        *link -= hidden;
        return;
    }
    double left = 1 - hidden / computed;
    d->bounds[ROOF_COMPUTE] *= left;
    d->bounds[ROOF_MEMORY] *= left;
    *link = d->exchange_s + other_links * left;
}

static void count_halves(count_device *d, dev_compiled *c, const count_step *step) {
    const count_step half = half_of(step);
    for (int i = 0; i < 2; i++) count_kinds(d, c->kinds, c->n_body, &half);
    hide(d, c);
}

static ridge_status count_submit(device *d, dev_compiled *c, dev_kv *kv, const dev_batch *batch,
                                 ridge_error *err) {
    count_device *count = (count_device *)d;
    count->account = (dev_account){0};
    count->exchange_s = 0;
    memset(count->bounds, 0, sizeof count->bounds);
    if (batch->n_tokens == 0 || batch->n_tokens > c->max_tokens || batch->n_seqs > batch->n_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "batch of %u tokens in %u sequences, at most %u",
                          batch->n_tokens, batch->n_seqs, c->max_tokens);
    count_step step = {.n_rows = batch->n_tokens, .n_group_rows = batch->n_group_tokens, .kv = kv};
    look(c, batch, &step);
    if (is_halved(count, c, batch))
        count_halves(count, c, &step);
    else
        count_kinds(count, c->kinds, c->n_body, &step);
    c->n_tokens = batch->n_tokens;
    return RIDGE_OK;
}

static ridge_status count_wait(device *d, ridge_error *err) {
    (void)d;
    (void)err;
    return RIDGE_OK;
}

static ridge_status count_head(device *d, dev_compiled *c, const uint32_t *rows, uint32_t n_rows,
                               float *logits, ridge_error *err) {
    (void)rows;
    (void)logits;
    if (n_rows == 0 || n_rows > c->n_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "logits of %u rows of %u", n_rows, c->n_tokens);
    count_kinds((count_device *)d, c->kinds + c->n_body, c->n_kinds - c->n_body,
                &(count_step){.n_rows = n_rows});
    return RIDGE_OK;
}

static void count_share(device *d, uint32_t n, dev_share_fn fn, void *context) {
    (void)d;
    for (uint32_t i = 0; i < n; i++) fn(context, 0, i);
}

static void count_account(const device *d, dev_account *out) {
    *out = ((const count_device *)d)->account;
}

double device_count_set_bits(const dev_weight *w, double bits) {
    ((dev_weight *)w)->row_bytes = w->cols * bits / 8; /* lent to the model, but the device's own */
    return (double)w->rows * w->cols;
}

uint32_t device_count_kinds(const dev_compiled *c) {
    uint32_t kinds = 0;
    for (size_t i = 0; i < c->n_kinds; i++) {
        kinds |= 1u << c->kinds[i].class;
        if (count_attends(&c->kinds[i].op)) kinds |= 1u << EFFICIENCY_ATTENTION_DECODE;
    }
    return kinds;
}

void device_count_bounds(const device *d, double out[ROOF_N_BOUNDS]) {
    memcpy(out, ((const count_device *)d)->bounds, sizeof(double[ROOF_N_BOUNDS]));
}

/* In the order of their seconds; how many there are then. */
static size_t add_row(dev_profile_row *out, size_t n, size_t max, const dev_profile_row *row) {
    if (n == max) return n;
    size_t at = n;
    for (; at > 0 && out[at - 1].seconds < row->seconds; at--) out[at] = out[at - 1];
    out[at] = *row;
    return n + 1;
}

static size_t count_profile(device *d, dev_compiled *c, dev_profile_row *out, size_t max) {
    (void)d;
    size_t n = 0;
    dev_profile_row hidden = {
        .name = "hidden behind the other half", .n = c->n_halved, .seconds = -c->hidden_s};
    for (size_t i = 0; i < c->n_kinds; i++) {
        count_kind *k = &c->kinds[i];
        dev_profile_row row = {
            .n = k->n_runs, .seconds = k->seconds, .flops = k->flops, .bytes = k->bytes};
        count_name(&k->op, row.name);
        k->n_runs = 0;
        k->seconds = k->flops = k->bytes = 0;
        n = add_row(out, n, max, &row);
    }
    if (c->n_halved > 0) n = add_row(out, n, max, &hidden);
    c->n_halved = 0;
    c->hidden_s = 0;
    return n;
}

static const device_vtable vtable = {
    .destroy = count_destroy,
    .weight_upload = count_weight_upload,
    .weight_free = count_weight_free,
    .kv_create = count_kv_create,
    .kv_free = count_kv_free,
    .kv_copy = count_kv_copy,
    .kv_read_block = count_kv_read_block,
    .kv_write_block = count_kv_write_block,
    .compile = count_compile,
    .compiled_free = count_compiled_free,
    .submit = count_submit,
    .wait = count_wait,
    .head = count_head,
    .share = count_share,
    .account = count_account,
    .profile = count_profile,
};

ridge_status device_count_create(device **out, const count_params *p, ridge_error *err) {
    count_device *d = mem_zalloc(1, sizeof *d);
    if (d == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "device");
    d->base.vtable = &vtable;
    d->params = *p;
    *out = &d->base;
    return RIDGE_OK;
}
