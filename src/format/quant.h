/* format/quant: the tensor types of GGUF: block sizes and exact dequantisation to f32.
 *
 * Pure functions. Block layouts: ggml-common.h of ggml (MIT), restated in quant.c.
 */
#ifndef RIDGE_FORMAT_QUANT_H
#define RIDGE_FORMAT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* values are GGUF's own type ids */
typedef enum {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_IQ4_NL = 20,
    QUANT_BF16 = 30
} quant_type;

/* NULL for an id that is not supported (quant_known_name names others, for messages). */
const char *quant_name(quant_type type);
const char *quant_known_name(uint32_t id);    /* "IQ2_XXS"; NULL: no type of ggml's */
const char *quant_supported(void);            /* "F32, F16, ..." */
uint32_t quant_block_values(quant_type type); /* values per block: 1, 32 or 256 */
uint32_t quant_block_bytes(quant_type type);
/* src: whole blocks; n a multiple of the block. */
void quant_dequantize(quant_type type, const void *src, float *dst /* [n] */, size_t n);

float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float x); /* round to nearest even */

#endif
