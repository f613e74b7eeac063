/* text/jinja_ops: Python's operators on values: arithmetic, membership, attributes, slices.
 *
 * Integers have 64 bits: a result that does not fit is an error that says so.
 */
#include <math.h>
#include <string.h>

#include "text/jinja_internal.h"

static jv overflow(jx *x) {
    return jx_fail(x, "integer result does not fit 64 bits");
}

static jv bad_operands(jx *x, const char *op, jv a, jv b) {
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED) {
        jv u = a.type == J_UNDEFINED ? a : b;
        if (u.as.s != NULL) return jx_fail(x, "%.*s", (int)u.as.s->len, u.as.s->p);
        return jx_fail(x, "undefined value in '%s'", op);
    }
    return jx_fail(x, "unsupported operand type(s) for %s: '%s' and '%s'", op, jv_type_name(a),
                   jv_type_name(b));
}

bool op_index(jx *x, jv v, int64_t *out) {
    if (v.type == J_INT || v.type == J_BOOL) {
        *out = v.as.i;
        return true;
    }
    jx_fail(x, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
    return false;
}

static jv concat(jx *x, const jstr *a, const jstr *b) {
    if (a->markup != b->markup) {
        if (a->markup)
            b = text_escape(x, b).as.s;
        else
            a = text_escape(x, a).as.s;
    }
    if (!jx_step(x, a->len + b->len)) return jv_undefined();
    char *p = jm_alloc(&x->mem, a->len + b->len + 1, 1);
    if (p == NULL) return jv_undefined();
    memcpy(p, a->p, a->len);
    memcpy(p + a->len, b->p, b->len);
    const jstr *s = jstr_borrow(&x->mem, p, a->len + b->len);
    if (a->markup && s->len > 0) ((jstr *)s)->markup = true;
    return jv_from_jstr(s);
}

static jv list_add(jx *x, jv a, jv b) {
    jlist *l = jlist_new(&x->mem, a.as.l->n + b.as.l->n);
    if (!jx_step(x, (a.as.l->n + b.as.l->n) * 16)) return jv_undefined();
    for (size_t i = 0; i < a.as.l->n; i++) jlist_push(&x->mem, l, a.as.l->items[i]);
    for (size_t i = 0; i < b.as.l->n; i++) jlist_push(&x->mem, l, b.as.l->items[i]);
    return (jv){.type = a.type, .as.l = l};
}

/* "ab" * 3 and [1] * 3 */
static jv repeat(jx *x, jv v, jv times) {
    int64_t n = times.as.i > 0 ? times.as.i : 0;
    size_t unit = v.type == J_STR ? v.as.s->len : v.as.l->n, total;
    if (!mem_mul(unit, (size_t)n, &total) || total > x->max_output)
        return jx_fail(x, "a repeated value is too large");
    if (!jx_step(x, total)) return jv_undefined();
    if (v.type != J_STR) {
        jlist *l = jlist_new(&x->mem, total);
        for (size_t i = 0; i < total; i++) jlist_push(&x->mem, l, v.as.l->items[i % unit]);
        return (jv){.type = v.type, .as.l = l};
    }
    char *p = total > 0 ? jm_alloc(&x->mem, total, 1) : NULL;
    if (p == NULL) return jv_from_jstr(&jstr_empty);
    for (size_t i = 0; i < total; i += unit) memcpy(p + i, v.as.s->p, unit);
    const jstr *s = jstr_borrow(&x->mem, p, total);
    ((jstr *)s)->markup = v.as.s->markup && s->len > 0;
    return jv_from_jstr(s);
}

static int64_t floor_mod(int64_t a, int64_t b) {
    if (b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static jv int_power(jx *x, int64_t base, int64_t exponent) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return jx_fail(x, "0.0 cannot be raised to a negative power");
        return jv_float(pow((double)base, (double)exponent));
    }
    while (exponent > 0) {
        if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) return overflow(x);
        exponent /= 2;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(x);
    }
    return jv_int(result);
}

static jv int_binary(jx *x, jop op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool bad = false;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return jx_fail(x, "division by zero");
    switch (op) {
    case OP_ADD: bad = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: bad = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: bad = __builtin_mul_overflow(a, b, &r); break;
    case OP_DIV: return jv_float((double)a / (double)b);
    case OP_FLOORDIV:
        bad = a == INT64_MIN && b == -1;
        if (!bad) r = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MOD: r = floor_mod(a, b); break;
    default: return int_power(x, a, b);
    }
    return bad ? overflow(x) : jv_int(r);
}

