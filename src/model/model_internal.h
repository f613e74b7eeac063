/* model/: the two halves of model_open. */
#ifndef RIDGE_MODEL_MODEL_INTERNAL_H
#define RIDGE_MODEL_MODEL_INTERNAL_H

#include "model/model.h"

/* weights.c: names to shapes to uploads; fills every pointer of m and of its layers. g NULL:
 * without data (model_open_shape). */
ridge_status model_load_weights(model *m, const gguf *g, const log_sink *log,
                                ridge_error *err) RIDGE_CHECKED;
/* forward.c: the program over those weights. */
ridge_status model_build_program(model *m, ridge_error *err) RIDGE_CHECKED;

#endif
