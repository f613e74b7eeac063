/* cli/traffic_args: the flags that say what is asked and when, and which answers are good: those of
 * `ridge load` and `ridge sim`. */
#ifndef RIDGE_CLI_TRAFFIC_ARGS_H
#define RIDGE_CLI_TRAFFIC_ARGS_H

#include "cli/cli.h"
#include "traffic/traffic.h"

typedef struct {
    const char *trace, *input, *output; /* NULL: not given */
    double rate;                        /* NAN: not given */
    double trace_speed;
    uint64_t n_requests; /* UINT64_MAX: not given */
    uint64_t max_input, max_output, prefix_tokens, n_prefixes, seed;
    double slo_ttft_ms, slo_tpot_ms; /* 0: none */
} traffic_args;

traffic_args traffic_args_default(void);

/* The options to put into a command's table: { TRAFFIC_OPTIONS(&args, "100", "128"), ... } with
 * what the command has by default of requests and of prompt tokens, for --help. */
#define TRAFFIC_OPTIONS(a, by_default, prompt_len)                                                 \
    {"rate", CLI_DOUBLE, &(a)->rate, "Poisson arrivals, so many a second"},                        \
        {"trace", CLI_STRING, &(a)->trace,                                                         \
         "a FILE's requests (Mooncake, Azure, or serve --record's)"},                              \
        {"trace-speed", CLI_DOUBLE, &(a)->trace_speed,                                             \
         "replay so many times as fast (default: 1)"},                                             \
        {"num-prompts", CLI_UINT, &(a)->n_requests,                                                \
         "how many (default: " by_default ", or all of the trace)"},                               \
        {"num-requests", CLI_UINT, &(a)->n_requests, "the same"},                                  \
        {"max-requests", CLI_UINT, &(a)->n_requests, "the same"},                                  \
        {"input-len", CLI_STRING, &(a)->input,                                                     \
         "prompt tokens: N, uniform:A:B, exp:MEAN[:MAX] or normal:MEAN:SD (default: " prompt_len   \
         ")"},                                                                                     \
        {"output-len", CLI_STRING, &(a)->output, "answer tokens, likewise (default: 128)"},        \
        {"max-input-len", CLI_UINT, &(a)->max_input, "longer prompts are cut to this"},            \
        {"max-output-len", CLI_UINT, &(a)->max_output, "longer answers are cut to this"},          \
        {"prefix-tokens", CLI_UINT, &(a)->prefix_tokens, "a shared beginning before each prompt"}, \
        {"prefix-groups", CLI_UINT, &(a)->n_prefixes, "how many of those there are (default: 1)"}, \
        {"seed", CLI_UINT, &(a)->seed, "of all that is drawn (default: 0)"},                       \
        {"slo-ttft", CLI_DOUBLE, &(a)->slo_ttft_ms, "goodput: milliseconds to the first token"}, { \
        "slo-tpot", CLI_DOUBLE, &(a)->slo_tpot_ms, "goodput: milliseconds per further token"       \
    }

/* Sets of *out, which holds the command's defaults, what is given. */
ridge_status traffic_args_read(const traffic_args *a, traffic_params *out,
                               ridge_error *err) RIDGE_CHECKED;

#endif
