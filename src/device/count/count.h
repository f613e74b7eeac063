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
 *
 * Ranks are in their order on nodes of n_node, joined by links within a node and by the network
 * between nodes, of which each has its own part. Over several nodes sums and gathers take the
 * slower of a rank's link and of all its node's ways out; what a stage sends, the network. Rows
 * that go to experts, or come back, go once to each other node that has any of theirs, and within
 * it once to each rank, both at the same time: no fewer bytes would do (DeepSeek-V3, arXiv
 * 2412.19437, section 3.2.2). Experts are drawn at random, so all ranks have as many rows, unless
 * some are said to have more (expert_imbalance): then the busiest decides.
 *
 * Steps may be cut in two halves, of which one computes while rows of the other are on their way to
 * experts or back (DeepSeek-V3, section 3.2.1; vLLM's dual batch overlap). Each half has half of
 * the rows and of what they see, and reads the weights by itself. The layers that have experts then
 * take what both halves compute or what both exchange, whichever is longer, and one piece of the
 * other, before or after which there is nothing to hide it behind. That is what a perfect schedule
 * reaches: no unit of the GPU is lost to the exchange, and pieces hide each other wherever they
 * lie.
 */
#ifndef RIDGE_DEVICE_COUNT_COUNT_H
#define RIDGE_DEVICE_COUNT_COUNT_H

#include "device/device.h"
#include "roof/efficiency.h"
#include "roof/roof.h"

/* Rows on a rank from which steps are cut: vLLM's defaults, but that there a step in which every
 * sequence has as many guesses counts as decodes. */
#define COUNT_HALVED_DECODES 32
#define COUNT_HALVED_PROMPTS 512 /* with a prompt, or guesses, among them */

/* Is a rank's step worth two halves? Those that share experts cut theirs together, or none does. */
bool count_worth_halving(uint32_t n_tokens, uint32_t n_seqs);

typedef struct {
    const efficiency_profile *profile; /* outlives the device; NULL: every step takes 0 seconds */
    efficiency_peaks linear, other;    /* of linear layers' precision; of all else's */
    double weight_bits;                /* of each value of a matrix; 0: as its type has it */
    uint32_t n_node;                   /* 0: links join all ranks */
    double network_bytes_per_s;        /* of each rank, to other nodes; 0: unknown, no limit */
    double dispatch_bytes;             /* of each value that goes to experts; 0: as it comes back */
    double expert_imbalance;           /* rows of the busiest rank, of the mean; 0: 1 */
    bool halves;                       /* cut steps in two where exchanges can be hidden */
} count_params;

ridge_status device_count_create(device **out, const count_params *p,
                                 ridge_error *err) RIDGE_CHECKED;

/* The values of a matrix have so many bits in programs that are compiled from now on; how many
 * values those are. */
double device_count_set_bits(const dev_weight *w, double bits);

/* Whose numbers of a profile a program's steps ask for: bit k is efficiency_kind k. */
uint32_t device_count_kinds(const dev_compiled *c);

/* Of the seconds since the last submit, head included: what they waited for. */
void device_count_bounds(const device *d, double out[ROOF_N_BOUNDS]);

#endif
