/* device/cpu/linear_avx2: the integer product on AVX2.
 *
 * maddubs multiplies 4 consecutive K of 8 rows by 4 activations, in sums of two of 16 bits. Those
 * of up to 6 bits stay in 16 bits over a whole block, or half, before they are widened: less their
 * zero, quants of 5 bits sum up to 16 * 16 * 127 < 2^15 at most, those of 6 bits to 8 * 32 * 127 in
 * a half, and additions may wrap on the way there. Those of 5 bits with a minimum have no zero, and
 * two halves that are added. Those of 8 bits go as |q - 128| times the activation with its sign:
 * 2 * 128 * 127 fits, and no zero has to be taken off afterwards.
 *
 * Up to max_packed tokens walk down a panel together and take its quants in registers on their way
 * from memory: taking nibbles apart again for each tile costs less than bytes that are stored and
 * loaded, but not where quants lie in parts. For more, a panel is unpacked to bytes once. Either
 * way a block of 16 rows is multiplied by tiles of 4 tokens: 8 integer accumulators of the 16
 * registers, 6 loads for each 8 products. The float sums stay in memory, which the first-level
 * cache is: a block adds to each but once or twice. One token has a walk of its own, down two
 * panels side by side, with its sums in registers.
 */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/linear.h"
#include "device/cpu/planes.h"

#define INLINE static inline __attribute__((always_inline))
#define TOKENS 4 /* of a register tile */

INLINE __m256i load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m256i field(cpu_field f, const uint8_t *p) {
    __m256i v = load(p + f.reg * 64);
    if (f.n_bits == 8) return v;
    if (f.from > f.at) v = _mm256_srli_epi16(v, f.from - f.at);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << f.n_bits) - 1) << f.at)));
}

/* The quants of 8 rows of one quad: p at the block, moved on by 32 bytes for the other 8. */
INLINE __m256i quants(cpu_planes planes, const uint8_t *p, int quad) {
    const cpu_field *f = cpu_fields[planes][quad];
    __m256i v = field(f[0], p);
    if (f[1].n_bits > 0) v = _mm256_or_si256(v, field(f[1], p));
    if (f[2].n_bits > 0) v = _mm256_or_si256(v, field(f[2], p));
    if (planes != CPU_U4_TABLE) return v;
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)cpu_iq4_table)),
        v);
}

/* Of 8 bits: sums of two fit 16 bits only just. */
INLINE bool is_byte(cpu_planes planes) {
    return planes == CPU_U8 || planes == CPU_U4_TABLE;
}

/* The zero of the others, where they have one. */
INLINE int zero_shift(cpu_planes planes) {
    switch (planes) {
    case CPU_U3: return 2;
    case CPU_U4: return 3;
    case CPU_U5: return 4;
    case CPU_U6: return 5;
    default: return 0;
    }
}

/* Scales -------------------------------------------------------------------------------------- */

/* Of 8 rows of a block. */
typedef struct {
    __m256 s, m[2];
    __m256i sub[2]; /* of each half, twice in 16 bits: halves are weighed as integers */
} scales;

INLINE __m256 half8(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256 bytes8(__m128i b) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
}

INLINE __m128i eight(const uint8_t *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

/* Of a superblock and its rows [row, row + 8). */
typedef struct {
    __m256 d, m; /* m: to be added, for formats with a minimum */
} heads;

INLINE heads super_heads(cpu_scaling scaling, const uint8_t *head, int r) {
    heads h = {half8(head + 16 * r), _mm256_setzero_ps()};
    if (!cpu_has_min(scaling)) return h;
    h.m = half8(head + 32 + 16 * r);
    if (scaling != CPU_SCALE_MIN) h.m = _mm256_xor_ps(h.m, _mm256_set1_ps(-0.0f));
    return h;
}

/* Bytes 8r to 8r + 7 of v, each twice: in the upper or the lower byte of 16 bits. */
INLINE __m256i twice(__m256i v, int r, bool upper) {
    const int zero = upper ? 0x00800080 : (int)0x80008000, one = upper ? 0x01000100 : 0x00010001;
#define ROW(i) (zero | (8 * r + (i)) * one)
    return _mm256_shuffle_epi8(
        v, _mm256_setr_epi32(ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7)));
#undef ROW
}

