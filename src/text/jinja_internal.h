/* text/jinja_internal: what the files of the template engine share.
 *
 * A template is parsed once into nodes that live in the template's own memory and never change;
 * each render has a `jx` with an arena of its own, in which all values live until it ends. Both
 * use a `jmem`: when it fails (out of memory, limit) constructors return valid empty objects and
 * `failed` stays set, so that callers need no check after each step; loops test jx_failed().
 * Values are immutable but for namespaces, iterators, loops, cyclers and joiners.
 *
 *     lexer -> parser + expr -> nodes -> exec (statements) + eval (expressions)
 *     value, text, repr, ops: the Python data model;  filters, tests, methods, globals: its library
 */
#ifndef RIDGE_TEXT_JINJA_INTERNAL_H
#define RIDGE_TEXT_JINJA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/template.h"

typedef struct {
    arena a;
    bool failed;
} jmem;

/* ---- values ---- */

typedef enum {
    J_MISSING, /* an argument that was not given; never seen by a template */
    J_UNDEFINED,
    J_NONE,
    J_BOOL, /* as.i is 0 or 1, so that it computes like an integer */
    J_INT,
    J_FLOAT,
    J_BIG, /* an integer literal over 64 bits, as its decimal digits in as.s: for printing */
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_ITER, /* a generator: its items are consumed once */
    J_RANGE,
    J_NAMESPACE, /* as.d */
    J_FUNCTION,
    J_METHOD,
    J_MACRO,
    J_LOOP,
    J_CYCLER,
    J_JOINER
} jtype;

typedef struct jstr {
    const char *p; /* [len] UTF-8, not always NUL-terminated */
    size_t len;
    size_t chars; /* code points; equal to len: pure ASCII */
    bool markup;  /* markupsafe.Markup: joined with plain text by +, it escapes it */
} jstr;

typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jview jview;
typedef struct jiter jiter;
typedef struct jrange jrange;
typedef struct jdef jdef;
typedef struct jmethod jmethod;
typedef struct jmacro jmacro;
typedef struct jloop jloop;
typedef struct jcycle jcycle;

typedef struct {
    jtype type;
    union {
        int64_t i;
        double f;
        const jstr *s; /* J_STR, J_BIG; J_UNDEFINED: what to say when it is used, or NULL */
        jlist *l;
        jdict *d;
        jview *view;
        jiter *iter;
        const jrange *range;
        const jdef *fn;
        const jmethod *method;
        const jmacro *macro;
        jloop *loop;
        jcycle *cycle;
    } as;
} jv;

struct jlist {
    jv *items; /* [n] */
    size_t n, capacity;
    bool is_group; /* of groupby: .grouper and .list are its two items */
};

typedef struct {
    jv key, value;
    uint64_t hash;
} jentry;

struct jdict {
    jentry *entries; /* [n], in order of insertion */
    size_t n, capacity;
    uint32_t *index; /* [index_size], entry + 1 or 0; NULL while n is small */
    size_t index_size;
};

struct jview {
    jdict *d;
    enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } kind;
};

struct jiter {
    jv *items; /* [n]; those before pos are gone */
    size_t n, pos;
};

struct jrange {
    int64_t start, stop, step;
    size_t n;
};

/* The arguments of a call. */
typedef struct {
    const jv *pos; /* [n_pos] */
    size_t n_pos;
    const jstr **names; /* [n_kw] */
    const jv *values;   /* [n_kw] */
    size_t n_kw;
} jargs;

typedef struct jx jx;

/* A filter, test, method or global function. params names its parameters, those with '?' may be
 * left out ("old new count?"); "*" takes what comes, in raw. a[i] is J_MISSING where not given. */
#define JDEF_MAX_PARAMS 8
typedef jv (*jfn)(jx *x, jv self, const jv *a, const jargs *raw);
struct jdef {
    const char *name;
    const char *params;
    jfn fn;
};

struct jmethod {
    jv self;
    const jdef *def;
};

struct jcycle { /* cycler and joiner */
    jv *items;  /* [n]; a joiner: its one separator */
    size_t n, pos;
};

/* ---- nodes ---- */

typedef struct {
    const char *p; /* NUL-terminated */
    size_t len;
    jv text; /* the same as a string */
    uint32_t id;
} jsym; /* an interned name: equal names are one pointer */

