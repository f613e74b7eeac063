/* device/cpu/linear: how a product of activations and weights is shared out. The arithmetic is
 * kernels->gemm, gemm_packed, gemv_pair and fgemm.
 *
 * A chunk of work is a block of tokens times a group of panels of one weight; a member takes its
 * panels two by two. Up to max_packed tokens read a panel straight from its packed form; for more,
 * chunks of K of two panels are unpacked into the first-level cache. Sums are made in scratch, then
 * stored: as they are, or, where the next product is all that reads them, through the activation
 * and quantised for it (two panels are 32 rows: one block).
 */
#include <string.h>

#include "device/cpu/run.h"

/* The chunks of one weight of a linear: token blocks x groups of pairs of panels. */
typedef struct {
    uint32_t n_panels, n_pairs;
    uint32_t step, gap; /* pair i: panel i * step, and, where there is one, the gap-th after it */
    uint32_t group, n_groups, block, n_blocks, n_chunks;
} linear_shape;

typedef struct {
    const cpu_op *op;
    int weight;
    uint32_t panel, n_panels, gap; /* one, or two: the other is panel + gap */
    uint32_t end_panel;            /* gap 1: of this member's chunk of work */
    uint32_t first, end;           /* tokens [first, end) */
} panel_job;

/* Is a product made of pairs of panels that are read side by side? */
static bool side_by_side(const cpu_run *r, const dev_weight *w) {
    return r->n_rows == 1 && r->k->gemv_pair != NULL && cpu_is_integer(r->c->device, w);
}

/* Two panels next to each other, of which the activation makes a block of the next product; or,
 * side by side, one of each half of the weight: so that a member has two long streams to read. */
static linear_shape shape_of(const cpu_run *r, const cpu_op *op, const dev_weight *w) {
    linear_shape s = {.n_panels = (w->rows + CPU_PANEL - 1) / CPU_PANEL, .step = 2, .gap = 1};
    s.n_pairs = (s.n_panels + 1) / 2;
    if (side_by_side(r, w) && !op->glu) {
        s.step = 1;
        s.gap = s.n_pairs;
    }
    s.block = cpu_is_integer(r->c->device, w) && r->n_rows > CPU_TOKENS ? CPU_TOKENS : r->n_rows;
    s.n_blocks = (r->n_rows + s.block - 1) / s.block;
    uint32_t group = s.n_panels * s.n_blocks / (uint32_t)(32 * r->n_members);
    s.group = group < 1 ? 1 : group > 8 ? 8 : group;
    s.n_groups = (s.n_pairs + s.group - 1) / s.group;
    s.n_chunks = s.n_groups * s.n_blocks;
    return s;
}

/* Integer -------------------------------------------------------------------------------------- */

/* Where block b of a panel lies, b a multiple of its superblock. */
static const uint8_t *panel_at(const dev_weight *w, uint32_t panel, uint32_t b) {
    return w->packed + panel * w->panel_bytes +
           b / w->format->n_blocks * cpu_super_bytes(w->format);
}

/* One token: panel i of w and panel k of v, which has the same format; 16 sums of each. */
static void sum_pair(const cpu_run *r, const panel_job *j, const dev_weight *w, uint32_t i,
                     const dev_weight *v, uint32_t k, float *w_sums, float *v_sums) {
    uint32_t n_blocks = w->cols / CPU_BLOCK, width;
    r->k->gemv_pair(
        &(cpu_pair_args){.format = w->format,
                         .panels = {panel_at(w, i, 0), panel_at(v, k, 0)},
                         .x = cpu_input_at(r, j->op->x_in, n_blocks, j->first, 0, &width),
                         .n_blocks = n_blocks,
                         .sums = {w_sums, v_sums}});
}

static void sum_packed(const cpu_run *r, const panel_job *j, const dev_weight *w, float *acc) {
    uint32_t n_blocks = w->cols / CPU_BLOCK, width;
    if (j->n_panels == 2 && side_by_side(r, w)) {
        sum_pair(r, j, w, j->panel, w, j->panel + j->gap, acc, acc + CPU_PANEL);
        return;
    }
    for (uint32_t p = 0; p < j->n_panels; p++)
        r->k->gemm_packed(
            &(cpu_packed_args){.format = w->format,
                               .panel = panel_at(w, j->panel + p * j->gap, 0),
                               .x = cpu_input_at(r, j->op->x_in, n_blocks, j->first, 0, &width),
                               .n_blocks = n_blocks,
                               .n_tokens = j->end - j->first,
                               .acc = acc + (size_t)p * CPU_PANEL});
}

