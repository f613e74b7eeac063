/* tests/support/tiny_engine: see tiny_engine.h. */
#include "tiny_engine.h"

#include "unit.h"

engine_params tiny_engine_params(const char *path) {
    engine_params p = engine_params_default();
    p.model_path = path;
    p.n_threads = 1;
    p.max_model_len = TINY_N_CONTEXT;
    p.kv_cache_bytes = 64 << 20;
    p.checks = true;
    return p;
}

engine *tiny_engine_open(const engine_params *p) {
    engine *e = NULL;
    ridge_error err = {0};
    if (engine_open(&e, p, &err) != RIDGE_OK) fail_msg("%s: %s", err.where, err.text);
    return e;
}