/* 16 bytes, in either half. */
INLINE __m256i both(const uint8_t *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Of one block and the rows 8r to 8r + 7, whose heads are h. */
INLINE scales block_scales(cpu_scaling scaling, heads h, const uint8_t *sub, int r) {
    scales s = {.s = h.d, .m = {h.m}};
    if (scaling == CPU_SUB_MIN) {
        s.s = _mm256_mul_ps(h.d, bytes8(eight(sub + 8 * r)));
        s.m[0] = _mm256_mul_ps(h.m, bytes8(eight(sub + 16 + 8 * r)));
    }
    for (int i = 0; i < 2 && cpu_has_halves(scaling); i++, sub += 16) {
        if (scaling == CPU_SUB_HALF) {
            s.sub[i] = _mm256_srai_epi16(twice(both(sub), r, true), 8);
        } else {
            const __m128i mins = _mm_srli_epi16(eight(sub + 8 * r), 4);
            s.sub[i] = twice(_mm256_and_si256(both(sub), _mm256_set1_epi8(15)), r, false);
            s.m[i] = _mm256_mul_ps(h.m, bytes8(_mm_and_si128(mins, _mm_set1_epi8(15))));
        }
    }
    return s;
}

/* One block ------------------------------------------------------------------------------------ */

/* A format as the compiler knows it: constants wherever this is inlined. */
typedef struct {
    cpu_planes planes;
    cpu_scaling scaling;
    bool packed; /* else a byte per quant */
} form;

INLINE __m256i four(const cpu_xblock *x, int quad) {
    int32_t v;
    memcpy(&v, x->q + quad * 4, 4);
    return _mm256_set1_epi32(v);
}

/* Written out: gcc would make a tree of the sums, and spill its leaves. */
INLINE __m256i add16(__m256i sum, __m256i more) {
    __asm__("vpaddw %2, %1, %0" : "=x"(sum) : "x"(sum), "x"(more));
    return sum;
}

INLINE __m256i add32(__m256i sum, __m256i more) {
    __asm__("vpaddd %2, %1, %0" : "=x"(sum) : "x"(sum), "x"(more));
    return sum;
}

INLINE __m256i weights(form f, const uint8_t *w, int quad, int r) {
    return f.packed ? quants(f.planes, w + r * 32, quad) : load(w + quad * 64 + r * 32);
}

INLINE __m256i two(const int16_t *sums) {
    int32_t v;
    memcpy(&v, sums, 4);
    return _mm256_set1_epi32(v);
}

/* -sum q of half h, or of the block, in sums as those of maddubs. */
INLINE __m256i negated_sums(const cpu_xblock *x, int h, bool halves) {
    if (!halves) return two(x->pairs);
    return h == 0 ? two(x->pairs_lo) : _mm256_sub_epi16(two(x->pairs), two(x->pairs_lo));
}

/* sums = quads [first, first + n) of 16 rows times T tokens, less zero * sum x, in the sums of two
 * that maddubs makes. */
INLINE void sum_quads(form f, const uint8_t *w, const cpu_xblock *x, int T, int first, int n,
                      __m256i sums[TOKENS][2]) {
    const bool halves = cpu_has_halves(f.scaling), min = cpu_has_min(f.scaling);
#pragma GCC unroll 8
    for (int quad = first; quad < first + n; quad++) {
        const __m256i v[2] = {weights(f, w, quad, 0), weights(f, w, quad, 1)};
#pragma GCC unroll 8
        for (int i = 0; i < 2 * T; i++) {
            __m256i *sum = &sums[i / 2][i % 2], zero;
            __m256i more = _mm256_maddubs_epi16(v[i % 2], four(&x[i / 2], quad));
            if (quad > first) {
                *sum = add16(*sum, more);
            } else if (min) {
                *sum = more;
            } else {
                zero = negated_sums(&x[i / 2], first / 4, halves);
                *sum = add16(_mm256_slli_epi16(zero, zero_shift(f.planes)), more);
            }
        }
    }
}

/* isum = the same of n quads from half h on, widened: by the half's sub-scales, if it has any. */
INLINE void weigh_quads(form f, const uint8_t *w, const scales s[2], const cpu_xblock *x, int T,
                        int h, int n, __m256i isum[TOKENS][2]) {
    sum_quads(f, w, x, T, 4 * h, n, isum);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * T; i++)
        isum[i / 2][i % 2] = _mm256_madd_epi16(
            isum[i / 2][i % 2], cpu_has_halves(f.scaling) ? s[i % 2].sub[h] : _mm256_set1_epi16(1));
    /* What is made of a full tile's sums comes after them: gcc would mix the two, and spill. */
    if (T == TOKENS) __asm__ volatile("" ::: "memory");
}

