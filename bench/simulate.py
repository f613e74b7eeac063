#!/usr/bin/env python3
"""The simulator against this machine: the same traffic through `ridge serve` and through `ridge sim`.

    bench/simulate.py [--rounds N] [--traffic poisson,azure] [--trace FILE] [--profile FILE] [MODEL ...]

Each round calibrates (`ridge plan --calibrate`), so that it is simulated as the machine is at the time, then sends each
traffic to a server by `ridge load` and simulates it with the same seed, lengths, scheduler and cache. A shared machine may
be twice as fast a minute later. So it is simulated once more at the pace of the run: all times of the profile by one
factor, with which the steps take as long together as the server says that they did; what is judged is this.

  poisson  arrivals at random, prompts and answers of exponential lengths
  azure    the beginning of a trace (--trace: Azure's or Mooncake's), faster or slower, with longer requests cut

How dense either is, --load says: the share of the machine's time that the simulation finds busy. At 0.4 a machine that is
5 % slower answers 5 % later; at 0.6 a tenth of the answers take 20 to 30 % longer, and nothing is learned of the simulator.
Reported are medians over the rounds, and of the rounds' ratios, simulated over measured, the median and the range; and what
part of the processors' time other programs (and for a virtual machine its host) took while a server was measured: what they
take, no simulation knows of. With --quiet PERCENT a run in which they took more is measured again, up to five times, and the
quietest counts.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import common
from serving import cell, load, ridge, say, spread

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
TRACE = common.ROOT.parent / "shared" / "data" / "traces" / "azure-2023-conversation.csv"
METRICS = {"TTFT p50, ms": ("ttft_ms", "p50"), "TTFT p90, ms": ("ttft_ms", "p90"), "TPOT p50, ms": ("tpot_ms", "p50"),
           "TPOT p90, ms": ("tpot_ms", "p90"), "output tokens/s": ("output_tokens_per_s",), "steps": ("steps",),
           "ms per step": ("ms_per_step",)}
TOKENS = ("input_tokens", "output_tokens")
JUDGED = list(METRICS)[:5]
WITHIN = 0.15
CACHE_BYTES = 1 << 30
SCHEDULER = ("--max-num-seqs", 32, "--max-num-batched-tokens", 512, "--max-model-len", 2048, "--block-size", 16)


def metrics_of(report):
    values = {}
    for name, path in METRICS.items():
        value = report
        for key in path:
            value = value[key]
        values[name] = value
    return values | {name: report[name] for name in TOKENS}


# ---- the two ----


def simulate(path, profile, *traffic):
    weights = os.path.getsize(path)
    report = common.run_json([common.BINARY, "sim", "--model", path, "--gpu", profile, "--dtype", "auto", "--json", "--memory",
                              str(CACHE_BYTES + weights), "--gpu-memory-utilization", "1",
                              *map(str, (*SCHEDULER, *traffic))])
    report["ms_per_step"] = 1e3 * busy_seconds(report) / report["steps"]
    return report


def busy_seconds(report):
    return report["busy"] * report["duration_s"]


def slower(profile, factor):
    """The profile of a machine on which everything takes that many times as long."""
    machine = {key: value if key in ("title", "memory_bytes") else value / factor for key, value in profile["machine"].items()}
    kinds = {name: numbers | {key: factor * numbers.get(key, 0) for key in ("overhead_s", "latency_s")}
             for name, numbers in profile["kinds"].items()}
    host = {key: factor * value for key, value in profile.get("host", {}).items()}
    return profile | {"machine": machine, "kinds": kinds} | ({"host": host} if host else {})


def simulate_at_pace(path, profile, seconds, traffic):
    """(the simulation in which all steps together take so many seconds, the factor that makes them)"""
    at_rest = json.loads(pathlib.Path(profile).read_text())
    with tempfile.NamedTemporaryFile("w", prefix="ridge-simulate-", suffix=".json") as file:
        low, high = 0.1, 10
        for _ in range(16):
            factor = (low * high) ** 0.5
            file.seek(0)
            file.truncate()
            json.dump(slower(at_rest, factor), file)
            file.flush()
            report = simulate(path, file.name, *traffic)
            low, high = (factor, high) if busy_seconds(report) < seconds else (low, factor)
    return report, factor


def own_seconds(server):
    """Of this script's ended children, and of the server."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return common.children_seconds() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steps_of(server):
    """(how many so far, their seconds: forward and sampling, as the engine counts them)"""
    text = server.get("/metrics")
    n = sum(map(float, re.findall(r"^ridge:steps_total(?:\{[^}]*\})? (\S+)$", text, re.M)))
    return n, sum(map(float, re.findall(r"^ridge:step_seconds_total(?:\{[^}]*\})? (\S+)$", text, re.M)))


def serve(path, args, traffic):
    with ridge(path, args, "--kv-cache-memory-bytes", CACHE_BYTES, *SCHEDULER) as server:
        load(server, "--num-requests", 4, "--concurrency", 4, "--input-len", 64, "--output-len", 16, "--seed", 1000)
        before, others, start = steps_of(server), common.taken_seconds() - own_seconds(server), time.monotonic()
        report, _ = load(server, *traffic)
        others = common.taken_seconds() - own_seconds(server) - others
        report["others"] = others / ((time.monotonic() - start) * os.cpu_count())
        report["steps"], seconds = (b - a for a, b in zip(before, steps_of(server)))
        report["ms_per_step"] = 1e3 * seconds / report["steps"]
        return report


def serve_quietly(path, args, traffic):
    runs = []
    while len(runs) < 5 and (not runs or 100 * runs[-1]["others"] > args.quiet):
        runs.append(serve(path, args, traffic))
        say(f"others took {100 * runs[-1]['others']:.1f} % of the processors' time")
    return min(runs, key=lambda report: report["others"])


