/* base/cgroup: see cgroup.h. Formats: proc(5), cgroups(7). */
#include "base/cgroup_internal.h"

#include <stdio.h>
#include <string.h>

#define LINE_SIZE (2 * CGROUP_PATH + 256)

/* Is `word` (its n characters) one of those that commas part? */
static bool has_word(const char *list, size_t n_list, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= n_list; i++)
        if ((i == 0 || list[i - 1] == ',') && memcmp(list + i, word, n) == 0 &&
            (i + n == n_list || list[i + n] == ','))
            return true;
    return false;
}

const char *cgroup_line_path(const char *line, const char *controller) {
    const char *list = strchr(line, ':');
    const char *path = list != NULL ? strchr(++list, ':') : NULL;
    if (path == NULL || path[1] != '/') return NULL;
    bool found = controller != NULL ? has_word(list, (size_t)(path - list), controller)
                                    : line[0] == '0' && path == list;
    return found ? path + 1 : NULL;
}

static bool is_octal(char c) {
    return c >= '0' && c <= '7';
}

/* A field of mountinfo: blanks and backslashes are written \ooo there. */
static bool copy_field(char *out, const char *field, size_t n) {
    size_t len = 0;
    for (size_t i = 0; i < n; len++) {
        if (len + 1 >= CGROUP_PATH) return false;
        if (field[i] == '\\' && n - i >= 4 && is_octal(field[i + 1]) && is_octal(field[i + 2]) &&
            is_octal(field[i + 3])) {
            out[len] = (char)((field[i + 1] - '0') << 6 | (field[i + 2] - '0') << 3 |
                              (field[i + 3] - '0'));
            i += 4;
        } else {
            out[len] = field[i++];
        }
    }
    out[len] = '\0';
    return true;
}

/* Field i of those that single blanks part; *n its length, 0 when there is none. */
static const char *field_at(const char *line, int i, size_t *n) {
    for (; i > 0 && *line != '\0'; i--) {
        line += strcspn(line, " ");
        line += *line == ' ';
    }
    *n = strcspn(line, " ");
    return line;
}

/* ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG]... - TYPE SOURCE OPTIONS */
bool cgroup_line_mount(const char *line, const char *controller, cgroup_mount *out) {
    size_t n_type, n_options, n_root, n_point;
    const char *rest = strstr(line, " - ");
    if (rest == NULL) return false;
    const char *type = field_at(rest + 3, 0, &n_type), *options = field_at(rest + 3, 2, &n_options);
    const char *wanted = controller != NULL ? "cgroup" : "cgroup2";
    if (n_type != strlen(wanted) || memcmp(type, wanted, n_type) != 0) return false;
    if (controller != NULL && !has_word(options, n_options, controller)) return false;
    const char *root = field_at(line, 3, &n_root), *point = field_at(line, 4, &n_point);
    return n_root > 0 && n_point > 0 && copy_field(out->root, root, n_root) &&
           copy_field(out->point, point, n_point);
}

const char *cgroup_path_below(const cgroup_mount *m, const char *path) {
    size_t n = strcmp(m->root, "/") == 0 ? 0 : strlen(m->root);
    if (strncmp(path, m->root, n) != 0 || (path[n] != '/' && path[n] != '\0')) return "";
    path += n;
    return strcmp(path, "/") == 0 || strstr(path, "/..") != NULL ? "" : path;
}

/* A line of a file, without its end; of one that is longer than any of ours, the parts. */
static bool next_line(FILE *f, char line[LINE_SIZE]) {
    if (f == NULL || fgets(line, LINE_SIZE, f) == NULL) return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static FILE *open_proc(const char *root, const char *name) {
    char path[CGROUP_PATH];
    snprintf(path, sizeof path, "%s/proc/self/%s", root, name);
    return fopen(path, "re");
}

static bool find_path(const char *root, const char *controller, char out[CGROUP_PATH]) {
    char line[LINE_SIZE];
    FILE *f = open_proc(root, "cgroup");
    bool found = false;
    while (!found && next_line(f, line)) {
        const char *path = cgroup_line_path(line, controller);
        found = path != NULL && snprintf(out, CGROUP_PATH, "%s", path) < CGROUP_PATH;
    }
    if (f != NULL) fclose(f);
    return found;
}

static bool find_mount(const char *root, const char *controller, cgroup_mount *out) {
    char line[LINE_SIZE];
    FILE *f = open_proc(root, "mountinfo");
    bool found = false;
    while (!found && next_line(f, line)) found = cgroup_line_mount(line, controller, out);
    if (f != NULL) fclose(f);
    return found;
}

static void walk(const char *root, const char *controller, cgroup_fn fn, void *context) {
    char path[CGROUP_PATH], dir[3 * CGROUP_PATH];
    cgroup_mount m;
    if (!find_path(root, controller, path) || !find_mount(root, controller, &m)) return;
    size_t top = strlen(root) + strlen(m.point);
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, m.point, cgroup_path_below(&m, path));
    if (n < 0 || (size_t)n >= sizeof dir) return;
    for (char *end = dir + n;;) {
        fn(context, dir, controller == NULL);
        while (end > dir + top && *--end != '/') {
        }
        if (*end == '\0') return; /* that was the mount point */
        *end = '\0';
    }
}

void cgroup_each(const char *root, const char *controller, cgroup_fn fn, void *context) {
    walk(root, NULL, fn, context);
    walk(root, controller, fn, context);
}

bool cgroup_read(const char *dir, const char *name, char *out, size_t size) {
    char path[3 * CGROUP_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && fgets(out, (int)size, f) != NULL;
    if (f != NULL) fclose(f);
    return ok;
}
