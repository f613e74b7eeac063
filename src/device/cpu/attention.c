/* device/cpu/attention: how attention is shared out. The arithmetic is kernels->attend and merge,
 * and for the keys of a q8_0 cache the integer product of linear layers.
 *
 * A partial (maximum, sum, output) covers one span of 256 context tokens; a row's partials are
 * merged in span order. Many rows of a sequence go in blocks that walk the spans themselves; few
 * rows (decode) are split by span, so that one long sequence feeds every member, and are merged by
 * the row-wise step that follows. Both give the same bits.
 */
#include <math.h>
#include <string.h>

#include "device/cpu/run.h"

void cpu_attention_plan(dev_compiled *c) {
    size_t used = 0;
    for (uint32_t s = 0; s < c->batch.n_seqs; s++) {
        const dev_seq *seq = &c->batch.seqs[s];
        cpu_seq *plan = &c->seqs[s];
        plan->n_spans = (seq->n_context + CPU_SPAN - 1) / CPU_SPAN;
        plan->first_partial = used;
        size_t n = (size_t)seq->n_rows * c->max_heads * plan->n_spans;
        plan->split =
            seq->n_rows <= CPU_SPLIT_ROWS && plan->n_spans > 1 && used + n <= CPU_MAX_SPLITS;
        if (plan->split) used += n;
    }
}

/* Tokens [*begin, *end) that a query at `position` sees. */
static void visible(const dev_op *op, uint32_t position, uint32_t *begin, uint32_t *end) {
    *end = position + 1;
    *begin = op->window != 0 && *end > op->window ? *end - op->window : 0;
}

/* A chunk of work: rows [first, first + n) of the batch, one sequence, times the heads of one KV
 * head, over spans [span, end_span) of the context. */
typedef struct {
    const dev_seq *seq;
    uint32_t first, n, kv_head, n_queries;
    uint32_t begin, end; /* visible to any of the rows */
    uint32_t span, end_span;
    bool split;
} attention_job;

static uint32_t rows_per_job(const dev_op *op) {
    return CPU_QUERIES / (op->n_heads / op->n_kv_heads);
}

static bool is_split(const cpu_run *r, const dev_op *op, uint32_t s) {
    return r->c->seqs[s].split && r->c->batch.seqs[s].n_rows <= rows_per_job(op);
}

/* Rows of a sequence from its row-th on, all spans that they see. */
static attention_job make_job(const cpu_run *r, const dev_op *op, uint32_t s, uint32_t row,
                              uint32_t kv_head) {
    const dev_seq *seq = &r->c->batch.seqs[s];
    uint32_t left = seq->n_rows - row, most = rows_per_job(op), unused;
    attention_job j = {.seq = seq, .first = seq->first_row + row, .kv_head = kv_head};
    j.n = left < most ? left : most;
    j.n_queries = j.n * (op->n_heads / op->n_kv_heads);
    const int32_t *positions = r->c->batch.positions + j.first;
    visible(op, (uint32_t)positions[0], &j.begin, &unused);
    visible(op, (uint32_t)positions[j.n - 1], &unused, &j.end);
    j.span = j.begin / CPU_SPAN;
    j.end_span = (j.end + CPU_SPAN - 1) / CPU_SPAN;
    return j;
}

/* Query i of a job: row i / gqa, head i % gqa of the KV head. */
static const float *query(const dev_op *op, const attention_job *j, uint32_t i, const float *q,
                          size_t ldq) {
    uint32_t gqa = op->n_heads / op->n_kv_heads, head = j->kv_head * gqa + i % gqa;
    return q + (j->first + i / gqa) * ldq + (size_t)head * op->head_dim;
}

static bool is_q8(const cpu_run *r, const dev_op *op) {
    return dev_kv_layer_type(&r->c->kv->layout, op->group, op->layer) == DEV_KV_Q8_0;
}

/* The queries as kernels take them: packed in s->queries; for the keys of a q8_0 cache in s->x, in
 * tiles as cpu_xblock says, turned as the keys are (kv.c). */
static void prepare_queries(const cpu_run *r, const dev_op *op, const attention_job *j,
                            const float *q, size_t ldq, cpu_scratch *s) {
    const float *queries[CPU_QUERIES];
    uint32_t n_blocks = op->head_dim / CPU_BLOCK;
    for (uint32_t i = 0; i < j->n_queries; i++) queries[i] = query(op, j, i, q, ldq);
    if (!is_q8(r, op)) {
        r->k->pack_queries(queries, j->n_queries, op->head_dim, s->queries);
        return;
    }
    for (uint32_t i = 0; i < j->n_queries; i++) {
        uint32_t first = i / CPU_TILE * CPU_TILE, left = j->n_queries - first;
        r->k->hadamard(queries[i], s->entry, op->head_dim);
        r->k->quantize(s->entry, op->head_dim, s->x + (size_t)first * n_blocks + (i - first),
                       left < CPU_TILE ? left : CPU_TILE);
    }
}

