/* cli/sim_svg: see sim_svg.h. */
#include "cli/sim_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/svg.h"

enum { WIDTH = 960, TOP = 60, BOTTOM = 340, PANEL = 380, KEYS = 404, KEY_ROW = 20 };
enum { N_COLOURS = 8, LETTER = 7, KEY_SPACE = 36, NAME_CHARS = 40, TITLE_CHARS = 90 };

static const char style[] =
    ".curve{fill:none;stroke-width:2}.s0{stroke:#1c7ed6}.s1{stroke:#e8590c}.s2{stroke:#37a24f}"
    ".s3{stroke:#ae3ec9}.s4{stroke:#b08900}.s5{stroke:#0c8599}.s6{stroke:#e64980}"
    ".s7{stroke:#748094}.again{stroke-dasharray:6 3}";

typedef double (*value_fn)(const sim_point *p);

static double itl_of(const sim_point *p) {
    return p->itl_p99_ms;
}

static double good_of(const sim_point *p) {
    return 100 * p->good;
}

static double output_of(const sim_point *p) {
    return p->output_per_s;
}

static double largest(const sim_curves *c, value_fn value) {
    double most = 0;
    for (size_t i = 0; i < c->n_names * c->n_rates; i++) most = fmax(most, value(&c->points[i]));
    return most;
}

static double smallest(const sim_curves *c, value_fn value) {
    double least = INFINITY;
    for (size_t i = 0; i < c->n_names * c->n_rates; i++)
        if (value(&c->points[i]) > 0) least = fmin(least, value(&c->points[i]));
    return isinf(least) ? 1 : least;
}

/* Colours come again, then with dashes and squares in place of dots. */
static bool comes_again(size_t name) {
    return name >= N_COLOURS;
}

static void draw_mark(const svg_panel *p, size_t name, double x, double y) {
    int colour = (int)(name % N_COLOURS);
    if (comes_again(name))
        buf_printf(p->out,
                   "<rect class=\"curve s%d\" x=\"%.1f\" y=\"%.1f\" width=\"5\" height=\"5\"/>\n",
                   colour, x - 2.5, y - 2.5);
    else
        buf_printf(p->out, "<circle class=\"curve s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n",
                   colour, x, y);
}

static void begin_path(buf *b, size_t name) {
    buf_printf(b, "<path class=\"curve s%d%s\" d=\"", (int)(name % N_COLOURS),
               comes_again(name) ? " again" : "");
}

/* A mark for each point, joined in the order of rates. What a logarithm has no place for is left
 * out. */
static void draw_curve(const svg_panel *p, const sim_curves *c, size_t name, value_fn value) {
    size_t n = 0;
    begin_path(p->out, name);
    for (size_t i = 0; i < c->n_rates; i++) {
        double v = value(&c->points[i * c->n_names + name]);
        if (p->log_y && !(v > 0)) continue;
        buf_printf(p->out, "%s%.1f %.1f", n++ == 0 ? "M" : "L", svg_x(p, c->rates[i]), svg_y(p, v));
    }
    buf_puts(p->out, "\"/>\n");
    for (size_t i = 0; i < c->n_rates; i++) {
        double v = value(&c->points[i * c->n_names + name]);
        if (p->log_y && !(v > 0)) continue;
        draw_mark(p, name, svg_x(p, c->rates[i]), svg_y(p, v));
    }
}

static void draw_panel(buf *b, const sim_curves *c, double left, const char *name, value_fn value,
                       bool log_y, double y0, double y1) {
    svg_panel p = {.out = b,
                   .left = left,
                   .right = left + PANEL,
                   .top = TOP,
                   .bottom = BOTTOM,
                   .x1 = c->rates[c->n_rates - 1],
                   .y0 = y0,
                   .y1 = y1,
                   .log_y = log_y};
    svg_axes(&p, c->x_name, name);
    for (size_t i = 0; i < c->n_names; i++) draw_curve(&p, c, i, value);
}

/* Names beside a stroke of their colour, as many in a row as fit; how many rows. Drawn to b unless
 * that is NULL. */
static int draw_keys(buf *b, const sim_curves *c) {
    double x = 70;
    int row = 0;
    for (size_t i = 0; i < c->n_names; i++) {
        size_t letters = strlen(c->names[i]);
        double width = KEY_SPACE + LETTER * (double)(letters < NAME_CHARS ? letters : NAME_CHARS);
        if (x + width > WIDTH && x > 70) {
            x = 70;
            row++;
        }
        double y = KEYS + row * KEY_ROW;
        if (b != NULL) {
            begin_path(b, i);
            buf_printf(b, "M%.1f %.1fh16\"/>\n", x, y - 4);
            buf_printf(b, "<text class=\"key\" x=\"%.1f\" y=\"%.1f\">", x + 22, y);
            svg_put_text(b, c->names[i], NAME_CHARS);
            buf_puts(b, "</text>\n");
        }
        x += width;
    }
    return row + 1;
}

void sim_svg(buf *b, const sim_curves *c) {
    bool targets = c->points[0].good >= 0;
    svg_begin(b, WIDTH, KEYS + KEY_ROW * draw_keys(NULL, c), style);
    buf_puts(b, "<text class=\"title\" x=\"20\" y=\"26\">");
    svg_put_text(b, c->title, TITLE_CHARS);
    buf_puts(b, "</text>\n");
    double low = floor(log10(smallest(c, itl_of))), high = ceil(log10(largest(c, itl_of)));
    draw_panel(b, c, 70, "time between tokens, 99th percentile, ms", itl_of, true, low,
               high > low ? high : low + 1);
    if (targets)
        draw_panel(b, c, 550, "requests within the targets, %", good_of, false, 0, 100);
    else
        draw_panel(b, c, 550, "output tokens/s", output_of, false, 0,
                   fmax(1, largest(c, output_of)));
    draw_keys(b, c);
    buf_puts(b, "</svg>\n");
}
