/* cli: see cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

static void print_help(const char *usage, const cli_option *options, size_t n) {
    static const char *const kinds[] = {"", " TEXT", " N", " N", " X", " BYTES", " TEXT"};
    printf("usage: ridge %s\n", usage);
    for (size_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s", options[i].name, kinds[options[i].kind]);
        printf("  %-34s %s\n", left, options[i].help);
    }
}

static bool parse_bytes(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || text[0] == '-' || errno != 0) return false;
    static const char suffixes[] = "KMGT";
    const char *s = *end != '\0' ? strchr(suffixes, *end & ~0x20) : NULL;
    if (*end != '\0') {
        if (s == NULL ||
            (end[1] != '\0' && strcmp(end + 1, "iB") != 0 && strcmp(end + 1, "B") != 0))
            return false;
        int shift = 10 * (int)(s - suffixes + 1);
        if (v > UINT64_MAX >> shift) return false;
        v <<= shift;
    }
    *out = v;
    return true;
}

static bool parse_value(const cli_option *o, const char *text) {
    char *end;
    errno = 0;
    switch (o->kind) {
    case CLI_STRING: *(const char **)o->value = text; return true;
    case CLI_INT: {
        long long v = strtoll(text, &end, 10);
        if (*text == '\0' || *end != '\0' || errno != 0) return false;
        *(int64_t *)o->value = v;
        return true;
    }
    case CLI_UINT: {
        unsigned long long v = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end != '\0' || errno != 0) return false;
        *(uint64_t *)o->value = v;
        return true;
    }
    case CLI_DOUBLE: {
        double v = strtod(text, &end);
        if (*text == '\0' || *end != '\0' || !isfinite(v)) return false;
        *(double *)o->value = v;
        return true;
    }
    case CLI_BYTES: return parse_bytes(text, o->value);
    case CLI_LIST: {
        cli_list *list = o->value;
        if (list->n < CLI_MAX_LIST) list->items[list->n++] = text;
        return list->n < CLI_MAX_LIST;
    }
    case CLI_FLAG: break;
    }
    return false;
}

static const cli_option *find_option(const cli_option *options, size_t n, const char *name,
                                     size_t len) {
    for (size_t i = 0; i < n; i++)
        if (strlen(options[i].name) == len && memcmp(options[i].name, name, len) == 0)
            return &options[i];
    return NULL;
}

int cli_misused(const char *usage, const char *format, ...) {
    va_list args;
    fputs("ridge: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nusage: ridge %s\n", usage);
    return CLI_USAGE;
}

/* One option at argv[*i]; advances *i over a value that is its own argument. */
static int parse_option(int argc, char **argv, int *i, const char *usage, const cli_option *options,
                        size_t n) {
    static const char *const expected[] = {"",
                                           "a text",
                                           "an integer",
                                           "a number >= 0",
                                           "a number",
                                           "bytes such as 512M",
                                           "a text, 15 times at most"};
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const cli_option *o = find_option(options, n, name, len);
    bool negated = false;
    if (o == NULL && strncmp(name, "no-", 3) == 0) {
        o = find_option(options, n, name + 3, len - 3);
        negated = true;
        if (o != NULL && o->kind != CLI_FLAG) o = NULL;
    }
    if (o == NULL) return cli_misused(usage, "unknown option '--%.*s'", (int)len, name);
    if (o->kind == CLI_FLAG) {
        if (equals != NULL) {
            fprintf(stderr, "ridge: --%s takes no value\n", o->name);
            return CLI_USAGE;
        }
        *(bool *)o->value = !negated;
        return CLI_OK;
    }
    const char *text = equals != NULL ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (equals == NULL && text != NULL && strncmp(text, "--", 2) == 0) {
        fprintf(stderr,
                "ridge: --%s: expected %s, found the option '%s' (a value that begins so "
                "is given as --%s=VALUE)\n",
                o->name, expected[o->kind], text, o->name);
        return CLI_USAGE;
    }
    if (text == NULL || !parse_value(o, text)) {
        fprintf(stderr, "ridge: --%s: expected %s, found '%s'\n", o->name, expected[o->kind],
                text != NULL ? text : "nothing");
        return CLI_USAGE;
    }
    return CLI_OK;
}

int cli_parse(int argc, char **argv, const char *usage, const cli_option *options, size_t n_options,
              int *n_args) {
    int n = 0;
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        if (!ended && strcmp(argv[i], "--") == 0) {
            ended = true;
        } else if (!ended && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            print_help(usage, options, n_options);
            return -1;
        } else if (!ended && strncmp(argv[i], "--", 2) == 0) {
            int status = parse_option(argc, argv, &i, usage, options, n_options);
            if (status != CLI_OK) return status;
        } else {
            argv[n++] = argv[i];
        }
    }
    *n_args = n;
    return CLI_OK;
}

int cli_count(const char *usage, char **args, int n_args, int least, int most) {
    if (n_args > most) return cli_misused(usage, "unexpected argument '%s'", args[most]);
    if (n_args < least) return cli_misused(usage, "an argument is missing");
    return CLI_OK;
}