static jv float_mod(double a, double b, bool quotient) {
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0) {
        if ((b < 0) != (m < 0)) {
            m += b;
            q -= 1;
        }
    } else {
        m = copysign(0.0, b);
    }
    if (!quotient) return jv_float(m);
    if (q == 0) return jv_float(copysign(0.0, a / b));
    double f = floor(q);
    return jv_float(q - f > 0.5 ? f + 1 : f);
}

static jv float_binary(jx *x, jop op, double a, double b) {
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return jx_fail(x, "float division by zero");
    switch (op) {
    case OP_ADD: return jv_float(a + b);
    case OP_SUB: return jv_float(a - b);
    case OP_MUL: return jv_float(a * b);
    case OP_DIV: return jv_float(a / b);
    case OP_FLOORDIV: return float_mod(a, b, true);
    case OP_MOD: return float_mod(a, b, false);
    default: break;
    }
    if (a == 0 && b < 0) return jx_fail(x, "0.0 cannot be raised to a negative power");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b)) return jx_fail(x, "Numerical result out of range");
    if (isnan(r) && !isnan(a) && !isnan(b)) return jx_fail(x, "complex numbers are not supported");
    return jv_float(r);
}

jv op_binary(jx *x, jop op, jv a, jv b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    bool a_seq = a.type == J_STR || a.type == J_LIST || a.type == J_TUPLE;
    bool b_seq = b.type == J_STR || b.type == J_LIST || b.type == J_TUPLE;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.type != J_FLOAT && b.type != J_FLOAT) return int_binary(x, op, a.as.i, b.as.i);
        return float_binary(x, op, jv_to_double(a), jv_to_double(b));
    }
    if (op == OP_ADD && a.type == J_STR && b.type == J_STR) return concat(x, a.as.s, b.as.s);
    if (op == OP_ADD && a.type == b.type && a_seq) return list_add(x, a, b);
    if (op == OP_MUL && a_seq && (b.type == J_INT || b.type == J_BOOL)) return repeat(x, a, b);
    if (op == OP_MUL && b_seq && (a.type == J_INT || a.type == J_BOOL)) return repeat(x, b, a);
    if (op == OP_MOD && a.type == J_STR) return text_format_percent(x, a.as.s, b);
    if (a.type == J_BIG || b.type == J_BIG)
        return jx_fail(x, "arithmetic on integers over 64 bits is not supported");
    if (op == OP_ADD && a.type == J_STR && b.type != J_UNDEFINED)
        return jx_fail(x, "can only concatenate str (not \"%s\") to str", jv_type_name(b));
    return bad_operands(x, names[op], a, b);
}

jv op_negate(jx *x, jv a, bool minus) {
    if (a.type == J_FLOAT) return jv_float(minus ? -a.as.f : a.as.f);
    if (a.type == J_BIG) {
        if (!minus) return a;
        buf b = {0};
        const char *p = a.as.s->p;
        size_t sign = *p == '-';
        if (!sign) buf_putc(&b, '-');
        buf_append(&b, p + sign, a.as.s->len - sign);
        jv v = jv_from_buf(x, &b);
        v.type = J_BIG;
        if (jv_is_str(jv_from_jstr(v.as.s), "-9223372036854775808")) return jv_int(INT64_MIN);
        return v;
    }
    if (!jv_is_number(a)) {
        if (a.type == J_UNDEFINED) return bad_operands(x, "-", a, a);
        return jx_fail(x, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                       jv_type_name(a));
    }
    if (minus && a.as.i == INT64_MIN) return overflow(x);
    return jv_int(minus ? -a.as.i : a.as.i);
}

bool op_contains(jx *x, jv container, jv item) {
    if (container.type == J_STR) {
        if (item.type != J_STR) {
            jx_fail(x, "'in <string>' requires string as left operand, not %s", jv_type_name(item));
            return false;
        }
        jx_step(x, container.as.s->len);
        return text_find(container.as.s->p, container.as.s->len, item.as.s->p, item.as.s->len) !=
               SIZE_MAX;
    }
    bool keys = container.type == J_VIEW && container.as.view->kind == VIEW_KEYS;
    if (container.type == J_DICT || keys) {
        if (!jv_hashable(item)) jx_fail(x, "unhashable type: '%s'", jv_type_name(item));
        return jdict_get(keys ? container.as.view->d : container.as.d, item) != NULL;
    }
    jv *items;
    size_t n;
    if (!jv_items(x, container, &items, &n)) return false;
    for (size_t i = 0; i < n && jx_step(x, 0); i++)
        if (jv_equal(x, items[i], item)) return true;
    return false;
}

