/* server/miss: where a prompt left the cached prefixes, what is the same behind the difference, and
 * the texts around it. */
#include "unit.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fake_backend.h"
#include "server/miss.h"

#define SIZE 16 /* of a block */

static server_backend table;

typedef struct {
    int32_t prompt[4096], near[4096];
    uint32_t n_prompt;
    engine_usage usage;
} text_case;

static uint32_t put(int32_t *out, const char *text) {
    uint32_t n = 0;
    for (; text[n] != '\0'; n++) out[n] = (unsigned char)text[n];
    return n;
}

/* As the engine tells it: cached text from the last whole block in which both agree. */
static text_case make(const char *prompt, const char *cached) {
    text_case c = {0};
    int32_t all[4096];
    c.n_prompt = put(c.prompt, prompt);
    uint32_t n_cached = put(all, cached), same = 0;
    while (same < n_cached && same < c.n_prompt && all[same] == c.prompt[same]) same++;
    c.usage.miss.left_at = same / SIZE * SIZE;
    c.usage.miss.n_near = n_cached - c.usage.miss.left_at;
    memcpy(c.near, all + c.usage.miss.left_at, c.usage.miss.n_near * sizeof *all);
    c.usage.cached_tokens = same < c.n_prompt ? same : c.n_prompt - 1;
    return c;
}

static prefix_miss find(text_case *c) {
    c->usage.miss.near = c->near;
    return miss_find(c->prompt, c->n_prompt, &c->usage, true);
}

static void check(const char *prompt, const char *cached, miss_kind kind, uint32_t at,
                  uint32_t n_saveable) {
    text_case c = make(prompt, cached);
    prefix_miss m = find(&c);
    if (m.kind != kind || m.at != at || m.n_saveable != n_saveable)
        fail_msg("'%s' after '%s': kind %d at %u, %u saveable", prompt, cached, (int)m.kind, m.at,
                 m.n_saveable);
}

#define LONG "You are a helpful assistant that answers briefly. "

static void test_kinds(void **state) {
    (void)state;
    check("abcdefgh", "", MISS_COLD, 0, 0);
    check("abcdefgh", "xyz", MISS_COLD, 0, 0);
    check("abcdefgh", "abcdefgh", MISS_NONE, 8, 0);
    check("abcdefgh", "abcdefghijkl", MISS_NONE, 8, 0);
    check("abcdefgh", "abcdefgX", MISS_NONE, 7, 0);
    check(LONG "Hello.", LONG, MISS_NEW, 50, 0);
    check(LONG "Hello.", LONG "What?", MISS_DIFFERS, 50, 0);
    text_case c = make("abc", "abc");
    assert_int_equal(miss_find(c.prompt, 3, &c.usage, false).kind, MISS_OFF);
}

static void test_what_is_the_same_again(void **state) {
    (void)state;
    /* A date of the same length, of another, and one inserted at the very beginning. */
    check("Monday, 1 May. " LONG, "Monday, 2 May. " LONG, MISS_DIFFERS, 8, 56);
    check("Monday, 11 May. " LONG, "Monday, 2 May. " LONG, MISS_DIFFERS, 8, 56);
    check("id=17; " LONG, LONG, MISS_DIFFERS, 0, 50);
    check(LONG, "id=17; " LONG, MISS_DIFFERS, 0, 50);
    /* Two changes; the end of the prompt may be short. */
    check("a1bcdefghijklmno2pqrstuvwxyz", "a3bcdefghijklmno4pqrstuvwxyz", MISS_DIFFERS, 1, 25);
    check("aXbc", "aYbc", MISS_DIFFERS, 1, 2);
    /* Too little in common, or too far away, is nothing. */
    check("aXbcdefg-----", "aYbcdefg=====", MISS_DIFFERS, 1, 0);
    char far[400];
    memset(far, '#', sizeof far);
    strcpy(far + 300, LONG);
    far[0] = 'a';
    check("a" LONG, far, MISS_DIFFERS, 1, 0);
}

/* The largest and worst that may come is looked through in no time: here in a loop of a thousand
 * characters that nearly meet everywhere. */
static void test_bounded(void **state) {
    (void)state;
    static text_case c;
    c.n_prompt = 4096;
    c.usage.miss.n_near = 4096;
    for (int i = 0; i < 4096; i++) {
        c.prompt[i] = i % 8 == 7 ? 1000 + i : 5;
        c.near[i] = i % 8 == 7 ? 9000 + i : 5;
    }
    prefix_miss m = find(&c);
    assert_int_equal(m.at, 7);
    assert_true(m.n_saveable <= 4096 - 7);
}

static json_t *write_case(text_case *c, bool asked) {
    buf b = {0};
    c->usage.miss.near = c->near;
    buf_putc(&b, '{');
    miss_write(&table, c->prompt, c->n_prompt, &c->usage, asked, &b);
    buf_putc(&b, '}');
    json_t *o = json_loads(b.data, 0, NULL);
    if (o == NULL) fail_msg("no JSON: %s", b.data);
    buf_free(&b);
    return o;
}

static const char *text_of(const json_t *o, const char *name) {
    return json_string_value(json_object_get(o, name));
}

static void test_json(void **state) {
    (void)state;
    text_case c = make("On Monday, 1 May. " LONG, "On Monday, 2 May. " LONG);
    json_t *o = write_case(&c, true);
    assert_string_equal(text_of(o, "miss"), "differs");
    assert_int_equal(json_integer_value(json_object_get(o, "left_at")), 11);
    assert_int_equal(json_integer_value(json_object_get(o, "saveable_tokens")), 56);
    assert_true(fabs(json_real_value(json_object_get(o, "saveable_part")) - 56. / 57) < 1e-9);
    assert_string_equal(text_of(o, "prompt_text"), "On Monday, 1 May. You a");
    assert_string_equal(text_of(o, "cached_text"), "On Monday, 2 May. You a");
    assert_string_equal(text_of(o, "explanation"),
                        "At token 11 of 68 the prompt differs from the nearest cached one; with "
                        "the same text there, 56 tokens more (98 % of its prefill) would have come "
                        "from the cache.");
    json_decref(o);
    c = make(LONG "\xE4\xB8\x96\"", LONG "\xE4\xB8\x97\""); /* a cut inside a character */
    o = write_case(&c, true);
    assert_non_null(strstr(text_of(o, "cached_text"), "\xE4\xB8\x97\""));
    json_decref(o);
    /* Excerpts that begin and end inside a character: here each has three tokens. */
    c = make("\u4E16\u4E17\u4E18\u4E19\u4E1A\u4E1B\u4E1C\u4E1Dab1\u4E20\u4E21\u4E22\u4E23",
             "\u4E16\u4E17\u4E18\u4E19\u4E1A\u4E1B\u4E1C\u4E1Dab2\u4E20\u4E21\u4E22");
    o = write_case(&c, true);
    assert_string_equal(text_of(o, "prompt_text"), "\u4E1A\u4E1B\u4E1C\u4E1Dab1\u4E20\u4E21\u4E22");
    assert_string_equal(text_of(o, "cached_text"), "\u4E1A\u4E1B\u4E1C\u4E1Dab2\u4E20\u4E21\u4E22");
    json_decref(o);
    o = write_case(&c, false);
    assert_string_equal(text_of(o, "miss"), "off");
    assert_true(json_is_null(json_object_get(o, "left_at")));
    assert_null(json_object_get(o, "cached_text"));
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_what_is_the_same_again),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_json),
    };
    fake_backend *f = fake_backend_create(&table, "", 1000, 1, 4096);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_backend_destroy(f);
    return failed;
}
