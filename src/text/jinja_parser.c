/* text/jinja_parser: statements to nodes; tokens with one of look-ahead; the first error wins. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_internal.h"

/* Nesting of expressions and statements; each level costs about 1.5 KB of stack here. */
#define MAX_NESTING 160

void parse_fail(jparser *p, int line, const char *format, ...) {
    char text[400];
    if (p->status != RIDGE_OK) return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = RIDGE_FAIL(p->err, RIDGE_EFORMAT, "%s:%d: %s", p->t->name, line, text);
}

bool parse_ok(const jparser *p) {
    return p->status == RIDGE_OK && !p->t->mem.failed;
}

void parse_next(jparser *p) {
    p->cur = p->ahead;
    lex_next(p, &p->ahead);
    if (!parse_ok(p)) p->cur.type = p->ahead.type = T_EOF;
}

bool parse_is_op(const jparser *p, int op) {
    return p->cur.type == T_OP && p->cur.op == op;
}

bool parse_is_name(const jparser *p, const char *name) {
    return p->cur.type == T_NAME && strlen(name) == p->cur.len &&
           memcmp(name, p->cur.p, p->cur.len) == 0;
}

bool parse_skip_op(jparser *p, int op) {
    bool is = parse_is_op(p, op);
    if (is) parse_next(p);
    return is;
}

bool parse_skip_name(jparser *p, const char *name) {
    bool is = parse_is_name(p, name);
    if (is) parse_next(p);
    return is;
}

static void describe(const jparser *p, char *out, size_t size) {
    switch (p->cur.type) {
    case T_EOF: snprintf(out, size, "end of template"); break;
    case T_BLOCK_END: snprintf(out, size, "end of statement block"); break;
    case T_VAR_END: snprintf(out, size, "end of print statement"); break;
    default: snprintf(out, size, "'%.*s'", p->cur.len > 60 ? 60 : (int)p->cur.len, p->cur.p);
    }
}

static void fail_expected(jparser *p, const char *expected) {
    char found[80];
    describe(p, found, sizeof found);
    parse_fail(p, p->cur.line, "expected %s, found %s", expected, found);
}

bool parse_expect_op(jparser *p, int op) {
    char expected[] = {'\'', (char)op, '\'', '\0'};
    if (parse_skip_op(p, op)) return true;
    fail_expected(p, expected);
    return false;
}

const jsym *parse_expect_name(jparser *p) {
    if (p->cur.type != T_NAME) {
        fail_expected(p, "a name");
        return NULL;
    }
    const jsym *name = jsym_intern(p->t, p->cur.p, p->cur.len);
    parse_next(p);
    return name;
}

static void expect_block_end(jparser *p) {
    if (p->cur.type == T_BLOCK_END)
        parse_next(p);
    else
        fail_expected(p, "end of statement block");
}

/* Never NULL: after a failure all nodes are this one, and the parser is about to stop. */
jnode *parse_node(jparser *p, nkind kind, int line) {
    jnode *n = jm_alloc(&p->t->mem, 1, sizeof *n);
    if (n == NULL) {
        p->spare = (jnode){.kind = kind};
        return &p->spare;
    }
    n->kind = kind;
    n->line = line;
    return n;
}

/* items has room for a power of two: it grows when n reaches one. */
void parse_push(jparser *p, jnode *n, jnode *item) {
    size_t capacity = n->n;
    bool full = n->n == 0 || (n->n >= 8 && (n->n & (n->n - 1)) == 0);
    if (n == &p->spare ||
        (full && !jm_grow(&p->t->mem, (void **)&n->items, &capacity, n->n + 1, sizeof item)))
        return;
    n->items[n->n++] = item;
}

bool parse_enter(jparser *p) {
    if (p->depth >= MAX_NESTING) {
        parse_fail(p, p->cur.line, "nested deeper than %d levels", MAX_NESTING);
        return false;
    }
    p->depth++;
    return parse_ok(p);
}

