/* base/cpus: see cpus.h. */
#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/mem.h"

void cpu_list_free(cpu_list *l) {
    mem_free(l->ids);
    *l = (cpu_list){0};
}

static bool contains(const cpu_list *l, int id) {
    for (int i = 0; i < l->n; i++)
        if (l->ids[i] == id) return true;
    return false;
}

/* A number at *p, which then stands behind it; -1: none, or too large a one. */
static int parse_id(const char **p) {
    if (**p < '0' || **p > '9') return -1;
    char *end;
    unsigned long id = strtoul(*p, &end, 10);
    *p = end;
    return id <= CPUS_MAX_ID ? (int)id : -1;
}

/* Appends the processors of one "3" or "0-3", which `seen` then has; false: it is no such thing. */
static bool parse_range(cpu_list *l, bool *seen, const char **p, int *doubled) {
    int first = parse_id(p), last = first;
    if (first >= 0 && **p == '-') {
        ++*p;
        last = parse_id(p);
    }
    if (first < 0 || last < first) return false;
    for (int id = first; id <= last; id++) {
        if (seen[id]) *doubled = id;
        if (seen[id]) return true;
        seen[id] = true;
        l->ids[l->n++] = id;
    }
    return true;
}

ridge_status cpu_list_parse(cpu_list *out, const char *text, ridge_error *err) {
    cpu_list l = {.ids = mem_alloc((CPUS_MAX_ID + 1) * sizeof *l.ids)};
    if (l.ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a list of processors");
    bool seen[CPUS_MAX_ID + 1] = {false};
    int doubled = -1;
    const char *p = text;
    bool ok = parse_range(&l, seen, &p, &doubled);
    while (ok && doubled < 0 && *p == ',') {
        p++;
        ok = parse_range(&l, seen, &p, &doubled);
    }
    ridge_status status = RIDGE_OK;
    if (doubled >= 0)
        status = RIDGE_FAIL(err, RIDGE_EINVAL, "processors '%s': %d is named twice", text, doubled);
    else if (!ok || *p != '\0')
        status = RIDGE_FAIL(err, RIDGE_EINVAL,
                            "processors '%s': expected a list such as 0-3,8, up to %d", text,
                            CPUS_MAX_ID);
    if (status != RIDGE_OK)
        cpu_list_free(&l);
    else
        *out = l;
    return status;
}

char *cpu_list_text(const cpu_list *l, char *out, size_t size) {
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0, last; i < l->n; i = last + 1) {
        for (last = i; last + 1 < l->n && l->ids[last + 1] == l->ids[last] + 1; last++) {
        }
        char range[32];
        int n = snprintf(range, sizeof range, last > i ? "%s%d-%d" : "%s%d", i > 0 ? "," : "",
                         l->ids[i], l->ids[last]);
        if (len + (size_t)n + 5 > size) {
            snprintf(out + len, size - len, ",...");
            break;
        }
        memcpy(out + len, range, (size_t)n + 1);
        len += (size_t)n;
    }
    return out;
}

/* The mask of a machine of more than 1,024 processors is larger than cpu_set_t, and the system
 * refuses one that is too small: so one for all that there may be. */
typedef struct {
    cpu_set_t part[(CPUS_MAX_ID + 1) / CPU_SETSIZE];
} large_set;

static bool read_mask(large_set *set) {
    *set = (large_set){0};
    return sched_getaffinity(0, sizeof *set, set->part) == 0;
}

ridge_status cpus_allowed(cpu_list *out, ridge_error *err) {
    large_set set;
    if (!read_mask(&set)) return error_set_errno(err, RIDGE_EIO, "cannot read the affinity mask");
    int n = CPU_COUNT_S(sizeof set, set.part);
    cpu_list l = {.ids = mem_alloc((size_t)n * sizeof *l.ids)};
    if (l.ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "a list of processors");
    for (int id = 0; l.n < n; id++)
        if (CPU_ISSET_S(id, sizeof set, set.part)) l.ids[l.n++] = id;
    *out = l;
    return RIDGE_OK;
}

/* The processors that are switched on; none where the system does not say. */
static cpu_list online(const char *root) {
    char dir[4096], text[4096];
    cpu_list l = {0};
    snprintf(dir, sizeof dir, "%s/sys/devices/system/cpu", root);
    if (!cgroup_read(dir, "online", text, sizeof text)) return l;
    text[strcspn(text, "\n")] = '\0';
    return cpu_list_parse(&l, text, NULL) == RIDGE_OK ? l : (cpu_list){0};
}

