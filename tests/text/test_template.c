/* text/template: what Jinja2 renders, we render: the goldens, the public cases, our own snippets
 * (made with Jinja2 by make_jinja_cases.py); hostile templates; every allocation failed once. */
#include "unit.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "text/template.h"

#define NOW 1721995200 /* 2024-07-26T12:00:00 */

static ridge_status render_text(const char *source, size_t n, json_t *variables, buf *out,
                                ridge_error *err) {
    chat_template *t = NULL;
    ridge_status status = template_parse(&t, source, n, "t", err);
    if (status == RIDGE_OK) status = template_render(t, variables, NOW, NULL, out, err);
    template_free(t);
    return status;
}

static const char *text_of(const buf *b) {
    return b->data != NULL ? b->data : "";
}

/* One case of {"template", "expect" | "error"}; false (and a line printed): another outcome. */
static bool case_holds(const json_t *c, json_t *context) {
    const json_t *source = json_object_get(c, "template"), *expect = json_object_get(c, "expect");
    ridge_error err = {0};
    buf out = {0};
    ridge_status status =
        render_text(json_string_value(source), json_string_length(source), context, &out, &err);
    bool holds = expect == NULL
                     ? status != RIDGE_OK
                     : status == RIDGE_OK && out.len == json_string_length(expect) &&
                           memcmp(text_of(&out), json_string_value(expect), out.len) == 0;
    if (!holds)
        print_message("%s\n  expected: %s\n  found: %s\n", json_string_value(source),
                      expect != NULL ? json_string_value(expect) : "an error",
                      status == RIDGE_OK ? text_of(&out) : err.text);
    buf_free(&out);
    return holds;
}

static void run_cases(const char *path) {
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    if (root == NULL) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    const json_t *cases = json_object_get(root, "cases");
    json_t *shared = json_object_get(root, "context");
    size_t wrong = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        json_t *own = json_object_get(c, "context");
        wrong += !case_holds(c, own != NULL ? own : shared);
    }
    assert_true(json_array_size(cases) > 0);
    assert_int_equal(wrong, 0);
    json_decref(root);
}

static void test_public_cases(void **state) {
    (void)state;
    run_cases("../shared/cases/jinja.json");
}

static void test_snippets(void **state) {
    (void)state;
    run_cases("tests/text/jinja_cases.json");
}

/* ---- goldens ---- */

static json_t *golden_variables(const json_t *t, const json_t *c) {
    static const char *const of_case[] = {"messages", "tools", "add_generation_prompt"};
    json_t *v = json_object();
    json_object_set_new(v, "documents", json_null());
    json_object_set(v, "bos_token", json_object_get(t, "bos_token"));
    json_object_set(v, "eos_token", json_object_get(t, "eos_token"));
    for (size_t i = 0; i < 3; i++) json_object_set(v, of_case[i], json_object_get(c, of_case[i]));
    json_object_update(v, json_object_get(c, "extra"));
    return v;
}

static bool golden_holds(const json_t *t, const json_t *c) {
    const json_t *source = json_object_get(t, "template"), *want = json_object_get(c, "expected");
    bool raised = json_is_true(json_object_get(c, "raised_by_template"));
    json_t *variables = golden_variables(t, c);
    ridge_error err = {0};
    buf out = {0};
    ridge_status status =
        render_text(json_string_value(source), json_string_length(source), variables, &out, &err);
    bool holds;
    if (want != NULL)
        holds = status == RIDGE_OK && out.len == json_string_length(want) &&
                memcmp(text_of(&out), json_string_value(want), out.len) == 0;
    else
        holds =
            status != RIDGE_OK &&
            (!raised || (strcmp(err.where, "raise_exception") == 0 &&
                         strcmp(err.text, json_string_value(json_object_get(c, "error"))) == 0));
    if (!holds)
        print_message("%s, %s: %s\n", json_string_value(json_object_get(t, "name")),
                      json_string_value(json_object_get(c, "conversation")),
                      status == RIDGE_OK ? "another text" : err.text);
    json_decref(variables);
    buf_free(&out);
    return holds;
}

