/* engine/: how a text begins and ends: the space before it; stop strings in the last token and in
 * the detokenizer's last bytes, end tokens, the limit, and which of them is the reason when several
 * come at once. */
#include "unit.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mapfile.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "format/gguf.h"
#include "tiny_model.h"

#define BYTE(b) (3 + (b)) /* the token of one byte */
#define REPLACEMENT "\xEF\xBF\xBD"

static engine *e;

static ridge_status open_model(engine **out, const char *path) {
    engine_params p = engine_params_default();
    p.model_path = path;
    p.n_threads = 1;
    p.kv_cache_bytes = 8 << 20;
    p.checks = true;
    return engine_open(out, &p, NULL);
}

static int setup(void **state) {
    tiny_llama_setup(state);
    return open_model(&e, tiny_llama_path) == RIDGE_OK ? 0 : -1;
}

static int teardown(void **state) {
    engine_close(e);
    return tiny_llama_teardown(state);
}

/* A text of one token, over and over. */
typedef struct {
    int32_t token;
    const char *stop[3]; /* NULL-terminated */
    int32_t stop_id;     /* 0: none */
    uint32_t max_tokens, min_tokens;
    bool full; /* the context has room for two tokens */
    const char *text;
    uint32_t n_tokens;
    engine_finish finish;
    int stop_string;
} ending;

static void run(const ending *c) {
    static int32_t prompt[TINY_N_CONTEXT];
    for (int i = 0; i < TINY_N_CONTEXT; i++) prompt[i] = BYTE('a');
    const sampler_bias bias = {c->token, 100};
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = c->full ? TINY_N_CONTEXT - 2 : 3;
    q.max_tokens = c->max_tokens;
    q.min_tokens = c->min_tokens;
    q.sampling.bias = &bias;
    q.sampling.n_bias = 1;
    q.sampling.n_logprobs = 0;
    q.stop = c->stop;
    while (q.n_stop < 3 && c->stop[q.n_stop] != NULL) q.n_stop++;
    q.stop_ids = &c->stop_id;
    q.n_stop_ids = c->stop_id != 0;
    uint64_t id;
    const engine_event *events;
    size_t n;
    uint32_t n_tokens = 0;
    engine_finish finish = ENGINE_RUNNING;
    buf text = {0};
    assert_int_equal(engine_submit(e, &q, &id, NULL), RIDGE_OK);
    while (engine_step(e, &events, &n))
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(finish, ENGINE_RUNNING);
            n_tokens += events[i].has_token; /* those that were cut away too */
            buf_append(&text, events[i].text, events[i].n_text);
            finish = events[i].finish;
            if (finish == ENGINE_RUNNING) continue;
            assert_int_equal(events[i].stop_string, c->stop_string);
            assert_int_equal(events[i].usage.completion_tokens, c->n_tokens);
        }
    assert_int_equal(text.len, strlen(c->text));
    assert_memory_equal(text.len > 0 ? text.data : "", c->text, text.len);
    assert_int_equal(n_tokens, c->n_tokens);
    assert_int_equal(finish, c->finish);
    buf_free(&text);
}

