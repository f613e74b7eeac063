/* text/jinja_exec: statements: output, scopes, loops, macros.
 *
 * Scopes as in Jinja2: for, macro, call, with, block set and filter blocks open one, if does not;
 * each turn of a loop has a fresh one. A macro sees the scopes around its definition.
 */
#include <string.h>

#include "text/jinja_internal.h"

#define MAX_DEPTH 1500

jenv *jenv_new(jx *x, jenv *up) {
    jenv *env = jm_alloc(&x->mem, 1, sizeof *env);
    if (env == NULL) return up; /* the render has failed and is about to end */
    env->up = up;
    return env;
}

void jenv_set(jx *x, jenv *env, const jsym *name, jv value) {
    for (size_t i = 0; i < env->n; i++)
        if (env->vars[i].name == name) {
            env->vars[i].value = value;
            return;
        }
    if (jm_grow(&x->mem, (void **)&env->vars, &env->capacity, env->n + 1, sizeof *env->vars))
        env->vars[env->n++] = (jbinding){name, value};
}

static void hide_names(jx *x, jenv *env, const jnode *body) {
    for (size_t i = 0; i < body->n_hidden; i++)
        jenv_set(x, env, body->hidden[i], (jv){.type = J_MISSING});
}

jenv *jenv_of_body(jx *x, jenv *up, const jnode *body) {
    jenv *env = jenv_new(x, up);
    if (env != up) hide_names(x, env, body);
    return env;
}

static void env_set_named(jx *x, jenv *env, const char *name, jv value) {
    for (size_t i = 0; i < x->t->n_symbols; i++)
        if (strcmp(x->t->symbols[i]->p, name) == 0) jenv_set(x, env, x->t->symbols[i], value);
}

static void assign_namespace(jx *x, jenv *env, const jnode *target, jv value) {
    jv ns = jinja_eval(x, env, target->a);
    if (jx_failed(x)) return;
    if (ns.type != J_NAMESPACE)
        jx_fail(x, "cannot assign attribute on non-namespace object");
    else
        jdict_set(&x->mem, ns.as.d, target->name->text, value);
}

static void assign(jx *x, jenv *env, const jnode *target, jv value) {
    if (target->kind == N_NAME) {
        jenv_set(x, env, target->name, value);
        return;
    }
    if (target->kind == N_NSREF) {
        assign_namespace(x, env, target, value);
        return;
    }
    jv *items;
    size_t n;
    if (!jv_items(x, value, &items, &n)) return;
    if (n != target->n) {
        if (n < target->n)
            jx_fail(x, "not enough values to unpack (expected %zu, got %zu)", target->n, n);
        else
            jx_fail(x, "too many values to unpack (expected %zu)", target->n);
        return;
    }
    for (size_t i = 0; i < n; i++) assign(x, env, target->items[i], items[i]);
}

/* Runs a body with its output caught. */
static jv capture(jx *x, jenv *env, const jnode *body) {
    buf caught = {.limit = x->max_output}, *out = x->out;
    x->out = &caught;
    jinja_exec(x, env, body);
    jx_failed(x); /* an overrun is noticed while it is this buffer's */
    x->out = out;
    return jv_from_buf(x, &caught);
}

/* ---- loops ---- */

static jv loop_number(size_t n) {
    return jv_int((int64_t)n);
}

static jv loop_neighbour(jx *x, const jloop *l, bool next) {
    if (next) {
        if (l->i + 1 < l->n) return l->items[l->i + 1];
        return jv_undefined_name(x, "there is no next item");
    }
    return l->i > 0 ? l->items[l->i - 1] : jv_undefined_name(x, "there is no previous item");
}

static jv loop_cycle(jx *x, jv self, const jv *a, const jargs *args) {
    (void)a;
    if (args->n_pos == 0) return jx_fail(x, "no items for cycling given");
    return args->pos[self.as.loop->i % args->n_pos];
}

static jv loop_changed(jx *x, jv self, const jv *a, const jargs *args) {
    (void)a;
    jlist *l = jlist_new(&x->mem, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++) jlist_push(&x->mem, l, args->pos[i]);
    jv now = jv_tuple(l);
    if (self.as.loop->changed.type != J_MISSING && jv_equal(x, self.as.loop->changed, now))
        return jv_bool(false);
    self.as.loop->changed = now;
    return jv_bool(true);
}

