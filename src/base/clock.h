/* base/clock: monotonic time. Only engine/, load/, server/ and cli/ read it; sched/ is given the
 * time. */
#ifndef RIDGE_BASE_CLOCK_H
#define RIDGE_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_us(void); /* microseconds since an arbitrary start; never goes back */
double clock_now_s(void);   /* the same in seconds */

#endif