/* The same of bytes: |q - 128| times the activation with its sign. */
INLINE void sum_bytes(form f, const uint8_t *w, const cpu_xblock *x, int T,
                      __m256i isum[TOKENS][2]) {
#pragma GCC unroll 8
    for (int quad = 0; quad < CPU_QUADS; quad++) {
        __m256i v[2], most[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            v[r] = _mm256_xor_si256(weights(f, w, quad, r), _mm256_set1_epi8(-128));
            most[r] = _mm256_abs_epi8(v[r]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 2 * T; i++) {
            __m256i *sum = &isum[i / 2][i % 2];
            __m256i more = _mm256_maddubs_epi16(most[i % 2],
                                                _mm256_sign_epi8(four(&x[i / 2], quad), v[i % 2]));
            more = _mm256_madd_epi16(more, _mm256_set1_epi16(1));
            *sum = quad == 0 ? more : add32(*sum, more);
        }
    }
}

/* The integer sums of a block. */
INLINE void block_sums(form f, const uint8_t *w, const scales s[2], const cpu_xblock *x, int T,
                       __m256i isum[TOKENS][2]) {
    if (is_byte(f.planes)) {
        sum_bytes(f, w, x, T, isum);
    } else if (cpu_has_halves(f.scaling) || (f.planes == CPU_U5 && cpu_has_min(f.scaling))) {
        __m256i more[TOKENS][2];
        weigh_quads(f, w, s, x, T, 0, 4, isum);
        weigh_quads(f, w, s, x, T, 1, 4, more);
#pragma GCC unroll 8
        for (int i = 0; i < 2 * T; i++)
            isum[i / 2][i % 2] = add32(more[i / 2][i % 2], isum[i / 2][i % 2]);
    } else {
        weigh_quads(f, w, s, x, T, 0, 8, isum);
    }
}

/* What half h of a block's minimum is multiplied by. */
INLINE __m256 half_xsum(form f, const cpu_xblock *x, int h) {
    if (!cpu_has_min(f.scaling)) return _mm256_setzero_ps();
    if (!cpu_has_halves(f.scaling)) return _mm256_set1_ps(x->xsum);
    __m256i sum = _mm256_madd_epi16(negated_sums(x, h, true), _mm256_set1_epi16(-1));
    return _mm256_mul_ps(_mm256_set1_ps(x->d), _mm256_cvtepi32_ps(sum));
}

/* sum plus a block of 8 rows, times a token. */
INLINE __m256 add_rows(form f, const scales *s, __m256i isum, __m256 d, const __m256 xsum[2],
                       __m256 sum) {
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), _mm256_mul_ps(s->s, d), sum);
    if (cpu_has_min(f.scaling)) sum = _mm256_fmadd_ps(s->m[0], xsum[0], sum);
    if (!cpu_has_min(f.scaling) || !cpu_has_halves(f.scaling)) return sum;
    return _mm256_fmadd_ps(s->m[1], xsum[1], sum);
}