def calibrate(path, args, folder):
    profile = pathlib.Path(folder) / "here.json"
    return profile, common.run_json([common.BINARY, "plan", "--calibrate", path, "--threads", str(args.threads),
                                     "--seconds", str(args.calibrate_seconds), "--output", str(profile), "--json"])


# ---- traffic ----


def traffic_of(kind, args, n, speed):
    """Flags that `ridge load` and `ridge sim` share."""
    n = ("--num-requests", n)
    if kind == "poisson":
        return ("--rate", f"{speed:.4f}", "--input-len", "exp:256:1024", "--output-len", "exp:64:256", "--seed", args.seed, *n)
    return ("--trace", args.trace, "--trace-speed", f"{speed:.4f}", "--max-input-len", 1024, "--max-output-len", 256, *n)


def of_load(kind, path, profile, args):
    """The traffic that keeps the machine busy for --load of about --seconds."""
    def try_out(n, speed):
        return simulate(path, profile, *traffic_of(kind, args, n, speed))

    n = 4
    while busy_seconds(try_out(n, 1e3)) < args.load * args.seconds:
        n += n // 4 + 1
    low, high = 1e-3, 1e3
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if try_out(n, middle)["busy"] < args.load else (low, middle)
    return traffic_of(kind, args, n, low)


# ---- rounds ----


def rounds_of(path, args):
    """({traffic: [of each round {measured, simulated}]}, {traffic: flags}, the calibrations)"""
    rounds = {kind: [] for kind in args.traffic}
    traffics, calibrations = {}, []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="ridge-simulate-") as folder:
            profile = args.profile
            if profile is None:
                say(f"round {number + 1}: calibration")
                profile, steps = calibrate(path, args, folder)
                calibrations.append(steps)
                say(f"round {number + 1}: median error of steps {100 * steps['median_error_held_out']:.1f} % held out")
            for kind in args.traffic:
                if kind not in traffics:
                    traffics[kind] = of_load(kind, path, profile, args)
                    say(f"{kind}: {' '.join(map(str, traffics[kind]))}")
                say(f"round {number + 1}: {kind}")
                measured = serve_quietly(path, args, traffics[kind])
                simulated = simulate(path, profile, *traffics[kind])
                seconds = measured["steps"] * measured["ms_per_step"] / 1e3
                paced, factor = simulate_at_pace(path, profile, seconds, traffics[kind])
                rounds[kind].append({"measured": metrics_of(measured), "simulated": metrics_of(simulated),
                                     "paced": metrics_of(paced), "pace": factor, "busy": simulated["busy"],
                                     "others": measured["others"]})
    return rounds, traffics, calibrations


def compare(rounds):
    result = {}
    for metric in METRICS:
        values = {side: [r[side][metric] for r in rounds] for side in ("measured", "simulated", "paced")}
        ratios = {side: [s / m for s, m in zip(values[side], values["measured"])] for side in ("simulated", "paced")}
        result[metric] = {"measured": spread(values["measured"]), "simulated": spread(values["simulated"]),
                          "ratio": spread(ratios["simulated"]), "paced_ratio": spread(ratios["paced"]),
                          "holds": abs(statistics.median(ratios["paced"]) - 1) <= WITHIN}
    return result


def show(kind, model, traffic, result, rounds):
    print(f"\n{model}, {kind}: {' '.join(map(str, traffic))}\n")
    common.print_table(["", "measured", "simulated", "simulated / measured", "at the run's pace"],
                       [[name, cell(r["measured"], "{:.1f}"), cell(r["simulated"], "{:.1f}"), cell(r["ratio"]),
                         cell(r["paced_ratio"])]
                        for name, r in result.items()])
    others = spread([100 * r["others"] for r in rounds])
    print(f"\nmeanwhile others took {cell(others, '{:.1f}')} % of the processors' time")
    missed = [name for name in JUDGED if not result[name]["holds"]]
    print(f"at the run's pace within {100 * WITHIN:.0f} %: {'all' if not missed else 'not ' + ', '.join(missed)}", flush=True)


def kinds(text):
    chosen = text.split(",")
    if not set(chosen) <= {"poisson", "azure"}:
        raise argparse.ArgumentTypeError(f"expected a list of poisson and azure, found '{text}'")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--traffic", type=kinds, default=["poisson", "azure"], metavar="KIND,KIND")
    parser.add_argument("--trace", default=str(TRACE), metavar="FILE")
    parser.add_argument("--load", type=float, default=0.4, help="the share of its time that the machine is busy")
    parser.add_argument("--seconds", type=float, default=60, help="about how long each traffic lasts")
    parser.add_argument("--profile", metavar="FILE", help="in place of a calibration in each round")
    parser.add_argument("--calibrate-seconds", type=float, default=20)
    parser.add_argument("--quiet", type=float, default=100, metavar="PERCENT",
                        help="of the processors' time, what others may take (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    for model in args.models:
        path = os.path.abspath(common.model_path(model))
        rounds, traffics, calibrations = rounds_of(path, args)
        for kind in args.traffic:
            results.append({"model": common.short_name(path), "traffic": kind, "asked": list(map(str, traffics[kind])),
                            "rounds": rounds[kind], "metrics": compare(rounds[kind]), "calibrations": calibrations})
            if not args.json:
                show(kind, common.short_name(path), traffics[kind], results[-1]["metrics"], rounds[kind])
    if args.json:
        print(json.dumps({"threads": args.threads, "results": results}))
    return 0 if all(r["metrics"][name]["holds"] for r in results for name in JUDGED) else 1


if __name__ == "__main__":
    sys.exit(main())
