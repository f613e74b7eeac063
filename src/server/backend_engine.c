/* server/backend_engine: the server's backend over an engine_loop and a chat template.
 *
 * The model's template is parsed with the first chat, once: a model without one, or with a broken
 * one, still serves completions. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "server/backend.h"

struct backend_engine {
    engine_loop *loop;
    const chat_template *given; /* in place of the model's; may be NULL */
    pthread_mutex_t lock;
    chat_template *own; /* the model's: under lock until parsed, then immutable */
};

static const engine *engine_of(void *self) {
    return engine_loop_engine(((backend_engine *)self)->loop);
}

static const tokenizer *tokenizer_of(void *self) {
    return engine_tokenizer(engine_of(self));
}

static int get_fd(void *self) {
    return engine_loop_fd(((backend_engine *)self)->loop);
}

static engine_loop_state get_state(void *self, ridge_error *err) {
    return engine_loop_get_state(((backend_engine *)self)->loop, err);
}

static backend_info get_info(void *self) {
    const engine *e = engine_of(self);
    backend_info info = {.n_vocab = engine_n_vocab(e),
                         .max_model_len = engine_max_model_len(e),
                         .max_sequences = engine_loop_most(((backend_engine *)self)->loop),
                         .fingerprint = engine_fingerprint(e),
                         .cache = engine_get_cache_info(e)};
    engine_peaks(e, &info.peak_bytes_per_s, &info.peak_flops_per_s);
    return info;
}

static ridge_status encode(void *self, const char *text, size_t n, bool add_special, int32_t **ids,
                           size_t *n_ids, ridge_error *err) {
    tokenizer_options o = {.parse_special = true, .add_bos = add_special};
    return tokenizer_encode(tokenizer_of(self), text, n, o, ids, n_ids, err);
}

static size_t min_tokens(void *self, const char *text, size_t n) {
    return tokenizer_min_tokens(tokenizer_of(self), text, n);
}

static ridge_status get_template(backend_engine *b, const chat_template **out, ridge_error *err) {
    ridge_status status = RIDGE_OK;
    if (b->given != NULL) {
        *out = b->given;
        return RIDGE_OK;
    }
    const char *source = engine_chat_template(engine_of(b));
    if (source == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "this model has no chat template; start the server with --chat-template "
                          "FILE or NAME (%s)",
                          template_builtin_names());
    pthread_mutex_lock(&b->lock);
    if (b->own == NULL)
        status = template_parse(&b->own, source, strlen(source), "the model's chat template", err);
    *out = b->own;
    pthread_mutex_unlock(&b->lock);
    return status;
}

static void set_token(json_t *variables, const char *name, const tokenizer *t, int32_t id) {
    size_t n = 0;
    const char *bytes = id >= 0 ? tokenizer_token_bytes(t, id, true, &n) : "";
    if (json_object_get(variables, name) == NULL)
        json_object_set_new(variables, name, json_stringn(bytes, n));
}

static int64_t local_time(void) {
    time_t now = time(NULL);
    struct tm tm;
    return (int64_t)now + (localtime_r(&now, &tm) != NULL ? tm.tm_gmtoff : 0);
}

static ridge_status render(void *self, json_t *variables, buf *out, ridge_error *err) {
    const chat_template *template = NULL;
    RIDGE_TRY(get_template(self, &template, err));
    const tokenizer *t = tokenizer_of(self);
    set_token(variables, "bos_token", t, tokenizer_bos(t));
    set_token(variables, "eos_token", t, tokenizer_eos(t));
    template_limits limits = template_limits_default();
    return template_render(template, variables, local_time(), &limits, out, err);
}

static const char *token_bytes(void *self, int32_t id, size_t *n) {
    return tokenizer_token_bytes(tokenizer_of(self), id, true, n);
}

static detokenizer detokenize_begin(void *self, const engine_request *r) {
    return engine_request_detokenizer(r, tokenizer_of(self));
}

static void detokenize(void *self, detokenizer *d, int32_t id, bool special, buf *out) {
    detokenizer_push(d, tokenizer_of(self), id, special, out);
}

static void detokenize_end(void *self, detokenizer *d, buf *out) {
    (void)self;
    detokenizer_finish(d, out);
}

static size_t room(void *self) {
    return engine_loop_room(((backend_engine *)self)->loop);
}

static ridge_status submit(void *self, const engine_request *r, uint64_t *id, ridge_error *err) {
    return engine_loop_submit(((backend_engine *)self)->loop, r, id, err);
}

static void cancel(void *self, uint64_t id) {
    engine_loop_cancel(((backend_engine *)self)->loop, id);
}

static size_t take(void *self, engine_event_fn fn, void *context) {
    return engine_loop_take(((backend_engine *)self)->loop, fn, context);
}

static void drain(void *self) {
    engine_loop_drain(((backend_engine *)self)->loop);
}
static void cancel_all(void *self) {
    engine_loop_cancel_all(((backend_engine *)self)->loop);
}
static bool is_idle(void *self) {
    return engine_loop_is_idle(((backend_engine *)self)->loop);
}
static void stats(void *self, engine_stats *out) {
    engine_loop_stats(((backend_engine *)self)->loop, out);
}

ridge_status backend_engine_create(backend_engine **out, server_backend *table,
                                   const engine_params *params, size_t max_waiting,
                                   const chat_template *given, ridge_error *err) {
    backend_engine *b = mem_zalloc(1, sizeof *b);
    if (b == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "backend");
    pthread_mutex_init(&b->lock, NULL);
    b->given = given;
    ridge_status status = engine_loop_start(&b->loop, params, max_waiting, err);
    if (status != RIDGE_OK) {
        backend_engine_destroy(b);
        return status;
    }
    *table = (server_backend){
        .self = b,
        .fd = get_fd,
        .state = get_state,
        .info = get_info,
        .encode = encode,
        .min_tokens = min_tokens,
        .render = render,
        .token_bytes = token_bytes,
        .detokenize_begin = detokenize_begin,
        .detokenize = detokenize,
        .detokenize_end = detokenize_end,
        .room = room,
        .submit = submit,
        .cancel = cancel,
        .take = take,
        .drain = drain,
        .cancel_all = cancel_all,
        .is_idle = is_idle,
        .stats = stats,
    };
    *out = b;
    return RIDGE_OK;
}

void backend_engine_destroy(backend_engine *b) {
    if (b == NULL) return;
    engine_loop_destroy(b->loop);
    template_free(b->own);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}
