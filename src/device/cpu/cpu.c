/* device/cpu: the device's life: its team; uploading weights. */
#include "base/cpus.h"
#include "device/cpu/cpu_internal.h"

/* Memory of many small weights: a map of each would be on small pages, over which neither the
 * hardware nor the kernels fetch ahead well. */
#define REGION_BYTES ((size_t)32 << 20)
#define REGION_LARGEST ((size_t)8 << 20) /* what is larger gets a map of its own */

struct cpu_region {
    cpu_region *next;
    uint8_t *data; /* [REGION_BYTES] */
    size_t used;
};

static bool in_region(size_t packed_bytes) {
    return packed_bytes <= REGION_LARGEST;
}

static uint8_t *region_take(cpu_device *d, size_t bytes) {
    bytes = (bytes + 63) & ~(size_t)63;
    cpu_region *r = d->regions;
    if (r == NULL || REGION_BYTES - r->used < bytes) {
        r = mem_zalloc(1, sizeof *r);
        if (r != NULL) r->data = mem_map(REGION_BYTES);
        if (r == NULL || r->data == NULL) {
            mem_free(r);
            return NULL;
        }
        r->next = d->regions;
        d->regions = r;
    }
    r->used += bytes;
    return r->data + r->used - bytes;
}

static void cpu_destroy(device *d) {
    cpu_device *cpu = (cpu_device *)d;
    for (cpu_region *r = cpu->regions, *next; r != NULL; r = next) {
        next = r->next;
        mem_unmap(r->data, REGION_BYTES);
        mem_free(r);
    }
    team_destroy(cpu->team);
    mem_free(cpu);
}

static void cpu_weight_free(device *d, dev_weight *w) {
    (void)d;
    if (w == NULL) return;
    if (!in_region(w->packed_bytes)) mem_unmap(w->packed, w->packed_bytes);
    mem_free(w->vector);
    mem_free(w);
}

/* Panels [begin, end) of a weight. */
typedef struct {
    team *team;
    dev_weight *w;
    uint32_t begin, end;
} pack_job;

#define PANELS_PER_CHUNK 16

static void pack_member(void *context, int member, int n_members) {
    const pack_job *j = context;
    dev_weight *w = j->w;
    (void)n_members;
    uint32_t n_chunks = (j->end - j->begin + PANELS_PER_CHUNK - 1) / PANELS_PER_CHUNK;
    team_cursor work = team_work(j->team, member, n_chunks);
    for (uint32_t chunk; team_next(&work, &chunk);) {
        uint32_t first = j->begin + chunk * PANELS_PER_CHUNK;
        for (uint32_t p = first; p < first + PANELS_PER_CHUNK && p < j->end; p++) {
            uint32_t row = p * CPU_PANEL, left = w->rows - row;
            uint32_t n_rows = left < CPU_PANEL ? left : CPU_PANEL;
            const uint8_t *rows = w->file + row * w->row_bytes;
            uint8_t *panel = w->packed + p * w->panel_bytes;
            if (w->format != NULL)
                cpu_pack_panel(w->format, rows, w->row_bytes, n_rows, w->cols, panel);
            else
                cpu_pack_float_panel(quant_block_bytes(w->type), rows, w->row_bytes, n_rows,
                                     w->cols, panel);
        }
    }
}

/* An output head may be most of a model: in so many bytes at a time, so that it is never in memory
 * twice, as the file has it and packed. */
#define PACK_BYTES ((size_t)16 << 20)

static ridge_status pack(cpu_device *d, dev_weight *w, ridge_error *err) {
    uint32_t n_panels = w->rows / CPU_PANEL + (w->rows % CPU_PANEL != 0);
    w->panel_bytes = w->format != NULL ? cpu_panel_bytes(w->format, w->cols)
                                       : (size_t)w->cols * CPU_PANEL * quant_block_bytes(w->type);
    if (mem_mul(w->panel_bytes, n_panels, &w->packed_bytes))
        w->packed =
            in_region(w->packed_bytes) ? region_take(d, w->packed_bytes) : mem_map(w->packed_bytes);
    if (w->packed == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "weights of %u x %u", w->rows, w->cols);
    uint32_t step = (uint32_t)(PACK_BYTES / w->panel_bytes) + 1;
    for (uint32_t begin = 0, end; begin < n_panels; begin = end) {
        end = n_panels - begin < step ? n_panels : begin + step;
        team_run_pieces(d->team, pack_member,
                        &(pack_job){.team = d->team, .w = w, .begin = begin, .end = end});
        size_t row = (size_t)begin * CPU_PANEL, end_row = (size_t)end * CPU_PANEL;
        if (end_row > w->rows) end_row = w->rows;
        if (d->base.on_packed != NULL)
            d->base.on_packed(d->base.on_packed_context, w->file + row * w->row_bytes,
                              (end_row - row) * w->row_bytes);
    }
    return RIDGE_OK;
}

