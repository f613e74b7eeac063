/* cached_model: real models, where scripts/get-model has put them. */
#ifndef RIDGE_TESTS_CACHED_MODEL_H
#define RIDGE_TESTS_CACHED_MODEL_H

/* The path of a model in the cache ($RIDGE_HOME, default ~/.cache/ridge), until the next call;
 * NULL, with a message: it is absent. */
const char *cached_model(const char *name);

#endif
