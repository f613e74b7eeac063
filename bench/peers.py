#!/usr/bin/env python3
"""Speed of ridge and of its peers on this machine, in turn (A B C A B C ...), and the ratios.

    bench/peers.py [--llama-bench PATH] [--ik-bench PATH] [--openvino-python PYTHON] [--batch 4,16,32] [MODEL ...]

Peers are those that are named; without any only ridge is measured.
  --llama-bench      the llama-bench of a llama.cpp that you built; for --batch also the llama-batched-bench beside it
  --ik-bench         the same two of an ik_llama.cpp
  --openvino-python  a Python with openvino-genai; it has no batches

Measured are the prefill of --prompt tokens and the decode of --gen tokens at that context; with --batch also how fast so
many sequences decode together, each at a context of its own of --batch-context tokens. The same number of threads for
all, a warm run before each; every program at its default settings, ik_llama.cpp at those of run-time repacking and
flash attention that are its fastest for the file (tried first). Each round runs everyone, so that a slow minute of the
machine meets all. Reported are medians, and of each round's ratios (above 1: ridge is faster) the median and the range;
"fastest" is the fastest peer of the round. "roof" is the rate at which ridge's operations would reach the roofs that it
measures in between its steps (docs/benchmarks.md, "Against the roof"). The peers' threads spin at every operation: a busy
neighbour on a small machine slows them a hundredfold, so what others took of the processors is reported, too.
"""
import argparse
import json
import math
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import common

HERE = pathlib.Path(__file__).resolve().parent
PEAKS = {"peak_read_bytes_per_s": "GB/s read", "peak_int8_ops_per_s": "GOPS int8", "peak_f32_flops_per_s": "GFLOP/s f32"}
DEFAULTS = [("default settings", [], [])]
# ik_llama.cpp: what a user would know to try: (words, flags of llama-bench, flags of llama-batched-bench)
IK_SETTINGS = [(f"{'with' if repack else 'no'} repacking, {'with' if flash else 'no'} flash attention",
                ["-rtr", str(repack), "-fa", str(flash)], ["-rtr"] * repack + ["-no-fa"] * (1 - flash))
               for repack in (0, 1) for flash in (0, 1)]


class CannotLoad(Exception):
    """The peer does not know what is in this file."""


def batch_key(n):
    return f"decode x{n}"


class Ridge:
    name = "ridge"
    machine = {}

    def __init__(self):
        self.results = {}  # per file and phase: what each round's bench says

    def run(self, path, args):
        def bench(prompt, gen, batches):
            out = common.run_json([common.BINARY, "bench", path, "--prompt", prompt, "--gen", gen, "--batch",
                                   ",".join(map(str, batches)), "--threads", args.threads, "--repeat", 1,
                                   "--profile", "--json"], lambda o: (o["machine"], o["results"]), timeout=args.timeout)
            self.machine, results = out
            return results

        prefill, decode = bench(args.prompt, args.gen, [1])
        results = {"prefill": prefill, "decode": decode}
        if args.batch:
            results |= {batch_key(r["batch"]): r for r in bench(args.batch_context, args.batch_gen, args.batch)[1:]}
        for phase, result in results.items():
            self.results.setdefault((path, phase), []).append(result)
        return {phase: result["tokens_per_s"] for phase, result in results.items()}

    def roof(self, path, phase):
        """Medians over the rounds: of what a phase could reach, and of the peaks that this follows from."""
        rounds = self.results[path, phase]
        return {"roof": statistics.median(r["tokens_per_s"] / r["of_roof"] for r in rounds),
                **{peak: statistics.median(r[peak] for r in rounds) for peak in PEAKS}}


class OpenVino:
    name = "OpenVINO"

    def __init__(self, python):
        self.python = python

    def run(self, path, args):
        def rates(out):
            if "cannot_load" in out:
                raise CannotLoad(out["cannot_load"])
            return {"prefill": out["prefill"], "decode": out["decode"]}
        return common.run_json([self.python, HERE / "openvino_peer.py", "speed", path, args.prompt, args.gen, args.threads],
                               rates, timeout=args.timeout)


