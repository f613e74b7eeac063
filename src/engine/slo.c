/* engine/slo: see slo.h. */
#include "engine/slo.h"

#include <math.h>

#define LONGEST_TARGET_S 1e6

_Static_assert(COST_MAX_GROUPS == DEV_MAX_GROUPS, "a cost for every KV group");

static ridge_status check_target(const char *name, double seconds, ridge_error *err) {
    if (seconds >= 0 && seconds <= LONGEST_TARGET_S) return RIDGE_OK;
    error_where(err, name);
    return RIDGE_FAIL(err, RIDGE_EINVAL,
                      "%s: expected milliseconds from 0 (no target) to %g, found %g", name,
                      LONGEST_TARGET_S * 1e3, seconds * 1e3);
}

ridge_status slo_check_params(const engine_params *p, ridge_error *err) {
    RIDGE_TRY(check_target("slo_tpot", p->slo_tpot_s, err));
    RIDGE_TRY(check_target("slo_ttft", p->slo_ttft_s, err));
    bool guesses = p->speculative_ngram || p->speculative_model != NULL;
    if (p->static_batches && (p->slo_tpot_s > 0 || p->shed || guesses)) {
        error_where(err, "static_batches");
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "static batches know neither targets (slo_tpot, shed) nor guesses");
    }
    if (p->shed && p->slo_ttft_s == 0) {
        error_where(err, "shed");
        return RIDGE_FAIL(err, RIDGE_EINVAL, "shed needs a target to shed by: slo_ttft");
    }
    return RIDGE_OK;
}

static double head_bytes(const engine *e) {
    const gguf_tensor *t = gguf_tensor_find(e->file, "output.weight");
    if (t == NULL) t = gguf_tensor_find(e->file, "token_embd.weight");
    return t != NULL ? (double)t->size_bytes : 0;
}

cost_shape slo_cost_shape(const engine *e) {
    const model_config *c = &e->model->config;
    const dev_kv_layout *l = &e->kv_layout;
    double width = c->n_embd, q = (double)c->n_heads * c->head_dim,
           kv = (double)c->n_kv_heads * c->head_dim;
    cost_shape s = {.attention_ops_per_s = e->peaks.f32_flops_per_s,
                    .head_bytes = head_bytes(e),
                    .row_ops = 2 * c->n_layers * width * (2 * q + 2 * kv + 3.0 * c->n_ff),
                    .head_row_ops = 2 * width * c->n_vocab,
                    .n_groups = l->n_groups};
    engine_peaks(e, &s.bytes_per_s, &s.linear_ops_per_s);
    double weights = (double)e->model->step_bytes;
    s.weight_bytes = weights > s.head_bytes ? weights - s.head_bytes : 0;
    for (uint32_t g = 0; g < l->n_groups; g++) {
        s.groups[g].window = l->groups[g].window;
        s.groups[g].attention_ops =
            4 * q * l->groups[g].n_layers; /* q k^T and its product with v */
        s.groups[g].bytes_per_token = (double)dev_kv_bytes_per_block(l, g) / l->block_size;
    }
    return s;
}

void slo_note_first_token(engine *e, const request *q) {
    double taken = q->first_token_s - q->arrived_s;
    if (q->predicted_ttft_s <= 0 || taken <= 0) return;
    e->stats.ttft_predictions++;
    e->stats.ttft_error_sum += fabs(q->predicted_ttft_s - taken) / taken;
}

static bool meets_targets(const engine_params *p, const request *q) {
    double gaps = (double)q->n_output - 1;
    if (p->slo_ttft_s > 0 && !(q->first_token_s - q->arrived_s <= p->slo_ttft_s)) return false;
    return p->slo_tpot_s == 0 || q->last_token_s - q->first_token_s <= gaps * p->slo_tpot_s;
}

void slo_note_end(engine *e, const request *q) {
    const engine_params *p = &e->params;
    bool answered = q->finish == ENGINE_STOP || q->finish == ENGINE_LENGTH;
    if (p->slo_ttft_s == 0 && p->slo_tpot_s == 0) return;
    if (q->given.prompt_only || q->finish == ENGINE_CANCELLED) return;
    if (answered && meets_targets(p, q))
        e->stats.slo_met++;
    else
        e->stats.slo_missed++;
}
