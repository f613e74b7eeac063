/* ridge: the program. Finds the command in the table and runs it. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"inspect", "what a model file holds", cmd_inspect},
    {"tokenize", "text to token ids", cmd_tokenize},
    {"detokenize", "token ids to text", cmd_detokenize},
    {"render", "a conversation to prompt text", cmd_render},
    {"run", "answer a prompt, or chat", cmd_run},
    {"score", "log-probabilities of a text", cmd_score},
    {"perplexity", "perplexity of a text file", cmd_perplexity},
    {"bench", "prefill and decode against the roofline", cmd_bench},
    {"serve", "OpenAI's API over HTTP", cmd_serve},
    {"load", "load on an OpenAI-compatible server, measured", cmd_load},
    {"plan", "what a model takes on a GPU, on paper", cmd_plan},
    {"sim", "traffic through a simulated deployment", cmd_sim},
    {"version", "print the version", cmd_version},
};

static void usage(FILE *out) {
    fprintf(out, "usage: ridge COMMAND [ARGUMENT ...]; ridge COMMAND --help\n\ncommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
}

int cmd_version(int argc, char **argv) {
    (void)argc;
    (void)argv;
    printf("ridge %s\n", ridge_version());
    return CLI_OK;
}

/* A closed one would be given to the next file or socket that is opened, and messages written into
 * that. Opened the wrong way round, its use fails as it would have. */
static void occupy_standard_files(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd) return;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) name = "version";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "ridge: unknown command '%s'\n", name);
    usage(stderr);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    occupy_standard_files();
    return cli_finish(run(argc, argv));
}