typedef enum {
    /* expressions */
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT, /* items: key, value, key, value ... */
    N_ATTR,
    N_ITEM,
    N_SLICE, /* a[b:c:d] */
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NEG,
    N_POS,
    N_NOT,
    N_AND,
    N_OR,
    N_BINARY,
    N_CONCAT,
    N_COMPARE, /* a, then items with ops */
    N_COND,    /* b if a else c */
    N_NSREF,   /* name.attr as a target */
    /* statements */
    N_BODY,
    N_DATA,
    N_PRINT,
    N_IF, /* items: test, body, test, body ...; b: else */
    N_FOR,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH, /* items: target, value, ...; a: body */
    N_SCOPE,
    N_BREAK,
    N_CONTINUE,
    N_FAIL /* a statement that this environment cannot run: name says which */
} nkind;

typedef enum {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN
} jop;

typedef struct jnode jnode;

typedef struct {
    jnode **pos; /* [n_pos] */
    size_t n_pos;
    const jstr **names; /* [n_kw] */
    jnode **values;     /* [n_kw] */
    size_t n_kw;
    jnode *star, *star_star; /* *args, **kwargs or NULL */
} jcall;

/* What a {% macro %} or {% call %} declares. */
typedef struct {
    const jsym *name; /* NULL: a caller */
    const jsym **params;
    jnode **defaults; /* [n_params]; NULL: none */
    size_t n_params;
    jnode *body;
    bool uses_caller, uses_varargs, uses_kwargs;
} jmacro_node;

struct jnode {
    nkind kind;
    jop op;
    int line;
    jnode *a, *b, *c, *d;
    jnode **items; /* [n] */
    jop *ops;      /* N_COMPARE: [n] */
    size_t n;
    jv value;         /* N_CONST, N_DATA */
    const jsym *name; /* N_NAME, N_ATTR, N_FILTER, N_TEST, N_NSREF */
    const jdef *def;  /* N_FILTER, N_TEST; NULL: unknown, an error when reached */
    jcall *call;      /* N_CALL, N_FILTER, N_TEST, N_CALLBLOCK */
    jmacro_node *macro;
    bool recursive;      /* N_FOR */
    bool is_block;       /* N_SCOPE of {% block %} */
    const jsym **hidden; /* [n_hidden] body of a scope: names that are undefined until set in it */
    size_t n_hidden;
};

struct chat_template {
    jmem mem;
    const char *name;
    const char *source; /* newlines normalised */
    size_t source_len;
    jdict *names; /* text -> index into symbols */
    jsym **symbols;
    size_t n_symbols, symbols_capacity;
    const jsym *loop_name; /* "loop" */
    jnode *body;
};

/* ---- rendering ---- */

typedef struct {
    const jsym *name;
    jv value;
} jbinding;

/* One scope. Reading looks outwards, setting binds here. */
typedef struct jenv {
    struct jenv *up;
    jbinding *vars; /* [n] */
    size_t n, capacity;
} jenv;

struct jmacro {
    const jmacro_node *node;
    jenv *env; /* where it was defined */
};

struct jloop {
    const jnode *node;
    jenv *env; /* around the loop */
    jv *items; /* [n] */
    size_t n, i;
    int depth0;
    jv changed; /* the arguments of the last loop.changed() */
};

struct jx {
    jmem mem;
    const chat_template *t;
    buf *out;
    ridge_error *err;
    ridge_status status;
    uint64_t steps_left;
    size_t max_output;
    int depth;
    int line; /* of the node in work */
    enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;
    int64_t now;
    jenv *root;
};

/* memory and failure (jinja_value.c) */
void *jm_alloc(jmem *m, size_t count, size_t size); /* zeroed; NULL: failed is set */
bool jm_grow(jmem *m, void **items, size_t *capacity, size_t need, size_t size);
bool jx_failed(jx *x);
jv jx_fail(jx *x, const char *format, ...) RIDGE_PRINTF(2, 3); /* returns undefined */
bool jx_step(jx *x, size_t work); /* charges one step and work bytes; false: limit or failed */

