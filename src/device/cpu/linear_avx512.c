/* device/cpu/linear_avx512: the integer product on AVX-512 VNNI.
 *
 * A register holds 4 consecutive K of 16 rows; dpbusd multiplies them by 4 activations broadcast
 * to all rows. Either up to 8 tokens walk down a packed panel together and take its quants in
 * registers on their way from memory, as often as there are tokens; or, for many tokens, two panels
 * are unpacked to bytes once and multiplied by tiles of 6 tokens (12 float and 12 integer
 * accumulators of the 32 registers). The former loads once for each product, the latter 8 times for
 * 12: which is better is the processor's (kernels_avx512.c).
 */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/dpbusd.h"
#include "device/cpu/linear.h"
#include "device/cpu/planes.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

INLINE __m512i field(cpu_field f, const uint8_t *p) {
    __m512i v = load(p + f.reg * 64);
    if (f.n_bits == 8) return v;
    if (f.from > f.at) v = _mm512_srli_epi16(v, (unsigned)(f.from - f.at));
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1 << f.n_bits) - 1) << f.at)));
}

/* The unsigned quants of one quad; planes and quad are constants wherever this is inlined. */
INLINE __m512i quants(cpu_planes planes, const uint8_t *p, int quad) {
    const cpu_field *f = cpu_fields[planes][quad];
    __m512i v = field(f[0], p);
    if (f[1].n_bits > 0) v = _mm512_or_si512(v, field(f[1], p));
    if (f[2].n_bits > 0) v = _mm512_or_si512(v, field(f[2], p));
    if (planes != CPU_U4_TABLE) return v;
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)cpu_iq4_table)), v);
}

typedef struct {
    __m512 s, sub[2], m[2];
} scales;

INLINE __m512 half16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 bytes16(__m128i b) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
}

INLINE __m128i sixteen(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE scales block_scales(cpu_scaling scaling, const uint8_t *head, const uint8_t *sub) {
    const __m128i low = _mm_set1_epi8(15);
    scales s = {.s = half16(head)};
    __m512 m = cpu_has_min(scaling) ? half16(head + 32) : _mm512_setzero_ps();
    if (scaling != CPU_SCALE_MIN) m = _mm512_xor_ps(m, _mm512_set1_ps(-0.0f));
    s.m[0] = m;
    if (scaling == CPU_SUB_MIN) {
        s.s = _mm512_mul_ps(s.s, bytes16(sixteen(sub)));
        s.m[0] = _mm512_mul_ps(m, bytes16(sixteen(sub + 16)));
    }
    for (int h = 0; h < 2 && cpu_has_halves(scaling); h++) {
        const __m128i v = sixteen(sub + 16 * h);
        if (scaling == CPU_SUB_HALF) {
            s.sub[h] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
        } else {
            s.sub[h] = bytes16(_mm_and_si128(v, low));
            s.m[h] = _mm512_mul_ps(m, bytes16(_mm_and_si128(_mm_srli_epi16(v, 4), low)));
        }
    }
    return s;
}

/* Unpacking ------------------------------------------------------------------------------------ */

INLINE void unpack_panel(cpu_planes planes, cpu_scaling scaling, const cpu_format *f,
                         const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out) {
    const uint8_t *head = panel, *at = panel + f->head_bytes;
    for (uint32_t b = 0; b < n_blocks; b++, out++) {
        if (b > 0 && b % f->n_blocks == 0) {
            head = at;
            at += f->head_bytes;
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < CPU_QUADS; quad++)
            _mm512_storeu_si512(out->q + quad * 64, quants(planes, at, quad));
        scales s = block_scales(scaling, head, at + f->quant_bytes);
        _mm512_store_ps(out->s, s.s);
        for (int h = 0; h < 1 + cpu_has_halves(scaling); h++) {
            if (cpu_has_halves(scaling)) _mm512_store_ps(out->sub[h], s.sub[h]);
            if (cpu_has_min(scaling)) _mm512_store_ps(out->m[h], s.m[h]);
        }
        at += f->quant_bytes + f->sub_bytes;
    }
}

/* Products ------------------------------------------------------------------------------------- */

INLINE __m512i four(const int8_t *x) {
    int32_t v;
    memcpy(&v, x, 4);
    return _mm512_set1_epi32(v);
}

/* Where the integer sum of half h, or of the block, starts: -zero * sum q. Formats with a minimum
 * have no zero. */
INLINE __m512i start(const cpu_xblock *x, int h, bool halves, bool min, __m512i zero_shift) {
    if (min) return _mm512_setzero_si512();
    return _mm512_sllv_epi32(_mm512_set1_epi32(halves ? x->nsum_of[h] : x->nsum), zero_shift);
}

/* The sums of two halves, by their sub-scales: integers, and exact. */
INLINE __m512 weigh(const __m512 sub[2], __m512 low, __m512 high) {
    return _mm512_fmadd_ps(high, sub[1], _mm512_mul_ps(low, sub[0]));
}

/* acc plus a block of 16 rows times a token, whose integer sums are isum. */
INLINE __m512 add_block(__m512 acc, __m512 isum, const cpu_xblock *x, const scales *s, bool halves,
                        bool min) {
    const __m512 d = _mm512_set1_ps(x->d);
    acc = _mm512_fmadd_ps(isum, _mm512_mul_ps(s->s, d), acc);
    if (!min) return acc;
    if (!halves) return _mm512_fmadd_ps(s->m[0], _mm512_set1_ps(x->xsum), acc);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        float xsum = x->d * (float)-x->nsum_of[h];
        acc = _mm512_fmadd_ps(s->m[h], _mm512_set1_ps(xsum), acc);
    }
    return acc;
}