jv jinja_loop_attr(jx *x, jloop *l, const jstr *name) {
    static const jdef cycle = {"cycle", "*", loop_cycle}, changed = {"changed", "*", loop_changed};
    jv v = jv_from_jstr(name);
    if (jv_is_str(v, "index")) return loop_number(l->i + 1);
    if (jv_is_str(v, "index0")) return loop_number(l->i);
    if (jv_is_str(v, "revindex")) return loop_number(l->n - l->i);
    if (jv_is_str(v, "revindex0")) return loop_number(l->n - l->i - 1);
    if (jv_is_str(v, "first")) return jv_bool(l->i == 0);
    if (jv_is_str(v, "last")) return jv_bool(l->i + 1 >= l->n);
    if (jv_is_str(v, "length")) return loop_number(l->n);
    if (jv_is_str(v, "depth")) return jv_int(l->depth0 + 1);
    if (jv_is_str(v, "depth0")) return jv_int(l->depth0);
    if (jv_is_str(v, "previtem")) return loop_neighbour(x, l, false);
    if (jv_is_str(v, "nextitem")) return loop_neighbour(x, l, true);
    bool is_cycle = jv_is_str(v, "cycle");
    if (!is_cycle && !jv_is_str(v, "changed")) return (jv){.type = J_MISSING};
    jmethod *m = jm_alloc(&x->mem, 1, sizeof *m);
    if (m == NULL) return jv_undefined();
    *m = (jmethod){{.type = J_LOOP, .as.loop = l}, is_cycle ? &cycle : &changed};
    return (jv){.type = J_METHOD, .as.method = m};
}

/* The items that pass "for ... if": the condition sees the target, not the loop. */
static jlist *filter_items(jx *x, jenv *env, const jnode *n, jv *items, size_t count) {
    jlist *kept = jlist_new(&x->mem, count);
    for (size_t i = 0; i < count && !jx_failed(x); i++) {
        jenv *scope = jenv_new(x, env);
        assign(x, scope, n->a, items[i]);
        if (!jx_failed(x) && jv_truth(jinja_eval(x, scope, n->c)))
            jlist_push(&x->mem, kept, items[i]);
    }
    return kept;
}

static void run_loop(jx *x, jenv *env, const jnode *n, jv iterable, int depth0) {
    jloop *l = jm_alloc(&x->mem, 1, sizeof *l);
    if (l == NULL || jx_failed(x)) return;
    *l = (jloop){.node = n, .env = env, .depth0 = depth0, .changed = {.type = J_MISSING}};
    if (!jv_items(x, iterable, &l->items, &l->n)) return;
    if (n->c != NULL) {
        jlist *kept = filter_items(x, env, n, l->items, l->n);
        l->items = kept->items;
        l->n = kept->n;
    }
    for (l->i = 0; l->i < l->n && !jx_failed(x); l->i++) {
        jenv *scope = jenv_of_body(x, env, n->items[0]);
        jenv_set(x, scope, x->t->loop_name, (jv){.type = J_LOOP, .as.loop = l});
        assign(x, scope, n->a, l->items[l->i]);
        if (!jx_failed(x)) jinja_exec(x, scope, n->items[0]);
        bool stop = x->flow == FLOW_BREAK;
        x->flow = FLOW_NEXT;
        if (stop) return;
    }
    if (l->n == 0 && n->d != NULL) jinja_exec(x, jenv_of_body(x, env, n->d), n->d);
}

/* loop(items): the body again, one level deeper; its text is the result. */
jv jinja_call_loop(jx *x, jloop *loop, const jargs *args) {
    if (!loop->node->recursive)
        return jx_fail(x, "The loop must have the 'recursive' marker to be called recursively.");
    if (args->n_pos != 1 || args->n_kw != 0) return jx_fail(x, "loop() takes one argument");
    if (x->depth + 8 >= MAX_DEPTH) return jx_fail(x, "loop() nested too deeply");
    buf caught = {.limit = x->max_output}, *out = x->out;
    x->out = &caught;
    x->depth += 8;
    run_loop(x, loop->env, loop->node, args->pos[0], loop->depth0 + 1);
    x->depth -= 8;
    jx_failed(x);
    x->out = out;
    return jv_from_buf(x, &caught);
}

