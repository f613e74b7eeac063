/* plan/dtype: how many bits the weights of a deployment have, and which unit multiplies them. */
#ifndef RIDGE_PLAN_DTYPE_H
#define RIDGE_PLAN_DTYPE_H

#include "model/model.h"
#include "roof/hardware.h"

/* Bits of a weight include its scales. Norms and biases are bf16 in any case, and too few to count
 * apart. */
typedef struct {
    const char *name; /* "bf16" */
    const char *note; /* what is told beside it; NULL: nothing */
    double bits;      /* of matrices, but for those of experts, and the embedding table and head */
    double expert_bits, table_bits;
    hardware_peak peak;
} plan_dtype;

/* RIDGE_ENOTFOUND: none is called so; the message lists those that are. */
ridge_status plan_dtype_find(plan_dtype *out, const char *name, ridge_error *err) RIDGE_CHECKED;
void plan_dtype_set_bits(plan_dtype *d, double bits); /* of all */

/* As a model was published (plan/models.h has what `name` may be): bf16, unless its config.json
 * says otherwise. *file: it is a file, which says it of each tensor, and *out is untouched.
 * RIDGE_EUNSUPPORTED: quantized in a way that is not known. */
ridge_status plan_dtype_published(plan_dtype *out, bool *file, const char *name,
                                  ridge_error *err) RIDGE_CHECKED;

/* Gives the matrices of a model on a counting device their bits, before its program is compiled;
 * the bytes of all its weights. */
double plan_dtype_apply(const plan_dtype *d, const model *m);

#endif
