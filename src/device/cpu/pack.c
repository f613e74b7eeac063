/* device/cpu/pack: from the file's quantised rows to panels of 16 (layout: cpu_internal.h).
 *
 * One reader per family of formats turns a block of 32 values of 16 rows into plain quants and
 * scales; one writer lays them out. Scales are moved, never recomputed. Layouts of the file's
 * blocks: format/quant.c.
 *
 * The whole model passes here before the first token. So nothing is done value by value: four bytes
 * of each of the 16 rows are one vector, of the compiler's kind, which every machine has. Rows that
 * a panel lacks are zero all the way.
 */
#include <string.h>

#include "device/cpu/cpu_internal.h"
#include "device/cpu/planes.h"

const uint8_t cpu_iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                   129, 141, 153, 166, 181, 197, 217, 241};

static const cpu_format formats[] = {
    {QUANT_Q4_0, CPU_U4, CPU_SCALE, 3, 1, 32, 256, 0, false, false},
    {QUANT_Q4_1, CPU_U4, CPU_SCALE_MIN, -1, 1, 64, 256, 0, false, true},
    {QUANT_Q5_0, CPU_U5, CPU_SCALE, 4, 1, 32, 320, 0, false, false},
    {QUANT_Q5_1, CPU_U5, CPU_SCALE_MIN, -1, 1, 64, 320, 0, false, true},
    {QUANT_Q8_0, CPU_U8, CPU_SCALE, 7, 1, 32, 512, 0, false, false},
    {QUANT_IQ4_NL, CPU_U4_TABLE, CPU_SCALE, 7, 1, 32, 256, 0, false, false},
    {QUANT_Q2_K, CPU_U2, CPU_SUB_HALF_MIN, -1, 8, 64, 128, 32, true, true},
    {QUANT_Q3_K, CPU_U3, CPU_SUB_HALF, 2, 8, 32, 192, 32, true, false},
    {QUANT_Q4_K, CPU_U4, CPU_SUB_MIN, -1, 8, 64, 256, 32, false, true},
    {QUANT_Q5_K, CPU_U5, CPU_SUB_MIN, -1, 8, 64, 320, 32, false, true},
    {QUANT_Q6_K, CPU_U6, CPU_SUB_HALF, 5, 8, 32, 384, 32, true, false},
};

const cpu_format *cpu_format_find(quant_type type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].type == type) return &formats[i];
    return NULL;
}

size_t cpu_super_bytes(const cpu_format *f) {
    return f->head_bytes + (size_t)f->n_blocks * (f->quant_bytes + f->sub_bytes);
}

size_t cpu_panel_bytes(const cpu_format *f, uint32_t cols) {
    return cols / (CPU_BLOCK * f->n_blocks) * cpu_super_bytes(f);
}

typedef uint32_t lanes __attribute__((vector_size(4 * CPU_PANEL))); /* four bytes of each row */

/* 32 values of 16 rows, as the file says them. */
typedef struct {
    lanes q[CPU_QUADS];    /* byte j of q[i][r]: value 4i + j of row r */
    lanes high[CPU_QUADS]; /* of the readers: upper bits on their way into q */
    uint16_t d[CPU_PANEL]; /* f16 of the superblock */
    uint16_t m[CPU_PANEL];
    uint8_t sub[2][CPU_PANEL]; /* sub-scales: (sc, mn), or one per half; i8 where signed */
} plain_block;

/* The same superblock of each row. */
typedef struct {
    const uint8_t *at;
    size_t stride;
    uint32_t n_rows;
    lanes present; /* all ones for each row that is there */
} source;

#define BYTES(x) ((x)*0x01010101u) /* the four of a lane */

/* 16 bytes of each of four rows, turned into lanes [r, r + 4) of four vectors. */
static inline void turn(const uint8_t *p, size_t stride, uint32_t r, lanes *out) {
    typedef uint32_t four __attribute__((vector_size(16)));
    four row[4], pair[4], column[4];
    for (uint32_t i = 0; i < 4; i++) memcpy(&row[i], p + i * stride, sizeof *row);
    for (uint32_t i = 0; i < 2; i++) {
        pair[i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 4, 1, 5);
        pair[i + 2] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 2, 6, 3, 7);
    }
    for (uint32_t i = 0; i < 4; i += 2) {
        column[i] = __builtin_shufflevector(pair[i], pair[i + 1], 0, 1, 4, 5);
        column[i + 1] = __builtin_shufflevector(pair[i], pair[i + 1], 2, 3, 6, 7);
    }
    for (uint32_t i = 0; i < 4; i++) memcpy((uint32_t *)&out[i] + r, &column[i], sizeof *column);
}

