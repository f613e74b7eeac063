/* cli/cmd_inspect: `ridge inspect MODEL`: what a model file holds, from its metadata alone.
 *
 * Works for every architecture (the keys ARCH.block_count and their like are general) and for
 * files that hold only a vocabulary. The figures are gathered into `facts`, then printed as a
 * table or as one JSON document.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "format/gguf.h"

/* Far above any model: beyond them a file is damaged or hostile. */
#define MAX_LAYERS 4096
#define MAX_WIDTH (1u << 20)
#define MAX_CONTEXT (UINT64_C(1) << 40)
#define MAX_LISTED 1024 /* elements of an array that are printed */
#define N_TYPES 64      /* ids of tensor types */

typedef struct {
    uint64_t n_tensors, parameters, bytes;
} type_row;

typedef struct {
    const gguf *g;
    char arch[64];
    uint64_t n_layers, n_embd, context, window;
    int64_t *n_head, *n_head_kv; /* [n_layers] */
    uint64_t kv_bytes_per_token; /* keys and values in f16, all layers */
    uint64_t kv_bytes_context;   /* the same for a full context */
    uint64_t parameters, weight_bytes;
    type_row types[N_TYPES]; /* by type id */
} facts;

/* ---- gathering ---- */

typedef struct {
    char text[128];
} key_name;

static key_name arch_key(const facts *f, const char *name) {
    key_name k;
    snprintf(k.text, sizeof k.text, "%s.%s", f->arch, name);
    return k;
}

/* *out keeps its value where the key is absent. */
static ridge_status get_count(const facts *f, const char *key, uint64_t limit, uint64_t *out,
                              ridge_error *err) {
    uint64_t v;
    if (!gguf_has(f->g, key, NULL)) return RIDGE_OK;
    if (!gguf_get_u64(f->g, key, &v))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': not a count", key);
    if (v > limit)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': %llu, expected at most %llu", key,
                          (unsigned long long)v, (unsigned long long)limit);
    *out = v;
    return RIDGE_OK;
}

/* A number for each layer: one for all, or an array of them. */
static ridge_status get_per_layer(const facts *f, const char *name, int64_t *out,
                                  const int64_t *otherwise, ridge_error *err) {
    key_name key = arch_key(f, name);
    size_t n;
    gguf_type type;
    uint64_t all = 0;
    if (gguf_get_array(f->g, key.text, &type, &n)) {
        if (n != f->n_layers || !gguf_array_i64(f->g, key.text, out, n))
            return RIDGE_FAIL(err, RIDGE_EFORMAT,
                              "key '%s': %zu element%s, expected %llu integers (one per layer)",
                              key.text, n, plural(n), (unsigned long long)f->n_layers);
    } else {
        RIDGE_TRY(get_count(f, key.text, MAX_WIDTH, &all, err));
        bool given = gguf_has(f->g, key.text, NULL);
        for (size_t i = 0; i < f->n_layers; i++)
            out[i] = given || otherwise == NULL ? (int64_t)all : otherwise[i];
    }
    for (size_t i = 0; i < f->n_layers; i++)
        if (out[i] < 0 || out[i] > MAX_WIDTH)
            return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': %lld in layer %zu", key.text,
                              (long long)out[i], i);
    return RIDGE_OK;
}

/* Layers without attention are sound only in an architecture that has another mixer. */
static bool may_have_no_heads(const facts *f) {
    return gguf_has(f->g, arch_key(f, "ssm.inner_size").text, NULL) ||
           gguf_has(f->g, arch_key(f, "ssm.state_size").text, NULL) ||
           gguf_has(f->g, arch_key(f, "wkv.head_size").text, NULL) ||
           gguf_has(f->g, arch_key(f, "shortconv.l_cache").text, NULL);
}

