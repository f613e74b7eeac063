/* plan/team: lanes that step together, and their way through the stages (sim.h). */
#include <math.h>

#include "device/count/count.h"
#include "plan/sim_internal.h"

static bool has_work(const team *t) {
    for (uint32_t i = 0; i < t->n_lanes; i++)
        if (t->lanes[i].n_live > 0) return true;
    return false;
}

/* What each lane's batch says of all of them; one that has no sequence computes a row, too. */
static dev_batch group_of(const team *t) {
    dev_batch group = {.group_halves = true};
    if (t->n_lanes == 1) return (dev_batch){0};
    for (uint32_t i = 0; i < t->n_lanes; i++) {
        const sched_plan *plan = &t->lanes[i].plan;
        group.n_group_tokens += plan->n_tokens > 0 ? plan->n_tokens : 1;
        group.group_halves =
            group.group_halves && count_worth_halving(plan->n_tokens, plan->n_sequences);
    }
    return group;
}

/* When a step that begins now has passed every stage and link. */
static double pass(sim_stages *stages, const sim_step *step, double now_s) {
    double t = now_s;
    if (step->n_parts == 0) return stages->free_s[0] = t + step->seconds;
    for (uint32_t i = 0; i < step->n_parts; i++)
        stages->free_s[i] = t = fmax(t, stages->free_s[i]) + step->parts_s[i];
    return t;
}

/* Adds one lane's step to that of the team. */
static void join(sim_step *all, const sim_step *one) {
    dev_account account = all->account;
    dev_account_add(&account, &one->account);
    if (one->seconds > all->seconds) *all = *one;
    all->account = account;
}

ridge_status team_start(sim *s, team *t, ridge_error *err) {
    if (t->busy || t->stages->free_s[0] > s->now_s || !has_work(t)) return RIDGE_OK;
    for (uint32_t i = 0; i < t->n_lanes; i++) lane_plan(&t->lanes[i]);
    const dev_batch group = group_of(t);
    RIDGE_TRY(lane_execute(s, &t->lanes[0], t->pool, &group, &t->step, err));
    for (uint32_t i = 1; i < t->n_lanes; i++) {
        sim_step one;
        RIDGE_TRY(lane_execute(s, &t->lanes[i], t->pool, &group, &one, err));
        join(&t->step, &one);
    }
    t->end_s = pass(t->stages, &t->step, s->now_s);
    t->busy = true;
    return RIDGE_OK;
}

ridge_status team_finish(sim *s, team *t, ridge_error *err) {
    tally_step(&s->tally, t);
    t->busy = false;
    for (uint32_t i = 0; i < t->n_lanes; i++)
        if (t->lanes[i].plan.n_sequences > 0)
            RIDGE_TRY(lane_finish(s, &t->lanes[i], t->pool, t->step.seconds, err));
    return RIDGE_OK;
}

double team_moment(const team *t) {
    if (t->busy) return t->end_s;
    return has_work(t) ? t->stages->free_s[0] : INFINITY;
}
