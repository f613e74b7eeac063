/* cli/plan_explain: see plan_explain.h. */
#include "cli/plan_explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_LINES 20

/* One number: name = formula = working = value. */
typedef struct {
    const char *name, *formula;
    char working[160], value[32], source[160];
} working;

typedef struct {
    working lines[MAX_LINES];
    size_t n;
} workings;

static working *add(workings *w, const char *name, const char *formula) {
    working *line = &w->lines[w->n++];
    *line = (working){.name = name, .formula = formula};
    return line;
}

#define WORKING(line, ...) snprintf((line)->working, sizeof(line)->working, __VA_ARGS__)
#define VALUE(line, ...) snprintf((line)->value, sizeof(line)->value, __VA_ARGS__)
#define SOURCE(line, ...) snprintf((line)->source, sizeof(line)->source, __VA_ARGS__)

/* Of the model and the GPU ----------------------------------------------------------------------
 */

static void source_of_model(working *line, const plan_report *r) {
    for (size_t i = 0; plan_model_name(i) != NULL; i++)
        if (strcmp(plan_model_name(i), r->model) == 0) {
            SOURCE(line, "config.json of https://huggingface.co/%s", plan_model_source(i));
            return;
        }
    SOURCE(line, "%.150s", r->model);
}

static void explain_model(workings *w, const plan_report *r) {
    const plan_result *x = &r->result;
    const model_config *c = &x->config;
    working *line = add(w, "parameters", "sum of rows x columns of all weights");
    WORKING(line, "%u layers, width %u, vocabulary %u", c->n_layers, c->n_embd, c->n_vocab);
    VALUE(line, "%.0f", x->parameters);
    source_of_model(line, r);
    if (c->moe.n_experts > 0) {
        line = add(w, "active parameters", "parameters - experts that a token does not take");
        WORKING(line, "%.0f - %.0f; %u of %u experts", x->parameters,
                x->parameters - x->active_parameters, c->moe.top_k, c->moe.n_experts);
        VALUE(line, "%.0f", x->active_parameters);
        source_of_model(line, r);
    }
    line = add(w, "weights", "parameters x bits / 8");
    WORKING(line, "%.0f x %.4g / 8", x->parameters, 8 * x->weight_bytes / x->parameters);
    VALUE(line, "%.4g GB", x->weight_bytes / 1e9);
    const char *note = r->params.dtype.note;
    SOURCE(line, "weights: %s%s%s%s", x->weights, note != NULL ? " " : "", note != NULL ? note : "",
           note != NULL ? "; bits: the mean" : "");
}

static void explain_cache(workings *w, const plan_report *r) {
    const model_config *c = &r->result.config;
    double bytes = (double)dev_kv_entry_bytes(r->params.kv_type, 32) / 32, values;
    working *line;
    if (c->latent.rank > 0) {
        line = add(w, "cache per token", "layers x (latent + rotating key) x bytes of a value");
        WORKING(line, "%u x (%u + %u) x %.6g", c->n_layers, c->latent.rank, c->latent.n_rope,
                bytes);
        values = c->latent.rank + c->latent.n_rope;
    } else {
        line = add(w, "cache per token", "2 (K and V) x layers x KV heads x head size x bytes");
        WORKING(line, "2 x %u x %u x %u x %.6g", c->n_layers, c->n_kv_heads, c->head_dim, bytes);
        values = 2.0 * c->n_kv_heads * c->head_dim;
    }
    double copies = r->result.kv_bytes_per_token / (c->n_layers * values * bytes);
    bool shared = copies > 1.5; /* heads, or the latent, between ranks */
    if (shared) {
        size_t used = strlen(line->working);
        snprintf(line->working + used, sizeof line->working - used, " x %.0f", copies);
    }
    VALUE(line, "%.0f bytes", r->result.kv_bytes_per_token);
    SOURCE(line, "cache: %s%s%s", dev_kv_type_name(r->params.kv_type),
           c->window > 0 ? "; layers with a window keep no more than it" : "",
           shared ? "; as many GPUs have a copy of each as the last factor says" : "");
    line = add(w, "tokens that fit", "(memory - weights) / cache per token");
    WORKING(line, "(%.4g GB - %.4g GB) / %.0f", r->result.memory_bytes / 1e9,
            r->result.deployed_bytes / 1e9, r->result.kv_bytes_per_token);
    VALUE(line, "%.0f", r->result.kv_tokens);
    SOURCE(line, "%s", r->params.gpu.source);
}

