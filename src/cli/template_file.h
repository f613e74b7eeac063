/* cli/template_file: the chat template that a flag chooses; the same for every command. */
#ifndef RIDGE_CLI_TEMPLATE_FILE_H
#define RIDGE_CLI_TEMPLATE_FILE_H

#include "base/error.h"
#include "text/template.h"

/* chosen: a built-in template's name, else a file of at most 4 MiB. flag ("--chat-template") stands
 * in the messages. *out is owned (template_free). */
ridge_status template_file_open(chat_template **out, const char *flag, const char *chosen,
                                ridge_error *err) RIDGE_CHECKED;

#endif
