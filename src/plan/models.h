/* plan/models: the models whose shapes are known without a file, and shapes from elsewhere. */
#ifndef RIDGE_PLAN_MODELS_H
#define RIDGE_PLAN_MODELS_H

#include "base/buf.h"
#include "model/model.h"

/* A model on a device that counts (device/count/count.h). `name`: one of the built-in names; a
 * config.json, or a folder that holds one; or a .gguf file, of which the header is read. */
typedef struct {
    model *model;
    gguf *file; /* NULL: a shape */
} plan_model;

/* The shape that a name, a config.json or a folder says. *file: it is a .gguf file, and *out is
 * untouched. */
ridge_status plan_model_config(model_config *out, bool *file, const char *name,
                               ridge_error *err) RIDGE_CHECKED;
ridge_status plan_model_open(plan_model *out, const char *name, device *dev,
                             ridge_error *err) RIDGE_CHECKED;
void plan_model_close(plan_model *m);

/* RIDGE_ENOTFOUND: none is called so; the message lists those that are. */
ridge_status plan_model_find(model_config *out, const char *name, ridge_error *err) RIDGE_CHECKED;
/* Of the built-in ones: name and where its config.json stands; NULL past the last. */
const char *plan_model_name(size_t i);
const char *plan_model_source(size_t i);

#endif
