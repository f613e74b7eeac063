/* text/jinja_eval: expressions to values, calls, and the binding of arguments. */
#include <string.h>

#include "text/jinja_internal.h"

/* Nesting of evaluation, macros calling macros included; a level costs some 200 bytes of stack,
 * a macro call about ten levels. */
#define MAX_DEPTH 1500

static const jv *env_find(const jenv *env, const jsym *name) {
    for (; env != NULL; env = env->up)
        for (size_t i = env->n; i-- > 0;)
            if (env->vars[i].name == name) return &env->vars[i].value;
    return NULL;
}

static jv eval_name(jx *x, jenv *env, const jsym *name) {
    const jv *v = env_find(env, name);
    if (v != NULL && v->type != J_MISSING) return *v;
    const jdef *global = v == NULL ? jinja_global_find(name->p) : NULL;
    if (global != NULL) return (jv){.type = J_FUNCTION, .as.fn = global};
    return jv_undefined_name(x, "'%s' is undefined", name->p);
}

static jlist *eval_items(jx *x, jenv *env, const jnode *n) {
    jlist *l = jlist_new(&x->mem, n->n);
    for (size_t i = 0; i < n->n && !jx_failed(x); i++)
        jlist_push(&x->mem, l, jinja_eval(x, env, n->items[i]));
    return l;
}

static jv eval_dict(jx *x, jenv *env, const jnode *n) {
    jdict *d = jdict_new(&x->mem);
    for (size_t i = 0; i + 1 < n->n && !jx_failed(x); i += 2) {
        jv key = jinja_eval(x, env, n->items[i]);
        jv value = jinja_eval(x, env, n->items[i + 1]);
        if (!jdict_set(&x->mem, d, key, value))
            jx_fail(x, "unhashable type: '%s'", jv_type_name(key));
    }
    return (jv){.type = J_DICT, .as.d = d};
}

static jv eval_optional(jx *x, jenv *env, const jnode *n) {
    return n != NULL ? jinja_eval(x, env, n) : jv_none();
}

static jv eval_slice(jx *x, jenv *env, const jnode *n) {
    jv of = jinja_eval(x, env, n->a);
    jv start = eval_optional(x, env, n->b), stop = eval_optional(x, env, n->c);
    jv step = eval_optional(x, env, n->d);
    return jx_failed(x) ? jv_undefined() : op_slice(x, of, start, stop, step);
}

static jv eval_concat(jx *x, jenv *env, const jnode *n) {
    buf b = {.limit = x->max_output};
    for (size_t i = 0; i < n->n && !jx_failed(x); i++)
        jv_write(x, &b, jinja_eval(x, env, n->items[i]));
    jx_step(x, b.len);
    return jv_from_buf(x, &b);
}