static void test_stop_strings_in_the_last_bytes(void **state) {
    (void)state;
    const ending cases[] = {
        /* an incomplete character becomes U+FFFD at the end */
        {BYTE(0xC3), .max_tokens = 1, .text = REPLACEMENT, .n_tokens = 1, .finish = ENGINE_LENGTH,
         .stop_string = -1},
        {BYTE(0xC3),
         {REPLACEMENT},
         .max_tokens = 1,
         .text = "",
         .n_tokens = 1,
         .finish = ENGINE_STOP},
        {BYTE(0xC3),
         {"never", REPLACEMENT REPLACEMENT},
         .max_tokens = 2,
         .text = "",
         .n_tokens = 2,
         .finish = ENGINE_STOP,
         .stop_string = 1},
        {BYTE(0xF0),
         {REPLACEMENT REPLACEMENT "x"},
         .max_tokens = 2,
         .text = REPLACEMENT REPLACEMENT,
         .n_tokens = 2,
         .finish = ENGINE_LENGTH,
         .stop_string = -1},
        /* the same where the context is the limit */
        {BYTE(0xC3),
         {REPLACEMENT REPLACEMENT},
         .full = true,
         .text = "",
         .n_tokens = 2,
         .finish = ENGINE_STOP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run(&cases[i]);
}

static void test_several_reasons_at_once(void **state) {
    (void)state;
    const ending cases[] = {
        /* the last token that may come completes a stop string */
        {BYTE('x'), {"xxx"}, .max_tokens = 3, .text = "", .n_tokens = 3, .finish = ENGINE_STOP},
        {BYTE('x'),
         {"xxxx"},
         .max_tokens = 3,
         .text = "xxx",
         .n_tokens = 3,
         .finish = ENGINE_LENGTH,
         .stop_string = -1},
        /* ... or is a stop id: its text is no part of the answer, nor of a stop string */
        {BYTE('x'),
         {"x"},
         .stop_id = BYTE('x'),
         .max_tokens = 1,
         .text = "",
         .n_tokens = 1,
         .finish = ENGINE_STOP,
         .stop_string = -1},
        {TINY_EOS,
         {"x"},
         .max_tokens = 1,
         .text = "",
         .n_tokens = 1,
         .finish = ENGINE_STOP,
         .stop_string = -1},
        /* two strings end at once: the longest is cut; min_tokens: what came before is kept */
        {BYTE('x'), {"x", "xx"}, .max_tokens = 9, .text = "", .n_tokens = 1, .finish = ENGINE_STOP},
        {BYTE('x'),
         {"xx", "xxx"},
         .max_tokens = 9,
         .min_tokens = 4,
         .text = "xxx",
         .n_tokens = 5,
         .finish = ENGINE_STOP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run(&cases[i]);
}

/* Puts n bytes `ahead` of where the file first has `mark`. */
static void patch(const char *path, const void *mark, size_t n_mark, size_t ahead, const void *with,
                  size_t n) {
    char *bytes;
    size_t size;
    assert_int_equal(file_read(&bytes, &size, path, SIZE_MAX, NULL), RIDGE_OK);
    char *at = memmem(bytes, size, mark, n_mark);
    assert_non_null(at);
    assert_true(ahead + n <= size - (size_t)(at - bytes));
    memcpy(at + ahead, with, n);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
    mem_free(bytes);
}

/* Where the vocabulary has a space before every text, as Llama 2's does: the answer's own first
 * space is that one, unless the answer goes on with the prompt's words. */
static void set_space_prefix(const char *path) {
    static const char key[] = "add_space_prefix";
    patch(path, key, strlen(key), strlen(key) + 4, &(char){1}, 1); /* after the type */
}

static void assert_begins(engine *spaced, const int32_t *prompt, size_t n_prompt, bool goes_on,
                          const char *expected) {
    const sampler_bias bias = {TINY_SPACE_T, 100};
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = n_prompt;
    q.goes_on = goes_on;
    q.max_tokens = 2;
    q.sampling.bias = &bias;
    q.sampling.n_bias = 1;
    uint64_t id;
    const engine_event *events;
    size_t n;
    buf text = {0};
    assert_int_equal(engine_submit(spaced, &q, &id, NULL), RIDGE_OK);
    while (engine_step(spaced, &events, &n))
        for (size_t i = 0; i < n; i++) buf_append(&text, events[i].text, events[i].n_text);
    assert_string_equal(text.data, expected);
    buf_free(&text);
}

static void test_the_first_space(void **state) {
    (void)state;
    static const int32_t word[] = {TINY_BOS, BYTE('a')}, inside[] = {TINY_BOS, BYTE(0xC3)},
                         control[] = {TINY_BOS, BYTE('a'), TINY_BOS};
    char *path = tiny_model_write("llama");
    set_space_prefix(path);
    engine *spaced;
    assert_int_equal(open_model(&spaced, path), RIDGE_OK);
    assert_begins(spaced, word, 2, true, " t t");
    assert_begins(spaced, word, 2, false, "t t");
    assert_begins(spaced, word, 1, true, "t t");    /* the prompt has no word yet */
    assert_begins(spaced, control, 3, true, "t t"); /* a text begins anew */
    assert_begins(spaced, inside, 2, true, " t t"); /* half a character is the prompt's affair */
    assert_begins(e, word, 2, true, " t t");        /* a vocabulary without that space */
    assert_begins(e, word, 2, false, " t t");
    engine_close(spaced);
    unlink(path);
    mem_free(path);
}

/* The embedding of `token` is no number any more: the scale of its first block. */
static void damage(const char *path, int32_t token) {
    gguf *g;
    uint8_t first[64];
    assert_int_equal(gguf_open(&g, path, NULL), RIDGE_OK);
    const gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    size_t row_bytes = t->dims[0] / quant_block_values(t->type) * quant_block_bytes(t->type);
    memcpy(first, t->data, sizeof first);
    gguf_close(g);
    patch(path, first, sizeof first, row_bytes * (size_t)token, &(uint16_t){0x7E00}, 2);
}

typedef struct {
    uint64_t id;
    uint32_t n_tokens;
    int32_t tokens[8];
    engine_finish finish;
    ridge_error error;
} outcome;

static void submit_for(engine *on, int32_t last, int32_t prompt_logprobs, outcome *out) {
    const int32_t prompt[] = {TINY_BOS, BYTE('a'), BYTE('b'), last, BYTE('c')};
    engine_request q = engine_request_default();
    q.prompt = prompt;
    q.n_prompt = 5;
    q.max_tokens = 8;
    q.min_tokens = 8;
    q.prompt_logprobs = prompt_logprobs;
    *out = (outcome){0};
    assert_int_equal(engine_submit(on, &q, &out->id, NULL), RIDGE_OK);
}

static void finish_all(engine *on, outcome *out, size_t n_out) {
    const engine_event *events;
    size_t n;
    while (engine_step(on, &events, &n))
        for (size_t i = 0; i < n; i++) {
            outcome *o = out;
            while (o < out + n_out && o->id != events[i].id) o++;
            assert_true(o < out + n_out);
            assert_int_equal(o->finish, ENGINE_RUNNING);
            if (events[i].has_token) o->tokens[o->n_tokens++] = events[i].token.id;
            o->finish = events[i].finish;
            if (o->finish == ENGINE_ERROR) o->error = *events[i].error;
        }
    engine_check(on);
}

/* Whoever asks with a token whose embedding is damaged gets an error, those beside it their answer.
 */
static void test_logits_that_are_no_numbers(void **state) {
    (void)state;
    for (size_t k = 0; tiny_kinds[k] != NULL; k++) {
        char *path = tiny_model_write(tiny_kinds[k]);
        bool tied = strncmp(tiny_kinds[k], "gemma", 5) == 0; /* what it is worth is none, too */
        engine *sound, *damaged;
        outcome alone[1], all[4];
        assert_int_equal(open_model(&sound, path), RIDGE_OK);
        submit_for(sound, BYTE('d'), -1, &alone[0]);
        finish_all(sound, alone, 1);
        engine_close(sound);
        damage(path, BYTE('x'));
        assert_int_equal(open_model(&damaged, path), RIDGE_OK);
        submit_for(damaged, BYTE('x'), -1, &all[0]);
        submit_for(damaged, BYTE('d'), -1, &all[1]);
        submit_for(damaged, BYTE('x'), 0, &all[2]);
        submit_for(damaged, BYTE('d'), 0, &all[3]);
        finish_all(damaged, all, 4);
        for (int i = 0; i < 4; i += 2) {
            assert_int_equal(all[i].finish, ENGINE_ERROR);
            assert_int_equal(all[i].n_tokens, 0);
            assert_non_null(strstr(all[i].error.text, i == 0 ? "after token 4"
                                                      : tied ? "after token 2"
                                                             : "after token 3"));
            assert_int_equal(all[i + 1].finish, ENGINE_LENGTH);
            assert_int_equal(all[i + 1].n_tokens, 8);
        }
        assert_int_equal(alone[0].n_tokens, 8);
        assert_memory_equal(all[1].tokens, alone[0].tokens, sizeof alone[0].tokens);
        engine_close(damaged);
        unlink(path);
        mem_free(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_that_are_no_numbers),
        cmocka_unit_test(test_the_first_space),
        cmocka_unit_test(test_stop_strings_in_the_last_bytes),
        cmocka_unit_test(test_several_reasons_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