/* acc[t][16 rows] += one block of 16 rows times T tokens. T and f are constants. */
INLINE void add_block(form f, const uint8_t *w, const scales s[2], const cpu_xblock *x, int T,
                      float *acc) {
    __m256i isum[TOKENS][2];
    block_sums(f, w, s, x, T, isum);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
        const __m256 d = _mm256_set1_ps(x[t].d),
                     xsum[2] = {half_xsum(f, &x[t], 0), half_xsum(f, &x[t], 1)};
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            float *to = acc + t * CPU_PAIR + r * 8;
            _mm256_store_ps(to, add_rows(f, &s[r], isum[t][r], d, xsum, _mm256_load_ps(to)));
        }
    }
}

/* The same times `width` tokens, four by four. */
INLINE void add_tokens(form f, const uint8_t *w, const scales s[2], const cpu_xblock *x,
                       uint32_t width, float *acc) {
    for (; width >= TOKENS; width -= TOKENS, x += TOKENS, acc += TOKENS * CPU_PAIR)
        add_block(f, w, s, x, TOKENS, acc);
    switch (width) {
    case 3: add_block(f, w, s, x, 3, acc); break;
    case 2: add_block(f, w, s, x, 2, acc); break;
    case 1: add_block(f, w, s, x, 1, acc); break;
    default: break;
    }
}

/* Panels --------------------------------------------------------------------------------------- */

/* The quants of a block, a byte each, as in cpu_ublock. */
INLINE void unpack_quants(cpu_planes planes, const uint8_t *from, uint8_t *q) {
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++)
#pragma GCC unroll 8
        for (int quad = 0; quad < CPU_QUADS; quad++)
            _mm256_store_si256((__m256i *)(void *)(q + quad * 64 + r * 32),
                               quants(planes, from + r * 32, quad));
}

/* The same of quants of which some lie in parts; a function, as its many masks would take registers
 * from the tiles. */
static __attribute__((noinline)) void unpack_parts(cpu_planes planes, const uint8_t *from,
                                                   uint8_t *q) {
    switch (planes) {
    case CPU_U3: unpack_quants(CPU_U3, from, q); break;
    case CPU_U5: unpack_quants(CPU_U5, from, q); break;
    default: unpack_quants(CPU_U6, from, q); break;
    }
}

/* Block b of a panel times all tokens. Each register tile takes its quants from the packed form
 * again; but where some lie in parts, more than one tile takes them from bytes. */
INLINE void packed_block(cpu_planes planes, cpu_scaling scaling, const cpu_packed_args *a,
                         uint32_t b, const uint8_t *w, const scales s[2]) {
    const bool in_parts = planes == CPU_U3 || planes == CPU_U5 || planes == CPU_U6,
               unpacked = in_parts && a->n_tokens > TOKENS;
    _Alignas(32) uint8_t q[CPU_BLOCK * CPU_PANEL];
    if (unpacked) unpack_parts(planes, w, q);
    for (uint32_t t = 0; t < a->n_tokens; t += CPU_TILE) {
        uint32_t left = a->n_tokens - t, width = left < CPU_TILE ? left : CPU_TILE;
        const cpu_xblock *x = a->x + (size_t)t * a->n_blocks + (size_t)b * width;
        float *acc = a->acc + (size_t)t * CPU_PAIR;
        if (unpacked)
            add_tokens((form){planes, scaling, false}, q, s, x, width, acc);
        else
            add_tokens((form){planes, scaling, true}, w, s, x, width, acc);
    }
}

/* The sums of one token stay in registers: in memory each block would wait for the one before. */
INLINE void add_block_of_one(form f, const uint8_t *w, const scales s[2], const cpu_xblock *x,
                             __m256 sum[2]) {
    const __m256 d = _mm256_set1_ps(x->d), xsum[2] = {half_xsum(f, x, 0), half_xsum(f, x, 1)};
    __m256i isum[TOKENS][2];
    block_sums(f, w, s, x, 1, isum);
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) sum[r] = add_rows(f, &s[r], isum[0][r], d, xsum, sum[r]);
}

