/* engine/ngram: guesses what comes next in a text from where its end has stood before.
 *
 * "Prompt look-up": no model. The tokens of one sequence, prompt and output, are indexed as they
 * come, as LZ77 compressors do it: a hash of the last two tokens leads to the latest place where
 * they stood, that to the one before, and so on. Of the few latest places, the one whose past
 * agrees with the text's end for longest is the source: what followed there is the guess. A source
 * that was right goes on; one that was right for long and then wrong once stays a candidate one
 * token later, for an edit (a variable renamed, a number changed) leaves what follows as it was.
 *
 * Pure; one per sequence. All memory is made at creation; a token costs O(1), however long the
 * text.
 */
#ifndef RIDGE_ENGINE_NGRAM_H
#define RIDGE_ENGINE_NGRAM_H

#include <stdint.h>

#include "base/error.h"

#define NGRAM_MAX_LENGTH 32 /* agreement is counted up to here */
#define NGRAM_EDITED 1      /* a source kept after an edit counts as this long */

typedef struct ngram ngram;

/* For a sequence of at most max_tokens tokens. */
ridge_status ngram_create(ngram **out, uint32_t max_tokens, ridge_error *err) RIDGE_CHECKED;
void ngram_destroy(ngram *g); /* NULL allowed */

/* What may follow tokens [n], which begin with those of the calls before: up to max guesses in out;
 * how many. *length: how many tokens before the end agree with those before the source (2 to
 * NGRAM_MAX_LENGTH); after an edit NGRAM_EDITED and those since. The longer, the better. */
uint32_t ngram_guess(ngram *g, const int32_t *tokens, uint32_t n, uint32_t max, int32_t *out,
                     uint32_t *length);

#endif