/* The chunk after blocks [b, b + n): of the same panels, or the first of the next two. */
static cpu_fetch next_chunk(const panel_job *j, const dev_weight *w, uint32_t b, uint32_t n) {
    uint32_t n_blocks = w->cols / CPU_BLOCK, n_tiles = (j->end - j->first + 5) / 6;
    bool last = b + n >= n_blocks;
    uint32_t n_next = last || n_blocks - b - n > n ? n : n_blocks - b - n;
    size_t bytes = n_next / w->format->n_blocks * cpu_super_bytes(w->format);
    cpu_fetch f = {.bytes = (uint32_t)(bytes / (n * n_tiles) + 63) & ~63u};
    for (uint32_t p = 0; p < 2; p++) {
        uint32_t panel = j->panel + p + (last ? j->n_panels : 0);
        if (panel >= j->end_panel || p >= j->n_panels) continue;
        f.at[p] = panel_at(w, panel, last ? 0 : b + n);
        f.end[p] = f.at[p] + bytes;
    }
    return f;
}

/* Blocks [b, b + n) of the panels of a job times its tokens, added to acc. */
static void add_chunk(const cpu_run *r, const panel_job *j, const dev_weight *w, uint32_t b,
                      uint32_t n, cpu_ublock *blocks, float *acc) {
    uint32_t n_blocks = w->cols / CPU_BLOCK;
    cpu_fetch fetch = next_chunk(j, w, b, n);
    for (uint32_t p = 0; p < j->n_panels; p++)
        r->k->unpack(w->format, panel_at(w, j->panel + p, b), n, blocks + (size_t)p * CPU_K_BLOCKS);
    for (uint32_t t = j->first; t < j->end; t += CPU_TILE) {
        uint32_t width;
        const cpu_xblock *x = cpu_input_at(r, j->op->x_in, n_blocks, t, b, &width);
        r->k->gemm(&(cpu_gemm_args){.format = w->format,
                                    .w = blocks,
                                    .x = x,
                                    .n_panels = j->n_panels,
                                    .n_blocks = n,
                                    .width = width,
                                    .acc = acc + (size_t)(t - j->first) * CPU_PAIR,
                                    .fetch = &fetch});
    }
}

/* Blocks of K at a time: as even as whole superblocks allow. */
static uint32_t chunk_of(const cpu_format *f, uint32_t n_blocks) {
    uint32_t n_chunks = (n_blocks + CPU_K_BLOCKS - 1) / CPU_K_BLOCKS;
    uint32_t even = (n_blocks + n_chunks - 1) / n_chunks;
    return (even + f->n_blocks - 1) / f->n_blocks * f->n_blocks;
}

/* acc [tokens of the job][CPU_PAIR] = the job's tokens times its panels of w. */
static void sum_panels(const cpu_run *r, const panel_job *j, const dev_weight *w,
                       cpu_ublock *blocks, float *acc) {
    if (j->end - j->first <= r->k->max_packed) {
        sum_packed(r, j, w, acc);
        return;
    }
    uint32_t n_blocks = w->cols / CPU_BLOCK, chunk = chunk_of(w->format, n_blocks);
    memset(acc, 0, (size_t)(j->end - j->first) * CPU_PAIR * sizeof(float));
    for (uint32_t b = 0; b < n_blocks; b += chunk)
        add_chunk(r, j, w, b, n_blocks - b < chunk ? n_blocks - b : chunk, blocks, acc);
}

static void linear_integer(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    const dev_weight *w = j->op->op.w[j->weight], *bias = j->op->op.bias[j->weight];
    dev_value out = j->op->op.out[j->weight];
    uint32_t together = j->gap == 1 ? j->n_panels : 1, width = together * CPU_PANEL;
    sum_panels(r, j, w, s->blocks, s->acc[0]);
    for (uint32_t p = 0; p < j->n_panels; p += together) {
        uint32_t row = (j->panel + p * j->gap) * CPU_PANEL, left = w->rows - row;
        r->k->store_sums(s->acc[0] + (size_t)p * CPU_PANEL,
                         bias != NULL ? bias->vector + row : NULL, j->end - j->first,
                         left < width ? left : width, cpu_value_row(r, out, j->first) + row,
                         r->c->values[out].ld);
    }
}

/* Gate and up together; the rows of two panels become one block of the next product's input. */
static void linear_glu(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    const dev_op *op = &j->op->op;
    uint32_t row = j->panel * CPU_PANEL, n = j->end - j->first, stride;
    bool both = side_by_side(r, op->w[0]) && op->w[0]->format == op->w[1]->format;
    for (uint32_t p = 0; both && p < j->n_panels; p++)
        sum_pair(r, j, op->w[0], j->panel + p, op->w[1], j->panel + p,
                 s->acc[0] + (size_t)p * CPU_PANEL, s->acc[1] + (size_t)p * CPU_PANEL);
    for (int i = 0; i < 2; i++) {
        if (!both) sum_panels(r, j, op->w[i], s->blocks, s->acc[i]);
        if (op->bias[i] != NULL)
            r->k->store_sums(s->acc[i], op->bias[i]->vector + row, n, CPU_PAIR, s->acc[i],
                             CPU_PAIR);
    }
    r->k->glu(s->acc[0], s->acc[1], s->acc[0], n * CPU_PAIR, op->activation);
    for (uint32_t t = 0; t < n; t++) {
        cpu_xblock *x = cpu_input_at(r, 1 - j->op->x_in, op->w[0]->rows / CPU_BLOCK, j->first + t,
                                     row / CPU_BLOCK, &stride);
        r->k->quantize(s->acc[0] + (size_t)t * CPU_PAIR, CPU_BLOCK, x, stride);
    }
}

