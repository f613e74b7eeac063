/* base/log: see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void log_printf(const log_sink *log, log_level level, const char *format, ...) {
    if (log == NULL || log->write == NULL) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log->write(log->context, level, line);
}

void log_progress(const log_sink *log, const char *what, double fraction) {
    if (log != NULL && log->progress != NULL) log->progress(log->context, what, fraction);
}
