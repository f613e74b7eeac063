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

/* Latent attention of n rows of one sequence, which read `read` tokens: the cheaper of two ways.
 * Either keys and values of all heads are made of each token's latent; or the matrices that would
 * make them are taken to the queries and outputs ("absorbed", DeepSeek-V2, section 2.1.2), and each
 * head works on the latent itself. */
typedef struct {
    double n_heads, rank, n_nope, n_rope, n_value;
} work_latent;

double work_latent_flops(const work_latent *l, double n, double seen, double read);

/* Of one sequence's rows at positions [first, first + n), the tokens that they see together,
 * themselves included. window 0: full. */
static inline double work_read_tokens(uint32_t window, double first, double n) {
    double all = first + n, reach = n - 1 + window; /* the rows' windows together */
    return window > 0 && all > reach ? reach : all;
}

/* The tokens that each of them sees, summed up. */
double work_seen_by_rows(uint32_t window, double first, double n);
static inline double work_seen_tokens(uint32_t window, double first, double n) {
    return n == 1 ? work_read_tokens(window, first, 1) : work_seen_by_rows(window, first, n);
}

/* Of n_experts, those that n tokens touch, by expectation, when each takes top_k at random:
 * E (1 - (1 - k/E)^n). */
double work_experts_touched(double n_experts, double top_k, double n);

#endif
