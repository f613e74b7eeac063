/* cli/roofline_svg: see roofline_svg.h. */
#include "cli/roofline_svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/svg.h"

/* The page, in pixels: the plot is [LEFT, RIGHT) x [TOP, BOTTOM), the tables lie below it. */
enum { WIDTH = 900, LEFT = 78, RIGHT = 880, TOP = 72, BOTTOM = 500, TABLE = 562 };
enum { ROW = 19, NAME_X = 60, NAME_CHARS = 56, COLUMN = 97, COLUMN_X = 398, N_COLUMNS = 5 };
enum { N_COLOURS = 8, RINGS = 12, DIRECTIONS = 16 };

/* Colours that are told apart on white as on black, by people with any colour vision too. */
static const char style[] =
    "<style>text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}"
    ".title{font-size:17px;font-weight:600}.soft{fill:#59636e}.number{font-size:11px;"
    "font-weight:600;stroke:#fff;stroke-width:3px;paint-order:stroke}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.page{fill:#fff}.grid{stroke:#d1d9e0}.fine{stroke:#eef1f4}"
    ".roof{stroke:#1f2328;stroke-width:2;fill:none}.ridge{fill:#fff;stroke:#1f2328;"
    "stroke-width:2}.wall{fill:#818b98;fill-opacity:.1}"
    ".lead{stroke-opacity:.65}.mark{fill-opacity:.22;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}.page{fill:#0d1117}"
    ".number{stroke:#0d1117}.grid{stroke:#2f3742}.fine{stroke:#1a2028}.roof{stroke:#e6edf3}"
    ".ridge{fill:#0d1117;stroke:#e6edf3}}</style>";
static const char *const colours[N_COLOURS] = {"#e8590c", "#1c7ed6", "#37a24f", "#ae3ec9",
                                               "#b08900", "#0c8599", "#e64980", "#748094"};

typedef struct {
    double x, y, width, height; /* from its upper left corner */
} box;

typedef struct {
    const dev_profile_row *row;
    size_t series, number; /* number: of its operation, from 1 */
    double x, y, radius, share;
    box label;
} dot;

typedef struct {
    const roofline *r;
    buf *out;
    roof_peaks peaks;                /* the roofs */
    double x0, x1, y0, y1;           /* log10 of the plot's edges */
    const dev_profile_row **kinds;   /* [n_kinds] one row of each name that has dots */
    dot *dots;                       /* [n_dots] the largest first */
    box *taken;                      /* [n_taken] what labels must not cover */
    size_t n_kinds, n_dots, n_taken; /* kinds, dots and taken end with the picture */
} picture;

double roofline_reached(const dev_profile_row *row, const roof_peaks *peaks) {
    double peak = row->integer ? peaks->int8_ops_per_s : peaks->f32_flops_per_s;
    double least = roof_seconds(row->flops, peak, row->bytes, peaks->read_bytes_per_s);
    return row->seconds > 0 ? least / row->seconds : 0;
}

double roofline_seconds(const dev_profile_row *rows, size_t n_rows) {
    double total = 0;
    for (size_t i = 0; i < n_rows; i++) total += rows[i].seconds;
    return total;
}

/* Text ----------------------------------------------------------------------------------------- */

