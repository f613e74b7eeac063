/* cli/shape_path: see shape_path.h. */
#include "cli/shape_path.h"

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
