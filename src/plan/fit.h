/* plan/fit: an efficiency profile (roof/efficiency.h) from measured times (plan/measured.h).
 *
 * Kind by kind, the few numbers that make the mean of |log(predicted / measured)| smallest over
 * the samples that are not held out; sizes count alike however densely they were measured. A kind
 * that nothing measured takes the numbers of its kin, else those of the base. Deterministic. Pure.
 */
#ifndef RIDGE_PLAN_FIT_H
#define RIDGE_PLAN_FIT_H

#include "plan/measured.h"
#include "roof/efficiency.h"

typedef struct {
    efficiency_peaks peaks;         /* of the machine that was measured; its link within a node */
    double network_bytes_per_s;     /* of one rank, to other nodes */
    const efficiency_profile *base; /* NULL: ideal */
} fit_params;

/* *out gets its numbers; name and made are the caller's. RIDGE_EINVAL: nothing to fit on, or
 * times of a link whose peak is not known. */
ridge_status fit_profile(efficiency_profile *out, const measured *m, const fit_params *p,
                         ridge_error *err) RIDGE_CHECKED;

/* Seconds that a profile predicts for a sample. */
double fit_predict(const efficiency_profile *profile, const fit_params *p,
                   const measured_sample *s);

/* Errors relative to what was measured, of a group of samples. */
typedef struct {
    size_t n;
    double median, p90; /* of the absolute errors */
    double bias;        /* the median of the signed ones: over 0 where the profile is too slow */
} fit_errors;

typedef struct {
    char name[48];
    fit_errors fitted, held_out;
} fit_row;

typedef struct {
    fit_row *rows; /* [n]: each operation; then linear ones together, and by tokens */
    size_t n;
} fit_report;

ridge_status fit_report_create(fit_report *out, const efficiency_profile *profile,
                               const measured *m, const fit_params *p,
                               ridge_error *err) RIDGE_CHECKED;
void fit_report_free(fit_report *r);

#endif