static void explain_gpu(workings *w, const plan_report *r) {
    working *line = add(w, "ridge point", "peak / bandwidth");
    WORKING(line, "%.4g TFLOP/s / %.4g TB/s", r->result.peak_flops / 1e12,
            r->params.gpu.bytes_per_s / 1e12);
    VALUE(line, "%.1f FLOP/byte", r->result.ridge);
    SOURCE(line, "%s", r->params.gpu.source);
}

/* The textbook's steps ---------------------------------------------------------------------------
 */

static void explain_phase(workings *w, const plan_report *r, const plan_phase *f, bool prompt) {
    const plan_result *x = &r->result;
    working *line = add(w, prompt ? "prompt, arithmetic" : "step, arithmetic",
                        "2 x active parameters x tokens / peak of the GPUs");
    WORKING(line, "2 x %.0f x %.0f = %.4g TFLOP", x->active_parameters, f->n_rows, f->flops / 1e12);
    VALUE(line, "%.4g ms", f->compute_s * 1e3);
    line = add(w, prompt ? "prompt, memory" : "step, memory",
               prompt ? "weights read / bandwidth of the GPUs"
                      : "(weights read + sequences x context x cache per token) / bandwidth");
    double all = f->weight_bytes + f->kv_bytes;
    if (prompt)
        WORKING(line, "%.4g GB", f->weight_bytes / 1e9);
    else if (x->sequence_bytes < r->params.context * x->kv_bytes_per_token)
        WORKING(line, "%.4g GB + %.0f x %.4g GB (within windows) = %.4g GB", f->weight_bytes / 1e9,
                f->n_rows, x->sequence_bytes / 1e9, all / 1e9);
    else
        WORKING(line, "%.4g GB + %.0f x %u x %.0f B = %.4g GB", f->weight_bytes / 1e9, f->n_rows,
                r->params.context, x->kv_bytes_per_token, all / 1e9);
    VALUE(line, "%.4g ms", f->memory_s * 1e3);
    line = add(w, prompt ? "prompt, time" : "step, time", "the slower of arithmetic and memory");
    WORKING(line, "max(%.4g ms, %.4g ms)", f->compute_s * 1e3, f->memory_s * 1e3);
    VALUE(line, "%.4g ms", f->seconds * 1e3);
}

static void explain_rates(workings *w, const plan_report *r) {
    const plan_phase *f = &r->result.decode.textbook;
    working *line = add(w, "tokens/s", "sequences / time of a step");
    WORKING(line, "%u / %.4g ms", r->params.batch, f->seconds * 1e3);
    VALUE(line, "%.1f", r->params.batch / f->seconds);
    line = add(w, "intensity", "FLOPs / bytes of a step");
    WORKING(line, "%.4g GFLOP / %.4g GB", f->flops / 1e9, (f->weight_bytes + f->kv_bytes) / 1e9);
    VALUE(line, "%.4g FLOP/byte", f->flops / (f->weight_bytes + f->kv_bytes));
    line = add(w, "idle arithmetic", "1 - arithmetic / time of a step");
    WORKING(line, "1 - %.4g ms / %.4g ms", f->compute_s * 1e3, f->seconds * 1e3);
    VALUE(line, "%.2f %%", 100 * (1 - f->compute_s / f->seconds));
    if (r->params.price_per_hour == 0) return;
    line =
        add(w, "a million tokens", "price of the GPUs per second / counted tokens/s x 1,000,000");
    WORKING(line, "%.4g x %.0f / 3600 / %.4g x 1e6", r->params.price_per_hour, r->result.n_gpus,
            r->result.decode_tokens_per_s);
    VALUE(line, "%.4g", r->result.cost_per_m_output);
}

static workings explain(const plan_report *r) {
    workings w = {.n = 0};
    explain_model(&w, r);
    explain_cache(&w, r);
    explain_gpu(&w, r);
    explain_phase(&w, r, &r->result.prefill.textbook, true);
    explain_phase(&w, r, &r->result.decode.textbook, false);
    explain_rates(&w, r);
    return w;
}

/* Printing --------------------------------------------------------------------------------------
 */

