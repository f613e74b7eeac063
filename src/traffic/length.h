/* traffic/length: how long prompts and answers are: a distribution over tokens.
 *
 *     256                always
 *     uniform:A:B        every whole number from A to B equally often
 *     exp:MEAN[:MAX]     exponential; with MAX truncated there (drawn anew, as it were)
 *     normal:MEAN:SD     rounded, what is below 1 is 1
 *
 * A length is a pure function of the draws it is given. Pure; any thread.
 */
#ifndef RIDGE_TRAFFIC_LENGTH_H
#define RIDGE_TRAFFIC_LENGTH_H

#include <stdint.h>

#include "base/error.h"

#define LENGTH_MAX (1u << 24) /* tokens */

typedef enum { LENGTH_FIXED, LENGTH_UNIFORM, LENGTH_EXPONENTIAL, LENGTH_NORMAL } length_kind;

typedef struct {
    length_kind kind;
    double a, b; /* N; from, to; mean, maximum (0: none); mean, standard deviation */
} length_spec;

ridge_status length_parse(length_spec *out, const char *text, ridge_error *err) RIDGE_CHECKED;
/* u and v are uniform in [0, 1); the result is in [1, LENGTH_MAX]. */
uint32_t length_draw(const length_spec *s, double u, double v);

#endif
