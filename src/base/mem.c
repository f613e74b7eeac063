/* base/mem: see mem.h. */
#include "base/mem.h"

#include <limits.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cgroup.h"

static _Thread_local long fail_countdown;

void mem_fail_after(long n) {
    fail_countdown = n;
}

static bool must_fail(void) {
    return fail_countdown > 0 && --fail_countdown == 0;
}

void *mem_alloc(size_t size) {
    return must_fail() ? NULL : malloc(size ? size : 1);
}

void *mem_zalloc(size_t count, size_t size) {
    return must_fail() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t count, size_t size) {
    size_t bytes;
    if (!mem_mul(count, size, &bytes) || must_fail()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_dup(const void *p, size_t size) {
    void *copy = mem_alloc(size);
    if (copy != NULL && size > 0) memcpy(copy, p, size);
    return copy;
}

char *mem_strndup(const char *s, size_t n) {
    char *copy = mem_alloc(n + 1);
    if (copy == NULL) return NULL;
    if (n > 0) memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *mem_strdup(const char *s) {
    return mem_strndup(s, strlen(s));
}

void mem_free(void *p) {
    free(p);
}

void *mem_aligned(size_t align, size_t size) {
    size_t rounded;
    if (!mem_add(size ? size : 1, align - 1, &rounded) || must_fail()) return NULL;
    return aligned_alloc(align, rounded & ~(align - 1));
}

#define HUGE_PAGE ((size_t)2 << 20)

void *mem_map(size_t size) {
    if (must_fail()) return NULL;
    if (size == 0) size = 1;
    size_t slack = size >= HUGE_PAGE ? HUGE_PAGE : 0, bytes;
    if (!mem_add(size, slack + 4095, &bytes)) return NULL;
    bytes &= ~(size_t)4095;
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (slack > 0) { /* what is before the first huge page and behind the size goes back */
        size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (before > 0) munmap(p, before);
        if (before < slack) munmap(p + before + bytes - slack, slack - before);
        p += before;
    }
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

void mem_unmap(void *p, size_t size) {
    if (p != NULL) munmap(p, size ? size : 1);
}

bool mem_grow(void **items, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return true;
    size_t grown = *capacity < 8 ? 8 : *capacity;
    while (grown < need)
        if (!mem_mul(grown, 2, &grown)) return false;
    void *p = mem_realloc(*items, grown, size);
    if (p == NULL) return false;
    *items = p;
    *capacity = grown;
    return true;
}

/* One number from a small file such as a cgroup limit; UINT64_MAX for "max" or none. */
static uint64_t read_number(const char *dir, const char *name) {
    char text[64];
    unsigned long long value;
    return cgroup_read(dir, name, text, sizeof text) && sscanf(text, "%llu", &value) == 1
               ? value
               : UINT64_MAX;
}

/* File pages that the kernel gives back before it lets the cgroup run out: a model read once would
 * otherwise count as memory in use. In version 1 only total_* count what is below as well. */
static uint64_t cgroup_file_pages(const char *dir, bool v2) {
    char path[PATH_MAX], line[256];
    const char *prefix = v2 ? "" : "total_";
    unsigned long long bytes;
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, prefix, strlen(prefix)) != 0) continue;
        const char *rest = line + strlen(prefix);
        if (sscanf(rest, "inactive_file %llu", &bytes) == 1 ||
            sscanf(rest, "active_file %llu", &bytes) == 1)
            sum += bytes;
    }
    fclose(f);
    return sum;
}

static void take_left(void *context, const char *dir, bool v2) {
    uint64_t *least = context;
    uint64_t limit = read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t usage = read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || usage == UINT64_MAX) return;
    uint64_t reclaimable = cgroup_file_pages(dir, v2);
    usage -= reclaimable < usage ? reclaimable : usage;
    uint64_t left = limit > usage ? limit - usage : 0;
    if (left < *least) *least = left;
}

uint64_t mem_cgroup_bytes(const char *root) {
    uint64_t least = UINT64_MAX;
    cgroup_each(root, "memory", take_left, &least);
    return least;
}

uint64_t mem_available_bytes(void) {
    uint64_t available = UINT64_MAX;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    if (f != NULL) {
        unsigned long long kib;
        while (fgets(line, sizeof line, f) != NULL)
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) available = kib * 1024;
        fclose(f);
    }
    uint64_t left = mem_cgroup_bytes("");
    if (left < available) available = left;
    return available == UINT64_MAX ? 0 : available;
}

struct arena_block {
    arena_block *next;
    size_t used, size;
    alignas(16) unsigned char data[];
};

void *arena_alloc(arena *a, size_t size) {
    size_t rounded, total;
    if (!mem_add(size, 15, &rounded)) return NULL;
    rounded &= ~(size_t)15;
    if (!mem_add(a->used_bytes, rounded, &total)) return NULL;
    if (a->limit_bytes != 0 && total > a->limit_bytes) return NULL;
    if (a->head == NULL || a->head->size - a->head->used < rounded) {
        size_t block = rounded > 4096 ? rounded : 4096, bytes;
        if (!mem_add(block, sizeof(arena_block), &bytes)) return NULL;
        arena_block *b = mem_zalloc(1, bytes); /* the system's own zeros: not touched before use */
        if (b == NULL) return NULL;
        b->next = a->head;
        b->size = block;
        a->head = b;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += rounded;
    a->used_bytes = total;
    return p;
}

char *arena_strndup(arena *a, const char *s, size_t n) {
    size_t size;
    if (!mem_add(n, 1, &size)) return NULL;
    char *copy = arena_alloc(a, size);
    if (copy != NULL && n > 0) memcpy(copy, s, n);
    return copy;
}

void arena_free(arena *a) {
    while (a->head != NULL) {
        arena_block *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used_bytes = 0;
}