/* Straight from the packed form ---------------------------------------------------------------- */

#define WALK 8     /* tokens that walk down a panel together, at most */
#define FEW 2      /* so many are waiting for memory; more have time for the next panel to come */
#define AHEAD 4096 /* how far ahead of those what follows is asked for: 12 blocks of four bits */

/* One walk down a panel with T of the tokens of a tile. */
typedef struct {
    const cpu_xblock *x; /* [n_blocks][stride] */
    uint32_t stride, T;
    uintptr_t ahead; /* where what is asked for begins, or behind the weights' end */
    uint32_t fetch;  /* so many bytes of it at each block, a multiple of 64 */
    float *acc;
} packed_walk;

/* T, a constant; quants go from memory to registers and are used T times. */
INLINE void packed_tile(cpu_planes planes, cpu_scaling scaling, int T, const cpu_packed_args *a,
                        const packed_walk *walk) {
    const cpu_format *f = a->format;
    const __m512i zero_shift = _mm512_set1_epi32(f->zero_shift);
    const bool halves = cpu_has_halves(scaling), min = cpu_has_min(scaling);
    const uint8_t *head = a->panel, *at = head + f->head_bytes;
    const uint32_t step = f->quant_bytes + f->sub_bytes, fetch = walk->fetch;
    const cpu_xblock *x = walk->x;
    uintptr_t ahead = walk->ahead;
    __m512 acc[WALK];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) acc[t] = _mm512_setzero_ps();
    for (uint32_t b = 0, left = f->n_blocks; b < a->n_blocks; b++, x += walk->stride, left--) {
        if (left == 0) {
            head = at;
            at += f->head_bytes;
            left = f->n_blocks;
        }
        for (uintptr_t end = ahead + fetch; ahead < end; ahead += 64) {
            if (T <= FEW)
                _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            else
                _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        }
        scales s = block_scales(scaling, head, at + f->quant_bytes);
        __m512i isum[WALK][2];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            isum[t][0] = start(&x[t], 0, halves, min, zero_shift);
            isum[t][1] = start(&x[t], 1, halves, min || !halves, zero_shift);
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < CPU_QUADS; quad++) {
            __m512i w = quants(planes, at, quad);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                /* one token: two chains, for the latency */
                int h = halves || T == 1 ? quad / 4 : 0;
                isum[t][h] = dot(isum[t][h], w, x[t].q + quad * 4);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            if (!halves && T == 1) isum[t][0] = _mm512_add_epi32(isum[t][0], isum[t][1]);
            __m512 sum = _mm512_cvtepi32_ps(isum[t][0]);
            if (halves) sum = weigh(s.sub, sum, _mm512_cvtepi32_ps(isum[t][1]));
            acc[t] = add_block(acc[t], sum, &x[t], &s, halves, min);
        }
        at += step;
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) _mm512_store_ps(walk->acc + (size_t)t * CPU_PAIR, acc[t]);
}

