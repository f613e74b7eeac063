/* plan/: what sim.c, team.c, lane.c, router.c and tally.c share. */
#ifndef RIDGE_PLAN_SIM_INTERNAL_H
#define RIDGE_PLAN_SIM_INTERNAL_H

#include "plan/sim.h"
#include "plan/sketch.h"

/* What a run has seen so far. */
typedef struct {
    sketch ttft_s, tpot_s, itl_s, e2e_s, queue_s;
    double run_s; /* of n_run intervals between tokens, which itl_s has yet to get */
    uint64_t n_run;
    sim_result sums;                               /* the counts and sums of it */
    double kv_pool, kv_held, kv_reserved, kv_used; /* tokens times seconds */
} tally;

/* A request on its way. */
typedef struct sim_request sim_request;
typedef struct lane lane;
struct sim_request {
    sequence seq;             /* first: the scheduler's view */
    double last_s;            /* of its tokens, when it came */
    uint32_t n_output;        /* tokens wanted */
    bool scheduled, answered; /* once at least; its first token is out */
    double arrived_s, first_s;
    uint64_t index;
    uint32_t n_draft_known; /* tokens in the draft model's cache */
    double ready_s;         /* while keys and values are on the link */
    lane *at;               /* where it is, or was last */
    sim_request *next;      /* on the link; in a static batch, among the padding */
    sim_request *live_next, *live_previous;
};

/* One scheduler with its cache. */
struct lane {
    scheduler *sched;
    uint32_t n_live; /* requests: waiting, running */
    sched_plan plan; /* of the step that is under way; without sequences: it has none */
    uint32_t n_wanted;
    sim_step guessing; /* for the next step */
    double link_free_s;
    sim_request *padding;
};

/* When each stage of a replica, and each link between them, is free again. */
typedef struct {
    double free_s[2 * SIM_MAX_STAGES - 1];
} sim_stages;

/* Lanes that step together. */
typedef struct {
    const sim_pool *pool;
    lane *lanes; /* [n_lanes] */
    uint32_t n_lanes;
    sim_stages *stages; /* shared by the teams of a replica */
    bool busy;
    double end_s;  /* of the step */
    sim_step step; /* the slowest lane's; the account is of all */
} team;

typedef struct sim sim;
struct sim {
    const sim_params *params;
    traffic *from;
    lane *lanes;        /* [n_lanes]; those from n_prompt_lanes on decode only */
    team *teams;        /* [n_teams] */
    sim_stages *stages; /* [n_replicas] of both pools */
    uint32_t n_lanes, n_prompt_lanes, n_teams, n_replicas;
    dev_seq *seqs;       /* [max_num_seqs] of a step */
    sim_request **ended; /* [max_num_seqs] */
    double now_s;
    traffic_request due; /* the next arrival, while `more` */
    bool more;
    uint64_t n_arrived;
    uint64_t first_refused; /* tokens of its prompt */
    uint32_t n_live;
    sim_request *live;
    sim_request *link_first, *link_last; /* on links, in the order of ready_s */
    tally tally;
};

/* lane.c */
void lane_add(lane *l, sim_request *q);
void lane_plan(lane *l); /* the next step */
/* What it takes, beside others of which `group` says what a batch says of them. */
ridge_status lane_execute(sim *s, lane *l, const sim_pool *p, const dev_batch *group, sim_step *out,
                          ridge_error *err) RIDGE_CHECKED;
/* The step is over, it took so long. */
ridge_status lane_finish(sim *s, lane *l, const sim_pool *p, double seconds,
                         ridge_error *err) RIDGE_CHECKED;

/* team.c */
/* If it is idle, the first stage is free, and there is something to do. */
ridge_status team_start(sim *s, team *t, ridge_error *err) RIDGE_CHECKED;
ridge_status team_finish(sim *s, team *t, ridge_error *err) RIDGE_CHECKED;
double team_moment(const team *t); /* when it goes on; INFINITY: when something arrives */

/* router.c: of lanes [n]. */
uint32_t router_choose(sim_router rule, const lane *lanes, uint32_t n, uint64_t turn,
                       const sequence *q);

/* sim.c: q's first token is out, on a lane that computes prompts only. */
void sim_hand_over(sim *s, lane *from, sim_request *q);
void sim_request_free(sim *s, sim_request *q);

/* tally.c */
void tally_start(tally *t, const sim_request *q, double now_s);
/* Its first token, or one that has come after another time than the last. */
void tally_first_or_run(tally *t, sim_request *q, double now_s);
static inline void tally_token(tally *t, sim_request *q, double now_s) { /* one or more at once */
    bool same = q->answered && now_s - q->last_s == t->run_s;
    if (same) t->n_run++;
    if (!same) tally_first_or_run(t, q, now_s);
    q->last_s = now_s;
}
void tally_end(tally *t, const sim_params *p, const sim_request *q);
void tally_step(tally *t, const team *m);
sim_result tally_result(tally *t);

#endif