/* ---- macros ---- */

/* Binds the arguments after the declared ones: varargs, kwargs, caller. */
static void bind_rest(jx *x, jenv *scope, const jmacro_node *m, const jargs *args,
                      const bool *used) {
    const char *name = m->name != NULL ? m->name->p : "caller";
    jdict *kwargs = jdict_new(&x->mem);
    jv caller = jv_undefined_name(x, "No caller defined");
    for (size_t i = 0; i < args->n_kw; i++) {
        jv key = jv_from_jstr(args->names[i]);
        if (used[i]) continue;
        if (jv_is_str(key, "caller") && m->uses_caller) {
            caller = args->values[i];
        } else if (m->uses_kwargs) {
            jdict_set(&x->mem, kwargs, key, args->values[i]);
        } else {
            jx_fail(x, "macro '%s' takes no keyword argument '%.*s'", name,
                    (int)args->names[i]->len, args->names[i]->p);
        }
    }
    jlist *varargs = jlist_new(&x->mem, 0);
    for (size_t i = m->n_params; i < args->n_pos; i++) jlist_push(&x->mem, varargs, args->pos[i]);
    if (varargs->n > 0 && !m->uses_varargs)
        jx_fail(x, "macro '%s' takes not more than %zu argument(s)", name, m->n_params);
    if (m->uses_caller) env_set_named(x, scope, "caller", caller);
    if (m->uses_varargs) env_set_named(x, scope, "varargs", jv_tuple(varargs));
    if (m->uses_kwargs) env_set_named(x, scope, "kwargs", (jv){.type = J_DICT, .as.d = kwargs});
}

static jv bind_param(jx *x, jenv *scope, const jmacro_node *m, size_t i, const jargs *args,
                     bool *used) {
    if (i < args->n_pos) return args->pos[i];
    for (size_t k = 0; k < args->n_kw; k++)
        if (!used[k] && jv_equal(NULL, jv_from_jstr(args->names[k]), m->params[i]->text)) {
            used[k] = true;
            return args->values[k];
        }
    if (m->defaults[i] != NULL) return jinja_eval(x, scope, m->defaults[i]);
    return jv_undefined_name(x, "parameter '%s' was not provided", m->params[i]->p);
}

jv jinja_call_macro(jx *x, const jmacro *macro, const jargs *args) {
    const jmacro_node *m = macro->node;
    jenv *scope = jenv_of_body(x, macro->env, m->body);
    bool *used = jm_alloc(&x->mem, args->n_kw + 1, sizeof *used);
    if (used == NULL || jx_failed(x)) return jv_undefined();
    for (size_t i = 0; i < m->n_params && !jx_failed(x); i++)
        jenv_set(x, scope, m->params[i], bind_param(x, scope, m, i, args, used));
    bind_rest(x, scope, m, args, used);
    if (jx_failed(x)) return jv_undefined();
    if (x->depth + 8 >= MAX_DEPTH) return jx_fail(x, "macros nested too deeply");
    x->depth += 8;
    jv text = capture(x, scope, m->body);
    x->depth -= 8;
    return text;
}

static jv macro_value(jx *x, jenv *env, const jmacro_node *node) {
    jmacro *m = jm_alloc(&x->mem, 1, sizeof *m);
    if (m == NULL) return jv_undefined();
    *m = (jmacro){node, env};
    return (jv){.type = J_MACRO, .as.macro = m};
}

static void exec_call_block(jx *x, jenv *env, const jnode *n) {
    jargs args;
    jv callee = jinja_eval(x, env, n->a->a);
    if (jx_failed(x) || !jinja_eval_args(x, env, n->a->call, &args)) return;
    const jstr **names = jm_alloc(&x->mem, args.n_kw + 1, sizeof *names);
    jv *values = jm_alloc(&x->mem, args.n_kw + 1, sizeof *values);
    if (names == NULL || values == NULL) return;
    for (size_t i = 0; i < args.n_kw; i++) {
        names[i] = args.names[i];
        values[i] = args.values[i];
    }
    names[args.n_kw] = jv_cstr(x, "caller").as.s;
    values[args.n_kw] = macro_value(x, env, n->macro);
    args.names = names;
    args.values = values;
    args.n_kw++;
    jv_write(x, x->out, jinja_call(x, callee, &args));
}