INLINE void packed_format(cpu_planes planes, cpu_scaling scaling, const cpu_packed_args *a,
                          const packed_walk *w) {
    switch (w->T) {
    case 1: packed_tile(planes, scaling, 1, a, w); break;
    case 2: packed_tile(planes, scaling, 2, a, w); break;
    case 3: packed_tile(planes, scaling, 3, a, w); break;
    case 4: packed_tile(planes, scaling, 4, a, w); break;
    case 5: packed_tile(planes, scaling, 5, a, w); break;
    case 6: packed_tile(planes, scaling, 6, a, w); break;
    case 7: packed_tile(planes, scaling, 7, a, w); break;
    case 8: packed_tile(planes, scaling, 8, a, w); break;
    default: ridge_assert(w->T <= WALK);
    }
}

static void walk_panel(const cpu_packed_args *a, const packed_walk *w) {
    switch (a->format->type) {
#define X(type, planes, scaling)                                                                   \
    case type: packed_format(planes, scaling, a, w); break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(a->format->type == QUANT_Q4_0);
    }
}

/* All tokens, in walks of up to WALK; `bytes` from `ahead` on are asked for meanwhile, evenly. */
static void walk_tokens(const cpu_packed_args *a, uintptr_t ahead, size_t bytes) {
    const uint32_t n_tiles = (a->n_tokens + CPU_TILE - 1) / CPU_TILE;
    const uint32_t n_walks = a->n_tokens <= WALK ? 1 : 2 * n_tiles; /* or one fewer */
    const size_t lines = (bytes / 64 + (size_t)n_walks * a->n_blocks - 1) / (n_walks * a->n_blocks);
    packed_walk w = {.ahead = ahead, .fetch = (uint32_t)lines * 64};
    for (uint32_t t = 0; t < a->n_tokens; t += CPU_TILE) {
        uint32_t left = a->n_tokens - t, most;
        w.stride = left < CPU_TILE ? left : CPU_TILE;
        most = w.stride <= WALK ? w.stride : (w.stride + 1) / 2;
        for (uint32_t i = 0; i < w.stride; i += w.T) {
            w.x = a->x + (size_t)t * a->n_blocks + i;
            w.T = w.stride - i < most ? w.stride - i : most;
            w.acc = a->acc + (size_t)(t + i) * CPU_PAIR;
            walk_panel(a, &w);
            w.ahead += (uintptr_t)w.fetch * a->n_blocks;
            if (w.ahead >= ahead + bytes) w.fetch = 0;
        }
    }
}

/* `alone`: few tokens ask for nothing, as the processor fetches best by itself. */
static void packed_panel(const cpu_packed_args *a, bool alone) {
    const size_t bytes = cpu_panel_bytes(a->format, a->n_blocks * CPU_BLOCK);
    const bool few = a->n_tokens <= FEW;
    if (a->last || (few && alone))
        walk_tokens(a, 0, 0);
    else
        walk_tokens(a, (uintptr_t)a->panel + (few ? AHEAD : bytes), bytes);
}

void cpu_gemm_packed_avx512(const cpu_packed_args *a) {
    packed_panel(a, false);
}

void cpu_gemm_packed_zen(const cpu_packed_args *a) {
    packed_panel(a, true);
}

void cpu_unpack_avx512(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks,
                       cpu_ublock *out) {
    switch (f->type) {
#define X(type, planes, scaling)                                                                   \
    case type: unpack_panel(planes, scaling, f, panel, n_blocks, out); break;
        CPU_EACH_FORMAT(X)
#undef X
    default: ridge_assert(f->type == QUANT_Q4_0);
    }
}

/* From unpacked panels ------------------------------------------------------------------------- */

/* Quads [first, first + n) of a block of P panels into isum. */
INLINE void add_quads(const cpu_ublock *w, const cpu_xblock *x, int first, int n, int T, int P,
                      __m512i isum[6][2]) {
#pragma GCC unroll 8
    for (int quad = first; quad < first + n; quad++) {
        __m512i v[2];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) v[p] = _mm512_load_si512(w[p * CPU_K_BLOCKS].q + quad * 64);
#pragma GCC unroll 6
        for (int t = 0; t < T; t++) {
            __m512i y = four(x[t].q + quad * 4);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) isum[t][p] = dot_reg(isum[t][p], v[p], y);
        }
    }
}

