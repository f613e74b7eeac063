"""ridge inspect: what it says of real files, and how damaged ones are refused (bugs.md, kind g)."""
import os
import resource
import struct
import subprocess
import sys
import time

import pytest

# parameters, weight bytes, KV bytes per token in f16 (layers * KV heads * head size * 2 * 2), context
EXPECTED = {
    "smollm2-135m": (134515008, 96576768, 30 * 3 * 64 * 4, 8192),
    "qwen2.5-coder-0.5b": (None, None, 24 * 2 * 64 * 4, 32768),
    "gemma3-270m": (268098176, 246587904, 18 * 1 * 256 * 4, 32768),
}


def test_models(ridge, each_model):
    name, path = each_model
    found = ridge.json("inspect", path, "--json", "--tensors")
    parameters, weight_bytes, kv, context = EXPECTED[name]
    if parameters is not None:
        assert (found["parameters"], found["weight_bytes"]) == (parameters, weight_bytes)
    assert found["kv_bytes_per_token"] == kv
    assert found["kv_bytes_full_context"] == kv * context
    assert found["file_bytes"] == os.path.getsize(path)
    assert sum(t["bytes"] for t in found["tensors"]) == found["weight_bytes"]
    for row in found["tensor_types"]:
        assert sum(t["type"] == row["type"] for t in found["tensors"]) == row["n_tensors"]
    assert found["tokenizer"]["n_tokens"] > 0
    text = ridge.text("inspect", path)
    assert f"{found['parameters']}" in text and f"{kv} bytes" in text


def test_only_a_vocabulary(ridge, shared):
    found = ridge.json("inspect", shared / "vocab" / "ggml-vocab-llama-bpe.gguf", "--json")
    assert found["architecture"] == "llama" and found["parameters"] == 0
    assert found["tokenizer"]["n_tokens"] == 128256 and found["tokenizer"]["n_merges"] == 280147
    assert found["kv_bytes_per_token"] == 32 * 8 * 128 * 4


def test_usage_and_missing_files(ridge):
    assert b"usage: ridge inspect" in ridge("inspect", status=2).stderr
    assert b"no-such.gguf" in ridge("inspect", "no-such.gguf", status=1).stderr
    assert b"not a regular file" in ridge("inspect", "/tmp", status=1).stderr


def refused(ridge, path):
    """stderr of a clean refusal: status 1, nothing on stdout, under a second, under 100 MB of memory."""
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run([ridge.path, "inspect", str(path)], capture_output=True, timeout=10)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert done.returncode == 1 and done.stdout == b"", (path, done)
    assert time.monotonic() - began < 1, path
    assert peak == before or peak < 100 * 1024, path  # the largest child so far
    assert done.stderr.startswith(b"ridge: ") and done.stderr.count(b"\n") == 1, done.stderr
    return done.stderr.decode()


def test_bad_files(ridge, shared, tmp_path):
    subprocess.run([sys.executable, shared / "cases" / "make_bad_files.py", tmp_path], check=True, capture_output=True)
    files = sorted(tmp_path.glob("g*.gguf"))
    assert len(files) >= 33
    for path in files:
        refused(ridge, path)


# --- metadata that contradicts itself -------------------------------------------------------------------------------

U32, STRING, ARRAY, I32 = 4, 8, 9, 5


def text(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    if kind == STRING and isinstance(value, str):
        return text(name) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, list):
        body = b"".join(text(v) if kind == STRING else struct.pack("<i" if kind == I32 else "<I", v) for v in value)
        return text(name) + struct.pack("<IIQ", ARRAY, kind, len(value)) + body
    return text(name) + struct.pack("<I", kind) + struct.pack("<I", value)


SHAPE = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 128}


@pytest.mark.parametrize("change, extra, says", [
    ({"attention.head_count": 0}, [], "'llama.attention.head_count': 0"),
    ({"block_count": 2**31 - 1}, [], "'llama.block_count': 2147483647"),
    ({"embedding_length": 65}, [], "'llama.embedding_length': 65, not a multiple of the 4 heads"),
    ({}, [("llama.attention.head_count_kv", I32, [1])], "'llama.attention.head_count_kv': 1 element, expected 2"),
    ({}, [("llama.attention.head_count_kv", I32, [1, -1])], "'llama.attention.head_count_kv': -1 in layer 1"),
    ({}, [("tokenizer.ggml.tokens", STRING, ["a", "b"]), ("tokenizer.ggml.eos_token_id", U32, 2)],
     "'tokenizer.ggml.eos_token_id': 2, expected at most 1"),
    ({}, [("llama.attention.key_length", STRING, "64")], "'llama.attention.key_length': not a count"),
])
def test_shapes_that_contradict(ridge, tmp_path, change, extra, says):
    keys = [key("general.architecture", STRING, "llama")]
    keys += [key(f"llama.{name}", U32, value) for name, value in {**SHAPE, **change}.items()]
    keys += [key(*e) for e in extra]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))
    assert says in refused(ridge, path)


def test_kv_heads_per_layer(ridge, tmp_path):
    keys = [key("general.architecture", STRING, "llama"), key("llama.attention.head_count_kv", I32, [1, 3])]
    keys += [key(f"llama.{name}", U32, value) for name, value in SHAPE.items()]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 2, 0, len(keys)) + b"".join(keys))
    found = ridge.json("inspect", path, "--json")
    assert found["kv_bytes_per_token"] == (1 + 3) * 16 * 4
    assert found["hyperparameters"]["attention.head_count_kv"] == [1, 3]