/* Unknown names since mark: soft, they only matter when reached; else they become hard. */
void parse_forgive(jparser *p, size_t mark, bool soft) {
    size_t kept = mark;
    for (size_t i = mark; i < p->n_unknown; i++) {
        if (soft && !p->unknown[i].hard) continue;
        p->unknown[kept] = p->unknown[i];
        p->unknown[kept++].hard = true;
    }
    p->n_unknown = kept;
}

static jnode *parse_statement(jparser *p);

static bool is_end(const jparser *p, const char *const *ends) {
    for (; ends != NULL && *ends != NULL; ends++)
        if (parse_is_name(p, *ends)) return true;
    return false;
}

/* Text, prints and statements up to one of the `ends` (its name is then current), or to the end
 * of the template. */
static jnode *parse_body(jparser *p, const char *const *ends) {
    jnode *body = parse_node(p, N_BODY, p->cur.line);
    while (p->cur.type != T_EOF && parse_ok(p)) {
        int line = p->cur.line;
        if (p->cur.type == T_DATA) {
            jnode *data = parse_node(p, N_DATA, line);
            data->value = jv_from_jstr(jstr_borrow(&p->t->mem, p->cur.p, p->cur.len));
            parse_push(p, body, data);
            parse_next(p);
        } else if (p->cur.type == T_VAR_BEGIN) {
            parse_next(p);
            jnode *print = parse_node(p, N_PRINT, line);
            print->a = parse_tuple(p, true, false);
            parse_push(p, body, print);
            if (p->cur.type == T_VAR_END)
                parse_next(p);
            else
                fail_expected(p, "end of print statement");
        } else {
            parse_next(p);
            if (is_end(p, ends)) return body;
            parse_push(p, body, parse_statement(p));
            expect_block_end(p);
        }
    }
    if (ends != NULL) parse_fail(p, p->cur.line, "unexpected end of template: missing %s", ends[0]);
    return body;
}

/* The body of a statement whose tag ends here. */
static jnode *parse_block(jparser *p, const char *const *ends) {
    expect_block_end(p);
    return parse_body(p, ends);
}

static jnode *parse_block_to(jparser *p, const char *end) {
    const char *const ends[] = {end, NULL};
    jnode *body = parse_block(p, ends);
    parse_next(p);
    return body;
}

static jnode *parse_if(jparser *p, int line) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    jnode *n = parse_node(p, N_IF, line);
    size_t mark = p->n_unknown;
    while (parse_ok(p)) {
        parse_push(p, n, parse_tuple(p, false, false));
        parse_push(p, n, parse_block(p, ends));
        if (!parse_skip_name(p, "elif")) break;
    }
    if (parse_skip_name(p, "else"))
        n->b = parse_block_to(p, "endif");
    else
        parse_skip_name(p, "endif");
    parse_forgive(p, mark, true);
    return n;
}

static jnode *parse_for(jparser *p, int line) {
    static const char *const ends[] = {"endfor", "else", NULL};
    jnode *n = parse_node(p, N_FOR, line);
    p->loops++;
    n->a = parse_target(p, false);
    p->loops--;
    if (!parse_skip_name(p, "in")) fail_expected(p, "'in'");
    n->b = parse_tuple(p, false, false);
    if (parse_skip_name(p, "if")) n->c = parse_expression(p, true);
    n->recursive = parse_skip_name(p, "recursive");
    size_t mark = p->n_unknown;
    p->loops++;
    jnode *body = parse_block(p, ends);
    p->loops--;
    parse_push(p, n, body);
    if (parse_skip_name(p, "else"))
        n->d = parse_block_to(p, "endfor");
    else
        parse_skip_name(p, "endfor");
    parse_forgive(p, mark, false);
    return n;
}

static jnode *parse_set(jparser *p, int line) {
    jnode *n = parse_node(p, N_SET, line);
    n->a = parse_target(p, true);
    if (parse_skip_op(p, '=')) {
        n->b = parse_tuple(p, true, false);
        return n;
    }
    n->kind = N_SETBLOCK;
    n->b = parse_filters(p, NULL, false);
    n->c = parse_block_to(p, "endset");
    return n;
}