static void test_goldens(void **state) {
    (void)state;
    json_t *root = json_load_file("../shared/golden/templates.json", JSON_ALLOW_NUL, NULL);
    if (root == NULL) {
        print_message("skipped: no ../shared/golden/templates.json\n");
        skip();
    }
    size_t wrong = 0, n = 0, i, k;
    json_t *t, *c;
    json_array_foreach(json_object_get(root, "templates"), i, t) {
        json_array_foreach(json_object_get(t, "cases"), k, c) {
            n++;
            wrong += !golden_holds(t, c);
        }
    }
    assert_true(n > 1000);
    assert_int_equal(wrong, 0);
    json_decref(root);
}

/* ---- errors ---- */

static void expect_error(const char *source, const char *text) {
    ridge_error err = {0};
    buf out = {0};
    json_t *none = json_object();
    assert_int_not_equal(render_text(source, strlen(source), none, &out, &err), RIDGE_OK);
    if (strstr(err.text, text) == NULL) fail_msg("%s: '%s' is not in '%s'", source, text, err.text);
    assert_int_equal(out.len, 0);
    json_decref(none);
    buf_free(&out);
}

static void test_errors_say_where(void **state) {
    (void)state;
    expect_error("a\n{% if x %}", "t:2: unexpected end of template");
    expect_error("\n\n{{ x y }}", "t:3: expected end of print statement, found 'y'");
    expect_error("{{ raise_exception('boom') }}", "boom");
    expect_error("x\n{{ a.b }}", "t:2: 'a' is undefined");
    expect_error("{{ [1]|random }}", "the filter 'random' is not supported");
    expect_error("{{ 'a'|urlize }}", "the filter 'urlize' is not supported");
    expect_error("{{ 'a'|wordwrap(3) }}", "the filter 'wordwrap' is not supported");
    expect_error("{{ lipsum() }}", "lipsum(), a random text, is not supported");
    expect_error("{{ 2 ** 64 }}", "integer result does not fit 64 bits");
    expect_error("{{ 18446744073709551616 + 1 }}", "arithmetic on integers over 64 bits");
    expect_error("{{ '%d' % 18446744073709551616 }}", "int over 64 bits");
    expect_error("{{ x|nosuch }}", "t:1: No filter named 'nosuch'");
    expect_error("{% include 'x' %}", "include");
    expect_error("\xFF", "not valid UTF-8");
    expect_error("{{ 9223372036854775807 + 1 }}", "64 bits");
}

/* ---- hostile templates ---- */

static void expect_quick_error(const char *source, size_t n) {
    ridge_error err = {0};
    buf out = {0};
    json_t *none = json_object();
    double start = clock_now_s();
    ridge_status status = render_text(source, n, none, &out, &err);
    double seconds = clock_now_s() - start;
    if (status == RIDGE_OK) fail_msg("rendered: %.60s", source);
    if (seconds > 20) fail_msg("%.1f s: %.60s", seconds, source);
    assert_int_not_equal(err.text[0], '\0');
    json_decref(none);
    buf_free(&out);
}

static void test_hostile(void **state) {
    (void)state;
    static const char *const sources[] = {
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 9223372036854775807 }}",
        "{{ [1] * 10**12 }}",
        "{{ range(10**9) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[], t=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}"
        "{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% endfor %}{{ ns.s|tojson }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% for i in range(99999) %}{{ 'aaaaaaaaaaaaaaaa' * 9999 }}{% endfor %}",
        "{{ 'x'.center(10**12) }}",
        "{{ '%999999999d' % 1 ~ '{:999999999}'.format(1) ~ zz.z }}",
        "{{ 2 ** 100000000 }}",
        "{{ 'a'|indent(10**12, true) }}",
        "{{ 'ab'.replace('', 'x' * 10**7)|replace('', 'y' * 10**7) }}",
        "{{ [1]|batch(10**15, 0)|list }}",
        "{{ [1]|slice(10**15)|list }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        expect_quick_error(sources[i], strlen(sources[i]));
}

