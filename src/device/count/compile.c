/* device/count/compile: from a program to the kinds of operation in it. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/count/count_internal.h"
#include "roof/work.h"

static const struct {
    const char *name;
    efficiency_kind class;
} kinds[] = {
    [DEV_EMBED] = {"embed", EFFICIENCY_EMBED},
    [DEV_RMS_NORM] = {"norm", EFFICIENCY_NORM},
    [DEV_LINEAR] = {"linear", EFFICIENCY_LINEAR},
    [DEV_ROPE] = {"rope", EFFICIENCY_ROPE},
    [DEV_KV_WRITE] = {"cache write", EFFICIENCY_CACHE_WRITE},
    [DEV_ATTENTION] = {"attention", EFFICIENCY_ATTENTION_PREFILL},
    [DEV_GLU] = {"glu", EFFICIENCY_GLU},
    [DEV_ADD] = {"add", EFFICIENCY_ADD},
    [DEV_SCALE] = {"scale", EFFICIENCY_ROWS},
    [DEV_SOFTCAP] = {"softcap", EFFICIENCY_ROWS},
    [DEV_GATHER] = {"gather", EFFICIENCY_ROWS},
    [DEV_EXPERTS] = {"experts", EFFICIENCY_EXPERTS},
    [DEV_LATENT_ATTENTION] = {"latent attention", EFFICIENCY_ATTENTION_PREFILL},
    [DEV_ALL_REDUCE] = {"all-reduce", EFFICIENCY_ALL_REDUCE},
    [DEV_ALL_GATHER] = {"all-gather", EFFICIENCY_ALL_GATHER},
    [DEV_ALL_TO_ALL] = {"all-to-all", EFFICIENCY_ALL_GATHER}, /* each rank sends as much */
    [DEV_SEND] = {"send", EFFICIENCY_SEND},
};

bool count_attends(const dev_op *op) {
    return op->kind == DEV_ATTENTION || op->kind == DEV_LATENT_ATTENTION;
}

bool count_is_collective(const dev_op *op) {
    return op->kind >= DEV_ALL_REDUCE;
}

uint32_t count_experts_here(const dev_op *op) {
    return op->n_ranks > 1 ? op->n_experts / op->n_ranks : op->n_experts;
}

static double bytes_of(const dev_weight *w) {
    return w != NULL ? w->rows * w->row_bytes : 0;
}

static bool same_weight(const dev_weight *a, const dev_weight *b) {
    if (a == NULL || b == NULL) return a == b;
    return a->rows == b->rows && a->cols == b->cols && a->row_bytes == b->row_bytes;
}

static bool same_kind(const dev_program *p, const dev_op *a, const dev_op *b) {
    bool same = a->kind == b->kind && a->n_weights == b->n_weights && a->n_heads == b->n_heads &&
                a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
                a->group == b->group && a->window == b->window && a->top_k == b->top_k &&
                a->n_ranks == b->n_ranks && a->rank_stride == b->rank_stride && a->back == b->back;
    for (int i = 0; i < 2 && same; i++)
        same = (a->in[i] == DEV_NONE) == (b->in[i] == DEV_NONE) &&
               (a->in[i] == DEV_NONE || p->widths[a->in[i]] == p->widths[b->in[i]]);
    for (int i = 0; i < DEV_MAX_FANOUT && same; i++)
        same = same_weight(a->w[i], b->w[i]) && same_weight(a->bias[i], b->bias[i]);
    return same;
}

static void add_columns(const dev_program *p, count_kind *k) {
    const dev_op *op = &k->op;
    for (int i = 0; i < 2; i++)
        if (op->in[i] != DEV_NONE) k->n_in += p->widths[op->in[i]];
    for (int i = 0; i < DEV_MAX_FANOUT; i++)
        if (op->out[i] != DEV_NONE) k->n_out += p->widths[op->out[i]];
}

static count_kind kind_of(const dev_program *p, const dev_op *op) {
    count_kind k = {.op = *op, .n = 1, .class = kinds[op->kind].class};
    add_columns(p, &k);
    if (op->kind == DEV_EMBED) {
        k.bytes_per_row = op->w[0]->row_bytes;
        return k;
    }
    for (int i = 0; i < DEV_MAX_FANOUT; i++) {
        k.weight_bytes += bytes_of(op->w[i]) + bytes_of(op->bias[i]);
        bool used = op->w[i] != NULL && (op->kind == DEV_LINEAR || op->kind == DEV_EXPERTS);
        if (used) k.flops_per_row += work_linear_flops(op->w[i]->rows, op->w[i]->cols, 1);
    }
    if (op->kind == DEV_EXPERTS) k.flops_per_row *= (double)op->top_k / count_experts_here(op);
    return k;
}

