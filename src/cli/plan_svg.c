/* cli/plan_svg: see plan_svg.h. */
#include "cli/plan_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/svg.h"

enum { WIDTH = 960, HEIGHT = 420, TOP = 60, BOTTOM = 360, PANEL = 380, NAME_CHARS = 40 };

static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:16px;font-weight:600}"
    ".page{fill:#fff}.grid{stroke:#d1d9e0}.roof{stroke:#1f2328;stroke-width:2;fill:none}"
    ".textbook{stroke:#1c7ed6;fill:none;stroke-width:2}.counted{stroke:#e8590c;fill:none;"
    "stroke-width:2}.key1{fill:#1c7ed6}.key2{fill:#e8590c}.middle{text-anchor:middle}"
    ".end{text-anchor:end}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}"
    ".grid{stroke:#2f3742}.roof{stroke:#e6edf3}}</style>";

/* One plot: decades [x0, x1) x [y0, y1) on [left, left + PANEL) x [TOP, BOTTOM). */
typedef struct {
    buf *out;
    double left, x0, x1, y0, y1;
} panel;

static double at_x(const panel *p, double x) {
    return p->left + (log10(x) - p->x0) / (p->x1 - p->x0) * PANEL;
}

static double at_y(const panel *p, double y) {
    return BOTTOM - (log10(y) - p->y0) / (p->y1 - p->y0) * (BOTTOM - TOP);
}