/* "(a, b=1)" of a macro or a call */
static void parse_signature(jparser *p, jmacro_node *m) {
    size_t names = 0, defaults = 0;
    while (!parse_is_op(p, ')') && parse_ok(p)) {
        if (m->n_params > 0 && !parse_expect_op(p, ',')) return;
        const jsym *name = parse_expect_name(p);
        jnode *value = parse_skip_op(p, '=') ? parse_expression(p, true) : NULL;
        if (value == NULL && m->n_params > 0 && m->defaults[m->n_params - 1] != NULL)
            parse_fail(p, p->cur.line, "non-default argument follows default argument");
        if (name == NULL ||
            !jm_grow(&p->t->mem, (void **)&m->params, &names, m->n_params + 1, sizeof name) ||
            !jm_grow(&p->t->mem, (void **)&m->defaults, &defaults, m->n_params + 1, sizeof value))
            return;
        m->params[m->n_params] = name;
        m->defaults[m->n_params++] = value;
    }
    parse_expect_op(p, ')');
}

static bool has_param(const jmacro_node *m, const char *name) {
    for (size_t i = 0; i < m->n_params; i++)
        if (strcmp(m->params[i]->p, name) == 0) return true;
    return false;
}

/* A body that runs as a function: with its own count of loops and its own special names. */
static void parse_function_body(jparser *p, jmacro_node *m, const char *end) {
    bool caller = p->uses_caller, varargs = p->uses_varargs, kwargs = p->uses_kwargs;
    int loops = p->loops;
    size_t mark = p->n_unknown;
    p->uses_caller = p->uses_varargs = p->uses_kwargs = false;
    p->loops = 0;
    m->body = parse_block_to(p, end);
    m->uses_caller = p->uses_caller && !has_param(m, "caller");
    m->uses_varargs = p->uses_varargs && !has_param(m, "varargs");
    m->uses_kwargs = p->uses_kwargs && !has_param(m, "kwargs");
    p->uses_caller |= caller;
    p->uses_varargs |= varargs;
    p->uses_kwargs |= kwargs;
    p->loops = loops;
    parse_forgive(p, mark, false);
}

static jnode *parse_macro(jparser *p, int line) {
    jnode *n = parse_node(p, N_MACRO, line);
    jmacro_node *m = jm_alloc(&p->t->mem, 1, sizeof *m);
    if (m == NULL) return n;
    n->macro = m;
    n->name = m->name = parse_expect_name(p);
    if (parse_expect_op(p, '(')) parse_signature(p, m);
    parse_function_body(p, m, "endmacro");
    return n;
}

static jnode *parse_call_block(jparser *p, int line) {
    jnode *n = parse_node(p, N_CALLBLOCK, line);
    jmacro_node *m = jm_alloc(&p->t->mem, 1, sizeof *m);
    if (m == NULL) return n;
    n->macro = m;
    if (parse_skip_op(p, '(')) parse_signature(p, m);
    n->a = parse_expression(p, true);
    if (n->a->kind != N_CALL) parse_fail(p, line, "expected call");
    parse_function_body(p, m, "endcall");
    return n;
}

static jnode *parse_with(jparser *p, int line) {
    jnode *n = parse_node(p, N_WITH, line);
    while (p->cur.type != T_BLOCK_END && p->cur.type != T_EOF && parse_ok(p)) {
        if (n->n > 0 && !parse_expect_op(p, ',')) break;
        parse_push(p, n, parse_target(p, false));
        parse_expect_op(p, '=');
        parse_push(p, n, parse_expression(p, true));
    }
    size_t mark = p->n_unknown;
    n->a = parse_block_to(p, "endwith");
    parse_forgive(p, mark, false);
    return n;
}

static jnode *parse_scope(jparser *p, int line, const char *end) {
    jnode *n = parse_node(p, N_SCOPE, line);
    n->a = parse_block_to(p, end);
    n->is_block = strcmp(end, "endblock") == 0;
    return n;
}