/* s->acc[0] = the queries times n panels of keys. */
static void multiply_keys(const cpu_run *r, const attention_job *j, const void *const *k,
                          uint32_t n, uint32_t n_blocks, cpu_scratch *s) {
    const cpu_format *f = cpu_format_find(QUANT_Q8_0);
    if (j->n_queries <= r->k->max_packed) {
        for (uint32_t p = 0; p < n; p++)
            r->k->gemm_packed(&(cpu_packed_args){.format = f,
                                                 .panel = k[p],
                                                 .x = s->x,
                                                 .last = true,
                                                 .n_blocks = n_blocks,
                                                 .n_tokens = j->n_queries,
                                                 .acc = s->acc[0] + p * CPU_PANEL});
        return;
    }
    memset(s->acc[0], 0, (size_t)j->n_queries * CPU_PAIR * sizeof(float));
    for (uint32_t b = 0; b < n_blocks; b += CPU_K_BLOCKS) {
        uint32_t count = n_blocks - b < CPU_K_BLOCKS ? n_blocks - b : CPU_K_BLOCKS;
        for (uint32_t p = 0; p < n; p++)
            r->k->unpack(f, (const uint8_t *)k[p] + b * cpu_super_bytes(f), count,
                         s->blocks + (size_t)p * CPU_K_BLOCKS);
        for (uint32_t t = 0; t < j->n_queries; t += CPU_TILE) {
            uint32_t left = j->n_queries - t, width = left < CPU_TILE ? left : CPU_TILE;
            r->k->gemm(&(cpu_gemm_args){.format = f,
                                        .w = s->blocks,
                                        .x = s->x + (size_t)t * n_blocks + (size_t)b * width,
                                        .n_panels = n,
                                        .n_blocks = count,
                                        .width = width,
                                        .acc = s->acc[0] + (size_t)t * CPU_PAIR,
                                        .fetch = &(cpu_fetch){.bytes = 0}});
        }
    }
}

static void fetch_run(const uint8_t *run, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += MEM_LINE) __builtin_prefetch(run + i, 0, 2);
}

/* Scores of the groups of 16 tokens [first, end) of a span, of a q8_0 cache: a group is a panel of
 * weights, and the product the one of linear layers. While two groups are worked on, a run of what
 * is ahead is asked for; two where the sums that follow ask for none. */
static void score_q8(const cpu_run *r, const dev_op *op, const attention_job *j,
                     const cpu_kv_span *kv, uint32_t first, uint32_t end, cpu_ahead *ahead,
                     cpu_scratch *s) {
    for (uint32_t g = first; g < end; g += 2) {
        uint32_t n = g + 1 < end ? 2 : 1;
        for (uint32_t i = r->k->fetches; i < 2 && ahead->first < ahead->end; i++)
            fetch_run(ahead->runs[ahead->first++], ahead->bytes);
        multiply_keys(r, j, kv->k + g, n, op->head_dim / CPU_BLOCK, s);
        r->k->store_sums(s->acc[0], NULL, j->n_queries, n * CPU_PANEL, s->scores + g * 16,
                         CPU_SPAN);
    }
}

/* What of a span the rows of a job see: tokens [*begin, *end). */
static void seen_of_span(const attention_job *j, uint32_t span, uint32_t *begin, uint32_t *end) {
    uint32_t base = span * CPU_SPAN;
    *begin = j->begin > base ? j->begin : base;
    *end = j->end < base + CPU_SPAN ? j->end : base + CPU_SPAN;
}

static void add_ahead(const cpu_run *r, const dev_op *op, const attention_job *j, uint32_t span,
                      cpu_kv_part part, cpu_ahead *ahead) {
    uint32_t begin, end;
    seen_of_span(j, span, &begin, &end);
    cpu_kv_ahead(r->c->kv, op->group, op->layer, j->seq->blocks[op->group], j->kv_head, begin, end,
                 part, ahead);
}

/* What this member needs while and after it works on a span of a job, `next` (NULL: unknown) being
 * the job after it: the span that follows; or, where that would drive this one out of the
 * second-level cache, this span's own values and then the next one's keys. Nothing for many
 * queries, which do not wait for memory. */
