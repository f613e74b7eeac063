/* base/cpus: which processors this process may run on, and for how many it is given time.
 *
 * Everything is read when asked for and nothing kept; callable on any thread. `root` stands before
 * the paths of /proc and /sys: "" but in tests.
 */
#ifndef RIDGE_BASE_CPUS_H
#define RIDGE_BASE_CPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CPUS_MAX_ID 65535

typedef struct {
    int *ids; /* [n], each once */
    int n;
} cpu_list;

void cpu_list_free(cpu_list *l);
/* "0-3,8": these processors in this order. */
ridge_status cpu_list_parse(cpu_list *out, const char *text, ridge_error *err) RIDGE_CHECKED;
/* The same back, cut where it is too long; returns out. */
char *cpu_list_text(const cpu_list *l, char *out, size_t size);

/* The affinity mask of the calling thread, ascending. */
ridge_status cpus_allowed(cpu_list *out, ridge_error *err) RIDGE_CHECKED;
/* What a user asks for: a list, of processors that are there and allowed, or "auto": all allowed.
 */
ridge_status cpus_choose(cpu_list *out, const char *root, const char *text,
                         ridge_error *err) RIDGE_CHECKED;
/* Processors' worth of time that the control groups grant, rounded up; 0: no limit. */
int cpus_quota(const char *root);
/* How many processors this process may use: the mask, and no more than the quota; at least 1. */
int cpus_usable(void);
/* How often threads of this process have so far had to leave their processor to others that wanted
 * it. */
uint64_t cpus_times_put_aside(void);

/* The processors' name as /proc/cpuinfo has it: its model name, or on Arm, which has none there,
 * what implementer and part it names; "unknown" without either. Cut to size; returns out. */
char *cpus_name(const char *root, char *out, size_t size);

/* A thread's mask as the system takes it, made once so that setting it needs no memory. */
typedef struct {
    void *set; /* cpu_set_t of size bytes */
    size_t size;
} cpu_mask;

ridge_status cpu_mask_make(cpu_mask *out, const int *ids, int n, ridge_error *err) RIDGE_CHECKED;
void cpu_mask_free(cpu_mask *m);
/* tid 0: the calling thread. false: errno says why. */
bool cpu_mask_set(const cpu_mask *m, int tid);

#endif
