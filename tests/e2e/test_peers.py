"""bench/peers.py with programs made here in the place of ridge and of its peers: who is called how, and what is reported."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MACHINE = {"cpu": "a machine", "isa": "portable"}

# Each writes its arguments to the log beside it. The rates of ridge grow with every call of the same kind.
RIDGE = """
batches = list(map(int, args[args.index("--batch") + 1].split(",")))
results = [{"phase": "prefill", "batch": 1, "tokens_per_s": 1000.0 * calls, "of_roof": 0.5}]
results += [{"phase": "decode", "batch": n, "tokens_per_s": 100.0 * n * calls, "of_roof": 0.8} for n in batches]
for r in results:
    r |= {"peak_read_bytes_per_s": 20e9 * calls, "peak_int8_ops_per_s": 500e9 * r["batch"], "peak_f32_flops_per_s": 150e9}
if "--profile" not in args:
    for r in results: del r["of_roof"]
print(json.dumps({"machine": MACHINE, "results": results}))
"""
OPENVINO = """
print(json.dumps({"cannot_load": "such a file"} if "bad.gguf" in args[2] else {"prefill": 125.0, "decode": 10.0}))
"""
LLAMA_BENCH = """
print(json.dumps([{"avg_ts": 20.0 if "-d" in args else 250.0}]))
"""
IK_BENCH = """
if "bad.gguf" in args[1]:
    sys.exit("main: error: failed to load model 'bad.gguf'")
fast = "-rtr 1 -fa 0" in " ".join(args)
if "-gp" in args:
    print(json.dumps([{"avg_ts": 50.0 if fast else 60.0}]))
else:
    print(json.dumps([{"avg_ts": 500.0 if fast else 400.0}]))
"""
BATCHED_BENCH = """
print("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |", file=sys.stderr)
print("|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|", file=sys.stderr)
for n in args[args.index("-npl") + 1].split(","):
    print(f"|   256 |     32 | {n:>4} |   1088 |    1.252 |   817.61 |    0.346 |   {RATE * int(n)} |    1.599 |   680.59 |",
          file=sys.stderr)
"""


class Peers:
    """The programs, in a folder with two models, and bench/peers.py over them."""

    def __init__(self, folder):
        self.folder = folder
        self.ridge, self.openvino = self.program("ridge", RIDGE), self.program("python-openvino", OPENVINO)
        self.llama, self.ik = self.program("llama/llama-bench", LLAMA_BENCH), self.program("ik/llama-bench", IK_BENCH)
        self.llama_batched = self.program("llama/llama-batched-bench", BATCHED_BENCH.replace("RATE", "50.0"))
        self.ik_batched = self.program("ik/llama-batched-bench", BATCHED_BENCH.replace("RATE", "25.0"))
        self.all = ["--llama-bench", self.llama, "--ik-bench", self.ik, "--openvino-python", self.openvino]
        for model in ("good.gguf", "bad.gguf"):
            (folder / model).write_text("")

    def program(self, name, body):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\nMACHINE, args = {MACHINE!r}, sys.argv[1:]\n"
                        f"log = pathlib.Path({str(self.folder / (name + '.log'))!r})\n"
                        "with log.open('a') as f: f.write(json.dumps(args) + '\\n')\n"
                        "calls = sum(json.loads(line)[2:4] == args[2:4] for line in log.read_text().splitlines())\n" + body)
        path.chmod(0o755)
        return path

    def __call__(self, *args, model="good.gguf", status=0):
        done = subprocess.run([sys.executable, ROOT / "bench" / "peers.py", *map(str, args), self.folder / model],
                              env={**os.environ, "RIDGE_BIN": str(self.ridge)}, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
        return done

    def calls(self, program):
        """The arguments of every call that it got."""
        log = self.folder / f"{program}.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def peers(tmp_path):
    return Peers(tmp_path)


def test_without_peers_only_ridge(peers):
    out = json.loads(peers("--rounds", 3, "--json").stdout)
    assert [(r["phase"], r["ridge"], r["peers"]) for r in out["results"]] == \
        [("prefill 512", 2000.0, {}), ("decode 128 at 512", 200.0, {})]
    assert out["machine"] == MACHINE and "fastest" not in out["results"][0]
    assert [r["roof"] for r in out["results"]] == [4000.0, 250.0]
    assert out["results"][0]["peak_read_bytes_per_s"] == 40e9
    assert len(peers.calls("ridge")) == 3 and not peers.calls("ik/llama-bench")


def test_ratios_and_their_spread(peers):
    out = json.loads(peers(*peers.all, "--rounds", 3, "--batch", "4,16", "--json").stdout)
    rows = {r["phase"]: r for r in out["results"]}
    assert list(rows) == ["prefill 512", "decode 128 at 512", "decode x4 at 256", "decode x16 at 256"]
    prefill = rows["prefill 512"]["peers"]
    assert prefill["llama.cpp"] == {"rate": 250.0, "ratio": 8.0, "min": 4.0, "max": 12.0}
    assert prefill["ik_llama.cpp"] == {"rate": 500.0, "ratio": 4.0, "min": 2.0, "max": 6.0}
    assert rows["prefill 512"]["fastest"] == {"ratio": 4.0, "min": 2.0, "max": 6.0}
    assert rows["decode 128 at 512"]["fastest"] == {"ratio": 4.0, "min": 2.0, "max": 6.0}
    batch = rows["decode x16 at 256"]
    assert batch["peers"]["llama.cpp"]["ratio"] == 4.0 and batch["peers"]["ik_llama.cpp"]["ratio"] == 8.0
    assert "OpenVINO" not in batch["peers"] and batch["fastest"]["ratio"] == 4.0


def test_ik_runs_at_its_fastest_settings_and_says_which(peers):
    out = peers("--ik-bench", peers.ik, "--rounds", 2, "--batch", "4").stdout
    assert "with repacking, no flash attention" in out
    tried = peers.calls("ik/llama-bench")
    assert len(tried) == 2 * (4 + 2) and all(call[-4:] == ["-rtr", "1", "-fa", "0"] for call in tried[2 * 4:])
    assert all(call[-2:] == ["-rtr", "-no-fa"] for call in peers.calls("ik/llama-batched-bench"))


def test_llama_cpp_runs_at_its_defaults(peers):
    out = peers("--llama-bench", peers.llama, "--rounds", 2, "--prompt", 40, "--gen", 8, "--threads", 3, "--batch", "4,16",
                "--batch-context", 20, "--batch-gen", 5).stdout
    assert "settings" not in out
    model = ["-m", str(peers.folder / "good.gguf"), "-t", "3"]
    prefill, decode = ["-p", "40", "-n", "0"], ["-p", "0", "-n", "8", "-d", "40"]
    assert peers.calls("llama/llama-bench") == [[*model, *what, "-r", "1", "-o", "json"] for what in (prefill, decode)] * 2
    assert peers.calls("llama/llama-batched-bench") == \
        [[*model, "-c", str(16 * (20 + 5)), "-npp", "20", "-ntg", "5", "-npl", "4,16"]] * 2


@pytest.mark.parametrize("option, folder", [("--llama-bench", "llama"), ("--ik-bench", "ik")])
def test_without_a_batched_bench(peers, option, folder):
    (peers.folder / folder / "llama-batched-bench").unlink()
    out = json.loads(peers(option, peers.folder / folder / "llama-bench", "--rounds", 1, "--batch", "4", "--json").stdout)
    assert out["results"][0]["peers"] and not out["results"][2]["peers"]


def test_a_batch_that_is_not_printed_is_no_result(peers):
    peers.llama_batched.write_text("#!/bin/sh\necho '|   256 |     32 |    4 |   1088 |  1.2 |  8.1 |  0.3 |  25.0 |  1.5 |  6.5 |'\n")
    assert "nothing of decode x16" in peers("--llama-bench", peers.llama, "--batch", "4,16", status=1).stderr


def test_what_others_take_of_the_processors_is_said(peers):
    """A program that is no child of anyone here takes 0.3 s while ridge runs."""
    with peers.ridge.open("a") as ridge:
        ridge.write("""
