#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python, for the comparisons of bench/; run by the Python that has it.

    speed MODEL PROMPT GEN THREADS [SIZES CONTEXT STEPS]    JSON on stdout: rates of one prefill and one decode, timed
        as `ridge bench` does; and of STEPS decode steps of each of SIZES (4,16) sequences, CONTEXT tokens of each
        computed before, as llama-batched-bench does
    logits MODEL IDS OUT THREADS        IDS: a file of JSON id lists; OUT: raw f32 [sum of lengths, n_vocab]

The default settings of a user: quantised activations, f16 cache.
"""
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


MICRO_BATCH = 512  # rows of one forward


class CannotLoad(Exception):
    pass


class Peer:
    def __init__(self, path, n_threads):
        self.no_log = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.no_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise CannotLoad(path)
        self.n_threads, self.context = n_threads, None
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(MICRO_BATCH, 0, 1)

    def open(self, n_ctx, n_seqs=1):
        """A context for n_seqs sequences of n_ctx tokens each."""
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx * n_seqs, n_seqs
        params.n_batch = params.n_ubatch = MICRO_BATCH
        params.n_threads = params.n_threads_batch = self.n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp: no context for {n_seqs} sequences of {n_ctx} tokens")

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def forward(self, rows):
        """One forward of at most MICRO_BATCH rows (token, position, sequence, whether its logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def decode(self, ids, first, all_logits=False):
        """ids at positions first... of the one sequence; logits of the last row, or of all."""
        self.forward([(token, first + i, 0, all_logits or i + 1 == len(ids)) for i, token in enumerate(ids)])

    def logits(self, row):
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, row), shape=(self.n_vocab,))

    def token(self, i):
        return (i * 7919 + 13) % min(self.n_vocab, 30000)


def speed(peer, n_prompt, n_gen):
    """(tokens per second of the prefill, of the decode)"""
    peer.open(n_prompt + n_gen + 8)
    ids = [peer.token(i) for i in range(n_prompt)]

    def prefill():
        peer.clear()
        started = time.perf_counter()
        for i in range(0, n_prompt, MICRO_BATCH):
            peer.decode(ids[i:i + MICRO_BATCH], i)
        return time.perf_counter() - started

    def generate():
        started = time.perf_counter()
        for i in range(n_gen):
            peer.decode([int(peer.logits(-1).argmax())], n_prompt + i)
        return time.perf_counter() - started

    prefill()  # warm: pages of the file, caches, threads
    return n_prompt / prefill(), n_gen / generate()


def batch_speed(peer, n_seqs, n_context, n_steps):
    """Tokens per second of n_seqs sequences, each with a context of its own, that decode together."""
    peer.open(n_context + n_steps + 8, n_seqs)
    for s in range(n_seqs):
        for first in range(0, n_context, MICRO_BATCH):
            end = min(n_context, first + MICRO_BATCH)
            peer.forward([(peer.token(s * n_context + i), i, s, i + 1 == n_context) for i in range(first, end)])
    started = time.perf_counter()
    for i in range(n_steps):
        peer.forward([(peer.token(i * n_seqs + s), n_context + i, s, True) for s in range(n_seqs)])
    return n_seqs * n_steps / (time.perf_counter() - started)


def all_speeds(path, n_prompt, n_gen, n_threads, sizes=(), n_context=0, n_steps=0):
    try:
        peer = Peer(path, n_threads)
    except CannotLoad:
        return {"cannot_load": "llama.cpp does not load this file"}
    prefill, decode = speed(peer, n_prompt, n_gen)
    return {"prefill": prefill, "decode": decode,
            "batch": {n: batch_speed(peer, n, n_context, n_steps) for n in sizes}}


def write_logits(path, ids_file, out_file, n_threads):
    with open(ids_file, encoding="utf-8") as f:
        lists = json.load(f)
    peer = Peer(path, n_threads)
    peer.open(max(map(len, lists)) + 8)
    with open(out_file, "wb") as out:
        for ids in lists:
            peer.clear()
            for first in range(0, len(ids), MICRO_BATCH):
                chunk = ids[first:first + MICRO_BATCH]
                peer.decode(chunk, first, all_logits=True)
                for row in range(len(chunk)):
                    out.write(peer.logits(row).astype(np.float32).tobytes())


def main():
    what, args = sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]
    if what == "speed" and len(args) == 4:
        print(json.dumps(all_speeds(args[0], *map(int, args[1:]))))
    elif what == "speed" and len(args) == 7:
        sizes = [int(n) for n in args[4].split(",")]
        print(json.dumps(all_speeds(args[0], *map(int, args[1:4]), sizes, *map(int, args[5:]))))
    elif what == "logits" and len(args) == 4:
        write_logits(*args[:3], int(args[3]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