static void expect_repeated(const char *unit, size_t times) {
    buf b = {0};
    for (size_t i = 0; i < times; i++) buf_puts(&b, unit);
    assert_false(b.failed);
    expect_quick_error(b.data, b.len);
    buf_free(&b);
}

static void test_hostile_nesting(void **state) {
    (void)state;
    static const char *const units[] = {
        "{{",        "{% if 1 %}", "{% for x in y %}", "{{ (",  "{#",          "{{ -", "{{ not ",
        "{% raw %}", "{{ [",       "{{ x.y",           "{{ x|", "{% set x %}", "{{ '", "{{ 1 if ",
        "{%- "};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        expect_repeated(units[i], (1u << 20) / strlen(units[i]));
    buf b = {0};
    static const char *const inner[] = {"(", "[", "-", "not ", "1+", "x.", "1 if 1 else "};
    for (size_t k = 0; k < sizeof inner / sizeof *inner; k++) {
        buf_clear(&b);
        buf_puts(&b, "{{ ");
        for (size_t i = 0; i < 200000; i++) buf_puts(&b, inner[k]);
        buf_puts(&b, "1 }}");
        expect_quick_error(b.data, b.len);
    }
    buf_free(&b);
}

/* ---- memory ---- */

static void test_every_allocation_fails_once(void **state) {
    (void)state;
    static const char source[] =
        "{% macro m(a, b=2) %}{{ a ~ b }}{{ caller() }}{% endmacro %}{% for x in l|sort %}"
        "{{ x|tojson }}{{ '%s' % x }}{{ '{:>5}'.format(x) }}{% endfor %}{% call m(1) %}"
        "{{ l|map('string')|join(',')|upper }}{% endcall %}{% set q %}{{ d }}{% endset %}{{ q }}"
        "{{ {'a': [1, (2,)], 'b': d}|dictsort }}{{ 'a b'.split()|batch(1)|list }}";
    json_t *variables = json_pack("{s:[iii], s:{s:i, s:s}}", "l", 3, 1, 2, "d", "k", 1, "v", "x");
    assert_non_null(variables);
    for (long n = 1;; n++) {
        ridge_error err = {0};
        buf out = {0};
        mem_fail_after(n);
        ridge_status status = render_text(source, sizeof source - 1, variables, &out, &err);
        mem_fail_after(0);
        buf_free(&out);
        if (status == RIDGE_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_not_equal(err.code, RIDGE_OK);
        assert_true(n < 10000);
    }
    json_decref(variables);
}

static void test_builtins_parse(void **state) {
    (void)state;
    json_t *v =
        json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}],s:b,s:s,s:s}", "messages", "role", "system",
                  "content", "S", "role", "user", "content", "U", "role", "assistant", "content",
                  "A", "add_generation_prompt", 1, "bos_token", "B", "eos_token", "E");
    char names[200], *save = NULL;
    snprintf(names, sizeof names, "%s", template_builtin_names());
    for (char *name = strtok_r(names, ", ", &save); name != NULL;
         name = strtok_r(NULL, ", ", &save)) {
        ridge_error err = {0};
        buf out = {0};
        const char *source = template_builtin(name);
        assert_non_null(source);
        assert_int_equal(render_text(source, strlen(source), v, &out, &err), RIDGE_OK);
        assert_non_null(strchr(out.data, 'U'));
        if (strcmp(name, "chatml") == 0)
            assert_string_equal(out.data, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU"
                                          "<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
                                          "<|im_start|>assistant\n");
        if (strcmp(name, "gemma") == 0)
            assert_string_equal(out.data, "B<start_of_turn>user\nS\n\nU<end_of_turn>\n"
                                          "<start_of_turn>model\nA<end_of_turn>\n"
                                          "<start_of_turn>model\n");
        buf_free(&out);
    }
    assert_null(template_builtin("nosuch"));
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),        cmocka_unit_test(test_public_cases),
        cmocka_unit_test(test_snippets),       cmocka_unit_test(test_errors_say_where),
        cmocka_unit_test(test_hostile),        cmocka_unit_test(test_hostile_nesting),
        cmocka_unit_test(test_builtins_parse), cmocka_unit_test(test_every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