/* Values per head: given, else the embedding over the heads. */
static ridge_status head_size(const facts *f, const char *name, int64_t n_head, uint64_t *out,
                              ridge_error *err) {
    key_name key = arch_key(f, name);
    *out = 0;
    RIDGE_TRY(get_count(f, key.text, MAX_WIDTH, out, err));
    if (gguf_has(f->g, key.text, NULL) || n_head == 0) return RIDGE_OK;
    if (f->n_embd % (uint64_t)n_head != 0)
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "key '%s': %llu, not a multiple of the %lld heads of key '%s'",
                          arch_key(f, "embedding_length").text, (unsigned long long)f->n_embd,
                          (long long)n_head, arch_key(f, "attention.head_count").text);
    *out = f->n_embd / (uint64_t)n_head;
    return RIDGE_OK;
}

static ridge_status gather_heads(facts *f, ridge_error *err) {
    f->n_head = mem_zalloc(f->n_layers, sizeof *f->n_head);
    f->n_head_kv = mem_zalloc(f->n_layers, sizeof *f->n_head_kv);
    if (f->n_head == NULL || f->n_head_kv == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "%llu layers", (unsigned long long)f->n_layers);
    RIDGE_TRY(get_per_layer(f, "attention.head_count", f->n_head, NULL, err));
    RIDGE_TRY(get_per_layer(f, "attention.head_count_kv", f->n_head_kv, f->n_head, err));
    key_name key = arch_key(f, "attention.head_count");
    bool some = !gguf_has(f->g, key.text, NULL) || may_have_no_heads(f);
    for (size_t i = 0; i < f->n_layers && !some; i++) some = f->n_head[i] != 0;
    if (!some && f->n_layers > 0)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': 0, expected at least 1", key.text);
    return RIDGE_OK;
}

static ridge_status gather_cache(facts *f, ridge_error *err) {
    RIDGE_TRY(gather_heads(f, err));
    for (size_t i = 0; i < f->n_layers; i++) {
        uint64_t k, v;
        RIDGE_TRY(head_size(f, "attention.key_length", f->n_head[i], &k, err));
        RIDGE_TRY(head_size(f, "attention.value_length", f->n_head[i], &v, err));
        f->kv_bytes_per_token += (uint64_t)f->n_head_kv[i] * (k + v) * 2;
    }
    if (!mem_mul(f->kv_bytes_per_token, f->context, &f->kv_bytes_context))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': the cache passes 2^64 bytes",
                          arch_key(f, "context_length").text);
    return RIDGE_OK;
}

static ridge_status gather_shape(facts *f, ridge_error *err) {
    gguf_string arch;
    if (!gguf_get_string(f->g, "general.architecture", &arch))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "no key 'general.architecture'");
    if (arch.len == 0 || arch.len >= sizeof f->arch || memchr(arch.data, 0, arch.len) != NULL)
        return RIDGE_FAIL(err, RIDGE_EFORMAT,
                          "key 'general.architecture': a name of %zu bytes, expected 1 to %zu",
                          arch.len, sizeof f->arch - 1);
    memcpy(f->arch, arch.data, arch.len);
    RIDGE_TRY(get_count(f, arch_key(f, "block_count").text, MAX_LAYERS, &f->n_layers, err));
    RIDGE_TRY(get_count(f, arch_key(f, "embedding_length").text, MAX_WIDTH, &f->n_embd, err));
    RIDGE_TRY(get_count(f, arch_key(f, "context_length").text, MAX_CONTEXT, &f->context, err));
    return get_count(f, arch_key(f, "attention.sliding_window").text, MAX_CONTEXT, &f->window, err);
}

static void gather_tensors(facts *f) {
    for (size_t i = 0; i < gguf_n_tensors(f->g); i++) {
        const gguf_tensor *t = gguf_tensor_at(f->g, i);
        uint64_t n = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        type_row *row = &f->types[t->type];
        row->n_tensors++;
        row->parameters += n;
        row->bytes += t->size_bytes;
        f->parameters += n;
        f->weight_bytes += t->size_bytes;
    }
}

