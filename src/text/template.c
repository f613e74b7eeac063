/* text/template: the door of the template engine: parse, render, free. See template.h. */
#include "text/template.h"

#include <string.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

#define MAX_SOURCE_BYTES (16u << 20)
#define MAX_PARSED_BYTES ((size_t)512 << 20)

template_limits template_limits_default(void) {
    return (template_limits){.max_output_bytes = (size_t)64 << 20,
                             .max_steps = 20000000,
                             .max_memory_bytes = (size_t)256 << 20};
}

const jsym *jsym_intern(chat_template *t, const char *p, size_t n) {
    jstr key = {p, n, 0, false};
    const jv *known = jdict_get(t->names, jv_from_jstr(&key));
    if (known != NULL) return t->symbols[known->as.i];
    jsym *s = jm_alloc(&t->mem, 1, sizeof *s);
    char *copy = jm_alloc(&t->mem, n + 1, 1);
    if (s == NULL || copy == NULL ||
        !jm_grow(&t->mem, (void **)&t->symbols, &t->symbols_capacity, t->n_symbols + 1, sizeof s))
        return NULL;
    memcpy(copy, p, n);
    *s = (jsym){copy, n, jv_from_jstr(jstr_borrow(&t->mem, copy, n)), (uint32_t)t->n_symbols};
    jdict_set(&t->mem, t->names, s->text, jv_int((int64_t)t->n_symbols));
    t->symbols[t->n_symbols++] = s;
    return t->mem.failed ? NULL : s;
}

/* A copy with "\r\n" and "\r" as "\n" and without the last newline, as Jinja2 reads it. */
static bool copy_source(chat_template *t, const char *source, size_t n) {
    char *copy = jm_alloc(&t->mem, n + 1, 1);
    size_t len = 0;
    if (copy == NULL) return false;
    for (size_t i = 0; i < n; i++) {
        bool cr = source[i] == '\r';
        if (cr && i + 1 < n && source[i + 1] == '\n') i++;
        copy[len++] = cr ? '\n' : source[i];
    }
    if (len > 0 && copy[len - 1] == '\n') len--;
    copy[len] = '\0';
    t->source = copy;
    t->source_len = len;
    return true;
}

static ridge_status parse(chat_template *t, ridge_error *err) {
    jparser p = {.t = t, .err = err, .lex = {.s = t->source, .n = t->source_len, .line = 1}};
    t->names = jdict_new(&t->mem);
    t->loop_name = jsym_intern(t, "loop", 4);
    if (!t->mem.failed) t->body = parse_template(&p);
    if (p.status != RIDGE_OK) return p.status;
    if (!t->mem.failed) jinja_find_hidden(t);
    if (t->mem.failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%s: parsing it", t->name);
    return RIDGE_OK;
}

ridge_status template_parse(chat_template **out, const char *source, size_t n, const char *name,
                            ridge_error *err) {
    if (n > MAX_SOURCE_BYTES)
        return RIDGE_FAIL(err, RIDGE_ETOOLARGE, "%s: template of %zu bytes, limit %u", name, n,
                          MAX_SOURCE_BYTES);
    if (!utf8_valid(source, n))
        return RIDGE_FAIL(err, RIDGE_EFORMAT, "%s: the template is not valid UTF-8", name);
    chat_template *t = mem_zalloc(1, sizeof *t);
    if (t == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "%s: parsing it", name);
    t->mem.a.limit_bytes = MAX_PARSED_BYTES;
    char *copy = jm_alloc(&t->mem, strlen(name) + 1, 1);
    ridge_status status = RIDGE_ENOMEM;
    if (copy != NULL) {
        memcpy(copy, name, strlen(name));
        t->name = copy;
        if (copy_source(t, source, n)) status = parse(t, err);
    }
    if (copy == NULL || t->source == NULL)
        status = RIDGE_FAIL(err, RIDGE_ENOMEM, "%s: parsing it", name);
    if (status == RIDGE_OK)
        *out = t;
    else
        template_free(t);
    return status;
}

void template_free(chat_template *t) {
    if (t == NULL) return;
    arena_free(&t->mem.a);
    mem_free(t);
}

/* Only the variables that the template names become values. */
static void bind_variables(jx *x, json_t *variables) {
    for (size_t i = 0; i < x->t->n_symbols && !jx_failed(x); i++) {
        const jsym *s = x->t->symbols[i];
        const json_t *v = json_object_getn(variables, s->p, s->len);
        if (v != NULL) jenv_set(x, x->root, s, jv_from_json(x, v, 0));
    }
}

ridge_status template_render(const chat_template *t, json_t *variables, int64_t now,
                             const template_limits *limits, buf *out, ridge_error *err) {
    template_limits l = limits != NULL ? *limits : template_limits_default();
    buf text = {.limit = l.max_output_bytes};
    jx x = {.t = t,
            .out = &text,
            .err = err,
            .steps_left = l.max_steps,
            .max_output = l.max_output_bytes,
            .now = now};
    x.mem.a.limit_bytes = l.max_memory_bytes;
    x.root = jenv_new(&x, NULL);
    if (x.root != NULL) bind_variables(&x, variables);
    if (!jx_failed(&x)) jinja_exec(&x, jenv_of_body(&x, x.root, t->body), t->body);
    if (!jx_failed(&x)) buf_append(out, text.data != NULL ? text.data : "", text.len);
    if (x.status == RIDGE_OK && out->failed)
        x.status = RIDGE_FAIL(err, RIDGE_ENOMEM, "%s: rendering it", t->name);
    buf_free(&text);
    arena_free(&x.mem.a);
    return x.status;
}