/* Float ---------------------------------------------------------------------------------------- */

/* The exact weights of a panel of an integer format, [cols][16]. */
static const float *expand_panel(const cpu_run *r, const dev_weight *w, uint32_t panel,
                                 cpu_scratch *s) {
    uint32_t n_blocks = w->cols / CPU_BLOCK;
    for (uint32_t b = 0; b < n_blocks; b += CPU_K_BLOCKS) {
        uint32_t count = n_blocks - b < CPU_K_BLOCKS ? n_blocks - b : CPU_K_BLOCKS;
        r->k->unpack(w->format, panel_at(w, panel, b), count, s->blocks);
        r->k->expand(w->format, s->blocks, count, s->panel + (size_t)b * CPU_BLOCK * CPU_PANEL);
    }
    return s->panel;
}

static void linear_float(const cpu_run *r, const panel_job *j, cpu_scratch *s) {
    const dev_op *op = &j->op->op;
    const dev_weight *w = op->w[j->weight], *bias = op->bias[j->weight];
    dev_value out = op->out[j->weight];
    for (uint32_t p = j->panel; p < j->panel + j->n_panels; p++) {
        uint32_t row = p * CPU_PANEL, left = w->rows - row;
        bool expanded = w->format != NULL;
        cpu_fgemm_args a = {.type = expanded ? QUANT_F32 : w->type,
                            .w = expanded ? (const void *)expand_panel(r, w, p, s)
                                          : w->packed + p * w->panel_bytes,
                            .x = cpu_value_row(r, op->in[0], j->first),
                            .ldx = r->c->values[op->in[0]].ld,
                            .cols = w->cols,
                            .n = j->end - j->first,
                            .out = cpu_value_row(r, out, j->first) + row,
                            .ld = r->c->values[out].ld,
                            .n_rows = left < CPU_PANEL ? left : CPU_PANEL};
        r->k->fgemm(&a);
        for (uint32_t t = 0; t < a.n && bias != NULL; t++)
            r->k->add(a.out + t * a.ld, bias->vector + row, a.out + t * a.ld, a.n_rows);
    }
}

/* Sharing out ---------------------------------------------------------------------------------- */

static void run_chunk(const cpu_run *r, const linear_shape *s, panel_job *j, uint32_t chunk,
                      cpu_scratch *scratch) {
    const dev_weight *w = j->op->op.w[j->weight];
    uint32_t pair = chunk % s->n_groups * s->group;
    uint32_t end = pair + s->group < s->n_pairs ? pair + s->group : s->n_pairs;
    j->first = chunk / s->n_groups * s->block;
    j->end = j->first + s->block < r->n_rows ? j->first + s->block : r->n_rows;
    j->end_panel = 2 * end < s->n_panels ? 2 * end : s->n_panels;
    j->gap = s->gap;
    for (; pair < end; pair++) {
        j->panel = pair * s->step;
        j->n_panels = j->panel + j->gap < s->n_panels ? 2 : 1;
        if (j->op->glu)
            linear_glu(r, j, scratch);
        else if (cpu_is_integer(r->c->device, w))
            linear_integer(r, j, scratch);
        else
            linear_float(r, j, scratch);
    }
}

void cpu_linear_run(cpu_run *r, const cpu_step *step, int member) {
    const cpu_op *op = &r->c->ops[step->first_op];
    linear_shape shapes[DEV_MAX_FANOUT];
    int n_weights = op->glu ? 1 : op->op.n_weights; /* gate and up are shared out as one */
    uint32_t total = 0;
    for (int i = 0; i < n_weights; i++) {
        shapes[i] = shape_of(r, op, op->op.w[i]);
        total += shapes[i].n_chunks;
    }
    team_cursor work = cpu_step_work(r, step, member, total);
    for (uint32_t chunk; team_next(&work, &chunk);) {
        panel_job job = {.op = op};
        while (chunk >= shapes[job.weight].n_chunks) chunk -= shapes[job.weight++].n_chunks;
        run_chunk(r, &shapes[job.weight], &job, chunk, &r->c->scratch[member]);
    }
}
