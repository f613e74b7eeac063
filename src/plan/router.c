/* plan/router: which replica gets a request, and of its schedulers which.
 *
 *     round-robin    the next one
 *     least-loaded   the one with the fewest requests, waiting and running
 *     prefix         the one whose cache knows the longest beginning of the prompt, if that is more
 *                    than half of it; else the least loaded. But while the loads lie apart, by more
 *                    than 64 requests and by more than half of the smaller, the least loaded.
 *
 * Of equals the first. The last rule is that of SGLang's cache-aware router (cache threshold 0.5,
 * balance thresholds 64 and 1.5), which guesses at the caches from what it has sent; here, as in
 * llm-d's precise scheduling, they are asked: what a replica has yet to compute is not known.
 */
#include <string.h>

#include "plan/sim_internal.h"

#define CACHE_THRESHOLD 0.5
#define BALANCE_ABSOLUTE 64
#define BALANCE_RELATIVE 1.5

static const char *const names[SIM_N_ROUTERS] = {"round-robin", "least-loaded", "prefix"};

const char *sim_router_name(sim_router r) {
    return names[r];
}

bool sim_router_find(const char *name, sim_router *out) {
    for (int i = 0; i < SIM_N_ROUTERS; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (sim_router)i;
        return true;
    }
    return false;
}

static uint32_t least_loaded(const lane *lanes, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (lanes[i].n_live < lanes[best].n_live) best = i;
    return best;
}

static bool is_balanced(const lane *lanes, uint32_t n) {
    uint32_t least = lanes[least_loaded(lanes, n)].n_live, most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (lanes[i].n_live > most) most = lanes[i].n_live;
    return most - least <= BALANCE_ABSOLUTE || most <= BALANCE_RELATIVE * least;
}

static uint32_t prefix_aware(const lane *lanes, uint32_t n, const sequence *q) {
    uint32_t best = 0, longest = 0;
    if (!is_balanced(lanes, n)) return least_loaded(lanes, n);
    for (uint32_t i = 0; i < n; i++) {
        const kv_cache *c = sched_cache(lanes[i].sched);
        uint32_t known = kv_cache_find(c, q->salt, q->tokens, q->n_prompt).n_tokens;
        if (known <= longest) continue;
        longest = known;
        best = i;
    }
    return longest > CACHE_THRESHOLD * q->n_prompt ? best : least_loaded(lanes, n);
}

uint32_t router_choose(sim_router rule, const lane *lanes, uint32_t n, uint64_t turn,
                       const sequence *q) {
    switch (rule) {
    case SIM_ROUND_ROBIN: return (uint32_t)(turn % n);
    case SIM_PREFIX_AWARE: return prefix_aware(lanes, n, q);
    default: return least_loaded(lanes, n);
    }
}
