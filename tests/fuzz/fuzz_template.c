/* fuzz: a template of any bytes, parsed and rendered with a small conversation. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    template_limits limits = {
        .max_output_bytes = 1 << 16, .max_steps = 100000, .max_memory_bytes = 1 << 22};
    ridge_error err = {0};
    chat_template *t = NULL;
    buf out = {0};
    if (template_parse(&t, (const char *)data, size, "fuzz", &err) != RIDGE_OK) return 0;
    json_t *v = json_pack("{s:[{s:s,s:s},{s:s,s:n}],s:[i,i,f],s:s,s:{s:i},s:b}", "messages", "role",
                          "user", "content", "h\xC3\xA9 x", "role", "assistant", "content", "l", 3,
                          1, 2.5, "s", "Hello World", "d", "a", 1, "t", 1);
    if (v != NULL && template_render(t, v, 1721995200, &limits, &out, &err) == RIDGE_OK &&
        out.len > limits.max_output_bytes)
        __builtin_trap();
    json_decref(v);
    buf_free(&out);
    template_free(t);
    return 0;
}