static cpu_ahead find_ahead(const cpu_run *r, const dev_op *op, const attention_job *j,
                            uint32_t span, const attention_job *next) {
    cpu_ahead ahead = {.end = 0};
    if (j->n_queries > CPU_WIDEN_QUERIES) return ahead;
    dev_kv_type type = dev_kv_layer_type(&r->c->kv->layout, op->group, op->layer);
    bool apart =
        !is_q8(r, op) && 2 * CPU_SPAN * dev_kv_entry_bytes(type, op->head_dim) > CPU_NEAR_BYTES;
    if (apart) add_ahead(r, op, j, span, CPU_KV_VALUES, &ahead);
    cpu_kv_part part = apart ? CPU_KV_KEYS : CPU_KV_BOTH;
    if (span + 1 < j->end_span)
        add_ahead(r, op, j, span + 1, part, &ahead);
    else if (next != NULL)
        add_ahead(r, op, next, next->span, part, &ahead);
    return ahead;
}

/* Makes the partials of every query of the job: m, l [n_queries] and s->partial. */
static void attend_span(const cpu_run *r, const dev_op *op, const attention_job *j, uint32_t span,
                        const attention_job *next, cpu_scratch *s, float *m, float *l) {
    uint32_t base = span * CPU_SPAN, gqa = op->n_heads / op->n_kv_heads, begin, end;
    seen_of_span(j, span, &begin, &end);
    cpu_kv_span kv;
    cpu_kv_view(r->k, r->c->kv, op->group, op->layer, j->seq->blocks[op->group], j->kv_head, begin,
                end, j->n_queries > CPU_WIDEN_QUERIES, s->k, s->v, &kv);
    cpu_ahead ahead = find_ahead(r, op, j, span, next);
    bool q8 = is_q8(r, op);
    if (q8) score_q8(r, op, j, &kv, (begin - base) / 16, (end - base + 15) / 16, &ahead, s);
    if (kv.type == DEV_KV_Q8_0) cpu_kv_scales(r->k, &kv, op->head_dim, begin, end, s->scales);
    uint32_t begins[CPU_QUERIES], ends[CPU_QUERIES];
    for (uint32_t i = 0; i < j->n_queries; i++) {
        uint32_t from, to;
        visible(op, (uint32_t)r->c->batch.positions[j->first + i / gqa], &from, &to);
        begins[i] = from > base ? from - base : 0;
        ends[i] = to < base ? 0 : to - base < CPU_SPAN ? to - base : CPU_SPAN;
    }
    r->k->attend(&(cpu_span_args){.k = q8 ? NULL : kv.k,
                                  .v = kv.v,
                                  .ahead = &ahead,
                                  .type = kv.type,
                                  .scales = s->scales,
                                  .head_dim = op->head_dim,
                                  .n = j->n_queries,
                                  .q = s->queries,
                                  .begin = begins,
                                  .end = ends,
                                  .scale = op->scale,
                                  .softcap = op->softcap,
                                  .scores = s->scores,
                                  .m = m,
                                  .l = l,
                                  .o = s->partial});
}

static void finish(const cpu_run *r, const float *o, float l, float *out, uint32_t n) {
    r->k->scale(o, 1.0f / l, out, n);
}

static void run_block(const cpu_run *r, const dev_op *op, const attention_job *j,
                      const attention_job *next, const float *q, float *out, size_t ldq, size_t ldo,
                      cpu_scratch *s) {
    float m[CPU_QUERIES], l[CPU_QUERIES], span_m[CPU_QUERIES], span_l[CPU_QUERIES];
    uint32_t dim = op->head_dim, gqa = op->n_heads / op->n_kv_heads;
    memset(l, 0, sizeof l);
    prepare_queries(r, op, j, q, ldq, s);
    for (uint32_t span = j->span; span < j->end_span; span++) {
        attend_span(r, op, j, span, next, s, span_m, span_l);
        for (uint32_t i = 0; i < j->n_queries; i++)
            r->k->merge(&m[i], &l[i], s->state + (size_t)i * dim, span_m[i], span_l[i],
                        s->partial + (size_t)i * dim, dim);
    }
    for (uint32_t i = 0; i < j->n_queries; i++)
        finish(r, s->state + (size_t)i * dim, l[i],
               out + (j->first + i / gqa) * ldo + (size_t)(j->kv_head * gqa + i % gqa) * dim, dim);
}

/* Where the partial of a row of a split sequence, a head and a span is kept. */
static size_t partial_at(const cpu_run *r, const dev_op *op, uint32_t row, uint32_t head,
                         uint32_t span) {
    uint32_t s = r->c->rows[row];
    const cpu_seq *plan = &r->c->seqs[s];
    uint32_t local = row - r->c->batch.seqs[s].first_row;
    return plan->first_partial + ((size_t)local * op->n_heads + head) * plan->n_spans + span;
}

