/* cli/shape_args: which model --model means where its shape is enough, and in which precision:
 * flags of `ridge plan` and `ridge sim`. */
#ifndef RIDGE_CLI_SHAPE_ARGS_H
#define RIDGE_CLI_SHAPE_ARGS_H

#include "plan/dtype.h"

/* What plan_model_open (plan/models.h) takes: a name that is neither a file nor built in becomes
 * the path of a model in the cache, if it is one there. Owned (mem_free). */
ridge_status shape_path(char **out, const char *name, ridge_error *err) RIDGE_CHECKED;

#define SHAPE_DTYPE_HELP                                                                           \
    "of weights: bf16, f32, fp8, int8, fp4, mxfp4, int4 (default: as the model was published)"

/* --dtype, and --weight-bits in place of its bits (NAN: not given), of that model. *file: weights
 * are as the file at `path` has them; then *out is left as it is. */
ridge_status shape_dtype(plan_dtype *out, bool *file, const char *path, const char *dtype,
                         double weight_bits, ridge_error *err) RIDGE_CHECKED;

#endif