static ridge_status check_op(const dev_program *p, const dev_op *op, ridge_error *err) {
    bool sound = (size_t)op->kind < sizeof kinds / sizeof *kinds && op->group < DEV_MAX_GROUPS;
    for (int i = 0; i < 2; i++) sound &= op->in[i] == DEV_NONE || op->in[i] < p->n_values;
    for (int i = 0; i < DEV_MAX_FANOUT; i++)
        sound &= op->out[i] == DEV_NONE || op->out[i] < p->n_values;
    bool weighs = op->kind == DEV_EMBED || op->kind == DEV_RMS_NORM || op->kind == DEV_LINEAR ||
                  op->kind == DEV_EXPERTS || op->kind == DEV_LATENT_ATTENTION;
    if (op->kind == DEV_EXPERTS)
        sound &= op->top_k > 0 && op->top_k <= op->n_experts && count_experts_here(op) > 0;
    if (sound && (!weighs || op->w[0] != NULL)) return RIDGE_OK;
    return RIDGE_FAIL(err, RIDGE_EINVAL, "operation %d: no such kind, value, group or weight",
                      (int)op->kind);
}

/* Adds operations [begin, end): a part of the program. */
static ridge_status gather(dev_compiled *c, const dev_program *p, size_t begin, size_t end,
                           ridge_error *err) {
    size_t first = c->n_kinds;
    for (size_t i = begin; i < end; i++) {
        const dev_op *op = &p->ops[i];
        RIDGE_TRY(check_op(p, op, err));
        size_t k = first;
        while (k < c->n_kinds && !same_kind(p, &c->kinds[k].op, op)) k++;
        if (k == c->n_kinds)
            c->kinds[c->n_kinds++] = kind_of(p, op);
        else
            c->kinds[k].n++;
        if (op->kind == DEV_ALL_TO_ALL) c->n_exchanges++;
        if (!count_attends(op)) continue;
        c->n_layers++;
        c->windows[op->group] = op->window;
        if (op->kind == DEV_LATENT_ATTENTION)
            c->latents[op->group] =
                (work_latent){op->n_heads, op->rank, op->head_dim, op->n_rope, op->n_value};
        if (op->group >= c->n_groups) c->n_groups = op->group + 1;
    }
    return RIDGE_OK;
}

ridge_status count_compile(device *d, dev_compiled **out, const dev_program *p, uint32_t max_tokens,
                           ridge_error *err) {
    (void)d;
    dev_compiled *c = mem_zalloc(1, sizeof *c);
    if (c != NULL) c->kinds = mem_zalloc(p->n_ops, sizeof *c->kinds);
    ridge_status status = c != NULL && c->kinds != NULL
                              ? RIDGE_OK
                              : RIDGE_FAIL(err, RIDGE_ENOMEM, "%zu operations", p->n_ops);
    if (status == RIDGE_OK) {
        c->max_tokens = max_tokens;
        status = gather(c, p, 0, p->head_start, err);
        c->n_body = c->n_kinds;
    }
    if (status == RIDGE_OK) status = gather(c, p, p->head_start, p->n_ops, err);
    if (status != RIDGE_OK) {
        count_compiled_free(d, c);
        return status;
    }
    *out = c;
    return RIDGE_OK;
}

void count_compiled_free(device *d, dev_compiled *c) {
    (void)d;
    if (c == NULL) return;
    mem_free(c->kinds);
    mem_free(c);
}

void count_name(const dev_op *op, char name[96]) {
    size_t used = (size_t)snprintf(name, 96, "%s", kinds[op->kind].name);
    if (op->kind == DEV_LINEAR) {
        used += (size_t)snprintf(name + used, 96 - used, " %u ->", op->w[0]->cols);
        for (int i = 0; i < op->n_weights && used < 96; i++)
            used += (size_t)snprintf(name + used, 96 - used, "%s %u", i > 0 ? " +" : "",
                                     op->w[i]->rows);
    } else if (op->kind == DEV_ATTENTION) {
        used += (size_t)snprintf(name + used, 96 - used, " %u heads of %u on %u", op->n_heads,
                                 op->head_dim, op->n_kv_heads);
        if (op->window != 0) snprintf(name + used, 96 - used, ", window %u", op->window);
    } else if (op->kind == DEV_LATENT_ATTENTION) {
        snprintf(name + used, 96 - used, " %u heads on %u + %u", op->n_heads, op->rank, op->n_rope);
    } else if (op->kind == DEV_EXPERTS) {
        snprintf(name + used, 96 - used, " %u of %u, %u -> %u", op->top_k, op->n_experts,
                 op->w[0]->cols, op->w[0]->rows / count_experts_here(op));
    }
}
