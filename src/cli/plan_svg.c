/* cli/plan_svg: see plan_svg.h. */
#include "cli/plan_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/svg.h"

enum { WIDTH = 960, HEIGHT = 420, TOP = 60, BOTTOM = 360, PANEL = 380, NAME_CHARS = 40 };

static const char style[] =
    ".roof{stroke:#1f2328;stroke-width:2;fill:none}.textbook{stroke:#1c7ed6;fill:none;"
    "stroke-width:2}.counted{stroke:#e8590c;fill:none;stroke-width:2}.key1{fill:#1c7ed6}"
    ".key2{fill:#e8590c}@media(prefers-color-scheme:dark){.roof{stroke:#e6edf3}}";

static svg_panel panel_at(buf *b, double left) {
    return (svg_panel){.out = b,
                       .left = left,
                       .right = left + PANEL,
                       .top = TOP,
                       .bottom = BOTTOM,
                       .log_x = true,
                       .log_y = true};
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
static void draw_dot(const svg_panel *p, const plan_phase *f, double n_gpus, bool counted,
                     bool prompt) {
    double x = svg_x(p, intensity(f)), y = svg_y(p, f->flops / f->seconds / n_gpus / 1e12);
    buf_printf(p->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n",
               counted ? "counted" : "textbook", x, y);
    svg_text_at(p->out, counted ? x + 8 : x - 8, prompt ? y - 8 : y + 16,
                counted ? "key2" : "key1 end", prompt ? "prompt" : "step");
}

static void draw_roofline(buf *b, const plan_report *r) {
    const plan_result *x = &r->result;
    double n = x->n_gpus / fmax(1, r->params.split.n_stages), peak = x->peak_flops / 1e12;
    svg_panel p = panel_at(b, 70);
    p.x1 = 3;
    p.y1 = ceil(log10(peak));
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
    svg_axes(&p, "FLOP per byte", "TFLOP/s of one GPU");
    double low = pow(10, p.x0), bandwidth = r->params.gpu.bytes_per_s / 1e12;
    if (low * bandwidth < pow(10, p.y0)) low = pow(10, p.y0) / bandwidth;
    buf_printf(b, "<path class=\"roof\" d=\"M%.1f %.1fL%.1f %.1fH%.1f\"/>\n", svg_x(&p, low),
               svg_y(&p, low * bandwidth), svg_x(&p, x->ridge), svg_y(&p, peak), p.right);
    draw_dot(&p, &x->prefill.textbook, fmax(1, r->params.split.n_tensor), false, true);
    draw_dot(&p, &x->prefill.counted, 1, true, true);
    draw_dot(&p, &x->decode.textbook, n, false, false);
    draw_dot(&p, &x->decode.counted, 1, true, false);
}

static void draw_curve(const svg_panel *p, const plan_sweep *s, bool counted) {
    buf_printf(p->out, "<path class=\"%s\" d=\"", counted ? "counted" : "textbook");
    for (int i = 0; i < PLAN_SVG_BATCHES; i++) {
        const plan_phase *f = counted ? &s->steps[i].counted : &s->steps[i].textbook;
        buf_printf(p->out, "%s%.1f %.1f", i == 0 ? "M" : "L", svg_x(p, pow(2, i)),
                   svg_y(p, f->seconds * 1e3));
    }
    buf_puts(p->out, "\"/>\n");
}

static void draw_steps(buf *b, const plan_sweep *s, uint32_t context) {
    char name[80];
    svg_panel p = panel_at(b, 550);
    p.x1 = 4;
    p.y1 = 1;
    p.y0 = floor(log10(s->steps[0].counted.seconds * 1e3));
    for (int i = 0; i < PLAN_SVG_BATCHES; i++) {
        widen(s->steps[i].counted.seconds * 1e3, &p.y0, &p.y1);
        widen(s->steps[i].textbook.seconds * 1e3, &p.y0, &p.y1);
    }
    snprintf(name, sizeof name, "ms per step, %u tokens in the cache each", context);
    svg_axes(&p, "sequences in a step", name);
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
    svg_begin(b, WIDTH, HEIGHT, style);
    draw_title(b, r);
    svg_text_at(b, 70, BOTTOM + 40, "key1", "textbook");
    svg_text_at(b, 135, BOTTOM + 40, "key2", "counted");
    draw_roofline(b, r);
    draw_steps(b, sweep, r->params.context);
    buf_puts(b, "</svg>\n");
}
