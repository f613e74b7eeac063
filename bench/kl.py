#!/usr/bin/env python3
"""How far ridge's default path is from the exact distributions, beside llama.cpp's distance.

    PYTHON bench/kl.py [--llama-python PYTHON] [--isa portable,avx2,avx512] [--precise] [MODEL ...]

Needs numpy and gguf; reads ../shared/golden. Over all positions of the 8 prompts of logits-MODEL.json and their
48-token greedy continuations (teacher-forced): mean KL(reference || engine) over the whole vocabulary, and how often
the most probable token is the same. The reference computes the file's weights in f32 (reference.py there); its
log-probabilities are kept in a temporary folder for the next run. Goal: KL at most 1.1 times llama.cpp's, top-1 within
a point of it.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import common


def load_sequences(model):
    """The prompts with their continuations, as id lists."""
    golden = json.loads((common.GOLDEN / f"logits-{model}.json").read_text(encoding="utf-8"))
    return [p["ids"] + p["greedy"]["ids"] for p in golden["prompts"]]


def log_softmax(z):
    z = z.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def reference_logits(path, sequences):
    """[positions, n_vocab] f32, from the file of an earlier run where there is one."""
    stat = os.stat(path)
    key = hashlib.sha256(repr((path, stat.st_size, stat.st_mtime_ns, sequences)).encode()).hexdigest()[:16]
    cache = pathlib.Path(tempfile.gettempdir()) / f"ridge-reference-{key}.npy"
    if not cache.exists():
        print(f"{common.short_name(path)}: computing the reference", file=sys.stderr)
        spec = importlib.util.spec_from_file_location("reference", common.GOLDEN / "reference.py")
        reference = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reference)
        model = reference.Model(path)
        logits = np.concatenate([model.forward(ids) for ids in sequences]).astype(np.float32)
        np.save(cache.with_suffix(".part.npy"), logits)
        os.replace(cache.with_suffix(".part.npy"), cache)
    return np.load(cache, mmap_mode="r")


def ridge_logits(path, sequences, out, precise, isa):
    env = {**os.environ, **({"RIDGE_CPU": isa} if isa else {})}
    with open(out, "wb") as joined, tempfile.NamedTemporaryFile(prefix="ridge-logits-") as one:
        for ids in sequences:
            command = [common.BINARY, "score", path, "--ids", "--logits", one.name, "--json"]
            common.run_json(command + (["--precise"] if precise else []), input=json.dumps(ids), env=env)
            joined.write(pathlib.Path(one.name).read_bytes())


def llama_logits(path, sequences, out, python, threads):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as ids:
        json.dump(sequences, ids)
        ids.flush()
        script = pathlib.Path(__file__).with_name("llama_peer.py")
        done = subprocess.run([python, script, "logits", path, ids.name, out, str(threads)], stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise SystemExit(done.stderr.decode(errors="replace")[-2000:])


def compare(reference, logits_file):
    """Mean KL, its 99th percentile and maximum, top-1 agreement in percent."""
    n, n_vocab = reference.shape
    size = os.path.getsize(logits_file)
    if size != n * n_vocab * 4:
        raise SystemExit(f"{logits_file}: {size} bytes of logits, expected {n * n_vocab * 4}")
    engine = np.memmap(logits_file, np.float32, "r", shape=(n, n_vocab))
    kl, same = np.empty(n), 0
    for i in range(0, n, 64):  # a slice at a time: gemma's vocabulary is 262144 wide
        p, q = log_softmax(reference[i:i + 64]), log_softmax(engine[i:i + 64])
        kl[i:i + 64] = (np.exp(p) * (p - q)).sum(axis=-1)
        same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
    return {"positions": n, "kl": float(kl.mean()), "kl_p99": float(np.quantile(kl, 0.99)), "kl_max": float(kl.max()),
            "top1": 100 * same / n}


def measure(name, args):
    path = common.model_path(name)
    sequences = load_sequences(common.short_name(path))
    reference = reference_logits(path, sequences)
    rows = []
    with tempfile.TemporaryDirectory(prefix="ridge-kl-") as folder:
        out = os.path.join(folder, "logits")

        def row(engine, fill, *fill_args):
            fill(path, sequences, out, *fill_args)
            rows.append({"model": common.short_name(path), "engine": engine, **compare(reference, out)})

        if args.llama_python:
            row("llama.cpp", llama_logits, args.llama_python, args.threads)
        if not args.no_ridge:
            for isa in args.isa.split(",") if args.isa else [None]:
                row(f"ridge {isa}" if isa else "ridge", ridge_logits, False, isa)
            if args.precise:
                row("ridge --precise", ridge_logits, True, None)
    for r in rows[1:] if args.llama_python else []:
        r["kl_ratio"], r["top1_difference"] = r["kl"] / rows[0]["kl"], r["top1"] - rows[0]["top1"]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=common.MODELS, metavar="MODEL")
    parser.add_argument("--llama-python", metavar="PYTHON", help="a Python that can import llama_cpp")
    parser.add_argument("--isa", help="a comma-separated list for RIDGE_CPU; default: the machine's best")
    parser.add_argument("--precise", action="store_true", help="measure --precise too")
    parser.add_argument("--no-ridge", action="store_true", help="only the peer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = [row for name in args.models for row in measure(name, args)]
    if args.json:
        print(json.dumps(results))
        return
    common.print_table(
        ["model", "engine", "positions", "mean KL", "p99 KL", "max KL", "top-1 %", "KL ratio", "top-1 difference"],
        [[r["model"], r["engine"], r["positions"], f"{r['kl']:.3g}", f"{r['kl_p99']:.3g}", f"{r['kl_max']:.3g}",
          f"{r['top1']:.2f}", f"{r['kl_ratio']:.3f}" if "kl_ratio" in r else "",
          f"{r['top1_difference']:+.2f}" if "kl_ratio" in r else ""] for r in results])


if __name__ == "__main__":
    main()
