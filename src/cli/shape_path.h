/* cli/shape_path: which model --model means where its shape is enough: of `ridge plan` and `ridge
 * sim`. */
#ifndef RIDGE_CLI_SHAPE_PATH_H
#define RIDGE_CLI_SHAPE_PATH_H

#include "base/error.h"

/* What plan_model_open (plan/models.h) takes: a name that is neither a file nor built in becomes
 * the path of a model in the cache, if it is one there. Owned (mem_free). */
ridge_status shape_path(char **out, const char *name, ridge_error *err) RIDGE_CHECKED;

#endif
