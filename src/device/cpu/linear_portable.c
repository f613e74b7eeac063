/* device/cpu/linear_portable: the integer product in plain C, the reference of the other paths.
 *
 * A panel is unpacked to one byte per value and f32 scales, then multiplied token by token in the
 * order of accumulation of cpu_internal.h.
 */
#include "device/cpu/linear.h"
#include "device/cpu/planes.h"

#include <math.h>
#include <string.h>

static int quant_at(cpu_planes planes, const uint8_t *p, uint32_t quad, uint32_t i) {
    int q = 0;
    for (uint32_t j = 0; j < CPU_MAX_FIELDS; j++) {
        cpu_field f = cpu_fields[planes][quad][j];
        q |= (p[f.reg * 64 + i] >> f.from & ((1 << f.n_bits) - 1)) << f.at;
    }
    return planes == CPU_U4_TABLE ? cpu_iq4_table[q] : q;
}

static float f16_at(const uint8_t *p, uint32_t r) {
    uint16_t h;
    memcpy(&h, p + 2 * r, 2);
    return quant_f16_to_f32(h);
}

void cpu_unpack_scales(const cpu_format *f, const uint8_t *head, const uint8_t *sub,
                       cpu_ublock *out) {
    for (uint32_t r = 0; r < CPU_PANEL; r++) {
        float d = f16_at(head, r), m = f->has_min ? f16_at(head + 32, r) : 0;
        out->s[r] = d;
        switch (f->scaling) {
        case CPU_SCALE: break;
        case CPU_SCALE_MIN: out->m[0][r] = m; break;
        case CPU_SUB_MIN:
            out->s[r] = d * (float)sub[r];
            out->m[0][r] = -m * (float)sub[16 + r];
            break;
        case CPU_SUB_HALF:
            for (int h = 0; h < 2; h++) out->sub[h][r] = (int8_t)sub[16 * h + (int)r];
            break;
        case CPU_SUB_HALF_MIN:
            for (int h = 0; h < 2; h++) {
                out->sub[h][r] = sub[16 * h + (int)r] & 15;
                out->m[h][r] = -m * (float)(sub[16 * h + (int)r] >> 4);
            }
            break;
        }
    }
}

void cpu_unpack_blocks(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_unpack_quants quants, cpu_ublock *out) {
    const uint8_t *head = panel, *at = panel + f->head_bytes;
    for (uint32_t b = 0; b < n_blocks; b++, out++) {
        if (b > 0 && b % f->n_blocks == 0) {
            head = at;
            at += f->head_bytes;
        }
        quants(f->planes, at, out->q);
        cpu_unpack_scales(f, head, at + f->quant_bytes, out);
        at += f->quant_bytes + f->sub_bytes;
    }
}

static void block_quants(cpu_planes planes, const uint8_t *block, uint8_t *q) {
    for (uint32_t quad = 0; quad < CPU_QUADS; quad++)
        for (uint32_t i = 0; i < 64; i++)
            q[quad * 64 + i] = (uint8_t)quant_at(planes, block, quad, i);
}

void cpu_unpack_portable(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                         cpu_ublock *out) {
    cpu_unpack_blocks(f, panel, n_blocks, block_quants, out);
}

/* sum q*x - zero * sum x over half h of row r */
static int32_t half_sum(const cpu_format *f, const cpu_ublock *w, const cpu_xblock *x, int h,
                        uint32_t r) {
    int32_t sum = f->zero_shift < 0 ? 0 : x->nsum_of[h] * (1 << f->zero_shift);
    for (int quad = h * 4; quad < h * 4 + 4; quad++)
        for (int j = 0; j < 4; j++) sum += w->q[quad * 64 + (int)r * 4 + j] * x->q[quad * 4 + j];
    return sum;
}

static float add_block(const cpu_format *f, const cpu_ublock *w, const cpu_xblock *x, uint32_t r,
                       float acc) {
    float low = (float)half_sum(f, w, x, 0, r), high = (float)half_sum(f, w, x, 1, r);
    float isum = f->halves ? w->sub[0][r] * low + w->sub[1][r] * high : low + high;
    acc = fmaf(isum, w->s[r] * x->d, acc);
    if (!f->has_min) return acc;
    if (!f->halves) return fmaf(w->m[0][r], x->xsum, acc);
    for (int h = 0; h < 2; h++) acc = fmaf(w->m[h][r], x->d * (float)-x->nsum_of[h], acc);
    return acc;
}

void cpu_gemm_portable(const cpu_gemm_args *a) {
    for (uint32_t t = 0; t < a->width; t++)
        for (uint32_t r = 0; r < a->n_panels * CPU_PANEL; r++) {
            const cpu_ublock *w = a->w + r / CPU_PANEL * CPU_K_BLOCKS;
            float *acc = &a->acc[t * CPU_PAIR + r];
            for (uint32_t b = 0; b < a->n_blocks; b++)
                *acc = add_block(a->format, &w[b], &a->x[b * a->width + t], r % CPU_PANEL, *acc);
        }
}
