#!/usr/bin/env python3
"""Throughput of ridge's tokenization beside Hugging Face tokenizers, both on one thread.

    bench/tokenizer_speed.py MODEL.gguf [--ridge build/release/ridge] [--megabytes 8] [--rounds 5]

Text: the sources and texts of Python's own library, in documents of a few kB. The two take turns;
each round's seconds are of encoding alone (ridge: two runs that differ in how often the text is read,
so that start and loading fall out). Needs the Python packages tokenizers and gguf; byte-level BPE only.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sysconfig
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gguf  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: E402

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CUTS = {"gpt-2": [GPT2], "smollm": [r"\p{N}", GPT2], "starcoder": [r"\p{N}", GPT2], "command-r": [r"\p{N}", GPT2],
        "qwen2": [WORDS % ""], "llama-bpe": [WORDS % "{1,3}"]}


def reference(path):
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    name = fields["tokenizer.ggml.pre"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges,
                                     ignore_merges=name == "llama-bpe"))
    if name in ("qwen2", "command-r"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(e), "isolated") for e in CUTS[name]] +
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def documents(megabytes):
    texts, size = [], 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for begin in range(0, len(text), 8000):
            texts.append(text[begin:begin + 8000])
            size += len(texts[-1].encode())
            if size > megabytes * 1e6:
                return texts, size
    return texts, size


def ridge_seconds(ridge, model, lines, times):
    begin = time.perf_counter()
    done = subprocess.run([ridge, "tokenize", model, "--jsonl"], input=lines * times, capture_output=True, check=True)
    return time.perf_counter() - begin, done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ridge", default="build/release/ridge")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tokenizer = reference(args.model)
    texts, size = documents(args.megabytes)
    lines = "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in texts).encode()
    ours, theirs = [], []
    for i in range(args.rounds):
        begin = time.perf_counter()
        ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        theirs.append(time.perf_counter() - begin)
        once, out = ridge_seconds(args.ridge, args.model, lines, 1)
        thrice, _ = ridge_seconds(args.ridge, args.model, lines, 3)
        ours.append((thrice - once) / 2)
        if i == 0:
            assert [json.loads(line)["ids"] for line in out.splitlines()] == ids, "the ids differ"
        print(f"round {i}: tokenizers {size / 1e6 / theirs[-1]:6.1f} MB/s, ridge {size / 1e6 / ours[-1]:6.1f} MB/s "
              f"(JSON in and out included)")
    ratio = statistics.median(t / o for t, o in zip(theirs, ours))
    print(f"{size / 1e6:.1f} MB, median ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
