/* cli/roofline_svg: the roofline of a machine, and every measured operation on it, as one picture.
 *
 * Log-log: FLOPs per byte against FLOP/s. Each row of each series that has both is a dot where it
 * was measured (never moved): colour by series, circle or square by its roof (int8 or f32), area by
 * its share of the series' time. Its number leads to the table below, which names the operations.
 * The document is self-contained and follows the viewer's light or dark scheme.
 */
#ifndef RIDGE_CLI_ROOFLINE_SVG_H
#define RIDGE_CLI_ROOFLINE_SVG_H

#include "base/buf.h"
#include "device/device.h"
#include "roof/roof.h"

typedef struct {
    const char *name;            /* "decode of 4" */
    const dev_profile_row *rows; /* [n_rows], borrowed */
    size_t n_rows;
    roof_peaks peaks; /* that they are a part of; all above 0 */
} roofline_series;

typedef struct {
    const char *title, *subtitle;  /* any text: it is escaped */
    const roofline_series *series; /* [n_series >= 1]; drawn are their highest peaks */
    size_t n_series;
} roofline;

/* Appends the document; out->failed when memory runs out. */
void roofline_svg(buf *out, const roofline *r);
/* Replaces the file at path. RIDGE_EIO, named by path, where that cannot be written. */
ridge_status roofline_svg_write(const char *path, const roofline *r,
                                ridge_error *err) RIDGE_CHECKED;

/* Of the time that the slower of its two roofs asks for: how much of what the operation took;
 * 0 where that is no time. */
double roofline_reached(const dev_profile_row *row, const roof_peaks *peaks);
/* Seconds of all rows. */
double roofline_seconds(const dev_profile_row *rows, size_t n_rows);

#endif
