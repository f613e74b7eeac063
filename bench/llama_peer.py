#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python, for bench/kl.py; run by the Python that has it.

    logits MODEL IDS OUT THREADS        IDS: a file of JSON id lists; OUT: raw f32 [sum of lengths, n_vocab]

The default settings of a user: quantised activations, f16 cache.
"""
import ctypes
import json
import sys

import llama_cpp
import numpy as np


MICRO_BATCH = 512  # rows of one forward


class Peer:
    def __init__(self, path, n_threads):
        self.no_log = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.no_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.n_threads, self.context = n_threads, None
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(MICRO_BATCH, 0, 1)

    def open(self, n_ctx):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = MICRO_BATCH
        params.n_threads = params.n_threads_batch = self.n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp: no context of {n_ctx} tokens")

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, ids, first):
        """At most MICRO_BATCH ids at positions first..., the logits of all wanted."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def logits(self, row):
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, row), shape=(self.n_vocab,))


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
                peer.decode(chunk, first)
                for row in range(len(chunk)):
                    out.write(peer.logits(row).astype(np.float32).tobytes())


def main():
    if len(sys.argv) != 6 or sys.argv[1] != "logits":
        raise SystemExit(__doc__)
    write_logits(*sys.argv[2:5], int(sys.argv[5]))


if __name__ == "__main__":
    main()
