/* engine/speculate: speculative decoding: several tokens of a sequence in one step.
 *
 * Before a step, guesses are put after the tokens of sequences that lack one token; the step
 * computes them with the rest. At each of them the target's own token is then drawn as ever, by the
 * draw of its position, and used as ever; where it is the guess, the next row has seen the right
 * token and is used too. So what comes out is what would have come out, to the bit, and a wrong
 * guess costs time only: its entry of the cache is written again by the token that belongs there.
 *
 * Guesses come from the sequence's own past (ngram.h) or from a draft model (draft_model.h). How
 * many are worth a row of a step is reckoned from how often they came true and from what steps of
 * so many rows have taken (draft_length.h), unless their number is fixed. Guesses of n-grams are
 * kept and compared even where none is verified: their record costs nothing. To learn whether a
 * draft model has become better it must run: once in a while, for at most a hundredth of the time.
 *
 * The engine's thread, but for open, attach and detach.
 */
#ifndef RIDGE_ENGINE_SPECULATE_H
#define RIDGE_ENGINE_SPECULATE_H

#include "engine/draft_model.h"
#include "engine/ngram.h"
#include "sched/scheduler.h"

typedef struct engine engine;
typedef struct request request;
typedef struct speculation speculation;

/* A request's part. */
typedef struct {
    ngram *ngram;      /* NULL: not guessed for by n-grams */
    draft_cache cache; /* of the draft model */
    draft_record record;
    draft_allowance allowance;
    int32_t guesses[DRAFT_MAX]; /* [n_guesses] of what follows the n_then tokens that there were */
    uint8_t classes[DRAFT_MAX];
    uint32_t n_guesses, n_then;
    uint32_t n_declined; /* steps since the last guesses were verified */
    uint32_t n_drafted, n_accepted;
} request_drafts;

/* *out is NULL where the engine's parameters ask for none. After the model, before the requests. */
ridge_status speculation_open(speculation **out, const engine *e, ridge_error *err) RIDGE_CHECKED;
void speculation_close(speculation *s); /* NULL allowed */

/* All that the request's guesses will need; any thread. */
ridge_status speculation_attach(const engine *e, request *q, ridge_error *err) RIDGE_CHECKED;
void speculation_detach(request *q);
/* Blocks of the draft model's cache go back: q leaves. */
void speculation_release(engine *e, request *q);

/* Before the step is planned: guesses for those that it will give one token. */
void speculation_guess(engine *e);
/* The next token of q, not yet appended, is `id`: was that the guess? If not, the rows of the
 * guesses after it have seen a wrong token. */
bool speculation_came_true(request *q, int32_t id);
/* After the step, before the commit. What it took and what came of it; account and seconds of a
 * draft model are added. */
void speculation_note(engine *e, const sched_plan *plan, dev_account *account, double *seconds);

/* For tests: guesses come from fn: up to max of what may follow tokens [n]; how many. */
typedef uint32_t (*speculation_fn)(void *context, const int32_t *tokens, uint32_t n, uint32_t max,
                                   int32_t *out);
void speculation_set_source(speculation *s, speculation_fn fn, void *context);

#endif
