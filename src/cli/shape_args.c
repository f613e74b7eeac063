/* cli/shape_args: see shape_args.h. */
#include "cli/shape_args.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "plan/models.h"

ridge_status shape_path(char **out, const char *name, ridge_error *err) {
    struct stat st;
    model_config unused;
    if (stat(name, &st) != 0 && plan_model_find(&unused, name, NULL) != RIDGE_OK &&
        cli_model_path(out, name, NULL) == RIDGE_OK)
        return RIDGE_OK;
    *out = mem_strdup(name);
    return *out != NULL ? RIDGE_OK : RIDGE_FAIL(err, RIDGE_ENOMEM, "model path");
}

ridge_status shape_dtype(plan_dtype *out, bool *file, const char *path, const char *dtype,
                         double weight_bits, ridge_error *err) {
    bool published = strcmp(dtype, "auto") == 0;
    *file = false;
    if (!published) RIDGE_TRY(plan_dtype_find(out, dtype, err));
    if (isnan(weight_bits))
        return published ? plan_dtype_published(out, file, path, err) : RIDGE_OK;
    RIDGE_TRY(cli_real(&weight_bits, "weight-bits", weight_bits, 0.1, 64, err));
    plan_dtype_set_bits(out, weight_bits);
    return RIDGE_OK;
}
