/* base/log: where warnings and progress go. The library never prints: it calls what it was given.
 *
 * A log is passed down by the owner; NULL is silent. May be called from any thread that the owner
 * of the callback allows.
 */
#ifndef RIDGE_BASE_LOG_H
#define RIDGE_BASE_LOG_H

#include "base/error.h"

typedef enum { LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

typedef struct {
    void (*write)(void *context, log_level level, const char *line); /* NULL: dropped */
    void (*progress)(void *context, const char *what,
                     double fraction); /* NULL: none; 1.0 at the end */
    void *context;
} log_sink;

void log_printf(const log_sink *log, log_level level, const char *format, ...) RIDGE_PRINTF(3, 4);
void log_progress(const log_sink *log, const char *what, double fraction);

#endif
