/* server/backend_engine: the server's backend over an engine_loop and the model's chat template.
 *
 * The template is parsed once, when the model is ready; until then render waits for nobody: the
 * server asks nothing of a backend that is not ready. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "server/backend.h"
#include "text/template.h"

struct backend_engine {
    engine_loop *loop;
    const char *template_source, *template_name; /* given in place of the model's; may be NULL */
    pthread_mutex_t lock;
    chat_template *template; /* under lock until parsed, then immutable */
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
    return (backend_info){engine_n_vocab(e), engine_max_model_len(e), engine_fingerprint(e)};
}

static ridge_status encode(void *self, const char *text, size_t n, bool add_special, int32_t **ids,
                           size_t *n_ids, ridge_error *err) {
    tokenizer_options o = {.parse_special = true, .add_bos = add_special};
    return tokenizer_encode(tokenizer_of(self), text, n, o, ids, n_ids, err);
}

static ridge_status parse_template(backend_engine *b, ridge_error *err) {
    const char *source = b->template_source, *name = b->template_name;
    if (source == NULL) {
        source = engine_chat_template(engine_of(b));
        name = "the model's chat template";
    }
    if (source == NULL)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "this model has no chat template; start the server with --chat-template "
                          "FILE or NAME (%s)",
                          template_builtin_names());
    return template_parse(&b->template, source, strlen(source), name, err);
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
    backend_engine *b = self;
    pthread_mutex_lock(&b->lock);
    ridge_status status = b->template != NULL ? RIDGE_OK : parse_template(b, err);
    pthread_mutex_unlock(&b->lock);
    if (status != RIDGE_OK) return status;
    const tokenizer *t = tokenizer_of(self);
    set_token(variables, "bos_token", t, tokenizer_bos(t));
    set_token(variables, "eos_token", t, tokenizer_eos(t));
    template_limits limits = template_limits_default();
    return template_render(b->template, variables, local_time(), &limits, out, err);
}

static const char *token_bytes(void *self, int32_t id, size_t *n) {
    return tokenizer_token_bytes(tokenizer_of(self), id, true, n);
}

static void detokenize(void *self, detokenizer *d, int32_t id, bool special, buf *out) {
    detokenizer_push(d, tokenizer_of(self), id, special, out);
}

static void detokenize_end(void *self, detokenizer *d, buf *out) {
    (void)self;
    detokenizer_finish(d, out);
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

ridge_status backend_engine_create(backend_engine **out, server_backend *table,
                                   const engine_params *params, size_t max_waiting,
                                   const char *template_source, const char *template_name,
                                   ridge_error *err) {
    backend_engine *b = mem_zalloc(1, sizeof *b);
    if (b == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "backend");
    pthread_mutex_init(&b->lock, NULL);
    b->template_source = template_source;
    b->template_name = template_name;
    /* A template that was given is wrong now or never: say so before the model loads. */
    ridge_status status = template_source != NULL ? parse_template(b, err) : RIDGE_OK;
    if (status == RIDGE_OK) status = engine_loop_start(&b->loop, params, max_waiting, err);
    if (status != RIDGE_OK) {
        backend_engine_destroy(b);
        return status;
    }
    *table = (server_backend){b,      get_fd,      get_state,  get_info,       encode,
                              render, token_bytes, detokenize, detokenize_end, submit,
                              cancel, take,        drain,      cancel_all,     is_idle};
    *out = b;
    return RIDGE_OK;
}

void backend_engine_destroy(backend_engine *b) {
    if (b == NULL) return;
    engine_loop_destroy(b->loop);
    template_free(b->template);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}
