/* text/template: chat templates, a Jinja engine limited in depth, steps and output size.
 *
 * Behaves as Jinja2's ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks, loopcontrols) as
 * Hugging Face sets it up, byte for byte. A parsed template is immutable: any thread may render.
 */
#ifndef RIDGE_TEXT_TEMPLATE_H
#define RIDGE_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct chat_template chat_template;

typedef struct {
    size_t max_output_bytes;
    uint64_t max_steps;
    size_t max_memory_bytes;
} template_limits;

template_limits template_limits_default(void);

/* name: for messages ("file:line: ..."). RIDGE_EFORMAT on a syntax error. */
ridge_status template_parse(chat_template **out, const char *source, size_t n, const char *name,
                            ridge_error *err) RIDGE_CHECKED;
void template_free(chat_template *t);

/* variables: a JSON object, each key a variable (messages, tools, add_generation_prompt, bos_token
 * ...). now: seconds since 1970 as local wall time for strftime_now. Appends to out. Errors:
 * RIDGE_EINVAL with the message of raise_exception as text (where = "raise_exception") or of the
 * failed operation. */
ridge_status template_render(const chat_template *t, json_t *variables, int64_t now,
                             const template_limits *limits, buf *out,
                             ridge_error *err) RIDGE_CHECKED;

/* Built-in templates by name ("chatml", "gemma", "llama3" ...) for --chat-template; NULL: unknown.
 */
const char *template_builtin(const char *name);
const char *template_builtin_names(void); /* "chatml, gemma, ..." */

#endif
