/* cli/svg: see svg.h. */
#include "cli/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define MOST_NUMBERS 9 /* on an axis */

void svg_put_text(buf *b, const char *s, size_t most) {
    size_t left = strlen(s), width;
    for (size_t n = 0; left > 0; n++, s += width, left -= width) {
        uint32_t c = utf8_decode(s, left, &width);
        bool allowed = c != UTF8_INVALID && (c >= 0x20 || c == '\t') && (c | 1) != 0xFFFF;
        if (n + 1 == most && left > width) {
            buf_puts(b, "\xE2\x80\xA6");
            return;
        }
        switch (c) {
        case '&': buf_puts(b, "&amp;"); break;
        case '<': buf_puts(b, "&lt;"); break;
        case '>': buf_puts(b, "&gt;"); break;
        case '"': buf_puts(b, "&quot;"); break;
        default: buf_append(b, allowed ? s : "\xEF\xBF\xBD", allowed ? width : 3); break;
        }
    }
}

void svg_text_at(buf *b, double x, double y, const char *classes, const char *s) {
    buf_printf(b, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", classes, x, y);
    svg_put_text(b, s, SIZE_MAX);
    buf_puts(b, "</text>\n");
}

void svg_begin(buf *b, int width, int height, const char *style) {
    buf_printf(b,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n"
               "<style>text{font:12px system-ui,sans-serif;fill:#1f2328}"
               ".title{font-size:16px;font-weight:600}.middle{text-anchor:middle}"
               ".end{text-anchor:end}.page{fill:#fff}.grid{stroke:#d1d9e0}"
               "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}"
               ".grid{stroke:#2f3742}}%s</style>\n<rect class=\"page\" width=\"%d\" "
               "height=\"%d\"/>\n",
               width, height, style, width, height);
}

ridge_status svg_write(const buf *b, const char *path, ridge_error *err) {
    if (b->failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the picture");
    FILE *f = fopen(path, "we");
    bool written = f != NULL && fwrite(b->data, 1, b->len, f) == b->len;
    if (f != NULL && fclose(f) != 0) written = false;
    return written ? RIDGE_OK : error_set_errno(err, RIDGE_EIO, "cannot write '%s'", path);
}

/* Panels --------------------------------------------------------------------------------------- */

double svg_x(const svg_panel *p, double value) {
    double at = p->log_x ? log10(value) : value;
    return p->left + (at - p->x0) / (p->x1 - p->x0) * (p->right - p->left);
}

double svg_y(const svg_panel *p, double value) {
    double at = p->log_y ? log10(value) : value;
    return p->bottom - (at - p->y0) / (p->y1 - p->y0) * (p->bottom - p->top);
}

static void grid_line(const svg_panel *p, bool vertical, double value, bool named) {
    char name[32];
    double x = vertical ? svg_x(p, value) : p->left, y = vertical ? p->bottom : svg_y(p, value);
    snprintf(name, sizeof name, "%.4g", value);
    if (vertical)
        buf_printf(p->out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x, p->top, y);
    else
        buf_printf(p->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", x, y, p->right);
    if (!named) return;
    if (vertical)
        svg_text_at(p->out, x, y + 18, "middle", name);
    else
        svg_text_at(p->out, x - 6, y + 4, "end", name);
}

/* A line at each power of ten, and numbers as far as there is room. */
static void log_grid(const svg_panel *p, bool vertical, double low, double high) {
    int every = (int)fmax(1, ceil((high - low) / MOST_NUMBERS));
    for (int d = (int)low; d <= (int)high; d++) grid_line(p, vertical, pow(10, d), d % every == 0);
}

/* At multiples of the least 1, 2 or 5 times a power of ten that is coarse enough. */
static void linear_grid(const svg_panel *p, bool vertical, double low, double high) {
    double unit = pow(10, floor(log10((high - low) / MOST_NUMBERS))), step = unit;
    for (int i = 0; (high - low) / step > MOST_NUMBERS; i++)
        step = unit * (const double[]){2, 5, 10}[i];
    for (double i = ceil(low / step); i * step <= high * (1 + 1e-9); i++)
        grid_line(p, vertical, i * step, true);
}

void svg_axes(const svg_panel *p, const char *x_name, const char *y_name) {
    (p->log_x ? log_grid : linear_grid)(p, true, p->x0, p->x1);
    (p->log_y ? log_grid : linear_grid)(p, false, p->y0, p->y1);
    svg_text_at(p->out, (p->left + p->right) / 2, p->bottom + 40, "middle", x_name);
    svg_text_at(p->out, p->left, p->top - 10, "", y_name);
}
