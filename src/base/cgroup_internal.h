/* base/cgroup: what its parts read out of lines; for cgroup.c and its test. */
#ifndef RIDGE_BASE_CGROUP_INTERNAL_H
#define RIDGE_BASE_CGROUP_INTERNAL_H

#include "base/cgroup.h"

#define CGROUP_PATH 4096

typedef struct {
    char root[CGROUP_PATH];  /* the part of the tree that is mounted: "/", "/docker/12ab" */
    char point[CGROUP_PATH]; /* where: "/sys/fs/cgroup/cpu,cpuacct" */
} cgroup_mount;

/* Of a line of /proc/self/cgroup, "4:cpu,cpuacct:/a/b" or "0::/a/b" (controller NULL: version 2):
 * the path, in the line; NULL when the line is about something else. */
const char *cgroup_line_path(const char *line, const char *controller);
/* Of a line of /proc/self/mountinfo; false when it mounts something else. */
bool cgroup_line_mount(const char *line, const char *controller, cgroup_mount *out);
/* What to append to the mount point for the process's own group: "" or "/a/b". A path that is not
 * in the part that is mounted, as seen from within a namespace: "", all that can be known. */
const char *cgroup_path_below(const cgroup_mount *m, const char *path);

#endif
