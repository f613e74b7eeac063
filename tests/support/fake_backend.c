/* tests/support/fake_backend: see fake_backend.h. */
#include "fake_backend.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

#define MAX_LIVE 512

typedef struct {
    uint64_t id;
    engine_request r; /* prompt, stop are not kept */
    int32_t prompt[4096];
    bool cancelled;
    uint32_t n_sampled;
    detokenizer d;
    uint32_t n_prompt_said;
} fake_sequence;

typedef struct fake_event {
    struct fake_event *next;
    engine_event e;
    char text[64];
} fake_event;

struct fake_backend {
    pthread_mutex_t lock;
    pthread_t thread;
    bool stopping, draining, stuck;
    engine_stats stats;
    engine_loop_state state;
    const char *script;
    int step_us;
    size_t max_live, n_live, n_cancelled;
    uint32_t max_model_len, retry_after_s;
    uint64_t last_id;
    int fd;
    fake_sequence *live[MAX_LIVE];
    fake_event *first, **last;
};

static void signal_fd(fake_backend *f) {
    ssize_t n = write(f->fd, &(uint64_t){1}, 8);
    (void)n;
}

static void put_bytes(detokenizer *d, int32_t id, bool special, buf *out) {
    bool begins = !d->started;
    d->started = true;
    if (begins && id == ' ') return;
    if (id >= 256) {
        if (special) buf_puts(out, id == FAKE_EOS ? "<eos>" : "<bos>");
        return;
    }
    d->held[d->n_held++] = (char)id;
    size_t tail = utf8_incomplete_tail(d->held, d->n_held);
    if (tail == d->n_held && tail < sizeof d->held) return;
    if (utf8_valid(d->held, d->n_held))
        buf_append(out, d->held, d->n_held);
    else
        buf_puts(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}

static void push_event(fake_backend *f, fake_sequence *s, const engine_event *e, const buf *text) {
    fake_event *event = mem_zalloc(1, sizeof *event);
    event->e = *e;
    event->e.id = s->id;
    event->e.user = s->r.user;
    event->e.stop_string = -1;
    event->e.time_s = clock_now_s();
    if (text != NULL && text->len > 0) {
        memcpy(event->text, text->data, text->len);
        event->e.n_text = text->len;
    }
    *f->last = event;
    f->last = &event->next;
    signal_fd(f);
}

static void fill_token(const fake_sequence *s, int32_t id, int n_logprobs, sampler_result *t) {
    t->id = id;
    uint32_t choice = s->r.sampling.choice; /* of choices 0 to 3 the second is the likeliest, ... */
    t->logprob = -0.5f - 1.0f / (float)(id + 3) + .125f * (float)(choice * 3 % 4);
    t->rank = 1 + id % 7;
    t->n_top = n_logprobs > 0 ? n_logprobs : 0;
    for (int i = 0; i < t->n_top; i++)
        t->top[i] = (sampler_logprob){i == 0 ? id : (id + i) % 256, t->logprob - (float)i};
}

/* One token of one sequence; true when it has ended. */
static bool step_sequence(fake_backend *f, fake_sequence *s) {
    engine_event e = {0};
    buf text = {0};
    if (s->cancelled) {
        e.finish = ENGINE_CANCELLED;
        push_event(f, s, &e, NULL);
        return true;
    }
    if (s->r.prompt_logprobs >= 0 && s->n_prompt_said + 1 < s->r.n_prompt) {
        e = (engine_event){.is_prompt = true, .position = ++s->n_prompt_said};
        fill_token(s, s->prompt[s->n_prompt_said], s->r.prompt_logprobs, &e.token);
        push_event(f, s, &e, NULL);
        return false;
    }
    if (s->r.prompt_only) {
        e = (engine_event){.finish = ENGINE_LENGTH, .usage.prompt_tokens = (uint32_t)s->r.n_prompt};
        push_event(f, s, &e, NULL);
        return true;
    }
    size_t n_script = strlen(f->script);
    bool over = s->n_sampled >= n_script && !s->r.ignore_eos;
    int32_t id = over ? FAKE_EOS : (unsigned char)f->script[s->n_sampled % n_script];
    if (s->n_sampled++ == 0) f->stats.prompt_tokens += s->r.n_prompt;
    f->stats.generation_tokens++;
    e = (engine_event){.has_token = true, .position = (uint32_t)s->r.n_prompt + s->n_sampled - 1};
    fill_token(s, id, s->r.sampling.n_logprobs, &e.token);
    put_bytes(&s->d, id, s->r.special, &text);
    if (over)
        e.finish = ENGINE_STOP;
    else if (s->n_sampled == s->r.max_tokens)
        e.finish = ENGINE_LENGTH;
    if (e.finish != ENGINE_RUNNING) {
        e.usage = (engine_usage){.prompt_tokens = (uint32_t)s->r.n_prompt,
                                 .completion_tokens = s->n_sampled,
                                 .queue_s = .25,
                                 .ttft_s = .75,
                                 .prefill_s = .5,
                                 .decode_s = s->n_sampled > 1 ? 2 : 0,
                                 .prefill = {.n_steps = 1, .n_seqs = 1, .seconds = .5},
                                 .decode = {.seconds = s->n_sampled > 1 ? 2 : 0,
                                            .n_steps = s->n_sampled - 1,
                                            .n_seqs = s->n_sampled - 1}};
    }
    push_event(f, s, &e, &text);
    buf_free(&text);
    return e.finish != ENGINE_RUNNING;
}

static void *engine_thread(void *context) {
    fake_backend *f = context;
    pthread_mutex_lock(&f->lock);
    while (!f->stopping) {
        f->stats.steps += f->n_live > 0 && !f->stuck;
        if (!f->stuck) f->stats.turned_s = clock_now_s();
        for (size_t i = 0; i < f->n_live && !f->stuck;) {
            if (step_sequence(f, f->live[i])) {
                mem_free(f->live[i]);
                memmove(&f->live[i], &f->live[i + 1], (f->n_live - i - 1) * sizeof f->live[0]);
                f->n_live--;
            } else {
                i++;
            }
        }
        pthread_mutex_unlock(&f->lock);
        usleep((useconds_t)f->step_us);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- the table ---- */

static int get_fd(void *self) {
    return ((fake_backend *)self)->fd;
}

static engine_loop_state get_state(void *self, ridge_error *err) {
    fake_backend *f = self;
    pthread_mutex_lock(&f->lock);
    engine_loop_state state = f->state;
    pthread_mutex_unlock(&f->lock);
    if (state == LOOP_FAILED) error_set(err, RIDGE_EIO, "the fake has failed");
    return state;
}

static backend_info get_info(void *self) {
    return (backend_info){.n_vocab = FAKE_N_VOCAB,
                          .max_model_len = ((fake_backend *)self)->max_model_len,
                          .max_sequences = SIZE_MAX,
                          .fingerprint = "fp_fake",
                          .cache = {.block_size = 16, .n_blocks = 1000, .type = "f16"},
                          .peak_bytes_per_s = 1e10,
                          .peak_flops_per_s = 1e11};
}

static ridge_status encode(void *self, const char *text, size_t n, bool add_special, int32_t **ids,
                           size_t *n_ids, ridge_error *err) {
    (void)self;
    if (n > 0 && text[0] == '~') usleep(999999);
    size_t skip = add_special && n > 0 ? 1 : 0;
    *ids = mem_zalloc(n + 1, sizeof **ids);
    if (*ids == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "ids");
    (*ids)[0] = FAKE_BOS;
    for (size_t i = 0; i < n; i++) (*ids)[i + skip] = (unsigned char)text[i];
    *n_ids = n + skip;
    return RIDGE_OK;
}

static size_t min_tokens(void *self, const char *text, size_t n) {
    (void)self;
    (void)text;
    return n / 2;
}

static ridge_status render(void *self, json_t *variables, buf *out, ridge_error *err) {
    size_t i;
    json_t *message;
    (void)self;
    json_array_foreach(json_object_get(variables, "messages"), i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (strcmp(role, "developer") == 0)
            return RIDGE_FAIL(err, RIDGE_EINVAL, "boom: no developers");
        buf_printf(out, "%s:", role);
        json_t *content = json_object_get(message, "content");
        buf_append(out, json_string_value(content), json_string_length(content));
        buf_putc(out, '\n');
    }
    return RIDGE_OK;
}

static const char *token_bytes(void *self, int32_t id, size_t *n) {
    static const char bytes[] = "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17\20\21\22\23\24\25\26\27"
                                "\30\31\32\33\34\35\36\37 !\"#$%&'()*+,-./0123456789:;<=>?@"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";
    (void)self;
    *n = id < 127 ? 1 : id == FAKE_EOS || id == FAKE_BOS ? 5 : 1;
    return id < 127 ? &bytes[id] : id == FAKE_EOS ? "<eos>" : id == FAKE_BOS ? "<bos>" : "\xFF";
}

static detokenizer detokenize_begin(void *self, const engine_request *r) {
    (void)self;
    return (detokenizer){.started = r->goes_on && r->prompt[r->n_prompt - 1] < 256};
}

static void detokenize(void *self, detokenizer *d, int32_t id, bool special, buf *out) {
    (void)self;
    put_bytes(d, id, special, out);
}

static void detokenize_end(void *self, detokenizer *d, buf *out) {
    (void)self;
    if (d->n_held > 0) buf_puts(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}

static size_t most_live(const fake_backend *f) {
    return f->max_live < MAX_LIVE ? f->max_live : MAX_LIVE;
}

static size_t room(void *self) {
    fake_backend *f = self;
    pthread_mutex_lock(&f->lock);
    size_t n = most_live(f) > f->n_live ? most_live(f) - f->n_live : 0;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static ridge_status submit(void *self, const engine_request *r, uint64_t *id, ridge_error *err) {
    fake_backend *f = self;
    ridge_status status = RIDGE_OK;
    pthread_mutex_lock(&f->lock);
    if (f->draining) {
        status = RIDGE_FAIL(err, RIDGE_ECANCEL, "draining");
    } else if (f->retry_after_s > 0) {
        if (err != NULL) err->retry_after_s = f->retry_after_s;
        status = RIDGE_FAIL(err, RIDGE_EBUSY, "the first token would come after about 9.1 s");
    } else if (f->n_live >= most_live(f)) {
        status = RIDGE_FAIL(err, RIDGE_EFULL, "full");
    } else {
        fake_sequence *s = mem_zalloc(1, sizeof *s);
        s->id = *id = ++f->last_id;
        s->r = *r;
        s->d = detokenize_begin(f, r);
        for (size_t i = 0; i < r->n_prompt && i < 4096; i++) s->prompt[i] = r->prompt[i];
        f->live[f->n_live++] = s;
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static void cancel_where(fake_backend *f, uint64_t id) {
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_live; i++)
        if ((id == 0 || f->live[i]->id == id) && !f->live[i]->cancelled) {
            f->live[i]->cancelled = true;
            f->n_cancelled++;
        }
    pthread_mutex_unlock(&f->lock);
}

static void cancel(void *self, uint64_t id) {
    cancel_where(self, id);
}
static void cancel_all(void *self) {
    cancel_where(self, 0);
}

static size_t take(void *self, engine_event_fn fn, void *context) {
    fake_backend *f = self;
    uint64_t count;
    size_t n = 0;
    ssize_t got = read(f->fd, &count, sizeof count);
    (void)got;
    pthread_mutex_lock(&f->lock);
    fake_event *e = f->first;
    f->first = NULL;
    f->last = &f->first;
    pthread_mutex_unlock(&f->lock);
    for (fake_event *next; e != NULL; e = next, n++) {
        next = e->next;
        e->e.text = e->text;
        if (fn != NULL) fn(context, &e->e);
        mem_free(e);
    }
    return n;
}

static void drain(void *self) {
    fake_backend *f = self;
    pthread_mutex_lock(&f->lock);
    f->draining = true;
    pthread_mutex_unlock(&f->lock);
}

static bool is_idle(void *self) {
    fake_backend *f = self;
    pthread_mutex_lock(&f->lock);
    bool idle = f->n_live == 0 && f->first == NULL;
    pthread_mutex_unlock(&f->lock);
    return idle;
}

static void get_stats(void *self, engine_stats *out) {
    fake_backend *f = self;
    pthread_mutex_lock(&f->lock);
    *out = f->stats;
    out->n_running = f->n_live;
    pthread_mutex_unlock(&f->lock);
}

fake_backend *fake_backend_create(server_backend *table, const char *script, int step_us,
                                  size_t max_live, uint32_t max_model_len) {
    fake_backend *f = mem_zalloc(1, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    f->state = LOOP_READY;
    f->script = script;
    f->step_us = step_us;
    f->max_live = max_live;
    f->max_model_len = max_model_len;
    f->last = &f->first;
    f->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_create(&f->thread, NULL, engine_thread, f);
    *table = (server_backend){.self = f,
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
                              .stats = get_stats};
    return f;
}

void fake_backend_destroy(fake_backend *f) {
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    take(f, NULL, NULL);
    for (size_t i = 0; i < f->n_live; i++) mem_free(f->live[i]);
    close(f->fd);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

void fake_backend_set_state(fake_backend *f, engine_loop_state state) {
    pthread_mutex_lock(&f->lock);
    f->state = state;
    pthread_mutex_unlock(&f->lock);
    signal_fd(f);
}

void fake_backend_set_busy(fake_backend *f, uint32_t retry_after_s) {
    pthread_mutex_lock(&f->lock);
    f->retry_after_s = retry_after_s;
    pthread_mutex_unlock(&f->lock);
}

size_t fake_backend_n_live(fake_backend *f) {
    pthread_mutex_lock(&f->lock);
    size_t n = f->n_live;
    pthread_mutex_unlock(&f->lock);
    return n;
}

size_t fake_backend_n_cancelled(fake_backend *f) {
    pthread_mutex_lock(&f->lock);
    size_t n = f->n_cancelled;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fake_backend_set_stuck(fake_backend *f, bool stuck) {
    pthread_mutex_lock(&f->lock);
    f->stuck = stuck;
    pthread_mutex_unlock(&f->lock);
}
