/* base/error: filling a ridge_error, and the one assertion of the library.
 *
 *     if (n_dims > MAX) return RIDGE_FAIL(err, RIDGE_EFORMAT, "tensor '%s': %u dims", name,
 * n_dims);
 *
 * err may be NULL; a set error is kept (first error wins). Pure, callable on any thread.
 */
#ifndef RIDGE_BASE_ERROR_H
#define RIDGE_BASE_ERROR_H

#include "ridge.h"

#define RIDGE_CHECKED __attribute__((warn_unused_result))
#define RIDGE_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* Sets *err (unless set) and returns code, so that a failing function says and returns in one line.
 * With RIDGE_ENOMEM the text is what memory was wanted for; ": out of memory" is appended. */
#define RIDGE_FAIL(err, code, ...) error_set(err, code, __VA_ARGS__)

ridge_status error_set(ridge_error *err, ridge_status code, const char *format, ...)
    RIDGE_PRINTF(3, 4);
/* The same with errno's text appended: "cannot open: No such file or directory". */
ridge_status error_set_errno(ridge_error *err, ridge_status code, const char *format, ...)
    RIDGE_PRINTF(3, 4);
/* Names what the error concerns (kept if already named); of a long name the end, after "...". */
void error_where(ridge_error *err, const char *where);
void error_reset(ridge_error *err);

/* "s", but not of one: ("%zu token%s", n, plural(n)). */
static inline const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* Returns early with the status of an inner call that has already filled err. */
#define RIDGE_TRY(call)                                                                            \
    do {                                                                                           \
        ridge_status try_status_ = (call);                                                         \
        if (try_status_ != RIDGE_OK) return try_status_;                                           \
    } while (0)

/* A broken invariant of ours, never bad input. Always on: it costs nothing next to a forward. */
#define ridge_assert(condition)                                                                    \
    ((condition) ? (void)0 : assert_fail(#condition, __FILE__, __LINE__))
_Noreturn void assert_fail(const char *condition, const char *file, int line);

#endif