/* n times 16 bytes of each row, from `offset` of its superblock. */
static inline void gather(const source *s, size_t offset, uint32_t n, lanes *out) {
    uint32_t r = 0;
    for (; r + 4 <= s->n_rows; r += 4)
        for (uint32_t i = 0; i < n; i++)
            turn(s->at + r * s->stride + offset + (size_t)16 * i, s->stride, r, out + 4 * i);
    for (; r < s->n_rows; r++)
        for (uint32_t i = 0; i < 4 * n; i++)
            memcpy((uint32_t *)&out[i] + r, s->at + r * s->stride + offset + (size_t)4 * i, 4);
}

static void gather_word(const source *s, size_t offset, lanes *out) {
    for (uint32_t r = 0; r < s->n_rows; r++)
        memcpy((uint32_t *)out + r, s->at + r * s->stride + offset, 4);
}

static void gather_f16(const source *s, size_t offset, uint16_t *out) {
    for (uint32_t r = 0; r < s->n_rows; r++) memcpy(&out[r], s->at + r * s->stride + offset, 2);
}

/* The sub-scales of the two halves, next to each other in the file. */
static void gather_halves(const source *s, size_t offset, plain_block *out) {
    for (uint32_t r = 0; r < s->n_rows; r++)
        for (uint32_t h = 0; h < 2; h++) out->sub[h][r] = s->at[r * s->stride + offset + h];
}

/* What holds for a superblock. */
static void read_head(const cpu_format *f, const source *s, plain_block *out) {
    size_t at = f->type == QUANT_Q2_K   ? 80
                : f->type == QUANT_Q3_K ? 108
                : f->type == QUANT_Q6_K ? 208
                                        : 0;
    gather_f16(s, at, out->d);
    if (f->has_min) gather_f16(s, at + 2, out->m);
}

