#!/usr/bin/env python3
"""Speed of ridge and of llama.cpp on this machine, in turn (A B A B ...), and their ratio.

    bench/peers.py --llama-python PYTHON [--rounds 5] [--threads 2] [MODEL ...]

Prefill of --prompt tokens and decode of --gen tokens at that context, each program at its default settings with the
same number of threads. Each round runs both, so that a slow minute of the machine meets both; reported are medians,
the median of the rounds' ratios (above 1: ridge is faster) and the ratios' range. Without --llama-python only ridge
is measured. The peer is llama-cpp-python built from source in a virtual environment outside the checkout.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

import common

PHASES = ("prefill", "decode")


def run_ridge(path, args):
    out = common.run_json([common.BINARY, "bench", path, "--prompt", str(args.prompt), "--gen", str(args.gen),
                           "--batch", "1", "--threads", str(args.threads), "--json"])
    rates = {r["phase"]: r["tokens_per_s"] for r in out["results"] if r["batch"] == 1}
    return {phase: rates[phase] for phase in PHASES}, out["machine"]


def run_llama(path, args):
    script = pathlib.Path(__file__).with_name("llama_peer.py")
    out = common.run_json([args.llama_python, script, "speed", path, str(args.prompt), str(args.gen),
                           str(args.threads)])
    return {phase: out[f"{phase}_tokens_per_s"] for phase in PHASES}


def measure(path, args):
    """{"ridge": {phase: [rate per round]}, "llama.cpp": ...}, and what ridge says of the machine."""
    rates = {"ridge": {p: [] for p in PHASES}}
    if args.llama_python:
        rates["llama.cpp"] = {p: [] for p in PHASES}
    machine = {}
    for number in range(args.rounds):
        print(f"{common.short_name(path)}: round {number + 1} of {args.rounds}", file=sys.stderr)
        got, machine = run_ridge(path, args)
        turns = {"ridge": got}
        if args.llama_python:
            turns["llama.cpp"] = run_llama(path, args)
        for who, phases in turns.items():
            for phase in PHASES:
                rates[who][phase].append(phases[phase])
    return rates, machine


def summarise(name, rates):
    rows = []
    for phase in PHASES:
        row = {"model": name, "phase": phase, "ridge": statistics.median(rates["ridge"][phase])}
        if "llama.cpp" in rates:
            ratios = [a / b for a, b in zip(rates["ridge"][phase], rates["llama.cpp"][phase])]
            row |= {"llama.cpp": statistics.median(rates["llama.cpp"][phase]), "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios), "ratio_max": max(ratios)}
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=common.MODELS, metavar="MODEL")
    parser.add_argument("--llama-python", metavar="PYTHON", help="a Python that can import llama_cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    # llama.cpp's threads spin at every operation: one busy neighbour on a small machine slows it a hundredfold.
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"warning: the machine is busy (load {load:.1f}); ratios mean something only on a quiet one", file=sys.stderr)
    results, machine = [], {}
    for model in args.models:
        path = common.model_path(model)
        rates, machine = measure(path, args)
        results += summarise(common.short_name(path), rates)
    if args.json:
        print(json.dumps({"machine": machine, "prompt": args.prompt, "gen": args.gen, "threads": args.threads,
                          "rounds": args.rounds, "results": results}))
        return
    head = ["model", "phase", "ridge tok/s"] + (["llama.cpp tok/s", "ratio", "range"] if args.llama_python else [])
    rows = []
    for r in results:
        row = [r["model"], f"{r['phase']} {args.prompt if r['phase'] == 'prefill' else args.gen}", f"{r['ridge']:.1f}"]
        if args.llama_python:
            row += [f"{r['llama.cpp']:.1f}", f"{r['ratio']:.2f}", f"{r['ratio_min']:.2f}-{r['ratio_max']:.2f}"]
        rows.append(row)
    print(f"{machine.get('cpu', '?')}, {args.threads} threads, ridge {machine.get('isa', '?')}, {args.rounds} rounds")
    common.print_table(head, rows)


if __name__ == "__main__":
    main()
