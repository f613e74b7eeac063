/* model/hf_config: a model's shape from the config.json that Hugging Face repositories have.
 *
 * Only what decides the program and its costs is read: sizes, heads, windows, experts; of rope no
 * more than its base; how the weights are quantized. Enough for model_open_shape, not for
 * computing. Errors name the key, what was found and what is allowed; RIDGE_EUNSUPPORTED: a
 * model_type that isn't known, or a form of it.
 */
#ifndef RIDGE_MODEL_HF_CONFIG_H
#define RIDGE_MODEL_HF_CONFIG_H

#include "model/config.h"

#define HF_CONFIG_MAX_BYTES (1u << 20)

ridge_status hf_config_read(model_config *out, const char *json, size_t n,
                            ridge_error *err) RIDGE_CHECKED;
const char *hf_config_types(void); /* "llama, mistral, ...": the values of model_type */

#endif