bool op_compare(jx *x, jop op, jv a, jv b) {
    static const char *const names[] = {"<", "<=", ">", ">="};
    switch (op) {
    case OP_EQ: return jv_equal(x, a, b);
    case OP_NE: return !jv_equal(x, a, b);
    case OP_IN: return op_contains(x, b, a);
    case OP_NOTIN: return !op_contains(x, b, a);
    default: break;
    }
    int c = jv_compare(x, a, b, names[op - OP_LT]);
    if (c == 2) return false;
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}

/* ---- attributes and items ---- */

static jv absent(jx *x, jv of, const jstr *name) {
    return jv_undefined_name(x, "'%s object' has no attribute '%.*s'", jv_type_name(of),
                             (int)name->len, name->p);
}

/* Numbers are complex ones and fractions too. */
static jv number_attr(jv of, jv name) {
    bool whole = of.type != J_FLOAT;
    jv plain = of.type == J_BOOL ? jv_int(of.as.i) : of;
    if (jv_is_str(name, "real") || (whole && jv_is_str(name, "numerator"))) return plain;
    if (jv_is_str(name, "imag")) return whole ? jv_int(0) : jv_float(0);
    if (whole && jv_is_str(name, "denominator")) return jv_int(1);
    return (jv){.type = J_MISSING};
}

/* What Python's getattr finds; J_MISSING if nothing. */
static jv python_attr(jx *x, jv of, const jstr *name) {
    jv none = {.type = J_MISSING};
    if (of.type == J_NAMESPACE) {
        const jv *v = jdict_get(of.as.d, jv_from_jstr(name));
        return v != NULL ? *v : none;
    }
    if (jv_is_real(of)) {
        jv v = number_attr(of, jv_from_jstr(name));
        if (v.type != J_MISSING) return v;
    }
    if (of.type == J_LOOP) return jinja_loop_attr(x, of.as.loop, name);
    if (of.type == J_MACRO && jv_is_str(jv_from_jstr(name), "name"))
        return of.as.macro->node->name != NULL ? of.as.macro->node->name->text : jv_none();
    if (of.type == J_TUPLE && of.as.l->is_group) {
        if (jv_is_str(jv_from_jstr(name), "grouper")) return of.as.l->items[0];
        if (jv_is_str(jv_from_jstr(name), "list")) return of.as.l->items[1];
    }
    if (of.type == J_RANGE) {
        jv v = jv_from_jstr(name);
        if (jv_is_str(v, "start")) return jv_int(of.as.range->start);
        if (jv_is_str(v, "stop")) return jv_int(of.as.range->stop);
        if (jv_is_str(v, "step")) return jv_int(of.as.range->step);
    }
    if (of.type == J_CYCLER && jv_is_str(jv_from_jstr(name), "current"))
        return of.as.cycle->items[of.as.cycle->pos];
    if (jinja_method_mutates(of, name))
        return jv_undefined_name(x, "access to attribute '%.*s' of '%s' object is unsafe.",
                                 (int)name->len, name->p, jv_type_name(of));
    const jdef *def = jinja_method_find(of, name);
    jmethod *m = def != NULL ? jm_alloc(&x->mem, 1, sizeof *m) : NULL;
    if (m == NULL) return none;
    *m = (jmethod){of, def};
    return (jv){.type = J_METHOD, .as.method = m};
}

static jv fail_undefined(jx *x, jv of) {
    if (of.as.s != NULL) return jx_fail(x, "%.*s", (int)of.as.s->len, of.as.s->p);
    return jx_fail(x, "access to an undefined value");
}

/* x.name: an attribute of the object, else its item. */
jv op_getattr(jx *x, jv of, const jstr *name) {
    if (of.type == J_UNDEFINED) return fail_undefined(x, of);
    jv v = python_attr(x, of, name);
    if (v.type != J_MISSING) return v;
    const jv *item = of.type == J_DICT ? jdict_get(of.as.d, jv_from_jstr(name)) : NULL;
    return item != NULL ? *item : absent(x, of, name);
}

static jv item_at(jx *x, jv of, int64_t i) {
    size_t n = 0, at;
    jv_length(of, &n);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return jv_undefined_name(x, "%s has no element %lld", jv_type_name(of), (long long)i);
    switch (of.type) {
    case J_STR:
        at = text_offset(of.as.s, (size_t)i);
        return jv_slice(x, of.as.s, at,
                        at + text_offset(&(jstr){of.as.s->p + at, of.as.s->len - at,
                                                 of.as.s->chars - (size_t)i, false},
                                         1));
    case J_RANGE: return jv_range_at(of.as.range, (size_t)i);
    default: return of.as.l->items[i];
    }
}

