/* cli/chat: the conversation of `ridge run MODEL`. Ctrl-C stops the answer, Ctrl-D or /exit the
 * program. */
#include <editline/readline.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/answer.h"

/* The one thing a signal handler may touch. */
static volatile int interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

typedef struct {
    engine *engine;
    const chat_template *template;
    const answer_options *options;
    json_t *messages;
    const char *system; /* NULL: none */
    char *own_system;   /* from /system */
    bool terminal;
} chat;

static ridge_status push_message(json_t *messages, const char *role, const char *text, size_t n) {
    json_t *content = json_stringn(text, n); /* NULL when not UTF-8 */
    json_t *message =
        content != NULL ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    return message != NULL && json_array_append_new(messages, message) == 0 ? RIDGE_OK
                                                                            : RIDGE_EINVAL;
}

static void chat_reset(chat *c) {
    json_array_clear(c->messages);
    if (c->system != NULL &&
        push_message(c->messages, "system", c->system, strlen(c->system)) != RIDGE_OK)
        fprintf(stderr, "ridge: the system message is not UTF-8 and was left out\n");
}

static void chat_save(const chat *c, const char *path) {
    if (*path == '\0') {
        fprintf(stderr, "/save FILE\n");
    } else if (json_dump_file(c->messages, path, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "ridge: cannot write '%s': %s\n", path, strerror(errno));
    } else {
        fprintf(stderr, "%zu message%s saved to %s\n", json_array_size(c->messages),
                plural(json_array_size(c->messages)), path);
    }
}

/* A line that starts with a slash; false when the chat is to end. */
static bool chat_command(chat *c, const char *line) {
    size_t word = strcspn(line, " ");
    const char *rest = line + word + strspn(line + word, " ");
#define IS(name) (word == strlen(name) && strncmp(line, name, word) == 0)
    if (IS("/exit") || IS("/quit")) return false;
    if (IS("/reset")) {
        chat_reset(c);
        fprintf(stderr, "a new conversation\n");
    } else if (IS("/system")) {
        mem_free(c->own_system);
        c->own_system = *rest != '\0' ? mem_strdup(rest) : NULL;
        c->system = c->own_system;
        chat_reset(c);
        fprintf(stderr, "a new conversation, %s\n",
                *rest != '\0' ? "with this system message" : "without one");
    } else if (IS("/save")) {
        chat_save(c, rest);
    } else {
        if (!IS("/help")) fprintf(stderr, "unknown command; ");
        fprintf(stderr,
                "/help, /reset (forget the conversation), /system TEXT (set it and start again), "
                "/save FILE (as JSON), /exit; Ctrl-C stops an answer\n");
    }
#undef IS
    return true;
}

/* To measure peaks takes memory as large as the weights, of which there is room for one: those that
 * were measured before, or none. */
static void print_timing(const engine *e, const answer *a) {
    machine_peaks peaks;
    bool known = machine_peaks_known(NULL, engine_isa(e), engine_n_threads(e),
                                     engine_weight_bytes(e), &peaks);
    answer_print_timing(a, known ? &peaks : NULL);
}

/* One user message and its answer. A failed turn leaves the conversation as it was. */
static void chat_turn(chat *c, const char *line) {
    ridge_error err = {0};
    answer a = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, before = json_array_size(c->messages);
    ridge_status status = push_message(c->messages, "user", line, strlen(line));
    if (status != RIDGE_OK) status = RIDGE_FAIL(&err, status, "the message is not UTF-8");
    if (status == RIDGE_OK)
        status = answer_render(c->engine, c->template, c->messages, &ids, &n_ids, &err);
    if (status == RIDGE_OK && n_ids >= engine_max_model_len(c->engine))
        status = RIDGE_FAIL(&err, RIDGE_EFULL,
                            "the context is full: the conversation has %zu tokens, the context %u; "
                            "/reset starts a new one",
                            n_ids, engine_max_model_len(c->engine));
    interrupted = 0;
    if (status == RIDGE_OK)
        status = answer_run(c->engine, ids, n_ids, c->options, true, &interrupted, &a, &err);
    if (status == RIDGE_OK) {
        printf("\n");
        fflush(stdout);
        status = push_message(c->messages, "assistant", a.text.data != NULL ? a.text.data : "",
                              a.text.len);
        if (status != RIDGE_OK) status = RIDGE_FAIL(&err, status, "the answer cannot be kept");
        if (a.finish == ENGINE_LENGTH && c->options->max_tokens == 0)
            fprintf(stderr, "the context is full; /reset starts a new conversation\n");
        if (c->terminal) print_timing(c->engine, &a);
    }
    if (status != RIDGE_OK) {
        cli_fail(&err);
        while (json_array_size(c->messages) > before)
            json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    mem_free(ids);
    answer_free(&a);
}

/* The next line, without its newline (free()); NULL at the end of the input. */
static char *next_line(const chat *c) {
    for (;;) {
        interrupted = 0;
        if (c->terminal) {
            char *line = readline("> ");
            if (line != NULL && line[0] != '\0') add_history(line);
            if (line != NULL || !interrupted) return line;
            fprintf(stderr, "\n(Ctrl-D or /exit ends)\n");
            continue;
        }
        char *line = NULL;
        size_t capacity = 0;
        ssize_t n = getline(&line, &capacity, stdin);
        if (n >= 0) {
            if (n > 0 && line[n - 1] == '\n') line[n - 1] = '\0';
            return line;
        }
        free(line);
        if (!interrupted) return NULL;
        clearerr(stdin);
    }
}

int chat_run(engine *e, const chat_template *t, const char *system, const answer_options *o) {
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a read at the prompt returns */
    chat c = {.engine = e,
              .template = t,
              .options = o,
              .messages = json_array(),
              .system = system,
              .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    if (c.messages == NULL) return CLI_FAILED;
    chat_reset(&c);
    if (c.terminal) fprintf(stderr, "chat; /help for commands\n");
    bool go = true;
    while (go && !ferror(stdout)) {
        char *line = next_line(&c);
        if (line == NULL) break;
        if (line[0] == '/')
            go = chat_command(&c, line);
        else if (line[0] != '\0')
            chat_turn(&c, line);
        free(line);
    }
    if (c.terminal) fprintf(stderr, "\n");
    json_decref(c.messages);
    mem_free(c.own_system);
    return CLI_OK;
}
