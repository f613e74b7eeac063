/* engine/step_time: what a step of so many rows takes on this machine, learned from the steps.
 *
 * For choosing between steps that all could be next: is one of 8 rows that much longer than one of
 * 1? The answer is a level, which follows the last steps closely (neighbours come and go, contexts
 * grow), times a shape, one number per count of rows, which is learned slowly and outlives them.
 * Counts never seen are read from their neighbours, along a curve that assumes nothing but a memory
 * wall: up to DEV_FEW_TOKENS rows a row costs little, beyond it costs what a prompt's row does.
 *
 * Pure: seconds come from outside.
 */
#ifndef RIDGE_ENGINE_STEP_TIME_H
#define RIDGE_ENGINE_STEP_TIME_H

#include <stdint.h>

#define STEP_TIME_EXACT 32   /* counts up to here have a number each, */
#define STEP_TIME_ENTRIES 96 /* larger ones share: four for each doubling */

typedef struct {
    double level; /* seconds; 0: nothing seen yet */
    double row_s; /* of a row of a prompt; 0: none seen */
    struct {
        double shape; /* seconds = level * shape */
        uint32_t n;   /* times seen */
    } entries[STEP_TIME_ENTRIES];
} step_time;

/* A step that computed n_rows, all of them with logits, took so long. */
void step_time_add(step_time *t, uint32_t n_rows, double seconds);
/* The same of a step with prompts in it. */
void step_time_add_prompt(step_time *t, uint32_t n_rows, double seconds);
/* Expected of n_rows >= 1 with logits, in seconds; 1 for one row while nothing was seen. */
double step_time_of(const step_time *t, uint32_t n_rows);
/* The same, had nothing but steps of one row been seen: for deciding what deserves another look. */
double step_time_guess(const step_time *t, uint32_t n_rows);
/* Of one row more in a step with prompts. */
double step_time_of_row(const step_time *t);

#endif