static ridge_status cpu_weight_upload(device *d, dev_weight **out, quant_type type,
                                      const void *data, uint32_t rows, uint32_t cols,
                                      bool embed_only, ridge_error *err) {
    cpu_device *cpu = (cpu_device *)d;
    uint32_t block = quant_name(type) != NULL ? quant_block_values(type) : 0;
    if (block == 0 || rows == 0 || cols == 0 || cols % block != 0 || data == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "weight %u x %u of type %d", rows, cols, (int)type);
    dev_weight *w = mem_zalloc(1, sizeof *w);
    if (w == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "weight");
    w->type = type;
    w->rows = rows;
    w->cols = cols;
    w->file = data;
    w->row_bytes = (size_t)(cols / block) * quant_block_bytes(type);
    ridge_status status = RIDGE_OK;
    if (rows == 1) {
        w->vector = mem_alloc((size_t)cols * sizeof(float));
        if (w->vector != NULL)
            quant_dequantize(type, data, w->vector, cols);
        else
            status = RIDGE_FAIL(err, RIDGE_ENOMEM, "vector of %u", cols);
    } else if (!embed_only) {
        w->format = cpu_format_find(type);
        status = pack(cpu, w, err);
    }
    if (status != RIDGE_OK) {
        cpu_weight_free(d, w);
        return status;
    }
    *out = w;
    return RIDGE_OK;
}

static ridge_status cpu_wait(device *d, ridge_error *err) {
    (void)d;
    (void)err;
    return RIDGE_OK; /* submit runs on the calling thread and its team */
}

static void cpu_account(const device *d, dev_account *out) {
    *out = ((const cpu_device *)d)->account;
}

typedef struct {
    team *team;
    uint32_t n;
    dev_share_fn fn;
    void *context;
} share_job;

static void share_member(void *context, int member, int n_members) {
    const share_job *j = context;
    (void)n_members;
    team_cursor work = team_work(j->team, member, j->n);
    for (uint32_t i; team_next(&work, &i);) j->fn(j->context, member, i);
}

static void cpu_share(device *d, uint32_t n, dev_share_fn fn, void *context) {
    cpu_device *cpu = (cpu_device *)d;
    int most = cpu_n_members(cpu, n);
    int n_members = n < (uint32_t)most ? (int)n : most;
    if (n_members > 1)
        team_run_first(cpu->team, n_members, share_member, &(share_job){cpu->team, n, fn, context});
    else
        for (uint32_t i = 0; i < n; i++) fn(context, 0, i);
}

static const device_vtable vtable = {
    .destroy = cpu_destroy,
    .weight_upload = cpu_weight_upload,
    .weight_free = cpu_weight_free,
    .kv_create = cpu_kv_create,
    .kv_free = cpu_kv_free,
    .kv_copy = cpu_kv_copy,
    .kv_read_block = cpu_kv_read_block,
    .kv_write_block = cpu_kv_write_block,
    .compile = cpu_compile,
    .compiled_free = cpu_compiled_free,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .head = cpu_head,
    .share = cpu_share,
    .account = cpu_account,
    .profile = cpu_profile,
};

/* The team, of as many members as the larger count says, pinned where that is asked for. */
static ridge_status make_team(cpu_device *d, const device_cpu_params *p, ridge_error *err) {
    cpu_list cpus = {0};
    if (p->cpu_affinity != NULL) RIDGE_TRY(cpus_choose(&cpus, "", p->cpu_affinity, err));
    int usable = cpus_usable();
    if (cpus.n > 0 && cpus.n < usable) usable = cpus.n;
    d->n_threads = p->n_threads > 0 ? p->n_threads : usable;
    d->n_threads_batch = p->n_threads_batch > 0 ? p->n_threads_batch : d->n_threads;
    int n = device_cpu_threads(&d->base);
    ridge_status status = RIDGE_OK;
    if (p->cpu_affinity != NULL && cpus.n < n)
        status = RIDGE_FAIL(err, RIDGE_EINVAL, "processors '%s': %d for %d threads",
                            p->cpu_affinity, cpus.n, n);
    if (status == RIDGE_OK) status = team_create(&d->team, n, err);
    if (status == RIDGE_OK && p->cpu_affinity != NULL) status = team_pin(d->team, cpus.ids, err);
    cpu_list_free(&cpus);
    return status;
}

ridge_status device_cpu_create(device **out, const device_cpu_params *p, ridge_error *err) {
    cpu_device *d = mem_zalloc(1, sizeof *d);
    if (d == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "device");
    d->base.vtable = &vtable;
    d->precise = p->precise;
    ridge_status status = cpu_kernels_choose(&d->kernels, p->isa, err);
    if (status == RIDGE_OK) status = make_team(d, p, err);
    if (status != RIDGE_OK) {
        cpu_destroy(&d->base);
        return status;
    }
    *out = &d->base;
    return RIDGE_OK;
}

const char *device_cpu_isa(const device *d) {
    return ((const cpu_device *)d)->kernels->isa;
}

uint32_t device_cpu_packed_tokens(const device *d) {
    return ((const cpu_device *)d)->kernels->max_packed;
}

int device_cpu_threads(const device *d) {
    const cpu_device *cpu = (const cpu_device *)d;
    return cpu->n_threads > cpu->n_threads_batch ? cpu->n_threads : cpu->n_threads_batch;
}