/* values (jinja_value.c) */
extern const jstr jstr_empty;
jv jv_none(void);
jv jv_bool(bool b);
jv jv_int(int64_t i);
jv jv_float(double f);
jv jv_undefined(void);
jv jv_undefined_name(jx *x, const char *format, ...) RIDGE_PRINTF(2, 3);
const jstr *jstr_make(jmem *m, const char *p, size_t n);   /* copies */
const jstr *jstr_borrow(jmem *m, const char *p, size_t n); /* p outlives m's arena */
jv jv_str(jx *x, const char *p, size_t n);
jv jv_cstr(jx *x, const char *s);
jv jv_slice(jx *x, const jstr *of, size_t begin, size_t end); /* bytes [begin, end), shared */
jv jv_from_jstr(const jstr *s);
jv jv_from_buf(jx *x, buf *b); /* copies and frees b */
jlist *jlist_new(jmem *m, size_t capacity);
void jlist_push(jmem *m, jlist *l, jv v);
jv jv_list(jlist *l);
jv jv_tuple(jlist *l);
jv jv_pair(jx *x, jv a, jv b);
jv jv_iter(jx *x, jlist *l);
jdict *jdict_new(jmem *m);
bool jdict_set(jmem *m, jdict *d, jv key, jv value); /* false: the key cannot be hashed */
const jv *jdict_get(const jdict *d, jv key);         /* NULL: absent or unhashable */
bool jv_hashable(jv v);
bool jv_is_number(jv v); /* bool, int, float */
double jv_to_double(jv v);
bool jv_is_real(jv v);             /* those, and integers over 64 bits (jinja_number.c) */
int jv_number_compare(jv a, jv b); /* of two that are real: <0, 0, >0; 2: NaN */
double jv_big_to_double(jv v);
bool jv_truth(jv v);
bool jv_equal(jx *x, jv a, jv b);
int jv_compare(jx *x, jv a, jv b, const char *op); /* <0, 0, >0; 2: unordered (NaN) */
bool jv_is_str(jv v, const char *s);
const char *jv_type_name(jv v);
/* The items of an iterable as an array; consumes an iterator. false: failed. */
bool jv_items(jx *x, jv v, jv **items, size_t *n);
bool jv_length(jv v, size_t *n); /* false: has no len() */
jv jv_from_json(jx *x, const json_t *j, int depth);
jv jv_range_at(const jrange *r, size_t i);

/* text of values (jinja_repr.c) */
const jstr *jv_to_str(jx *x, jv v); /* Python's str() */
void jv_write(jx *x, buf *b, jv v); /* the same, appended */
void jv_write_repr(jx *x, buf *b, jv v, int depth);
jv jv_tojson(jx *x, jv v, const jv *a);

/* Python's str (jinja_text.c) */
bool text_is_space(uint32_t c);
bool text_is_word(uint32_t c);
int text_digit(uint32_t c); /* of a decimal digit of any script, else -1 */
uint32_t text_at(const jstr *s, size_t byte, size_t *width);
size_t text_offset(const jstr *s, size_t index); /* byte offset of a code point */
typedef enum { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP, CASE_FOLD } text_case;
jv text_to_case(jx *x, const jstr *s, text_case c);
jv text_strip(jx *x, const jstr *s, const jv *chars, int sides); /* 1 left, 2 right, 3 both */
size_t text_find(const char *hay, size_t n, const char *needle, size_t m); /* SIZE_MAX: absent */
size_t text_rfind(const char *hay, size_t n, const char *needle, size_t m);
jv text_replace(jx *x, const jstr *s, const jstr *old, const jstr *with, int64_t count);
jlist *text_split_lines(jx *x, const jstr *s, bool keep_ends);
jv text_escape(jx *x, const jstr *s); /* HTML, as Markup */
jv text_format_percent(jx *x, const jstr *format, jv values);
jv text_format_braces(jx *x, const jstr *format, const jargs *args);

/* operators (jinja_ops.c) */
jv op_binary(jx *x, jop op, jv a, jv b);
bool op_compare(jx *x, jop op, jv a, jv b);
jv op_negate(jx *x, jv a, bool minus);
jv op_getattr(jx *x, jv of, const jstr *name);
jv op_getitem(jx *x, jv of, jv key);
jv op_slice(jx *x, jv of, jv start, jv stop, jv step);
bool op_contains(jx *x, jv container, jv item);
bool op_index(jx *x, jv v, int64_t *out); /* an integer, or fails */

void jinja_find_hidden(chat_template *t); /* jinja_scopes.c; after parsing */

