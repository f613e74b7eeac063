/* device/cpu: what its files share: packed weights, quantised activations, the kernel table.
 *
 * A weight matrix is packed in panels of 16 rows. A panel is a run of superblocks along K; each
 * superblock is a header of f16 scales for its 16 rows, then blocks of 32 values: their quants, of
 * which 4 consecutive K of the 16 rows make one 64-byte register ("quad"), then sub-scales. The
 * quants are unsigned; a value is s * (q - zero) or s * q + m, where s and m are exactly those of
 * the file's formula.
 *
 * The one order of accumulation (every path, one row as many): per output element, over blocks of
 * 32 in order,
 *     isum = sum q*x - zero * sum x                  (int32, exact)
 *     acc  = fma((float)isum, s * d_x, acc)
 *     acc  = fma(m, d_x * sum x, acc)                (formats with a minimum)
 * so all paths give the same bits. Where the halves of a block have sub-scales, s is that of the
 * superblock, and isum = sub[0] * isum of one half + sub[1] * that of the other: integers below
 * 2^24, so that f32 is as good; the minimum of the one is added before that of the other.
 */
#ifndef RIDGE_DEVICE_CPU_INTERNAL_H
#define RIDGE_DEVICE_CPU_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/team.h"
#include "device/device.h"

#define CPU_PANEL 16              /* rows of a panel */
#define CPU_BLOCK 32              /* values of K per block */
#define CPU_QUADS 8               /* groups of 4 K in a block */
#define CPU_TILE 12               /* tokens of an activation tile */
#define CPU_TOKENS (8 * CPU_TILE) /* activations of so many stay in the second-level cache */
#define CPU_PAIR (2 * CPU_PANEL)
#define CPU_K_BLOCKS 24 /* of two panels so many, unpacked, stay in the first-level cache */
#define CPU_SPAN 256    /* context tokens of one attention partial */

/* The unsigned quants of a block, by their bits; how they lie: planes.h. */
typedef enum {
    CPU_U2,
    CPU_U3,
    CPU_U4,
    CPU_U4_TABLE, /* indices of the IQ4_NL table, biased by 128 */
    CPU_U5,
    CPU_U6,
    CPU_U8
} cpu_planes;

typedef enum {
    CPU_SCALE,        /* header: d */
    CPU_SCALE_MIN,    /* header: d, m */
    CPU_SUB_MIN,      /* header: d, dmin; block: u8 sc[16], u8 mn[16];  s = d*sc, m = -dmin*mn */
    CPU_SUB_HALF,     /* header: d; block: i8 sc[2][16];                s = d*sc per 16 values */
    CPU_SUB_HALF_MIN, /* header: d, dmin; block: u8 (sc | mn << 4)[2][16], per 16 values */
} cpu_scaling;

typedef struct {
    quant_type type;
    cpu_planes planes;
    cpu_scaling scaling;
    int zero_shift;      /* zero = 1 << zero_shift; -1: zero = 0 */
    uint32_t n_blocks;   /* blocks of a superblock */
    uint32_t head_bytes; /* header of a superblock */
    uint32_t quant_bytes, sub_bytes;
    bool halves, has_min;
} cpu_format;

/* NULL: not an integer format. */
const cpu_format *cpu_format_find(quant_type type);
size_t cpu_super_bytes(const cpu_format *f);
size_t cpu_panel_bytes(const cpu_format *f, uint32_t cols);
/* Packs 16 rows (fewer at the end: the rest become zero) from the file's rows; panel is zeroed. */
void cpu_pack_panel(const cpu_format *f, const uint8_t *rows, size_t row_bytes, uint32_t n_rows,
                    uint32_t cols, uint8_t *panel);
extern const uint8_t cpu_iq4_table[16]; /* biased by 128 */
/* The same for F32, F16 and BF16: the panel is [cols][16] of the file's elements. */
void cpu_pack_float_panel(uint32_t elem_bytes, const uint8_t *rows, size_t row_bytes,
                          uint32_t n_rows, uint32_t cols, uint8_t *panel);

/* 32 activations of one token: x = d * q. Tile t of a batch holds its tokens [12t, 12t + width) as
 * [n_blocks][width], width = 12 but in the last tile, so that a tile is one stream. */