/* Asks for the lines of `bytes` from an address on, which may be behind the weights' end. */
INLINE void fetch(uintptr_t from, uint32_t bytes, int hint) {
    for (uint32_t i = 0; i < bytes + 32; i += 64) {
        if (hint == _MM_HINT_T0)
            _mm_prefetch((const char *)(from + i), _MM_HINT_T0);
        else
            _mm_prefetch((const char *)(from + i), _MM_HINT_NTA);
    }
}

#define AHEAD 4096 /* how far ahead the weights that follow are asked for, in bytes */

INLINE void packed_panel(cpu_planes planes, cpu_scaling scaling, const cpu_packed_args *a) {
    const cpu_format *f = a->format;
    const uint8_t *head = a->panel, *at = head + f->head_bytes;
    const uintptr_t ahead = a->last ? 0 : AHEAD;
    const uint32_t step = f->quant_bytes + f->sub_bytes;
    for (uint32_t t = 0; t < a->n_tokens; t++)
        memset(a->acc + (size_t)t * CPU_PAIR, 0, CPU_PANEL * sizeof *a->acc);
    for (uint32_t b = 0, left = f->n_blocks; b < a->n_blocks; b++, left--) {
        if (left == 0) {
            head = at;
            at += f->head_bytes;
            left = f->n_blocks;
        }
        /* weights are read once: they need not push the rest out of the second level */
        fetch((uintptr_t)at + ahead, step, _MM_HINT_NTA);
        scales s[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++)
            s[r] = block_scales(scaling, super_heads(scaling, head, r), at + f->quant_bytes, r);
        packed_block(planes, scaling, a, b, at, s);
        at += step;
    }
}

/* One token: P panels side by side, a constant. What the processor fetches on its own is most of
 * it, and it fetches more of two streams than of one; more that is asked for is in its way. */
INLINE void panels_of_one(cpu_planes planes, cpu_scaling scaling, int P, const cpu_pair_args *a,
                          uintptr_t ahead) {
    const cpu_format *f = a->format;
    const uint32_t step = f->quant_bytes + f->sub_bytes;
    const uint8_t *at[2];
    heads head[2][2];
    __m256 sum[2][2];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
        at[p] = a->panels[p];
        sum[p][0] = sum[p][1] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0, left = 0; b < a->n_blocks; b++, left--) {
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
            if (left == 0) {
#pragma GCC unroll 2
                for (int r = 0; r < 2; r++) head[p][r] = super_heads(scaling, at[p], r);
                at[p] += f->head_bytes;
            }
            fetch((uintptr_t)at[p] + ahead, step, _MM_HINT_T0);
            scales s[2];
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                s[r] = block_scales(scaling, head[p][r], at[p] + f->quant_bytes, r);
            add_block_of_one((form){planes, scaling, true}, at[p], s, a->x + b, sum[p]);
            at[p] += step;
        }
        if (left == 0) left = f->n_blocks;
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
        _mm256_store_ps(a->sums[p], sum[p][0]);
        _mm256_store_ps(a->sums[p] + 8, sum[p][1]);
    }
}

#define AHEAD_OF_ONE 1024

INLINE void packed_panel_of_one(cpu_planes planes, cpu_scaling scaling, const cpu_packed_args *a) {
    const cpu_pair_args one = {.format = a->format,
                               .panels = {a->panel},
                               .x = a->x,
                               .n_blocks = a->n_blocks,
                               .sums = {a->acc}};
    panels_of_one(planes, scaling, 1, &one, a->last ? 0 : AHEAD_OF_ONE);
}

/* Sub-scales, twice in 16 bits: as f32, and back. */
INLINE void store_sub(float *out, __m256i sub) {
    _mm256_store_ps(out, _mm256_cvtepi32_ps(_mm256_srai_epi32(sub, 16)));
}

