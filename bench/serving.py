#!/usr/bin/env python3
"""What each method of serving gains, against doing without it, on this machine.

    bench/serving.py [--bar 1,2,...] [--llama-server PATH] [--rounds N] [MODEL ...]

  1  continuous against static batching (--scheduler static), answers of mixed length
  2  a system prompt of 1,000 tokens shared by 50 requests, one after another: with and without the prefix cache
  3  a prompt of 4,000 tokens arrives while 8 streams decode: with --slo-tpot, in one piece, in chunks of the default size
  4  speculation: bench/speculation.py
  5  1, 4, 16 and 32 requests at a time, ridge and llama-server (--llama-server) with as many slots

One client for all, `ridge load`. Each round runs everyone that is compared, in turn, so that a slow minute of the machine
meets all; reported are medians over the rounds, and of each round's ratios the median and the range. A bar that needs a
flag that this `ridge serve` does not have is skipped, saying so.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import common

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
HERE = pathlib.Path(__file__).resolve().parent
POINTS = (1, 4, 16, 32)  # requests at a time of bar 5


class Skip(Exception):
    """Why a bar cannot be measured here."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- servers and their load ----


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process and its address."""

    def __init__(self, process, port, log):
        self.process, self.log, self.url = process, log, f"http://127.0.0.1:{port}"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return answer.read().decode()

    def wait(self, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            time.sleep(0.05)
        raise SystemExit(f"{' '.join(self.process.args)}: not healthy\n{self.log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def running(command):
    """A server for the time of a with block, on a free port; ended in any case."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ridge-serving-") as folder:
        log = pathlib.Path(folder) / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen([*map(str, command), "--port", str(port)], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=out, cwd=folder)
        server = Server(process, port, log)
        try:
            server.wait()
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def ridge(path, args, *flags):
    return running([common.BINARY, "serve", path, "--threads", args.threads, *flags])


def load(server, *flags):
    """(the report of `ridge load`, its lines per request); a request that failed ends the program."""
    with tempfile.TemporaryDirectory(prefix="ridge-serving-") as folder:
        lines = pathlib.Path(folder) / "lines"
        # A static batch keeps those behind it waiting for as long as it takes.
        report = common.run_json([common.BINARY, "load", server.url, "--json", "--per-request", str(lines),
                                  "--timeout", "0", *map(str, flags)])
        if report["failed"] > 0:
            raise SystemExit(f"{server.url}: {report['failed']} requests failed: {report['errors']}\n"
                             f"{server.log.read_text(errors='replace')[-2000:]}")
        return report, [json.loads(line) for line in lines.read_text().splitlines()]


