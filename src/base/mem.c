/* base/mem: see mem.h. */
#include "base/mem.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

void *mem_map(size_t size) {
    if (must_fail()) return NULL;
    void *p = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
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
static uint64_t read_number(const char *path) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return UINT64_MAX;
    unsigned long long value;
    int n = fscanf(f, "%llu", &value);
    fclose(f);
    return n == 1 ? value : UINT64_MAX;
}

/* File pages that the kernel gives back before it lets the cgroup run out: a model read once would
 * otherwise count as memory in use. */
static uint64_t cgroup_file_pages(const char *stat_path) {
    char line[256];
    unsigned long long bytes;
    uint64_t sum = 0;
    FILE *f = fopen(stat_path, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "inactive_file %llu", &bytes) == 1 ||
            sscanf(line, "active_file %llu", &bytes) == 1)
            sum += bytes;
    fclose(f);
    return sum;
}

/* What the cgroup in folder `dir` leaves; UINT64_MAX when it has no limit. */
static uint64_t cgroup_left(const char *dir, const char *limit_name, const char *usage_name) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    uint64_t limit = read_number(path);
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    uint64_t usage = read_number(path);
    if (limit == UINT64_MAX || usage == UINT64_MAX) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t reclaimable = cgroup_file_pages(path);
    usage -= reclaimable < usage ? reclaimable : usage;
    return limit > usage ? limit - usage : 0;
}

/* The cgroup v2 directory of this process, as the unified hierarchy shows it. */
static uint64_t cgroup_v2_left(void) {
    char line[512], dir[544];
    uint64_t left = cgroup_left("/sys/fs/cgroup", "memory.max", "memory.current");
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return left;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
        uint64_t own = cgroup_left(dir, "memory.max", "memory.current");
        if (own < left) left = own;
    }
    fclose(f);
    return left;
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
    uint64_t v2 = cgroup_v2_left();
    uint64_t v1 =
        cgroup_left("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
    if (v2 < available) available = v2;
    if (v1 < available) available = v1;
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
        arena_block *b = mem_alloc(bytes);
        if (b == NULL) return NULL;
        *b = (arena_block){.next = a->head, .used = 0, .size = block};
        a->head = b;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += rounded;
    a->used_bytes = total;
    memset(p, 0, rounded);
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
