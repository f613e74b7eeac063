/* device/count: what it counts against what the cpu device says that it did, on the programs of
 * every architecture; against sums done by hand from published shapes; and its times against the
 * roofline. */
#include "unit.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cached_model.h"
#include "device/count/count.h"
#include "device_rig.h"
#include "model/model.h"
#include "roof/work.h"
#include "tiny_model.h"

#define MAX_TOKENS 64
#define BLOCK 16
#define MAX_SEQS 4

/* A model on a device, with a cache. */
typedef struct {
    device *d;
    gguf *file;
    model *m;
    dev_kv *kv;
    dev_compiled *c;
    uint32_t n_group_tokens;
    bool group_halves;
} rig;

static void near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) fail_msg("%.17g, expected %.17g", found, expected);
}

static device *counter(const count_params *p) {
    device *d = NULL;
    ridge_error err = {0};
    if (device_count_create(&d, p, &err) != RIDGE_OK) fail_msg("%s", err.text);
    return d;
}

static void prepare(rig *r, dev_kv_type type, uint32_t n_blocks, uint32_t max_tokens) {
    ridge_error err = {0};
    dev_kv_layout layout = {.n_groups = r->m->n_groups, .block_size = BLOCK, .type = type};
    for (uint32_t g = 0; g < layout.n_groups; g++) {
        layout.groups[g] = r->m->groups[g];
        layout.groups[g].n_blocks = n_blocks;
    }
    layout.groups[0].n_f16_layers = 1;
    const device_vtable *v = r->d->vtable;
    if (v->kv_create(r->d, &r->kv, &layout, &err) != RIDGE_OK ||
        v->compile(r->d, &r->c, &r->m->program, max_tokens, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
}

static rig open_file(device *d, const char *path, dev_kv_type type) {
    rig r = {.d = d};
    ridge_error err = {0};
    if (gguf_open(&r.file, path, &err) != RIDGE_OK ||
        model_open(&r.m, r.file, d, NULL, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
    prepare(&r, type, 40, MAX_TOKENS);
    return r;
}

static rig open_shape(device *d, const model_config *config) {
    rig r = {.d = d};
    ridge_error err = {0};
    if (model_open_shape(&r.m, config, d, &err) != RIDGE_OK) fail_msg("%s", err.text);
    prepare(&r, DEV_KV_F16, 1u << 20, 1u << 20);
    return r;
}

static void close_rig(rig *r) {
    r->d->vtable->compiled_free(r->d, r->c);
    r->d->vtable->kv_free(r->d, r->kv);
    model_close(r->m);
    gguf_close(r->file);
    r->d->vtable->destroy(r->d);
}

typedef struct {
    uint32_t n_seqs, n_wanted;
    struct {
        uint32_t n_rows, n_context;
    } seqs[MAX_SEQS];
} load;

static dev_account run(const rig *r, const load *l) {
    static int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS], table[64];
    float *logits = mem_alloc((size_t)DEV_HEAD_ROWS * r->m->config.n_vocab * sizeof *logits);
    dev_seq seqs[MAX_SEQS];
    uint32_t n = 0;
    for (uint32_t s = 0; s < l->n_seqs; s++) {
        seqs[s] = (dev_seq){.first_row = n,
                            .n_rows = l->seqs[s].n_rows,
                            .n_context = l->seqs[s].n_context,
                            .blocks = {table, table}};
        for (uint32_t i = 0; i < seqs[s].n_rows; i++, n++)
            positions[n] = (int32_t)(seqs[s].n_context - seqs[s].n_rows + i);
    }
    dev_batch batch = {.n_tokens = n,
                       .n_seqs = l->n_seqs,
                       .tokens = tokens,
                       .positions = positions,
                       .seqs = seqs,
                       .n_group_tokens = r->n_group_tokens,
                       .group_halves = r->group_halves};
    const uint32_t rows[DEV_HEAD_ROWS] = {0};
    ridge_error err = {0};
    const device_vtable *v = r->d->vtable;
    if (v->submit(r->d, r->c, r->kv, &batch, &err) != RIDGE_OK || v->wait(r->d, &err) != RIDGE_OK)
        fail_msg("%s", err.text);
    if (l->n_wanted > 0)
        assert_int_equal(v->head(r->d, r->c, rows, l->n_wanted, logits, &err), RIDGE_OK);
    mem_free(logits);
    dev_account a;
    v->account(r->d, &a);
    return a;
}

static const load loads[] = {
    {1, 0, {{7, 7}}},
    {1, 1, {{7, 7}}},
    {1, 1, {{1, 100}}},
    {1, 1, {{3, 12}}},
    {3, 3, {{1, 5}, {1, 17}, {1, 120}}},
    {4, 3, {{1, 9}, {20, 33}, {4, 104}, {11, 11}}},
};

static void compare_with_cpu(const char *path, dev_kv_type type) {
    rig cpu = open_file(open_device(NULL, 1, false), path, type);
    rig count = open_file(counter(&(count_params){0}), path, type);
    assert_int_equal(cpu.m->n_parameters, count.m->n_parameters);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        dev_account did = run(&cpu, &loads[i]), says = run(&count, &loads[i]);
        assert_true(did.flops > 0 && did.weight_bytes > 0 && did.kv_bytes > 0);
        near(says.flops, did.flops, 0);
        near(says.weight_bytes, did.weight_bytes, 0);
        near(says.kv_bytes, did.kv_bytes, 0);
        near(says.seconds, 0, 0);
    }
    close_rig(&cpu);
    close_rig(&count);
}

static void test_counts_what_the_cpu_does(void **state) {
    (void)state;
    static const dev_kv_type types[] = {DEV_KV_F16, DEV_KV_F32, DEV_KV_Q8_0};
    for (int kind = 0; tiny_kinds[kind] != NULL; kind++) {
        char *path = tiny_model_write(tiny_kinds[kind]);
        for (size_t t = 0; t < 3; t++) compare_with_cpu(path, types[t]);
        unlink(path);
        mem_free(path);
    }
}

static void test_counts_what_the_cpu_does_of_a_real_model(void **state) {
    (void)state;
    const char *path = cached_model("smollm2-135m");
    if (path == NULL) skip();
    compare_with_cpu(path, DEV_KV_F16);
}

/* Row by row, as the definition has it. */
static void test_tokens_seen_and_read(void **state) {
    (void)state;
    const uint32_t windows[] = {0, 1, 5, 16};
    for (size_t w = 0; w < 4; w++)
        for (uint32_t first = 0; first < 20; first++)
            for (uint32_t n = 1; n < 20; n++) {
                double seen = 0, read = 0;
                for (uint32_t j = 0; j < first + n; j++) {
                    bool any = false;
                    for (uint32_t i = first; i < first + n; i++) {
                        bool sees = j <= i && (windows[w] == 0 || i - j < windows[w]);
                        seen += sees;
                        any |= sees;
                    }
                    read += any;
                }
                near(work_seen_tokens(windows[w], first, n), seen, 0);
                near(work_read_tokens(windows[w], first, n), read, 0);
            }
}

/* Llama 3.1 8B: config.json of meta-llama/Llama-3.1-8B. */
static const model_config llama_8b = {.arch = ARCH_LLAMA,
                                      .n_vocab = 128256,
                                      .n_layers = 32,
                                      .n_embd = 4096,
                                      .n_ff = 14336,
                                      .n_heads = 32,
                                      .n_kv_heads = 8,
                                      .head_dim = 128,
                                      .n_context = 131072,
                                      .norm_eps = 1e-5f,
                                      .rope = {.base = 500000, .factor = 1, .n_rot = 128},
                                      .attn_scale = 0.088f,
                                      .embed_scale = 1};

#define PARAMETERS 8030261248.0 /* published: huggingface.co/meta-llama/Llama-3.1-8B */
#define EMBEDDING (128256.0 * 4096)
#define MATRICES (PARAMETERS - 2 * EMBEDDING - 65 * 4096) /* without the head; 65 norms */
#define KV_TOKEN 131072.0                                 /* bytes: 2 * 32 layers * 8 * 128 * 2 */

static void test_llama_by_hand(void **state) {
    (void)state;
    rig r = open_shape(counter(&(count_params){0}), &llama_8b);
    assert_int_equal(r.m->n_parameters, 8030261248);
    /* Decode of 2 at contexts of 100 and 50, both logits wanted. */
    dev_account a = run(&r, &(load){2, 2, {{1, 100}, {1, 50}}});
    near(a.weight_bytes, 2 * (PARAMETERS - EMBEDDING) + 2 * 2 * 4096, 0);
    near(a.kv_bytes, KV_TOKEN * (150 + 2), 0);
    near(a.flops, 2 * 2 * (MATRICES + EMBEDDING) + 32 * 4 * 4096.0 * 150, 0);
    /* A prompt of 60, its last logits wanted. */
    a = run(&r, &(load){1, 1, {{60, 60}}});
    near(a.kv_bytes, KV_TOKEN * (60 + 60), 0);
    near(a.flops, 2 * 60 * MATRICES + 2 * EMBEDDING + 32 * 4 * 4096.0 * (60 * 61 / 2), 0);
    close_rig(&r);
}

/* Two layers of DeepSeek-V3's shapes (arXiv 2412.19437, section 4.2), the second with experts. */
static model_config deepseek(void) {
    model_config c = llama_8b;
    c.arch = ARCH_DEEPSEEK2;
    c.n_layers = 2;
    c.n_embd = 7168;
    c.n_ff = 18432;
    c.n_heads = c.n_kv_heads = 128;
    c.latent =
        (model_latent){.rank = 512, .q_rank = 1536, .n_nope = 128, .n_rope = 64, .n_value = 128};
    c.rope.n_rot = 64;
    c.moe = (model_moe){
        .n_experts = 256, .top_k = 8, .n_ff = 2048, .n_ff_shared = 2048, .n_dense_layers = 1};
    return c;
}

#define EXPERT (3.0 * 7168 * 2048)
#define LATENT_LINEAR                                                                              \
    (7168.0 * 1536 + 1536.0 * 128 * 192 + 7168.0 * 576 + 128.0 * 128 * 7168) /* q, latent, out */
#define LATENT_UP (512.0 * 128 * (128 + 128))                                /* keys and values */
#define ROUTER (256.0 * 7168)
#define DENSE (3.0 * 7168 * 18432)
#define VOCAB (128256.0 * 7168)
#define NORMS (2.0 * (2 * 7168 + 1536 + 512) + 7168)

static void test_experts_and_latents_by_hand(void **state) {
    (void)state;
    model_config c = deepseek();
    rig r = open_shape(counter(&(count_params){0}), &c);
    double linear = 2 * LATENT_LINEAR + DENSE + ROUTER + EXPERT; /* the last: the shared one */
    near((double)r.m->n_parameters, linear + 2 * LATENT_UP + 256 * EXPERT + 2 * VOCAB + NORMS, 0);
    near((double)r.m->n_idle_parameters, 248 * EXPERT, 0);
    /* Decode of one: it takes 8 experts, and "absorbed" attention works on 512 + 64 and 512. */
    dev_account a = run(&r, &(load){1, 1, {{1, 1000}}});
    near(a.weight_bytes, 2 * (linear + 2 * LATENT_UP + 8 * EXPERT + VOCAB + NORMS + 7168), 1);
    near(a.kv_bytes, 2 * 576 * 2 * (1000.0 + 1), 0);
    near(a.flops,
         2 * (linear + 8 * EXPERT + VOCAB + 2 * LATENT_UP) +
             2 * 2 * 128.0 * 1000 * (512 + 64 + 512),
         1);
    /* Of two, 256 (1 - (31/32)^2) = 15.75 experts are touched. */
    a = run(&r, &(load){2, 2, {{1, 10}, {1, 10}}});
    near(a.weight_bytes, 2 * (linear + 2 * LATENT_UP + 15.75 * EXPERT + VOCAB + NORMS + 2 * 7168),
         1);
    /* A prompt makes keys of 192 and values of 128 instead. */
    a = run(&r, &(load){1, 1, {{60, 60}}});
    near(a.flops,
         2 * 60 * (linear + 8 * EXPERT + 2 * LATENT_UP) + 2 * VOCAB +
             2 * 2 * 128.0 * (60 * 61 / 2) * (192 + 128),
         1);
    close_rig(&r);
}

/* Halves of everything but norms and KV latents, and what ranks tell each other. */
static void test_ranks(void **state) {
    (void)state;
    const efficiency_profile ideal = efficiency_ideal();
    const efficiency_peaks link = {.link_bytes_per_s = 1e9};
    const count_params p = {.profile = &ideal, .linear = link, .other = link};
    model_config part;
    assert_int_equal(
        model_config_split(&part, &llama_8b, &(model_split){.n_tensor = 4, .n_stages = 2}, NULL),
        RIDGE_OK);
    rig r = open_shape(counter(&p), &part);
    near((double)r.m->n_parameters, (MATRICES + 2 * EMBEDDING) / 4 + 65 * 4096, 0);
    dev_account a = run(&r, &(load){1, 1, {{10, 10}}});
    /* 65 sums of 10 rows of 4096 values of 16 bits, one rank sends 2 * 3/4 of that; the logits of
     * one row, 3/4; 10 rows once from stage to stage. */
    double expected = 65 * 1.5 * 10 * 4096 * 2 + 0.75 * 128256 * 2 + 10 * 4096 * 2;
    near(a.seconds, expected / 1e9, 1e-9);
    double bounds[ROOF_N_BOUNDS];
    device_count_bounds(r.d, bounds);
    near(bounds[ROOF_LINK], a.seconds, 1e-12);
    close_rig(&r);

    model_config c = deepseek();
    assert_int_equal(model_config_split(&part, &c, &(model_split){.n_expert = 32}, NULL), RIDGE_OK);
    r = open_shape(counter(&p), &part);
    /* One row here and on each of 31 others: their 32 * 8 choices touch these 8 of 256 experts. */
    a = run(&r, &(load){1, 0, {{1, 1}}});
    double touched = 8 * (1 - pow(31.0 / 32, 32));
    near(a.weight_bytes,
         2 * (2 * LATENT_LINEAR + DENSE + ROUTER + EXPERT + 2 * LATENT_UP + touched * EXPERT +
              NORMS),
         1);
    /* There and back, once to each of the 31 that has any of the row's 8. */
    near(a.seconds, 2 * 31 * (1 - pow(31.0 / 32, 8)) * 7168 * 2 / 1e9, 1e-12);
    /* 100 rows on all ranks together. */
    r.n_group_tokens = 100;
    a = run(&r, &(load){1, 0, {{1, 1000}}});
    touched = 8 * (1 - pow(31.0 / 32, 100));
    near(a.weight_bytes,
         2 * (2 * LATENT_LINEAR + DENSE + ROUTER + EXPERT + 2 * LATENT_UP + touched * EXPERT +
              NORMS),
         1);
    near(
        a.flops,
        2 * (2 * LATENT_LINEAR + DENSE + ROUTER + EXPERT + 2 * LATENT_UP + 100 * 8 / 32. * EXPERT) +
            2 * 2 * 128.0 * 1000 * (512 + 64 + 512),
        1);
    close_rig(&r);
}

/* 32 ranks on four nodes. A row goes once to each of three others that has any of its 8 experts, in
 * 8 bits, and comes back in 16; from there to 7 of 8 of the ranks that have. Both at once. */
static void test_nodes(void **state) {
    (void)state;
    const efficiency_profile ideal = efficiency_ideal();
    const efficiency_peaks link = {.link_bytes_per_s = 1e9};
    count_params p = {.profile = &ideal,
                      .linear = link,
                      .other = link,
                      .n_node = 8,
                      .network_bytes_per_s = 1e8,
                      .dispatch_bytes = 1};
    model_config part, c = deepseek();
    const double nodes = 3 * (1 - pow(3.0 / 4, 8)), ranks = 32 * (1 - pow(31.0 / 32, 8)) * 7 / 8;
    assert_int_equal(model_config_split(&part, &c, &(model_split){.n_expert = 32}, NULL), RIDGE_OK);
    rig r = open_shape(counter(&p), &part);
    near(run(&r, &(load){1, 0, {{10, 10}}}).seconds, 10 * 7168 * 3 * nodes / 1e8, 1e-12);
    close_rig(&r);
    p.network_bytes_per_s = 1e9;
    r = open_shape(counter(&p), &part);
    near(run(&r, &(load){1, 0, {{10, 10}}}).seconds, 10 * 7168 * 3 * ranks / 1e9, 1e-12);
    close_rig(&r);
    /* The busiest has 1.5 times the rows. */
    p.expert_imbalance = 1.5;
    r = open_shape(counter(&p), &part);
    near(run(&r, &(load){1, 0, {{10, 10}}}).seconds, 1.5 * 10 * 7168 * 3 * ranks / 1e9, 1e-12);
    close_rig(&r);

    /* Of 16 ranks a rank's link, or the ways out of eight; stages eight ranks apart, the network.
     */
    p = (count_params){
        .profile = &ideal, .linear = link, .other = link, .n_node = 8, .network_bytes_per_s = 1e8};
    assert_int_equal(
        model_config_split(&part, &llama_8b, &(model_split){.n_tensor = 16, .n_stages = 2}, NULL),
        RIDGE_OK);
    r = open_shape(counter(&p), &part);
    near(run(&r, &(load){1, 0, {{10, 10}}}).seconds,
         65 * 2 * 15 / 16.0 * 10 * 4096 * 2 / 8e8 + 10 * 4096 * 2 / 1e8, 1e-12);
    close_rig(&r);
}

/* n_seqs of n_rows each; none of their logits is wanted. */
static dev_account run_alike(const rig *r, uint32_t n_seqs, uint32_t n_rows) {
    dev_seq seqs[128];
    dev_account a;
    ridge_error err = {0};
    const dev_batch batch = {.n_tokens = n_seqs * n_rows,
                             .n_seqs = n_seqs,
                             .seqs = seqs,
                             .n_group_tokens = r->n_group_tokens,
                             .group_halves = r->group_halves};
    assert_in_range(n_seqs, 1, 128);
    for (uint32_t s = 0; s < n_seqs; s++)
        seqs[s] = (dev_seq){.first_row = s * n_rows, .n_rows = n_rows, .n_context = 2000};
    assert_int_equal(r->d->vtable->submit(r->d, r->c, r->kv, &batch, &err), RIDGE_OK);
    r->d->vtable->account(r->d, &a);
    return a;
}

static void check_halves(const model_config *part, count_params p, bool links) {
    const double link = p.linear.link_bytes_per_s;
    rig plain = open_shape(counter(&p), part);
    p.linear.link_bytes_per_s = p.other.link_bytes_per_s = 0; /* exchanges take no time */
    rig alone = open_shape(counter(&p), part);
    p.linear.link_bytes_per_s = p.other.link_bytes_per_s = link;
    p.halves = true;
    rig halved = open_shape(counter(&p), part);
    static const uint32_t loads_of_two[][2] = {{64, 1}, {4, 128}};
    for (size_t i = 0; i < 2; i++) {
        uint32_t n = loads_of_two[i][0], n_rows = loads_of_two[i][1];
        dev_account all = run_alike(&plain, n, n_rows), half = run_alike(&plain, n / 2, n_rows),
                    cut = run_alike(&halved, n, n_rows);
        double computed = 2 * run_alike(&alone, n / 2, n_rows).seconds;
        double exchanged = 2 * half.seconds - computed;
        /* Of two layers the one with experts has exchanges: two, in all four pieces of each half's
         * time beside them. */
        assert_true(links == (exchanged > computed / 2));
        double expected =
            computed / 2 + fmax(computed / 2, exchanged) + fmin(computed / 2, exchanged) / 4;
        near(cut.seconds, expected, 1e-9 * expected);
        near(cut.weight_bytes, 2 * half.weight_bytes, 1);
        near(cut.kv_bytes, all.kv_bytes, 1);
        near(cut.flops, all.flops, 1e-9 * all.flops);
        double bounds[ROOF_N_BOUNDS], sum = 0;
        device_count_bounds(halved.d, bounds);
        for (int b = 0; b < ROOF_N_BOUNDS; b++) sum += bounds[b];
        near(sum, cut.seconds, 1e-9 * sum);
        near(bounds[ROOF_LINK], links ? exchanged : fmin(computed / 2, exchanged) / 4,
             1e-9 * exchanged);
    }
    /* all ranks or none */
    halved.n_group_tokens = plain.n_group_tokens = 32 * 64;
    near(run_alike(&halved, 64, 1).seconds, run_alike(&plain, 64, 1).seconds, 0);
    halved.group_halves = true;
    assert_true(run_alike(&halved, 4, 1).weight_bytes > run_alike(&plain, 4, 1).weight_bytes);
    halved.n_group_tokens = plain.n_group_tokens = 0;
    /* fewer are not worth it */
    near(run_alike(&halved, 31, 1).seconds, run_alike(&plain, 31, 1).seconds, 0);
    near(run_alike(&halved, 1, 511).seconds, run_alike(&plain, 1, 511).seconds, 0);
    assert_true(run_alike(&halved, 1, 512).weight_bytes >
                1.5 * run_alike(&plain, 1, 512).weight_bytes);
    close_rig(&plain);
    close_rig(&alone);
    close_rig(&halved);
}

/* Rows of one half are on their way while the other computes. */
static void test_halves(void **state) {
    (void)state;
    const efficiency_profile ideal = efficiency_ideal();
    model_config part, c = deepseek();
    count_params p = {.profile = &ideal};
    assert_int_equal(model_config_split(&part, &c, &(model_split){.n_expert = 32}, NULL), RIDGE_OK);
    p.linear = p.other =
        (efficiency_peaks){.flops_per_s = 1e15, .bytes_per_s = 3e12, .link_bytes_per_s = 1e12};
    check_halves(&part, p, false);
    p.linear.link_bytes_per_s = p.other.link_bytes_per_s = 1e9;
    check_halves(&part, p, true);
}

/* DeepSeek-V3's decodes: 32 of 256 experts twice, two on each of 144 ranks. */
static void test_redundant_experts(void **state) {
    (void)state;
    model_config part, c = deepseek();
    ridge_error err = {0};
    assert_int_equal(model_config_split(&part, &c, &(model_split){.n_expert = 144}, &err),
                     RIDGE_EINVAL);
    assert_string_equal(err.text, "256 experts cannot be divided among 144 ranks; with 32 of them "
                                  "twice they can (--num-redundant-experts)");
    assert_int_equal(
        model_config_split(&part, &c, &(model_split){.n_expert = 144, .n_redundant = 32}, NULL),
        RIDGE_OK);
    rig r = open_shape(counter(&(count_params){0}), &part);
    /* Two experts and the shared one; 144 rows choose among 288. */
    dev_account a = run(&r, &(load){1, 0, {{1, 1}}});
    near(a.weight_bytes,
         2 * (2 * LATENT_LINEAR + DENSE + ROUTER + EXPERT + 2 * LATENT_UP +
              2 * (1 - pow(1 - 8 / 288., 144)) * EXPERT + NORMS),
         1);
    close_rig(&r);
    assert_int_equal(
        model_config_split(&part, &c, &(model_split){.n_expert = 2, .n_redundant = 300}, &err),
        RIDGE_EINVAL);
    assert_int_equal(model_config_split(&part, &c, &(model_split){.n_redundant = 32}, &err),
                     RIDGE_EINVAL);
}

static void test_what_cannot_be_split(void **state) {
    (void)state;
    static const struct {
        model_split split;
        const char *text;
    } cases[] = {
        {{.n_tensor = 3}, "32 heads cannot be divided among 3 ranks"},
        {{.n_expert = 2}, "no experts to divide among 2 ranks"},
        {{.n_stages = 33}, "32 layers in 33 stages"},
    };
    for (size_t i = 0; i < 3; i++) {
        model_config out;
        ridge_error err = {0};
        assert_int_equal(model_config_split(&out, &llama_8b, &cases[i].split, &err), RIDGE_EINVAL);
        assert_string_equal(err.text, cases[i].text);
    }
    model_config out;
    assert_int_equal(model_config_split(&out, &llama_8b, &(model_split){.n_tensor = 16}, NULL),
                     RIDGE_OK);
    assert_int_equal(out.n_kv_heads, 1); /* each on two ranks */
}

/* The cpu device says what it has no kernels for, and when: before it runs. */
static void test_cpu_refuses_what_is_only_counted(void **state) {
    (void)state;
    static const struct {
        dev_op_kind kind;
        const char *text;
    } cases[] = {{DEV_EXPERTS, "mixtures of experts"},
                 {DEV_LATENT_ATTENTION, "latent attention"},
                 {DEV_ALL_REDUCE, "several ranks"},
                 {DEV_SEND, "several ranks"}};
    device *cpu = open_device(NULL, 1, false);
    for (size_t i = 0; i < 4; i++) {
        dev_op op = {.kind = cases[i].kind, .in = {0, DEV_NONE}, .out = {0, DEV_NONE, DEV_NONE}};
        uint32_t width = 32;
        dev_program p = {.ops = &op, .n_ops = 1, .head_start = 1, .widths = &width, .n_values = 1};
        dev_compiled *compiled = NULL;
        ridge_error err = {0};
        assert_int_equal(cpu->vtable->compile(cpu, &compiled, &p, 1, &err), RIDGE_EUNSUPPORTED);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    cpu->vtable->destroy(cpu);
}

static void test_bits(void **state) {
    (void)state;
    rig r = open_shape(counter(&(count_params){.weight_bits = 4.5}), &llama_8b);
    dev_account a = run(&r, &(load){1, 1, {{1, 1}}});
    near(a.weight_bytes, 4.5 / 8 * (MATRICES + EMBEDDING + 4096) + 2 * 65 * 4096.0, 0);
    close_rig(&r);
}

static void test_times(void **state) {
    (void)state;
    const efficiency_profile ideal = efficiency_ideal();
    const efficiency_peaks h100 = {.flops_per_s = 989e12, .bytes_per_s = 3.35e12};
    const count_params p = {.profile = &ideal, .linear = h100, .other = h100};
    rig r = open_shape(counter(&p), &llama_8b);
    double bounds[ROOF_N_BOUNDS];
    /* One row waits for the memory in every operation. */
    dev_account a = run(&r, &(load){1, 1, {{1, 1000}}});
    near(a.seconds, (a.weight_bytes + a.kv_bytes) / 3.35e12, 1e-12);
    device_count_bounds(r.d, bounds);
    near(bounds[ROOF_MEMORY], a.seconds, 1e-12);
    /* A long prompt for the arithmetic, but where there is none or next to none. */
    dev_seq seq = {.n_rows = 8192, .n_context = 8192};
    dev_batch batch = {.n_tokens = 8192, .n_seqs = 1, .seqs = &seq};
    assert_int_equal(r.d->vtable->submit(r.d, r.c, r.kv, &batch, NULL), RIDGE_OK);
    r.d->vtable->account(r.d, &a);
    device_count_bounds(r.d, bounds);
    near(bounds[ROOF_COMPUTE], a.flops / 989e12, 1e-9);
    near(bounds[ROOF_COMPUTE] + bounds[ROOF_MEMORY], a.seconds, 1e-12);
    assert_true(bounds[ROOF_MEMORY] < 0.01 * a.seconds);
    /* The rows of the profile are the account. */
    dev_profile_row rows[32];
    size_t n = r.d->vtable->profile(r.d, r.c, rows, 32);
    n = r.d->vtable->profile(r.d, r.c, rows, 32);
    for (size_t i = 0; i < n; i++) assert_int_equal(rows[i].n, 0);
    assert_int_equal(r.d->vtable->submit(r.d, r.c, r.kv, &batch, NULL), RIDGE_OK);
    n = r.d->vtable->profile(r.d, r.c, rows, 32);
    double seconds = 0, flops = 0;
    for (size_t i = 0; i < n; i++) {
        seconds += rows[i].seconds;
        flops += rows[i].flops;
        if (strcmp(rows[i].name, "linear 4096 -> 14336 + 14336") == 0)
            assert_int_equal(rows[i].n, 32);
    }
    near(seconds, a.seconds, 1e-12);
    near(flops, a.flops, 1);
    close_rig(&r);
}

static void test_refusals(void **state) {
    (void)state;
    rig r = open_shape(counter(&(count_params){0}), &llama_8b);
    ridge_error err = {0};
    dev_seq seq = {.n_rows = 1, .n_context = 1};
    dev_batch batch = {.n_tokens = 0, .n_seqs = 0, .seqs = &seq};
    assert_int_equal(r.d->vtable->submit(r.d, r.c, r.kv, &batch, &err), RIDGE_EINVAL);
    batch = (dev_batch){.n_tokens = 1, .n_seqs = 2, .seqs = &seq};
    assert_int_equal(r.d->vtable->submit(r.d, r.c, r.kv, &batch, NULL), RIDGE_EINVAL);
    batch.n_seqs = 1;
    assert_int_equal(r.d->vtable->submit(r.d, r.c, r.kv, &batch, NULL), RIDGE_OK);
    assert_int_equal(r.d->vtable->head(r.d, r.c, NULL, 2, NULL, NULL), RIDGE_EINVAL);
    assert_int_equal(r.d->vtable->head(r.d, r.c, NULL, 1, NULL, NULL), RIDGE_OK);
    dev_op op = {.kind = DEV_LINEAR, .in = {0, DEV_NONE}, .out = {0, DEV_NONE, DEV_NONE}};
    uint32_t width = 1;
    dev_program bad = {.ops = &op, .n_ops = 1, .head_start = 1, .widths = &width, .n_values = 1};
    dev_compiled *c = NULL;
    assert_int_equal(r.d->vtable->compile(r.d, &c, &bad, 1, NULL), RIDGE_EINVAL);
    dev_weight *w = NULL;
    assert_int_equal(r.d->vtable->weight_upload(r.d, &w, QUANT_F16, NULL, 0, 4, false, NULL),
                     RIDGE_EINVAL);
    close_rig(&r);
    /* A device that computes cannot do without the numbers. */
    device *cpu = open_device(NULL, 1, false);
    assert_int_equal(cpu->vtable->weight_upload(cpu, &w, QUANT_F16, NULL, 2, 4, false, NULL),
                     RIDGE_EINVAL);
    cpu->vtable->destroy(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_what_the_cpu_does),
        cmocka_unit_test(test_counts_what_the_cpu_does_of_a_real_model),
        cmocka_unit_test(test_tokens_seen_and_read),
        cmocka_unit_test(test_llama_by_hand),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_experts_and_latents_by_hand),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_redundant_experts),
        cmocka_unit_test(test_what_cannot_be_split),
        cmocka_unit_test(test_cpu_refuses_what_is_only_counted),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