INLINE __m256i load_sub(const float *p) {
    const __m256i sub = _mm256_cvtps_epi32(_mm256_load_ps(p));
    return _mm256_blend_epi16(sub, _mm256_slli_epi32(sub, 16), 0xAA);
}

INLINE void unpack_panel(cpu_planes planes, cpu_scaling scaling, const cpu_format *f,
                         const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out) {
    const uint8_t *head = panel, *at = panel + f->head_bytes;
    for (uint32_t b = 0; b < n_blocks; b++, out++) {
        if (b > 0 && b % f->n_blocks == 0) {
            head = at;
            at += f->head_bytes;
        }
        unpack_quants(planes, at, out->q);
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            scales s = block_scales(scaling, super_heads(scaling, head, r), at + f->quant_bytes, r);
            _mm256_store_ps(out->s + 8 * r, s.s);
            for (int h = 0; h < 1 + cpu_has_halves(scaling); h++) {
                if (cpu_has_halves(scaling)) store_sub(out->sub[h] + 8 * r, s.sub[h]);
                if (cpu_has_min(scaling)) _mm256_store_ps(out->m[h] + 8 * r, s.m[h]);
            }
        }
        at += f->quant_bytes + f->sub_bytes;
    }
}

INLINE void fetch_next(cpu_fetch *f) {
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; i < f->bytes && f->at[p] < f->end[p]; i += 64, f->at[p] += 64)
            _mm_prefetch((const char *)f->at[p], _MM_HINT_T1);
}

INLINE void gemm_panels(cpu_planes planes, cpu_scaling scaling, const cpu_gemm_args *a) {
    const form kind = {planes, scaling, false};
    for (uint32_t p = 0; p < a->n_panels; p++) {
        const cpu_ublock *w = a->w + p * CPU_K_BLOCKS;
        const cpu_xblock *x = a->x;
        for (uint32_t b = 0; b < a->n_blocks; b++, w++, x += a->width) {
            scales s[2];
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++) {
                s[r].s = _mm256_load_ps(w->s + 8 * r);
                for (int h = 0; h < 1 + cpu_has_halves(scaling); h++) {
                    if (cpu_has_halves(scaling)) s[r].sub[h] = load_sub(w->sub[h] + 8 * r);
                    if (cpu_has_min(scaling)) s[r].m[h] = _mm256_load_ps(w->m[h] + 8 * r);
                }
            }
            fetch_next(a->fetch);
            add_tokens(kind, w->q, s, x, a->width, a->acc + p * CPU_PANEL);
        }
    }
}

void cpu_unpack_avx2(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                     cpu_ublock *out) {
    switch (f->type) {
#define X(type, planes, scaling)                                                                   \
    case type: unpack_panel(planes, scaling, f, panel, n_blocks, out); break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(f->type == QUANT_Q4_0);
    }
}

void cpu_gemm_packed_avx2(const cpu_packed_args *a) {
    switch (a->format->type) {
#define X(type, planes, scaling)                                                                   \
    case type:                                                                                     \
        if (a->n_tokens == 1)                                                                      \
            packed_panel_of_one(planes, scaling, a);                                               \
        else                                                                                       \
            packed_panel(planes, scaling, a);                                                      \
        break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(a->format->type == QUANT_Q4_0);
    }
}

void cpu_gemv_pair_avx2(const cpu_pair_args *a) {
    switch (a->format->type) {
#define X(type, planes, scaling)                                                                   \
    case type: panels_of_one(planes, scaling, 2, a, AHEAD_OF_ONE); break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(a->format->type == QUANT_Q4_0);
    }
}

void cpu_gemm_avx2(const cpu_gemm_args *a) {
    switch (a->format->type) {
#define X(type, planes, scaling)                                                                   \
    case type: gemm_panels(planes, scaling, a); break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(a->format->type == QUANT_Q4_0);
    }
}
