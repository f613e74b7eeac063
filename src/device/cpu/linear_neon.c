/* device/cpu/linear_neon: the integer product on NEON with dot products (sdot, Armv8.2).
 *
 * sdot multiplies signed bytes, four to a lane, exactly. Quants of up to 6 bits are signed as they
 * are. Those whose zero is 128 go as q - 128, so that no zero has to be taken off afterwards.
 */
#include "device/cpu/gemm_neon.inc"
#include "device/cpu/planes.h"

INLINE uint8x16_t field(cpu_field f, const uint8_t *p) {
    uint8x16_t v = vld1q_u8(p + f.reg * 64);
    if (f.from > f.at) v = vshlq_u8(v, vdupq_n_s8((int8_t)(f.at - f.from)));
    if (f.from + f.n_bits == 8 && f.at == 0) return v; /* nothing above, nothing below */
    return vandq_u8(v, vdupq_n_u8((uint8_t)(((1 << f.n_bits) - 1) << f.at)));
}

/* The quants of 4 rows of one quad: p at the block, moved on by 16 bytes for each next 4. */
INLINE uint8x16_t quants(cpu_planes planes, const uint8_t *p, int quad) {
    const cpu_field *f = cpu_fields[planes][quad];
    uint8x16_t v = field(f[0], p);
    if (f[1].n_bits > 0) v = vorrq_u8(v, field(f[1], p));
    if (f[2].n_bits > 0) v = vorrq_u8(v, field(f[2], p));
    return planes == CPU_U4_TABLE ? vqtbl1q_u8(vld1q_u8(cpu_iq4_table), v) : v;
}

INLINE void unpack_quants(cpu_planes planes, const uint8_t *p, uint8_t *q) {
#pragma GCC unroll 8
    for (int quad = 0; quad < CPU_QUADS; quad++)
        for (int part = 0; part < 4; part++)
            vst1q_u8(q + quad * 64 + part * 16, quants(planes, p + part * 16, quad));
}

static void block_quants(cpu_planes planes, const uint8_t *block, uint8_t *q) {
    switch (planes) {
    case CPU_U2: unpack_quants(CPU_U2, block, q); break;
    case CPU_U3: unpack_quants(CPU_U3, block, q); break;
    case CPU_U4: unpack_quants(CPU_U4, block, q); break;
    case CPU_U4_TABLE: unpack_quants(CPU_U4_TABLE, block, q); break;
    case CPU_U5: unpack_quants(CPU_U5, block, q); break;
    case CPU_U6: unpack_quants(CPU_U6, block, q); break;
    case CPU_U8: memcpy(q, block, CPU_BLOCK * CPU_PANEL); break;
    }
}

void cpu_unpack_neon(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                     cpu_ublock *out) {
    cpu_unpack_blocks(f, panel, n_blocks, block_quants, out);
}

/* Register t * N_ROW + r: token t, rows 4r to 4r + 3. */
INLINE void start(int32x4_t *isum, const int32_t *from, int T) {
#pragma GCC unroll 8
    for (int i = 0; i < T * N_ROW; i++) isum[i] = vdupq_n_s32(from[i / N_ROW]);
}

INLINE int32x4_t sums_of(const int32x4_t *isum, int t, int r) {
    return isum[t * N_ROW + r];
}

INLINE void add_half(const uint8_t *w, const cpu_xblock *x, int h, int T, bool centred,
                     int32x4_t *isum) {
    const uint8x16_t flip = vdupq_n_u8(centred ? 128 : 0);
    int8x16_t y[TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) y[t] = vld1q_s8(x[t].q + 16 * h);
#pragma GCC unroll 2
    for (int r = 0; r < N_ROW; r++) {
        int8x16_t v[4];
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; quad++)
            v[quad] =
                vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + (4 * h + quad) * 64 + r * 16), flip));
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            int32x4_t *sum = &isum[t * N_ROW + r];
            *sum = vdotq_laneq_s32(*sum, v[0], y[t], 0);
            *sum = vdotq_laneq_s32(*sum, v[1], y[t], 1);
            *sum = vdotq_laneq_s32(*sum, v[2], y[t], 2);
            *sum = vdotq_laneq_s32(*sum, v[3], y[t], 3);
        }
    }
}

void cpu_gemm_neon(const cpu_gemm_args *a) {
    for (uint32_t row = 0; row < a->n_panels * CPU_PANEL; row += ROWS) {
        if (a->format->zero_shift == 7)
            gemm_rows(a, row, true);
        else
            gemm_rows(a, row, false);
    }
}
