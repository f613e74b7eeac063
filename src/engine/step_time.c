/* engine/step_time: see step_time.h. */
#include "engine/step_time.h"

#include <math.h>

#include "device/device.h"

#define ROW_SHARE 0.1 /* of a row of a prompt in a step of one, while no prompt was seen */
#define FEW_SHARE 0.5 /* of that while memory is what the step waits for */
#define LEVEL_RATE 0.2
#define SHAPE_RATE (1.0 / 16)
#define PROMPT_ROWS 32 /* with fewer, the rest of a step counts too much */

static uint32_t entry_of(uint32_t n_rows) {
    if (n_rows <= STEP_TIME_EXACT) return n_rows - 1;
    uint32_t entry = STEP_TIME_EXACT, low = STEP_TIME_EXACT;
    while (n_rows >= 2 * low && entry + 8 < STEP_TIME_ENTRIES) {
        low *= 2;
        entry += 4;
    }
    uint32_t quarter = (n_rows - low) / (low / 4);
    return entry + (quarter < 4 ? quarter : 3);
}

/* The middle of the counts that share an entry. */
static uint32_t rows_of(uint32_t entry) {
    if (entry < STEP_TIME_EXACT) return entry + 1;
    uint32_t low = (uint32_t)STEP_TIME_EXACT << (entry - STEP_TIME_EXACT) / 4;
    return low + (entry - STEP_TIME_EXACT) % 4 * (low / 4) + low / 8;
}

/* Of one row, in the unit of shapes: where nothing was seen, any will do. */
static double first_shape(const step_time *t) {
    return t->entries[0].n > 0 ? t->entries[0].shape : 1;
}

double step_time_of_row(const step_time *t) {
    if (t->row_s > 0) return t->row_s;
    return ROW_SHARE * first_shape(t) * (t->level > 0 ? t->level : 1);
}

/* The curve of a memory wall, 1 at one row. */
static double curve(const step_time *t, uint32_t n_rows) {
    double level = t->level > 0 ? t->level : 1;
    double row = step_time_of_row(t) / (level * first_shape(t));
    if (n_rows <= DEV_FEW_TOKENS) return 1 + FEW_SHARE * row * (n_rows - 1);
    return 1 + row * n_rows;
}

double step_time_guess(const step_time *t, uint32_t n_rows) {
    return (t->level > 0 ? t->level : 1) * first_shape(t) * curve(t, n_rows);
}

/* What was seen, over the curve. */
static double over_curve(const step_time *t, uint32_t entry) {
    return t->entries[entry].shape / curve(t, rows_of(entry));
}

double step_time_of(const step_time *t, uint32_t n_rows) {
    uint32_t entry = entry_of(n_rows), below = entry, above = entry;
    double level = t->level > 0 ? t->level : 1, factor = 1;
    while (below > 0 && t->entries[below].n == 0) below--;
    while (above < STEP_TIME_ENTRIES - 1 && t->entries[above].n == 0) above++;
    bool has_below = t->entries[below].n > 0, has_above = t->entries[above].n > 0;
    if (has_below && has_above && above > below) {
        double at = (double)(entry - below) / (above - below);
        factor = (1 - at) * over_curve(t, below) + at * over_curve(t, above);
    } else if (has_below || has_above) {
        factor = over_curve(t, has_below ? below : above);
    }
    return level * factor * curve(t, n_rows);
}

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

void step_time_add(step_time *t, uint32_t n_rows, double seconds) {
    uint32_t entry = entry_of(n_rows);
    if (!(seconds > 0)) return;
    if (t->level <= 0) t->level = seconds / curve(t, n_rows);
    uint32_t n = t->entries[entry].n++;
    if (n == 0) {
        t->entries[entry].shape = seconds / t->level;
        return;
    }
    double ratio = clamp(seconds / (t->level * t->entries[entry].shape), 0.5, 2);
    t->level *= pow(ratio, LEVEL_RATE);
    t->entries[entry].shape *= pow(ratio, n < 8 ? 0.5 / n : SHAPE_RATE);
}

void step_time_add_prompt(step_time *t, uint32_t n_rows, double seconds) {
    if (n_rows < PROMPT_ROWS || !(seconds > 0)) return;
    double row_s = seconds / n_rows;
    t->row_s = t->row_s > 0 ? t->row_s * 0.8 + row_s * 0.2 : row_s;
}
