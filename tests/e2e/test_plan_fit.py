"""ridge plan --fit and --calibrate: profiles from measured times: what is printed, written and refused, and what a file
that knows its machine stands for."""
import json
import re

import pytest

SIZES = [2 ** n for n in range(11, 27)]
HEADER = "time_stats.send_recv.median,num_workers,devices_per_node,size\n"


def send_ms(size, link=0.5 * 450e9, latency_s=10e-6):
    return 1000 * (size / link + latency_s)


@pytest.fixture
def measurements(tmp_path):
    """Sends at half of an H100's link after 10 us, in a folder beside a file of another GPU."""
    rows = "".join(f"{send_ms(size):.9f},2,2,{size}\n" for size in SIZES)
    (tmp_path / "h100-send.csv").write_text(HEADER + rows)
    (tmp_path / "a100-send.csv").write_text("not read\n")
    return tmp_path


def test_profile_and_errors(ridge, measurements, tmp_path):
    profile = tmp_path / "profile.json"
    (send,) = ridge.json("plan", "--fit", "--gpu", "h100", "--test", "every-other", "--output", profile, "--json",
                         measurements)["operations"]
    assert send["name"] == "send"
    assert send["fitted"]["n"] == send["held_out"]["n"] == len(SIZES) // 2
    assert send["held_out"]["median"] < 0.02
    written = json.loads(profile.read_text())
    assert written["name"] == "h100"
    assert written["made"].startswith("ridge plan --fit --gpu h100 --test every-other ")
    numbers = written["kinds"]["send"]
    assert numbers["link"] == pytest.approx(0.5, rel=0.02)
    assert numbers["latency_s"] == pytest.approx(10e-6, rel=0.05)
    assert numbers["sharpness"] == pytest.approx(1, abs=0.05)
    assert written["kinds"]["norm"]["sharpness"] is None  # ideal: nothing measured it


def test_table(ridge, measurements):
    out = ridge.text("plan", "--fit", "--gpu", "h100", measurements / "h100-send.csv")
    assert out.splitlines()[-1].split()[:2] == ["send", "16"]


@pytest.mark.parametrize("args, status, error", [
    (["--gpu", "h101", "x.csv"], 2, "'h101'"),
    (["--gpu", "h100", "x.csv"], 2, "x.csv"),
    (["--gpu", "h100", "--test", "tp=2", "DIR"], 2, "'tp=2' holds no measurement out"),
    (["--gpu", "h100", "--test", "send", "DIR"], 2, "no measurement to fit on"),
    (["--gpu", "h100", "--base", "h101", "DIR"], 2, "no efficiency profile 'h101'"),
    (["--gpu", "h100", "DIR/a100-send.csv"], 1, "a100-send.csv:1: expected a header"),
    (["--gpu", "h100", "--output", "/nowhere/p.json", "DIR"], 1, "/nowhere/p.json"),
    (["--gpu", "a100-80gb", "tests"], 2, "tests: no file a100*.csv"),
])
def test_faults(ridge, measurements, args, status, error):
    args = [a.replace("DIR", str(measurements)) for a in args]
    assert error in ridge("plan", "--fit", *args, status=status).stderr.decode()


def test_usage(ridge, measurements):
    ridge("plan", "--fit", "--gpu", "h100", status=2)
    ridge("plan", "--fit", measurements, status=2)


def test_calibrate_faults(ridge, tmp_path):
    ridge("plan", "--calibrate", "x.gguf", "more", status=2)
    (tmp_path / "x.gguf").write_text("no model")
    assert "x.gguf" in ridge("plan", "--calibrate", tmp_path / "x.gguf", status=1).stderr.decode()
    assert "--seconds: expected 0 to" in ridge("plan", "--calibrate", tmp_path / "x.gguf", "--seconds", -1,
                                               status=2).stderr.decode()


STREAMED = 2 * (8030261248 - 128256 * 4096)  # bytes of Llama 3.1 8B without the table, whose rows alone are read


@pytest.fixture
def machine(tmp_path):
    """A file as --calibrate writes it: 20 GB/s, of which linear layers reach 80 %."""
    path = tmp_path / "here.json"
    path.write_text(json.dumps({
        "format": "ridge efficiency profile", "version": 1, "name": "here", "made": "by hand", "activations": 0,
        "machine": {"title": "A CPU, 2 threads", "flops_per_s": 4e12, "bytes_per_s": 2e10, "memory_bytes": 32e9},
        "kinds": {"linear": {"bandwidth": 0.8}}}))
    return path


def test_a_machine_by_its_file(ridge, machine):
    """With the profile that the file is, unless another is asked for."""
    args = ("--model", "llama-3.1-8b", "--gpu", machine)
    p = ridge.json("plan", *args, "--json")
    assert p["gpu"]["name"] == "here"
    assert (p["gpu"]["peak_flops"], p["gpu"]["bandwidth"], p["gpu"]["memory_bytes"]) == (4e12, 2e10, 32e9)
    assert p["latency"]["tpot_seconds"] == pytest.approx(STREAMED / 1.6e10, rel=1e-3)
    p = ridge.json("plan", *args, "--profile", "ideal", "--json")
    assert p["latency"]["tpot_seconds"] == pytest.approx(STREAMED / 2e10, rel=1e-3)
    r = ridge.json("sim", *args, "--num-prompts", 1, "--input-len", 1, "--output-len", 3, "--json")
    assert r["tpot_ms"]["p50"] == pytest.approx(1e3 * STREAMED / 1.6e10, rel=1e-3)
    text = ridge.text("plan", *args, "--what-if", "gpu=h100")
    assert "A CPU, 2 threads" in text
    assert re.search(r"TTFT +3\.\d+ s -> +14\.\d ms", text)  # 2 x 6.98e9 x 1,000 and attention's, at 4e12 and 989e12