/* library tables */
const jdef *jinja_filter_find(const char *name);
const jdef *jinja_test_find(const char *name);
const jdef *jinja_method_find(jv self, const jstr *name);
const jdef *jinja_global_find(const char *name);
extern const jdef jinja_text_filters[], jinja_sequence_filters[]; /* end with a NULL name */
extern const jdef jinja_str_methods[];
bool jinja_method_mutates(jv self, const jstr *name);
jv jinja_call_def(jx *x, const jdef *def, jv self, const jargs *args);
jv jinja_strftime(jx *x, const jstr *format);

/* the evaluator */
jv jinja_eval(jx *x, jenv *env, const jnode *n);
void jinja_exec(jx *x, jenv *env, const jnode *n);
jv jinja_call(jx *x, jv callee, const jargs *args);
jv jinja_call_macro(jx *x, const jmacro *m, const jargs *args);
jv jinja_call_loop(jx *x, jloop *loop, const jargs *args);
jv jinja_loop_attr(jx *x, jloop *loop, const jstr *name);
bool jinja_eval_args(jx *x, jenv *env, const jcall *call, jargs *out);
jenv *jenv_new(jx *x, jenv *up);
jenv *jenv_of_body(jx *x, jenv *up, const jnode *body); /* with its hidden names */
void jenv_set(jx *x, jenv *env, const jsym *name, jv value);
const jsym *jsym_intern(chat_template *t, const char *p, size_t n);

/* ---- lexer and parser ---- */

typedef enum {
    T_EOF,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP /* op: one or two characters packed, '=' << 8 | '=' */
} jtoken_type;

typedef struct {
    jtoken_type type;
    int op;
    int line;
    const char *p; /* T_NAME, T_DATA: the text; T_STRING: with its quotes */
    size_t len;
    jv value; /* T_INT, T_FLOAT */
} jtoken;

typedef struct {
    const char *s;
    size_t n, pos;
    int line;
    enum { LEX_ROOT, LEX_BLOCK, LEX_VAR, LEX_RAW } state;
    jtoken_type begin; /* a begin token to give after the data before it; T_EOF: none */
    char *balance;     /* open brackets */
    size_t n_balance, balance_capacity;
} jlexer;

#define OP2(a, b) ((a) << 8 | (b))

/* A filter or test that does not exist: an error of the whole template unless it stands where
 * only taken branches are looked at (Jinja2: inside an if). */
typedef struct {
    const char *what, *name;
    int line;
    bool hard;
} junknown;

typedef struct {
    chat_template *t;
    jlexer lex;
    jtoken cur, ahead;
    ridge_error *err;
    ridge_status status;
    int depth;
    junknown *unknown; /* [n_unknown] */
    size_t n_unknown, unknown_capacity;
    bool uses_caller, uses_varargs, uses_kwargs; /* since the macro in work began */
    int loops;                                   /* for-loops open in this macro */
    jnode spare;                                 /* what there is when memory is out */
} jparser;

void lex_next(jparser *p, jtoken *out); /* jinja_lexer.c; fails through parse_fail */
jv lex_string_value(jparser *p, const jtoken *t);
void parse_fail(jparser *p, int line, const char *format, ...) RIDGE_PRINTF(3, 4);
bool parse_ok(const jparser *p); /* loops end when it is false: no token is taken any more */
void parse_next(jparser *p);
bool parse_is_op(const jparser *p, int op);
bool parse_is_name(const jparser *p, const char *name);
bool parse_skip_op(jparser *p, int op);
bool parse_skip_name(jparser *p, const char *name);
bool parse_expect_op(jparser *p, int op);
const jsym *parse_expect_name(jparser *p);
jnode *parse_node(jparser *p, nkind kind, int line);
void parse_push(jparser *p, jnode *n, jnode *item);
bool parse_enter(jparser *p); /* one level deeper; false: too deep */
jnode *parse_expression(jparser *p, bool with_cond);
jnode *parse_tuple(jparser *p, bool with_cond, bool parens);
jnode *parse_target(jparser *p, bool with_namespace);
jnode *parse_filters(jparser *p, jnode *node, bool inline_start);
jnode *parse_call_node(jparser *p, jnode *callee);
void parse_forgive(jparser *p, size_t mark, bool soft); /* unknown names since mark */
jnode *parse_template(jparser *p);

#endif
