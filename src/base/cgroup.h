/* base/cgroup: the control groups that bound this process: its own, and those around it.
 *
 * A limit holds for all that is below it, so who wants one looks into every folder from the
 * process's own up to the mounted root and takes the least. Versions 1 and 2 may be mounted side by
 * side, anywhere, and what is mounted may be a part of the tree (as in a container). Everything is
 * read when asked for and nothing kept or allocated; callable on any thread.
 */
#ifndef RIDGE_BASE_CGROUP_H
#define RIDGE_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

typedef void (*cgroup_fn)(void *context, const char *dir, bool v2);

/* Calls fn with each folder that may limit `controller` ("cpu", "memory"). `root` stands before
 * every path, of /proc too: "" but in tests. */
void cgroup_each(const char *root, const char *controller, cgroup_fn fn, void *context);
/* The first line of a folder's file; false when it cannot be read. */
bool cgroup_read(const char *dir, const char *name, char *out, size_t size);

#endif