def serve_help():
    return subprocess.run([common.BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout


def need(*flags):
    known = serve_help()
    for flag in flags:
        if f"--{flag} " not in known and f"--{flag}\n" not in known:
            raise Skip(f"`ridge serve` has no --{flag}")


# ---- numbers ----


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def cell(s, form="{:.2f}"):
    return form.format(s["median"]) + (f" ({form.format(s['min'])}-{form.format(s['max'])})" if s["min"] < s["max"] else "")


def percentile(values, q):
    """Linear between neighbours."""
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


# ---- 1: continuous against static batching ----


def cache_steps(server):
    """(tokens in the reserved cache, room in it), each summed over all steps so far"""
    values = dict(re.findall(r"^ridge:kv_cache_(used|reserved)_token_steps_total(?:\{[^}]*\})? (\S+)$",
                             server.get("/metrics"), re.M))
    if len(values) != 2:
        raise Skip("/metrics does not say what of the reserved cache holds tokens")
    return float(values["used"]), float(values["reserved"])


def bar_1(path, args):
    """128 requests at once on 32 slots: prompts of 64 tokens, answers exponential with mean 256, at most 2,048."""
    need("scheduler")
    slots, n, context = 32, args.requests or 128, 64 + 2048 + 16
    asked = ("--concurrency", n, "--num-requests", n, "--input-len", 64, "--output-len", "exp:256:2048")
    rounds = []
    for number in range(args.rounds):
        rounds.append({})
        for kind in ("continuous", "static"):
            say(f"bar 1, round {number + 1}: {kind}")
            with ridge(path, args, "--scheduler", kind, "--max-num-seqs", slots, "--max-model-len", context) as server:
                load(server, "--num-requests", 2, "--output-len", 4)
                before = cache_steps(server)
                report, lines = load(server, *asked, "--seed", number)
                used, reserved = (b - a for a, b in zip(before, cache_steps(server)))
                rounds[-1][kind] = {"tokens_per_s": report["output_tokens_per_s"], "cache_share": used / reserved,
                                    "answers": [line["text_hash"] for line in lines]}
    ratios = spread([r["continuous"]["tokens_per_s"] / r["static"]["tokens_per_s"] for r in rounds])
    rows = {kind: {field: spread([r[kind][field] for r in rounds]) for field in ("tokens_per_s", "cache_share")}
            for kind in ("continuous", "static")}
    equal = all(r["continuous"]["answers"] == r["static"]["answers"] for r in rounds)
    return {"kinds": rows, "ratio": ratios, "answers_equal": equal,
            "holds": equal and ratios["median"] >= 3 and rows["continuous"]["cache_share"]["median"] >= 0.96}


def show_1(r):
    common.print_table(["batching", "tokens/s", "cache holding tokens"],
                       [[kind, cell(v["tokens_per_s"], "{:.0f}"), cell(v["cache_share"], "{:.3f}")]
                        for kind, v in r["kinds"].items()])
    print(f"continuous / static: {cell(r['ratio'])}; answers equal: {r['answers_equal']}")


# ---- 2: prefix reuse ----


def bar_2(path, args):
    """50 requests one after another: a system prompt of 1,000 tokens, 32 of their own, 16 answered."""
    need("enable-prefix-caching")
    n = args.requests or 50
    asked = ("--endpoint", "chat", "--concurrency", 1, "--num-requests", n, "--prefix-tokens", 1000, "--input-len", 32,
             "--output-len", 16)
    rounds = []
    for number in range(args.rounds):
        rounds.append({})
        for kind, flag in (("on", "--enable-prefix-caching"), ("off", "--no-enable-prefix-caching")):
            say(f"bar 2, round {number + 1}: prefix cache {kind}")
            with ridge(path, args, flag) as server:
                load(server, "--num-requests", 2, "--output-len", 4, "--seed", 1000)
                report, lines = load(server, *asked, "--seed", number)
                rounds[-1][kind] = {"ttft_ms": statistics.median(line["ttft_ms"] for line in lines[1:]),
                                    "cached": report["cached_tokens"] / report["input_tokens"],
                                    "answers": [line["text_hash"] for line in lines]}
    ratios = spread([r["off"]["ttft_ms"] / r["on"]["ttft_ms"] for r in rounds])
    equal = all(r["on"]["answers"] == r["off"]["answers"] for r in rounds)
    kinds = {kind: {"ttft_ms": spread([r[kind]["ttft_ms"] for r in rounds]),
                    "cached": spread([r[kind]["cached"] for r in rounds])} for kind in ("on", "off")}
    return {"kinds": kinds, "ratio": ratios, "answers_equal": equal, "holds": equal and ratios["median"] >= 8}


def show_2(r):
    common.print_table(["prefix cache", "median TTFT of requests 2-, ms", "prompt tokens cached"],
                       [[kind, cell(v["ttft_ms"], "{:.1f}"), cell(v["cached"], "{:.3f}")]
                        for kind, v in r["kinds"].items()])
    print(f"off / on: {cell(r['ratio'], '{:.1f}')}; answers equal: {r['answers_equal']}")


# ---- 3: a long prompt among streams ----

STREAMS, STREAM_PROMPT, LONG_PROMPT, LEAST_QUIET = 8, 1500, 4000, 20


def gaps_of(lines):
    """(the gaps between tokens while all streams decode and the long prompt has not come, those that its prefill touched), ms"""
    long = lines[-1]
    begins, ends = long["due_s"] * 1e3, long["due_s"] * 1e3 + long["ttft_ms"]
    all_decode = max(line["due_s"] * 1e3 + line["ttft_ms"] for line in lines[:-1])
    quiet, touched = [], []
    for line in lines[:-1]:
        at = line["due_s"] * 1e3 + line["ttft_ms"]
        for gap in line["itl_ms"]:
            if all_decode <= at and at + gap <= begins:
                quiet.append(gap)
            elif begins < at + gap and at < ends:
                touched.append(gap)
            at += gap
        if at < ends:
            raise SystemExit("bar 3: a stream ended before the long prompt was through: give it more tokens (--stream-tokens)")
    return quiet, touched


def long_prompt_run(path, args, folder, *flags):
    """One run: the streams, whose prompts are in the cache by then, begin at 0; the long prompt comes later, last."""
    prompts, trace = pathlib.Path(folder) / "prompts", pathlib.Path(folder) / "trace"
    stream, long = {"timestamp": 0, "input_length": STREAM_PROMPT}, {"input_length": LONG_PROMPT, "output_length": 2}
    prompts.write_text("\n".join([json.dumps(stream | {"output_length": 1})] * STREAMS))
    trace.write_text("\n".join([json.dumps(stream | {"output_length": args.stream_tokens})] * STREAMS +
                               [json.dumps(long | {"timestamp": round(args.arrives_s * 1e3)})]))
    with ridge(path, args, "--max-num-seqs", 16, "--max-model-len", 8192, *flags) as server:
        load(server, "--num-requests", 8, "--concurrency", 8, "--input-len", 200, "--output-len", 64, "--seed", 7)
        load(server, "--trace", prompts)
        _, lines = load(server, "--trace", trace)
    return lines


def bar_3(path, args):
    """8 streams with contexts of 1,500 tokens decode; a prompt of 4,000 comes. The gaps while it is computed."""
    need("slo-tpot")
    rounds = []
    with tempfile.TemporaryDirectory(prefix="ridge-serving-") as folder:
        for number in range(args.rounds):
            runs = {}
            slo = math.inf
            for kind in ("chunks of the default size", "in one piece", "slo-tpot"):
                flags = {"in one piece": ("--max-num-batched-tokens", 8192),
                         "slo-tpot": ("--slo-tpot", slo)}.get(kind, ())
                say(f"bar 3, round {number + 1}: {kind}")
                lines = long_prompt_run(path, args, folder, *flags)
                quiet, touched = gaps_of(lines)
                if len(quiet) < LEAST_QUIET * STREAMS:
                    raise SystemExit("bar 3: the streams had hardly begun when the long prompt came: let it come later "
                                     "(--arrives-s)")
                median = statistics.median(quiet)
                if kind != "slo-tpot":  # of the quieter of the runs before: what else runs only makes gaps longer
                    slo = min(slo, round(args.slo_share * median, 2))
                p99 = percentile(touched, 0.99)
                runs[kind] = {"quiet_ms": median, "quiet_p99_ms": percentile(quiet, 0.99),
                              "median_ms": statistics.median(touched), "p99_ms": p99, "max_ms": max(touched),
                              "ratio": p99 / median, "own_ratio": p99 / statistics.median(touched),
                              "ttft_ms": lines[-1]["ttft_ms"],
                              "n_gaps": len(touched), "slo_ms": float(slo),
                              "answers": [line["text_hash"] for line in lines]}
            rounds.append(runs)
    kinds = {kind: {field: spread([r[kind][field] for r in rounds])
                    for field in ("quiet_ms", "quiet_p99_ms", "median_ms", "p99_ms", "max_ms", "ratio", "own_ratio",
                                  "ttft_ms", "n_gaps", "slo_ms")}
             for kind in rounds[0]}
    equal = all(len({tuple(run["answers"]) for run in r.values()}) == 1 for r in rounds)
    return {"kinds": kinds, "answers_equal": equal, "holds": equal and kinds["slo-tpot"]["ratio"]["median"] <= 2}


def show_3(r):
    common.print_table(["long prompt", "gaps before: median, ms", "p99, ms", "during: median, ms", "p99, ms",
                        "p99 during / median before", "p99 / median during", "its TTFT, s"],
                       [[kind, *(cell(v[field], "{:.0f}") for field in ("quiet_ms", "quiet_p99_ms", "median_ms", "p99_ms")),
                         cell(v["ratio"]), cell(v["own_ratio"]), f"{v['ttft_ms']['median'] / 1e3:.1f}"]
                        for kind, v in r["kinds"].items()])
    print(f"--slo-tpot {cell(r['kinds']['slo-tpot']['slo_ms'], '{:.1f}')} ms; answers equal: {r['answers_equal']}")


# ---- 4: speculation ----


def bar_4(path, args):
    """bench/speculation.py, which measures the bar of its own."""
    script = HERE / "speculation.py"
    if not script.exists():
        raise Skip("there is no bench/speculation.py")
    result = common.run_json([sys.executable, str(script), path, "--threads", str(args.threads), "--json"])
    return {"speculation": result, "holds": result.get("holds")}


def show_4(r):
    print(json.dumps(r["speculation"], indent=1))


# ---- 5: against llama-server ----


def llama(path, args, slots, context):
    return running([args.llama_server, "-m", path, "--host", "127.0.0.1", "-np", slots, "-c", slots * context, "-t",
                    args.threads, *args.llama_flags.split()])


def bar_5(path, args):
    """1, 4, 16, 32 at a time, as many slots: prompts of 128 tokens, answers of 128."""
    if not args.llama_server:
        raise Skip("no --llama-server")
    context = 512
    servers = {"ridge": lambda n: ridge(path, args, "--max-num-seqs", n, "--max-model-len", context),
               "llama-server": lambda n: llama(path, args, n, context)}
    rounds = []
    for number in range(args.rounds):
        rounds.append({})
        for n in POINTS:
            for name, start in servers.items():
                say(f"bar 5, round {number + 1}: {n} at a time: {name}")
                with start(n) as server:
                    load(server, "--num-requests", n, "--concurrency", n, "--output-len", 8, "--seed", 999)
                    report, _ = load(server, "--concurrency", n, "--num-requests", max(4, args.waves * n), "--seed", number)
                    if report["output_tokens"] != 128 * report["completed"]:
                        raise SystemExit(f"{name}: {report['output_tokens']} tokens of {report['completed']} requests")
                    rounds[-1][f"{name} {n}"] = report["output_tokens_per_s"]
    points = []
    for n in POINTS:
        points.append({"at_a_time": n, **{name: spread([r[f"{name} {n}"] for r in rounds]) for name in servers},
                       "ratio": spread([r[f"ridge {n}"] / r[f"llama-server {n}"] for r in rounds])})
    growth = spread([r["ridge 16"] / r["ridge 1"] for r in rounds])
    return {"points": points, "ridge_16_over_1": growth,
            "holds": all(p["ratio"]["median"] > 1 for p in points) and growth["median"] >= 2}


def show_5(r):
    common.print_table(["at a time", "ridge tokens/s", "llama-server tokens/s", "ridge / llama-server"],
                       [[p["at_a_time"], cell(p["ridge"], "{:.0f}"), cell(p["llama-server"], "{:.0f}"), cell(p["ratio"])]
                        for p in r["points"]])
    print(f"ridge, 16 at a time / 1: {cell(r['ridge_16_over_1'])}")


BARS = {1: (bar_1, show_1), 2: (bar_2, show_2), 3: (bar_3, show_3), 4: (bar_4, show_4), 5: (bar_5, show_5)}


def bars(text):
    try:
        chosen = [int(n) for n in text.split(",")]
    except ValueError:
        chosen = [0]
    if not set(chosen) <= set(BARS):
        raise argparse.ArgumentTypeError(f"expected a list such as 1,3 of 1 to {max(BARS)}, found '{text}'")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--bar", type=bars, default=list(BARS), metavar="N,N,...")
    parser.add_argument("--llama-server", metavar="PATH", help="the llama-server to compare with")
    parser.add_argument("--llama-flags", default="", metavar="FLAGS", help="more flags for it, in one text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, help="of bars 1 and 2 (128, 50)")
    parser.add_argument("--waves", type=int, default=3, help="bar 5: requests per slot")
    parser.add_argument("--stream-tokens", type=int, default=1200, help="bar 3: length of the eight streams")
    parser.add_argument("--arrives-s", type=float, default=6, help="bar 3: when the long prompt comes")
    parser.add_argument("--slo-share", type=float, default=1.8, help="bar 3: --slo-tpot over the median gap before; one "
                        "step in twenty may take longer")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    # A peer's threads may spin at every operation: one busy neighbour on a small machine slows them a hundredfold.
    if (busy := os.getloadavg()[0]) > 0.5:
        say(f"warning: the machine is busy (load {busy:.1f}); ratios mean something only on a quiet one")
    results = []
    for model in args.models:
        path = os.path.abspath(common.model_path(model))
        for number in args.bar:
            measure, show = BARS[number]
            result = {"bar": number, "model": common.short_name(path), "what": measure.__doc__}
            try:
                result |= measure(path, args)
            except Skip as why:
                result["skipped"] = str(why)
            results.append(result)
            if args.json:
                continue
            print(f"\n{number}. {result['model']}: {result['what']}\n")
            if "skipped" in result:
                print(f"skipped: {result['skipped']}")
            else:
                show(result)
                print(f"the bar {'holds' if result['holds'] else 'does not hold'}", flush=True)
    if args.json:
        print(json.dumps({"threads": args.threads, "rounds": args.rounds, "results": results}))
    held = [r["holds"] for r in results if "skipped" not in r]
    return 0 if held and all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