typedef struct {
    float d, xsum;                 /* xsum = d * sum q */
    int32_t nsum, nsum_of[2];      /* -sum q; of each half */
    int16_t pairs[2], pairs_lo[2]; /* where sums have 16 bits: -sum q of the first two of each four,
                                      and of the last two; those of the first half alone */
    int8_t q[CPU_BLOCK];           /* in [-127, 127] */
} cpu_xblock;

/* An unpacked block of a panel: for many tokens a chunk of a panel is unpacked once. m is negative
 * or 0. */
typedef struct {
    _Alignas(64) uint8_t q[CPU_BLOCK * CPU_PANEL]; /* [quad][row][4] */
    float s[CPU_PANEL];
    float sub[2][CPU_PANEL]; /* format->halves: integers, of each half */
    float m[2][CPU_PANEL];   /* of each half; [0] alone unless format->halves */
} cpu_ublock;

/* What is needed next, of two panels: the kernel asks for `bytes` of each per block of K that it
 * works on, up to end, so that memory is never idle. */
typedef struct {
    const uint8_t *at[2], *end[2];
    uint32_t bytes; /* a multiple of 64 */
} cpu_fetch;

/* Up to CPU_TILE tokens times one or two panels, over up to CPU_K_BLOCKS blocks of K: acc += w x.
 * The sums go on from chunk to chunk of K, in the one order. */
typedef struct {
    const cpu_format *format;
    const cpu_ublock *w; /* [n_panels][CPU_K_BLOCKS], the first n_blocks of each */
    const cpu_xblock *x; /* [n_blocks][width] */
    uint32_t n_panels, n_blocks, width;
    float *acc; /* [width][CPU_PAIR], 64-byte aligned */
    cpu_fetch *fetch;
} cpu_gemm_args;

/* Up to max_packed tokens times one packed panel. */
typedef struct {
    const cpu_format *format;
    const uint8_t *panel;
    const cpu_xblock *x; /* in tiles of CPU_TILE tokens, each [n_blocks][its width] */
    bool last;           /* what follows the panel is not needed: it need not be asked for */
    uint32_t n_blocks, n_tokens;
    float *acc; /* out: 16 columns of [n_tokens][CPU_PAIR] */
} cpu_packed_args;

/* One token times two packed panels that are read side by side. */
typedef struct {
    const cpu_format *format;
    const uint8_t *panels[2]; /* best far apart, each before those that are needed next */
    const cpu_xblock *x;      /* [n_blocks] */
    uint32_t n_blocks;
    float *sums[2]; /* out: [CPU_PANEL] each, 64-byte aligned */
} cpu_pair_args;

typedef struct {
    quant_type type; /* of w: F32, F16 or BF16 */
    const void *w;   /* [cols][16] */
    const float *x;  /* [n, ldx] */
    size_t ldx;
    uint32_t cols, n;
    float *out; /* [n, ld] */
    size_t ld;
    uint32_t n_rows;
} cpu_fgemm_args;

/* What is needed after what is worked on, in that order: runs of 16 tokens' keys and values, or
 * halves of such runs. */
typedef struct {
    const uint8_t *runs[2 * CPU_SPAN / 16];
    uint32_t first, end; /* not asked for yet are runs [first, end) */
    uint32_t bytes;      /* of each */
} cpu_ahead;

/* One span of context against n queries that share a KV head. */
typedef struct {
    /* of each 16 tokens: keys [head_dim][16], values [16][head_dim] */
    const void *const *k, *const *v; /* [CPU_SPAN / 16]; k NULL: the scores are there already */
    const cpu_ahead *ahead;          /* asked for meanwhile, where the kernels' `fetches` says so */
    dev_kv_type type;                /* of both */
    const float *scales;             /* q8_0: of v, [CPU_SPAN][head_dim / 32] */
    uint32_t head_dim, n;
    const float *q;              /* packed by pack_queries */
    const uint32_t *begin, *end; /* [n] visible tokens of the span; begin >= end: none */
    float scale, softcap;
    float *scores; /* [n][256], before they are scaled; then scratch */
    float *m, *l;  /* out [n]: maximum, sum of exp(score - m); l = 0: none */
    float *o;      /* out [n][head_dim]: sum of exp(score - m) * v */
} cpu_span_args;

