/* cli/plan_fit: `ridge plan --fit FILE|DIR ... --gpu NAME`: an efficiency profile from measured
 * times of operations, and how well it predicts those that it wasn't fitted on. */
#ifndef RIDGE_CLI_PLAN_FIT_H
#define RIDGE_CLI_PLAN_FIT_H

#include "roof/efficiency.h"

int cmd_plan_fit(int argc, char **argv);

/* A profile as a file; and whether one could be written there, before it is made. */
ridge_status plan_profile_check(const char *path, ridge_error *err) RIDGE_CHECKED;
ridge_status plan_profile_save(const efficiency_profile *profile, const char *path,
                               ridge_error *err) RIDGE_CHECKED;

#endif
