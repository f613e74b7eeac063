/* engine/usage: see usage.h. */
#include "engine/usage.h"

#include "base/error.h"

/* vLLM's buckets of tokens per step. */
const uint32_t engine_step_token_bounds[ENGINE_STEP_BOUNDS] = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

static bool peaks_are_known(const step_cost *c) {
    return c->peak_flops_per_s > 0 && c->peak_bytes_per_s > 0;
}

static double bytes_of(const step_cost *c) {
    return c->weight_bytes + c->kv_bytes;
}

double step_roof_s(const step_cost *c) {
    if (!peaks_are_known(c)) return 0;
    return roof_seconds(c->flops, c->peak_flops_per_s, bytes_of(c), c->peak_bytes_per_s);
}

bool step_is_compute_bound(const step_cost *c) {
    return peaks_are_known(c) && c->flops / c->peak_flops_per_s > bytes_of(c) / c->peak_bytes_per_s;
}

double step_others_share(const step_cost *c, uint32_t n_others) {
    ridge_assert(n_others < c->n_tokens || n_others == 0);
    if (n_others == 0) return 0;
    double part = (double)n_others / (double)c->n_tokens, whole = step_roof_s(c);
    if (whole == 0) return part;
    double without =
        roof_seconds(c->flops * (1 - part), c->peak_flops_per_s, bytes_of(c), c->peak_bytes_per_s);
    return 1 - without / whole;
}

void phase_add_step(engine_phase *p, const step_cost *c, uint32_t n_own, bool again) {
    double others = c->seconds * step_others_share(c, c->n_prompt_tokens - n_own);
    p->n_steps++;
    p->n_mixed += c->n_prompt_tokens > n_own;
    p->n_seqs += c->n_seqs;
    p->seconds += c->seconds;
    p->others_s += others;
    if (again) p->again_s += c->seconds - others;
    p->roof_s += step_roof_s(c);
    if (step_is_compute_bound(c)) p->compute_s += c->seconds;
}

void stats_add_step(engine_stats *s, const step_cost *c) {
    size_t i = 0;
    while (i < ENGINE_STEP_BOUNDS && c->n_tokens > engine_step_token_bounds[i]) i++;
    s->step_tokens[i]++;
    s->step_tokens_sum += c->n_tokens;
    s->steps++;
    s->step_s += c->seconds;
    s->flops += c->flops;
    s->weight_bytes += c->weight_bytes;
    s->kv_bytes += c->kv_bytes;
    s->roof_s += step_roof_s(c);
    if (step_is_compute_bound(c))
        s->compute_bound_s += c->seconds;
    else if (peaks_are_known(c))
        s->memory_bound_s += c->seconds;
    else
        s->unknown_bound_s += c->seconds;
}
