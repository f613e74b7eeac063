/* tests/support/unit: cmocka with what it needs before it. */
#ifndef RIDGE_TESTS_UNIT_H
#define RIDGE_TESTS_UNIT_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#endif
