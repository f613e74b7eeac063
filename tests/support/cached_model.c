/* cached_model: see cached_model.h. */
#include "cached_model.h"

#include "unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *cached_model(const char *name) {
    static char path[512];
    const char *ridge_home = getenv("RIDGE_HOME"), *home = getenv("HOME");
    if (ridge_home != NULL && ridge_home[0] != '\0')
        snprintf(path, sizeof path, "%s/models/%s.gguf", ridge_home, name);
    else
        snprintf(path, sizeof path, "%s/.cache/ridge/models/%s.gguf", home != NULL ? home : "",
                 name);
    if (access(path, R_OK) == 0) return path;
    print_message("%s is absent\n", path);
    return NULL;
}