def test_what_serving_adds(ridge, machine):
    """0.1 s to each step, 0.01 s to each row that wants a token: a guess's, too; a draft model's forwards have none of it.
    What a plan says is of the device alone."""
    args = ("--model", "llama-3.1-8b", "--gpu", machine, "--memory", "64G")

    def times(host, *more):
        profile = json.loads(machine.read_text())
        machine.write_text(json.dumps({key: value for key, value in profile.items() if key != "host"} | host))
        r = ridge.json("sim", *args, "--num-prompts", 2, "--input-len", 1, "--output-len", 3, "--rate", 1e6, *more, "--json")
        return r["tpot_ms"]["mean"], r["busy"] * r["duration_s"], r["steps"]

    def plan():
        return ridge.json("plan", *args, "--json")["latency"]

    host = {"host": {"step_s": 0.1, "token_s": 0.01}}
    alone, with_host = times({}, "--max-num-seqs", 1), times(host, "--max-num-seqs", 1)
    assert with_host[0] - alone[0] == pytest.approx(110)
    assert with_host[1] - alone[1] == pytest.approx(6 * 0.11) and alone[2] == with_host[2] == 6
    before = plan()
    times({})
    assert plan() == before
    guesses = ("--max-num-seqs", 1, "--speculative-model", "llama-3.1-8b", "--num-speculative-tokens", 1)
    alone, with_host = times({}, *guesses), times(host, *guesses)
    assert with_host[2] == 6  # per request: the prompt's token, one beside a guess, the last without one
    assert with_host[1] - alone[1] == pytest.approx(6 * 0.1 + 2 * (1 + 2 + 1) * 0.01)


def test_links_of_a_machine(ridge, machine):
    """--calibrate measures none: that they cost nothing is no answer. In a prompt go over them 65 sums (of the embedding's
    rows, and two a layer) of 1,000 rows of 4,096 values of 2 bytes, of which each of two ranks sends as much as there is,
    and half of one row of 128,256 logits."""
    sent = 65 * 1000 * 4096 * 2 + 128256
    args = ("--model", "llama-3.1-8b", "--gpu", machine, "--tensor-parallel-size", 2)
    for command in "plan", "sim":
        assert "\"link_bytes_per_s\"" in ridge(command, *args, status=2).stderr.decode()
    free = ridge.json("plan", *args, "--link-bandwidth", 1e18, "--json")["latency"]["ttft_seconds"]
    given = ridge.json("plan", *args, "--link-bandwidth", 1e9, "--json")["latency"]["ttft_seconds"]
    assert given - free == pytest.approx(sent / 1e9, rel=1e-6)
    profile = json.loads(machine.read_text())
    profile["machine"] |= {"link_bytes_per_s": 1e9, "network_bytes_per_s": 1e8}
    machine.write_text(json.dumps(profile))
    assert ridge.json("plan", *args, "--json")["latency"]["ttft_seconds"] == given
    apart = ridge.json("plan", *args, "--gpus-per-node", 1, "--json")["latency"]["ttft_seconds"]
    assert apart - free == pytest.approx(sent / 1e8, rel=1e-6)
    profile["machine"]["link_bytes_per_s"] = 0
    machine.write_text(json.dumps(profile))
    assert "machine.link_bytes_per_s: 0, expected" in ridge("plan", *args, status=1).stderr.decode()


def test_a_file_that_cannot_be_written_is_known_before(ridge, measurements, tmp_path):
    (tmp_path / "x.gguf").write_text("no model")
    for args in (("--calibrate", tmp_path / "x.gguf"), ("--fit", "--gpu", "h100", "no-measurements.csv")):
        assert "/nowhere/p.json" in ridge("plan", *args, "--output", "/nowhere/p.json", status=1).stderr.decode()
        assert "is a directory" in ridge("plan", *args, "--output", tmp_path, status=1).stderr.decode()


def test_links_without_a_peak_are_not_fitted(ridge, measurements):
    """Of an L4's network nothing is known; within a node its bus is."""
    rows = (measurements / "h100-send.csv").read_text()
    path = measurements / "l4-send.csv"
    path.write_text(rows)
    assert ridge.json("plan", "--fit", "--gpu", "l4", path, "--json")["operations"][0]["fitted"]["n"] == len(SIZES)
    path.write_text(rows.replace(",2,2,", ",2,1,"))
    said = ridge("plan", "--fit", "--gpu", "l4", path, status=2).stderr.decode()
    assert "l4-send.csv: times of send to another node, but the network of that GPU is not known" in said


def test_a_file_that_is_no_machine(ridge, machine):
    args = ("--model", "llama-3.1-8b", "--gpu", machine)
    profile = json.loads(machine.read_text())
    del profile["machine"]
    machine.write_text(json.dumps(profile))
    for command in "plan", "sim":
        assert "doesn't say of which machine" in ridge(command, *args, status=2).stderr.decode()
    profile["machine"] = {"title": "A CPU", "flops_per_s": 4e12, "bytes_per_s": 0, "memory_bytes": 32e9}
    machine.write_text(json.dumps(profile))
    assert "machine.bytes_per_s: 0, expected" in ridge("plan", *args, status=1).stderr.decode()
