/* text/jinja_scopes: which names of a scope hide those around it before they are set.
 *
 * Jinja2 compiles a name to one variable of the scope whose text first mentions it. Where that
 * first mention sets it, and no scope around mentions it at all, the variable is empty until then:
 * scopes inside that read it earlier see an undefined value, not the one that the template was
 * given. So
 *
 *     {% for x in y %}{{ tools }}{% endfor %}{% set tools = 1 %}
 *
 * never prints what came as `tools`. A mention inside an if is as good as a reading.
 *
 * Each scope is walked twice: its own statements first, then the scopes inside, with the mentions
 * of all scopes around them counted.
 */
#include "text/jinja_internal.h"

typedef struct {
    chat_template *t;
    uint32_t *around;      /* [symbols] scopes in work that mention the name */
    uint32_t *seen_in;     /* [symbols] the last scope that mentioned it */
    const jsym **mentions; /* [n] of all scopes in work, inner ones behind */
    size_t n, capacity;
    uint32_t n_scopes, scope; /* how many there were; the one whose statements are walked */
    jnode *body;              /* of that scope */
    size_t hidden_capacity;
    int branches; /* ifs around the statement */
} walk;

static void enter_scope(walk *w, jnode *body, const jnode *opener);
static void mention_all(walk *w, const jnode *n);

static void hide(walk *w, const jsym *name) {
    jnode *b = w->body;
    if (jm_grow(&w->t->mem, (void **)&b->hidden, &w->hidden_capacity, b->n_hidden + 1, sizeof name))
        b->hidden[b->n_hidden++] = name;
}

static void mention(walk *w, const jsym *name, bool sets) {
    if (name == NULL || w->seen_in[name->id] == w->scope) return;
    if (!jm_grow(&w->t->mem, (void **)&w->mentions, &w->capacity, w->n + 1, sizeof name)) return;
    if (sets && w->branches == 0 && w->around[name->id] == 0) hide(w, name);
    w->seen_in[name->id] = w->scope;
    w->around[name->id]++;
    w->mentions[w->n++] = name;
}

static void mention_call(walk *w, const jcall *call) {
    if (call == NULL) return;
    for (size_t i = 0; i < call->n_pos; i++) mention_all(w, call->pos[i]);
    for (size_t i = 0; i < call->n_kw; i++) mention_all(w, call->values[i]);
    mention_all(w, call->star);
    mention_all(w, call->star_star);
}

/* Every name that an expression reads. Chains of operators and filters are deep on the left only,
 * and without a limit: no recursion there. */
static void mention_all(walk *w, const jnode *n) {
    for (; n != NULL; n = n->a) {
        if (n->kind == N_NAME) mention(w, n->name, false);
        mention_all(w, n->b);
        mention_all(w, n->c);
        mention_all(w, n->d);
        for (size_t i = 0; i < n->n; i++) mention_all(w, n->items[i]);
        mention_call(w, n->call);
    }
}

static void mention_target(walk *w, const jnode *target) {
    if (target->kind == N_NAME) mention(w, target->name, true);
    if (target->kind == N_NSREF) mention_all(w, target->a);
    for (size_t i = 0; i < target->n; i++) mention_target(w, target->items[i]);
}

/* A scope's own statements: `inside` walks the scopes that they open, else their mentions. */
static void walk_statement(walk *w, const jnode *n, bool inside);

static void walk_if(walk *w, const jnode *n, bool inside) {
    for (size_t i = 0; i + 1 < n->n; i += 2) {
        if (!inside) mention_all(w, n->items[i]);
        w->branches++;
        walk_statement(w, n->items[i + 1], inside);
        w->branches--;
    }
    w->branches++;
    if (n->b != NULL) walk_statement(w, n->b, inside);
    w->branches--;
}

static void walk_mentions(walk *w, const jnode *n) {
    switch (n->kind) {
    case N_PRINT: mention_all(w, n->a); break;
    case N_FOR: mention_all(w, n->b); break;
    case N_SET:
        mention_all(w, n->b);
        mention_target(w, n->a);
        break;
    case N_SETBLOCK: mention_target(w, n->a); break;
    case N_FILTERBLOCK: mention_all(w, n->b); break;
    case N_MACRO: mention(w, n->name, true); break;
    case N_CALLBLOCK: mention_all(w, n->a); break;
    case N_WITH:
        for (size_t i = 1; i < n->n; i += 2) mention_all(w, n->items[i]);
        break;
    case N_SCOPE:
        /* A block reads what the template was given and what is set by then. */
        if (n->is_block) walk_statement(w, n->a, false);
        break;
    default: break;
    }
}

static void walk_inside(walk *w, const jnode *n) {
    switch (n->kind) {
    case N_FOR:
        enter_scope(w, n->items[0], n);
        if (n->d != NULL) enter_scope(w, n->d, NULL);
        break;
    case N_SETBLOCK:
    case N_FILTERBLOCK: enter_scope(w, n->c, NULL); break;
    case N_MACRO:
    case N_CALLBLOCK: enter_scope(w, n->macro->body, n); break;
    case N_WITH: enter_scope(w, n->a, n); break;
    case N_SCOPE: enter_scope(w, n->a, NULL); break;
    default: break;
    }
}

static void walk_statement(walk *w, const jnode *n, bool inside) {
    if (n->kind == N_IF) {
        walk_if(w, n, inside);
    } else if (n->kind == N_BODY) {
        for (size_t i = 0; i < n->n; i++) walk_statement(w, n->items[i], inside);
    } else if (inside) {
        walk_inside(w, n);
    } else {
        walk_mentions(w, n);
    }
}

/* What the opener of a scope binds in it: never hidden, as it is set before anything is read. */
static void mention_bound(walk *w, const jnode *opener) {
    w->branches++;
    if (opener->kind == N_FOR) {
        mention(w, w->t->loop_name, false);
        mention_target(w, opener->a);
        mention_all(w, opener->c);
    } else if (opener->kind == N_WITH) {
        for (size_t i = 0; i < opener->n; i += 2) mention_target(w, opener->items[i]);
    } else {
        const jmacro_node *m = opener->macro;
        for (size_t i = 0; i < m->n_params; i++) mention(w, m->params[i], true);
        for (size_t i = 0; i < m->n_params; i++) mention_all(w, m->defaults[i]);
    }
    w->branches--;
}

static void enter_scope(walk *w, jnode *body, const jnode *opener) {
    size_t begin = w->n;
    int branches = w->branches;
    w->scope = ++w->n_scopes;
    w->body = body;
    w->hidden_capacity = 0;
    w->branches = 0;
    if (opener != NULL) mention_bound(w, opener);
    walk_statement(w, body, false);
    walk_statement(w, body, true);
    while (w->n > begin) w->around[w->mentions[--w->n]->id]--;
    w->branches = branches;
}

void jinja_find_hidden(chat_template *t) {
    walk w = {.t = t};
    w.around = jm_alloc(&t->mem, t->n_symbols + 1, sizeof *w.around);
    w.seen_in = jm_alloc(&t->mem, t->n_symbols + 1, sizeof *w.seen_in);
    if (w.around != NULL && w.seen_in != NULL) enter_scope(&w, t->body, NULL);
}
