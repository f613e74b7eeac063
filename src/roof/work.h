/* roof/work: what the operations of a transformer compute and read: the rules of counting, in one
 * place for devices that account for what they did and for those who predict it.
 *
 * A multiply and an add are two operations. Weights are read once a step, of the cache each token
 * that any row of a sequence sees once. Activations are not counted: they stay on the chip. Pure.
 */
#ifndef RIDGE_ROOF_WORK_H
#define RIDGE_ROOF_WORK_H

#include <stdint.h>

/* n rows times a matrix [rows, cols]. */
static inline double work_linear_flops(double rows, double cols, double n) {
    return 2 * rows * cols * n;
}

/* Scores and their weighted sum: `seen` is work_seen_tokens. */
static inline double work_attention_flops(double n_heads, double head_dim, double seen) {
    return 4 * n_heads * head_dim * seen;
}

/* Of one sequence's rows at positions [first, first + n): the tokens that each sees, itself
 * included, summed up. window 0: full. */
double work_seen_tokens(uint32_t window, double first, double n);
/* The tokens that they see together. */
double work_read_tokens(uint32_t window, double first, double n);

/* Of n_experts, those that n tokens touch, by expectation, when each takes top_k at random:
 * E (1 - (1 - k/E)^n). */
double work_experts_touched(double n_experts, double top_k, double n);

#endif