typedef struct {
    const char *isa;
    /* linear, integer */
    void (*unpack)(const cpu_format *f, const uint8_t *panel, uint32_t n_blocks, cpu_ublock *out);
    void (*gemm)(const cpu_gemm_args *a);
    void (*gemm_packed)(const cpu_packed_args *a);
    uint32_t max_packed; /* tokens at once from the packed form; for more: unpack, then gemm */
    void (*gemv_pair)(const cpu_pair_args *a); /* NULL: one panel after the other */
    /* Rows t of out, ld apart: n_cols of acc [n][CPU_PAIR], plus bias [n_cols] unless NULL. */
    void (*store_sums)(const float *acc, const float *bias, uint32_t n, uint32_t n_cols, float *out,
                       size_t ld);
    /* linear, f32; expand: the exact weights of unpacked blocks, [32 * n_blocks][16] */
    void (*expand)(const cpu_format *f, const cpu_ublock *w, uint32_t n_blocks, float *panel);
    void (*fgemm)(const cpu_fgemm_args *a);
    /* the cache's types */
    void (*widen_f16)(const uint16_t *src, float *dst, size_t n);
    void (*narrow_f16)(const float *src, uint16_t *dst, size_t n);
    /* of q8_0: whole blocks of 32, a scale each */
    void (*quantize_q8)(const float *src, uint32_t n, int8_t *q, uint16_t *scales);
    void (*widen_q8)(const int8_t *q, const float *scales, float *dst, size_t n);
    /* An orthogonal matrix times x, n a multiple of 32: the same of a query and a key changes no
     * product of the two, but spreads what a few of their values are larger by. */
    void (*hadamard)(const float *x, float *out, uint32_t n);
    /* row-wise; x and out may be the same */
    void (*quantize)(const float *x, uint32_t cols, cpu_xblock *out, size_t stride);
    void (*rms_norm)(const float *x, const float *w, float *out, uint32_t n, float eps);
    void (*glu)(const float *x, const float *y, float *out, uint32_t n, dev_activation act);
    void (*add)(const float *x, const float *y, float *out, uint32_t n);
    void (*scale)(const float *x, float s, float *out, uint32_t n);
    void (*softcap)(const float *x, float cap, float *out, uint32_t n);
    void (*rope_neox)(float *x, const float *cosine, const float *sine, uint32_t half);
    void (*rope_pairs)(float *x, const float *cosine, const float *sine, uint32_t half);
    /* Queries q [n] -> [head_dim] in the order in which attend reads them: out [n * head_dim]. */
    void (*pack_queries)(const float *const *q, uint32_t n, uint32_t head_dim, float *out);
    void (*attend)(const cpu_span_args *a);
    bool fetches;
    /* Adds a partial to a running one (l = 0 at first): the merge in span order. */
    void (*merge)(float *m, float *l, float *o, float m2, float l2, const float *o2, uint32_t n);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_portable;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_zen; /* zen: of AMD */
#elif defined(__aarch64__)
extern const cpu_kernels cpu_kernels_neon, cpu_kernels_i8mm;
#endif

/* What a machine has, of that which paths need. */
typedef struct {
    bool avx2;        /* and FMA, F16C, BMI2 */
    bool avx512;      /* F, BW, VL and DQ */
    bool avx512_vnni; /* vpdpbusd on 512 bits */
    bool zen;         /* AMD's: has other preferences among the forms of avx512 */
    bool dotprod;     /* of NEON: sdot */
    bool i8mm;        /* usmmla */
} cpu_features;

#define CPU_MAX_PATHS 3

cpu_features cpu_features_here(void);
/* The paths of such a machine, the best first; how many. The last is portable. */
int cpu_paths(cpu_features f, const cpu_kernels *out[CPU_MAX_PATHS]);
/* The path named (NULL: the best here); RIDGE_EUNSUPPORTED when this machine lacks it. */
ridge_status cpu_kernels_choose(const cpu_kernels **out, const char *isa,
                                ridge_error *err) RIDGE_CHECKED;

struct dev_weight {
    quant_type type;
    uint32_t rows, cols;
    const uint8_t *file; /* [rows][row_bytes] */
    size_t row_bytes;
    const cpu_format *format; /* NULL: not an integer format */
    uint8_t *packed;          /* [n_panels][panel_bytes]; NULL: vectors, and what is embed only */
    size_t panel_bytes, packed_bytes;
    float *vector; /* rows == 1: [cols] in f32; else NULL */
};

struct dev_kv {
    dev_kv_layout layout;
    struct {
        /* [n_blocks / together][n_layers][n_kv_heads][together][block_size / lanes] runs */
        uint8_t *data;
        size_t block_bytes, bytes;
    } groups[DEV_MAX_GROUPS];
    uint32_t lanes;    /* tokens of a run: 16, or block_size if no multiple of it */
    uint32_t together; /* blocks of neighbouring numbers that lie among each other; n_blocks is
                          rounded up to a multiple of it */
};

/* Weights smaller than a few huge pages lie next to each other in one of these; they live as long
 * as the device does. */
typedef struct cpu_region cpu_region;

typedef struct {
    device base;
    cpu_region *regions;
    const cpu_kernels *kernels;
    team *team; /* of as many as the larger count says */
    int n_threads, n_threads_batch;
    bool precise;
    dev_account account;
} cpu_device;

/* Of the team, in a step of so many tokens. */
static inline int cpu_n_members(const cpu_device *d, uint32_t n_tokens) {
    return n_tokens <= DEV_FEW_TOKENS ? d->n_threads : d->n_threads_batch;
}

/* Is a product with w made of int8 activations? Else in f32. */
static inline bool cpu_is_integer(const cpu_device *d, const dev_weight *w) {
    return w->format != NULL && !d->precise;
}

/* kv.c */
ridge_status cpu_kv_create(device *d, dev_kv **out, const dev_kv_layout *layout, ridge_error *err);
void cpu_kv_free(device *d, dev_kv *kv);
void cpu_kv_copy(device *d, dev_kv *kv, uint32_t group, int32_t from, int32_t to,
                 uint32_t n_tokens);
void cpu_kv_read_block(device *d, const dev_kv *kv, uint32_t group, int32_t block, void *to);
void cpu_kv_write_block(device *d, dev_kv *kv, uint32_t group, int32_t block, const void *from);
/* Token `position` of a sequence: k and v [n_kv_heads * head_dim]. scratch: [2 * head_dim]. */
void cpu_kv_write(const cpu_kernels *kernels, dev_kv *kv, uint32_t group, uint32_t layer,
                  const int32_t *blocks, uint32_t position, const float *k, const float *v,
                  float *scratch);
/* Where tokens [begin, end) of one KV head lie, for cpu_span_args: k, v [CPU_SPAN / 16] pointers,
 * those of the 16 tokens that begin lies in at begin % 256 / 16. In the pool itself where its form
 * allows; widened to f32 in key and value [256 * head_dim] where `widen` says that it pays, or
 * where the pool's blocks are no multiple of 16. But the keys of q8_0 are always panels of 16 rows
 * of Q8_0 weights. No block is looked up but those of [begin, end), and of the pool nothing is read
 * that stays where it is. */
typedef struct {
    const void *k[CPU_SPAN / 16], *v[CPU_SPAN / 16];
    dev_kv_type type;
} cpu_kv_span;
void cpu_kv_view(const cpu_kernels *kernels, const dev_kv *kv, uint32_t group, uint32_t layer,
                 const int32_t *blocks, uint32_t kv_head, uint32_t begin, uint32_t end, bool widen,
                 float *key, float *value, cpu_kv_span *out);
/* What is to be asked for ahead, one after the other: of such tokens keys and values, or those
 * alone. Nothing where the pool's blocks are no multiple of 16. */
typedef enum { CPU_KV_BOTH, CPU_KV_KEYS, CPU_KV_VALUES } cpu_kv_part;
void cpu_kv_ahead(const dev_kv *kv, uint32_t group, uint32_t layer, const int32_t *blocks,
                  uint32_t kv_head, uint32_t begin, uint32_t end, cpu_kv_part part,
                  cpu_ahead *ahead);
/* The scales of the values of such tokens [begin, end), where their type is still q8_0: in
 * [256][head_dim / 32] those of a token at its place in the span. */
void cpu_kv_scales(const cpu_kernels *kernels, const cpu_kv_span *span, uint32_t dim,
                   uint32_t begin, uint32_t end, float *scales);

/* compile.c and run.c */
typedef enum {
    CPU_OP_QUANTIZE = DEV_SEND + 1, /* in[0] -> the quantised input of the next linear */
    CPU_OP_ROPE_TABLE,              /* cos and sin of the row's position */
    CPU_OP_MERGE                    /* partials of the attention before -> out[0] */
} cpu_op_kind;

typedef struct {
    int kind; /* dev_op_kind or cpu_op_kind */
    dev_op op;
    uint32_t rope_table; /* DEV_ROPE, CPU_OP_ROPE_TABLE */
    uint8_t x_in;        /* linear: the quantised input that it reads; quantize: that it writes */
    bool glu; /* linear: of gate and up, whose product goes quantised to the other input */
} cpu_op;

typedef enum { CPU_STEP_ROWS, CPU_STEP_LINEAR, CPU_STEP_ATTENTION } cpu_step_kind;

/* Between two barriers: a run of row-wise operations, or one linear or attention. */
typedef struct {
    cpu_step_kind kind;
    uint32_t first_op, n_ops;
    /* what it took so far, for profile */
    uint64_t n_runs;
    double seconds, flops, bytes;
} cpu_step;

typedef struct {
    float *data; /* [rows, ld]; NULL: the caller's logits */
    uint32_t width, ld;
} cpu_value;

typedef struct {
    const float *inv_freq;
    uint32_t n_pairs;
    float mscale;
    float *cosine, *sine; /* [max_tokens, n_pairs] */
} cpu_rope;

#define CPU_MAX_ROPES 8

typedef struct {
    float *panel;       /* [max_cols][16]: a panel in f32 */
    cpu_ublock *blocks; /* [2][CPU_K_BLOCKS]: two panels' chunks, unpacked */
    float *acc[2];      /* [CPU_TOKENS][CPU_PAIR]: what two panels have summed up */
    float *k, *v;       /* [256 * max_head_dim] each: a staged span */
    float *scales;      /* [256 * max_head_dim / 32] of its values */
    cpu_xblock *x;      /* [CPU_QUERIES * max_head_dim / 32]: queries, quantised */
    float *queries;     /* [CPU_QUERIES * max_head_dim]: packed */
    float *scores;      /* [CPU_QUERIES][256] */
    float *partial;     /* [CPU_QUERIES][max_head_dim] */
    float *state;       /* [CPU_QUERIES][max_head_dim] */
    float *entry;       /* [2 * max_head_dim]: a key on its way into the cache */
} cpu_scratch;

#define CPU_QUERIES 64             /* (row, head) pairs of one attention task, at most */
#define CPU_NEAR_BYTES (192 << 10) /* of a span: two of them stay in the second-level cache */
#define CPU_WIDEN_QUERIES 8        /* beyond so many, keys and values are widened to f32 once */
#define CPU_MAX_SPLITS 8192        /* partials kept for attention split over spans */
#define CPU_SPLIT_ROWS 4           /* sequences with at most so many rows are split over spans */

/* How the attention of one sequence of the batch is shared out; n_spans of its whole context. */
typedef struct {
    bool split; /* by spans, whose partials are kept, rather than by rows */
    uint32_t n_spans;
    size_t first_partial; /* of split_*: [row][head][span] */
} cpu_seq;

struct dev_compiled {
    cpu_device *device;
    cpu_op *ops;
    size_t n_ops;
    cpu_step *steps; /* body [0, head_step), head [head_step, n_steps) */
    size_t n_steps, head_step;
    cpu_value *values;
    size_t n_values;
    uint32_t max_tokens, n_vocab;
    cpu_xblock *x[2]; /* quantised inputs: max_tokens * max_blocks each */
    cpu_rope ropes[CPU_MAX_ROPES];
    uint32_t n_ropes;
    uint32_t max_cols, max_head_dim, max_heads, n_embed_rows;
    cpu_scratch *scratch;      /* [team size] */
    float *split_ml, *split_o; /* [CPU_MAX_SPLITS][2], [CPU_MAX_SPLITS][max_head_dim] */
    cpu_seq *seqs;             /* [max_tokens] per sequence of this batch */
    uint32_t *rows;            /* [max_tokens] the sequence of each row */
    arena memory;

    /* the batch of the last submit */
    dev_batch batch;
    dev_kv *kv;
};

ridge_status cpu_compile(device *d, dev_compiled **out, const dev_program *p, uint32_t max_tokens,
                         ridge_error *err);
void cpu_compiled_free(device *d, dev_compiled *c);
ridge_status cpu_submit(device *d, dev_compiled *c, dev_kv *kv, const dev_batch *batch,
                        ridge_error *err);
size_t cpu_profile(device *d, dev_compiled *c, dev_profile_row *out, size_t max);
ridge_status cpu_head(device *d, dev_compiled *c, const uint32_t *rows, uint32_t n_rows,
                      float *logits, ridge_error *err);

#endif
