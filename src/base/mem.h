/* base/mem: all allocation, and arithmetic on sizes that cannot wrap.
 *
 * mem_* return NULL when out of memory (callers turn it into RIDGE_ENOMEM); mem_free takes NULL.
 * Tests make the nth allocation of a thread fail with mem_fail_after(); nothing else is global.
 */
#ifndef RIDGE_BASE_MEM_H
#define RIDGE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size);                          /* uninitialised; size 0 gives a pointer */
void *mem_zalloc(size_t count, size_t size);           /* zeroed; NULL too when count*size wraps */
void *mem_realloc(void *p, size_t count, size_t size); /* p unchanged on failure */
void *mem_dup(const void *p, size_t size);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p);

#define MEM_LINE 64 /* bytes of a line of the processor's cache */

/* Aligned to align (a power of two >= 64); free with mem_free. */
void *mem_aligned(size_t align, size_t size);

/* Large and zeroed, on huge pages where the system has them (aligned to one from 2 MiB on), else on
 * pages: for weights and the KV pool. */
void *mem_map(size_t size);
void mem_unmap(void *p, size_t size);

/* What is at p will be read soon; p may be any address. */
#define mem_prefetch(p) __builtin_prefetch(p)

/* *out = a + b or a * b; false when the result does not fit size_t (then *out is untouched). */
static inline bool mem_add(size_t a, size_t b, size_t *out) {
    return b > SIZE_MAX - a ? false : (*out = a + b, true);
}
static inline bool mem_mul(size_t a, size_t b, size_t *out) {
    return b != 0 && a > SIZE_MAX / b ? false : (*out = a * b, true);
}

/* Grows an array of `size`-byte items to hold at least `need`, doubling. false: out of memory. */
bool mem_grow(void **items, size_t *capacity, size_t need, size_t size);

/* For tests: the allocation number n from now on (1 = the next) on this thread fails; 0: none. */
void mem_fail_after(long n);

/* Bytes of memory that this process may still use: the smaller of the machine's available memory
 * and what its control groups leave. 0 if unknown. */
uint64_t mem_available_bytes(void);
/* What the control groups alone leave (base/cgroup.h; `root` as there); UINT64_MAX: no limit. */
uint64_t mem_cgroup_bytes(const char *root);

/* An arena: things that die together. arena_alloc returns zeroed, 16-byte aligned memory. */
typedef struct arena_block arena_block;
typedef struct {
    arena_block *head;  /* private */
    size_t used_bytes;  /* sum of what was handed out */
    size_t limit_bytes; /* 0: none; past it arena_alloc returns NULL */
} arena;

void *arena_alloc(arena *a, size_t size);
char *arena_strndup(arena *a, const char *s, size_t n);
void arena_free(arena *a);

#endif
