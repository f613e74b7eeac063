"""Resident memory: a model is in memory once, packed, at no time also as the file has it."""
import os
import subprocess
import sys

import pytest

from conftest import MODELS, model_path

KV_BYTES = 16 << 20


# A process is charged for what its parent had in memory when it was started, and by now this one may have much: so a
# small one starts the command and says what that needed at most.
CHILD = """import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)"""


def peak_bytes(command, env=None):
    """The largest resident memory that the command ever had."""
    done = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stderr}"
    return int(done.stdout) << 10


def test_the_measure_is_the_commands_own():
    held = bytearray(200 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert peak_bytes(["true"]) < 50 << 20
    del held


# Where no peaks are known yet they are measured: in memory as large as the weights.
@pytest.mark.parametrize("options", [[], ["--json", "--precise"]])
@pytest.mark.parametrize("model", MODELS)
def test_peak_of_a_short_answer(ridge, model, options, tmp_path):
    path = model_path(model)
    most = 1.15 * os.path.getsize(path) + (64 << 20) + KV_BYTES
    own = peak_bytes([ridge.path, "run", path, "hi", "--raw", "--max-tokens", "4", "--threads", "2", "--max-model-len", "256",
                      "--kv-cache-memory-bytes", str(KV_BYTES), *options], env={"RIDGE_HOME": str(tmp_path)})
    assert (tmp_path / "peaks.json").exists()
    assert own <= most, f"{model}: {own / 1e6:.0f} MB resident, at most {most / 1e6:.0f} MB"