ridge_status cli_whole(uint32_t *out, const char *flag, uint64_t value, uint64_t least,
                       uint64_t most, ridge_error *err) {
    if (value < least || value > most)
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s: expected %llu to %llu, found %llu", flag,
                          (unsigned long long)least, (unsigned long long)most,
                          (unsigned long long)value);
    *out = (uint32_t)value;
    return RIDGE_OK;
}

ridge_status cli_real(double *out, const char *flag, double value, double least, double most,
                      ridge_error *err) {
    if (!(value >= least && value <= most))
        return RIDGE_FAIL(err, RIDGE_EINVAL, "--%s: expected %g to %g, found %g", flag, least, most,
                          value);
    *out = value;
    return RIDGE_OK;
}

int cli_fail(const ridge_error *err) {
    const char *text = err->text[0] != '\0' ? err->text : ridge_status_text(err->code);
    const char *end = strncmp(err->where, "...", 3) == 0 ? err->where + 3 : err->where;
    if (err->where[0] != '\0' && strstr(text, end) == NULL)
        fprintf(stderr, "ridge: %s: %s\n", err->where, text);
    else
        fprintf(stderr, "ridge: %s\n", text);
    return CLI_FAILED;
}

int cli_refuse(const ridge_error *err) {
    cli_fail(err);
    bool refused = err->code == RIDGE_EINVAL || err->code == RIDGE_ENOTFOUND;
    return refused ? CLI_USAGE : CLI_FAILED;
}

ridge_status cli_check_output(const char *path, ridge_error *err) {
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return RIDGE_OK; /* as /dev/null */
    if (!exists && lstat(path, &st) == 0) return RIDGE_OK; /* a link to what is not there yet */
    int fd = open(path, O_WRONLY | O_CLOEXEC | (exists ? 0 : O_CREAT | O_EXCL), 0666);
    if (fd < 0) return error_set_errno(err, RIDGE_EIO, "cannot write '%s'", path);
    close(fd);
    if (!exists) unlink(path);
    return RIDGE_OK;
}

const char *cli_env(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

char *cli_cache_path(const char *file) {
    const char *home = cli_env("RIDGE_HOME"), *user = getenv("HOME");
    buf b = {0};
    if (home != NULL)
        buf_printf(&b, "%s/%s", home, file);
    else
        buf_printf(&b, "%s/.cache/ridge/%s", user != NULL ? user : "", file);
    return buf_take(&b);
}

/* Models lie in the cache's folder models/. */
static char *cached_model(const char *name) {
    buf file = {0};
    buf_printf(&file, "models/%s.gguf", name);
    char *path = file.failed ? NULL : cli_cache_path(file.data);
    buf_free(&file);
    return path;
}

ridge_status cli_model_path(char **out, const char *model, ridge_error *err) {
    struct stat st;
    char *path = NULL;
    if (model[0] == '\0') return RIDGE_FAIL(err, RIDGE_EINVAL, "the model's name is empty");
    if (stat(model, &st) == 0) {
        path = mem_strdup(model);
    } else if (strchr(model, '/') != NULL || strstr(model, ".gguf") != NULL) {
        return error_set_errno(err, RIDGE_ENOTFOUND, "cannot open '%s'", model);
    } else {
        path = cached_model(model);
        if (path != NULL && stat(path, &st) != 0) {
            mem_free(path);
            return RIDGE_FAIL(err, RIDGE_ENOTFOUND,
                              "no file '%s', and no model of that name in the cache; "
                              "get it with scripts/get-model %s",
                              model, model);
        }
    }
    if (path == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "model path");
    *out = path;
    return RIDGE_OK;
}

char *cli_model_name(const char *model) {
    const char *slash = strrchr(model, '/'), *base = slash != NULL ? slash + 1 : model;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".gguf") == 0) n -= 5;
    return mem_strndup(base, n);
}

static void log_write(void *context, log_level level, const char *line) {
    (void)context;
    if (level == LOG_DEBUG) return;
    fprintf(stderr, "ridge: %s%s\n", level == LOG_WARN ? "warning: " : "", line);
}

static void log_bar(void *context, const char *what, double fraction) {
    static double started, last;
    static bool shown;
    (void)context;
    double now = clock_now_s();
    if (!isatty(STDERR_FILENO)) return;
    if (started == 0) started = now;
    if (fraction >= 1.0) {
        if (shown) fprintf(stderr, "\r\033[K");
        started = 0;
        shown = false;
    } else if (now - started > 1.0 && now - last > 0.1) {
        fprintf(stderr, "\r%s %3.0f %%", what, fraction * 100);
        last = now;
        shown = true;
    }
}

const log_sink *cli_log(void) {
    static const log_sink sink = {.write = log_write, .progress = log_bar};
    return &sink;
}

void cli_raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int cli_signals_as_fd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return -1;
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int cli_finish(int status) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "ridge: cannot write the output: %s\n", strerror(errno));
        return CLI_FAILED;
    }
    return status;
}