/* Where the counted step differs from the textbook's, a line each. */
static void difference(buf *b, const plan_report *r) {
    const model_config *c = &r->result.config;
    const plan_count *d = &r->result.decode;
    double mean = 8 * r->result.weight_bytes / r->result.parameters;
    double bits = r->params.file_weights ? mean : r->params.dtype.table_bits;
    double table = (double)c->n_vocab * c->n_embd * bits / 8;
    if (c->tied)
        buf_printf(b,
                   "weights: the embedding table (%u x %u) is the head, too: it is read whole, and "
                   "rows of it once more\n",
                   c->n_vocab, c->n_embd);
    else
        buf_printf(b,
                   "weights: the embedding table (%u x %u, %.4g GB) is not streamed: only the "
                   "rows of the step's tokens are read\n",
                   c->n_vocab, c->n_embd, table / 1e9);
    buf_printf(b, "cache: what the step writes is counted, too: %u token%s\n", r->params.batch,
               plural(r->params.batch));
    buf_printf(b,
               "arithmetic: attention computes, too, and rows of the table are looked up, not "
               "multiplied: %.4g GFLOP instead of %.4g\n",
               d->counted.flops / 1e9, d->textbook.flops / 1e9);
    buf_printf(b,
               "time: each operation takes what its own slower roof asks for, the textbook has one "
               "for all: %.4g ms instead of %.4g\n",
               d->counted.seconds * 1e3, d->textbook.seconds * 1e3);
    if (r->result.n_gpus > 1)
        buf_puts(b, "the counted step is that of one GPU, with what the GPUs tell each other\n");
    if (r->params.halves)
        buf_printf(
            b,
            "from %d decodes on a GPU on, or %d rows with a prompt, a step is computed in two "
            "halves, each of which reads the weights: rows of one are exchanged while the "
            "other computes\n",
            COUNT_HALVED_DECODES, COUNT_HALVED_PROMPTS);
}

static void difference_text(buf *b, const plan_report *r) {
    buf_puts(b, "\nwhy the counted step differs from the textbook's\n");
    difference(b, r);
}

static void operations_text(buf *b, const plan_report *r) {
    buf_printf(b, "\ncounted, operation by operation (one step%s)\n  %-44s %6s %12s %12s %10s\n",
               r->result.n_gpus > 1 ? ", one GPU" : "", "", "times", "GFLOP", "MB", "us");
    for (size_t i = 0; i < r->n_operations; i++) {
        const dev_profile_row *o = &r->operations[i];
        buf_printf(b, "  %-44.60s %6llu %12.4g %12.4g %10.2f\n", o->name, (unsigned long long)o->n,
                   o->flops / 1e9, o->bytes / 1e6, o->seconds * 1e6);
    }
}

void plan_explain_text(buf *b, const plan_report *r) {
    workings w = explain(r);
    buf_puts(b, "\nthe working, of the textbook's numbers\n");
    for (size_t i = 0; i < w.n; i++) {
        const working *line = &w.lines[i];
        buf_printf(b, "  %-20s = %s\n  %20s = %s\n  %20s = %s%s%s%s\n", line->name, line->formula,
                   "", line->working, "", line->value, line->source[0] != '\0' ? "   [" : "",
                   line->source, line->source[0] != '\0' ? "]" : "");
    }
    difference_text(b, r);
    operations_text(b, r);
}

static void member(buf *b, const char *name, const char *text) {
    buf_printf(b, "%s\"%s\":", strcmp(name, "name") == 0 ? "" : ",", name);
    buf_json_string(b, text, strlen(text));
}

void plan_explain_json(buf *b, const plan_report *r) {
    workings w = explain(r);
    buf_puts(b, ",\"explain\":[");
    for (size_t i = 0; i < w.n; i++) {
        buf_puts(b, i > 0 ? ",{" : "{");
        member(b, "name", w.lines[i].name);
        member(b, "formula", w.lines[i].formula);
        member(b, "working", w.lines[i].working);
        member(b, "value", w.lines[i].value);
        member(b, "source", w.lines[i].source);
        buf_putc(b, '}');
    }
    buf text = {0};
    difference(&text, r);
    buf_puts(b, "],\"difference\":");
    if (text.failed)
        b->failed = true;
    else
        buf_json_string(b, text.data, text.len);
    buf_free(&text);
    buf_puts(b, ",\"operations\":[");
    for (size_t i = 0; i < r->n_operations; i++) {
        const dev_profile_row *o = &r->operations[i];
        buf_puts(b, i > 0 ? ",{" : "{");
        member(b, "name", o->name);
        buf_printf(b, ",\"times\":%llu", (unsigned long long)o->n);
        buf_json_field(b, "flops", o->flops);
        buf_json_field(b, "bytes", o->bytes);
        buf_json_field(b, "seconds", o->seconds);
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}
