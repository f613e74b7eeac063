/* text/jinja_tests: what may follow "is". */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_internal.h"

#define TEST(name) static jv test_##name(jx *x, jv v, const jv *a, const jargs *raw)
#define UNUSED (void)x, (void)v, (void)a, (void)raw

TEST(defined) {
    UNUSED;
    return jv_bool(v.type != J_UNDEFINED);
}

TEST(undefined) {
    UNUSED;
    return jv_bool(v.type == J_UNDEFINED);
}

TEST(none) {
    UNUSED;
    return jv_bool(v.type == J_NONE);
}

TEST(boolean) {
    UNUSED;
    return jv_bool(v.type == J_BOOL);
}

TEST(true) {
    UNUSED;
    return jv_bool(v.type == J_BOOL && v.as.i);
}

TEST(false) {
    UNUSED;
    return jv_bool(v.type == J_BOOL && !v.as.i);
}

TEST(integer) {
    UNUSED;
    return jv_bool(v.type == J_INT || v.type == J_BIG);
}

TEST(float) {
    UNUSED;
    return jv_bool(v.type == J_FLOAT);
}

TEST(number) {
    UNUSED;
    return jv_bool(jv_is_number(v) || v.type == J_BIG);
}

TEST(string) {
    UNUSED;
    return jv_bool(v.type == J_STR);
}

TEST(mapping) {
    UNUSED;
    return jv_bool(v.type == J_DICT);
}

TEST(sequence) {
    UNUSED;
    return jv_bool(v.type == J_UNDEFINED || v.type == J_STR || v.type == J_LIST ||
                   v.type == J_TUPLE || v.type == J_DICT || v.type == J_RANGE);
}

TEST(iterable) {
    UNUSED;
    size_t n;
    return jv_bool(jv_length(v, &n) || v.type == J_ITER);
}

TEST(callable) {
    UNUSED;
    return jv_bool(v.type == J_UNDEFINED || v.type == J_FUNCTION || v.type == J_METHOD ||
                   v.type == J_MACRO || v.type == J_LOOP || v.type == J_JOINER);
}

TEST(sameas) {
    UNUSED;
    if (v.type != a[0].type) return jv_bool(false);
    if (v.type == J_NONE || v.type == J_UNDEFINED) return jv_bool(v.type == J_NONE);
    if (v.type == J_STR) return jv_bool(jv_equal(x, v, a[0]));
    if (v.type == J_FLOAT) return jv_bool(v.as.f == a[0].as.f);
    return jv_bool(v.as.i == a[0].as.i);
}

TEST(escaped) {
    UNUSED;
    return jv_bool(v.type == J_STR && v.as.s->markup);
}

TEST(in) {
    UNUSED;
    return jv_bool(op_contains(x, a[0], v));
}

/* Whether all cased characters of str(v) have one case, and there is one. */
static jv has_case(jx *x, jv v, bool upper) {
    const jstr *s = jv_to_str(x, v);
    bool cased = false;
    for (size_t i = 0, width; i < s->len; i += width) {
        utf8proc_int32_t c = (utf8proc_int32_t)text_at(s, i, &width);
        bool is_upper = utf8proc_isupper(c) != 0, is_lower = utf8proc_islower(c) != 0;
        if (upper ? is_lower : is_upper) return jv_bool(false);
        cased = cased || is_upper || is_lower;
    }
    return jv_bool(cased);
}

TEST(lower) {
    UNUSED;
    return has_case(x, v, false);
}

TEST(upper) {
    UNUSED;
    return has_case(x, v, true);
}

static jv remainder_is(jx *x, jv v, jv by, int64_t wanted) {
    if (v.type == J_STR) return jx_fail(x, "not all arguments converted during string formatting");
    jv r = op_binary(x, OP_MOD, v, by);
    return jv_bool(!jx_failed(x) && jv_to_double(r) == (double)wanted);
}

TEST(odd) {
    UNUSED;
    return remainder_is(x, v, jv_int(2), 1);
}

TEST(even) {
    UNUSED;
    return remainder_is(x, v, jv_int(2), 0);
}

TEST(divisibleby) {
    UNUSED;
    return remainder_is(x, v, a[0], 0);
}

TEST(filter) {
    UNUSED;
    if (!jv_hashable(v)) return jx_fail(x, "unhashable type: '%s'", jv_type_name(v));
    const jstr *s = jv_to_str(x, v);
    const char *name = arena_strndup(&x->mem.a, s->p, s->len);
    return jv_bool(name != NULL && jinja_filter_find(name) != NULL);
}

TEST(test) {
    UNUSED;
    if (!jv_hashable(v)) return jx_fail(x, "unhashable type: '%s'", jv_type_name(v));
    const jstr *s = jv_to_str(x, v);
    const char *name = arena_strndup(&x->mem.a, s->p, s->len);
    return jv_bool(name != NULL && jinja_test_find(name) != NULL);
}

#define COMPARISON(name, op)                                                                       \
    TEST(name) {                                                                                   \
        UNUSED;                                                                                    \
        return jv_bool(op_compare(x, op, v, a[0]));                                                \
    }
COMPARISON(eq, OP_EQ)
COMPARISON(ne, OP_NE)
COMPARISON(lt, OP_LT)
COMPARISON(le, OP_LE)
COMPARISON(gt, OP_GT)
COMPARISON(ge, OP_GE)

static const jdef tests[] = {
    {"defined", "", test_defined},
    {"undefined", "", test_undefined},
    {"none", "", test_none},
    {"boolean", "", test_boolean},
    {"true", "", test_true},
    {"false", "", test_false},
    {"integer", "", test_integer},
    {"float", "", test_float},
    {"number", "", test_number},
    {"string", "", test_string},
    {"mapping", "", test_mapping},
    {"sequence", "", test_sequence},
    {"iterable", "", test_iterable},
    {"callable", "", test_callable},
    {"sameas", "other", test_sameas},
    {"escaped", "", test_escaped},
    {"in", "seq", test_in},
    {"lower", "", test_lower},
    {"upper", "", test_upper},
    {"odd", "", test_odd},
    {"even", "", test_even},
    {"divisibleby", "num", test_divisibleby},
    {"filter", "", test_filter},
    {"test", "", test_test},
    {"eq", "b", test_eq},
    {"==", "b", test_eq},
    {"equalto", "b", test_eq},
    {"ne", "b", test_ne},
    {"!=", "b", test_ne},
    {"lt", "b", test_lt},
    {"<", "b", test_lt},
    {"lessthan", "b", test_lt},
    {"le", "b", test_le},
    {"<=", "b", test_le},
    {"gt", "b", test_gt},
    {">", "b", test_gt},
    {"greaterthan", "b", test_gt},
    {"ge", "b", test_ge},
    {">=", "b", test_ge},
};

const jdef *jinja_test_find(const char *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0) return &tests[i];
    return NULL;
}
