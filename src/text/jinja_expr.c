/* text/jinja_expr: expressions to nodes, by recursive descent with Jinja2's precedence:
 *
 *     cond: or: and: not: compare: + -: ~: * / // %: **: unary: postfix: filters and tests
 */
#include <string.h>

#include "text/jinja_internal.h"

static jnode *parse_or(jparser *p);
static jnode *parse_unary(jparser *p, bool with_filter);
static jnode *parse_primary(jparser *p, bool with_namespace);

static jnode *binary(jparser *p, jop op, jnode *a, jnode *b, int line) {
    jnode *n = parse_node(p, N_BINARY, line);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static jnode *unary(jparser *p, nkind kind, jnode *a, int line) {
    jnode *n = parse_node(p, kind, line);
    n->a = a;
    return n;
}

static jnode *constant(jparser *p, jv value, int line) {
    jnode *n = parse_node(p, N_CONST, line);
    n->value = value;
    return n;
}

jnode *parse_expression(jparser *p, bool with_cond) {
    int line = p->cur.line;
    size_t mark = p->n_unknown;
    if (!parse_enter(p)) return parse_node(p, N_CONST, line);
    jnode *n = parse_or(p);
    while (with_cond && parse_is_name(p, "if")) {
        parse_next(p);
        jnode *cond = parse_node(p, N_COND, line);
        cond->b = n;
        cond->a = parse_or(p);
        if (parse_skip_name(p, "else")) cond->c = parse_expression(p, true);
        parse_forgive(p, mark, true);
        line = p->cur.line;
        n = cond;
    }
    p->depth--;
    return n;
}

static jnode *parse_not(jparser *p);

static jnode *parse_and(jparser *p) {
    int line = p->cur.line;
    jnode *n = parse_not(p);
    while (parse_skip_name(p, "and")) {
        jnode *both = unary(p, N_AND, n, line);
        both->b = parse_not(p);
        n = both;
    }
    return n;
}

static jnode *parse_or(jparser *p) {
    int line = p->cur.line;
    jnode *n = parse_and(p);
    while (parse_skip_name(p, "or")) {
        jnode *either = unary(p, N_OR, n, line);
        either->b = parse_and(p);
        n = either;
    }
    return n;
}

static jnode *parse_concat(jparser *p);

static jnode *parse_sum(jparser *p) {
    int line = p->cur.line;
    jnode *n = parse_concat(p);
    for (;;) {
        jop op = parse_is_op(p, '+') ? OP_ADD : OP_SUB;
        if (!parse_skip_op(p, '+') && !parse_skip_op(p, '-')) return n;
        n = binary(p, op, n, parse_concat(p), line);
    }
}

/* Whether a comparison operator is next; it is taken. */
static bool skip_comparison(jparser *p, jop *op) {
    static const struct {
        int token;
        jop op;
    } ops[] = {{OP2('=', '='), OP_EQ}, {OP2('!', '='), OP_NE}, {'<', OP_LT},
               {OP2('<', '='), OP_LE}, {'>', OP_GT},           {OP2('>', '='), OP_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        *op = ops[i].op;
        if (parse_skip_op(p, ops[i].token)) return true;
    }
    *op = OP_IN;
    if (parse_skip_name(p, "in")) return true;
    *op = OP_NOTIN;
    bool not_in = parse_is_name(p, "not") && p->ahead.type == T_NAME && p->ahead.len == 2 &&
                  memcmp(p->ahead.p, "in", 2) == 0;
    if (!not_in) return false;
    parse_next(p);
    parse_next(p);
    return true;
}

static jnode *parse_compare(jparser *p) {
    int line = p->cur.line;
    jnode *first = parse_sum(p), *n = NULL;
    size_t capacity = 0;
    jop op;
    while (skip_comparison(p, &op)) {
        if (n == NULL) n = unary(p, N_COMPARE, first, line);
        if (!jm_grow(&p->t->mem, (void **)&n->ops, &capacity, n->n + 1, sizeof *n->ops)) break;
        n->ops[n->n] = op;
        parse_push(p, n, parse_sum(p));
    }
    return n != NULL ? n : first;
}

static jnode *parse_not(jparser *p) {
    int line = p->cur.line;
    if (!parse_is_name(p, "not")) return parse_compare(p);
    parse_next(p);
    if (!parse_enter(p)) return parse_node(p, N_CONST, line);
    jnode *n = unary(p, N_NOT, parse_not(p), line);
    p->depth--;
    return n;
}

static jnode *parse_power(jparser *p) {
    int line = p->cur.line;
    jnode *n = parse_unary(p, true);
    while (parse_skip_op(p, OP2('*', '*'))) n = binary(p, OP_POW, n, parse_unary(p, true), line);
    return n;
}

static jnode *parse_product(jparser *p) {
    int line = p->cur.line;
    jnode *n = parse_power(p);
    for (;;) {
        jop op;
        if (parse_skip_op(p, '*'))
            op = OP_MUL;
        else if (parse_skip_op(p, '/'))
            op = OP_DIV;
        else if (parse_skip_op(p, OP2('/', '/')))
            op = OP_FLOORDIV;
        else if (parse_skip_op(p, '%'))
            op = OP_MOD;
        else
            return n;
        n = binary(p, op, n, parse_power(p), line);
    }
}

static jnode *parse_concat(jparser *p) {
    int line = p->cur.line;
    jnode *first = parse_product(p), *n = NULL;
    while (parse_skip_op(p, '~')) {
        if (n == NULL) {
            n = parse_node(p, N_CONCAT, line);
            parse_push(p, n, first);
        }
        parse_push(p, n, parse_product(p));
    }
    return n != NULL ? n : first;
}

/* One subscript between '[' and ',' or ']': an expression or a slice. */
static jnode *parse_subscript_part(jparser *p, jnode *of) {
    int line = p->cur.line;
    jnode *start = parse_is_op(p, ':') ? NULL : parse_expression(p, true);
    if (!parse_skip_op(p, ':')) return start;
    jnode *n = unary(p, N_SLICE, of, line);
    n->b = start;
    if (!parse_is_op(p, ':') && !parse_is_op(p, ']') && !parse_is_op(p, ','))
        n->c = parse_expression(p, true);
    if (parse_skip_op(p, ':') && !parse_is_op(p, ']') && !parse_is_op(p, ','))
        n->d = parse_expression(p, true);
    return n;
}

static jnode *parse_bracket(jparser *p, jnode *of, int line) {
    jnode *n = parse_node(p, N_ITEM, line), *tuple = NULL;
    n->a = of;
    if (parse_is_op(p, ']')) { /* Jinja2 reads x[] as x[()] */
        tuple = parse_node(p, N_TUPLE, line);
    } else {
        n->b = parse_subscript_part(p, of);
        if (parse_is_op(p, ',')) {
            tuple = parse_node(p, N_TUPLE, line);
            parse_push(p, tuple, n->b);
        }
        while (parse_skip_op(p, ',')) parse_push(p, tuple, parse_subscript_part(p, of));
    }
    parse_expect_op(p, ']');
    if (tuple != NULL)
        n->b = tuple;
    else if (n->b != NULL && n->b->kind == N_SLICE && n->b->a == of)
        return n->b;
    return n;
}

static jnode *parse_dot(jparser *p, jnode *of, int line) {
    jnode *n = parse_node(p, N_ATTR, line);
    n->a = of;
    if (p->cur.type == T_INT) {
        n->kind = N_ITEM;
        n->b = constant(p, p->cur.value, line);
        parse_next(p);
    } else if (p->cur.type == T_NAME) {
        n->name = parse_expect_name(p);
    } else {
        parse_fail(p, p->cur.line, "expected name or number");
    }
    return n;
}

static jnode *parse_postfix(jparser *p, jnode *n) {
    while (parse_ok(p)) {
        int line = p->cur.line;
        if (parse_skip_op(p, '.'))
            n = parse_dot(p, n, line);
        else if (parse_skip_op(p, '['))
            n = parse_bracket(p, n, line);
        else if (parse_is_op(p, '('))
            n = parse_call_node(p, n);
        else
            break;
    }
    return n;
}

static void add_keyword(jparser *p, jcall *call, size_t *capacity) {
    const jsym *name = parse_expect_name(p);
    parse_expect_op(p, '=');
    jnode *value = parse_expression(p, true);
    size_t names = *capacity, values = *capacity;
    if (name == NULL ||
        !jm_grow(&p->t->mem, (void **)&call->names, &names, call->n_kw + 1, sizeof(jstr *)) ||
        !jm_grow(&p->t->mem, (void **)&call->values, &values, call->n_kw + 1, sizeof(jnode *)))
        return;
    *capacity = values;
    for (size_t i = 0; i < call->n_kw; i++)
        if (call->names[i] == name->text.as.s)
            parse_fail(p, p->cur.line, "keyword argument '%s' repeated", name->p);
    call->names[call->n_kw] = name->text.as.s;
    call->values[call->n_kw++] = value;
}

static void add_positional(jparser *p, jcall *call, size_t *capacity) {
    jnode *value = parse_expression(p, true);
    if (jm_grow(&p->t->mem, (void **)&call->pos, capacity, call->n_pos + 1, sizeof value))
        call->pos[call->n_pos++] = value;
}

/* "(a, b, c=1, *d, **e)" */
static jcall *parse_call_args(jparser *p) {
    jcall *call = jm_alloc(&p->t->mem, 1, sizeof *call);
    size_t n_pos = 0, n_kw = 0;
    int line = p->cur.line;
    bool first = true;
    if (call == NULL || !parse_expect_op(p, '(')) return call;
    while (!parse_is_op(p, ')') && parse_ok(p)) {
        if (!first && (!parse_expect_op(p, ',') || parse_is_op(p, ')'))) break;
        first = false;
        bool ordered = call->star_star == NULL;
        if (parse_skip_op(p, '*')) {
            ordered = ordered && call->star == NULL;
            call->star = parse_expression(p, true);
        } else if (parse_skip_op(p, OP2('*', '*'))) {
            call->star_star = parse_expression(p, true);
        } else if (p->cur.type == T_NAME && p->ahead.type == T_OP && p->ahead.op == '=') {
            add_keyword(p, call, &n_kw);
        } else {
            ordered = ordered && call->star == NULL && call->n_kw == 0;
            add_positional(p, call, &n_pos);
        }
        if (!ordered) parse_fail(p, line, "invalid syntax for function call expression");
    }
    parse_expect_op(p, ')');
    return call;
}

jnode *parse_call_node(jparser *p, jnode *callee) {
    jnode *n = unary(p, N_CALL, callee, p->cur.line);
    n->call = parse_call_args(p);
    return n;
}

/* A name that may hold dots, of a filter or test. */
static const jsym *dotted_name(jparser *p) {
    const jsym *name = parse_expect_name(p);
    while (name != NULL && parse_skip_op(p, '.')) {
        const jsym *part = parse_expect_name(p);
        if (part == NULL) return NULL;
        buf b = {0};
        buf_printf(&b, "%s.%s", name->p, part->p);
        name = b.failed ? NULL : jsym_intern(p->t, b.data, b.len);
        buf_free(&b);
    }
    return name;
}

static void note_unknown(jparser *p, const char *what, const jnode *n) {
    if (n->def != NULL || n->name == NULL) return;
    if (jm_grow(&p->t->mem, (void **)&p->unknown, &p->unknown_capacity, p->n_unknown + 1,
                sizeof *p->unknown))
        p->unknown[p->n_unknown++] = (junknown){what, n->name->p, n->line, false};
}

jnode *parse_filters(jparser *p, jnode *node, bool inline_start) {
    while (parse_ok(p) && (inline_start || parse_skip_op(p, '|'))) {
        inline_start = false;
        jnode *n = unary(p, N_FILTER, node, p->cur.line);
        n->name = dotted_name(p);
        n->def = n->name != NULL ? jinja_filter_find(n->name->p) : NULL;
        n->call = parse_is_op(p, '(') ? parse_call_args(p) : NULL;
        note_unknown(p, "filter", n);
        node = n;
    }
    return node;
}

static void one_argument(jparser *p, jnode *n) {
    jnode *arg = parse_postfix(p, parse_primary(p, false));
    n->call = jm_alloc(&p->t->mem, 1, sizeof *n->call);
    jnode **pos = jm_alloc(&p->t->mem, 1, sizeof *pos);
    if (n->call == NULL || pos == NULL) return;
    pos[0] = arg;
    n->call->pos = pos;
    n->call->n_pos = 1;
}

/* Whether what follows a test's name is its argument, as in "x is divisibleby 3". */
static bool argument_follows(const jparser *p) {
    switch (p->cur.type) {
    case T_STRING:
    case T_INT:
    case T_FLOAT: return true;
    case T_NAME:
        return !parse_is_name(p, "else") && !parse_is_name(p, "or") && !parse_is_name(p, "and");
    default: return parse_is_op(p, '[') || parse_is_op(p, '{');
    }
}

static jnode *parse_test(jparser *p, jnode *subject) {
    int line = p->cur.line;
    parse_next(p);
    bool negated = parse_skip_name(p, "not");
    jnode *n = unary(p, N_TEST, subject, line);
    n->name = dotted_name(p);
    n->def = n->name != NULL ? jinja_test_find(n->name->p) : NULL;
    note_unknown(p, "test", n);
    if (parse_is_op(p, '(')) {
        n->call = parse_call_args(p);
    } else if (argument_follows(p)) {
        if (parse_is_name(p, "is")) parse_fail(p, line, "You cannot chain multiple tests with is");
        one_argument(p, n);
    }
    return negated ? unary(p, N_NOT, n, line) : n;
}

static jnode *parse_unary(jparser *p, bool with_filter) {
    int line = p->cur.line;
    jnode *n;
    if (!parse_enter(p)) return parse_node(p, N_CONST, line);
    if (parse_skip_op(p, '-'))
        n = unary(p, N_NEG, parse_unary(p, false), line);
    else if (parse_skip_op(p, '+'))
        n = unary(p, N_POS, parse_unary(p, false), line);
    else
        n = parse_primary(p, false);
    n = parse_postfix(p, n);
    while (with_filter && parse_ok(p)) {
        if (parse_is_op(p, '|'))
            n = parse_filters(p, n, false);
        else if (parse_is_name(p, "is"))
            n = parse_test(p, n);
        else if (parse_is_op(p, '('))
            n = parse_call_node(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

static jnode *parse_list(jparser *p, int line) {
    jnode *n = parse_node(p, N_LIST, line);
    while (!parse_is_op(p, ']') && parse_ok(p)) {
        if (n->n > 0 && (!parse_expect_op(p, ',') || parse_is_op(p, ']'))) break;
        parse_push(p, n, parse_expression(p, true));
    }
    parse_expect_op(p, ']');
    return n;
}

static jnode *parse_dict(jparser *p, int line) {
    jnode *n = parse_node(p, N_DICT, line);
    while (!parse_is_op(p, '}') && parse_ok(p)) {
        if (n->n > 0 && (!parse_expect_op(p, ',') || parse_is_op(p, '}'))) break;
        parse_push(p, n, parse_expression(p, true));
        parse_expect_op(p, ':');
        parse_push(p, n, parse_expression(p, true));
    }
    parse_expect_op(p, '}');
    return n;
}

static jnode *parse_strings(jparser *p, int line) {
    buf b = {0};
    jv value = lex_string_value(p, &p->cur);
    parse_next(p);
    if (p->cur.type != T_STRING) return constant(p, value, line);
    buf_append(&b, value.as.s->p, value.as.s->len);
    while (p->cur.type == T_STRING && parse_ok(p)) {
        value = lex_string_value(p, &p->cur);
        buf_append(&b, value.as.s->p, value.as.s->len);
        parse_next(p);
    }
    if (b.failed) p->t->mem.failed = true;
    value = jv_from_jstr(jstr_make(&p->t->mem, b.data != NULL ? b.data : "", b.len));
    buf_free(&b);
    return constant(p, value, line);
}

static jnode *parse_name(jparser *p, bool with_namespace) {
    static const struct {
        const char *name;
        int value; /* 0, 1: a boolean; 2: none */
    } words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", 2}, {"None", 2}};
    int line = p->cur.line;
    const jsym *name = parse_expect_name(p);
    if (name == NULL) return parse_node(p, N_CONST, line);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i].name, name->p) == 0)
            return constant(p, words[i].value == 2 ? jv_none() : jv_bool(words[i].value), line);
    jnode *n = parse_node(p, N_NAME, line);
    n->name = name;
    if (with_namespace && parse_skip_op(p, '.')) {
        jnode *target = parse_node(p, N_NSREF, line);
        target->a = n;
        target->name = parse_expect_name(p);
        return target;
    }
    if (strcmp(name->p, "caller") == 0) p->uses_caller = true;
    if (strcmp(name->p, "varargs") == 0) p->uses_varargs = true;
    if (strcmp(name->p, "kwargs") == 0) p->uses_kwargs = true;
    return n;
}

static jnode *parse_primary(jparser *p, bool with_namespace) {
    int line = p->cur.line;
    switch (p->cur.type) {
    case T_NAME: return parse_name(p, with_namespace);
    case T_STRING: return parse_strings(p, line);
    case T_INT:
    case T_FLOAT: {
        jnode *n = constant(p, p->cur.value, line);
        parse_next(p);
        return n;
    }
    default: break;
    }
    if (parse_skip_op(p, '(')) {
        jnode *n = parse_tuple(p, true, true);
        parse_expect_op(p, ')');
        return n;
    }
    if (parse_skip_op(p, '[')) return parse_list(p, line);
    if (parse_skip_op(p, '{')) return parse_dict(p, line);
    if (p->cur.type == T_EOF)
        parse_fail(p, line, "unexpected end of template");
    else if (p->cur.type == T_OP)
        parse_fail(p, line, "unexpected '%.*s'", (int)p->cur.len, p->cur.p);
    else
        parse_fail(p, line, "Expected an expression, got the end of the tag");
    return parse_node(p, N_CONST, line);
}

static bool tuple_ends(const jparser *p) {
    return p->cur.type == T_VAR_END || p->cur.type == T_BLOCK_END || p->cur.type == T_EOF ||
           parse_is_op(p, ')');
}

/* Expressions with commas between them; `parens`: an empty one is the empty tuple. `targets`: only
 * names, as in a for. */
static jnode *parse_commas(jparser *p, bool with_cond, bool parens, bool targets,
                           bool with_namespace) {
    jnode *tuple = parse_node(p, N_TUPLE, p->cur.line);
    bool is_tuple = false;
    while (!tuple_ends(p) && parse_ok(p)) {
        parse_push(p, tuple,
                   targets ? parse_primary(p, with_namespace) : parse_expression(p, with_cond));
        if (!parse_skip_op(p, ',')) break;
        is_tuple = true;
    }
    if (!is_tuple && tuple->n == 1) return tuple->items[0];
    if (tuple->n == 0 && !parens)
        parse_fail(p, p->cur.line, "Expected an expression, got the end of the statement");
    return tuple;
}

jnode *parse_tuple(jparser *p, bool with_cond, bool parens) {
    return parse_commas(p, with_cond, parens, false, false);
}

/* Inside a loop, "loop" is taken. */
static bool can_assign(const jparser *p, const jnode *n) {
    if (n->kind == N_NAME) return p->loops == 0 || strcmp(n->name->p, "loop") != 0;
    if (n->kind == N_NSREF) return true;
    if (n->kind != N_TUPLE && n->kind != N_LIST) return false;
    for (size_t i = 0; i < n->n; i++)
        if (!can_assign(p, n->items[i])) return false;
    return true;
}

jnode *parse_target(jparser *p, bool with_namespace) {
    jnode *n = parse_commas(p, true, false, true, with_namespace);
    if (!can_assign(p, n)) parse_fail(p, n->line, "can't assign to this expression");
    return n;
}