static jv eval_compare(jx *x, jenv *env, const jnode *n) {
    jv left = jinja_eval(x, env, n->a);
    for (size_t i = 0; i < n->n && !jx_failed(x); i++) {
        jv right = jinja_eval(x, env, n->items[i]);
        if (jx_failed(x) || !op_compare(x, n->ops[i], left, right)) return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

/* ---- arguments ---- */

static void push_keyword(jx *x, jargs *out, size_t capacity, const jstr *name, jv value) {
    if (out->n_kw >= capacity || jx_failed(x)) return;
    for (size_t i = 0; i < out->n_kw; i++)
        if (jv_equal(NULL, jv_from_jstr(out->names[i]), jv_from_jstr(name))) {
            jx_fail(x, "multiple values for keyword argument '%.*s'", (int)name->len, name->p);
            return;
        }
    out->names[out->n_kw] = name;
    ((jv *)out->values)[out->n_kw++] = value;
}

static void eval_keywords(jx *x, jenv *env, const jcall *call, jargs *out) {
    jv extra = call->star_star != NULL ? jinja_eval(x, env, call->star_star) : jv_none();
    if (call->star_star != NULL && extra.type != J_DICT)
        jx_fail(x, "argument after ** must be a mapping, not %s", jv_type_name(extra));
    if (jx_failed(x)) return;
    size_t capacity = call->n_kw + (extra.type == J_DICT ? extra.as.d->n : 0);
    if (capacity == 0) return;
    out->names = jm_alloc(&x->mem, capacity, sizeof *out->names);
    out->values = jm_alloc(&x->mem, capacity, sizeof *out->values);
    for (size_t i = 0; i < call->n_kw && !jx_failed(x); i++)
        push_keyword(x, out, capacity, call->names[i], jinja_eval(x, env, call->values[i]));
    for (size_t i = 0; extra.type == J_DICT && i < extra.as.d->n && !jx_failed(x); i++) {
        const jentry *e = &extra.as.d->entries[i];
        if (e->key.type != J_STR)
            jx_fail(x, "keywords must be strings");
        else
            push_keyword(x, out, capacity, e->key.as.s, e->value);
    }
}

bool jinja_eval_args(jx *x, jenv *env, const jcall *call, jargs *out) {
    *out = (jargs){0};
    if (call == NULL) return true;
    jlist *l = jlist_new(&x->mem, call->n_pos);
    for (size_t i = 0; i < call->n_pos && !jx_failed(x); i++)
        jlist_push(&x->mem, l, jinja_eval(x, env, call->pos[i]));
    if (call->star != NULL) {
        jv *items;
        size_t n;
        if (jv_items(x, jinja_eval(x, env, call->star), &items, &n))
            for (size_t i = 0; i < n; i++) jlist_push(&x->mem, l, items[i]);
    }
    eval_keywords(x, env, call, out);
    out->pos = l->items;
    out->n_pos = l->n;
    return !jx_failed(x);
}

/* The index of a parameter by name, or of the parameter number `at` when name is NULL; its
 * presence is optional where '?' follows. SIZE_MAX: no such parameter. */
static size_t param_find(const char *params, const jstr *name) {
    size_t i = 0;
    for (const char *p = params; *p != '\0'; i++) {
        size_t n = strcspn(p, " ");
        size_t len = n > 0 && p[n - 1] == '?' ? n - 1 : n;
        if (len == name->len && memcmp(p, name->p, len) == 0) return i;
        p += n;
        while (*p == ' ') p++;
    }
    return SIZE_MAX;
}

static void check_given(jx *x, const jdef *def, const jv *a) {
    size_t i = 0;
    for (const char *p = def->params; *p != '\0'; i++) {
        size_t n = strcspn(p, " ");
        if (p[n - 1] != '?' && a[i].type == J_MISSING)
            jx_fail(x, "%s() missing required argument '%.*s'", def->name, (int)n, p);
        p += n;
        while (*p == ' ') p++;
    }
    if (i < JDEF_MAX_PARAMS && a[i].type != J_MISSING)
        jx_fail(x, "%s() takes at most %zu arguments", def->name, i);
}

jv jinja_call_def(jx *x, const jdef *def, jv self, const jargs *args) {
    jv a[JDEF_MAX_PARAMS + 1] = {{.type = J_MISSING}};
    if (!jx_step(x, 0)) return jv_undefined();
    if (strcmp(def->params, "*") == 0) return def->fn(x, self, a, args);
    if (args->n_pos > JDEF_MAX_PARAMS) return jx_fail(x, "%s(): too many arguments", def->name);
    for (size_t i = 0; i < args->n_pos; i++) a[i] = args->pos[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        size_t at = param_find(def->params, args->names[i]);
        if (at >= JDEF_MAX_PARAMS || a[at].type != J_MISSING)
            return jx_fail(x, "%s() got an unexpected or repeated argument '%.*s'", def->name,
                           (int)args->names[i]->len, args->names[i]->p);
        a[at] = args->values[i];
    }
    check_given(x, def, a);
    return jx_failed(x) ? jv_undefined() : def->fn(x, self, a, args);
}

/* ---- calls ---- */

jv jinja_call(jx *x, jv callee, const jargs *args) {
    switch (callee.type) {
    case J_FUNCTION: return jinja_call_def(x, callee.as.fn, jv_none(), args);
    case J_METHOD: return jinja_call_def(x, callee.as.method->def, callee.as.method->self, args);
    case J_MACRO: return jinja_call_macro(x, callee.as.macro, args);
    case J_LOOP: return jinja_call_loop(x, callee.as.loop, args);
    case J_JOINER: {
        jcycle *c = callee.as.cycle;
        return c->pos++ == 0 ? jv_from_jstr(&jstr_empty) : c->items[0];
    }
    case J_UNDEFINED:
        if (callee.as.s != NULL) return jx_fail(x, "%.*s", (int)callee.as.s->len, callee.as.s->p);
        return jx_fail(x, "an undefined value is not callable");
    default: return jx_fail(x, "'%s' object is not callable", jv_type_name(callee));
    }
}

static jv eval_call(jx *x, jenv *env, const jnode *n) {
    jargs args;
    jv callee = jinja_eval(x, env, n->a);
    if (jx_failed(x) || !jinja_eval_args(x, env, n->call, &args)) return jv_undefined();
    x->line = n->line;
    return jinja_call(x, callee, &args);
}

static jv eval_library(jx *x, jenv *env, const jnode *n) {
    jargs args;
    jv self = jinja_eval(x, env, n->a);
    if (jx_failed(x) || !jinja_eval_args(x, env, n->call, &args)) return jv_undefined();
    x->line = n->line;
    if (n->def == NULL)
        return jx_fail(x, "No %s named '%s'", n->kind == N_FILTER ? "filter" : "test", n->name->p);
    return jinja_call_def(x, n->def, self, &args);
}

static jv eval_cond(jx *x, jenv *env, const jnode *n) {
    if (jv_truth(jinja_eval(x, env, n->a))) return jinja_eval(x, env, n->b);
    if (n->c != NULL) return jinja_eval(x, env, n->c);
    return jv_undefined_name(x, "the inline if-expression evaluated to false and no else section "
                                "was defined.");
}

static jv eval_node(jx *x, jenv *env, const jnode *n) {
    jv a, b;
    switch (n->kind) {
    case N_CONST: return n->value;
    case N_NAME: return eval_name(x, env, n->name);
    case N_TUPLE: return jv_tuple(eval_items(x, env, n));
    case N_LIST: return jv_list(eval_items(x, env, n));
    case N_DICT: return eval_dict(x, env, n);
    case N_CALL: return eval_call(x, env, n);
    case N_FILTER:
    case N_TEST: return eval_library(x, env, n);
    case N_SLICE: return eval_slice(x, env, n);
    case N_CONCAT: return eval_concat(x, env, n);
    case N_COMPARE: return eval_compare(x, env, n);
    case N_COND: return eval_cond(x, env, n);
    case N_ATTR:
        a = jinja_eval(x, env, n->a);
        x->line = n->line;
        return jx_failed(x) ? a : op_getattr(x, a, n->name->text.as.s);
    case N_ITEM:
        a = jinja_eval(x, env, n->a);
        b = jinja_eval(x, env, n->b);
        x->line = n->line;
        return jx_failed(x) ? a : op_getitem(x, a, b);
    case N_BINARY:
        a = jinja_eval(x, env, n->a);
        b = jinja_eval(x, env, n->b);
        x->line = n->line;
        return jx_failed(x) ? a : op_binary(x, n->op, a, b);
    case N_AND: a = jinja_eval(x, env, n->a); return jv_truth(a) ? jinja_eval(x, env, n->b) : a;
    case N_OR: a = jinja_eval(x, env, n->a); return jv_truth(a) ? a : jinja_eval(x, env, n->b);
    case N_NOT: return jv_bool(!jv_truth(jinja_eval(x, env, n->a)));
    case N_NEG:
    case N_POS:
        a = jinja_eval(x, env, n->a);
        return jx_failed(x) ? a : op_negate(x, a, n->kind == N_NEG);
    default: return jx_fail(x, "not an expression");
    }
}

jv jinja_eval(jx *x, jenv *env, const jnode *n) {
    if (!jx_step(x, 0)) return jv_undefined();
    if (x->depth >= MAX_DEPTH) return jx_fail(x, "evaluation nested deeper than %d", MAX_DEPTH);
    x->depth++;
    jv v = eval_node(x, env, n);
    x->depth--;
    return v;
}
