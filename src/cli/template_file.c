/* cli/template_file: see template_file.h. */
#include "cli/template_file.h"

#include <string.h>

#include "base/mapfile.h"
#include "base/mem.h"

#define TEMPLATE_LIMIT ((size_t)4 << 20)

ridge_status template_file_open(chat_template **out, const char *flag, const char *chosen,
                                ridge_error *err) {
    const char *builtin = template_builtin(chosen);
    if (builtin != NULL) return template_parse(out, builtin, strlen(builtin), chosen, err);
    char *text = NULL;
    size_t n = 0;
    ridge_status status = file_read(&text, &n, chosen, TEMPLATE_LIMIT, err);
    if (status == RIDGE_ENOTFOUND) {
        error_reset(err);
        status = RIDGE_FAIL(err, RIDGE_ENOTFOUND, "%s: '%s' is neither a file nor one of %s", flag,
                            chosen, template_builtin_names());
    }
    if (status == RIDGE_OK && n == 0)
        status = RIDGE_FAIL(err, RIDGE_EINVAL, "%s: '%s' is empty", flag, chosen);
    if (status == RIDGE_OK) status = template_parse(out, text, n, chosen, err);
    mem_free(text);
    return status;
}