INLINE void fetch_next(cpu_fetch *f) {
    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; i < f->bytes && f->at[p] < f->end[p]; i += 64, f->at[p] += 64)
            _mm_prefetch((const char *)f->at[p], _MM_HINT_T1);
}

INLINE scales unpacked_scales(const cpu_ublock *w, bool halves, bool min) {
    scales s = {.s = _mm512_load_ps(w->s)};
    for (int h = 0; h < 1 + halves; h++) {
        if (halves) s.sub[h] = _mm512_load_ps(w->sub[h]);
        if (min) s.m[h] = _mm512_load_ps(w->m[h]);
    }
    return s;
}

/* T tokens of the tile from token t0 on, times P panels; T and P are constants with T * P <= 12:
 * so many integer and so many float accumulators. */
INLINE void gemm_tile(const cpu_gemm_args *a, uint32_t t0, int T, int P, bool halves, bool min) {
    const cpu_ublock *w = a->w;
    const cpu_xblock *x = a->x + t0;
    const __m512i zero_shift = _mm512_set1_epi32(a->format->zero_shift);
    float *out = a->acc + (size_t)t0 * CPU_PAIR;
    __m512 acc[6][2];
#pragma GCC unroll 12
    for (int i = 0; i < T * P; i++)
        acc[i / P][i % P] = _mm512_load_ps(out + i / P * CPU_PAIR + i % P * CPU_PANEL);
    for (uint32_t b = 0; b < a->n_blocks; b++, w++, x += a->width) {
        fetch_next(a->fetch);
        scales s[2];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) s[p] = unpacked_scales(&w[p * CPU_K_BLOCKS], halves, min);
        __m512 sum[6][2];
#pragma GCC unroll 2
        for (int h = 0; h < 1 + halves; h++) {
            __m512i isum[6][2];
#pragma GCC unroll 12
            for (int i = 0; i < T * P; i++)
                isum[i / P][i % P] = start(&x[i / P], h, halves, min, zero_shift);
            add_quads(w, x, 4 * h, halves ? 4 : 8, T, P, isum);
#pragma GCC unroll 12
            for (int i = 0; i < T * P; i++) {
                __m512 *low = &sum[i / P][i % P], high = _mm512_cvtepi32_ps(isum[i / P][i % P]);
                *low = h == 0 ? high : weigh(s[i % P].sub, *low, high);
            }
        }
#pragma GCC unroll 12
        for (int i = 0; i < T * P; i++)
            acc[i / P][i % P] =
                add_block(acc[i / P][i % P], sum[i / P][i % P], &x[i / P], &s[i % P], halves, min);
    }
#pragma GCC unroll 12
    for (int i = 0; i < T * P; i++)
        _mm512_store_ps(out + i / P * CPU_PAIR + i % P * CPU_PANEL, acc[i / P][i % P]);
}

/* Widths are made of 6, 4, 2 and 1: a function for each would take compilers minutes. Halves, whose
 * sums take registers of their own, of no more than 4. */
INLINE void gemm_widths(const cpu_gemm_args *a, int P, bool halves, bool min) {
    for (uint32_t t = 0, left; (left = a->width - t) > 0;) {
        if (!halves && left >= 6 && left != 8) {
            gemm_tile(a, t, 6, P, halves, min);
            t += 6;
        } else if (left >= 4) {
            gemm_tile(a, t, 4, P, halves, min);
            t += 4;
        } else if (left >= 2) {
            gemm_tile(a, t, 2, P, halves, min);
            t += 2;
        } else {
            gemm_tile(a, t, 1, P, halves, min);
            t += 1;
        }
    }
}

INLINE void gemm_panels(const cpu_gemm_args *a, bool halves, bool min) {
    if (a->n_panels == 2)
        gemm_widths(a, 2, halves, min);
    else
        gemm_widths(a, 1, halves, min);
}

void cpu_gemm_avx512(const cpu_gemm_args *a) {
    if (a->format->halves && a->format->has_min)
        gemm_panels(a, true, true);
    else if (a->format->halves)
        gemm_panels(a, true, false);
    else if (a->format->has_min)
        gemm_panels(a, false, true);
    else
        gemm_panels(a, false, false);
}