/* ---- the rest ---- */

/* A chain of filters whose innermost subject is left open ({% filter %}, {% set x | f %}). */
static jv apply_filters(jx *x, jenv *env, const jnode *n, jv v) {
    jargs args;
    if (n == NULL) return v;
    v = apply_filters(x, env, n->a, v);
    if (jx_failed(x) || !jinja_eval_args(x, env, n->call, &args)) return v;
    if (n->def == NULL) return jx_fail(x, "No filter named '%s'", n->name->p);
    return jinja_call_def(x, n->def, v, &args);
}

static void exec_if(jx *x, jenv *env, const jnode *n) {
    for (size_t i = 0; i + 1 < n->n; i += 2) {
        bool taken = jv_truth(jinja_eval(x, env, n->items[i]));
        if (jx_failed(x)) return;
        if (taken) {
            jinja_exec(x, env, n->items[i + 1]);
            return;
        }
    }
    if (n->b != NULL) jinja_exec(x, env, n->b);
}

static void exec_with(jx *x, jenv *env, const jnode *n) {
    jenv *scope = jenv_of_body(x, env, n->a);
    for (size_t i = 0; i + 1 < n->n && !jx_failed(x); i += 2)
        assign(x, scope, n->items[i], jinja_eval(x, env, n->items[i + 1]));
    jinja_exec(x, scope, n->a);
}

static void exec_node(jx *x, jenv *env, const jnode *n) {
    jv v;
    switch (n->kind) {
    case N_BODY:
        for (size_t i = 0; i < n->n && x->flow == FLOW_NEXT && !jx_failed(x); i++)
            jinja_exec(x, env, n->items[i]);
        break;
    case N_DATA: buf_append(x->out, n->value.as.s->p, n->value.as.s->len); break;
    case N_PRINT:
        v = jinja_eval(x, env, n->a);
        if (!jx_failed(x)) jv_write(x, x->out, v);
        break;
    case N_IF: exec_if(x, env, n); break;
    case N_FOR: run_loop(x, env, n, jinja_eval(x, env, n->b), 0); break;
    case N_SET:
        v = jinja_eval(x, env, n->b);
        if (!jx_failed(x)) assign(x, env, n->a, v);
        break;
    case N_SETBLOCK:
        v = capture(x, jenv_of_body(x, env, n->c), n->c);
        if (x->flow != FLOW_NEXT) break; /* a break or continue inside leaves it unset */
        v = apply_filters(x, env, n->b, v);
        if (!jx_failed(x)) assign(x, env, n->a, v);
        break;
    case N_FILTERBLOCK:
        v = apply_filters(x, env, n->b, capture(x, jenv_of_body(x, env, n->c), n->c));
        if (!jx_failed(x)) jv_write(x, x->out, v);
        break;
    case N_MACRO:
        if (n->name != NULL) jenv_set(x, env, n->name, macro_value(x, env, n->macro));
        break;
    case N_CALLBLOCK: exec_call_block(x, env, n); break;
    case N_WITH: exec_with(x, env, n); break;
    case N_SCOPE: jinja_exec(x, jenv_of_body(x, env, n->a), n->a); break;
    case N_BREAK: x->flow = FLOW_BREAK; break;
    case N_CONTINUE: x->flow = FLOW_CONTINUE; break;
    default:
        jx_fail(x, "{%% %s %%} is not supported: templates have nothing to load from",
                n->name != NULL ? n->name->p : "?");
    }
}

void jinja_exec(jx *x, jenv *env, const jnode *n) {
    if (!jx_step(x, 0)) return;
    x->line = n->line;
    if (x->depth >= MAX_DEPTH) {
        jx_fail(x, "statements nested deeper than %d", MAX_DEPTH);
        return;
    }
    x->depth++;
    exec_node(x, env, n);
    x->depth--;
}
