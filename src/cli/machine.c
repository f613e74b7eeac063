/* cli/machine: see machine.h. */
#include "cli/machine.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "base/newfile.h"
#include "cli/cli.h"

#define CACHE_LIMIT ((size_t)1 << 20)

char *machine_text(const char *isa, int n_threads) {
    char cpu[256];
    cpus_name("", cpu, sizeof cpu);
    buf b = {0};
    buf_printf(&b, "%s, %d thread%s, %s", cpu, n_threads, plural((uint64_t)n_threads), isa);
    return buf_take(&b);
}

void machine_json(buf *b, const char *isa, int n_threads) {
    char cpu[256];
    cpus_name("", cpu, sizeof cpu);
    buf_puts(b, "\"cpu\":");
    buf_json_string(b, cpu, strlen(cpu));
    buf_printf(b, ",\"threads\":%d,\"isa\":\"%s\"", n_threads, isa);
}

static char *cache_key(const char *isa, int n_threads, uint64_t working_set) {
    int bits = 20;
    while (bits < 30 && (uint64_t)1 << bits < working_set) bits++;
    char cpu[256];
    cpus_name("", cpu, sizeof cpu);
    buf b = {0};
    buf_printf(&b, "%s / %s / %d threads / %d MiB", cpu, isa, n_threads, 1 << (bits - 20));
    return buf_take(&b);
}

/* False too for what another version of the loops measured. */
static bool read_entry(const json_t *entry, machine_peaks *out) {
    if (json_integer_value(json_object_get(entry, "version")) != PEAKS_VERSION) return false;
    *out = (machine_peaks){
        .read_bytes_per_s = json_number_value(json_object_get(entry, "read_bytes_per_s")),
        .int8_ops_per_s = json_number_value(json_object_get(entry, "int8_ops_per_s")),
        .f32_flops_per_s = json_number_value(json_object_get(entry, "f32_flops_per_s"))};
    return out->read_bytes_per_s > 0 && out->int8_ops_per_s > 0 && out->f32_flops_per_s > 0;
}

/* What cannot be stored (no such folder, read-only, full, another process at it) is no failure. */
static void store(const char *path, json_t *cache, const char *key, const machine_peaks *p) {
    newfile f;
    json_object_set_new(cache, key,
                        json_pack("{s:i, s:f, s:f, s:f}", "version", PEAKS_VERSION,
                                  "read_bytes_per_s", p->read_bytes_per_s, "int8_ops_per_s",
                                  p->int8_ops_per_s, "f32_flops_per_s", p->f32_flops_per_s));
    if (newfile_open(&f, path, 0666, NULL) != RIDGE_OK) return;
    if (json_dumpf(cache, f.file, JSON_INDENT(2)) != 0 || newfile_commit(&f, NULL) != RIDGE_OK)
        newfile_abandon(&f);
}

/* What is stored; an empty object where that cannot be read. */
static json_t *load(const char *path) {
    char *text = NULL;
    size_t n = 0;
    json_t *cache = NULL;
    if (file_read(&text, &n, path, CACHE_LIMIT, NULL) == RIDGE_OK)
        cache = json_loadb(text, n, 0, NULL);
    mem_free(text);
    if (json_is_object(cache)) return cache;
    json_decref(cache);
    return json_object();
}

static bool find_peaks(machine_peaks *out, const char *isa, int n_threads, uint64_t working_set,
                       bool stored, bool measured) {
    char *path = cli_cache_path("peaks.json"), *key = cache_key(isa, n_threads, working_set);
    json_t *cache = path != NULL ? load(path) : NULL;
    machine_peaks before;
    bool known, ok = false;
    if (cache == NULL || key == NULL) goto done;
    known = read_entry(json_object_get(cache, key), &before);
    if (known && stored) {
        *out = before;
        ok = true;
    } else if (measured) {
        size_t size = (size_t)(working_set < PEAKS_MAX_READ ? working_set : PEAKS_MAX_READ);
        ok = device_cpu_measure(out, isa, n_threads, size, NULL) == RIDGE_OK;
        if (!ok) goto done;
        machine_peaks best = known ? roof_peaks_higher(&before, out) : *out;
        store(path, cache, key, &best);
    }
done:
    json_decref(cache);
    mem_free(path);
    mem_free(key);
    return ok;
}

bool machine_peaks_get(machine_peaks *out, const char *isa, int n_threads, uint64_t working_set,
                       bool fresh) {
    return find_peaks(out, isa, n_threads, working_set, !fresh, true);
}

bool machine_peaks_known(void *context, const char *isa, int n_threads, uint64_t working_set,
                         machine_peaks *out) {
    (void)context;
    return find_peaks(out, isa, n_threads, working_set, true, false);
}