class LlamaBench:
    """llama-bench and llama-batched-bench, of llama.cpp or of a program that came of it."""

    def __init__(self, name, bench, candidates, at_context):
        """candidates: settings, the fastest of which for a file is taken; at_context: flags of decode at a context."""
        self.name, self.candidates, self.at_context = name, candidates, at_context
        self.bench = os.path.abspath(bench)
        self.batched = pathlib.Path(self.bench).with_name("llama-batched-bench")
        self.settings = {}  # per file

    def run(self, path, args):
        if path not in self.settings:
            self.settings[path] = self.fastest_settings(path, args)
        _, flags, batched_flags = self.settings[path]
        rates = self.speed(path, args, args.gen, flags)
        if args.batch and self.batched.exists():
            rates |= self.batch_speed(path, args, batched_flags)
        return rates

    def speed(self, path, args, n_gen, flags):
        def rate(*what):
            done = self.call([self.bench, "-m", path, "-t", args.threads, *what, "-r", 1, "-o", "json", *flags], args)
            return common.json_of(done, lambda rows: rows[0]["avg_ts"])
        return {"prefill": rate("-p", args.prompt, "-n", 0), "decode": rate("-p", 0, *self.at_context(args.prompt, n_gen))}

    def batch_speed(self, path, args, flags):
        n_ctx = max(args.batch) * (args.batch_context + args.batch_gen)
        done = self.call([self.batched, "-m", path, "-t", args.threads, "-c", n_ctx, "-npp", args.batch_context,
                          "-ntg", args.batch_gen, "-npl", ",".join(map(str, args.batch)), *flags], args)
        rows = re.findall(r"^\|[ \d.|]+\|$", done.stdout + done.stderr, re.M)
        columns = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]  # ..., B, ..., S_TG t/s, ...
        rates = {batch_key(row[2]): float(row[7]) for row in columns}
        if missing := {batch_key(n) for n in args.batch} - rates.keys():
            raise SystemExit(f"{self.batched}: nothing of {', '.join(missing)}\n{done.stderr[-2000:]}")
        return rates

    def fastest_settings(self, path, args):
        if len(self.candidates) == 1:
            return self.candidates[0]

        def score(settings):
            rates = self.speed(path, args, min(args.gen, 32), settings[1])
            return rates["prefill"] * rates["decode"]
        return max(self.candidates, key=score)

    @staticmethod
    def call(command, args):
        with tempfile.TemporaryDirectory(prefix="ridge-peers-") as folder:  # it writes its log where it stands
            done = common.run(command, cwd=folder, timeout=args.timeout)
        if done.returncode != 0:
            if "load model" in done.stderr:
                raise CannotLoad(done.stderr.strip().splitlines()[-1])
            common.fail(done)
        return done


def engines(args):
    found = [Ridge()]
    if args.llama_bench:
        found.append(LlamaBench("llama.cpp", args.llama_bench, DEFAULTS, lambda prompt, gen: ["-n", gen, "-d", prompt]))
    if args.ik_bench:
        found.append(LlamaBench("ik_llama.cpp", args.ik_bench, IK_SETTINGS,
                                lambda prompt, gen: ["-n", 0, "-gp", f"{prompt},{gen}"]))
    if args.openvino_python:
        found.append(OpenVino(args.openvino_python))
    return found


def run_watched(engine, path, args):
    """(its rates, the share of the processors' time that went to others meanwhile)"""
    def others():
        return common.taken_seconds() - common.children_seconds()
    before, start = others(), time.monotonic()
    rates = engine.run(path, args)
    for phase, rate in rates.items():
        if not (isinstance(rate, (int, float)) and 0 < rate < math.inf):
            raise SystemExit(f"{engine.name}: {phase} of {common.short_name(path)} at {rate!r} tokens a second")
    return rates, max(others() - before, 0) / ((time.monotonic() - start) * os.cpu_count())


def measure(path, everyone, args):
    """([{engine: {phase: rate}} per round], {engine: why it cannot load the file}, the largest share of others)"""
    rounds, refused, others = [], {}, 0
    for number in range(args.rounds):
        rounds.append({})
        for engine in everyone:
            if engine.name in refused:
                continue
            what = f"{common.short_name(path)}: round {number + 1} of {args.rounds}: {engine.name}"
            print(what, file=sys.stderr)
            try:
                rounds[-1][engine.name], share = run_watched(engine, path, args)
                print(f"{what}: others took {100 * share:.1f} % of the processors' time", file=sys.stderr)
                others = max(others, share)
            except CannotLoad as why:
                refused[engine.name] = str(why)
                print(f"{engine.name} cannot load {path}: {why}", file=sys.stderr)
    return rounds, refused, others


