#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python, for the comparisons of bench/; run by the Python that has it.

    speed MODEL PROMPT GEN THREADS      one prefill and one decode, timed as `ridge bench` does      JSON on stdout
    logits MODEL IDS OUT THREADS        IDS: a file of JSON id lists; OUT: raw f32 [sum of lengths, n_vocab]

The default settings of a user: quantised activations, f16 cache.
"""
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


class Peer:
    def __init__(self, path, n_ctx, n_threads):
        self.no_log = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.no_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 512, 512
        params.n_threads = params.n_threads_batch = n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, ids, first, all_logits=False):
        """One forward of at most 512 ids at positions first...; logits of the last row, or of all."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i + 1 == len(ids)
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def logits(self, row):
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, row), shape=(self.n_vocab,))


def speed(path, n_prompt, n_gen, n_threads):
    peer = Peer(path, n_prompt + n_gen + 8, n_threads)
    ids = [(i * 7919 + 13) % min(peer.n_vocab, 30000) for i in range(n_prompt)]

    def prefill():
        peer.clear()
        started = time.perf_counter()
        for i in range(0, n_prompt, 512):
            peer.decode(ids[i:i + 512], i)
        return time.perf_counter() - started

    def generate(n):
        started = time.perf_counter()
        for i in range(n):
            peer.decode([int(peer.logits(-1).argmax())], n_prompt + i)
        return time.perf_counter() - started

    prefill()  # warm: pages of the file, caches, threads
    seconds = prefill(), generate(n_gen)
    return {"prefill_s": seconds[0], "prefill_tokens_per_s": n_prompt / seconds[0],
            "decode_s": seconds[1], "decode_tokens_per_s": n_gen / seconds[1]}


def write_logits(path, ids_file, out_file, n_threads):
    with open(ids_file, encoding="utf-8") as f:
        lists = json.load(f)
    peer = Peer(path, max(map(len, lists)) + 8, n_threads)
    with open(out_file, "wb") as out:
        for ids in lists:
            peer.clear()
            for first in range(0, len(ids), 512):
                chunk = ids[first:first + 512]
                peer.decode(chunk, first, all_logits=True)
                for row in range(len(chunk)):
                    out.write(peer.logits(row).astype(np.float32).tobytes())


def main():
    if len(sys.argv) != 6 or sys.argv[1] not in ("speed", "logits"):
        raise SystemExit(__doc__)
    what, path, a, b, threads = sys.argv[1:]
    if what == "speed":
        print(json.dumps(speed(path, int(a), int(b), int(threads))))
    else:
        write_logits(path, a, b, int(threads))


if __name__ == "__main__":
    main()