static void text_at(buf *b, double x, double y, const char *class, const char *s) {
    buf_printf(b, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    svg_put_text(b, s, SIZE_MAX);
    buf_puts(b, "</text>\n");
}

#define MOST_NAMES 9 /* of decades on an axis */

/* "1", "100", "1e+06", at each decade as far as there is room. */
static void name_decade(const panel *p, double x, double y, const char *class, int d, double room) {
    char name[32];
    int every = (int)fmax(1, ceil(room));
    if (d % every != 0) return;
    snprintf(name, sizeof name, "%g", pow(10, d));
    text_at(p->out, x, y, class, name);
}

static void draw_axes(const panel *p, const char *x_name, const char *y_name) {
    for (int d = (int)p->x0; d <= (int)p->x1; d++) {
        double x = at_x(p, pow(10, d));
        buf_printf(p->out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", x, TOP, BOTTOM);
        name_decade(p, x, BOTTOM + 18, "middle", d, (p->x1 - p->x0) / MOST_NAMES);
    }
    for (int d = (int)p->y0; d <= (int)p->y1; d++) {
        double y = at_y(p, pow(10, d));
        buf_printf(p->out, "<path class=\"grid\" d=\"M%.1f %.1fh%d\"/>\n", p->left, y, PANEL);
        name_decade(p, p->left - 6, y + 4, "end", d, (p->y1 - p->y0) / MOST_NAMES);
    }
    text_at(p->out, p->left + PANEL / 2.0, BOTTOM + 40, "middle", x_name);
    text_at(p->out, p->left, TOP - 10, "", y_name);
}

static void widen(double value, double *low, double *high) {
    if (!(value > 0)) return;
    *low = fmin(*low, floor(log10(value)));
    *high = fmax(*high, ceil(log10(value)));
}

static double intensity(const plan_phase *f) {
    return f->flops / (f->weight_bytes + f->kv_bytes);
}

#define ROOM_FOR_NAMES 3 /* beside a dot, as a factor */

/* Names go to the four sides: the textbook's left of its dots, prompts above. */
static void draw_dot(const panel *p, const plan_phase *f, double n_gpus, bool counted,
                     bool prompt) {
    double x = at_x(p, intensity(f)), y = at_y(p, f->flops / f->seconds / n_gpus / 1e12);
    buf_printf(p->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n",
               counted ? "counted" : "textbook", x, y);
    text_at(p->out, counted ? x + 8 : x - 8, prompt ? y - 8 : y + 16, counted ? "key2" : "key1 end",
            prompt ? "prompt" : "step");
}

static void draw_roofline(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    double n = x->n_gpus / fmax(1, r->params.split.n_stages), peak = x->peak_flops / 1e12;
    panel p = {.out = b, .left = 70, .x0 = 0, .x1 = 3, .y0 = 0, .y1 = ceil(log10(peak))};
    const plan_phase *phases[] = {&x->prefill.textbook, &x->prefill.counted, &x->decode.textbook,
                                  &x->decode.counted};
    for (int i = 0; i < 4; i++) {
        widen(intensity(phases[i]) / ROOM_FOR_NAMES, &p.x0, &p.x1);
        widen(intensity(phases[i]) * ROOM_FOR_NAMES, &p.x0, &p.x1);
        double rate = phases[i]->flops / phases[i]->seconds / n / 1e12;
        widen(rate / ROOM_FOR_NAMES, &p.y0, &p.y1);
        widen(rate, &p.y0, &p.y1);
    }
    widen(x->ridge * ROOM_FOR_NAMES, &p.x0, &p.x1);
    draw_axes(&p, "FLOP per byte", "TFLOP/s of one GPU");
    double low = pow(10, p.x0), bandwidth = r->params.gpu.bytes_per_s / 1e12;
    if (low * bandwidth < pow(10, p.y0)) low = pow(10, p.y0) / bandwidth;
    buf_printf(b, "<path class=\"roof\" d=\"M%.1f %.1fL%.1f %.1fH%.1f\"/>\n", at_x(&p, low),
               at_y(&p, low * bandwidth), at_x(&p, x->ridge), at_y(&p, peak), p.left + PANEL);
    draw_dot(&p, &x->prefill.textbook, fmax(1, r->params.split.n_tensor), false, true);
    draw_dot(&p, &x->prefill.counted, 1, true, true);
    draw_dot(&p, &x->decode.textbook, n, false, false);
    draw_dot(&p, &x->decode.counted, 1, true, false);
}

static void draw_curve(const panel *p, const plan_sweep *s, bool counted) {
    buf_printf(p->out, "<path class=\"%s\" d=\"", counted ? "counted" : "textbook");
    for (int i = 0; i < PLAN_SVG_BATCHES; i++) {
        const plan_phase *f = counted ? &s->steps[i].counted : &s->steps[i].textbook;
        buf_printf(p->out, "%s%.1f %.1f", i == 0 ? "M" : "L", at_x(p, pow(2, i)),
                   at_y(p, f->seconds * 1e3));
    }
    buf_puts(p->out, "\"/>\n");
}

static void draw_steps(buf *b, const plan_sweep *s, uint32_t context) {
    char name[80];
    panel p = {.out = b, .left = 550, .x0 = 0, .x1 = 4, .y0 = 0, .y1 = 1};
    p.y0 = floor(log10(s->steps[0].counted.seconds * 1e3));
    for (int i = 0; i < PLAN_SVG_BATCHES; i++) {
        widen(s->steps[i].counted.seconds * 1e3, &p.y0, &p.y1);
        widen(s->steps[i].textbook.seconds * 1e3, &p.y0, &p.y1);
    }
    snprintf(name, sizeof name, "ms per step, %u tokens in the cache each", context);
    draw_axes(&p, "sequences in a step", name);
    draw_curve(&p, s, false);
    draw_curve(&p, s, true);
}

ridge_status plan_sweep_make(plan_sweep *out, plan *p, uint32_t context, ridge_error *err) {
    for (uint32_t i = 0; i < PLAN_SVG_BATCHES; i++)
        RIDGE_TRY(plan_decode(p, 1u << i, context, &out->steps[i], err));
    return RIDGE_OK;
}

static void draw_title(buf *b, const plan_report *r) {
    buf_puts(b, "<text class=\"title\" x=\"20\" y=\"26\">");
    svg_put_text(b, r->model, NAME_CHARS);
    buf_printf(b, " on %.0f x ", r->result.n_gpus);
    svg_put_text(b, r->params.gpu.title, SIZE_MAX);
    buf_puts(b, "</text>\n");
}

void plan_svg(buf *b, const plan_report *r, const plan_sweep *sweep) {
    buf_printf(b,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n%s\n"
               "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n",
               WIDTH, HEIGHT, style, WIDTH, HEIGHT);
    draw_title(b, r);
    text_at(b, 70, BOTTOM + 40, "key1", "textbook");
    text_at(b, 135, BOTTOM + 40, "key2", "counted");
    draw_roofline(b, r);
    draw_steps(b, sweep, r->params.context);
    buf_puts(b, "</svg>\n");
}