import os, time
end, of_others = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
os.close(of_others)
os.read(end, 1)
""")
    start = time.monotonic()
    out = json.loads(peers("--rounds", 1, "--json").stdout)
    assert 0.25 / ((time.monotonic() - start) * os.cpu_count()) < out["results"][0]["others"] <= 1


def test_who_cannot_load_the_file_is_said_and_left_out(peers):
    table = peers(*peers.all, "--rounds", 2, model="bad.gguf").stdout.splitlines()
    assert table[1] == "peaks measured beside: 30-30 GB/s read, 500-500 GOPS int8, 150-150 GFLOP/s f32"
    cells = [cell.strip() for cell in table[5].split("|")[1:-1]]
    assert cells == ["bad", "prefill 512", "3000.0", "1500.0", "250.0", "cannot load", "cannot load", "6.00 (4.00-8.00)", "", "",
                     "6.00 (4.00-8.00)"]
    assert len(peers.calls("python-openvino")) == 1


@pytest.mark.parametrize("args", [("--batch", "0"), ("--batch", "4,x"), ("--batch", ""), ("--no-such",), ("--rounds", "0"),
                                  ("--threads", "-1"), ("--gen", "x")])
def test_usage(peers, args):
    peers(*args, status=2)


@pytest.mark.parametrize("body, says", [
    ("echo broken >&2; exit 3", "exit 3\nbroken"), ("kill -SEGV $$", "exit -11"), ("true", "unexpected output: ''"),
    ("echo hello", "unexpected output: 'hello"), ("printf '\\377'", "unexpected output"), ("echo []", "unexpected output: '[]"),
    ("echo '[{}]'", "unexpected output: '[{}]"), ("echo '[{\"avg_ts\": 0}]'", "prefill of good at 0 tokens a second"),
    ("echo '[{\"avg_ts\": NaN}]'", "prefill of good at nan"), ("echo '[{\"avg_ts\": \"1\"}]'", "prefill of good at '1'"),
    ("sleep 60", "no end within 5 s"),
])
def test_a_peer_that_fails_is_no_result(peers, body, says):
    peers.llama.write_text(f"#!/bin/bash\n{body}\n")
    done = peers("--llama-bench", peers.llama, *(["--timeout", 5] if "sleep" in body else []), status=1)
    assert says in done.stderr and "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("body, says", [("echo {}", "unexpected output: '{}"), ("echo '{\"prefill\": 1}'", "unexpected output"),
                                        ("echo []", "unexpected output"), ("exit 4", "exit 4")])
def test_openvino_that_fails_is_no_result(peers, body, says):
    peers.openvino.write_text(f"#!/bin/sh\n{body}\n")
    done = peers("--openvino-python", peers.openvino, status=1)
    assert says in done.stderr and "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("option", ["--llama-bench", "--ik-bench", "--openvino-python"])
def test_a_peer_that_is_not_there(peers, option):
    done = peers(option, peers.folder / "none", status=1)
    assert f"{peers.folder / 'none'}: No such file or directory" in done.stderr and "Traceback" not in done.stderr