/* The vocabulary's arrays must agree with each other, and its ids lie inside it. */
static ridge_status check_array(const gguf *g, const char *key, gguf_type a, gguf_type b, size_t n,
                                const char *expected, ridge_error *err) {
    gguf_type type;
    size_t found;
    if (!gguf_has(g, key, NULL)) return RIDGE_OK;
    if (!gguf_get_array(g, key, &type, &found) || (type != a && type != b))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': expected an array of %s", key, expected);
    if (n != 0 && found != n)
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "key '%s': %zu element%s, expected %zu (the tokens)",
                          key, found, plural(found), n);
    return RIDGE_OK;
}

static ridge_status check_tokenizer(const facts *f, ridge_error *err) {
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                      "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.unknown_token_id"};
    const gguf *g = f->g;
    gguf_type type;
    size_t n = 0;
    RIDGE_TRY(check_array(g, "tokenizer.ggml.tokens", GGUF_STRING, GGUF_STRING, 0, "strings", err));
    if (!gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n)) return RIDGE_OK;
    RIDGE_TRY(check_array(g, "tokenizer.ggml.scores", GGUF_F32, GGUF_F32, n, "f32", err));
    RIDGE_TRY(check_array(g, "tokenizer.ggml.token_type", GGUF_I32, GGUF_U32, n, "i32", err));
    RIDGE_TRY(check_array(g, "tokenizer.ggml.merges", GGUF_STRING, GGUF_STRING, 0, "strings", err));
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        uint64_t id = 0;
        RIDGE_TRY(get_count(f, ids[i], n == 0 ? 0 : n - 1, &id, err));
    }
    return RIDGE_OK;
}

static ridge_status gather(facts *f, const gguf *g, ridge_error *err) {
    f->g = g;
    RIDGE_TRY(gather_shape(f, err));
    RIDGE_TRY(gather_cache(f, err));
    RIDGE_TRY(check_tokenizer(f, err));
    gather_tensors(f);
    return RIDGE_OK;
}

/* ---- printing ---- */

/* An f32 as its own shortest decimal: 1e-05, not the 9.999999747378752e-06 of its double. */
static double shortest(float x) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) return strtod(text, NULL);
    }
    return (double)x;
}

