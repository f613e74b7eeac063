/* engine/draft_length: how many guesses a step should verify, of which sequence.
 *
 * A guess is worth its chance of being used; what it costs is one row more in the step. Guesses are
 * taken in order of their chances as long as tokens per second, (sequences + chances) / time of the
 * step, still grow. None at all is an answer like any other: it is what comes out when guesses are
 * poor, or when so many sequences run that a row is as dear as a token.
 *
 * Chances are learned from texts that went before, so a text that is like none of them would pay
 * for what it teaches. Each has an allowance therefore, which bounds its loss whatever is expected.
 *
 * Pure: decides about time only, never about tokens.
 */
#ifndef RIDGE_ENGINE_DRAFT_LENGTH_H
#define RIDGE_ENGINE_DRAFT_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/step_time.h"

#define DRAFT_MAX 16     /* guesses of one sequence in one step */
#define DRAFT_CLASSES 10 /* kinds of guesses that are counted apart */

/* How often guesses of each class came true. Old ones fade. */
typedef struct {
    struct {
        float hits, n;
    } classes[DRAFT_CLASSES];
} draft_record;

/* fade: the most that n becomes. */
void draft_record_add(draft_record *r, uint32_t class, bool hit, float fade);
/* From one sequence's own record, and where that is thin from that of all (n > 0 in it). */
double draft_record_chance(const draft_record *own, const draft_record *all, uint32_t class);

typedef struct {
    const step_time *time;
    uint32_t n_sequences;   /* that decode in this step, with guesses or without */
    uint32_t n_prompt_rows; /* of prompts, in the same step */
    double round_s;         /* to make one more guess for every sequence; 0: nothing */
    uint32_t max_rows;      /* of guesses, in all */
    bool hopeful;           /* reckon with step_time_guess: look whether what was slow still is */
} draft_costs;

/* used [n][DRAFT_MAX]: the chance that guesses 0..j of sequence i all come true, so not rising in
 * j; 0 from the end of its guesses on. length [n]: how many of each to verify. Returns tokens per
 * second over those without guesses: 1 where there shall be none. */
double draft_length_choose(const draft_costs *c, const float (*used)[DRAFT_MAX], uint32_t n,
                           uint32_t *length);

/* Seconds that guesses may yet cost a sequence; 0 to begin with. It grows by what guesses save and
 * by DRAFT_LOSS of the time of each token, and shrinks by what guesses take; it may fall short by
 * the time of one token. So a text of n tokens loses DRAFT_LOSS + 1 / n of its time at most. */
#define DRAFT_LOSS 0.01
typedef double draft_allowance;

/* The longest draft that it pays for, should none of it come true: at most DRAFT_MAX. Who is
 * hopeful gets one guess unless a is negative: a row takes no longer than a token, so one that
 * seems to was held up when it was seen, and would never be seen again. */
uint32_t draft_allowance_length(draft_allowance a, const draft_costs *c);
/* After a step that verified n_all guesses, n of them the sequence's: n_accepted came true. */
void draft_allowance_settle(draft_allowance *a, const draft_costs *c, uint32_t n_all, uint32_t n,
                            uint32_t n_accepted);

#endif
