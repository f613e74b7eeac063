/* format/quant: block layouts and exact dequantisation.
 *
 * A block of 32 ("Q4_0" …) or 256 ("Q4_K" …) values is stored as small integers and f16 scales.
 * d is a block's scale, m its minimum; integers q are packed low halves first. Byte order within a
 * block, h = f16:
 *
 *   Q4_0    d:h, q[16]                      x = d·(q−8); byte i has values i (low) and i+16 (high)
 *   Q4_1    d:h, m:h, q[16]                 x = d·q + m
 *   Q5_0    d:h, hi:u32, q[16]              x = d·(q−16); bit i of hi is bit 4 of value i
 *   Q5_1    d:h, m:h, hi:u32, q[16]         x = d·q + m
 *   Q8_0    d:h, q:i8[32]                   x = d·q
 *   IQ4_NL  d:h, q[16]                      x = d·table[q]
 *   Q2_K    s[16], q[64], d:h, m:h          x = d·(s&15)·q − m·(s>>4), s per 16 values
 *   Q3_K    hi[32], q[64], s[12], d:h       x = d·(s−32)·(q − 4·(no hi)), s of 6 bits per 16 values
 *   Q4_K    d:h, m:h, s[12], q[128]         x = d·s·q − m·t, (s,t) of 6 bits per 32 values
 *   Q5_K    d:h, m:h, s[12], hi[32], q[128] the same with q's bit 4 from hi
 *   Q6_K    q[128], hi[64], s:i8[16], d:h   x = d·s·(q−32), s per 16 values
 *
 * The order of the products is part of the format: it decides the last bit, and it is the one of
 * the reference implementations.
 */
#include "format/quant.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t values, bytes; /* per block; 0: known but not supported */
} types[] = {
    [0] = {"F32", 1, 4},       [1] = {"F16", 1, 2},       [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},    [4] = {"Q4_2", 0, 0},      [5] = {"Q4_3", 0, 0},
    [6] = {"Q5_0", 32, 22},    [7] = {"Q5_1", 32, 24},    [8] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 0, 0},      [10] = {"Q2_K", 256, 84},  [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144}, [13] = {"Q5_K", 256, 176}, [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 0, 0},     [16] = {"IQ2_XXS", 0, 0},  [17] = {"IQ2_XS", 0, 0},
    [18] = {"IQ3_XXS", 0, 0},  [19] = {"IQ1_S", 0, 0},    [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 0, 0},    [22] = {"IQ2_S", 0, 0},    [23] = {"IQ4_XS", 0, 0},
    [24] = {"I8", 0, 0},       [25] = {"I16", 0, 0},      [26] = {"I32", 0, 0},
    [27] = {"I64", 0, 0},      [28] = {"F64", 0, 0},      [29] = {"IQ1_M", 0, 0},
    [30] = {"BF16", 1, 2},     [31] = {"Q4_0_4_4", 0, 0}, [32] = {"Q4_0_4_8", 0, 0},
    [33] = {"Q4_0_8_8", 0, 0}, [34] = {"TQ1_0", 0, 0},    [35] = {"TQ2_0", 0, 0},
    [39] = {"MXFP4", 0, 0},    [40] = {"NVFP4", 0, 0},    [41] = {"Q1_0", 0, 0},
};
#define N_TYPES (sizeof types / sizeof *types)

const char *quant_known_name(uint32_t id) {
    return id < N_TYPES ? types[id].name : NULL;
}

const char *quant_name(quant_type type) {
    return (uint32_t)type < N_TYPES && types[type].values != 0 ? types[type].name : NULL;
}

const char *quant_supported(void) {
    return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL";
}

uint32_t quant_block_values(quant_type type) {
    return types[type].values;
}

uint32_t quant_block_bytes(quant_type type) {
    return types[type].bytes;
}

static float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float quant_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float x = (float)fraction * 0x1p-24f; /* subnormal, or zero: exact */
    return sign != 0 ? -x : x;
}

uint16_t quant_f32_to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) /* NaN stays one, quiet */
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* from 65520 on: infinity */
    uint32_t shift = 13, value;
    if (bits >= 0x38800000) {
        value = bits - (112u << 23);
    } else { /* a subnormal of f16: units of 2^-24 */
        uint32_t exponent = bits >> 23;
        if (exponent < 102) return sign; /* under 2^-25 rounds to zero */
        shift = 126 - exponent;
        value = (bits & 0x7fffff) | 0x800000;
    }
    uint32_t half = 1u << (shift - 1), rest = value & ((1u << shift) - 1), h = value >> shift;
    if (rest > half || (rest == half && (h & 1) != 0)) h++; /* may carry into the exponent: right */
    return (uint16_t)(sign | h);
}

static float load_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return quant_f16_to_f32(h);
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Each of the following writes one block's values. */

