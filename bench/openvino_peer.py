#!/usr/bin/env python3
"""OpenVINO GenAI (package openvino-genai), for bench/peers.py; run by the Python that has it.

    speed MODEL PROMPT GEN THREADS      JSON on stdout: rates of one prefill and one decode at that context

Its default settings, but for the reuse of known prefixes: every prompt is another one. What it cannot load (most
quantisations of GGUF) is said as {"cannot_load": WHY}.
"""
import json
import sys

import numpy as np
import openvino
import openvino_genai


def generate(pipeline, seed, n_prompt, n_tokens):
    """Its own clock's (seconds to the first token, seconds per further token) for a prompt never seen before."""
    ids = np.array([[((i + seed) * 7919 + 13) % 30000 for i in range(n_prompt)]], dtype=np.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = n_tokens, True, False
    prompt = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    answer = pipeline.generate(prompt, config)
    if len(answer.tokens[0]) != n_tokens:
        raise SystemExit(f"OpenVINO: {len(answer.tokens[0])} tokens, expected {n_tokens}")
    return answer.perf_metrics.get_ttft().mean / 1e3, answer.perf_metrics.get_tpot().mean / 1e3


def speed(path, n_prompt, n_gen, n_threads):
    try:
        pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=n_threads)
    except RuntimeError as error:
        return {"cannot_load": str(error).strip().splitlines()[-1]}
    generate(pipeline, 1, n_prompt, 2)  # warm
    first, each = generate(pipeline, 2, n_prompt, 1 + n_gen)
    return {"prefill": n_prompt / first, "decode": 1 / each}


def main():
    if len(sys.argv) != 6 or sys.argv[1] != "speed":
        raise SystemExit(__doc__)
    print(json.dumps(speed(sys.argv[2], *map(int, sys.argv[3:]))))


if __name__ == "__main__":
    main()
