/* Packing of weights, byte for byte, against the plainest form of it: one value at a time. */
#include "unit.h"

#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu_internal.h"

static uint64_t random_state = 1;

static uint8_t random_byte(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(random_state >> 56);
}

/* 32 values of one row, as the file says them. */
typedef struct {
    uint8_t q[CPU_BLOCK];
    uint16_t d, m;  /* f16 of the superblock */
    uint8_t sub[2]; /* sub-scales: (sc, mn), or one per half; i8 where signed */
} plain_block;

static uint16_t read_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void read_nibbles(const uint8_t *p, uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL: block b of a row. */
static void read_small(const cpu_format *f, const uint8_t *row, uint32_t b, plain_block *out) {
    const uint8_t *p = row + (size_t)b * quant_block_bytes(f->type);
    out->d = read_u16(p);
    p += 2;
    if (f->scaling == CPU_SCALE_MIN) {
        out->m = read_u16(p);
        p += 2;
    }
    if (f->planes == CPU_U8) {
        for (int i = 0; i < 32; i++) out->q[i] = p[i] ^ 0x80; /* i8 + 128 */
        return;
    }
    if (f->planes == CPU_U5) {
        read_nibbles(p + 4, out->q);
        for (int i = 0; i < 32; i++) out->q[i] |= (uint8_t)((p[i / 8] >> (i % 8) & 1) << 4);
        return;
    }
    read_nibbles(p, out->q);
}

/* Scale and minimum j of the twelve bytes of Q4_K and Q5_K. */
static void read_sub_min(const uint8_t *s, uint32_t j, uint8_t sub[2]) {
    if (j < 4) {
        sub[0] = s[j] & 63;
        sub[1] = s[j + 4] & 63;
    } else {
        sub[0] = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        sub[1] = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* Q4_K and Q5_K: block b of a superblock. */
static void read_k45(const uint8_t *p, bool five, uint32_t b, plain_block *out) {
    const uint8_t *high = p + 16, *q = p + 16 + (five ? 32 : 0) + b / 2 * 32;
    out->d = read_u16(p);
    out->m = read_u16(p + 2);
    read_sub_min(p + 4, b, out->sub);
    for (int i = 0; i < 32; i++) {
        uint8_t v = b & 1 ? q[i] >> 4 : q[i] & 15;
        out->q[i] = (uint8_t)(v | (five ? (high[i] >> b & 1) << 4 : 0));
    }
}

static void read_q6k(const uint8_t *p, uint32_t b, plain_block *out) {
    const uint8_t *low = p + b / 4 * 64 + (b & 1) * 32, *high = p + 128 + b / 4 * 32;
    for (int i = 0; i < 32; i++) {
        int v = b & 2 ? low[i] >> 4 : low[i] & 15;
        out->q[i] = (uint8_t)(v | (high[i] >> 2 * (b & 3) & 3) << 4);
    }
    memcpy(out->sub, p + 192 + 2 * b, 2);
    out->d = read_u16(p + 208);
}

static uint8_t q3k_scale(const uint8_t *s, uint32_t j) {
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = s[8 + j % 4] >> 2 * (j / 4) & 3;
    return (uint8_t)((low | high << 4) - 32);
}

static void read_q3k(const uint8_t *p, uint32_t b, plain_block *out) {
    const uint8_t *high = p, *low = p + 32 + b / 4 * 32;
    for (int i = 0; i < 32; i++)
        out->q[i] = (uint8_t)((low[i] >> 2 * (b & 3) & 3) | (high[i] >> b & 1) << 2);
    for (uint32_t h = 0; h < 2; h++) out->sub[h] = q3k_scale(p + 96, 2 * b + h);
    out->d = read_u16(p + 108);
}

static void read_q2k(const uint8_t *p, uint32_t b, plain_block *out) {
    const uint8_t *low = p + 16 + b / 4 * 32;
    for (int i = 0; i < 32; i++) out->q[i] = low[i] >> 2 * (b & 3) & 3;
    memcpy(out->sub, p + 2 * b, 2);
    out->d = read_u16(p + 80);
    out->m = read_u16(p + 82);
}

static void read_block(const cpu_format *f, const uint8_t *row, uint32_t b, plain_block *out) {
    const uint8_t *super = row + (size_t)(b / 8) * quant_block_bytes(f->type);
    switch (f->type) {
    case QUANT_Q2_K: read_q2k(super, b % 8, out); break;
    case QUANT_Q3_K: read_q3k(super, b % 8, out); break;
    case QUANT_Q4_K: read_k45(super, false, b % 8, out); break;
    case QUANT_Q5_K: read_k45(super, true, b % 8, out); break;
    case QUANT_Q6_K: read_q6k(super, b % 8, out); break;
    default: read_small(f, row, b, out); break;
    }
}

static void put_nibbles(uint8_t *plane, const uint8_t *q, uint32_t r) {
    for (uint32_t k = 0; k < CPU_BLOCK; k++) {
        uint32_t quad = k / 4;
        plane[quad / 2 * 64 + r * 4 + k % 4] |= (uint8_t)((q[k] & 15) << 4 * (quad & 1));
    }
}

/* Bits of four quants, from `from` of a register on. */
static void put4(uint8_t *block, uint32_t reg, int from, uint32_t r, const uint8_t q[4], int at,
                 int mask) {
    for (uint32_t j = 0; j < 4; j++)
        block[reg * 64 + r * 4 + j] |= (uint8_t)((q[j] >> at & mask) << from);
}

static void put_u2(uint8_t *block, const uint8_t *q, uint32_t r) {
    for (uint32_t quad = 0; quad < CPU_QUADS; quad++)
        put4(block, quad / 4, 2 * (int)(quad % 4), r, q + 4 * quad, 0, 3);
}

/* Three registers of twice three bits; over them the low bits of the last two quads, and over the
 * third their high ones. */
static void put_u3(uint8_t *block, const uint8_t *q, uint32_t r) {
    for (uint32_t quad = 0; quad < 6; quad++)
        put4(block, quad / 2, 3 * (int)(quad % 2), r, q + 4 * quad, 0, 7);
    put4(block, 0, 6, r, q + 24, 0, 3);
    put4(block, 1, 6, r, q + 28, 0, 3);
    put4(block, 2, 6, r, q + 24, 2, 1);
    put4(block, 2, 7, r, q + 28, 2, 1);
}

/* Five registers, over three of them the low bits of the last three quads, the others over two. */
static void put_u5(uint8_t *block, const uint8_t *q, uint32_t r) {
    for (uint32_t quad = 0; quad < 5; quad++) put4(block, quad, 0, r, q + 4 * quad, 0, 31);
    for (uint32_t i = 0; i < 3; i++) put4(block, i, 5, r, q + 20 + 4 * i, 0, 7);
    put4(block, 3, 5, r, q + 20, 3, 3);
    put4(block, 4, 5, r, q + 24, 3, 3);
    put4(block, 3, 7, r, q + 28, 3, 1);
    put4(block, 4, 7, r, q + 28, 4, 1);
}

/* Six registers, over them the last two quads in turn, two bits at a time. */
static void put_u6(uint8_t *block, const uint8_t *q, uint32_t r) {
    for (uint32_t quad = 0; quad < 6; quad++) put4(block, quad, 0, r, q + 4 * quad, 0, 63);
    for (uint32_t i = 0; i < 6; i++)
        put4(block, i, 6, r, q + 24 + 4 * (i % 2), 2 * (int)(i / 2), 3);
}

static void put_quants(const cpu_format *f, const uint8_t *q, uint32_t r, uint8_t *plane) {
    switch (f->planes) {
    case CPU_U2: put_u2(plane, q, r); break;
    case CPU_U3: put_u3(plane, q, r); break;
    case CPU_U4:
    case CPU_U4_TABLE: put_nibbles(plane, q, r); break;
    case CPU_U5: put_u5(plane, q, r); break;
    case CPU_U6: put_u6(plane, q, r); break;
    case CPU_U8:
        for (uint32_t k = 0; k < CPU_BLOCK; k++) plane[k / 4 * 64 + r * 4 + k % 4] = q[k];
        break;
    }
}

static void pack_panel(const cpu_format *f, const uint8_t *rows, size_t row_bytes, uint32_t n_rows,
                       uint32_t cols, uint8_t *panel) {
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t b = 0; b < cols / CPU_BLOCK; b++) {
            plain_block block = {0};
            read_block(f, rows + r * row_bytes, b, &block);
            uint8_t *head = panel + b / f->n_blocks * cpu_super_bytes(f);
            uint8_t *at =
                head + f->head_bytes + (size_t)(b % f->n_blocks) * (f->quant_bytes + f->sub_bytes);
            memcpy(head + 2 * r, &block.d, 2);
            if (f->head_bytes == 64) memcpy(head + 32 + 2 * r, &block.m, 2);
            put_quants(f, block.q, r, at);
            for (uint32_t i = 0; i < f->sub_bytes / CPU_PANEL; i++)
                at[f->quant_bytes + i * CPU_PANEL + r] = block.sub[i];
        }
    }
}

static void pack_float_panel(uint32_t elem_bytes, const uint8_t *rows, size_t row_bytes,
                             uint32_t n_rows, uint32_t cols, uint8_t *panel) {
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < cols; k++)
            memcpy(panel + ((size_t)k * CPU_PANEL + r) * elem_bytes,
                   rows + r * row_bytes + (size_t)k * elem_bytes, elem_bytes);
}