static ridge_status refuse(const char *root, const cpu_list *allowed, const char *text, int id,
                           ridge_error *err) {
    char list[64];
    cpu_list all = online(root);
    bool there = all.n == 0 || contains(&all, id);
    ridge_status status =
        there ? RIDGE_FAIL(err, RIDGE_EINVAL,
                           "processors '%s': this process may not run on %d, only on %s", text, id,
                           cpu_list_text(allowed, list, sizeof list))
              : RIDGE_FAIL(err, RIDGE_EINVAL, "processors '%s': there is no %d, only %s", text, id,
                           cpu_list_text(&all, list, sizeof list));
    cpu_list_free(&all);
    return status;
}

ridge_status cpus_choose(cpu_list *out, const char *root, const char *text, ridge_error *err) {
    cpu_list allowed, l;
    RIDGE_TRY(cpus_allowed(&allowed, err));
    if (strcmp(text, "auto") == 0) {
        *out = allowed;
        return RIDGE_OK;
    }
    ridge_status status = cpu_list_parse(&l, text, err);
    for (int i = 0; status == RIDGE_OK && i < l.n; i++)
        if (!contains(&allowed, l.ids[i])) {
            status = refuse(root, &allowed, text, l.ids[i], err);
            cpu_list_free(&l);
        }
    cpu_list_free(&allowed);
    if (status == RIDGE_OK) *out = l;
    return status;
}

/* One folder's limit: "150000 100000" or "max 100000"; in version 1 two files, -1: none. */
static void take_quota(void *context, const char *dir, bool v2) {
    char text[64], period_text[64];
    long long quota = 0, period = 0;
    int *least = context;
    if (v2) {
        if (!cgroup_read(dir, "cpu.max", text, sizeof text) ||
            sscanf(text, "%lld %lld", &quota, &period) != 2)
            return;
    } else {
        if (!cgroup_read(dir, "cpu.cfs_quota_us", text, sizeof text) ||
            !cgroup_read(dir, "cpu.cfs_period_us", period_text, sizeof period_text))
            return;
        quota = strtoll(text, NULL, 10);
        period = strtoll(period_text, NULL, 10);
    }
    if (quota <= 0 || period <= 0) return;
    long long n = quota / period + (quota % period != 0);
    if (n <= CPUS_MAX_ID && (*least == 0 || n < *least)) *least = (int)n;
}

int cpus_quota(const char *root) {
    int least = 0;
    cgroup_each(root, "cpu", take_quota, &least);
    return least;
}

int cpus_usable(void) {
    large_set set;
    int n =
        read_mask(&set) ? CPU_COUNT_S(sizeof set, set.part) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cpus_quota("");
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}

uint64_t cpus_times_put_aside(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_nivcsw : 0;
}

/* The value of a line "key<blanks>: value"; NULL: another key. */
static char *value_of(char *line, const char *key) {
    size_t n = strlen(key);
    if (strncmp(line, key, n) != 0) return NULL;
    line += n + strspn(line + n, " \t");
    if (*line != ':') return NULL;
    line += 1 + strspn(line + 1, " \t");
    line[strcspn(line, "\n")] = '\0';
    return line;
}

char *cpus_name(const char *root, char *out, size_t size) {
    char path[256], line[512], implementer[32] = "", *value;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    snprintf(out, size, "unknown");
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if ((value = value_of(line, "model name")) != NULL) {
            snprintf(out, size, "%s", value);
            break;
        }
        if ((value = value_of(line, "CPU implementer")) != NULL)
            snprintf(implementer, sizeof implementer, "%s", value);
        if ((value = value_of(line, "CPU part")) != NULL) {
            snprintf(out, size, "Arm implementer %s part %s", implementer, value);
            break;
        }
    }
    if (f != NULL) fclose(f);
    return out;
}

ridge_status cpu_mask_make(cpu_mask *out, const int *ids, int n, ridge_error *err) {
    int most = 0;
    for (int i = 0; i < n; i++) most = ids[i] > most ? ids[i] : most;
    cpu_mask m = {.size = CPU_ALLOC_SIZE(most + 1)};
    m.set = mem_zalloc(1, m.size);
    if (m.set == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "an affinity mask");
    for (int i = 0; i < n; i++) CPU_SET_S(ids[i], m.size, (cpu_set_t *)m.set);
    *out = m;
    return RIDGE_OK;
}

void cpu_mask_free(cpu_mask *m) {
    mem_free(m->set);
    *m = (cpu_mask){0};
}

bool cpu_mask_set(const cpu_mask *m, int tid) {
    return sched_setaffinity(tid, m->size, m->set) == 0;
}