static void narrow(const lanes *v, uint8_t *out) {
    uint32_t x[CPU_PANEL];
    memcpy(x, v, sizeof x);
    for (uint32_t r = 0; r < CPU_PANEL; r++) out[r] = (uint8_t)x[r];
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL. */
static void read_small(const cpu_format *f, const source *s, plain_block *out) {
    size_t at = f->scaling == CPU_SCALE_MIN ? 4 : 2;
    if (f->planes == CPU_U8) {
        gather(s, at, 2, out->q);
        for (uint32_t i = 0; i < CPU_QUADS; i++)
            out->q[i] ^= s->present & BYTES(0x80u); /* i8 + 128 */
        return;
    }
    if (f->planes == CPU_U5) {
        gather_word(s, at, out->high);
        at += 4;
    }
    gather(s, at, 1, out->q);
    for (uint32_t i = 0; i < CPU_QUADS / 2; i++) {
        out->q[i + 4] = out->q[i] >> 4 & BYTES(15u);
        out->q[i] &= BYTES(15u);
    }
    if (f->planes != CPU_U5) return;
    for (uint32_t i = 0; i < CPU_QUADS; i++) { /* four bits, one to a byte */
        lanes x = out->high[0] >> 4 * i & 15;
        x = (x | x << 14) & 0x00030003;
        out->q[i] |= ((x | x << 7) & BYTES(1u)) << 4;
    }
}

/* Scale and minimum b of the twelve bytes of Q4_K and Q5_K. */
static void read_sub_min(const source *s, uint32_t b, plain_block *out) {
    lanes p[4] = {0}, sc, mn;
    uint32_t at = 8 * (b % 4);
    gather(s, 4, 1, p);
    for (int i = 0; i < 3; i++) p[i] >>= at;
    if (b < 4) {
        sc = p[0] & 63;
        mn = p[1] & 63;
    } else {
        sc = (p[2] & 15) | (p[0] & 0xC0) >> 2;
        mn = (p[2] & 0xF0) >> 4 | (p[1] & 0xC0) >> 2;
    }
    narrow(&sc, out->sub[0]);
    narrow(&mn, out->sub[1]);
}

/* Q4_K and Q5_K: block b of the superblock, as in the next ones. */
static void read_k45(const source *s, bool five, uint32_t b, plain_block *out) {
    read_sub_min(s, b, out);
    gather(s, (five ? 48 : 16) + b / 2 * 32, 2, out->q);
    if (five) gather(s, 16, 2, out->high);
    for (uint32_t i = 0; i < CPU_QUADS; i++)
        out->q[i] = (out->q[i] >> 4 * (b & 1) & BYTES(15u)) | (out->high[i] >> b & BYTES(1u)) << 4;
}

static void read_q6k(const source *s, uint32_t b, plain_block *out) {
    gather(s, b / 4 * 64 + (b & 1) * 32, 2, out->q);
    gather(s, 128 + b / 4 * 32, 2, out->high);
    for (uint32_t i = 0; i < CPU_QUADS; i++)
        out->q[i] = (out->q[i] >> 4 * (b >> 1 & 1) & BYTES(15u)) |
                    (out->high[i] >> 2 * (b & 3) & BYTES(3u)) << 4;
    gather_halves(s, 192 + 2 * b, out);
}

static uint8_t q3k_scale(const uint8_t *s, uint32_t j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = s[8 + j % 4] >> 2 * (j / 4) & 3;
    return (uint8_t)((low | high << 4) - 32);
}

static void read_q3k(const source *s, uint32_t b, plain_block *out) {
    gather(s, 32 + b / 4 * 32, 2, out->q);
    gather(s, 0, 2, out->high);
    for (uint32_t i = 0; i < CPU_QUADS; i++)
        out->q[i] = (out->q[i] >> 2 * (b & 3) & BYTES(3u)) | (out->high[i] >> b & BYTES(1u)) << 2;
    for (uint32_t r = 0; r < s->n_rows; r++)
        for (uint32_t h = 0; h < 2; h++)
            out->sub[h][r] = q3k_scale(s->at + r * s->stride + 96, 2 * b + h);
}

static void read_q2k(const source *s, uint32_t b, plain_block *out) {
    gather(s, 16 + b / 4 * 32, 2, out->q);
    for (uint32_t i = 0; i < CPU_QUADS; i++) out->q[i] = out->q[i] >> 2 * (b & 3) & BYTES(3u);
    gather_halves(s, 2 * b, out);
}

static void read_block(const cpu_format *f, const source *s, uint32_t b, plain_block *out) {
    switch (f->type) {
    case QUANT_Q2_K: read_q2k(s, b, out); break;
    case QUANT_Q3_K: read_q3k(s, b, out); break;
    case QUANT_Q4_K: read_k45(s, false, b, out); break;
    case QUANT_Q5_K: read_k45(s, true, b, out); break;
    case QUANT_Q6_K: read_q6k(s, b, out); break;
    default: read_small(f, s, out); break;
    }
}

static void put_quants(const cpu_format *f, const lanes *q, uint8_t *to) {
    lanes out[CPU_QUADS] = {0};
    for (uint32_t quad = 0; quad < CPU_QUADS; quad++)
        for (uint32_t i = 0; i < CPU_MAX_FIELDS; i++) {
            cpu_field x = cpu_fields[f->planes][quad][i];
            if (x.n_bits > 0)
                out[x.reg] |= (q[quad] >> x.at & BYTES((1u << x.n_bits) - 1)) << x.from;
        }
    memcpy(to, out, f->quant_bytes);
}

void cpu_pack_panel(const cpu_format *f, const uint8_t *rows, size_t row_bytes, uint32_t n_rows,
                    uint32_t cols, uint8_t *panel) {
    source s = {rows, row_bytes, n_rows, {0}};
    for (uint32_t r = 0; r < n_rows; r++) s.present[r] = UINT32_MAX;
    plain_block block = {0};
    uint32_t n_supers = cols / (CPU_BLOCK * f->n_blocks);
    size_t file_bytes = quant_block_bytes(f->type);
    for (uint32_t i = 0; i < n_supers; i++, s.at += file_bytes) {
        read_head(f, &s, &block);
        memcpy(panel, block.d, sizeof block.d);
        if (f->has_min) memcpy(panel + sizeof block.d, block.m, sizeof block.m);
        panel += f->head_bytes;
        for (uint32_t b = 0; b < f->n_blocks; b++) {
            read_block(f, &s, b, &block);
            put_quants(f, block.q, panel);
            memcpy(panel + f->quant_bytes, block.sub, f->sub_bytes);
            panel += f->quant_bytes + f->sub_bytes;
        }
    }
}

/* Two elements of 16 bits in each lane: those of two columns. */
static void put_columns(const lanes *v, uint8_t *panel) {
    uint32_t x[CPU_PANEL];
    uint16_t column[2][CPU_PANEL];
    memcpy(x, v, sizeof x);
    for (uint32_t r = 0; r < CPU_PANEL; r++) {
        column[0][r] = (uint16_t)x[r];
        column[1][r] = (uint16_t)(x[r] >> 16);
    }
    memcpy(panel, column, sizeof column);
}

void cpu_pack_float_panel(uint32_t elem_bytes, const uint8_t *rows, size_t row_bytes,
                          uint32_t n_rows, uint32_t cols, uint8_t *panel) {
    source s = {rows, row_bytes, n_rows, {0}};
    lanes v[4] = {0};
    uint32_t k = 0, step = 16 / elem_bytes;
    for (; k + step <= cols; k += step, s.at += 16, panel += sizeof v) {
        gather(&s, 0, 1, v);
        if (elem_bytes == 4) memcpy(panel, v, sizeof v);
        for (uint32_t i = 0; i < 4 && elem_bytes == 2; i++)
            put_columns(&v[i], panel + i * sizeof *v);
    }
    for (; k < cols; k++, s.at += elem_bytes, panel += CPU_PANEL * elem_bytes)
        for (uint32_t r = 0; r < n_rows; r++)
            memcpy(panel + r * elem_bytes, s.at + r * row_bytes, elem_bytes);
}