def spread(values):
    return {"ratio": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(rounds, peers, phase):
    """What ridge reached, and of each peer that did the phase its rate and ratio; the ratio to the round's fastest."""
    ridge = [r["ridge"][phase] for r in rounds]
    row = {"ridge": statistics.median(ridge), "peers": {}}
    for name in peers:
        rates = [r[name][phase] for r in rounds if phase in r.get(name, {})]
        if len(rates) == len(ridge):
            row["peers"][name] = {"rate": statistics.median(rates), **spread([a / b for a, b in zip(ridge, rates)])}
    if row["peers"]:
        row["fastest"] = spread([mine / max(r[name][phase] for name in row["peers"]) for mine, r in zip(ridge, rounds)])
    return row


def ratio_cell(s):
    return f"{s['ratio']:.2f} ({s['min']:.2f}-{s['max']:.2f})"


def print_results(results, peers, machine, args):
    head = ["model", "phase", "roof tok/s", "ridge tok/s", *(f"{name} tok/s" for name in peers)]
    head += [f"ridge / {name}" for name in peers]
    if len(peers) > 1:
        head.append("ridge / fastest")
    rows = []
    for r in results:
        row = [r["model"], r["phase"], f"{r['roof']:.1f}", f"{r['ridge']:.1f}"]
        for name in peers:
            known = r["peers"].get(name)
            row.append(f"{known['rate']:.1f}" if known else "cannot load" if name in r["cannot_load"] else "-")
        row += [ratio_cell(r["peers"][name]) if name in r["peers"] else "" for name in peers]
        if len(peers) > 1:
            row.append(ratio_cell(r["fastest"]) if "fastest" in r else "")
        rows.append(row)
    print(f"{machine.get('cpu', '?')}, {args.threads} threads, ridge {machine.get('isa', '?')}, {args.rounds} rounds")
    peaks = [f"{min(r[peak] for r in results) / 1e9:.0f}-{max(r[peak] for r in results) / 1e9:.0f} {unit}"
             for peak, unit in PEAKS.items()]
    print("peaks measured beside:", ", ".join(peaks))
    print(f"others took up to {100 * max(r['others'] for r in results):.1f} % of the processors' time")
    common.print_table(head, rows)
    for model, chosen in {r["model"]: r["settings"] for r in results}.items():
        for name, words in chosen.items():
            print(f"{name} on {model}: {words}")


def measure_model(model, everyone, args):
    path = os.path.abspath(common.model_path(model))
    ridge, peers = everyone[0], [engine.name for engine in everyone[1:]]
    rounds, refused, others = measure(path, everyone, args)
    settings = {e.name: e.settings[path][0] for e in everyone
                if isinstance(e, LlamaBench) and len(e.candidates) > 1 and path in e.settings}
    names = {"prefill": f"prefill {args.prompt}", "decode": f"decode {args.gen} at {args.prompt}"}
    names |= {batch_key(n): f"decode x{n} at {args.batch_context}" for n in args.batch}
    return [{"model": common.short_name(path), "phase": name, "cannot_load": refused, "settings": settings,
             "others": others, **ridge.roof(path, phase), **summarise(rounds, peers, phase)} for phase, name in names.items()]


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, found '{text}'")
    return int(text)


def sizes(text):
    return [count(n) for n in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=common.MODELS, metavar="MODEL")
    parser.add_argument("--llama-bench", metavar="PATH")
    parser.add_argument("--ik-bench", metavar="PATH")
    parser.add_argument("--openvino-python", metavar="PYTHON")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--prompt", type=count, default=512)
    parser.add_argument("--gen", type=count, default=128)
    parser.add_argument("--batch", type=sizes, default=[], metavar="N,N,...")
    parser.add_argument("--batch-context", type=count, default=256)
    parser.add_argument("--batch-gen", type=count, default=32, help="decode steps of each batch")
    parser.add_argument("--timeout", type=count, default=1800, metavar="SECONDS", help="of each program that is run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    everyone = engines(args)
    results = [row for model in args.models for row in measure_model(model, everyone, args)]
    if args.json:
        print(json.dumps({"machine": everyone[0].machine, "threads": args.threads, "rounds": args.rounds,
                          "results": results}))
    else:
        print_results(results, [engine.name for engine in everyone[1:]], everyone[0].machine, args)


if __name__ == "__main__":
    main()