static void text_at(buf *b, double x, double y, const char *classes, const char *s) {
    buf_printf(b, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", classes, x, y);
    svg_put_text(b, s, NAME_CHARS * 2);
    buf_puts(b, "</text>\n");
}

static void line(buf *b, const char *classes, double x1, double y1, double x2, double y2) {
    buf_printf(b, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", classes,
               x1, y1, x2, y2);
}

/* Axes ----------------------------------------------------------------------------------------- */

static double at_x(const picture *p, double flops_per_byte) {
    return LEFT + (log10(flops_per_byte) - p->x0) / (p->x1 - p->x0) * (RIGHT - LEFT);
}

static double at_y(const picture *p, double flops_per_s) {
    return BOTTOM - (log10(flops_per_s) - p->y0) / (p->y1 - p->y0) * (BOTTOM - TOP);
}

static void widen(double *low, double *high, double value) {
    *low = fmin(*low, log10(value));
    *high = fmax(*high, log10(value));
}

/* Around the dots and both ridges, with a decade of the slope to be seen in any case. */
static void choose_axes(picture *p) {
    const roof_peaks *peaks = &p->peaks;
    double low = fmin(peaks->int8_ops_per_s, peaks->f32_flops_per_s);
    double high = fmax(peaks->int8_ops_per_s, peaks->f32_flops_per_s);
    p->y0 = log10(low / 10);
    p->y1 = log10(high);
    p->x0 = log10(low / peaks->read_bytes_per_s / 10);
    p->x1 = log10(high / peaks->read_bytes_per_s * 10);
    for (size_t i = 0; i < p->n_dots; i++) {
        const dev_profile_row *row = p->dots[i].row;
        widen(&p->x0, &p->x1, row->flops / row->bytes);
        widen(&p->y0, &p->y1, row->flops / row->seconds);
    }
    p->x0 -= 0.2;
    p->x1 += 0.2;
    p->y0 -= 0.2;
    p->y1 += 0.2;
}

/* "1", "20 G": a digit times a power of ten with its engineering prefix. */
static void tick_name(char out[32], int digit, int decade) {
    static const char *const prefixes[] = {"", " k", " M", " G", " T", " P"};
    if (decade < 0 || decade >= 18)
        snprintf(out, 32, "%de%d", digit, decade);
    else
        snprintf(out, 32, "%g%s", digit * pow(10, decade % 3), prefixes[decade / 3]);
}

static void draw_tick(picture *p, bool vertical, int digit, int decade, bool named) {
    double value = digit * pow(10, decade);
    double x = vertical ? at_x(p, value) : LEFT, y = vertical ? BOTTOM : at_y(p, value);
    char name[32];
    line(p->out, digit == 1 ? "grid" : "fine", x, vertical ? TOP : y, vertical ? x : RIGHT, y);
    if (!named) return;
    tick_name(name, digit, decade);
    if (vertical)
        text_at(p->out, x, BOTTOM + 18, "x-tick middle soft", name);
    else
        text_at(p->out, LEFT - 8, y + 4, "y-tick end soft", name);
}

/* The decades last: they lie over the finer lines. Few of them: 2 and 5 are named too. */
static void draw_grid(picture *p, bool vertical) {
    double low = vertical ? p->x0 : p->y0, high = vertical ? p->x1 : p->y1;
    for (int digit = 9; digit >= 1; digit--)
        for (int decade = (int)floor(low); decade <= (int)floor(high); decade++) {
            double at = log10(digit) + decade;
            bool named = digit == 1 || ((digit == 2 || digit == 5) && high - low < 3);
            if (at >= low && at <= high) draw_tick(p, vertical, digit, decade, named);
        }
}

static bool overlap(const box *a, const box *b) {
    return a->x < b->x + b->width && b->x < a->x + a->width && a->y < b->y + b->height &&
           b->y < a->y + a->height;
}

static bool is_free(const picture *p, const box *place) {
    if (place->x < LEFT || place->x + place->width > RIGHT || place->y < TOP ||
        place->y + place->height > BOTTOM)
        return false;
    for (size_t i = 0; i < p->n_taken; i++)
        if (overlap(place, &p->taken[i])) return false;
    for (size_t i = 0; i < p->n_dots; i++) {
        const dot *d = &p->dots[i];
        double r = d->radius;
        if (overlap(place, &(box){d->x - r, d->y - r, 2 * r, 2 * r})) return false;
    }
    return true;
}

/* Roofs ---------------------------------------------------------------------------------------- */

/* From the slope to the right edge. Its name stands on it, as far right as dots let it; below it
 * where the other roof's name is above. */
static void draw_roof(picture *p, const char *unit, const char *scale, double peak, bool below) {
    double ridge = peak / p->peaks.read_bytes_per_s, x = at_x(p, ridge), y = at_y(p, peak);
    char name[96];
    line(p->out, "roof", x, y, RIGHT, y);
    box place = {RIGHT - 126, below ? y + 3 : y - 20, 120, 17};
    while (place.x > x && !is_free(p, &place)) place.x -= 20;
    if (place.x <= x) place.x = RIGHT - 126;
    p->taken[p->n_taken++] = place;
    snprintf(name, sizeof name, "%s: %.0f %s", unit, peak / 1e9, scale);
    text_at(p->out, place.x + place.width, place.y + 13, "end", name);
    buf_printf(p->out,
               "<circle class=\"ridge\" data-unit=\"%s\" cx=\"%.2f\" cy=\"%.2f\" r=\"4\"/>\n", unit,
               x, y);
    snprintf(name, sizeof name, "ridge %s: %.1f FLOP/byte", unit, ridge);
    y += below ? 4 : -2;
    text_at(p->out, x - 10, y, "end", name);
    p->taken[p->n_taken++] = (box){x - 175, y - 10, 180, 14};
}

/* Between the two ridges, where no number of theirs stands, or else at the slope's foot. */
static void name_slope(picture *p, double x1, double y1, double x2, double y2) {
    const roof_peaks *peaks = &p->peaks;
    double ridge = fmin(peaks->int8_ops_per_s, peaks->f32_flops_per_s) / peaks->read_bytes_per_s;
    double length = hypot(x2 - x1, y2 - y1), room = length * (x2 - at_x(p, ridge)) / (x2 - x1);
    double from = room > 150 ? length - room / 2 - 55 : 0.04 * length;
    buf_printf(p->out,
               "<text transform=\"translate(%.1f %.1f) rotate(%.2f)\">memory: %.1f GB/s</text>\n",
               x1 + (x2 - x1) * from / length - 5, y1 + (y2 - y1) * from / length - 7,
               atan2(y2 - y1, x2 - x1) * 180 / acos(-1), peaks->read_bytes_per_s / 1e9);
}

static void draw_roofs(picture *p) {
    const roof_peaks *peaks = &p->peaks;
    double bandwidth = peaks->read_bytes_per_s;
    double top = fmax(peaks->int8_ops_per_s, peaks->f32_flops_per_s);
    double low = fmax(pow(10, p->x0), pow(10, p->y0) / bandwidth);
    double x1 = at_x(p, low), y1 = at_y(p, low * bandwidth);
    double x2 = at_x(p, top / bandwidth), y2 = at_y(p, top);
    buf_printf(p->out, "<path class=\"wall\" d=\"M%d %dV%.1fL%.1f %.1fL%.1f %.1fH%dV%dz\"/>\n",
               LEFT, TOP, y1, x1, y1, x2, y2, RIGHT, TOP);
    line(p->out, "roof memory", x1, y1, x2, y2);
    name_slope(p, x1, y1, x2, y2);
    bool near = fabs(at_y(p, peaks->f32_flops_per_s) - at_y(p, peaks->int8_ops_per_s)) < 24;
    bool f32_is_lower = peaks->f32_flops_per_s < peaks->int8_ops_per_s;
    draw_roof(p, "int8", "GOPS", peaks->int8_ops_per_s, near && !f32_is_lower);
    draw_roof(p, "f32", "GFLOP/s", peaks->f32_flops_per_s, near && f32_is_lower);
}

/* Dots ----------------------------------------------------------------------------------------- */

static bool has_dot(const dev_profile_row *row) {
    return row->flops > 0 && row->bytes > 0 && row->seconds > 0;
}

static size_t kind_number(picture *p, const dev_profile_row *row) {
    for (size_t i = 0; i < p->n_kinds; i++)
        if (strcmp(p->kinds[i]->name, row->name) == 0) return i + 1;
    p->kinds[p->n_kinds++] = row;
    return p->n_kinds;
}

static int by_size(const void *x, const void *y) {
    const dot *a = x, *b = y;
    return (a->radius < b->radius) - (a->radius > b->radius);
}

static bool collect(picture *p) {
    size_t most = 1;
    for (size_t s = 0; s < p->r->n_series; s++) most += p->r->series[s].n_rows;
    p->kinds = mem_zalloc(most, sizeof(void *));
    p->dots = mem_zalloc(most, sizeof *p->dots);
    p->taken = mem_zalloc(most + 8, sizeof *p->taken);
    if (p->kinds == NULL || p->dots == NULL || p->taken == NULL) return false;
    for (size_t s = 0; s < p->r->n_series; s++) {
        const roofline_series *series = &p->r->series[s];
        double total = roofline_seconds(series->rows, series->n_rows);
        for (size_t i = 0; i < series->n_rows; i++) {
            const dev_profile_row *row = &series->rows[i];
            if (!has_dot(row)) continue;
            double share = row->seconds / total;
            p->dots[p->n_dots++] = (dot){.row = row,
                                         .series = s,
                                         .number = kind_number(p, row),
                                         .share = share,
                                         .radius = fmax(2.5, 20 * sqrt(share))};
        }
    }
    choose_axes(p);
    for (size_t i = 0; i < p->n_dots; i++) {
        dot *d = &p->dots[i];
        d->x = at_x(p, d->row->flops / d->row->bytes);
        d->y = at_y(p, d->row->flops / d->row->seconds);
    }
    qsort(p->dots, p->n_dots, sizeof *p->dots, by_size);
    return true;
}

/* On rings around the dot, the nearest free place: dots on one spot get numbers beside each other.
 * Where a picture is too full for that the number stays on the dot. */
static void place_label(picture *p, dot *d) {
    double width = d->number < 10 ? 10 : d->number < 100 ? 17 : 24, height = 13;
    d->label = (box){d->x - width / 2, d->y - height / 2, width, height};
    for (int i = 0; i < RINGS * DIRECTIONS; i++) {
        double distance = d->radius + 9 + 11 * (i / DIRECTIONS);
        double angle = (i % DIRECTIONS) * 2 * acos(-1) / DIRECTIONS;
        box place = {d->x + distance * cos(angle) - width / 2,
                     d->y + distance * sin(angle) - height / 2, width, height};
        if (!is_free(p, &place)) continue;
        d->label = place;
        break;
    }
    p->taken[p->n_taken++] = d->label;
}

static void put_mark(buf *b, size_t series, bool integer, double r) {
    const char *colour = colours[series % N_COLOURS];
    const char *dashes = series < N_COLOURS ? "" : " stroke-dasharray=\"3 2\"";
    if (integer)
        buf_printf(b, "<circle class=\"mark\" r=\"%.1f\" fill=\"%s\" stroke=\"%s\"%s/>", r, colour,
                   colour, dashes);
    else /* of the same area */
        buf_printf(b,
                   "<rect class=\"mark\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                   "fill=\"%s\" stroke=\"%s\"%s/>",
                   -0.886 * r, -0.886 * r, 1.772 * r, 1.772 * r, colour, colour, dashes);
}

/* A dot, and what a pointer that rests on it is told. */
static void draw_dot(picture *p, const dot *d) {
    const dev_profile_row *row = d->row;
    buf *b = p->out;
    buf_printf(b, "<g class=\"dot\" data-series=\"%zu\" data-number=\"%zu\" ", d->series,
               d->number);
    buf_printf(b, "transform=\"translate(%.2f %.2f)\"><title>", d->x, d->y);
    svg_put_text(b, p->r->series[d->series].name, SIZE_MAX);
    buf_puts(b, ": ");
    svg_put_text(b, row->name, SIZE_MAX);
    buf_printf(b, "\n%.1f%% of the time; %.1f GB/s, %.1f GFLOP/s; %.1f%% of its %s roof</title>",
               100 * d->share, row->bytes / row->seconds / 1e9, row->flops / row->seconds / 1e9,
               100 * roofline_reached(row, &p->r->series[d->series].peaks),
               row->integer ? "int8" : "f32");
    put_mark(b, d->series, row->integer, d->radius);
    buf_puts(b, "</g>\n");
}

static void draw_number(picture *p, const dot *d) {
    double x = d->label.x + d->label.width / 2, y = d->label.y + d->label.height / 2;
    double distance = hypot(x - d->x, y - d->y), from = d->radius / distance;
    if (distance > d->radius + 12) /* from its rim, or from the middle of what hides the rim */
        buf_printf(p->out,
                   "<line class=\"lead\" stroke=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                   "y2=\"%.1f\"/>\n",
                   colours[d->series % N_COLOURS], d->x + (x - d->x) * from,
                   d->y + (y - d->y) * from, x, y);
    buf_printf(p->out,
               "<text class=\"number middle\" style=\"fill:%s\" x=\"%.1f\" y=\"%.1f\">%zu</text>\n",
               colours[d->series % N_COLOURS], x, y + 4, d->number);
}

/* Tables --------------------------------------------------------------------------------------- */

static const dev_profile_row *find_row(const roofline_series *s, const char *name) {
    for (size_t i = 0; i < s->n_rows; i++)
        if (strcmp(s->rows[i].name, name) == 0 && has_dot(&s->rows[i])) return &s->rows[i];
    return NULL;
}

static void put_cell(picture *p, double x, double y, double share, double reached) {
    char text[32];
    snprintf(text, sizeof text, "%.1f%%", 100 * share);
    text_at(p->out, x + 36, y, "end", text);
    snprintf(text, sizeof text, "%.0f%%", 100 * reached);
    if (reached > 0) text_at(p->out, x + 84, y, "end soft", text);
}

static double share_of_others(const roofline_series *s) {
    double others = 0, total = roofline_seconds(s->rows, s->n_rows);
    for (size_t i = 0; i < s->n_rows; i++)
        if (!has_dot(&s->rows[i])) others += s->rows[i].seconds;
    return total > 0 ? others / total : 0;
}

static void put_heads(picture *p, size_t first, size_t end, double y) {
    text_at(p->out, NAME_X, y + 15, "soft", "operation (circle: int8 roof, square: f32 roof)");
    for (size_t s = first; s < end; s++) {
        double x = COLUMN_X + COLUMN * (double)(s - first);
        buf_printf(p->out, "<g class=\"key\" transform=\"translate(%.1f %.1f)\">", x + 5, y - 4);
        put_mark(p->out, s, true, 5);
        buf_printf(p->out, "<text x=\"9\" y=\"4\">");
        svg_put_text(p->out, p->r->series[s].name, 12);
        buf_puts(p->out, "</text></g>\n");
        text_at(p->out, x + 36, y + 15, "end soft", "time");
        text_at(p->out, x + 84, y + 15, "end soft", "of roof");
    }
}

/* The operations of up to N_COLUMNS series; returns where the next table may begin. */
static double draw_table(picture *p, size_t first, double y) {
    const roofline_series *series = p->r->series;
    size_t end = first + N_COLUMNS < p->r->n_series ? first + N_COLUMNS : p->r->n_series;
    put_heads(p, first, end, y);
    y += 15;
    for (size_t k = 0; k <= p->n_kinds; k++) {
        bool others = k == p->n_kinds;
        y += ROW;
        line(p->out, "fine", 20, y - 14, RIGHT, y - 14);
        buf_printf(p->out, "<text class=\"%s\" x=\"%d\" y=\"%.1f\">", others ? "soft" : "kind",
                   NAME_X, y);
        svg_put_text(p->out, others ? "all else: norms, rotation, sums" : p->kinds[k]->name,
                     NAME_CHARS);
        buf_puts(p->out, "</text>\n");
        if (!others) {
            buf_printf(p->out, "<text class=\"number end\" x=\"%d\" y=\"%.1f\">%zu</text>\n",
                       NAME_X - 8, y, k + 1);
            buf_printf(p->out, "<g transform=\"translate(29 %.1f)\">", y - 4);
            put_mark(p->out, N_COLOURS - 1, p->kinds[k]->integer, 5);
            buf_puts(p->out, "</g>\n");
        }
        for (size_t s = first; s < end; s++) {
            double x = COLUMN_X + COLUMN * (double)(s - first);
            const dev_profile_row *row = others ? NULL : find_row(&series[s], p->kinds[k]->name);
            if (others) put_cell(p, x, y, share_of_others(&series[s]), 0);
            if (row != NULL)
                put_cell(p, x, y, row->seconds / roofline_seconds(series[s].rows, series[s].n_rows),
                         roofline_reached(row, &series[s].peaks));
        }
    }
    return y + 2 * ROW;
}

/* The page --------------------------------------------------------------------------------------*/

static void draw(picture *p) {
    buf *b = p->out;
    size_t n_tables = (p->r->n_series + N_COLUMNS - 1) / N_COLUMNS;
    size_t height = TABLE + n_tables * (15 + (p->n_kinds + 3) * ROW) - ROW;
    buf_printf(b,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" width=\"%d\" "
               "height=\"%zu\" role=\"img\">\n<title>",
               WIDTH, height, WIDTH, height);
    svg_put_text(b, p->r->title, SIZE_MAX);
    buf_printf(b, "</title>\n%s\n<rect class=\"page\" width=\"%d\" height=\"%zu\"/>\n", style,
               WIDTH, height);
    text_at(b, LEFT, 30, "title", p->r->title);
    text_at(b, LEFT, 51, "soft", p->r->subtitle);
    draw_grid(p, true);
    draw_grid(p, false);
    text_at(b, (LEFT + RIGHT) / 2, BOTTOM + 38, "middle", "FLOPs per byte");
    buf_printf(b,
               "<text class=\"middle\" transform=\"translate(24 %d) rotate(-90)\">FLOP/s</text>\n",
               (TOP + BOTTOM) / 2);
    draw_roofs(p);
    for (size_t i = 0; i < p->n_dots; i++) draw_dot(p, &p->dots[i]);
    for (size_t i = 0; i < p->n_dots; i++) {
        place_label(p, &p->dots[i]);
        draw_number(p, &p->dots[i]);
    }
    double y = TABLE;
    for (size_t s = 0; s < p->r->n_series; s += N_COLUMNS) y = draw_table(p, s, y);
    buf_puts(b, "</svg>\n");
}

void roofline_svg(buf *out, const roofline *r) {
    picture p = {.r = r, .out = out};
    for (size_t s = 0; s < r->n_series; s++)
        p.peaks = roof_peaks_higher(&p.peaks, &r->series[s].peaks);
    if (collect(&p))
        draw(&p);
    else
        out->failed = true;
    mem_free(p.kinds);
    mem_free(p.dots);
    mem_free(p.taken);
}

ridge_status roofline_svg_write(const char *path, const roofline *r, ridge_error *err) {
    buf b = {0};
    roofline_svg(&b, r);
    ridge_status status = svg_write(&b, path, err);
    buf_free(&b);
    return status;
}
