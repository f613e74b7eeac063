/* server/explain: where the time of one sequence went, and the main reason, in one sentence.
 *
 * The time from a request's arrival to its last token is cut into parts that add up to it; the
 * largest is the reason. Every number in the sentence is a measured one, but for the part of others
 * in a common step, which the roofline tells (engine/usage.h). Pure.
 */
#ifndef RIDGE_SERVER_EXPLAIN_H
#define RIDGE_SERVER_EXPLAIN_H

#include "base/buf.h"
#include "engine/engine.h"

typedef enum {
    EXPLAIN_QUEUE,     /* arrival at the engine to the first step */
    EXPLAIN_PROMPT,    /* steps that computed its prompt */
    EXPLAIN_DECODE,    /* steps that computed its answer */
    EXPLAIN_OTHERS,    /* what the prompts of others added to all of those */
    EXPLAIN_PREEMPTED, /* after a preemption: waiting to run again, and computing again */
    EXPLAIN_TURN,      /* between its steps, never preempted: others filled them */
    EXPLAIN_OUTSIDE,   /* before the engine and after it: reading, tokenizing, handing over */
    EXPLAIN_N_PARTS
} explain_part;

typedef struct {
    double total_s;
    double seconds[EXPLAIN_N_PARTS]; /* >= 0; together total_s, or what the engine took if more */
    explain_part reason;             /* the largest; of equal ones the first */
} explain_parts;

/* total_s: arrival to last token, as the server saw it. */
explain_parts explain_split(const engine_usage *u, double total_s);
/* The sentence, as plain text. */
void explain_sentence(const engine_usage *u, const explain_parts *p, buf *out);
/* The members of a JSON object, without its braces. */
void explain_write(const engine_usage *u, double total_s, buf *out);

#endif
