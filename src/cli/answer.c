/* cli/answer: see answer.h. */
#include "cli/answer.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/machine.h"
#include "cli/template_file.h"

answer_options answer_options_default(void) {
    return (answer_options){.top_p = 1, .repetition_penalty = 1};
}

static engine_request make_request(const int32_t *prompt, size_t n_prompt, const answer_options *o,
                                   const char *const *stop) {
    engine_request r = engine_request_default();
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = o->max_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)o->max_tokens;
    r.min_tokens = o->min_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)o->min_tokens;
    r.ignore_eos = o->ignore_eos;
    r.goes_on = o->goes_on;
    r.stop = stop;
    r.n_stop = o->stop != NULL;
    r.sampling.temperature = (float)o->temperature;
    r.sampling.top_k = o->top_k > INT32_MAX || o->top_k < INT32_MIN ? INT32_MIN : (int32_t)o->top_k;
    r.sampling.top_p = (float)o->top_p;
    r.sampling.min_p = (float)o->min_p;
    r.sampling.repetition_penalty = (float)o->repetition_penalty;
    r.sampling.presence_penalty = (float)o->presence_penalty;
    r.sampling.frequency_penalty = (float)o->frequency_penalty;
    r.sampling.seed = o->seed;
    return r;
}

ridge_status answer_options_check(const answer_options *o, ridge_error *err) {
    const engine_request r = make_request(NULL, 0, o, NULL);
    if (o->max_tokens > 0 && o->min_tokens > o->max_tokens)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--min-tokens %llu is above --max-tokens %llu",
                          (unsigned long long)o->min_tokens, (unsigned long long)o->max_tokens);
    return sampler_params_check(&r.sampling, INT32_MAX, err);
}

/* Takes one event into the answer. */
static ridge_status take_event(answer *a, const engine_event *event, bool stream,
                               ridge_error *err) {
    if (event->has_token) {
        if (!mem_grow((void **)&a->ids, &a->ids_capacity, a->n_ids + 1, sizeof *a->ids))
            return RIDGE_FAIL(err, RIDGE_ENOMEM, "answer");
        a->ids[a->n_ids++] = event->token.id;
    }
    buf_append(&a->text, event->text, event->n_text);
    if (stream && event->n_text > 0) {
        fwrite(event->text, 1, event->n_text, stdout);
        fflush(stdout);
    }
    if (event->finish != ENGINE_RUNNING) {
        a->finish = event->finish;
        a->usage = event->usage;
    }
    if (event->finish == ENGINE_ERROR)
        return RIDGE_FAIL(err, event->error->code, "%s", event->error->text);
    return RIDGE_OK;
}

ridge_status answer_run(engine *e, const int32_t *prompt, size_t n_prompt, const answer_options *o,
                        bool stream, const volatile int *stop, answer *out, ridge_error *err) {
    engine_request r = make_request(prompt, n_prompt, o, &o->stop);
    uint64_t id;
    bool cancelled = false, decoding = false;
    engine_account account;
    RIDGE_TRY(engine_submit(e, &r, &id, err));
    const engine_event *events;
    size_t n;
    while (engine_step(e, &events, &n)) {
        for (size_t i = 0; i < n; i++) {
            if (events[i].id != id) continue; /* the end of an answer that failed here */
            ridge_status status = take_event(out, &events[i], stream, err);
            if (status != RIDGE_OK && events[i].finish == ENGINE_RUNNING) engine_cancel(e, id);
            if (status != RIDGE_OK) return status;
        }
        if (!decoding && out->n_ids > 0) { /* what follows the first token is decode */
            engine_account_take(e, &account);
            decoding = true;
        }
        if ((stop != NULL && *stop != 0) || (stream && ferror(stdout))) {
            if (!cancelled) engine_cancel(e, id);
            cancelled = true;
        }
    }
    engine_account_take(e, &account);
    if (out->n_ids > 1 && account.seconds > 0)
        out->decode_bytes_per_s = (account.weight_bytes + account.kv_bytes) / account.seconds;
    return out->text.failed ? RIDGE_FAIL(err, RIDGE_ENOMEM, "answer") : RIDGE_OK;
}

void answer_free(answer *a) {
    buf_free(&a->text);
    mem_free(a->ids);
    *a = (answer){0};
}

const char *answer_finish_name(engine_finish finish) {
    switch (finish) {
    case ENGINE_RUNNING: break;
    case ENGINE_STOP: return "stop";
    case ENGINE_LENGTH: return "length";
    case ENGINE_CANCELLED: return "cancelled";
    case ENGINE_ERROR: return "error";
    }
    return "running";
}

void answer_print_timing(const answer *a, const machine_peaks *peaks) {
    const engine_usage *u = &a->usage;
    uint32_t n = u->completion_tokens;
    fprintf(stderr, "%u prompt token%s, %u answered; TTFT %.0f ms", u->prompt_tokens,
            plural(u->prompt_tokens), n, u->ttft_s * 1e3);
    if (n > 1 && u->decode_s > 0)
        fprintf(stderr, ", TPOT %.2f ms, %.1f tokens/s", u->decode_s / (n - 1) * 1e3,
                (n - 1) / u->decode_s);
    if (a->decode_bytes_per_s > 0 && peaks != NULL)
        fprintf(stderr, ", %.0f %% of the memory-bandwidth roof (%.1f of %.1f GB/s)",
                100 * a->decode_bytes_per_s / peaks->read_bytes_per_s, a->decode_bytes_per_s / 1e9,
                peaks->read_bytes_per_s / 1e9);
    fprintf(stderr, "\n");
}

ridge_status answer_template(engine *e, const char *chosen, chat_template **out, ridge_error *err) {
    if (chosen != NULL) return template_file_open(out, "--chat-template", chosen, err);
    const char *source = engine_chat_template(e);
    if (source == NULL)
        return RIDGE_FAIL(
            err, RIDGE_EINVAL,
            "the model has no chat template: choose one with --chat-template FILE or NAME "
            "(%s), or use --raw",
            template_builtin_names());
    return template_parse(out, source, strlen(source), "chat template", err);
}

static json_t *token_text(const tokenizer *t, int32_t id) {
    size_t n = 0;
    const char *s = id >= 0 ? tokenizer_token_bytes(t, id, true, &n) : "";
    return json_stringn(s, n);
}

ridge_status answer_render(engine *e, const chat_template *t, json_t *messages, int32_t **ids,
                           size_t *n_ids, ridge_error *err) {
    const tokenizer *tok = engine_tokenizer(e);
    json_t *variables =
        json_pack("{s:O, s:n, s:n, s:b, s:o, s:o}", "messages", messages, "tools", "documents",
                  "add_generation_prompt", 1, "bos_token", token_text(tok, tokenizer_bos(tok)),
                  "eos_token", token_text(tok, tokenizer_eos(tok)));
    if (variables == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "messages");
    template_limits limits = template_limits_default();
    struct tm local;
    time_t now = time(NULL);
    localtime_r(&now, &local);
    buf text = {0};
    ridge_status status =
        template_render(t, variables, (int64_t)now + local.tm_gmtoff, &limits, &text, err);
    if (status == RIDGE_OK)
        status = tokenizer_encode(tok, text.data != NULL ? text.data : "", text.len,
                                  (tokenizer_options){.parse_special = true}, ids, n_ids, err);
    buf_free(&text);
    json_decref(variables);
    return status;
}
