/* base/utf8: decoding and encoding of UTF-8 (RFC 3629: no surrogates, no overlong forms). Pure. */
#ifndef RIDGE_BASE_UTF8_H
#define RIDGE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_INVALID 0xFFFFFFFFu

/* The code point at s (n > 0 bytes left) and its width in *width. UTF8_INVALID with *width = the
 * length of the maximal invalid subpart (1-3, as Unicode 3.9 and Python's 'replace' count it) when
 * the bytes are not UTF-8 or are cut off. */
uint32_t utf8_decode(const char *s, size_t n, size_t *width);
/* 1-4 bytes to out; returns the count. c must be a scalar value. */
size_t utf8_encode(uint32_t c, char out[4]);
/* Characters of n bytes of UTF-8: those that begin one. */
size_t utf8_count(const char *s, size_t n);
bool utf8_valid(const char *s, size_t n);
/* In place, for a terminal: control characters become spaces, each byte that is not UTF-8 '?'. */
void utf8_make_printable(char *s);
/* How many bytes at the end of s are the beginning of a character that could still be completed. */
size_t utf8_incomplete_tail(const char *s, size_t n);

#endif
