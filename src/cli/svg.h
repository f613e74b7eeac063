/* cli/svg: what the pictures of several commands have in common: the page, text, and panels with
 * axes. They follow the viewer's light or dark scheme. */
#ifndef RIDGE_CLI_SVG_H
#define RIDGE_CLI_SVG_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"

/* Escaped; at most so many characters, the last "..." of a longer one. What is not UTF-8 or not
 * allowed in XML is U+FFFD. */
void svg_put_text(buf *b, const char *s, size_t most);
void svg_text_at(buf *b, double x, double y, const char *classes, const char *s);

/* The page's beginning, with the styles of text, grid and page and those of the picture itself; its
 * end is "</svg>". */
void svg_begin(buf *b, int width, int height, const char *style);

/* What is finished, to a file. */
ridge_status svg_write(const buf *b, const char *path, ridge_error *err) RIDGE_CHECKED;

/* A plot on [left, right) x [top, bottom) pixels. Its edges stand for values, or, where an axis is
 * logarithmic, for powers of ten. */
typedef struct {
    buf *out;
    double left, right, top, bottom;
    double x0, x1, y0, y1;
    bool log_x, log_y;
} svg_panel;

double svg_x(const svg_panel *p, double value);
double svg_y(const svg_panel *p, double value);
/* Grid, numbers and names. */
void svg_axes(const svg_panel *p, const char *x_name, const char *y_name);

#endif
