/* plan/: what sim.c, replica.c, router.c and tally.c share. */
#ifndef RIDGE_PLAN_SIM_INTERNAL_H
#define RIDGE_PLAN_SIM_INTERNAL_H

#include "plan/sim.h"
#include "plan/sketch.h"

/* What a run has seen so far. */
typedef struct {
    sketch ttft_s, tpot_s, itl_s, e2e_s, queue_s;
    sim_result sums;                  /* the counts and sums of it */
    double kv_pool, kv_held, kv_used; /* tokens times seconds */
} tally;

/* A request on its way. */
typedef struct sim_request sim_request;
typedef struct replica replica;
struct sim_request {
    sequence seq; /* first: the scheduler's view */
    uint64_t index;
    uint32_t n_output; /* tokens wanted */
    double arrived_s, first_s, last_s;
    bool scheduled, answered; /* once at least; its first token is out */
    double ready_s;           /* while keys and values are on the link */
    replica *at;              /* where it is, or was last */
    sim_request *next;        /* on the link; in a static batch, among the padding */
    sim_request *live_next, *live_previous;
};

struct replica {
    scheduler *sched;
    uint32_t n_live; /* requests: waiting, running */
    bool busy;
    double end_s; /* of the step */
    sched_plan plan;
    sim_step step;
    uint32_t n_wanted;
    double link_free_s;
    sim_request *padding;
};

typedef struct sim sim;
struct sim {
    const sim_params *params;
    traffic *from;
    replica *replicas; /* [n_replicas]; those from params->n_replicas on decode only */
    uint32_t n_replicas;
    dev_seq *seqs;       /* [max_num_seqs] of a step */
    sim_request **ended; /* [max_num_seqs] */
    double now_s;
    traffic_request due; /* the next arrival, while `more` */
    bool more;
    uint64_t n_arrived;
    uint32_t n_live;
    sim_request *live;
    sim_request *link_first, *link_last; /* on links, in the order of ready_s */
    tally tally;
};

/* replica.c */
ridge_status replica_open(replica *r, const sched_params *p, ridge_error *err) RIDGE_CHECKED;
void replica_close(replica *r);
void replica_add(replica *r, sim_request *q);
/* If it is idle and there is something to do. */
ridge_status replica_start(sim *s, replica *r, ridge_error *err) RIDGE_CHECKED;
void replica_finish(sim *s, replica *r); /* the step is over */

/* router.c: of replicas [n]. */
uint32_t router_choose(sim_router rule, const replica *replicas, uint32_t n, uint64_t turn,
                       const sequence *q);

/* sim.c: q's first token is out, on a replica that computes prompts only. */
void sim_hand_over(sim *s, replica *from, sim_request *q);
void sim_request_free(sim *s, sim_request *q);

/* tally.c */
void tally_start(tally *t, const sim_request *q, double now_s);
void tally_token(tally *t, sim_request *q, double now_s); /* one or more at once */
void tally_end(tally *t, const sim_params *p, const sim_request *q);
void tally_step(tally *t, const replica *r, const sched_params *p);
sim_result tally_result(const tally *t);

#endif