static void run_split(const cpu_run *r, const dev_op *op, const attention_job *j,
                      const attention_job *next, const float *q, size_t ldq, cpu_scratch *s) {
    float m[CPU_QUERIES], l[CPU_QUERIES];
    uint32_t dim = op->head_dim, gqa = op->n_heads / op->n_kv_heads;
    prepare_queries(r, op, j, q, ldq, s);
    attend_span(r, op, j, j->span, next, s, m, l);
    for (uint32_t i = 0; i < j->n_queries; i++) {
        size_t at = partial_at(r, op, j->first + i / gqa, j->kv_head * gqa + i % gqa, j->span);
        r->c->split_ml[2 * at] = m[i];
        r->c->split_ml[2 * at + 1] = l[i];
        memcpy(r->c->split_o + at * r->c->max_head_dim, s->partial + (size_t)i * dim, dim * 4);
    }
}

void cpu_attention_merge(const cpu_run *r, const dev_op *op, uint32_t row, float *out) {
    if (!is_split(r, op, r->c->rows[row])) return;
    uint32_t dim = op->head_dim, begin, end;
    visible(op, (uint32_t)r->c->batch.positions[row], &begin, &end);
    for (uint32_t head = 0; head < op->n_heads; head++) {
        float m = 0, l = 0, *o = out + (size_t)head * dim;
        for (uint32_t span = begin / CPU_SPAN; span * CPU_SPAN < end; span++) {
            size_t at = partial_at(r, op, row, head, span);
            r->k->merge(&m, &l, o, r->c->split_ml[2 * at], r->c->split_ml[2 * at + 1],
                        r->c->split_o + at * r->c->max_head_dim, dim);
        }
        finish(r, o, l, o, dim);
    }
}

/* Chunks of a sequence are KV heads x pieces: blocks of its rows, or spans that its rows see. A
 * place in the chunks of all sequences, one after the other. */
typedef struct {
    uint32_t seq, first, n_pieces; /* the chunks of seq are those from `first` on */
} attention_place;

static uint32_t n_pieces(const cpu_run *r, const dev_op *op, uint32_t s) {
    uint32_t n_rows = r->c->batch.seqs[s].n_rows, most = rows_per_job(op);
    if (!is_split(r, op, s)) return (n_rows + most - 1) / most;
    attention_job j = make_job(r, op, s, 0, 0);
    return j.end_span - j.span;
}

/* The chunk's work; `at` is left at its sequence. The KV heads of a span follow each other, as they
 * do in the cache: what the processor fetches beyond the end of one is needed soon. */
static attention_job find_job(const cpu_run *r, const dev_op *op, uint32_t chunk,
                              attention_place *at) {
    if (chunk < at->first) *at = (attention_place){.n_pieces = n_pieces(r, op, 0)};
    while (chunk - at->first >= op->n_kv_heads * at->n_pieces) {
        at->first += op->n_kv_heads * at->n_pieces;
        at->n_pieces = n_pieces(r, op, ++at->seq);
    }
    bool split = is_split(r, op, at->seq);
    uint32_t local = chunk - at->first;
    uint32_t kv_head = split ? local % op->n_kv_heads : local / at->n_pieces;
    uint32_t piece = split ? local / op->n_kv_heads : local % at->n_pieces;
    attention_job j = make_job(r, op, at->seq, split ? 0 : piece * rows_per_job(op), kv_head);
    if (!split) return j;
    j.split = true;
    j.span += piece;
    j.end_span = j.span + 1;
    return j;
}

void cpu_attention_run(cpu_run *r, const cpu_step *step, int member) {
    const dev_op *op = &r->c->ops[step->first_op].op;
    const float *q = cpu_value_row(r, op->in[0], 0);
    float *out = cpu_value_row(r, op->out[0], 0);
    size_t ldq = r->c->values[op->in[0]].ld, ldo = r->c->values[op->out[0]].ld;
    uint32_t total = 0;
    for (uint32_t s = 0; s < r->c->batch.n_seqs; s++) total += op->n_kv_heads * n_pieces(r, op, s);
    cpu_scratch *scratch = &r->c->scratch[member];
    attention_place at = {.n_pieces = n_pieces(r, op, 0)};
    team_cursor work = cpu_step_work(r, step, member, total);
    for (uint32_t chunk; team_next(&work, &chunk);) {
        attention_job j = find_job(r, op, chunk, &at), after, *next = NULL;
        attention_place ahead = at;
        if (chunk + 1 < work.end) {
            after = find_job(r, op, chunk + 1, &ahead);
            next = &after;
        }
        if (j.split)
            run_split(r, op, &j, next, q, ldq, scratch);
        else
            run_block(r, op, &j, next, q, out, ldq, ldo, scratch);
    }
}