static void put_array(buf *b, const gguf *g, const char *key) {
    gguf_type type;
    size_t n;
    float reals[MAX_LISTED];
    int64_t integers[MAX_LISTED];
    if (!gguf_get_array(g, key, &type, &n)) return;
    bool are_integers = n <= MAX_LISTED && gguf_array_i64(g, key, integers, n);
    if (!are_integers && (n > MAX_LISTED || !gguf_array_f32(g, key, reals, n))) {
        buf_printf(b, "\"array of %zu\"", n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        buf_putc(b, i == 0 ? '[' : ',');
        if (are_integers)
            buf_printf(b, "%lld", (long long)integers[i]);
        else
            buf_json_double(b, shortest(reals[i]));
    }
    buf_puts(b, n == 0 ? "[]" : "]");
}

static void put_value(buf *b, const gguf *g, const char *key, gguf_type type) {
    double real = 0;
    bool flag = false;
    int64_t integer;
    uint64_t large = 0;
    gguf_string s;
    if (type == GGUF_ARRAY) {
        put_array(b, g, key);
    } else if (gguf_get_string(g, key, &s)) {
        buf_json_string(b, s.data, s.len);
    } else if (gguf_get_bool(g, key, &flag)) {
        buf_puts(b, flag ? "true" : "false");
    } else if (gguf_get_i64(g, key, &integer)) {
        buf_printf(b, "%lld", (long long)integer);
    } else if (gguf_get_u64(g, key, &large)) {
        buf_printf(b, "%llu", (unsigned long long)large);
    } else if (gguf_get_f64(g, key, &real)) {
        buf_json_double(b, type == GGUF_F32 ? shortest((float)real) : real);
    }
}

/* The key's value, after `name` in the style of the output; nothing where it is absent. */
static void put_key(buf *b, const facts *f, const char *key, const char *name, bool json) {
    gguf_type type;
    if (!gguf_has(f->g, key, &type)) return;
    if (json) {
        if (b->len > 0 && b->data[b->len - 1] != '{') buf_putc(b, ',');
        buf_json_string(b, name, strlen(name));
        buf_putc(b, ':');
    } else {
        buf_printf(b, "  %-32s ", name);
    }
    put_value(b, f->g, key, type);
    if (!json) buf_putc(b, '\n');
}

static void put_hyperparameters(buf *b, const facts *f, bool json) {
    size_t n = strlen(f->arch);
    for (size_t i = 0; i < gguf_n_keys(f->g); i++) {
        const char *key = gguf_key(f->g, i, NULL);
        if (strncmp(key, f->arch, n) == 0 && key[n] == '.') put_key(b, f, key, key + n + 1, json);
    }
}

static void put_tokenizer(buf *b, const facts *f, bool json) {
    static const char *const names[] = {
        "model",        "pre",          "add_bos_token", "add_eos_token",    "add_space_prefix",
        "bos_token_id", "eos_token_id", "eot_token_id",  "unknown_token_id", "padding_token_id"};
    static const char *const arrays[] = {"tokens", "merges"};
    char key[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(key, sizeof key, "tokenizer.ggml.%s", names[i]);
        put_key(b, f, key, names[i], json);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        gguf_type type;
        size_t n = 0;
        snprintf(key, sizeof key, "tokenizer.ggml.%s", arrays[i]);
        (void)gguf_get_array(f->g, key, &type, &n);
        if (json)
            buf_printf(b, "%s\"n_%s\":%zu", b->data[b->len - 1] == '{' ? "" : ",", arrays[i], n);
        else
            buf_printf(b, "  %-32s %zu\n", arrays[i], n);
    }
    bool has = gguf_has(f->g, "tokenizer.chat_template", NULL);
    buf_printf(b, json ? ",\"chat_template\":%s" : "  chat_template                    %s\n",
               json ? (has ? "true" : "false") : (has ? "yes" : "no"));
}

static void put_tensor_list(buf *b, const gguf *g, bool json) {
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (json) {
            buf_puts(b, i == 0 ? "{\"name\":" : ",{\"name\":");
            buf_json_string(b, t->name, strlen(t->name));
            buf_printf(b, ",\"type\":\"%s\",\"shape\":", quant_name(t->type));
        } else {
            buf_printf(b, "  %-40s %-7s ", t->name, quant_name(t->type));
        }
        for (int d = 0; d < t->n_dims; d++)
            buf_printf(b, "%s%llu", d == 0 ? "[" : ",", (unsigned long long)t->dims[d]);
        buf_printf(b, json ? "],\"bytes\":%zu}" : "] %zu bytes\n", t->size_bytes);
    }
}

static void put_json(buf *b, const facts *f, const char *path, bool list) {
    buf_puts(b, "{\"file\":");
    buf_json_string(b, path, strlen(path));
    buf_printf(b, ",\"file_bytes\":%llu", (unsigned long long)gguf_file_bytes(f->g));
    put_key(b, f, "general.architecture", "architecture", true);
    put_key(b, f, "general.name", "name", true);
    buf_puts(b, ",\"hyperparameters\":{");
    put_hyperparameters(b, f, true);
    buf_puts(b, "},\"tokenizer\":{");
    put_tokenizer(b, f, true);
    buf_printf(b, "},\"n_tensors\":%zu,\"tensor_types\":[", gguf_n_tensors(f->g));
    bool first = true;
    for (size_t i = 0; i < N_TYPES; i++) {
        const type_row *row = &f->types[i];
        if (row->n_tensors == 0) continue;
        buf_printf(b, "%s{\"type\":\"%s\",\"n_tensors\":%llu,\"parameters\":%llu,\"bytes\":%llu}",
                   first ? "" : ",", quant_name((quant_type)i), (unsigned long long)row->n_tensors,
                   (unsigned long long)row->parameters, (unsigned long long)row->bytes);
        first = false;
    }
    buf_printf(b, "],\"parameters\":%llu,\"weight_bytes\":%llu", (unsigned long long)f->parameters,
               (unsigned long long)f->weight_bytes);
    buf_printf(b, ",\"kv_type\":\"f16\",\"kv_bytes_per_token\":%llu,\"context_length\":%llu",
               (unsigned long long)f->kv_bytes_per_token, (unsigned long long)f->context);
    buf_printf(b, ",\"kv_bytes_full_context\":%llu", (unsigned long long)f->kv_bytes_context);
    if (list) {
        buf_puts(b, ",\"tensors\":[");
        put_tensor_list(b, f->g, true);
        buf_putc(b, ']');
    }
    buf_puts(b, "}\n");
}