/* Random rows, some of them none, packed by both into a buffer that is one panel and a mark. */
static void check(quant_type type, uint32_t n_rows, uint32_t cols) {
    const cpu_format *f = cpu_format_find(type);
    uint32_t elem = quant_block_bytes(type);
    size_t row_bytes = (size_t)(cols / quant_block_values(type)) * elem;
    size_t size = f != NULL ? cpu_panel_bytes(f, cols) : (size_t)cols * CPU_PANEL * elem;
    uint8_t *rows = mem_alloc(n_rows * row_bytes); /* nothing after it may be read */
    uint8_t *expected = mem_zalloc(size + 1, 1), *found = mem_zalloc(size + 1, 1);
    assert_non_null(rows);
    assert_non_null(expected);
    assert_non_null(found);
    for (size_t i = 0; i < n_rows * row_bytes; i++) rows[i] = random_byte();
    if (f != NULL) {
        pack_panel(f, rows, row_bytes, n_rows, cols, expected);
        cpu_pack_panel(f, rows, row_bytes, n_rows, cols, found);
    } else {
        pack_float_panel(elem, rows, row_bytes, n_rows, cols, expected);
        cpu_pack_float_panel(elem, rows, row_bytes, n_rows, cols, found);
    }
    for (size_t i = 0; i <= size; i++)
        if (expected[i] != found[i])
            fail_msg("%s, %u rows of %u: byte %zu of %zu is %02x, expected %02x", quant_name(type),
                     n_rows, cols, i, size, found[i], expected[i]);
    mem_free(rows);
    mem_free(expected);
    mem_free(found);
}

static void test_integer_formats(void **state) {
    static const quant_type types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,  QUANT_Q5_1,
                                       QUANT_Q8_0, QUANT_Q2_K, QUANT_Q3_K,  QUANT_Q4_K,
                                       QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (uint32_t n_rows = 1; n_rows <= CPU_PANEL; n_rows++)
            for (uint32_t n = 1; n <= 3; n++)
                check(types[t], n_rows, n * quant_block_values(types[t]));
}

static void test_float_formats(void **state) {
    static const quant_type types[] = {QUANT_F32, QUANT_F16, QUANT_BF16};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (uint32_t n_rows = 1; n_rows <= CPU_PANEL; n_rows++)
            for (uint32_t cols = 1; cols <= 35; cols++) check(types[t], n_rows, cols);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integer_formats),
        cmocka_unit_test(test_float_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
