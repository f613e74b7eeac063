"""Resident memory: a model is in memory once, packed, at no time also as the file has it."""
import os
import subprocess

import pytest

from conftest import MODELS, model_path

KV_BYTES = 16 << 20


def peak_bytes(command):
    """The largest resident memory that the command ever had (at least this process's own: the system charges a
    child for what its parent had when it was started)."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    assert process.returncode == 0, f"{command}: exit {process.returncode}\n{text}"
    return usage.ru_maxrss << 10


@pytest.mark.parametrize("model", MODELS)
def test_peak_of_a_short_answer(ridge, model):
    path = model_path(model)
    most = 1.15 * os.path.getsize(path) + (64 << 20) + KV_BYTES
    own = peak_bytes([ridge.path, "run", path, "hi", "--raw", "--max-tokens", "4", "--threads", "2",
                      "--max-model-len", "256", "--kv-cache-memory-bytes", str(KV_BYTES)])
    assert own <= most, f"{model}: {own / 1e6:.0f} MB resident, at most {most / 1e6:.0f} MB"
