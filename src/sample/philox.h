/* sample/philox: Philox4x32-10, the counter-based generator of Salmon et al. (SC'11).
 *
 * A draw is a pure function of key and counter: nothing is stored between draws, so neither load,
 * batching nor preemption can change what a request draws.
 */
#ifndef RIDGE_SAMPLE_PHILOX_H
#define RIDGE_SAMPLE_PHILOX_H

#include <stdint.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Uniform in [0, 1), 53 bits: key = seed, counter = (position, choice). */
double philox_uniform(uint64_t seed, uint32_t choice, uint64_t position);

#endif
