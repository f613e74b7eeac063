/* load/summary: what the records come to, see load.h. Pure. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "load/load.h"

const char *load_end_name(const load_record *r, char out[static 16]) {
    static const char *const names[LOAD_N_ENDS] = {
#define X(name, text) text,
        LOAD_END_MAP(X)
#undef X
    };
    if (r->end == LOAD_HTTP)
        snprintf(out, 16, "http_%d", r->http_status % 1000);
    else
        snprintf(out, 16, "%s", names[r->end]);
    return out;
}

uint64_t load_record_tokens(const load_record *r) {
    return r->output_tokens >= 0 ? (uint64_t)r->output_tokens : r->n_texts;
}

double load_record_tpot_ms(const load_record *r) {
    uint64_t tokens = load_record_tokens(r);
    if (r->n_texts == 0 || tokens < 2) return NAN;
    return (double)(r->last_us - r->first_us) / 1e3 / (double)(tokens - 1);
}

double load_record_ttft_ms(const load_record *r) {
    return r->n_texts > 0 ? (double)(r->first_us - r->due_us) / 1e3 : NAN;
}

/* An answer of one token has no time per further token, and so keeps every target for it. What
 * cannot be known (no stream) meets no target. */
static bool is_good(const load_record *r, double slo_ttft_ms, double slo_tpot_ms) {
    double ttft = load_record_ttft_ms(r), tpot = load_record_tpot_ms(r);
    if (slo_ttft_ms > 0 && !(ttft <= slo_ttft_ms)) return false;
    return !(slo_tpot_ms > 0) || tpot <= slo_tpot_ms ||
           (r->n_texts > 0 && load_record_tokens(r) < 2);
}

static void count_error(load_summary *s, const load_record *r) {
    char name[16];
    size_t i = 0;
    load_end_name(r, name);
    while (i < s->n_errors && strcmp(s->errors[i].name, name) != 0) i++;
    /* There are not so many kinds; should a server find more, the last one stands for them. */
    if (i == LOAD_MAX_ERROR_KINDS) i--;
    if (i == s->n_errors) {
        memcpy(s->errors[i].name, name, sizeof name);
        s->n_errors++;
    }
    if (s->errors[i].first == NULL) s->errors[i].first = r->message;
    s->errors[i].count++;
}

static bool is_late(const load_summary *s) {
    double typical = s->ttft_ms.n > 0 ? s->ttft_ms.p50 : s->e2e_ms.p50;
    return s->late_ms.p99 > LOAD_LATE_MS && s->late_ms.p99 > LOAD_LATE_SHARE * typical;
}

typedef struct {
    samples ttft, tpot, itl, e2e, late;
} sets;

static void add_number(samples *s, double x) {
    if (!isnan(x)) samples_add(s, x);
}

static void take_answer(load_summary *out, sets *s, const load_record *r) {
    add_number(&s->ttft, load_record_ttft_ms(r));
    add_number(&s->tpot, load_record_tpot_ms(r));
    samples_add(&s->e2e, (double)(r->end_us - r->due_us) / 1e3);
    for (uint32_t i = 1; i < r->n_texts; i++) samples_add(&s->itl, r->gaps_us[i - 1] / 1e3);
    out->input_tokens += r->prompt_tokens >= 0 ? (uint64_t)r->prompt_tokens : r->n_input;
    out->cached_tokens += r->cached_tokens > 0 ? (uint64_t)r->cached_tokens : 0;
    out->output_tokens += load_record_tokens(r);
}

ridge_status load_summarize(load_summary *out, const load_result *r, double slo_ttft_ms,
                            double slo_tpot_ms, ridge_error *err) {
    sets s = {0};
    *out = (load_summary){0};
    for (size_t i = 0; i < r->n; i++) {
        const load_record *record = &r->records[i];
        samples_add(&s.late, (double)(record->sent_us - record->due_us) / 1e3);
        if (record->end == LOAD_OK) {
            out->n_ok++;
            out->n_good += is_good(record, slo_ttft_ms, slo_tpot_ms);
            take_answer(out, &s, record);
        } else {
            out->n_failed++;
            count_error(out, record);
        }
    }
    bool failed = s.ttft.failed || s.tpot.failed || s.itl.failed || s.e2e.failed || s.late.failed;
    out->ttft_ms = quantiles_of(&s.ttft);
    out->tpot_ms = quantiles_of(&s.tpot);
    out->itl_ms = quantiles_of(&s.itl);
    out->e2e_ms = quantiles_of(&s.e2e);
    out->late_ms = quantiles_of(&s.late);
    out->late = is_late(out);
    samples_free(&s.ttft);
    samples_free(&s.tpot);
    samples_free(&s.itl);
    samples_free(&s.e2e);
    samples_free(&s.late);
    return failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "the statistics") : RIDGE_OK;
}