static jnode *parse_filter_block(jparser *p, int line) {
    jnode *n = parse_node(p, N_FILTERBLOCK, line);
    n->b = parse_filters(p, NULL, true);
    n->c = parse_block_to(p, "endfilter");
    return n;
}

static jnode *parse_print(jparser *p, int line) {
    jnode *body = parse_node(p, N_BODY, line);
    while (p->cur.type != T_BLOCK_END && p->cur.type != T_EOF && parse_ok(p)) {
        if (body->n > 0 && !parse_expect_op(p, ',')) break;
        jnode *n = parse_node(p, N_PRINT, line);
        n->a = parse_expression(p, true);
        parse_push(p, body, n);
    }
    return body;
}

static jnode *parse_jump(jparser *p, nkind kind, int line) {
    if (p->loops == 0)
        parse_fail(p, line, "'%s' outside loop", kind == N_BREAK ? "break" : "continue");
    return parse_node(p, kind, line);
}

/* import, include, from, extends: there is nothing to load from; an error when reached. */
static jnode *parse_loading(jparser *p, const jsym *name, int line) {
    jnode *n = parse_node(p, N_FAIL, line);
    n->name = name;
    while (p->cur.type != T_BLOCK_END && p->cur.type != T_EOF && parse_ok(p)) parse_next(p);
    return n;
}

static jnode *parse_named_block(jparser *p, int line) {
    parse_expect_name(p);
    while (parse_skip_name(p, "scoped") || parse_skip_name(p, "required")) {
    }
    jnode *n = parse_scope(p, line, "endblock");
    if (p->cur.type == T_NAME) parse_next(p);
    return n;
}

static jnode *parse_statement_named(jparser *p, const jsym *name, int line) {
    const char *s = name->p;
    if (strcmp(s, "if") == 0) return parse_if(p, line);
    if (strcmp(s, "for") == 0) return parse_for(p, line);
    if (strcmp(s, "set") == 0) return parse_set(p, line);
    if (strcmp(s, "macro") == 0) return parse_macro(p, line);
    if (strcmp(s, "call") == 0) return parse_call_block(p, line);
    if (strcmp(s, "filter") == 0) return parse_filter_block(p, line);
    if (strcmp(s, "with") == 0) return parse_with(p, line);
    if (strcmp(s, "print") == 0) return parse_print(p, line);
    if (strcmp(s, "break") == 0) return parse_jump(p, N_BREAK, line);
    if (strcmp(s, "continue") == 0) return parse_jump(p, N_CONTINUE, line);
    if (strcmp(s, "block") == 0) return parse_named_block(p, line);
    if (strcmp(s, "generation") == 0) return parse_scope(p, line, "endgeneration");
    if (strcmp(s, "autoescape") == 0) {
        parse_expression(p, true);
        return parse_scope(p, line, "endautoescape");
    }
    if (strcmp(s, "import") == 0 || strcmp(s, "include") == 0 || strcmp(s, "from") == 0 ||
        strcmp(s, "extends") == 0)
        return parse_loading(p, name, line);
    parse_fail(p, line, "Encountered unknown tag '%s'", s);
    return parse_node(p, N_BODY, line);
}

static jnode *parse_statement(jparser *p) {
    int line = p->cur.line;
    const jsym *name = NULL;
    if (p->cur.type != T_NAME)
        parse_fail(p, line, "tag name expected");
    else if (parse_enter(p))
        name = parse_expect_name(p);
    if (name == NULL) return parse_node(p, N_BODY, line);
    jnode *n = parse_statement_named(p, name, line);
    p->depth--;
    return n;
}

jnode *parse_template(jparser *p) {
    lex_next(p, &p->ahead);
    parse_next(p);
    jnode *body = parse_body(p, NULL);
    if (p->n_unknown > 0 && p->status == RIDGE_OK)
        parse_fail(p, p->unknown[0].line, "No %s named '%s'", p->unknown[0].what,
                   p->unknown[0].name);
    return body;
}
