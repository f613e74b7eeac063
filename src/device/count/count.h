/* device/count: a device that computes nothing: it counts what each operation would compute and
 * read, and says how long that takes on a machine.
 *
 * It takes the very programs that model/forward.c builds, so planner and simulator count what the
 * engine runs. Weights are kept as shapes (data may be NULL), the cache as a layout of any size;
 * logits are left as they are. Operations of one kind (the layers of a model) are counted once and
 * multiplied: a step costs the kinds of operation plus, for each KV group, its sequences.
 *
 * Rules (roof/work.h): operations as the program has them, unfused; weights once a step, of the
 * embedding table only the rows of the step's tokens, the head only when logits are wanted; of the
 * cache what the rows see, once per sequence, and what they write. Rows of a sequence are at
 * positions [n_context - n_rows, n_context). Of a batch, tokens, positions and block tables are not
 * looked at and may be NULL, as may rows and logits of head, which takes any number of rows here.
 */
#ifndef RIDGE_DEVICE_COUNT_COUNT_H
#define RIDGE_DEVICE_COUNT_COUNT_H

#include "device/device.h"
#include "roof/efficiency.h"
#include "roof/roof.h"

typedef struct {
    const efficiency_profile *profile; /* outlives the device; NULL: every step takes 0 seconds */
    efficiency_peaks linear, other;    /* of linear layers' precision; of all else's */
    double weight_bits;                /* of each value of a matrix; 0: as its type has it */
} count_params;

ridge_status device_count_create(device **out, const count_params *p,
                                 ridge_error *err) RIDGE_CHECKED;

/* Whose numbers of a profile a program's steps ask for: bit k is efficiency_kind k. */
uint32_t device_count_kinds(const dev_compiled *c);

/* Of the seconds since the last submit, head included: what they waited for. */
void device_count_bounds(const device *d, double out[ROOF_N_BOUNDS]);

#endif
