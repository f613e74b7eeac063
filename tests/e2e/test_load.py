"""`ridge load`: against a server that does everything wrong in turn, and against the real one."""
import json
import signal
import subprocess
import time

import pytest

from conftest import ROOT, free_port
from fake_openai import TIMING, Fake


@pytest.fixture(scope="module")
def fake():
    with Fake() as f:
        yield f


@pytest.fixture
def load(ridge, fake):
    """load("split", FLAG, ...): the JSON report of a run against that behaviour of the fake server."""
    def run(how, *flags, status=0, **kw):
        fake.bodies.clear()
        fake.heads.clear()
        done = ridge("load", f"http://127.0.0.1:{fake.port}/{how}", "--input-len", "5", "--output-len", "4",
                     "--num-requests", "6", "--json", *flags, status=status, timeout=60, **kw)
        return json.loads(done.stdout) if done.stdout else done.stderr.decode()

    return run


def per_request(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- servers that answer, however oddly ----


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("how", ["good", "crlf", "split", "silent", "until_close", "stale"])
def test_every_way_to_write_a_stream(load, tmp_path, how, endpoint):
    lines = tmp_path / "lines"
    got = load(how, "--endpoint", endpoint, "--concurrency", "2", "--per-request", lines)
    assert (got["completed"], got["failed"], got["errors"]) == (6, 0, {})
    assert got["output_tokens"] == 24
    assert got["input_tokens"] == (30 if how == "silent" else 54)
    assert got["cached_tokens"] == (0 if how == "silent" else 24)
    for i, line in enumerate(per_request(lines)):
        assert (line["index"], line["status"], line["finish_reason"]) == (i, "ok", "length")
        assert len(line["itl_ms"]) == 3
        assert line["output_tokens"] == 4
    assert len({line["text_hash"] for line in per_request(lines)}) == 1


def test_times_are_those_of_the_server(load, tmp_path):
    """Lower bounds only: that much the server has really waited."""
    lines = tmp_path / "lines"
    got = load("timed", "--concurrency", "3", "--per-request", lines)
    first, gap = TIMING["first"] * 1e3, TIMING["gap"] * 1e3
    assert got["ttft_ms"]["min"] >= first
    assert got["tpot_ms"]["min"] >= 0.9 * gap
    assert got["e2e_ms"]["min"] >= first + 3 * gap
    for line in per_request(lines):
        assert line["e2e_ms"] >= line["ttft_ms"] + sum(line["itl_ms"]) - 1e-3
        assert abs(line["tpot_ms"] - sum(line["itl_ms"]) / 3) < 1e-3
    assert got["requests_per_s"] == pytest.approx(6 / got["duration_s"])


def test_waiting_in_the_generator_counts(ridge, load, fake, tmp_path):
    """One connection for a server of 0.1 s per answer, asked 100 times a second: whoever measures from the sending sees
    0.1 s for each. The wait is the server's doing, and in the latencies."""
    lines = tmp_path / "lines"
    got = load("one_by_one", "--rate", "100", "--max-connections", "1", "--per-request", lines)
    done = per_request(lines)
    for i, line in enumerate(done):
        assert line["end_s"] >= 0.1 * (i + 1)
        assert line["ttft_ms"] >= 1e3 * (0.1 * (i + 1) - line["due_s"]) - 1
    assert done[-1]["sent_s"] - done[-1]["due_s"] > 0.3
    assert got["lateness_ms"]["max"] > 300
    assert got["late"]
    warned = ridge("load", f"http://127.0.0.1:{fake.port}/one_by_one", "--rate", "100", "--max-connections", "1",
                   "--num-requests", "4", "--output-len", "1")
    assert b"left late" in warned.stderr


def test_an_open_loop_does_not_wait(load, tmp_path):
    """With connections enough, the slow server is asked on time."""
    lines = tmp_path / "lines"
    load("one_by_one", "--rate", "200", "--per-request", lines)
    done = per_request(lines)
    assert done[-1]["sent_s"] < 0.4 < done[-1]["end_s"]


def test_no_stream(load):
    got = load("whole", "--no-stream")
    assert (got["completed"], got["output_tokens"], got["input_tokens"]) == (6, 24, 54)
    assert got["ttft_ms"] is None and got["itl_ms"] is None and got["e2e_ms"]["p50"] > 0


def test_goodput(load):
    got = load("timed", "--slo-ttft", "10000", "--slo-tpot", "1", "--concurrency", "6")
    assert got["goodput"]["requests"] == 0
    got = load("timed", "--slo-ttft", "30000", "--slo-tpot", "30000", "--concurrency", "6")
    assert (got["goodput"]["requests"], got["goodput"]["share"]) == (6, 1.0)
    assert "goodput" not in load("good")


# ---- servers that fail ----


@pytest.mark.parametrize("how, kind, said", [
    ("busy", "http_429", "queue full"),
    ("drop", "dropped", "connection ended"),
    ("no_answer", "dropped", "connection ended"),
    ("garbage", "protocol", "HTTP"),
    ("bad_chunk", "protocol", "HTTP"),
    ("bad_json", "protocol", "not JSON"),
    ("fails", "stream_error", "out of blocks"),
    ("cut", "incomplete", "[DONE]"),
    ("whole", "protocol", "application/json"),
    ("locked", "http_401", "who are you?"),
    ("coloured", "http_500", " [31mred?   éé"),
    ("early", "http_103", "announces another"),
])
def test_failures_by_kind(load, how, kind, said):
    got = load(how, status=1)
    assert (got["completed"], got["failed"]) == (0, 6)
    assert got["errors"][kind]["count"] == 6
    assert said in got["errors"][kind]["first"]


def test_what_is_printed_is_text(ridge, fake):
    done = ridge("load", f"http://127.0.0.1:{fake.port}/coloured", "--num-requests", "1", status=1)
    assert b"1 x http_500, the first:  [31mred?   \xc3\xa9" in done.stdout
    assert b",  [31mfake : " in done.stdout
    assert all(c.isprintable() or c == "\n" for c in done.stdout.decode())  # and it is UTF-8


def test_some_failures(load, fake):
    got = load("half_busy")
    assert (got["completed"], got["failed"], got["errors"]["http_429"]["count"]) == (3, 3, 3)


def test_a_timeout(load):
    got = load("hang", "--timeout", "0.3", "--concurrency", "6", status=1)
    assert got["errors"]["timeout"]["count"] == 6
    assert got["duration_s"] >= 0.3


def test_the_key_is_sent(load):
    assert load("locked", "--api-key", "secret")["completed"] == 6
    assert load("locked", env={"RIDGE_API_KEY": "secret"})["completed"] == 6


def test_connections_are_kept(load, fake):
    before = fake.n_connections
    assert load("good", "--concurrency", "2")["completed"] == 6
    assert fake.n_connections - before <= 4  # and one that looks, one that asks for the models


def test_an_interrupted_run_reports(ridge, fake):
    fake.bodies.clear()
    process = subprocess.Popen([ridge.path, "load", f"http://127.0.0.1:{fake.port}/hang", "--json"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not fake.bodies and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    got = json.loads(out)
    assert process.returncode == 1 and got["interrupted"]
    assert got["errors"] == {"interrupted": {"count": 1}}


# ---- what is asked ----


def test_a_seed_repeats_a_run(load, fake, tmp_path):
    def run(*flags):
        load("good", "--rate", "200", "--input-len", "uniform:3:30", "--output-len", "exp:4:9", "--prefix-tokens", "4",
             "--prefix-groups", "2", "--per-request", tmp_path / "lines", *flags)
        due = [line["due_s"] for line in per_request(tmp_path / "lines")]
        return due, sorted(json.dumps(body, sort_keys=True) for body in fake.bodies)

    first = run()
    assert run() == first
    assert run("--seed", "1")[1] != first[1]


def test_the_fields_of_a_request(load, fake):
    load("good")
    body = fake.bodies[0]
    assert len(body.pop("prompt").split(" ")) == 5
    assert body == {"model": "fake", "max_tokens": 4, "temperature": 0.0, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}}
    load("good", "--endpoint", "chat", "--model", "other", "--temperature", "0.5", "--no-ignore-eos", "--extra-body",
         '{"priority": 2}', "--prefix-tokens", "3")
    body = fake.bodies[0]
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert (body["model"], body["temperature"], body["priority"], body["seed"]) == ("other", 0.5, 2, 0)
    assert "ignore_eos" not in body
    load("good", "--token-ids", "--vocab-size", "1000")
    assert all(len(b["prompt"]) == 5 and all(0 <= i < 1000 for i in b["prompt"]) for b in fake.bodies)


def test_traces(ridge, fake, tmp_path):
    def run(text, *flags):
        fake.bodies.clear()
        (tmp_path / "trace").write_text(text)
        return ridge.json("load", f"http://127.0.0.1:{fake.port}/good/v1", "--trace", tmp_path / "trace", "--json",
                          "--trace-speed", "10", "--per-request", tmp_path / "lines", *flags)

    mooncake = [{"timestamp": 100 * i, "input_length": 600, "output_length": 2 + i, "hash_ids": [7, i]} for i in range(3)]
    got = run("\n".join(map(json.dumps, mooncake)))
    assert (got["completed"], got["output_tokens"]) == (3, 9)
    assert [line["due_s"] for line in per_request(tmp_path / "lines")] == [0.0, 0.01, 0.02]
    words = [body["prompt"].split(" ") for body in fake.bodies]
    assert all(len(w) == 600 and w[:512] == words[0][:512] for w in words) and words[1] != words[2]
    got = run("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,7,3\n2024-01-01 00:00:00.5,8,4\n",
              "--max-input-len", "7")
    assert got["output_tokens"] == 7
    assert [len(body["prompt"].split(" ")) for body in fake.bodies] == [7, 7]


def test_the_recorded_traces_are_read(ridge, fake, shared):
    for name in ("azure-2023-conversation.csv", "mooncake-conversation.jsonl"):
        got = ridge.json("load", f"http://127.0.0.1:{fake.port}/good", "--trace", shared / "data" / "traces" / name,
                         "--trace-speed", "1000", "--num-requests", "20", "--max-output-len", "3", "--json")
        assert got["completed"] == 20


# ---- what cannot be done ----


def test_no_server(ridge, load, fake):
    port = free_port()
    done = ridge("load", f"http://127.0.0.1:{port}", status=1)
    assert b"cannot connect to 127.0.0.1 port %d: Connection refused" % port in done.stderr
    done = ridge("load", "http://no-such-host.invalid", status=1)
    assert b"no-such-host.invalid" in done.stderr
    assert "/nomodels/v1/models: HTTP 404: no such path" in load("nomodels", status=1)
    assert "names no model" in load("empty", status=1)


def test_waiting_for_a_server(ridge):
    port = free_port()
    process = subprocess.Popen([ridge.path, "load", f"http://127.0.0.1:{port}", "--wait", "0.5"], cwd=ROOT,
                               stderr=subprocess.PIPE)
    started = time.monotonic()
    assert process.wait(20) == 1 and b"refused" in process.stderr.read()
    assert time.monotonic() - started >= 0.5


@pytest.mark.parametrize("flags, said", [
    (["--rate", "1", "--concurrency", "2"], "exclude each other"),
    (["--rate", "0"], "rate of 0"),
    (["--concurrency", "0"], "0 requests at a time"),
    (["--num-requests", "0"], "at least one request"),
    (["--num-prompts", "0"], "at least one request"),
    (["--trace", "x", "--concurrency", "2"], "exclude each other"),
    (["--max-input-len", "99999999"], "--max-input-len: expected 0 to"),
    (["--slo-ttft", "-1"], "--slo-ttft: expected 0 to"),
    (["--input-len", "exp:x"], "--input-len: expected a length in tokens"),
    (["--token-ids"], "--vocab-size"),
    (["--token-ids", "--vocab-size", "9", "--endpoint", "chat"], "takes no ids"),
    (["--endpoint", "embeddings"], "expected chat or completions, found 'embeddings'"),
    (["--extra-body", "[1]"], "expected a JSON object"),
    (["--trace", "x", "--input-len", "3"], "the lengths are the trace's"),
    (["--concurrency", "9", "--max-connections", "8"], "9 requests at a time over 8 connections"),
])
def test_bad_flags(ridge, flags, said):
    done = ridge("load", "http://127.0.0.1:1", *flags, status=2)
    assert said in done.stderr.decode()


@pytest.mark.parametrize("url", ["127.0.0.1:80", "https://127.0.0.1", "http://", "http://h:x"])
def test_bad_urls(ridge, url):
    assert "expected http://HOST" in ridge("load", url, status=2).stderr.decode()


def test_bad_traces(ridge, tmp_path):
    (tmp_path / "trace").write_text('{"timestamp":0,"input_length":1,"output_length":1}\n{"timestamp":0}\n')
    done = ridge("load", "http://127.0.0.1:1", "--trace", tmp_path / "trace", status=1)
    assert f'{tmp_path}/trace:2: no "input_length"' in done.stderr.decode()
    assert b"No such file" in ridge("load", "http://127.0.0.1:1", "--trace", "/nonexistent", status=1).stderr
    done = ridge("load", "http://127.0.0.1:1", "--per-request", "/nonexistent/x", status=1)
    assert b"cannot write '/nonexistent/x'" in done.stderr


# ---- the real server ----


def test_the_real_server(ridge, server, tmp_path):
    """Prompts and answers are as long as planned, and no load changes an answer."""
    def run(*flags):
        got = ridge.json("load", server.url, "--num-requests", "6", "--input-len", "uniform:4:40", "--output-len",
                         "uniform:2:8", "--per-request", tmp_path / "lines", "--json", *flags)
        assert (got["completed"], got["errors"]) == (6, {})
        return got, per_request(tmp_path / "lines")

    alone, lines = run()
    assert all(line["prompt_tokens"] == line["planned_input"] for line in lines)
    assert all(line["output_tokens"] == line["planned_output"] for line in lines)
    together, others = run("--concurrency", "6")
    assert [line["text_hash"] for line in lines] == [line["text_hash"] for line in others]
    assert alone["output_tokens"] == together["output_tokens"]
    chat, _ = run("--rate", "50", "--endpoint", "chat")
    assert chat["output_tokens"] == alone["output_tokens"] and chat["input_tokens"] > alone["input_tokens"]


def test_a_recording_is_replayed(ridge, serve, model, tmp_path):
    """What `ridge serve --record` wrote is a trace: the same lengths, and the beginnings that were shared still are."""
    flags = ["--num-requests", "4", "--concurrency", "2", "--json"]
    server = serve(model("smollm2-135m"), "--record", tmp_path / "record")
    asked = ridge.json("load", server.url, *flags, "--prefix-tokens", "512", "--input-len", "uniform:4:9", "--output-len",
                       "uniform:1:3")
    assert server.stop() == 0
    server = serve(model("smollm2-135m"))
    again = ridge.json("load", server.url, "--trace", tmp_path / "record", "--trace-speed", "100", "--json")
    for field in ("completed", "input_tokens", "output_tokens"):
        assert again[field] == asked[field]
    assert again["cached_tokens"] >= 3 * 512


def test_text_report(ridge, fake):
    text = ridge.text("load", f"http://127.0.0.1:{fake.port}/half_busy", "--num-requests", "4", "--slo-ttft", "9000")
    assert "2 of 4 requests succeeded" in text
    for word in ("TTFT", "TPOT", "ITL", "E2E", "lateness", "p99", "goodput", "2 x http_429, the first: queue full"):
        assert word in text
