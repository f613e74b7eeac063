/* cli/plan_calibrate: `ridge plan --calibrate MODEL`: an efficiency profile of this machine from
 * steps of a model, and how well it predicts those that it wasn't fitted on. */
#ifndef RIDGE_CLI_PLAN_CALIBRATE_H
#define RIDGE_CLI_PLAN_CALIBRATE_H

int cmd_plan_calibrate(int argc, char **argv);

#endif