static void block_q4_0(const uint8_t *p, float *x) {
    float d = load_f16(p);
    for (int i = 0; i < 16; i++) {
        x[i] = d * (float)((p[2 + i] & 15) - 8);
        x[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void block_q4_1(const uint8_t *p, float *x) {
    float d = load_f16(p), m = load_f16(p + 2);
    for (int i = 0; i < 16; i++) {
        x[i] = d * (float)(p[4 + i] & 15) + m;
        x[i + 16] = d * (float)(p[4 + i] >> 4) + m;
    }
}

static void block_q5_0(const uint8_t *p, float *x) {
    float d = load_f16(p);
    uint32_t high = load_u32(p + 2);
    for (int i = 0; i < 16; i++) {
        int low = (p[6 + i] & 15) | (int)(high >> i & 1) << 4;
        int top = (p[6 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
        x[i] = d * (float)(low - 16);
        x[i + 16] = d * (float)(top - 16);
    }
}

static void block_q5_1(const uint8_t *p, float *x) {
    float d = load_f16(p), m = load_f16(p + 2);
    uint32_t high = load_u32(p + 4);
    for (int i = 0; i < 16; i++) {
        int low = (p[8 + i] & 15) | (int)(high >> i & 1) << 4;
        int top = (p[8 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
        x[i] = d * (float)low + m;
        x[i + 16] = d * (float)top + m;
    }
}

static void block_q8_0(const uint8_t *p, float *x) {
    float d = load_f16(p);
    for (int i = 0; i < 32; i++) x[i] = d * (float)(int8_t)p[2 + i];
}

static void block_iq4_nl(const uint8_t *p, float *x) {
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    float d = load_f16(p);
    for (int i = 0; i < 16; i++) {
        x[i] = d * (float)table[p[2 + i] & 15];
        x[i + 16] = d * (float)table[p[2 + i] >> 4];
    }
}

/* The 256 values of Q2_K and Q3_K: two halves of 32 bytes, each byte holding four values of two
 * bits that lie 32 apart. */
static void block_q2_k(const uint8_t *p, float *x) {
    const uint8_t *scales = p, *q = p + 16;
    float d = load_f16(p + 80), m = load_f16(p + 82);
    for (int i = 0; i < 256; i++) {
        uint8_t s = scales[i / 16];
        int v = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        x[i] = d * (float)(s & 15) * (float)v - m * (float)(s >> 4);
    }
}

/* Sixteen scales of six bits: low fours in 8 bytes (0-7 low halves, 8-15 high), then high twos. */
static int q3_k_scale(const uint8_t *s, int j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    int high = s[8 + j % 4] >> (j / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

static void block_q3_k(const uint8_t *p, float *x) {
    const uint8_t *high = p, *q = p + 32, *scales = p + 96;
    float d = load_f16(p + 108);
    for (int i = 0; i < 256; i++) {
        int v = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        if ((high[i % 32] >> (i / 32) & 1) == 0) v -= 4;
        x[i] = d * (float)q3_k_scale(scales, i / 16) * (float)v;
    }
}

/* Eight pairs (scale, minimum) of six bits in 12 bytes: the first four pairs in the low six bits
 * of bytes 0-3 and 4-7, the others in the halves of bytes 8-11 with their top twos above those. */
static void k_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K and Q5_K: 32 bytes hold 64 values, low halves first; high (NULL for Q4_K) has value 32j+l's
 * bit 4 in bit j of byte l. */
static void block_k45(const uint8_t *p, const uint8_t *high, const uint8_t *q, float *x) {
    float d = load_f16(p), m = load_f16(p + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale_min(p + 4, j, &scale, &min);
        float step = d * (float)scale, offset = m * (float)min;
        for (int l = 0; l < 32; l++) {
            int v = q[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            if (high != NULL) v |= (high[l] >> j & 1) << 4;
            x[j * 32 + l] = step * (float)v - offset;
        }
    }
}

static void block_q4_k(const uint8_t *p, float *x) {
    block_k45(p, NULL, p + 16, x);
}

static void block_q5_k(const uint8_t *p, float *x) {
    block_k45(p, p + 16, p + 48, x);
}

static void block_q6_k(const uint8_t *p, float *x) {
    const uint8_t *q = p, *high = p + 128, *scales = p + 192;
    float d = load_f16(p + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, k = i % 128; /* 64 bytes of q and 32 of high for each half */
        int low = q[half * 64 + k % 64] >> (k / 64 * 4) & 15;
        int top = high[half * 32 + k % 32] >> (k / 32 * 2) & 3;
        float step = d * (float)(int8_t)scales[i / 16];
        x[i] = step * (float)((low | top << 4) - 32);
    }
}

static void block_f16(const uint8_t *p, float *x) {
    *x = load_f16(p);
}

static void block_bf16(const uint8_t *p, float *x) {
    *x = float_of_bits((uint32_t)(p[0] | p[1] << 8) << 16);
}

static void block_f32(const uint8_t *p, float *x) {
    memcpy(x, p, sizeof *x);
}

typedef void (*block_fn)(const uint8_t *p, float *x);

static block_fn block_function(quant_type type) {
    switch (type) {
    case QUANT_F32: return block_f32;
    case QUANT_F16: return block_f16;
    case QUANT_BF16: return block_bf16;
    case QUANT_Q4_0: return block_q4_0;
    case QUANT_Q4_1: return block_q4_1;
    case QUANT_Q5_0: return block_q5_0;
    case QUANT_Q5_1: return block_q5_1;
    case QUANT_Q8_0: return block_q8_0;
    case QUANT_Q2_K: return block_q2_k;
    case QUANT_Q3_K: return block_q3_k;
    case QUANT_Q4_K: return block_q4_k;
    case QUANT_Q5_K: return block_q5_k;
    case QUANT_Q6_K: return block_q6_k;
    case QUANT_IQ4_NL: return block_iq4_nl;
    }
    return NULL;
}

void quant_dequantize(quant_type type, const void *src, float *dst, size_t n) {
    block_fn block = block_function(type);
    const uint8_t *p = src;
    size_t values = quant_block_values(type), bytes = quant_block_bytes(type);
    for (size_t i = 0; i < n; i += values, p += bytes) block(p, dst + i);
}
