/* tests/support/tiny_engine: an engine on a tiny model. */
#ifndef RIDGE_TESTS_TINY_ENGINE_H
#define RIDGE_TESTS_TINY_ENGINE_H

#include "engine/engine.h"
#include "tiny_model.h"

/* One thread, the model's whole context, a large cache, all checks. */
engine_params tiny_engine_params(const char *path);
/* Fails the test where it cannot be opened. */
engine *tiny_engine_open(const engine_params *p);

#endif