static double mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

static void put_text(buf *b, const facts *f, const char *path, bool list) {
    buf_printf(b, "%s: %.1f MiB\n", path, mib(gguf_file_bytes(f->g)));
    put_key(b, f, "general.architecture", "architecture", false);
    put_key(b, f, "general.name", "name", false);
    buf_puts(b, "\nhyper-parameters\n");
    put_hyperparameters(b, f, false);
    buf_puts(b, "\ntokenizer\n");
    put_tokenizer(b, f, false);
    buf_printf(b, "\n%-10s %8s %16s %12s %10s\n", "tensors", "number", "parameters", "MiB",
               "bits each");
    for (size_t i = 0; i < N_TYPES; i++) {
        const type_row *row = &f->types[i];
        if (row->n_tensors == 0) continue;
        buf_printf(b, "  %-8s %8llu %16llu %12.1f %10.2f\n", quant_name((quant_type)i),
                   (unsigned long long)row->n_tensors, (unsigned long long)row->parameters,
                   mib(row->bytes), 8.0 * (double)row->bytes / (double)row->parameters);
    }
    buf_printf(b, "  %-8s %8zu %16llu %12.1f\n", "all", gguf_n_tensors(f->g),
               (unsigned long long)f->parameters, mib(f->weight_bytes));
    if (list) put_tensor_list(b, f->g, false);
    buf_printf(b, "\ncache (f16)\n  %-32s %llu bytes\n", "per token",
               (unsigned long long)f->kv_bytes_per_token);
    buf_printf(b, "  %-32s %.1f MiB for %llu token%s\n", "full context", mib(f->kv_bytes_context),
               (unsigned long long)f->context, plural(f->context));
    if (f->window != 0)
        buf_printf(b, "  %-32s %llu token%s: layers with a window need no more\n", "sliding window",
                   (unsigned long long)f->window, plural((uint64_t)f->window));
}

static ridge_status inspect(const char *model, bool json, bool list, buf *out, ridge_error *err) {
    char *path = NULL;
    gguf *g = NULL;
    facts *f = mem_zalloc(1, sizeof *f);
    ridge_status status =
        f != NULL ? cli_model_path(&path, model, err) : RIDGE_FAIL(err, RIDGE_ENOMEM, "inspect");
    if (status == RIDGE_OK) status = gguf_open(&g, path, err);
    if (status == RIDGE_OK) status = gather(f, g, err);
    if (status == RIDGE_OK) {
        (json ? put_json : put_text)(out, f, path, list);
        if (out->failed) status = RIDGE_FAIL(err, RIDGE_ENOMEM, "inspect");
    } else {
        error_where(err, path != NULL ? path : model);
    }
    if (f != NULL) {
        mem_free(f->n_head);
        mem_free(f->n_head_kv);
    }
    mem_free(f);
    gguf_close(g);
    mem_free(path);
    return status;
}

int cmd_inspect(int argc, char **argv) {
    bool json = false, list = false;
    const cli_option options[] = {
        {"json", CLI_FLAG, &json, "one JSON document"},
        {"tensors", CLI_FLAG, &list, "list every tensor"},
    };
    static const char usage[] = "inspect MODEL [--json] [--tensors]";
    int n_args;
    int status = cli_parse(argc, argv, usage, options, sizeof options / sizeof *options, &n_args);
    if (status == CLI_OK) status = cli_count(usage, argv, n_args, 1, 1);
    if (status != CLI_OK) return status < 0 ? CLI_OK : status;
    ridge_error err = {0};
    buf out = {0};
    if (inspect(argv[0], json, list, &out, &err) != RIDGE_OK) {
        buf_free(&out);
        return cli_fail(&err);
    }
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return CLI_OK;
}
