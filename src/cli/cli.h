/* cli: what the commands share: flags, messages, model names. Only this folder prints and exits.
 *
 * Each command is one file cmd_NAME.c with `int cmd_NAME(int argc, char **argv)` (argv[0] = its
 * name) and one line in main.c's table. Results to stdout, all else to stderr. */
#ifndef RIDGE_CLI_CLI_H
#define RIDGE_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef enum {
    CLI_FLAG,
    CLI_STRING,
    CLI_INT,
    CLI_UINT,
    CLI_DOUBLE,
    CLI_BYTES,
    CLI_LIST /* may be given again; value points to a cli_list */
} cli_kind;

#define CLI_MAX_LIST 16

typedef struct {
    const char *items[CLI_MAX_LIST]; /* [n] */
    size_t n;
} cli_list;

/* One option: --name (or --no-name for a CLI_FLAG that defaults to true). value points to
 * bool / const char * / int64_t / uint64_t / double / uint64_t (suffixes K M G T, binary). */
typedef struct {
    const char *name;
    cli_kind kind;
    void *value;
    const char *help;
} cli_option;

/* Parses options anywhere among the arguments ("--" ends them); positional arguments are moved to
 * the front of argv and counted in *n_args. A value is the next argument or stands after '='; one
 * that begins with "--" must stand there, as the next argument it is an option and the value is
 * missing. Returns CLI_OK, or prints why and returns CLI_USAGE; after --help it prints the usage
 * line and the options and returns -1 (the command returns CLI_OK). */
int cli_parse(int argc, char **argv, const char *usage, const cli_option *options, size_t n_options,
              int *n_args);

/* What is wrong with the command line, and the usage line, on stderr; returns CLI_USAGE. */
int cli_misused(const char *usage, const char *format, ...) RIDGE_PRINTF(2, 3);
/* CLI_OK where there are so many positional arguments as there may be; else as cli_misused. */
int cli_count(const char *usage, char **args, int n_args, int least, int most);

/* A number of --flag that must lie within [least, most]; RIDGE_EINVAL names all of them. */
ridge_status cli_whole(uint32_t *out, const char *flag, uint64_t value, uint64_t least,
                       uint64_t most, ridge_error *err) RIDGE_CHECKED;
ridge_status cli_real(double *out, const char *flag, double value, double least, double most,
                      ridge_error *err) RIDGE_CHECKED;

/* "ridge: where: text" on stderr; returns CLI_FAILED. */
int cli_fail(const ridge_error *err);
/* The same of a command all of whose input is its command line and the files that are named there:
 * CLI_USAGE where that is at fault (RIDGE_EINVAL, RIDGE_ENOTFOUND). */
int cli_refuse(const ridge_error *err);

/* Could a file be written there? Asked before minutes of work; leaves nothing behind. */
ridge_status cli_check_output(const char *path, ridge_error *err) RIDGE_CHECKED;

/* MODEL to a path: a file as it is; else a short name in the model cache. Owned (mem_free). */
ridge_status cli_model_path(char **out, const char *model, ridge_error *err) RIDGE_CHECKED;
/* A file of the model cache ($RIDGE_HOME, default ~/.cache/ridge): owned (mem_free); NULL: no
 * memory. */
char *cli_cache_path(const char *file);
/* Of the environment; NULL: unset or empty. */
const char *cli_env(const char *name);
/* "smollm2-135m" from a path or a name: the file name without .gguf. Owned. */
char *cli_model_name(const char *model);

/* Warnings to stderr, progress there if it is a terminal and the work takes over a second. */
const log_sink *cli_log(void);

/* As many files as the system allows: thousands of connections are expected, the usual soft limit
 * is 1024. */
void cli_raise_file_limit(void);
/* SIGTERM and SIGINT become readable here, SIGPIPE is ignored; before any thread starts, so that
 * all inherit it. -1: they cannot. The caller closes it. */
int cli_signals_as_fd(void);

/* At the end of main: flushes stdout and checks it: CLI_FAILED (with a message) when the reader is
 * gone or the disk full. */
int cli_finish(int status);

int cmd_bench(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_load(int argc, char **argv);
int cmd_sim(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_inspect(int argc, char **argv);

#endif
