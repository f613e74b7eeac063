/* device/cpu/profile: what each kind of step took: steps of one shape, one for each layer, are one
 * row. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_internal.h"

static const char *row_op_name(int kind) {
    switch (kind) {
    case DEV_EMBED: return "embed";
    case DEV_RMS_NORM: return "norm";
    case DEV_ROPE: return "rope";
    case DEV_KV_WRITE: return "kv";
    case DEV_GLU: return "glu";
    case DEV_ADD: return "add";
    case DEV_SCALE: return "scale";
    case DEV_SOFTCAP: return "softcap";
    case DEV_GATHER: return "gather";
    case CPU_OP_QUANTIZE: return "quantize";
    case CPU_OP_ROPE_TABLE: return "angles";
    case CPU_OP_MERGE: return "merge";
    default: return "?";
    }
}

__attribute__((format(printf, 2, 3))) static void append(char name[96], const char *format, ...) {
    size_t used = strlen(name);
    va_list args;
    va_start(args, format);
    vsnprintf(name + used, 96 - used, format, args);
    va_end(args);
}

static void name_step(const dev_compiled *c, const cpu_step *step, char name[96]) {
    const dev_op *op = &c->ops[step->first_op].op;
    name[0] = '\0';
    switch (step->kind) {
    case CPU_STEP_LINEAR:
        append(name, "linear %u -> ", op->w[0]->cols);
        for (int i = 0; i < op->n_weights; i++)
            append(name, "%s%u %s", i > 0 ? " + " : "", op->w[i]->rows, quant_name(op->w[i]->type));
        if (c->ops[step->first_op].glu) append(name, ", glu, quantize");
        break;
    case CPU_STEP_ATTENTION:
        append(name, "attention %u heads of %u on %u", op->n_heads, op->head_dim, op->n_kv_heads);
        if (op->window != 0) append(name, ", window %u", op->window);
        break;
    case CPU_STEP_ROWS:
        for (uint32_t i = 0; i < step->n_ops; i++)
            append(name, "%s%s", i > 0 ? " " : "", row_op_name(c->ops[step->first_op + i].kind));
        break;
    }
}

static size_t find_row(const dev_profile_row *rows, size_t n, const char *name) {
    size_t i = 0;
    while (i < n && strcmp(rows[i].name, name) != 0) i++;
    return i;
}

size_t cpu_profile(device *d, dev_compiled *c, dev_profile_row *out, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < c->n_steps; i++) {
        cpu_step *step = &c->steps[i];
        char name[96];
        name_step(c, step, name);
        size_t at = find_row(out, n, name);
        if (at == n && n < max) {
            const dev_op *op = &c->ops[step->first_op].op;
            out[n] = (dev_profile_row){0};
            memcpy(out[n].name, name, sizeof name);
            out[n++].integer =
                step->kind == CPU_STEP_LINEAR && cpu_is_integer((const cpu_device *)d, op->w[0]);
        }
        if (at < n) {
            out[at].n += step->n_runs;
            out[at].seconds += step->seconds;
            out[at].flops += step->flops;
            out[at].bytes += step->bytes;
        }
        step->n_runs = 0;
        step->seconds = step->flops = step->bytes = 0;
    }
    for (size_t i = 1; i < n; i++) /* few rows: by insertion */
        for (size_t j = i; j > 0 && out[j].seconds > out[j - 1].seconds; j--) {
            dev_profile_row t = out[j];
            out[j] = out[j - 1];
            out[j - 1] = t;
        }
    return n;
}
