/* device/cpu/planes: how the quants of a block lie in its packed form.
 *
 * A block of 32 values of 16 rows has as many registers of 64 bytes as a quant has bits. Byte
 * 4 * row + j of a register belongs to value j of a quad of that row: of several quads, where bits
 * are left. As many quads as fit lie whole, most of them at the bottom of a register, where one
 * mask is all it takes to have them; the last two or three lie in parts in what is left above.
 */
#ifndef RIDGE_DEVICE_CPU_PLANES_H
#define RIDGE_DEVICE_CPU_PLANES_H

#include <stdint.h>

#include "device/cpu/cpu_internal.h"

/* Bits [at, at + n_bits) of a quant: bits [from, from + n_bits) of register `reg`, from >= at.
 * n_bits 0: none. */
typedef struct {
    uint8_t reg, from, n_bits, at;
} cpu_field;

#define CPU_MAX_FIELDS 3

#define CPU_NIBBLES                                                                                \
    {                                                                                              \
        {{0, 0, 4, 0}}, {{0, 4, 4, 0}}, {{1, 0, 4, 0}}, {{1, 4, 4, 0}}, {{2, 0, 4, 0}},            \
            {{2, 4, 4, 0}}, {{3, 0, 4, 0}}, {{3, 4, 4, 0}},                                        \
    }

/* Of each quad, the fields that its quants are put together of. The kernels have it as constants.
 */
static const cpu_field cpu_fields[][CPU_QUADS][CPU_MAX_FIELDS] = {
    [CPU_U2] = {{{0, 0, 2, 0}},
                {{0, 2, 2, 0}},
                {{0, 4, 2, 0}},
                {{0, 6, 2, 0}},
                {{1, 0, 2, 0}},
                {{1, 2, 2, 0}},
                {{1, 4, 2, 0}},
                {{1, 6, 2, 0}}},
    [CPU_U3] = {{{0, 0, 3, 0}},
                {{0, 3, 3, 0}},
                {{1, 0, 3, 0}},
                {{1, 3, 3, 0}},
                {{2, 0, 3, 0}},
                {{2, 3, 3, 0}},
                {{0, 6, 2, 0}, {2, 6, 1, 2}},
                {{1, 6, 2, 0}, {2, 7, 1, 2}}},
    [CPU_U4] = CPU_NIBBLES,
    [CPU_U4_TABLE] = CPU_NIBBLES,
    [CPU_U5] = {{{0, 0, 5, 0}},
                {{1, 0, 5, 0}},
                {{2, 0, 5, 0}},
                {{3, 0, 5, 0}},
                {{4, 0, 5, 0}},
                {{0, 5, 3, 0}, {3, 5, 2, 3}},
                {{1, 5, 3, 0}, {4, 5, 2, 3}},
                {{2, 5, 3, 0}, {3, 7, 1, 3}, {4, 7, 1, 4}}},
    [CPU_U6] = {{{0, 0, 6, 0}},
                {{1, 0, 6, 0}},
                {{2, 0, 6, 0}},
                {{3, 0, 6, 0}},
                {{4, 0, 6, 0}},
                {{5, 0, 6, 0}},
                {{0, 6, 2, 0}, {2, 6, 2, 2}, {4, 6, 2, 4}},
                {{1, 6, 2, 0}, {3, 6, 2, 2}, {5, 6, 2, 4}}},
    [CPU_U8] = {{{0, 0, 8, 0}},
                {{1, 0, 8, 0}},
                {{2, 0, 8, 0}},
                {{3, 0, 8, 0}},
                {{4, 0, 8, 0}},
                {{5, 0, 8, 0}},
                {{6, 0, 8, 0}},
                {{7, 0, 8, 0}}},
};

#endif
