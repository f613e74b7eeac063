/* plan/dtype: see dtype.h. */
#include "plan/dtype.h"

#include <string.h>

#include "device/count/count.h"
#include "plan/models.h"

#define ALL(bits) bits, bits, bits

/* MXFP4 has a scale of 8 bits for 32 values (OCP, 2023), NVFP4 for 16, int4 as GPTQ and AWQ have it
 * one of 16 bits, and a zero, for 128. */
static const plan_dtype dtypes[] = {
    {"bf16", NULL, ALL(16), PEAK_16},    {"f16", NULL, ALL(16), PEAK_16},
    {"f32", NULL, ALL(32), PEAK_F32},    {"fp8", NULL, ALL(8), PEAK_FP8},
    {"int8", NULL, ALL(8), PEAK_INT8},   {"fp4", NULL, ALL(4.5), PEAK_FP4},
    {"mxfp4", NULL, ALL(4.25), PEAK_16}, {"int4", NULL, ALL(4.16), PEAK_16},
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

/* The scale of 32 bits that fp8 has for 128 x 128 values is too little to count. */
static const plan_dtype published[] = {
    [MODEL_PUBLISHED_16] = {"bf16", NULL, ALL(16), PEAK_16},
    [MODEL_PUBLISHED_FP8] = {"fp8", "as published; embedding and head bf16", 8, 8, 16, PEAK_FP8},
    [MODEL_PUBLISHED_MXFP4] = {"mxfp4", "as published: experts; all else bf16", 16, 4.25, 16,
                               PEAK_16},
};

ridge_status plan_dtype_find(plan_dtype *out, const char *name, ridge_error *err) {
    for (size_t i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i];
            return RIDGE_OK;
        }
    return RIDGE_FAIL(err, RIDGE_ENOTFOUND,
                      "type '%.40s' is not known; known are bf16, f16, f32, fp8, int8, fp4, mxfp4, "
                      "int4",
                      name);
}

void plan_dtype_set_bits(plan_dtype *d, double bits) {
    d->note = NULL;
    d->bits = d->expert_bits = d->table_bits = bits;
}

ridge_status plan_dtype_published(plan_dtype *out, bool *file, const char *name, ridge_error *err) {
    model_config c;
    RIDGE_TRY(plan_model_config(&c, file, name, err));
    if (*file) return RIDGE_OK;
    if (c.published == MODEL_PUBLISHED_OTHER)
        return RIDGE_FAIL(
            err, RIDGE_EUNSUPPORTED,
            "%.80s: quantization_config.quant_method '%s' is not known; known are fp8 "
            "and mxfp4, of others --dtype or --weight-bits says the bits",
            name, c.published_as);
    *out = published[c.published];
    return RIDGE_OK;
}

/* More bytes than with the bits of most. */
static double set(const dev_weight *w, double bits, double most) {
    return device_count_set_bits(w, bits) * (bits - most) / 8;
}

double plan_dtype_apply(const plan_dtype *d, const model *m) {
    double bytes = (double)m->n_parameters * d->bits / 8;
    bytes += set(m->embedding, d->table_bits, d->bits);
    if (m->head != m->embedding) bytes += set(m->head, d->table_bits, d->bits);
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const model_layer *l = &m->layers[i];
        if (l->moe.router == NULL) continue;
        const dev_weight *experts[] = {l->gate, l->up, l->down};
        for (int w = 0; w < 3; w++) bytes += set(experts[w], d->expert_bits, d->bits);
    }
    return bytes;
}