/* x[key]: an item, else (for a name) the attribute. */
jv op_getitem(jx *x, jv of, jv key) {
    if (of.type == J_UNDEFINED) return fail_undefined(x, of);
    if (of.type == J_DICT) {
        const jv *item = jdict_get(of.as.d, key);
        if (item != NULL) return *item;
    }
    bool sequence =
        of.type == J_STR || of.type == J_LIST || of.type == J_TUPLE || of.type == J_RANGE;
    if (sequence && (key.type == J_INT || key.type == J_BOOL)) return item_at(x, of, key.as.i);
    if (key.type == J_STR) {
        jv v = python_attr(x, of, key.as.s);
        return v.type != J_MISSING ? v : absent(x, of, key.as.s);
    }
    return jv_undefined_name(x, "'%s object' has no such element", jv_type_name(of));
}

/* Where a slice bound lies, clamped as Python's slice.indices. */
static bool slice_bound(jx *x, jv v, int64_t n, bool backwards, int64_t absent_value,
                        int64_t *out) {
    *out = absent_value;
    if (v.type == J_NONE || v.type == J_MISSING) return true;
    if (v.type != J_INT && v.type != J_BOOL) {
        jx_fail(x, "slice indices must be integers or None");
        return false;
    }
    int64_t low = backwards ? -1 : 0, high = backwards ? n - 1 : n;
    int64_t i = v.as.i;
    if (i < 0) i = i < -n ? low : i + n;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

static jv slice_str(jx *x, const jstr *s, int64_t start, int64_t count, int64_t step) {
    if (count == 0) return jv_from_jstr(&jstr_empty);
    if (step == 1)
        return jv_slice(x, s, text_offset(s, (size_t)start),
                        text_offset(s, (size_t)(start + count)));
    buf b = {.limit = x->max_output};
    bool ascii = s->chars == s->len;
    size_t *offsets = ascii ? NULL : jm_alloc(&x->mem, s->chars + 1, sizeof *offsets);
    for (size_t i = 0, k = 0; offsets != NULL && i <= s->len; i++)
        if (i == s->len || ((unsigned char)s->p[i] & 0xC0) != 0x80) offsets[k++] = i;
    for (int64_t k = 0, i = start; k < count && (ascii || offsets != NULL); k++, i += step) {
        size_t from = ascii ? (size_t)i : offsets[i], to = ascii ? from + 1 : offsets[i + 1];
        buf_append(&b, s->p + from, to - from);
    }
    return jv_from_buf(x, &b);
}

jv op_slice(jx *x, jv of, jv start, jv stop, jv step) {
    size_t length;
    int64_t by = 1, from, to;
    if (of.type == J_UNDEFINED) return fail_undefined(x, of);
    bool sequence =
        of.type == J_STR || of.type == J_LIST || of.type == J_TUPLE || of.type == J_RANGE;
    if (!sequence || !jv_length(of, &length))
        return jx_fail(x, "'%s' object cannot be sliced", jv_type_name(of));
    if (step.type != J_NONE && step.type != J_MISSING && !op_index(x, step, &by))
        return jv_undefined();
    if (by == 0) return jx_fail(x, "slice step cannot be zero");
    int64_t n = (int64_t)length;
    if (!slice_bound(x, start, n, by < 0, by < 0 ? n - 1 : 0, &from) ||
        !slice_bound(x, stop, n, by < 0, by < 0 ? -1 : n, &to))
        return jv_undefined();
    int64_t count = 0;
    if (by > 0 && to > from) count = (to - from - 1) / by + 1;
    if (by < 0 && to < from) count = (from - to - 1) / (by == INT64_MIN ? INT64_MAX : -by) + 1;
    if (count <= 1) by = by > 0 ? 1 : -1;
    if (!jx_step(x, (size_t)count * 8)) return jv_undefined();
    if (of.type == J_STR) return slice_str(x, of.as.s, from, count, by);
    if (of.type == J_RANGE) {
        jrange *r = jm_alloc(&x->mem, 1, sizeof *r);
        if (r == NULL) return jv_undefined();
        const jrange *src = of.as.range;
        *r = (jrange){src->start + from * src->step, src->start + to * src->step, src->step * by,
                      (size_t)count};
        return (jv){.type = J_RANGE, .as.range = r};
    }
    jlist *l = jlist_new(&x->mem, (size_t)count);
    for (int64_t k = 0; k < count; k++) jlist_push(&x->mem, l, of.as.l->items[from + k * by]);
    return (jv){.type = of.type, .as.l = l};
}
